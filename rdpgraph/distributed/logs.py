"""Log Z of chains whose states lie on several ranks, in log-space: of any range, or of low rank."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from rdpgraph.distributed.wire import Split, Wire
from rdpgraph.logspace.logmatrix import finite, soft_sum
from rdpgraph.structures.chain.factors import inside, masked, steps_of
from rdpgraph.structures.chain.steps import advance, room_for
from rdpgraph.structures.chain.tensors import RankTensors


def log_partition(
    unary: Tensor, transition: Tensor, lengths: Tensor, *, split: Split
) -> tuple[Tensor, Tensor]:
    """Log Z, (B,), of any range of potentials, and no doubt; slower than `scaled.log_partition`."""
    unary = masked(unary, lengths)
    room = room_for(unary.new_empty(len(unary), 1, split.total))
    matrices, parts, shifts = steps_of(transition, unary.shape[1] - 1), list[Tensor](), Shifts()
    state = unary
    for step, local in enumerate(unary.unbind(1)):
        state = advance(state, matrices[step - 1], room) + local if step else local
        parts.append(total_here(state) + shifts.total)
        if step < unary.shape[1] - 1:
            state = shifts.taken_off(split.gathered(state))
    return ended(parts, lengths, split), torch.zeros_like(lengths, dtype=torch.bool)


def low_rank(parts: RankTensors, *, split: Split) -> Tensor:
    """(B,) log Z on every rank: r numbers an item and step are summed over the ranks.

    Args:
        parts: of the states here: (B, T, n), and factors of these.
        split: of the states.
    """
    totals, shifts = list[Tensor](), Shifts()
    for state in sweep(parts, split, shifts):
        totals.append(total_here(state) + shifts.total)
    return ended(totals, parts.lengths, split).to(parts.unary.dtype)


def sweep(parts: RankTensors, split: Split, shifts: "Shifts") -> Iterator[Tensor]:
    """Each step's log-states (B, n) here, less the shifts so far."""
    state = parts.unary
    for step, local in enumerate(masked(parts.unary, parts.lengths).unbind(1)):
        if step:
            mass = parts.transition.to_ranks(step - 1, state)
            ranks = shifts.taken_off(pooled(mass, split.wire))
            state = parts.transition.to_states(step - 1, ranks) + local
        else:
            state = local
        yield state


def pooled(logs: Tensor, wire: Wire, *, known: bool = False) -> Tensor:
    """The log of the summed exponentials over the ranks, entry by entry.

    Args:
        logs: of this rank.
        wire: the ranks.
        known: whether all ranks go on to compute the same of it, or each its own part.
    """
    peak = finite(wire.largest(logs.detach()))
    here = (logs - peak).exp()
    total = wire.summed(here) if known else wire.pooled(here)
    return torch.where(total > 0, torch.where(total > 0, total, 1.0).log() + peak, -math.inf)


class Shifts:
    """What was taken off the logs so far, (B,) float64; to which no gradient goes."""

    def __init__(self) -> None:
        self.total = torch.zeros(())

    def taken_off(self, logs: Tensor) -> Tensor:
        """Logs (B, n) that all ranks hold, their maximum 0 now."""
        top = finite(logs.detach().amax(1))
        self.total = self.total + top.double()
        return logs - top.unsqueeze(1)


def total_here(state: Tensor) -> Tensor:
    """(B,) of the states (B, n) here; -inf of none, with a gradient that is passed on."""
    return soft_sum(state, 1) if state.shape[1] else state.sum(1) - math.inf


def ended(parts: list[Tensor], lengths: Tensor, split: Split) -> Tensor:
    """(B,) log Z from each step's total here, (B,) each: those of the steps where items end."""
    here = torch.stack(parts, 1)
    last = torch.arange(len(parts), device=lengths.device) == lengths.unsqueeze(1) - 1
    # Of other steps nothing is asked, not even what is no number.
    here = torch.where(last, here, -math.inf)
    totals = pooled(here, split.wire, known=True)
    values = torch.where(last, totals, 0.0).sum(1)
    return torch.where(inside(lengths, 1)[:, 0], values, 0.0)
