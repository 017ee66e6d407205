"""Unary potentials of hidden Markov models and random fields; checks of the fields of chains."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from rdpgraph._core.masked import filled, is_masked, present
from rdpgraph._core.numbers import lowest
from rdpgraph._core.portable import in_full_precision
from rdpgraph._core.types import broadcasts
from rdpgraph.errors import EvidenceError, ModelError
from rdpgraph.logspace.logmatrix import log_products
from rdpgraph.model.evidence import MISSING
from rdpgraph.model.potentials.lowrank import LowRank
from rdpgraph.model.potentials.operators import PairOperator
from rdpgraph.model.potentials.potential import WHOLE, Potential
from rdpgraph.model.potentials.sharded import Sharded, as_potential
from rdpgraph.model.potentials.table import (
    FLOATING,
    as_whole,
    checked_log_table,
    checked_log_values,
    taken,
)
from rdpgraph.model.soundness import require_possible
from rdpgraph.structures.chain.parts import inside, masked
from rdpgraph.structures.checks import lengths_within


def checked_unary(unary: Tensor) -> None:
    """Check log-potentials (*batch, T, N)."""
    checked_log_table("Chain's unary", unary)
    checked_steps(unary)


def checked_steps(unary: Tensor) -> None:
    """Check the shape of unary potentials."""
    if unary.ndim < 2 or not unary.shape[-1]:
        raise ModelError(
            "Chain needs unary potentials of shape (*batch, T, N), N >= 1; got "
            f"{tuple(unary.shape)}."
        )


def checked_transition(
    transition: Tensor | Potential, unary: Tensor, *, owner: str = "Chain"
) -> None:
    """Check (N, N), or (*batch, T - 1, N, N) with batch dims that broadcast."""
    if not isinstance(transition, Potential):
        checked_log_table(f"{owner}'s transition", transition)
    *batch, total, states = unary.shape
    shape = tuple(transition.shape)
    one, steps = (states, states), max(total - 1, 0)
    fits = shape == one or (len(shape) >= 3 and shape[-3:] == (steps, *one))
    if not fits or not broadcasts(shape[:-3], batch):
        raise ModelError(
            f"{owner} over {total} steps of {states} states, batch {tuple(batch)}, needs a "
            f"transition of shape {one} or (*batch, {steps}, {states}, {states}), [from, to]; got "
            f"{shape}."
        )
    if transition.device != unary.device:
        raise ModelError(
            f"{owner} needs its potentials on one device; unary is on {unary.device}, the "
            f"transition on {transition.device}."
        )


def checked_lengths(lengths: Tensor | Sequence[int] | int, unary: Tensor) -> Tensor:
    """Lengths as (*batch,) int64 on the device of unary potentials, or of (*batch, T, 1)."""
    *batch, total, _ = unary.shape
    lengths = present("Chain's lengths", lengths)
    try:
        given = torch.as_tensor(lengths, device=unary.device)
    except (TypeError, ValueError, RuntimeError):
        raise ModelError(f"Chain needs integer lengths; got {lengths!r:.80}.") from None
    return lengths_within("Chain", "lengths", given, tuple(batch), total)


def checked_sequences(states: Tensor, unary: Tensor, lengths: Tensor) -> Tensor:
    """States (*lead, *batch, T) as (R, B, T) int64, in range, or -1 beyond the length."""
    *batch, total, size = unary.shape
    shape = (*batch, total)
    states = present("A chain's sequences", states, EvidenceError)
    whole = states.dtype in WHOLE
    if not whole or tuple(states.shape[max(states.ndim - len(shape), 0) :]) != shape:
        raise EvidenceError(
            f"A chain's sequences must be integer states of shape (*lead, *{shape}); got "
            f"{tuple(states.shape)} of {states.dtype}."
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
def checked_rows(what: str, log_probabilities: Tensor | LowRank | PairOperator) -> None:
    """Check log-probabilities whose last dim sums to one."""
    if isinstance(log_probabilities, LowRank):
        columns = log_probabilities.log_right.logsumexp(-2).unsqueeze(-2)
        totals = (log_probabilities.log_left + columns).logsumexp(-1)
    elif isinstance(log_probabilities, PairOperator | Sharded):
        totals = log_probabilities.row_totals()
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
            "(take .log() of probabilities; log_softmax(-1), or Chain.crf, of scores)."
        )


def require_path(states: Tensor, lengths: Tensor, what: str, batch: Sequence[int]) -> None:
    """Require a possible sequence for every item; states (draws, B, T) of others are -1."""
    if states.shape[-1] and lowest(states.select(-1, 0)) >= 0:
        return
    lost = (states[..., :1] < 0).any(-1).any(0) & (lengths > 0)
    require_possible(f"A chain has no {what}", ~lost.reshape(tuple(batch)))


def require_alike(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> None:
    """Require two chains with equal shapes of unary potentials and equal lengths."""
    (unary, lengths), (unary_too, lengths_too) = one, other
    if unary.shape != unary_too.shape or not torch.equal(lengths, lengths_too):
        raise ModelError(
            "Chains can be compared only if their shapes and lengths agree; got "
            f"{tuple(unary.shape)} and {tuple(unary_too.shape)}, lengths "
            f"{lengths.tolist()} and {lengths_too.tolist()}."
        )


def hmm_unary(
    start: Tensor, transition: Tensor | LowRank | PairOperator, emission: Tensor | LowRank,
    observations: Tensor | None, lengths: Tensor | Sequence[int] | None = None,
    *, stationary: bool = False,
) -> Tensor:  # fmt: skip
    """(*batch, T, N) from log-probabilities, checked except beyond the lengths.

    A ``stationary`` model has one transition for all steps.
    """
    start = taken("Chain.hmm's start", start)
    transition = as_potential(transition)
    transition = taken("Chain.hmm's transition", transition)
    emission = taken("Chain.hmm's emission", emission)
    observations = filled(observations, MISSING)
    if not isinstance(observations, Tensor | None):
        observations = as_whole("Chain.hmm's observations", observations)
    states = start.shape[-1] if start.ndim else 0
    square = tuple(transition.shape[0 if stationary else -2 :])
    if start.ndim != 1 or square != (states, states):
        raise ModelError(
            "Chain.hmm needs start (N,) and transition (N, N); got "
            f"{tuple(start.shape)} and {tuple(transition.shape)}."
        )
    checked_rows("Chain.hmm's start", start)
    checked_rows("Chain.hmm's transition", transition)
    if len(emission.shape) < 2 or states != emission.shape[-1 if observations is None else 0]:
        wanted = f"(*batch, T, {states})" if observations is None else f"({states}, symbols)"
        raise ModelError(
            f"Chain.hmm {'without' if observations is None else 'with'} observations needs "
            f"emission of shape {wanted}; got {tuple(emission.shape)}."
        )
    # Rows that were rounded to half precision are checked as such, and summed in full.
    if observations is not None:
        checked_rows("Chain.hmm's emission", emission)
    start, emission = in_full_precision(start), in_full_precision(emission)
    if observations is None:
        unary = emission if isinstance(emission, Tensor) else emission.table(2)
        if lengths is not None:
            unary = masked(unary, checked_lengths(lengths, unary))
    else:
        # Log-probabilities of the symbols seen, 0 where one is missing.
        seen = checked_symbols("Chain.hmm", observations, lengths, emission)
        rows = shown(emission, seen.clamp(min=0))
        unary = torch.where((seen != MISSING).unsqueeze(-1), rows, 0.0)
    return with_ends(unary, start, None, None)


def crf_unary(
    emissions: Tensor, start: Tensor | None, end: Tensor | None,
    lengths: Tensor | Sequence[int] | int | None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """(*batch, T, N) from scores, 0 beyond the lengths, and the lengths.

    Emissions (*batch, T, N); scores of the first and last state, (N,) or (*batch, N).
    """
    emissions = in_full_precision(taken("Chain.crf's emissions", emissions))
    if emissions.dtype not in FLOATING:
        checked_unary(emissions)
    sizes = None
    if lengths is not None and emissions.ndim > 1:
        sizes = checked_lengths(lengths, emissions)
        emissions = masked(emissions, sizes)
    if start is None and end is None:
        return emissions, sizes
    checked_steps(emissions)
    start = start if start is None else taken("Chain.crf's start", start)
    end = end if end is None else taken("Chain.crf's end", end)
    *batch, _, states = emissions.shape
    for name, values in (("start", start), ("end", end)):
        shape = (states,) if values is None else tuple(values.shape)
        if shape[-1:] != (states,) or not broadcasts(shape[:-1], batch):
            rows = f" or {(*batch, states)}" if batch else ""
            raise ModelError(
                f"Chain.crf needs {name} scores of shape {(states,)}{rows}; got {shape}."
            )
    return with_ends(emissions, start, end, sizes), sizes


def with_ends(
    unary: Tensor, start: Tensor | None, end: Tensor | None, lengths: Tensor | None
) -> Tensor:
    """Unary potentials with values over states added at the first and the last step."""
    *batch, total, states = unary.shape
    if not unary.numel():
        return unary
    given = [values for values in (start, end) if values is not None]
    rows = torch.stack(torch.broadcast_tensors(*given), -2)
    dtype = torch.promote_types(unary.dtype, rows.dtype)
    rows = rows.to(dtype).expand(*batch, -1, states)
    ends = [place for place, values in ((0, start), (total - 1, end)) if values is not None]
    places, unary = torch.tensor(ends, device=unary.device), unary.to(dtype)
    if lengths is None:
        return unary.index_add(-2, places, rows)
    places = torch.minimum(places, (lengths.unsqueeze(-1) - 1).clamp_(min=0))
    return unary.scatter_add(-2, places.unsqueeze(-1).expand(rows.shape), rows)


def checked_symbols(
    owner: str, observations: Tensor, lengths: Tensor | Sequence[int] | None,
    emission: Tensor | LowRank,
) -> Tensor:  # fmt: skip
    """Return observed symbols as int64 (*batch, T), when they fit emissions (N, V).

    They are on the device of the emissions, and -1 where one is missing or beyond the length.
    """
    if is_masked(observations):
        observations = torch.as_tensor(filled(observations, MISSING))
    if not isinstance(observations, Tensor) or observations.is_floating_point():
        raise EvidenceError(f"{owner} needs observations as a tensor of integer symbols.")
    if observations.ndim < 1:
        raise EvidenceError(f"{owner} needs observations of shape (*batch, T); got a number.")
    seen = observations.to(device=emission.device, dtype=torch.long)
    if lengths is not None:
        sizes = checked_lengths(lengths, seen.unsqueeze(-1))
        seen = torch.where(inside(sizes, seen.shape[-1]), seen, MISSING)
    symbols = emission.shape[1]
    wrong = seen[(seen < MISSING) | (seen >= symbols)]
    if len(wrong):
        raise EvidenceError(
            f"{owner} needs symbols 0 to {symbols - 1} (-1 where missing); got {int(wrong[0])}."
        )
    return seen


def shown(emission: Tensor | LowRank, symbols: Tensor) -> Tensor:
    """(*symbols.shape, N) log-values of symbols in each state, from (N, V)."""
    if isinstance(emission, Tensor):
        return emission.mT[symbols]
    left, right = emission.log_left, emission.log_right
    if len(right) <= symbols.numel():
        return log_products(right, left)[symbols]
    return log_products(right[symbols], left)
