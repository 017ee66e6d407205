"""Answers computed once, never in ``torch.inference_mode()``, whose tensors pass no gradient.

There are four ways, and `functools.cache` for what holds no tensors and is asked outside of torch:

- `remembered`, of a function: `functools.lru_cache`, but a tensor that is first asked for in
  inference mode is an ordinary one, so that gradients pass through it later.
- `cached_property`, of an object: the same for `functools.cached_property`. What it gives stays, so
  that it may also hold a dictionary that is filled later.
- `differentiable_property`, of an object: for tensors that depend on potentials. What was computed
  without gradients is computed again where gradients are recorded.
- `current_property`, of an object of tensors that users may write to: computed again after a write.
  `Kept` is the record by which it tells, for what is kept in other places.

None can stand in for another: the second gives one object for good, the third one for each mode of
gradients, and the fourth one for each state of its sources, which it has to look at each time.
"""

import functools
from collections.abc import Callable, Generator, Iterable
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, is_dataclass
from typing import Any, Generic, ParamSpec, TypeVar

import torch
from torch import Tensor

from rdpgraph._core.portable import field_names
from rdpgraph._core.shards import are_same_values

Value = TypeVar("Value")
Params = ParamSpec("Params")


def ordinarily(
    compute: Callable[Params, Value], *args: Params.args, **kwargs: Params.kwargs
) -> Value:
    """Call a function outside inference mode; if called in it, without gradients."""
    if not torch.is_inference_mode_enabled():
        return compute(*args, **kwargs)
    with torch.inference_mode(mode=False), torch.no_grad():
        return compute(*args, **kwargs)


def recording(tensors: Callable[[], Iterable[Tensor]]) -> AbstractContextManager[None]:
    """Record gradients in any mode, unless a tensor was made in inference mode: torch refuses."""
    return _NOTHING if torch.is_grad_enabled() else _recording(tensors)


_NOTHING = nullcontext()


@contextmanager
def _recording(tensors: Callable[[], Iterable[Tensor]]) -> Generator[None]:
    ordinary = not any(part.is_inference() for part in tensors())
    with torch.inference_mode(mode=False), torch.set_grad_enabled(ordinary):
        yield


def remembered(most: int) -> Callable[[Callable[Params, Value]], Callable[Params, Value]]:
    """Cache a function's answers to its last ``most`` arguments, which are hashable."""

    def decorated(compute: Callable[Params, Value]) -> Callable[Params, Value]:
        @functools.lru_cache(maxsize=most)
        @functools.wraps(compute)
        def made(*args: Params.args, **kwargs: Params.kwargs) -> Value:
            return ordinarily(compute, *args, **kwargs)

        return made  # pyright: ignore[reportReturnType]

    return decorated


class cached_property(functools.cached_property[Value]):
    """The standard cached property, computed `ordinarily`, and without a lock."""

    def __get__(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, instance: Any, owner: type | None = None
    ) -> Value:
        if instance is None:
            return self  # pyright: ignore[reportReturnType]
        inference = torch.is_inference_mode_enabled()
        value = ordinarily(self.func, instance) if inference else self.func(instance)
        instance.__dict__[self.attrname] = value
        return value


class differentiable_property(Generic[Value]):
    """A cached property of tensors, computed again when gradients are wanted and it has none."""

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


@dataclass(frozen=True, eq=False)
class Kept(Generic[Value]):
    """A value with the tensors it was computed from, as they were; neither copied nor pickled."""

    value: Value
    parts: tuple[tuple[Tensor, int, bool], ...]

    @classmethod
    def of(cls, value: Value, made_of: Any) -> "Kept[Value] | None":
        """Keep a value beside the state of its sources; None if a write to these would go unseen.

        Tensors of inference mode do not count their writes, and the sources within an object that
        is no dataclass are unknown.
        """
        parts = None if torch.compiler.is_compiling() else _parts(made_of)
        if parts is None or any(part.is_inference() for part in parts):
            return None
        # A detached tensor counts the writes to its origin, and keeps its memory from other use.
        seen = ((part.detach(), part._version, part.requires_grad) for part in parts)
        return cls(value, tuple(seen))

    def is_current(self, made_of: Any) -> bool:
        """Return whether the sources are the same tensors, unwritten since."""
        parts = _parts(made_of)
        return parts is not None and len(parts) == len(self.parts) and all(
            are_same_values(seen, part)
            and (part._version, part.requires_grad) == (version, tracked)
            for part, (seen, version, tracked) in zip(parts, self.parts, strict=True)
        )  # fmt: skip

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[()]]:
        return type(None), ()


class _Current(Generic[Value]):
    """A cached property, computed again after a write to its sources."""

    def __init__(self, compute: Callable[[Any], Value], made_of: tuple[str, ...]) -> None:
        self.compute, self.made_of = compute, made_of
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = f"{name} kept"

    def __get__(self, instance: Any, owner: type | None = None) -> Value:
        if instance is None:
            return self  # pyright: ignore[reportReturnType]
        parts = tuple(getattr(instance, name) for name in self.made_of)
        earlier: Kept[Value] | None = vars(instance).get(self.name)
        if earlier is not None and earlier.is_current(parts):
            return earlier.value
        value = ordinarily(self.compute, instance)
        vars(instance)[self.name] = Kept.of(value, parts)
        return value


def current_property(*made_of: str) -> Callable[[Callable[[Any], Value]], _Current[Value]]:
    """A cached property, computed again after a write to the named fields."""
    return lambda compute: _Current(compute, made_of)


def _parts(value: Any) -> list[Tensor] | None:
    """The tensors of a value; None where they are not all known."""
    if isinstance(value, Tensor):
        return [value]
    if is_dataclass(value) and not isinstance(value, type):
        value = [getattr(value, name) for name in field_names(type(value))]
    if isinstance(value, tuple | list):
        parts = [_parts(part) for part in value]
        return None if None in parts else [tensor for part in parts for tensor in part or ()]
    return [] if value is None or isinstance(value, int | float | str) else None
