"""Chains of low rank as chains over their ranks: r x r matrices between neighbouring steps."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph.logspace.logmatrix import LogMatrix, log_products, soft_sum
from rdpgraph.model.potentials.lowrank import LowRank
from rdpgraph.structures.chain import recursion
from rdpgraph.structures.chain.factors import masked
from rdpgraph.structures.chain.steps import ChainTensors, RankSteps, RankTensors


def worthwhile(parts: ChainTensors | RankTensors) -> bool:
    """Return whether summing over ranks is expected to be faster than over states.

    It takes r / 2 times the arithmetic, in one call for all steps, and a scan instead of a
    recursion: for few states, few ranks and many steps.
    """
    if not isinstance(parts.transition, RankSteps):
        return False
    batch, total, states = parts.unary.shape
    rank = parts.transition.left.shape[-1]
    if total < 8 or not parts.transition.shared:
        return False
    if 8 * batch * total * rank * max(states, rank) > tuning.SCAN_BLOCK:
        return False
    call, rate = tuning.SECONDS_PER_CALL, 1e10 if parts.unary.device.type == "cpu" else 1e12
    vectors = total * (30 * call + 8 * batch * states * rank / rate)
    levels = math.ceil(math.log2(total))
    matrices = batch * total * (8 * states * rank**2 + 8 * rank**3) / rate
    return matrices + 40 * levels * call < vectors


def log_partition(unary: Tensor, steps: RankSteps, lengths: Tensor) -> Tensor:
    """(B,) log Z from the matrices between ranks; O(T N r^2), in O(log T) calls if scanned."""
    unary, (left, right) = masked(unary, lengths), steps.sides
    out, into = LogMatrix.of(left.mT), LogMatrix.of(right.mT)
    last = into.times(unary)  # (B, T, r): the states of each step summed out as if the last
    between = rank_matrices(unary[:, 1:-1], left, right)
    alone, begin = soft_sum(unary[:, 0], 1), out.times(unary[:, 0])
    return _chained(alone, begin, between, last[:, 1:], lengths)


def rank_matrices(unary: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """(..., r, r) logs of the sum over a state of right, unary and left, [from rank, to rank].

    Unary (..., N); log-factors (N, r) of the state towards the next rank, and from the one before.
    """
    weighted = unary.unsqueeze(-2) + right.mT
    return LogMatrix.of(left.mT).times(weighted)


def symbols_worthwhile(
    symbols: int, observations: tuple[int, ...], states: int, rank: int, *, device: torch.device
) -> bool:
    """Return whether a matrix for every symbol is expected to be faster than vectors over states.

    For so many different symbols, observations of shape (batch, steps), N states and rank r.
    """
    batch, total = observations
    if total < 4 or max(symbols * states * rank, batch * total * rank**2) > tuning.SCAN_BLOCK:
        return False
    call, rate = tuning.SECONDS_PER_CALL, 1e10 if device.type == "cpu" else 1e12
    vectors = total * 30 * call + 8 * batch * total * states * rank / rate
    matrices = total * 10 * call + (symbols * states + batch * total) * 8 * rank**2 / rate
    return matrices < vectors


@dataclass(frozen=True, eq=False)
class Symbols:
    """Symbols of a hidden Markov model as matrices between ranks.

    ``M_x = sum_z right_z p(x | z) left_z^T``, r x r, is made once for every symbol, O(U N r^2), and
    a step is then O(r^2) for any N. Chiu 2021, "Random Fourier features for scaling MRFs", eq. 6.
    """

    alone: Tensor  # (U,) the states summed out, for a single symbol
    first: Tensor  # (U, r) towards the next rank, the start included
    between: Tensor  # (U, r, r) from the rank before to the next
    last: Tensor  # (U, r) from the rank before

    @classmethod
    def of(
        cls, start: Tensor, transition: LowRank, emission: Tensor,
        matrices: Callable[[Tensor, Tensor, Tensor], Tensor] = rank_matrices,
    ) -> "Symbols":  # fmt: skip
        """Sum the states out: start (N,), one pair of factors, and emission (U, N)."""
        left, right = transition.log_left, transition.log_right
        first, between = emission + start, matrices(emission, left, right)
        ends = log_products(first, left.mT), log_products(emission, right.mT)
        return cls(soft_sum(first, 1), ends[0], between, ends[1])

    def log_score(self, observations: Tensor, lengths: Tensor) -> Tensor:
        """(B,) log-probability of symbols (B, T), T > 0, up to lengths (B,)."""
        begin = observations[:, 0]
        between, last = self.between[observations[:, 1:-1]], self.last[observations[:, 1:]]
        return _chained(self.alone[begin], self.first[begin], between, last, lengths)


def _chained(
    alone: Tensor, begin: Tensor, between: Tensor, last: Tensor, lengths: Tensor
) -> Tensor:
    """Log Z of the chain over ranks: (B,), (B, r), (B, T - 2, r, r), (B, T - 1, r)."""
    if not last.shape[1]:
        return torch.where(lengths > 0, alone, 0.0)
    steps = torch.arange(1, last.shape[1] + 1, device=last.device)
    ends = (steps == lengths.unsqueeze(1) - 1).unsqueeze(2)
    unary = torch.where(ends, last, 0.0)
    unary = torch.cat([(unary[:, 0] + begin).unsqueeze(1), unary[:, 1:]], 1)
    values = recursion.log_partition(unary, between, (lengths - 1).clamp(min=0))
    return torch.where(lengths > 1, values, torch.where(lengths > 0, alone, 0.0))
