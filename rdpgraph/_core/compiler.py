"""Calls that `torch.compile` leaves alone, or keeps as one operator; tracers get an error."""

import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import wraps
from inspect import isfunction
from typing import Any, ClassVar, ParamSpec, TypeVar

import torch
from torch import Tensor

from rdpgraph.errors import RdpgraphError, UnsupportedError

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


_UNTRANSFORMED = (
    "does not run inside torch.func's transforms, because it is compiled code that they cannot "
    "look into. Use torch.autograd.grad in place of grad, and batch dims in place of vmap."
)
_UNEXPORTED = (
    "does not run in torch.export, in make_fx or on fake tensors, because its steps depend on the "
    "values. Export the layers around it; CRF.exportable() is a layer of plain torch."
)


def opaque(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Make a function that `torch.compile` calls between the parts that it traces.

    As `torch.compiler.disable`, which takes seconds to load and so is asked for late. In
    `torch.jit.trace`, `torch.export`, `torch.func.grad` and `vmap` it raises an error.
    """
    alone: Callable[Arguments, Result] | None = None

    @wraps(function)
    def called(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        nonlocal alone
        try:
            # A compiler that reads on after the first test would read all of sys.modules.
            if not torch.compiler.is_compiling():
                if torch._C._is_tracing():  # pyright: ignore[reportPrivateUsage]
                    raise UnsupportedError(
                        f"{function.__qualname__} does not run in torch.jit.trace, because its "
                        "steps depend on the values. Trace only the layers around it, or use "
                        "torch.compile, which leaves such calls uncompiled."
                    )
                if "torch._dynamo" not in sys.modules:
                    return function(*args, **kwargs)
            if alone is None:
                made: Any = torch.compiler.disable(function)
                alone = made
            return alone(*args, **kwargs)  # pyright: ignore[reportOptionalCall]
        except (RuntimeError, NotImplementedError, AssertionError) as error:
            reason = _UNTRANSFORMED if in_transform() else _UNEXPORTED if _is_exported() else ""
            if not reason or (isinstance(error, RdpgraphError) and reason not in str(error)):
                raise
            # The outermost call, which users know, is named.
            name = function.__qualname__.removesuffix(".__post_init__")
            raise UnsupportedError(f"{name} {reason}") from error

    return called


def operator(name: str, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Make a function an operator inside `torch.compile`, so that the graph does not break at it.

    The function takes tensors and gives values (batch,), of the batch and type of the first one.
    Gradients run it again, and there are no second ones. Elsewhere it is called as it is.
    """

    def value(tensors: list[Tensor]) -> Tensor:
        return function(*(tensor.detach() for tensor in tensors)).to(tensors[0].dtype)

    def gradients(outer: Tensor, tensors: list[Tensor]) -> list[Tensor]:
        leaves = [each.detach().requires_grad_(each.is_floating_point()) for each in tensors]
        trained = [leaf for leaf in leaves if leaf.requires_grad]
        keys: Any = torch._C.DispatchKey  # pyright: ignore[reportPrivateUsage]
        guard: Any = torch._C._SetExcludeDispatchKeyGuard  # pyright: ignore
        with ExitStack() as stack:  # operators run without autograd unless it is let in again
            for key in (keys.AutogradFunctionality, keys.ADInplaceOrView):
                stack.enter_context(guard(key, False))  # noqa: FBT003
            stack.enter_context(torch.enable_grad())
            made = function(*leaves).to(outer.dtype)
            every = torch.autograd.grad(made, trained, outer, materialize_grads=True)
        return [each.clone(memory_format=torch.contiguous_format) for each in every]

    forward: Any = torch.library.custom_op(f"rdpgraph::{name}", value, mutates_args=())
    back: Any = torch.library.custom_op(f"rdpgraph::{name}_back", gradients, mutates_args=())

    def backward(ctx: Any, outer: Tensor) -> list[Tensor | None]:
        parts = iter(back(outer, list(ctx.saved_tensors)))
        return [next(parts) if each.is_floating_point() else None for each in ctx.saved_tensors]

    def setup(ctx: Any, inputs: tuple[list[Tensor]], output: Tensor) -> None:  # noqa: ARG001
        ctx.save_for_backward(*inputs[0])

    def shaped(tensors: list[Tensor]) -> Tensor:
        return tensors[0].new_empty(tensors[0].shape[:1])

    def likes(outer: Tensor, tensors: list[Tensor]) -> list[Tensor]:  # noqa: ARG001
        return [each.new_empty(each.shape) for each in tensors if each.is_floating_point()]

    forward.register_fake(shaped)
    back.register_fake(likes)
    forward.register_autograd(backward, setup_context=setup)

    def called(*tensors: Tensor) -> Tensor:
        return forward(list(tensors)) if torch.compiler.is_compiling() else function(*tensors)

    return called


def in_transform() -> bool:
    """Return whether this runs in a transform of torch.func."""
    functorch: Any = getattr(torch._C, "_functorch", None)  # pyright: ignore[reportPrivateUsage]
    return functorch is not None and functorch.peek_interpreter_stack() is not None


def refuse_exported(what: str) -> None:
    """Refuse tensors without values, of an export; `torch.compile` may look at some."""
    if not torch.compiler.is_compiling() and _is_exported():
        raise UnsupportedError(f"{what} {_UNEXPORTED}")


def _is_exported() -> bool:
    """Return whether tensors have no values here, as they are fake or stand for a graph's nodes."""
    if not torch._C._len_torch_dispatch_stack():  # pyright: ignore[reportPrivateUsage]
        return False
    modes = torch.utils._python_dispatch._get_current_dispatch_mode_stack()  # pyright: ignore
    names = {type(mode).__name__ for mode in modes}  # by name, to import nothing
    return bool(names & {"FakeTensorMode", "ProxyTorchDispatchMode"})


class Opaque:
    """Make the public methods, properties and constructors of subclasses opaque.

    Those that answers ask for many times, and that read no values, are `_transparent`.
    """

    _transparent: ClassVar[frozenset[str]] = frozenset()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name, member in list(vars(cls).items()):
            if name in cls._transparent:
                continue
            if name.startswith("_") and name not in ("__init__", "__post_init__", "__getitem__"):
                continue
            if isfunction(member):
                setattr(cls, name, opaque(member))
            elif isinstance(member, classmethod):
                setattr(cls, name, classmethod(opaque(member.__func__)))
            elif type(member) is property and member.fget is not None:
                setattr(cls, name, property(opaque(member.fget)))
