"""Answers that are computed once.

What is kept outlives the mode that it was first asked for in: nothing here is made in
``torch.inference_mode()``, whose tensors no gradient may pass.
"""

import functools
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import Any, Generic, ParamSpec, TypeVar

import torch
from torch import Tensor

Value = TypeVar("Value")
Params = ParamSpec("Params")


def ordinarily(
    compute: Callable[Params, Value], *args: Params.args, **kwargs: Params.kwargs
) -> Value:
    """What a function gives outside inference mode; asked for in it, without gradients."""
    if not torch.is_inference_mode_enabled():
        return compute(*args, **kwargs)
    with torch.inference_mode(mode=False), torch.no_grad():
        return compute(*args, **kwargs)


@contextmanager
def recording(tensors: Callable[[], Iterable[Tensor]]) -> Generator[None]:
    """Gradients are recorded in any mode, for what is asked for in another one later.

    Not where a tensor was made in inference mode: torch records none of these.
    """
    if torch.is_grad_enabled():
        yield
        return
    ordinary = not any(part.is_inference() for part in tensors())
    with torch.inference_mode(mode=False), torch.set_grad_enabled(ordinary):
        yield


def remembered(
    most: int, *, where: Callable[Params, bool] | None = None
) -> Callable[[Callable[Params, Value]], Callable[Params, Value]]:
    """A function that remembers the answers to its last few (hashable) arguments.

    Args:
        most: how many.
        where: of which arguments; those of others are large. Default: of all.
    """

    def decorated(compute: Callable[Params, Value]) -> Callable[Params, Value]:
        @functools.lru_cache(maxsize=most)
        @functools.wraps(compute)
        def made(*args: Params.args, **kwargs: Params.kwargs) -> Value:
            return ordinarily(compute, *args, **kwargs)

        if (small := where) is None:
            return made  # pyright: ignore[reportReturnType]

        @functools.wraps(compute)
        def some(*args: Params.args, **kwargs: Params.kwargs) -> Value:
            if small(*args, **kwargs):
                return made(*args, **kwargs)  # pyright: ignore
            return ordinarily(compute, *args, **kwargs)

        some.cache_clear = made.cache_clear  # pyright: ignore
        return some

    return decorated


class cached_property(functools.cached_property[Value]):
    """functools' own, of something without gradients."""

    def __init__(self, compute: Callable[[Any], Value]) -> None:
        super().__init__(functools.wraps(compute)(functools.partial(ordinarily, compute)))


class differentiable_property(Generic[Value]):
    """A cached property of tensors that may be differentiated.

    One that was computed without gradients is computed again where they are wanted: what a sample
    under ``torch.no_grad()`` left behind does not cut the graph of a later answer.
    """

    def __init__(self, compute: Callable[[Any], Value]) -> None:
        self.compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.keys = f"{name} with gradient", f"{name} without"

    def __get__(self, instance: Any, owner: type | None = None) -> Value:
        if instance is None:
            return self  # pyright: ignore[reportReturnType]
        stored, (tracked, untracked) = instance.__dict__, self.keys
        if tracked in stored:
            return stored[tracked]
        if torch.is_grad_enabled():
            stored[tracked] = self.compute(instance)
            stored.pop(untracked, None)
            return stored[tracked]
        if untracked not in stored:
            stored[untracked] = ordinarily(self.compute, instance)
        return stored[untracked]
