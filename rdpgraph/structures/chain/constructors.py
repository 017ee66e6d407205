"""Unary potentials of hidden Markov models and conditional random fields."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from rdpgraph.errors import EvidenceError, ModelError
from rdpgraph.logspace.logmatrix import log_products
from rdpgraph.model.potentials.lowrank import LowRank
from rdpgraph.model.potentials.table import FLOATING, as_whole, taken
from rdpgraph.structures.chain.checks import (
    checked_ends,
    checked_lengths,
    checked_rows,
    checked_steps,
    checked_unary,
)
from rdpgraph.structures.chain.factors import inside, masked

MISSING = -1


def hmm_unary(
    start: Tensor, transition: Tensor | LowRank, emission: Tensor | LowRank,
    observations: Tensor | None, lengths: Tensor | Sequence[int] | None = None,
) -> Tensor:  # fmt: skip
    """(*batch, T, N) from log-probabilities, checked except beyond the lengths."""
    start = taken("Chain.hmm's start", start)
    transition = taken("Chain.hmm's transition", transition)
    emission = taken("Chain.hmm's emission", emission)
    if not isinstance(observations, Tensor | None):
        observations = as_whole("Chain.hmm's observations", observations)
    states = start.shape[-1] if start.ndim else 0
    if start.ndim != 1 or tuple(transition.shape) != (states, states):
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
    if observations is None:
        unary = emission if isinstance(emission, Tensor) else emission.table(2)
        if lengths is not None:
            unary = masked(unary, checked_lengths(lengths, unary))
    else:
        checked_rows("Chain.hmm's emission", emission)
        unary = _emitted(emission, observations, lengths)
    return with_ends(unary, start, None, None)


def crf_unary(
    emissions: Tensor, start: Tensor | None, end: Tensor | None,
    lengths: Tensor | Sequence[int] | int | None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """(*batch, T, N) from scores, 0 beyond the lengths, and the lengths.

    Emissions (*batch, T, N); scores of the first and last state, (N,) or (*batch, N).
    """
    emissions = taken("Chain.crf's emissions", emissions)
    if emissions.dtype not in FLOATING:
        checked_unary(emissions)
    own = None
    if lengths is not None and emissions.ndim > 1:
        own = checked_lengths(lengths, emissions)
        emissions = masked(emissions, own)
    if start is None and end is None:
        return emissions, own
    checked_steps(emissions)
    start = start if start is None else taken("Chain.crf's start", start)
    end = end if end is None else taken("Chain.crf's end", end)
    for name, values in (("start", start), ("end", end)):
        if values is not None:
            checked_ends(name, values, emissions)
    return with_ends(emissions, start, end, own), own


def with_ends(
    unary: Tensor, start: Tensor | None, end: Tensor | None, lengths: Tensor | None
) -> Tensor:
    """Unary potentials with values over states added at the first and the last step."""
    *batch, total, states = unary.shape
    count = math.prod(batch)
    if not total or not count:
        return unary
    flat, items = unary.reshape(count, total, states), torch.arange(count, device=unary.device)
    first = torch.zeros_like(items)
    last = first + (total - 1) if lengths is None else (lengths.reshape(-1) - 1).clamp_(min=0)
    for values, steps in ((start, first), (end, last)):
        if values is not None:
            dtype = torch.promote_types(flat.dtype, values.dtype)
            rows = values.to(dtype).expand(*batch, states).reshape(count, states)
            flat = flat.to(dtype).index_put((items, steps), rows, accumulate=True)
    return flat.reshape(unary.shape)


def _emitted(
    emission: Tensor | LowRank, observations: Tensor, lengths: Tensor | Sequence[int] | None
) -> Tensor:
    """(*batch, T, N) log-probabilities of the symbols seen, 0 where missing."""
    seen = checked_symbols("Chain.hmm", observations, lengths, emission)
    rows = shown(emission, seen.clamp(min=0))
    return torch.where((seen != MISSING).unsqueeze(-1), rows, 0.0)


def checked_symbols(
    owner: str, observations: Tensor, lengths: Tensor | Sequence[int] | None,
    emission: Tensor | LowRank,
) -> Tensor:  # fmt: skip
    """(*batch, T) int64 symbols on the device of emissions (N, V); -1: missing, or beyond."""
    if not isinstance(observations, Tensor) or observations.is_floating_point():
        raise EvidenceError(f"{owner} needs observations as a tensor of integer symbols.")
    if observations.ndim < 1:
        raise EvidenceError(f"{owner} needs observations of shape (*batch, T); got a number.")
    seen = observations.to(device=emission.device, dtype=torch.long)
    if lengths is not None:
        own = checked_lengths(lengths, seen.unsqueeze(-1))
        seen = torch.where(inside(own, seen.shape[-1]), seen, MISSING)
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
