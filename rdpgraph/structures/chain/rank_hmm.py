"""Hidden Markov models with transitions, and optionally emissions, of low rank."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from rdpgraph._core import tuning
from rdpgraph._core.types import ArrayLike
from rdpgraph.errors import ModelError
from rdpgraph.interface.structure import summary
from rdpgraph.logspace.logmatrix import log_products, soft_sum
from rdpgraph.model.potentials.lowrank import LowRank
from rdpgraph.model.potentials.table import checked_log_values, settle
from rdpgraph.structures.chain.constructors import (
    checked_lengths,
    checked_symbols,
    shown,
    with_ends,
)
from rdpgraph.structures.chain.model import Chain
from rdpgraph.structures.chain.rank_chains import Symbols, rank_matrices, symbols_worthwhile


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
        if not isinstance(cast(object, self.transition), LowRank):
            raise ModelError(
                "LowRankHMM needs a LowRank transition, as LowRank.normalised(left, right); got "
                f"{type(self.transition).__name__}."
            )
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
            observations: (*batch, T) symbols; -1 is summed over.
            lengths: (*batch,), default all T.

        Raises:
            EvidenceError: a symbol out of range.
            ModelError: lengths that do not fit.
        """
        # Both at once, so that the symbols' matrices are made once.
        both = torch.stack([observations, torch.full_like(observations, -1)])
        if lengths is not None:
            lengths = torch.as_tensor(lengths).expand(2, *observations.shape[:-1])
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
