"""Traces of recursions: how the tensors of a layout are made from those of a model.

A trace has the operations of torch that a layout depends on, and the values that Python read of
tensors. Repeated on a like model's tensors, it gives the tensors of that layout, or says that the
model may take other steps. Code that reads anything that may change unseen is not traced.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, is_dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from rdpgraph._core.cache import cached_property, remembered
from rdpgraph._core.portable import field_names
from rdpgraph.structures.recursion.names import ABSENT, PLAIN, Captured, UnknownError

_ASPECTS = (
    "shape", "ndim", "dtype", "device", "is_cuda", "is_cpu", "is_meta", "layout", "requires_grad",
)  # fmt: skip
_NUMBERLESS: frozenset[Any] = frozenset((
    *(getattr(Tensor, name).__get__ for name in _ASPECTS), Tensor.size, Tensor.dim, Tensor.numel,
    Tensor.__len__, Tensor.is_floating_point, torch.is_floating_point, torch.numel,
    Tensor.new_zeros, Tensor.new_ones, Tensor.new_full, torch.zeros_like, torch.ones_like,
    torch.full_like,
))  # fmt: skip
"""Functions that give the same for all tensors of a shape and type."""
_TYPED: frozenset[Any] = frozenset((Tensor.to, Tensor.type_as, Tensor.expand_as))
"""Functions that take the numbers of their first tensor alone."""
_SINGLE: frozenset[Any] = frozenset(PLAIN) - {slice} | {Tensor}
"""Types of arguments that hold no other tensors."""
_PARTING: frozenset[Any] = frozenset((Tensor.split, torch.split, Tensor.unbind, torch.unbind))
_HIDDEN: frozenset[Any] = frozenset((Tensor.data_ptr, Tensor.untyped_storage))


def described(item: Any, tensors: list[Tensor], known: dict[int, int]) -> Any:
    """A hashable description of a model, the same for like ones; appends its tensors.

    Raises:
        UnknownError: a field holds something else than tensors and constants.
    """
    kind = type(item)
    if kind is Tensor or kind is torch.nn.Parameter:
        number = known.setdefault(id(item), len(tensors))
        if number < len(tensors):
            return number
        tensors.append(item)
        return kind, item.shape, item.dtype, item.is_cpu, item.layout, item.requires_grad
    if kind in PLAIN:
        return kind, item
    if kind is tuple or kind is list:
        return (kind, *[described(part, tensors, known) for part in item])
    if not is_dataclass(item):
        raise UnknownError
    return (kind, *[described(getattr(item, name), tensors, known) for name in field_names(kind)])


def fresh(item: Any) -> Any:
    """A copy of a described object with the same tensors, and without anything cached."""
    kind = type(item)
    if kind is tuple or kind is list:
        return kind(map(fresh, item))
    if not is_dataclass(item):
        return item
    made: Any = object.__new__(kind)
    for name in field_names(kind):
        object.__setattr__(made, name, fresh(getattr(item, name)))
    return made


class _Part(int):
    """The number of a tensor in a trace."""


@dataclass(frozen=True, eq=False)
class Operation:
    """A call of torch, with tensors given by number."""

    function: Callable[..., Any]
    args: Sequence[Any]
    options: dict[str, Any]
    places: Sequence[tuple[int, int]] | None  # of tensors among ``args``; None: deeper, too
    first: int  # the number of its first result
    shapes: Sequence[torch.Size]  # of its results; none: it gives a value to Python
    value: object


@dataclass(frozen=True, eq=False)
class Trace:
    """The operations that make some tensors from given ones."""

    operations: Sequence[Operation]
    results: Sequence[Any]  # constants, or numbers of tensors
    captured: Sequence[Captured]  # what the code finds by name

    @cached_property
    def size(self) -> int:
        """The size of its constants, in numbers."""
        parts = [self.results, *((item.args, item.options) for item in self.operations)]
        return sum(part.numel() for part in _leaves(parts) if isinstance(part, Tensor))

    def again(self, tensors: Sequence[Tensor]) -> list[Tensor] | None:
        """The results from other given tensors; None where the steps may be others."""
        for space, name, item in self.captured:
            if space.get(name, ABSENT) is not item:
                return None
        made = dict(enumerate(tensors))
        for each in self.operations:
            args, options = each.args, each.options
            if each.places is None:
                args, options = _filled(args, made), _filled(options, made)
            else:
                args = [*args]
                for at, number in each.places:
                    args[at] = made[number]
            result = each.function(*args, **options)
            if not each.shapes:
                if type(result) is not type(each.value) or result != each.value:
                    return None
                continue
            number = each.first
            for part in (result,) if isinstance(result, Tensor) else result:
                if part.shape != each.shapes[number - each.first]:
                    return None
                made[number] = part
                number += 1
        return [made[item] if type(item) is _Part else item for item in self.results]


def _filled(item: Any, made: dict[int, Tensor]) -> Any:
    """Containers with tensors in place of their numbers."""
    if type(item) is _Part:
        return made[item]
    if type(item) is dict:
        return {name: _filled(part, made) for name, part in item.items()}
    if type(item) is tuple or type(item) is list:
        return type(item)([_filled(part, made) for part in item])
    return item


def _leaves(item: Any) -> Iterator[Any]:
    """The members of containers."""
    if isinstance(item, dict):
        item = list(item.values())
    elif isinstance(item, slice):
        item = item.start, item.stop, item.step
    if isinstance(item, tuple | list) and not isinstance(item, torch.Size):
        for part in item:
            yield from _leaves(part)
    else:
        yield item


class Tracer(TorchFunctionMode):
    """Records what becomes of given tensors."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        super().__init__()
        self._sound, self._operations = True, list[Operation]()
        self._numbers = {id(item): number for number, item in enumerate(tensors)}
        self._count, self._gradients = len(tensors), torch.is_grad_enabled()
        self._held = list(tensors)  # an id stands for a tensor as long as it lives
        self._used, self._state = set[int](), torch.get_rng_state()
        self._sized = set[int]()  # tensors of which Python knows the shape

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is Tensor.__iter__:
            return iter(self.__torch_function__(Tensor.unbind, types, args, kwargs))
        result = func(*args, **kwargs)
        constant = not kwargs and _SINGLE.issuperset(map(type, args)) and not self._known(args)
        writes = _writes(func) or kwargs.get("out") is not None or bool(kwargs.get("inplace"))
        if constant and not writes:  # as most calls
            return result
        given = list[Tensor]()
        for item in (*args, *kwargs.values()):
            if isinstance(item, Tensor):
                given.append(item)
            elif isinstance(item, tuple | list | slice):
                given += [part for part in _leaves(item) if isinstance(part, Tensor)]
        known = self._known(given)
        if writes and (known or not self._used.isdisjoint(map(_origin, given[:1]))):
            self._sound = False
        elif func in _NUMBERLESS or (func in _TYPED and not self._known(given[:1])):
            self._sized.update(self._numbers[id(item)] for item in given if self._known([item]))
        elif known and not (func is Tensor.to and result is args[0]):
            self._held += given
            self._used.update(map(_origin, given))
            self._record(func, args, kwargs, result)
        return result

    def read(self, tensors: Iterable[Tensor]) -> None:
        """Record the values of tensors, which will be read unseen."""
        for part in tensors:
            if self._known([part]):
                part.tolist()

    def _known(self, tensors: Iterable[Any]) -> bool:
        return not self._numbers.keys().isdisjoint(map(id, tensors))

    def _record(self, func: Any, args: Any, options: Any, result: Any) -> None:
        args, options = self._numbered(args), self._numbered(options)  # some return an argument
        parts = (result,) if isinstance(result, Tensor) else result
        shapes, first = list[torch.Size](), self._count
        if isinstance(parts, tuple | list) and all(isinstance(item, Tensor) for item in parts):
            for item in parts:
                shapes.append(item.shape)
                self._numbers[id(item)] = self._count
                self._held.append(item)
                self._count += 1
        elif func in _HIDDEN or not all(isinstance(item, PLAIN) for item in _leaves(result)):
            self._sound = False
        # Functions of autograd turn gradients off.
        self._sound &= torch.is_grad_enabled() == self._gradients
        places = [(at, int(item)) for at, item in enumerate(args) if type(item) is _Part]
        every = [item for item in _leaves((args, options)) if type(item) is _Part]
        self._operations.append(
            Operation(
                func, args, options, places if len(places) == len(every) else None, first, shapes,
                None if shapes else result,
            )
        )  # fmt: skip

    def _numbered(self, item: Any) -> Any:
        if isinstance(item, Tensor):
            number = self._numbers.get(id(item))
            self._sound &= number is not None or not item.requires_grad
            return item if number is None else _Part(number)
        if isinstance(item, dict):
            return {name: self._numbered(part) for name, part in item.items()}
        if isinstance(item, tuple | list) and not isinstance(item, torch.Size):
            return (list if isinstance(item, list) else tuple)(map(self._numbered, item))
        if isinstance(item, slice):
            self._sound &= not self._known(_leaves(item))
        return item

    def trace(self, results: Sequence[Tensor], captured: Sequence[Captured]) -> Trace | None:
        """The trace of some tensors; None where not all of it was seen."""
        ends = self._numbered(list(results))
        if not self._sound or not torch.equal(self._state, torch.get_rng_state()):
            return None
        needed, sized = {item for item in ends if type(item) is _Part}, set(self._sized)
        operations = list[Operation]()
        for each in reversed(self._operations):
            made = range(each.first, each.first + len(each.shapes))
            parts = [part for part in _leaves((each.args, each.options)) if type(part) is _Part]
            idle = made and needed.isdisjoint(made)
            if idle and each.function in _PARTING and not sized.isdisjoint(made):
                sized.update(parts)  # the shapes of parts are as those of the whole
            elif not idle or not sized.isdisjoint(made):
                operations.append(each)
                needed.update(parts)
        return Trace(operations[::-1], ends, captured)


@remembered(512)
def _writes(func: Any) -> bool:
    """Return whether a function changes its first tensor, by its name."""
    name = getattr(func, "__name__", "_")
    if name.startswith("__"):
        reads = "__invert__", "__index__", "__int__", "__iter__"
        return name.startswith(("__i", "__set", "__del")) and name not in reads
    return name.endswith("_")


def _origin(item: Tensor) -> int:
    """The tensor that a view is of."""
    return id(item if item._base is None else item._base)
