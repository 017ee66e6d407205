"""Checks of the fields of chains, with errors in one line."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from rdpgraph._core.shapes import broadcasts
from rdpgraph.errors import EvidenceError, ModelError
from rdpgraph.model.potentials.lowrank import LowRank
from rdpgraph.model.potentials.potential import Potential
from rdpgraph.model.potentials.table import checked_log_values
from rdpgraph.model.soundness import require_possible
from rdpgraph.structures.chain.factors import inside


def checked_unary(unary: Tensor) -> None:
    """Check log-potentials (*batch, T, N)."""
    checked_log_values("Chain's unary", unary)
    checked_steps(unary)


def checked_steps(unary: Tensor) -> None:
    """Check the shape of unary potentials."""
    if unary.ndim < 2 or not unary.shape[-1]:
        raise ModelError(
            f"Chain needs unary potentials of shape (*batch, T, N), N >= 1; got {_shape(unary)}."
        )


def checked_ends(name: str, values: Tensor, unary: Tensor) -> None:
    """Check scores of the first or last state, (N,) or (*batch, N)."""
    *batch, _, states = unary.shape
    shape = tuple(values.shape)
    if shape[-1:] != (states,) or not broadcasts(shape[:-1], batch):
        own = f" or {(*batch, states)}" if batch else ""
        raise ModelError(f"Chain.crf needs {name} scores of shape {(states,)}{own}; got {shape}.")


def checked_transition(
    transition: Tensor | Potential, unary: Tensor, *, owner: str = "Chain"
) -> None:
    """Check (N, N), or (*batch, T - 1, N, N) with batch dims that broadcast."""
    if not isinstance(transition, Potential):
        checked_log_values(f"{owner}'s transition", transition)
    *batch, total, states = unary.shape
    shape = tuple(transition.shape)
    per_step = (max(total - 1, 0), states, states)
    fits = shape == (states, states) or (len(shape) >= 3 and shape[-3:] == per_step)
    if not fits or not broadcasts(shape[:-3], batch):
        raise ModelError(
            f"{owner} over {total} steps of {states} states, batch {tuple(batch)}, needs a "
            f"transition of shape {(states, states)} or (*batch, *{per_step}), [from, to]; got "
            f"{shape}."
        )
    if transition.device != unary.device:
        raise ModelError(
            f"{owner} needs its potentials on one device; unary is on {unary.device}, the "
            f"transition on {transition.device}."
        )


def checked_lengths(lengths: Tensor | Sequence[int] | int, unary: Tensor) -> Tensor:
    """Lengths as (*batch,) int64 on the device of unary."""
    *batch, total, _ = unary.shape
    try:
        given = torch.as_tensor(lengths, device=unary.device)
    except (TypeError, ValueError, RuntimeError):
        raise ModelError(f"Chain needs integer lengths; got {lengths!r:.80}.") from None
    whole = not given.is_floating_point() and not given.is_complex() and given.dtype != torch.bool
    if not (whole or not given.numel()) or tuple(given.shape) != tuple(batch):
        raise ModelError(
            f"Chain needs integer lengths of shape {tuple(batch)}, one for each item; got "
            f"{_shape(given)} of {given.dtype}."
        )
    given = given.long()
    if given.numel():
        for extreme in given.aminmax():
            if not 0 <= int(extreme) <= total:
                raise ModelError(
                    f"Chain of {total} steps needs lengths 0 to {total}; got {int(extreme)}."
                )
    return given


def checked_sequences(states: Tensor, unary: Tensor, lengths: Tensor) -> Tensor:
    """States (*lead, *batch, T) as (R, B, T) int64, in range, or -1 beyond the length."""
    *batch, total, size = unary.shape
    shape = (*batch, total)
    whole = states.dtype in _INTEGERS
    if not whole or tuple(states.shape[max(states.ndim - len(shape), 0) :]) != shape:
        raise EvidenceError(
            f"A chain's sequences are integer states of shape (*lead, *{shape}); got "
            f"{_shape(states)} of {states.dtype}."
        )
    lead = states.shape[: states.ndim - len(shape)]
    flat = states.long().to(unary.device)
    flat = flat.reshape([math.prod(lead), math.prod(batch), total])
    if not flat.numel() or 0 <= int(flat.min()) <= int(flat.max()) < size:
        return flat
    within = inside(lengths, total)
    wrong = flat[((flat < 0) | (flat >= size)) & within]
    if len(wrong):
        raise EvidenceError(
            f"A chain of {size} states needs states 0 to {size - 1} within the length; got "
            f"{int(wrong[0])}."
        )
    return torch.where(within, flat, -1)


@torch.no_grad()
def checked_rows(what: str, log_probabilities: Tensor | LowRank) -> None:
    """Check log-probabilities whose last dim sums to one."""
    if isinstance(log_probabilities, LowRank):
        columns = log_probabilities.log_right.logsumexp(-2).unsqueeze(-2)
        totals = (log_probabilities.log_left + columns).logsumexp(-1)
    else:
        checked_log_values(what, log_probabilities)
        totals = log_probabilities.logsumexp(-1)
    off = totals.abs()
    # Tables may have been rounded to a narrower dtype.
    allowed = max(1e-4, math.sqrt(torch.finfo(off.dtype).eps))
    if off.numel() and not bool((off <= allowed).all()):
        total = float(totals.flatten()[off.argmax()].exp())
        raise ModelError(
            f"{what} needs rows of log-probabilities that sum to one; one sums to {total:.4g} "
            "(use log_softmax(-1), or Chain.crf for scores)."
        )


def require_path(states: Tensor, lengths: Tensor, what: str, batch: Sequence[int]) -> None:
    """Require a possible sequence for every item; states (draws, B, T) of others are -1."""
    lost = (states[..., :1] < 0).any(-1).any(0) & (lengths > 0)
    require_possible(f"A chain has no {what}", ~lost.reshape(tuple(batch)))


def require_alike(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> None:
    """Require two chains with equal shapes of unary potentials and equal lengths."""
    (unary, lengths), (unary_too, lengths_too) = one, other
    if unary.shape != unary_too.shape or not torch.equal(lengths, lengths_too):
        raise ModelError(
            "Chains are compared if their shapes and lengths agree; got "
            f"{tuple(unary.shape)} and {tuple(unary_too.shape)}, lengths "
            f"{lengths.tolist()} and {lengths_too.tolist()}."
        )


_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def _shape(tensor: Tensor) -> tuple[int, ...]:
    return tuple(tensor.shape)
