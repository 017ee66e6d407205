"""Pickles and copies of models and answers, with tensors detached; arguments of estimators."""

import importlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache, partial
from types import MethodType
from typing import Any, Self

import torch
from torch import Tensor

from rdpgraph.errors import ModelError, UnsupportedError


def optional_module(name: str, asked: str, package: str) -> Any:
    """Return a module of a package that need not be installed.

    Raises:
        UnsupportedError: it is not installed; ``asked`` names what needs it.
    """
    try:
        return importlib.import_module(name)
    except ImportError:
        raise UnsupportedError(
            f"{asked} needs {name.split('.')[0]}, which is not installed: pip install {package}."
        ) from None


@dataclass(frozen=True)
class ByName:
    """A function that is imported when it is first called.

    Attributes:
        place: the function's, as "package.module:function".
    """

    place: str

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        module, _, name = self.place.partition(":")
        return getattr(importlib.import_module(module), name)(*args, **kwargs)


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Tensors in the fields of dataclasses, in tuples, lists and dictionaries."""
    waiting = [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, Tensor):
            yield part
        elif names := field_names(type(part)):
            waiting += [getattr(part, name) for name in reversed(names)]
        elif isinstance(part, tuple | list):
            waiting += part[::-1]
        elif isinstance(part, dict):
            waiting += reversed(part.values())


@cache
def field_names(kind: type) -> tuple[str, ...]:
    """Names of the fields of a dataclass; of others none."""
    return tuple([field.name for field in fields(kind)]) if is_dataclass(kind) else ()


def in_full_precision(value: Any) -> Any:
    """The value with tensors of half precision, also in fields of dataclasses, as float32.

    Scores are sums over many sites, and log-probabilities their differences: half precision would
    round these to whole nats. Gradients have the type of the tensors that were given.
    """
    if isinstance(value, Tensor):
        return value.float() if value.dtype in _HALF else value
    wider: dict[str, Any] = {}
    for name in field_names(type(value)):
        part = getattr(value, name)
        if (full := in_full_precision(part)) is not part:
            wider[name] = full
    return replace(value, **wider) if wider else value


_HALF = (torch.float16, torch.bfloat16)


class Portable:
    """A base of classes that are pickled and deep-copied by their fields, with tensors detached.

    Cached answers are dropped and recomputed, except those of a class with ``crosses = True`` of
    its own, such as messages.
    """

    crosses = True

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[type], dict[str, Any]]:
        return _empty, (type(self),), _Detached(self).contents(self)

    def __copy__(self) -> Any:
        made = _empty(type(self))
        made.__dict__.update(self.__dict__)
        return made


def _empty(kind: type) -> Any:
    return object.__new__(kind)


def _crosses(value: Any) -> bool:
    return any(map(_crosses, value)) if type(value) is tuple else getattr(value, "crosses", False)


@dataclass(frozen=True)
class _Draws:
    """A pickled generator; torch's pickle of it does not reach a spawned process."""

    device: torch.device
    state: bytes

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _generator, (self.device, self.state)


def _generator(device: torch.device, state: bytes) -> torch.Generator:
    made = torch.Generator(device)
    made.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
    return made


class _Detached:
    """Copies of objects, each made once; the root stands for itself."""

    def __init__(self, root: object) -> None:
        self._known = {id(root): (root, root)}  # the originals too, so that their ids stay

    def __call__(self, value: Any) -> Any:
        if id(value) not in self._known:
            self._known[id(value)] = value, self._copied(value)
        return self._known[id(value)][1]

    def _copied(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.detach() if value.requires_grad else value
        if isinstance(value, torch.Generator):
            return _Draws(value.device, value.get_state().numpy().tobytes())
        if isinstance(value, MethodType):
            return MethodType(value.__func__, self(value.__self__))
        if isinstance(value, partial):
            parts = {key: self(part) for key, part in value.keywords.items()}
            return partial(self(value.func), *map(self, value.args), **parts)
        if type(value) in (tuple, list):
            return type(value)(map(self, value))
        if type(value) is dict:
            return {key: self(part) for key, part in value.items()}
        if is_dataclass(value) and not isinstance(value, type):
            return self._of_dataclass(value)
        return value

    def _of_dataclass(self, value: Any) -> Any:
        made = _empty(type(value))
        self._known[id(value)] = value, made  # an answer that is kept may be the object itself
        made.__dict__.update(self.contents(value))
        before = value.__dict__
        if made.__dict__.keys() != before.keys():
            return made
        return value if all(made.__dict__[name] is part for name, part in before.items()) else made

    def contents(self, value: Any) -> dict[str, Any]:
        """The fields of a dataclass, and the cached answers that cross."""
        known = {field.name: field.metadata for field in fields(value)}
        return {
            name: known[name]["elsewhere"] if "elsewhere" in known.get(name, ()) else self(part)
            for name, part in value.__dict__.items()
            if name in known or _crosses(part)
        }


class Arguments:
    """Base of classes whose arguments are attributes of the same names; they may be cloned."""

    def get_params(self, deep: bool = True) -> dict[str, Any]:  # noqa: FBT001, FBT002
        """The arguments by name; ``deep`` means nothing here: there are no estimators inside."""
        del deep
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def set_params(self, **params: Any) -> Self:
        """Change arguments; an unknown name raises `ModelError`."""
        known = self.get_params()
        for name, value in params.items():
            if name not in known:
                raise ModelError(
                    f"{type(self).__name__} has no parameter {name!r}; it has {', '.join(known)}."
                )
            setattr(self, name, value)
        return self

    def __sklearn_tags__(self) -> Any:
        """Tags of an estimator that takes gaps, which scikit-learn alone asks for."""
        utils = importlib.import_module("sklearn.utils")
        return utils.Tags(
            estimator_type=None,
            target_tags=utils.TargetTags(required=False),
            input_tags=utils.InputTags(allow_nan=True),
        )
