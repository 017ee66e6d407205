"""The memory of torch's tensors during a call, for tests of memory."""

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class _Live(TorchDispatchMode):
    """Count the bytes of all tensors that operations made and that are still alive."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self._seen: dict[int, Any] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {id_of(part) for part in tree_leaves((args, kwargs)) if torch.is_tensor(part)}
        made = func(*args, **(kwargs or {}))
        for part in tree_leaves(made):
            if torch.is_tensor(part) and id_of(part) not in given | self._seen.keys():
                self._count(part.untyped_storage())
        return made

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()

        def freed(_: Any) -> None:
            self._seen.pop(key, None)
            self.now -= size

        self._seen[key] = weakref.ref(storage, freed)
        self.now += size
        self.most = max(self.most, self.now)


def id_of(tensor: torch.Tensor) -> int:
    """A number of the memory behind a tensor."""
    return tensor.untyped_storage()._cdata


def peak_of_tensors(ask: Callable[[], object]) -> int:
    """The most bytes that tensors made during a call took together."""
    with _Live() as live:
        answer = ask()
    del answer
    return live.most
