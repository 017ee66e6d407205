"""Arguments compared with their annotations, and numbers with intervals, in one place."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import MISSING, fields
from functools import wraps
from types import UnionType
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin

from rdpgraph._core.numbers import is_real, is_whole
from rdpgraph.errors import ModelError

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

_CHECKS: dict[type, list["_Argument"]] = {}
_WORDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    Callable: "a function",
    type(None): "None",
}


def require_fields(owner: Any, **intervals: str) -> None:
    """Raise `ModelError` unless the fields of a frozen dataclass are of their annotated types.

    Lists become tuples where those are annotated. Annotations in quotes are not compared.

    Args:
        owner: the dataclass.
        intervals: of fields that are numbers, or tuples of numbers, as ``share="(0, 1]"``.
    """
    kind = type(owner)
    if kind not in _CHECKS:
        _CHECKS[kind] = [
            _Argument(
                kind.__name__,
                each.name,
                each.type,
                each.default if each.default_factory is MISSING else each.default_factory(),
                intervals.get(each.name, ""),
            )
            for each in fields(kind)
            if each.init
        ]
    for argument in _CHECKS[kind]:
        given = getattr(owner, argument.name)
        if given is not argument.default and not argument.fits(given):
            object.__setattr__(owner, argument.name, argument.converted(given))


def typed(
    **intervals: str,
) -> Callable[[Callable[Arguments, Result]], Callable[Arguments, Result]]:
    """Make a function compare its arguments as `require_fields` does; not for short calls."""

    def made(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        owner = function.__qualname__.removesuffix(".__init__")
        signature = inspect.signature(function)
        known = {
            name: _Argument(owner, name, each.annotation, each.default, intervals.get(name, ""))
            for name, each in signature.parameters.items()
            if each.annotation is not each.empty
        }

        @wraps(function)
        def called(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
            bound = signature.bind(*args, **kwargs)
            given = bound.arguments
            wrong = [
                name for name in given.keys() & known.keys() if not known[name].fits(given[name])
            ]
            if not wrong:
                return function(*args, **kwargs)
            given |= {name: known[name].converted(given[name]) for name in wrong}
            return function(*bound.args, **bound.kwargs)

        return called

    return made


class _Argument:
    """An argument: the test that its values pass, and the words for those that do not."""

    def __init__(self, owner: str, name: str, kind: Any, default: Any, interval: str) -> None:
        self.name, self.default, self.fits = name, default, _test(kind, interval)
        self._called = f"{owner}'s {name}"
        self._is_tuple = get_origin(kind) is tuple
        self._needs = f"{owner} needs {name} as {_described(kind, interval)}"
        if type(default).__module__.startswith("rdpgraph"):
            self._needs += f", such as {type(default).__name__}()"

    def converted(self, given: Any) -> Any:
        """Return a list as a tuple and a masked tensor as a plain one, or raise `ModelError`."""
        if _is_masked(given):
            from rdpgraph._core.masked import present  # imports torch

            given = present(self._called, given)
            if self.fits(given):
                return given
        if self._is_tuple and not isinstance(given, str | dict):
            listed = given.tolist() if hasattr(given, "tolist") else given
            if hasattr(listed, "__iter__") and self.fits(made := tuple(listed)):
                return made
        raise ModelError(f"{self._needs}; got {given!r:.80}.")


def _test(kind: Any, interval: str) -> Callable[[Any], bool]:
    """A test of values of an annotated type, numbers in an interval."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        tests = [_test(part, interval) for part in inner]
        return lambda value: any(test(value) for test in tests)
    if kind is int or kind is float:
        within = _inside(interval) if interval else lambda _: True
        if kind is float:
            return lambda value: is_real(value) and within(value)
        return lambda value: is_whole(value, -(2**63)) and value < 2**63 and within(value)
    if kind is bool:
        return lambda value: type(value).__name__ in ("bool", "bool_")  # Python's and NumPy's
    if origin is Literal:
        return lambda value: value in inner
    if origin is tuple and inner[-1] is Ellipsis:
        each = _test(inner[0], interval)
        return lambda value: isinstance(value, tuple) and all(map(each, value))
    if origin is tuple:
        tests = [_test(part, interval) for part in inner]
        return lambda value: (
            isinstance(value, tuple | list)
            and len(value) == len(tests)
            and all(test(part) for test, part in zip(tests, value, strict=True))
        )
    if origin is Sequence:
        return lambda value: (  # arrays too
            hasattr(value, "__len__") and hasattr(value, "__getitem__") and not _is_masked(value)
        )
    plain: Any = getattr(origin or kind, "array_type", origin or kind)  # that of jaxtyping
    if isinstance(plain, type) and plain is not Any and not getattr(plain, "_is_protocol", False):
        return lambda value: isinstance(value, plain) and not _is_masked(value)
    return lambda _: True


def _is_masked(value: Any) -> bool:
    """Test for a masked array or tensor, whose absent entries hold numbers too."""
    return type(value).__name__ in ("MaskedArray", "MaskedTensor")


def _inside(interval: str) -> Callable[[Any], bool]:
    low, high = map(float, interval[1:-1].split(","))
    closed = interval[0] == "[", interval[-1] == "]"

    def inside(value: Any) -> bool:
        return bool(
            (low < value or (closed[0] and value == low))
            and (value < high or (closed[1] and value == high))
        )

    return inside


def _described(kind: Any, interval: str) -> str:
    """The words for an annotated type."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        *others, last = [_described(part, interval) for part in inner]
        return f"{', '.join(others)} or {last}"
    if origin is Literal:
        return " or ".join(map(repr, inner))
    if origin is tuple:
        return f"a tuple, each {_described(inner[0], interval)}"
    plain = origin or kind
    if plain in (int, float) and interval.endswith(("inf)", "inf]")):
        low = interval[1:].split(",")[0]
        finite = "finite number" if plain is float and interval[-1] == ")" else "number"
        kind = "whole number" if plain is int else finite
        return f"a {kind} {'of at least' if interval[0] == '[' else 'above'} {low}"
    if plain in (int, float) and interval:
        return f"{_WORDS[plain]} in {interval}"
    if plain in _WORDS:
        return _WORDS[plain]
    name = getattr(plain, "__name__", str(plain))
    if getattr(plain, "__module__", "").startswith("torch"):
        name = f"torch.{name}"
    return f"{'an' if name[0] in 'AEIOU' else 'a'} {name}"
