"""Calls that `torch.compile` leaves alone; tracers and transforms get an error."""

import sys
from collections.abc import Callable
from functools import wraps
from inspect import isfunction
from typing import Any, ParamSpec, TypeVar

import torch

from rdpgraph.errors import RdpgraphError, UnsupportedError

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def opaque(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Make a function that `torch.compile` calls between the parts that it traces.

    As `torch.compiler.disable`, which takes seconds to load and so is asked for late. In
    `torch.jit.trace`, `torch.func.grad` and `vmap` it raises an error.
    """
    alone: Callable[Arguments, Result] | None = None

    @wraps(function)
    def called(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        nonlocal alone
        if torch.jit.is_tracing():  # pyright: ignore[reportPrivateImportUsage]
            raise UnsupportedError(
                f"{function.__qualname__} does not run in torch.jit.trace: its steps depend on the "
                "values. Trace the layers around it, or use torch.compile, which calls it as it is."
            )
        try:
            # A compiler that reads this line would read all of sys.modules.
            if not torch.compiler.is_compiling() and "torch._dynamo" not in sys.modules:
                return function(*args, **kwargs)
            if alone is None:
                made: Any = torch.compiler.disable(function)
                alone = made
            return alone(*args, **kwargs)  # pyright: ignore[reportOptionalCall]
        except (RuntimeError, NotImplementedError) as error:
            if isinstance(error, RdpgraphError) or not _in_transform():
                raise
            raise UnsupportedError(
                f"{function.__qualname__} does not run in torch.func's transforms: compiled code "
                "answers it. Use torch.autograd.grad, and batch dims in place of vmap."
            ) from error

    return called


def _in_transform() -> bool:
    functorch: Any = getattr(torch._C, "_functorch", None)  # pyright: ignore[reportPrivateUsage]
    return functorch is not None and functorch.peek_interpreter_stack() is not None


class Opaque:
    """Make the public methods, properties and constructors of subclasses opaque."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name, member in list(vars(cls).items()):
            if name.startswith("_") and name not in ("__init__", "__post_init__", "__getitem__"):
                continue
            if isfunction(member):
                setattr(cls, name, opaque(member))
            elif isinstance(member, classmethod):
                setattr(cls, name, classmethod(opaque(member.__func__)))
            elif type(member) is property and member.fget is not None:
                setattr(cls, name, property(opaque(member.fget)))
