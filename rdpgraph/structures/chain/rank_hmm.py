"""Hidden Markov models with transitions, and optionally emissions, of low rank."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from rdpgraph._core import tuning
from rdpgraph._core.arguments import require_fields
from rdpgraph._core.masked import filled, present
from rdpgraph._core.types import ArrayLike
from rdpgraph.errors import EvidenceError, ModelError
from rdpgraph.interface.structure import summary
from rdpgraph.logspace.logmatrix import LogMatrix, log_products, soft_sum
from rdpgraph.model.potentials.lowrank import LowRank
from rdpgraph.model.potentials.table import as_whole, checked_log_values, settle
from rdpgraph.structures.chain import recursion
from rdpgraph.structures.chain.constructors import (
    MISSING,
    checked_lengths,
    checked_symbols,
    shown,
    with_ends,
)
from rdpgraph.structures.chain.model import Chain
from rdpgraph.structures.chain.parts import Parts


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
    if total < 4 or max(symbols * states * rank, batch * total * rank**2) > tuning.SYMBOL_BLOCK:
        return False
    # The calls that matrices need beyond those of vectors, which the machine needs few of.
    rate, calls = (1e10, 200) if device.type == "cpu" else (1e12, -20 * total)
    vectors = 8 * batch * total * states * rank / rate
    matrices = (symbols * states + batch * total) * 8 * rank**2 / rate
    return matrices + calls * tuning.SECONDS_PER_CALL < vectors


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
    chain = Parts(unary, between, (lengths - 1).clamp(min=0))
    values = recursion.log_partition(chain)
    return torch.where(lengths > 1, values, torch.where(lengths > 0, alone, 0.0))


@dataclass(frozen=True, eq=False)
class LowRankHMM:
    """Hidden Markov models: value(x, z) = s(z_1) prod_t f(z_t, z_t+1) prod_t e(z_t, x_t).

    With log-probabilities, as `LowRank.normalised` makes them, the normaliser is 1. Other scores
    are normalised over all sequences of a length.

    The states are summed out of each symbol: ``M_x = sum_z right(z) e(z, x) left(z)^T``, r x r,
    made once for every symbol, O(V N r^2), or O(N k r^2 + V k r^2) for emissions of rank k. A
    sequence then costs O(T r^2) for any N, in O(log T) calls where that is faster. For too many
    symbols sequences are solved over states, O(T N r): see `chain`.

    Args:
        start: (N,) logs.
        transition: a `LowRank` of shape (N, N).
        emission: (N, V) logs, or a `LowRank` of that shape.

    Raises:
        ModelError: shapes that do not fit.

    Source: Chiu 2021, "Random Fourier features for scaling MRFs": eq. 6 with one rank, 5 with two,
    10 and 11 where normalised globally; derived again, as the printed indices have slips.

    Example:
        >>> factors = torch.randn(2, 9, 3, generator=torch.Generator().manual_seed(0))
        >>> shown = torch.randn(9, 4, generator=torch.Generator().manual_seed(1))
        >>> model = LowRankHMM(torch.zeros(9), LowRank(*factors), shown)
        >>> every = torch.cartesian_prod(torch.arange(4), torch.arange(4))
        >>> model.log_prob(every).exp().sum()
        tensor(1.0000)
    """

    start: Tensor
    transition: LowRank
    emission: Tensor | LowRank

    if TYPE_CHECKING:  # arguments become tensors

        def __init__(
            self, start: ArrayLike, transition: LowRank, emission: ArrayLike | LowRank
        ) -> None: ...

    def __repr__(self) -> str:
        return summary(self)

    def __post_init__(self) -> None:
        settle(self, "start", "emission")
        checked_log_values("LowRankHMM's start", self.start)
        require_fields(self)
        if isinstance(self.emission, Tensor):
            checked_log_values("LowRankHMM's emission", self.emission)
        shapes = (tuple(self.start.shape), self.transition.shape, tuple(self.emission.shape))
        states = shapes[0][0] if len(shapes[0]) == 1 else 0
        fits = shapes[1] == (states, states) and len(shapes[2]) == 2 and shapes[2][0] == states
        if not states or not fits or not shapes[2][1]:
            raise ModelError(
                "LowRankHMM needs start (N,), transition (N, N) and emission (N, symbols); got "
                f"{shapes[0]}, {shapes[1]} and {shapes[2]}."
            )

    @property
    def symbols(self) -> int:
        """V, the number of symbols."""
        return self.emission.shape[1]

    def log_prob(self, observations: Tensor, lengths: Tensor | None = None) -> Tensor:
        """(*batch,) log-probabilities of sequences among those of their length, in nats.

        Args:
            observations: (*batch, T) symbols; -1, or one that is masked, is summed over.
            lengths: (*batch,), default all T.

        Raises:
            EvidenceError: a symbol out of range.
            ModelError: lengths that do not fit.
        """
        observations = as_whole("LowRankHMM's observations", filled(observations, MISSING))
        if not observations.ndim:
            raise EvidenceError("LowRankHMM needs observations of shape (*batch, T); got a number.")
        # Both at once, so that the symbols' matrices are made once.
        both = torch.stack([observations, torch.full_like(observations, -1)])
        if lengths is not None:
            lengths = torch.as_tensor(present("LowRankHMM's lengths", lengths))
            lengths = lengths.expand(2, *observations.shape[:-1])
        seen, every = self.log_score(both, lengths)
        return seen - every

    def log_score(self, observations: Tensor, lengths: Tensor | None = None) -> Tensor:
        """(*batch,) log of the summed values; a log-probability if rows are probabilities."""
        flat, sizes = self._checked(observations, lengths)
        batch, total = flat.shape
        shape = observations.shape[:-1]
        if not batch or not total:
            return self.start.new_zeros(shape)
        device = self.start.device
        quick = symbols_worthwhile(
            self.symbols, (batch, total), len(self.start), self.transition.rank, device=device
        )
        if not quick:
            return self.chain(observations, lengths).log_partition()
        seen = torch.where(flat < 0, self.symbols, flat)
        return self._matrices.log_score(seen, sizes).reshape(shape)

    def chain(self, observations: Tensor, lengths: Tensor | None = None) -> Chain:
        """The hidden states given the symbols; its log Z is `log_score`. (*batch, T, N) memory."""
        flat, sizes = self._checked(observations, lengths)
        rows = shown(self.emission, flat.clamp(min=0))
        unary = torch.where((flat >= 0).unsqueeze(-1), rows, self._any)
        unary = with_ends(unary, self.start, None, None)
        batch = observations.shape[:-1]
        unary = unary.reshape(*batch, *unary.shape[1:])
        return Chain(unary, self.transition, lengths=sizes.reshape(batch))

    @property
    def _any(self) -> Tensor:
        """(N,) the summed symbols of each state: zeros in an ordinary hidden Markov model."""
        if isinstance(self.emission, Tensor):
            return soft_sum(self.emission, 1)
        return soft_sum(self.emission.log_left + soft_sum(self.emission.log_right, 0), 1)

    @property
    def _matrices(self) -> Symbols:
        """Matrices of every symbol, the last for any symbol."""
        if isinstance(self.emission, Tensor):
            return self._summed_out(torch.cat([self.emission.mT, self._any.unsqueeze(0)]))
        # Symbols are mixtures of the emission's ranks, for which the matrices are made.
        summed = self._summed_out(self.emission.log_left.mT)
        every = soft_sum(self.emission.log_right, 0).unsqueeze(0)
        shares = torch.cat([self.emission.log_right, every])

        def mixed(part: Tensor) -> Tensor:
            flat = part.flatten(1).mT if part.ndim > 1 else part.unsqueeze(0)
            return log_products(shares, flat).reshape(-1, *part.shape[1:])

        return Symbols(*map(mixed, (summed.alone, summed.first, summed.between, summed.last)))

    def _summed_out(self, rows: Tensor) -> Symbols:
        """Sum the states out of rows (U, N) of emissions."""
        return Symbols.of(self.start, self.transition, rows, _in_blocks)

    def _checked(self, observations: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        """(B, T) symbols, -1 where missing or beyond the length, and lengths (B,)."""
        seen = checked_symbols("LowRankHMM", observations, lengths, self.emission)
        if lengths is None:
            lengths = torch.full(seen.shape[:-1], seen.shape[-1], device=seen.device)
        sizes = checked_lengths(lengths, seen.unsqueeze(-1)).reshape(-1)
        return seen.reshape(len(sizes), seen.shape[-1]), sizes


def _in_blocks(rows: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """`rank_matrices` in blocks of rows, recomputed for the gradient."""
    parts = rows.split(tuning.per_block(left.numel(), tuning.LARGE_BLOCK))
    made = [checkpoint(rank_matrices, part, left, right, use_reentrant=False) for part in parts]
    return torch.cat(made)  # pyright: ignore
