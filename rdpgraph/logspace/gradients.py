"""Gradients as answers: in inference mode, differentiated again, or refusing that."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import wraps
from typing import Any, TypeVar

import torch
from torch import Tensor

from rdpgraph._core.cache import ordinarily
from rdpgraph._core.numbers import lowest
from rdpgraph._core.portable import tensors_in
from rdpgraph.errors import UnsupportedError

Answer = TypeVar("Answer")


def by_autograd(method: Callable[..., Answer]) -> Callable[..., Answer]:
    """Make a method whose answer is a gradient work in inference mode, and on its tensors."""

    @wraps(method)
    def called(*args: Any, **kwargs: Any) -> Answer:
        if torch.is_inference_mode_enabled() or any(
            part.is_inference() for part in tensors_in(args)
        ):
            args = tuple(ordinarily(_ordinary, part) for part in args)
        return ordinarily(method, *args, **kwargs)

    return called


def _ordinary(value: Any) -> Any:
    """Copy a value, its inference tensors cloned."""
    if isinstance(value, Tensor):
        return value.clone() if value.is_inference() else value
    if is_dataclass(value) and not isinstance(value, type):
        parts = {field.name: getattr(value, field.name) for field in fields(value) if field.init}
        return replace(value, **{name: _ordinary(part) for name, part in parts.items()})
    if isinstance(value, tuple | list):
        parts = [_ordinary(part) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return value


def possible_alone(log_z: Tensor, tensors: Iterable[Tensor] = ()) -> Tensor:
    """Log Z with gradients of zero where it is -inf, also in tensors that it does not depend on."""
    values = log_z.detach()
    if lowest(values) > -math.inf:
        return log_z
    for part in () if log_z.requires_grad else [part for part in tensors if part.requires_grad]:
        log_z = torch.where(values > -math.inf, log_z, part.sum().to(log_z))
    return torch.where(values > -math.inf, log_z, -math.inf)


def regradient(
    function: Callable[..., Tensor | Sequence[Tensor]], inputs: Sequence[Tensor], *gradients: Tensor
) -> list[Tensor | None]:
    """Gradients of a function in its inputs; None for those that need none.

    Differentiable again where gradients are recorded. Taken in aliases: where one input was
    computed from another, that path must not count. Inputs are as saved for the backward pass,
    ``gradients`` those of the function's values.
    """
    # Batches of gradients reach backward passes where none are recorded.
    tracked = torch.is_grad_enabled()
    with torch.enable_grad():
        aliases = [part.view_as(part) if part.requires_grad else part for part in inputs]
        wanted = [alias for alias in aliases if alias.requires_grad]
        values = function(*aliases)
        given = zip([values] if isinstance(values, Tensor) else values, gradients, strict=True)
        pairs = [(value, gradient) for value, gradient in given if value.requires_grad]
        if not pairs:  # no input has a part in it
            return [torch.zeros_like(part) if part.requires_grad else None for part in inputs]
        each = iter(
            torch.autograd.grad(
                [value for value, _ in pairs], wanted, [gradient for _, gradient in pairs],
                create_graph=tracked, allow_unused=True, materialize_grads=True,
            )
        )  # fmt: skip
    return [next(each) if part.requires_grad else None for part in inputs]


def expectations(
    log_partition: Callable[..., Tensor], tensors: Sequence[Tensor], *, tracked: bool
) -> tuple[Tensor, list[Tensor]]:
    """Log Z of some tensors and its gradients in them, zero for impossible items.

    They are taken in aliases of the tensors, so that other potentials that were computed from the
    same tensors do not count.
    Differentiable again if ``tracked`` and gradients are recorded.
    """
    tracked = tracked and torch.is_grad_enabled()
    with torch.enable_grad():
        aliases = [
            part.view_as(part) if part.requires_grad else part.detach().requires_grad_()
            for part in tensors
        ]
        log_z = log_partition(*aliases)
        if not aliases or not log_z.requires_grad:  # none of the tensors has a part in it
            return log_z, [torch.zeros_like(part) for part in aliases]
        possible = (log_z.detach() > -math.inf).to(log_z)
        gradients = torch.autograd.grad(
            log_z, aliases, possible, create_graph=tracked, materialize_grads=True,
            allow_unused=True,
        )  # fmt: skip
    if not tracked:
        log_z, gradients = log_z.detach(), tuple(part.detach() for part in gradients)
    return log_z, list(gradients)


def mean_scores(
    log_partition: Callable[..., Tensor], tensors: Sequence[Tensor], scores: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """(B,) log Z, and (B,) the expectation of finite scores.

    ``scores`` have the shapes of ``tensors``, the log-potentials: the score of a configuration is
    the sum of the entries that it uses. Its expectation is the derivative of log Z along the
    scores; 0 for impossible items. Both are differentiable in tensors and scores as log Z is.
    """
    tracked = torch.is_grad_enabled() and any(part.requires_grad for part in (*tensors, *scores))
    with torch.enable_grad():
        aliases = [
            part if part.requires_grad else part.detach().requires_grad_() for part in tensors
        ]
        aliases = [part.view_as(part) for part in aliases]
        log_z = log_partition(*aliases)
        weights = (log_z.detach() > -math.inf).to(log_z).requires_grad_()
        gradients = torch.autograd.grad(
            log_z, aliases, weights, create_graph=True, materialize_grads=True, allow_unused=True
        )
        parts = [(part * score).sum() for part, score in zip(gradients, scores, strict=True)]
        (means,) = torch.autograd.grad(
            parts, weights, create_graph=tracked, materialize_grads=True, allow_unused=True
        )
    means = torch.where(weights > 0, means, 0.0)
    return (log_z, means) if tracked else (log_z.detach(), means.detach())


def with_gradient(
    value: Tensor, entries: Tensor | Sequence[Tensor],
    gradient: Callable[[Tensor], Tensor | Sequence[Tensor | None] | None],
    unrolled: Callable[..., Tensor],
) -> Tensor:  # fmt: skip
    """Return ``value``, a known function of ``entries``, with a gradient.

    ``gradient`` maps the gradient of the value to those of the entries. Higher derivatives are
    those of ``unrolled``, which computes the value from the entries by torch operations, and so are
    first ones where ``gradient`` gives None.
    """
    entries = (entries,) if isinstance(entries, Tensor) else entries
    return _WithGradient.apply(value, gradient, unrolled, *entries)  # pyright: ignore


class _WithGradient(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, value: Tensor, gradient: Callable[..., Any], unrolled: Callable[..., Any],
        *entries: Tensor,
    ) -> Tensor:  # fmt: skip
        ctx.functions = gradient, unrolled
        ctx.save_for_backward(*entries)
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        first, unrolled = ctx.functions
        entries = ctx.saved_tensors  # refused if they have been changed
        found = None
        if not torch.is_grad_enabled() and not is_transformed(*gradients):
            found = first(*gradients)
        if found is None:
            with torch.enable_grad():
                found = regradient(unrolled, entries, *gradients)
        return None, None, None, *((found,) if isinstance(found, Tensor) else found)


def differentiable_once(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Make a backward pass refuse a second derivative instead of returning zero.

    The error is raised by a gradient that reaches a result of the pass or an input saved for it.
    """

    def wrapped(ctx: Any, *gradients: Tensor) -> Any:
        with torch.no_grad():
            outputs = backward(ctx, *gradients)
        if not torch.is_grad_enabled():
            return outputs
        return tuple(
            refused(part, ONCE, part.requires_grad_(), *ctx.saved_tensors)
            if isinstance(part, Tensor)
            else part
            for part in outputs
        )

    return wrapped


ONCE = "This answer is differentiable once: its gradient has no gradient."


def refused(values: Tensor, why: str, *of: Tensor) -> Tensor:
    """Return the same values, such that to take their gradient in these tensors is an error."""
    guarded: Tensor = _Refused.apply(values, why, *of)  # pyright: ignore
    return guarded


class _Refused(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, why: str, *of: Tensor) -> Tensor:  # noqa: ARG004
        ctx.why = why
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:  # noqa: ARG004
        raise UnsupportedError(ctx.why)


def is_transformed(*gradients: Tensor | None) -> bool:
    """Return whether forward mode or `torch.func` is active, which pass by hand-written backwards.

    Or whether any of ``gradients``, which reach a backward pass, is a batch made by `vmap`.
    """
    return (
        torch.autograd.forward_ad._current_level >= 0  # pyright: ignore
        or torch._C._functorch.maybe_current_level() is not None  # pyright: ignore
        or (
            bool(gradients)
            and any(
                part is not None and torch._C._functorch.is_legacy_batchedtensor(part)  # pyright: ignore
                for part in gradients
            )
        )
    )
