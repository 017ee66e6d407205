"""Names that the code of recursions reads, and the objects behind them."""

import dis
from collections.abc import Iterator
from dataclasses import is_dataclass
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import torch

from rdpgraph._core.portable import field_names

PLAIN = (int, float, str, bool, type(None), torch.dtype, torch.device, torch.Size, slice)
_SOUND = frozenset((
    "torch", "rdpgraph", "math", "functools", "_functools", "itertools", "operator", "_operator",
    "builtins", "dataclasses", "typing",
))  # fmt: skip
"""Packages whose functions depend on their arguments alone."""
_BUILTINS = frozenset((
    "abs", "all", "any", "bool", "dict", "divmod", "enumerate", "filter", "float", "int",
    "isinstance", "iter", "len", "list", "map", "max", "min", "next", "pow", "range", "reversed",
    "round", "set", "slice", "sorted", "str", "sum", "super", "tuple", "zip", "IndexError",
    "KeyError", "NotImplementedError", "RuntimeError", "TypeError", "ValueError",
))  # fmt: skip
ABSENT = object()
Captured = tuple[Any, str, object]
"""A namespace, a name in it, and the object that it names."""


class UnknownError(Exception):
    """An object or code that may change unseen."""


def captured(model: Any) -> list[Captured]:
    """Everything that the recursion of a model finds by name.

    Raises:
        UnknownError: something that may change unseen.
    """
    kind, uses, seen = type(model), list[Captured](), set[CodeType]()
    owners = {item for item in _kinds(model) if not _is_sound(item)}
    laid = [_is_sound(item) for item in kind.__mro__ if "recursion" in vars(item)]
    if kind in owners and any(laid[:-1]):  # ours may call what this class overrides
        raise UnknownError
    _attribute(kind, "recursion", uses)
    waiting = [_function(kind.recursion)]
    for owner in owners - {kind}:  # any of their methods may be called
        each = [part for name, part in vars(owner).items() if not name.startswith("__")]
        waiting += [
            _function(part) for part in each if callable(part) or isinstance(part, property)
        ]
    while waiting:
        code = getattr(function := waiting.pop(), "__code__", None)
        if code is None or code in seen or _is_sound(function):
            continue
        seen.add(code)
        defaults = *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()
        names, attributes = _read(code)
        if (
            {*code.co_freevars} - {"__class__"}
            or not all(isinstance(item, PLAIN) for item in defaults)
            or any(item.startswith("__") or item in _STATES for item in attributes)
        ):
            raise UnknownError
        for name in names:
            item = function.__globals__.get(name, ABSENT)
            uses.append((function.__globals__, name, item))
            if isinstance(item, FunctionType):
                waiting.append(_function(item))
            elif not (name in _BUILTINS if item is ABSENT else _is_constant(item)):
                raise UnknownError
        for name in attributes:
            for owner in owners:
                item = None if name in field_names(owner) else _attribute(owner, name, uses)
                if not isinstance(item, PLAIN):
                    waiting.append(_function(item))
    return uses


_STATES = frozenset(("is_grad_enabled", "load", "get_default_device"))


def _kinds(item: Any) -> Iterator[type]:
    """The classes of an object, and of all that its fields hold."""
    yield type(item)
    parts = item if isinstance(item, tuple | list) else ()
    if is_dataclass(item):
        parts = [getattr(item, name) for name in field_names(type(item))]
    for part in parts:
        yield from _kinds(part)


def _attribute(kind: type, name: str, uses: list[Captured]) -> Any:
    """An attribute of a class, from a class that is not of the library; None: it has none."""
    for item in kind.__mro__:
        if _is_sound(item):
            break
        uses.append((vars(item), name, vars(item).get(name, ABSENT)))
        if name in vars(item):
            return vars(item)[name]
    return None


def _is_sound(item: Any) -> bool:
    """Return whether a module, class or function is of a package that holds no state."""
    if not isinstance(item, ModuleType | type | FunctionType | BuiltinFunctionType):
        return False
    name = item.__name__ if isinstance(item, ModuleType) else item.__module__
    if isinstance(item, FunctionType):  # not that of a function within it
        name = item.__globals__["__name__"]
    return isinstance(name, str) and name.partition(".")[0] in _SOUND


def _is_constant(item: Any) -> bool:
    return isinstance(item, PLAIN) or _is_sound(item)


def _function(item: Any) -> Any:
    """The function of a method or property."""
    for name in ("fget", "func", "compute", "__func__"):
        item = getattr(item, name, item)
    while _is_sound(item) and hasattr(item, "__wrapped__"):
        item = item.__wrapped__
    if not isinstance(item, FunctionType) and not _is_sound(item):
        raise UnknownError
    return item


def _read(code: CodeType) -> tuple[set[str], set[str]]:
    """The globals and the attributes that code reads, with the code within it."""
    names, attributes, called = set[str](), set[str](), False
    for step in dis.get_instructions(code):
        called = "NULL" in step.argrepr or (called and step.opname == "LOAD_ATTR")
        if called and str(step.argval).endswith("Tensor"):  # makes a copy that no trace sees
            raise UnknownError
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            names.add(step.argval)
        elif step.opname.startswith(("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR")):
            attributes.add(step.argval)
        elif step.opname in _CHANGES or step.opname.startswith("IMPORT_"):
            raise UnknownError
    for item in code.co_consts:
        if isinstance(item, CodeType):
            for known, within in zip((names, attributes), _read(item), strict=True):
                known |= within
    return names, attributes


_CHANGES = frozenset((
    "STORE_GLOBAL", "STORE_ATTR", "DELETE_GLOBAL", "DELETE_ATTR", "LOAD_BUILD_CLASS",
))  # fmt: skip
