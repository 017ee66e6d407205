"""The semi-Markov chain as a structure."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from rdpgraph._core.portable import in_full_precision
from rdpgraph._core.types import ArrayLike
from rdpgraph.errors import ModelError
from rdpgraph.interface.masks import Masks
from rdpgraph.interface.sites import Sites
from rdpgraph.interface.structure import Match
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.potentials.lowrank import LowRank
from rdpgraph.model.potentials.potential import Potential
from rdpgraph.model.potentials.table import Table, checked_log_values, settle, taken
from rdpgraph.model.soundness import require_possible
from rdpgraph.recurrences.bound import Bound
from rdpgraph.recurrences.declaration import Declared
from rdpgraph.recurrences.restriction import UNARY
from rdpgraph.structures.chain.constructors import checked_transition
from rdpgraph.structures.chain.parts import (
    ChainTensors,
    Parts,
    flat_lengths,
    flattened,
    held,
    table_of,
)
from rdpgraph.structures.checks import settle_lengths
from rdpgraph.structures.draws import checked_best, checked_count, require_generator
from rdpgraph.structures.recurrence import Recurrence
from rdpgraph.structures.semimarkov import proposals, scoring
from rdpgraph.structures.semimarkov.proposals import SemiMarkovMasks
from rdpgraph.structures.semimarkov.scoring import KBestSegmentations, Segmentation
from rdpgraph.structures.semimarkov.segments import graph_of, recognised_segments, write_rules


@dataclass(frozen=True, eq=False)
class SemiMarkov(Recurrence):
    """A distribution over the ways to cut a sequence into labelled segments (Sarawagi, Cohen 2004).

    The score of a segmentation is the sum of its segments' log-potentials and of the transitions
    between neighbours. A sequence of length 0 has one segmentation, of score 0. Scores may differ
    by thousands of nats in float32; no tensor of size T N N is formed, except by `factor_graph`.

    `marginals` (*batch, T, D, N) are the probabilities that a segment is in the segmentation: those
    of a position sum to the probability that a segment ends there, not to one.

    Args:
        unary: (*batch, T, D, N) log-potential (nats) of the segment that ends at position t, lasts
            d + 1 steps and has label n. Those with d > t, and beyond the length, are ignored.
        transition: (N, N) log-potentials, [from, to], of consecutive segments, shared by all
            positions; or (*batch, T - 1, N, N), of which number t lies between a segment that ends
            at t and one that starts at t + 1; batch dims that are absent or 1 broadcast. A
            `Potential` of such a shape is written out, except for scores and `restrict`. With a
            `LowRank` of rank r, (N, N), log Z, its gradient, marginals and samples cost N r instead
            of N^2; other answers write the N^2 values out.
        lengths: (*batch,) integers in 0..T; default: all T.

    Raises:
        ModelError: shapes or types that do not fit, NaN or +inf.

    Example:
        >>> segments = torch.zeros(3, 2, 1)
        >>> SemiMarkov(segments, torch.zeros(1, 1)).log_partition().exp()
        tensor(3.)
    """

    transition: Tensor | Potential = field(metadata={"dims": 3})
    lengths: Tensor | None = field(default=None, kw_only=True, metadata={"dims": 0})

    if TYPE_CHECKING:  # arguments become tensors

        def __init__(
            self,
            unary: ArrayLike,
            transition: ArrayLike | Potential,
            *,
            lengths: ArrayLike | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        settle(self, "unary", "transition", whole=("lengths",))
        segments, transition = self.unary, self.transition
        checked_log_values("SemiMarkov's segments", segments)
        if segments.ndim < 3 or min(segments.shape[-2:]) < 1:
            raise ModelError(
                "SemiMarkov needs segments (*batch, T, D, N) with D and N >= 1; got "
                f"{tuple(segments.shape)}."
            )
        checked_transition(transition, segments[..., 0, :], owner="SemiMarkov")
        if isinstance(transition, LowRank) and len(transition.shape) > 2:
            raise ModelError(
                f"SemiMarkov takes a LowRank transition for all positions, "
                f"{transition.shape[-2:]}; got {transition.shape}: give its table(2)."
            )
        if segments.dtype != transition.dtype:
            raise ModelError(
                "SemiMarkov needs segments and transition of one type; got "
                f"{segments.dtype} and {transition.dtype}."
            )
        settle_lengths(self, lengths=self.unary.shape[-3])

    @classmethod
    def from_unary(
        cls,
        unary: Tensor,
        transition: Tensor | Potential,
        duration: Tensor,
        *,
        lengths: ArrayLike | None = None,
    ) -> "SemiMarkov":
        """The chain whose segments score the sum over their positions, plus their duration.

        Each window is summed separately, without subtraction: -inf stays exact, and float32 is as
        accurate at position 10,000 as at the first. O(T D N) time and memory.

        Args:
            unary: (*batch, T, N) log-potential of each label at each position.
            transition: (N, N) log-potentials, [from, to], or (*batch, T - 1, N, N).
            duration: (D, N) log-potential of a segment of d + 1 steps.
            lengths: (*batch,).

        Raises:
            ModelError: shapes or types that do not fit.
        """
        unary = in_full_precision(taken("SemiMarkov's unary", unary))
        duration = in_full_precision(taken("SemiMarkov's duration", duration))
        if unary.ndim < 2 or duration.ndim != 2 or duration.shape[1] != unary.shape[-1]:
            raise ModelError(
                "SemiMarkov.from_unary needs unary (*batch, T, N) and duration (D, N); got "
                f"{tuple(unary.shape)} and {tuple(duration.shape)}."
            )
        longest = duration.shape[0]
        if not unary.shape[-2]:
            segments = unary.unsqueeze(-2) + duration
        else:
            # The window that ends at each position, summed from its last entry backwards.
            padded = pad(unary, (0, 0, longest - 1, 0), value=-math.inf)
            windows = padded.unfold(-2, longest, 1).flip(-1)
            segments = windows.cumsum(-1).transpose(-1, -2) + duration
        return cls(segments, transition, lengths=lengths)

    @property
    def potential(self) -> Potential:
        """The transition as a `Potential`."""
        given = self.transition
        return given if isinstance(given, Potential) else Table.from_logs(given)

    def written(self) -> tuple[Declared, str]:
        return self.written_for()

    def written_for(self, *, ranks: bool = False, kept: bool = False) -> tuple[Declared, str]:
        low = ranks and isinstance(self.transition, LowRank)
        return write_rules(ranks=low, steps=self._is_by_step, kept=kept)

    def inputs(self) -> Mapping[str, Any]:
        transition = self.transition
        given = {UNARY: self.unary, "lengths": self.lengths, "transition": transition}
        if isinstance(transition, LowRank):
            given |= {"left": transition.log_left, "right": transition.log_right}
        if len(transition.shape) > 2 and not self._is_by_step:  # of no positions
            given["transition"] = self.unary.new_zeros(transition.shape[-2:])
        return given

    @property
    def _is_double(self) -> bool:
        return True  # so that labels that are hundreds of nats behind keep their digits

    @property
    def _is_by_step(self) -> bool:
        """Whether each position has a transition of its own."""
        return len(self.transition.shape) > 2 and self.unary.shape[-3] > 0

    def score(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, segmentation: Segmentation | Tensor
    ) -> Tensor:
        """(*lead, *batch) the score of segmentations (*lead, *batch, T), in nats; differentiable.

        -inf for an impossible one: no start at the first position, a label that changes inside a
        segment, a segment of more than D steps.

        Args:
            segmentation: or the label of each segment, (*lead, *batch, T, D), -1 for none; -inf
                where those do not cover every position once.

        Raises:
            EvidenceError: a shape that does not fit, or a label outside 0..N-1.
        """
        segments, lengths = self._positions()
        if isinstance(segmentation, Tensor):
            whole = scoring.filled(segmentation, self.unary)
            same = (self.site_states(whole) == segmentation).flatten(-2).all(-1)
            return self.score(whole).masked_fill(~same, -math.inf)
        given = self.transition if len(self.transition.shape) == 2 else self._table
        flat = scoring.flat(segmentation, self.unary, lengths)
        total = scoring.score(segments, given, lengths, flat)
        return total.reshape(segmentation.labels.shape[:-1])

    def configuration(self, states: Tensor) -> Segmentation:
        """The segmentation given the label of each segment, (*lead, *batch, T, D), -1 for none."""
        return Segmentation.of(states)

    def site_states(self, configuration: Segmentation) -> Tensor:
        """(*lead, *batch, T, D) the label of each segment of a segmentation, -1 for none."""
        _, lengths = self._positions()
        flat = scoring.flat(configuration, self.unary, lengths)
        states = scoring.site_states(flat, lengths, self.unary.shape[-2])
        return states.reshape(*configuration.labels.shape, self.unary.shape[-2])

    def position_marginals(self) -> Tensor:
        """(*batch, T, N) the probability that a position lies in a segment of a label.

        Differentiable as `marginals`. A position's probabilities sum to one up to the length, and
        are 0 beyond.
        """
        return scoring.over_positions(self.marginals(), best=False).sum(-2)

    def _compared(self, other: Recurrence) -> tuple[Bound, Bound]:
        if isinstance(other, SemiMarkov):
            own, theirs = self._positions()[1], other._positions()[1]
            if other.unary.shape != self.unary.shape or not torch.equal(own, theirs):
                raise ModelError(
                    "SemiMarkov.cross_entropy needs a chain of the same shape and lengths; got "
                    f"{tuple(other.unary.shape)} for {tuple(self.unary.shape)}."
                )
            if self._is_by_step != other._is_by_step:
                one, two = self._by_step(), other._by_step()
                return super(SemiMarkov, one)._compared(two)
        return super()._compared(other)

    def _by_step(self) -> "SemiMarkov":
        """The same chain with a transition for each position."""
        table = table_of(self.transition, of="SemiMarkov")
        if table.ndim == 2 and self.unary.shape[-3]:
            table = table.expand(self.unary.shape[-3] - 1, *table.shape)
        return replace(self, transition=table)

    def mode(self) -> Segmentation:  # pyright: ignore[reportIncompatibleMethodOverride]
        """A most probable segmentation, (*batch, T); O(T (D N + N^2)). Not differentiable.

        Raises:
            ImpossibleEvidenceError: an item has no possible segmentation.
        """
        return self._segmentation(*self._segments(None, None), ())

    def k_best(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, k: int
    ) -> KBestSegmentations:
        """The k best segmentations, distinct, best first; O(T k (D N + N^2)).

        Raises:
            ModelError: k below 1.
        """
        k = checked_best(self.name, k, self.states_shape)
        segments, scores = self._bind().k_best_entries_of(UNARY, k)
        return KBestSegmentations(self._segmentation(*segments, (k,)), scores.to(self.unary))

    def sample(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, count: int, generator: torch.Generator | None = None
    ) -> Segmentation:
        """Independent draws, a `Segmentation` of (count, *batch) items; not differentiable.

        One forward recursion, then O(count (D + N)) for each segment.

        Raises:
            ImpossibleEvidenceError: an item has no possible segmentation.
        """
        require_generator(generator)
        count = checked_count(count, self.states_shape)
        return self._segmentation(*self._segments(count, generator), (count,))

    def _segments(
        self, count: int | None, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The row, the place and the label of the segments of draws; None: of the best."""
        bound = self._bind(ranks=count is not None)
        segments, possible = bound.entries_of(UNARY, count, generator)
        require_possible("SemiMarkov has no samples and no mode", possible)
        return segments

    def sites(self) -> Sites:
        """The segments within the sequence.

        A label's mean factor value is the mean transition into it, one for the first segment, times
        the mean transition out of it, one for the last. The means are over random labels, or over
        all if the transition is a `LowRank`.
        """
        means = partial(proposals.mean_values, self.unary, self.lengths, self.potential)
        unary = proposals.unary(self.unary, self.lengths)
        return Sites(unary, restrict=self.restrict, means=means, masses=self._log_masses)

    def _log_masses(self, states: Tensor, log_weights: Tensor) -> Tensor:
        kept = self.restrict(states, log_weights).unary
        return proposals.log_masses(self.unary, self.lengths, self.potential, states, kept)

    def masks(self) -> Masks:
        """The questions of masks: whether each step lies in a segment of each label."""
        return SemiMarkovMasks(self, self.transition, self.lengths)

    def factor_graph(self) -> FactorGraph:
        """A chain of T sites in state ``age * N + label`` each; see `states`.

        The age of a position counts the steps since the start of its segment; sites beyond the
        length are in state 0. The probability of a segment (t, d, n) is that of site t in state (d,
        n) and a start at t + 1. Tables of O(T (D N)^2): for small models.
        """
        transition = table_of(self.transition, of="SemiMarkov")
        return graph_of(self.unary, transition, self._positions()[1].reshape(self.batch_shape))

    def place(self, site: tuple[int, ...]) -> tuple[float, float] | None:
        last, age = site
        return (last - age / 2, float(age)) if age <= last else None

    @classmethod
    def recognise(cls, graph: FactorGraph) -> Match | None:
        """A chain as `factor_graph` writes it, its states in any order; or many of one length.

        Factors are over one variable or two neighbours. Each state has at most one successor in its
        segment; all others start a segment, by a log-value that is the sum of one of the segment's
        state and one of both labels. Tables of pairs that require a gradient are left to `Chain`.
        """
        cut = recognised_segments(graph)
        if cut is None:
            return None
        segments, transition, numbers, states = cut
        return Match(cls(segments, transition), numbers, states)

    def variable_states(self, configuration: Segmentation) -> Tensor:
        """(*lead, *batch, T) the states of `factor_graph`, as `states`."""
        return self.states(configuration)

    def variable_values(self, values: Tensor, *, best: bool) -> Tensor:
        """(*batch, T, D N) values of ages and labels, summed over longer segments."""
        states = scoring.over_positions(values, best=best).flatten(-2)
        return states if self.lengths is None else held(states, self.lengths, best=best)

    def states(self, segmentation: Segmentation) -> Tensor:
        """(*lead, *batch, T) int64 states of the sites of `factor_graph` for a segmentation."""
        _, lengths = self._positions()
        flat = scoring.flat(segmentation, self.unary, lengths)
        place = torch.arange(flat.labels.shape[-1], device=flat.labels.device)
        states = flat.ages * self.unary.shape[-1] + flat.labels
        inside = place < lengths.unsqueeze(1)
        return torch.where(inside, states, 0).reshape(segmentation.labels.shape)

    def work(self) -> float:
        steps, durations, labels = self.unary.shape[-3:]
        low = self.transition
        width = 2 * low.rank if isinstance(low, LowRank) else labels
        return float(math.prod(self.batch_shape) * steps * labels * (durations + width))

    @property
    def _table(self) -> Tensor:
        return flattened(table_of(self.transition, of="SemiMarkov"), self.batch_shape)

    def _positions(self) -> tuple[Tensor, Tensor]:
        """Segments (B, T, D, N) and lengths (B,)."""
        lengths = flat_lengths(self.lengths, self.unary.shape[:-2], self.unary)
        return self.unary.reshape(len(lengths), *self.unary.shape[-3:]), lengths

    def _segmentation(
        self, row: Tensor, place: Tensor, label: Tensor, lead: tuple[int, ...]
    ) -> Segmentation:
        *_, steps, durations, _ = self.unary.shape
        shape = (*lead, *self.batch_shape, steps)
        return Segmentation.cut(row, place // durations, place % durations, label, shape=shape)

    def _as_chain(self) -> ChainTensors | None:
        """Segments of one position are the states of a chain."""
        if self.unary.shape[-2] > 1 or not self.unary.shape[-3]:
            return None
        segments, lengths = self._positions()
        return Parts(segments[..., 0, :], self._table, lengths)
