"""The recursion over segments whose candidates stand for labels.

With u the scores of the candidates, L their labels and A the transition,

    ending[t, d, k] = u[t, d, k] + log sum_{e, m} exp(ending[t - d - 1, e, m]
                                                      + A[L[t - d - 1, e, m], L[t, d, k]]),

without the sum where t = d, and Z sums over the segments that end at the last position. A segment
stands in a segmentation once at most, so that Z is linear in the weights of each.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from rdpgraph._cache import cached_property
from rdpgraph.errors import ImpossibleEvidenceError
from rdpgraph.model.lowrank import LowRank
from rdpgraph.model.potential import Potential
from rdpgraph.model.semiring import soft_sum
from rdpgraph.structures.draws import Pick
from rdpgraph.structures.semimarkov.transitions import pairs, potential_after

_AT_ONCE = 2**22  # pairs of labels that are looked at together


@dataclass(frozen=True, eq=False)
class LabelledSegments:
    """Segments of K candidates each, one batch dim.

    Attributes:
        unary: (B, T, D, K) float64 log-potentials.
        states: (B, T, D, K) the labels of the candidates.
        lengths: (B,).
        potential: the transition; a `Table` (1 or B, T - 1, N, N) if each position has its own.
    """

    unary: Tensor
    states: Tensor
    lengths: Tensor
    potential: Potential

    @property
    def batch(self) -> int:
        """B, the number of batch items."""
        return len(self.unary)

    @property
    def work(self) -> float:
        """The multiply-adds of log Z."""
        _, _, durations, kept = self.unary.shape
        low = self.potential
        width = 2 * low.rank if isinstance(low, LowRank) else durations * kept
        return float(self.unary.numel() * width)

    def log_partition(self, temperature: float | Tensor) -> Tensor:
        """(B,) the log-sum of all segmentations at a temperature, 0 of none; differentiable."""
        if not self.unary.shape[1]:
            return self.unary.sum((1, 2, 3))
        last = self._at_last(self.ending(temperature)).unsqueeze(2)
        return torch.where(self.lengths > 0, soft_sum(last, 1, temperature).squeeze(1), 0.0)

    def ending(self, temperature: float | Tensor) -> Tensor:
        """(B, T, D, K) log-sum of the prefixes that end with each segment; differentiable.

        Args:
            temperature: 1.0 for sums, 0.0 for maxima, or a tensor (B, 1, 1).
        """
        batch, steps, durations, kept = self.unary.shape
        if not steps:
            return self.unary
        # What enters segments at the latest D positions, newest first, by their duration.
        window = self.unary.new_full((batch, durations, durations, kept), -math.inf)
        window[:, 0] = 0.0
        prefixes: list[Tensor] = []
        for place in range(steps):
            prefixes.append(self.unary[:, place] + window.diagonal(dim1=1, dim2=2).mT)
            if place + 1 < steps:
                after = _begun(self._labels, place + 1)
                sums = self._ahead(prefixes[-1], place, after, temperature)
                entering = sums.reshape(batch, 1, durations, kept)
                window = torch.cat([entering, window[:, :-1]], 1)
        return torch.stack(prefixes, 1)

    @torch.no_grad()
    def following(self, temperature: float) -> Tensor:
        """(B, T, D, K) log-sum of what follows each segment; -inf beyond the length."""
        sums = torch.full_like(self.unary, -math.inf)
        begun = self._begun_scores
        for place in range(self.unary.shape[1] - 1, -1, -1):
            states = self.states[:, place].flatten(1)
            after = self._behind(states, begun, place, temperature).reshape(sums[:, place].shape)
            sums[:, place] = after
            begun[:, place] = self.unary[:, place] + after
        return sums

    @torch.no_grad()
    def masses(self, unary: Tensor) -> Tensor:
        """(B, T, D, N) what all segmentations with a segment weigh, whose others are candidates.

        Both recursions, taken one step further to all labels: O(T N D K), or O(T N r).

        Args:
            unary: (B, T, D, N) of all labels, -inf where there is no segment.
        """
        batch, steps, durations, labels = unary.shape
        entering = unary.new_zeros(batch, steps, labels, dtype=torch.float64)
        leaving = torch.zeros_like(entering)
        if not steps:
            return unary
        ending, begun = self.ending(1.0), self._begun_scores
        begun[:, :steps] = self.unary + self.following(1.0)
        width = labels
        if not isinstance(self.potential, LowRank):
            width = max(1, _AT_ONCE // max(1, self.unary[:, 0].numel()))
        for some in torch.arange(labels, device=unary.device).split(width):
            asked = some.expand(batch, -1)
            for place in range(steps):
                leaving[:, place, some] = self._behind(asked, begun, place, 1.0)
                if place + 1 < steps:
                    sums = self._ahead(ending[:, place], place, asked, 1.0)
                    entering[:, place + 1, some] = sums
        place = torch.arange(steps, device=unary.device).unsqueeze(1)
        first = (place - torch.arange(durations, device=unary.device)).clamp(min=0)
        return unary + entering[:, first] + leaving.unsqueeze(2)

    @torch.no_grad()
    def descended(self, count: int, temperature: float, pick: Pick) -> Tensor:
        """(count * B, T, D) the candidates of segmentations, -1 for what is not a segment.

        Args:
            count: of each item.
            temperature: 1.0 where alternatives are summed, 0.0 where the best is asked for.
            pick: of the log-values of alternatives.

        Raises:
            ImpossibleEvidenceError: an item has none.
        """
        _, steps, durations, kept = self.unary.shape
        item = torch.arange(self.batch, device=self.unary.device).repeat(count)
        labels = torch.full((len(item), steps, durations), -1, device=self.unary.device)
        if not steps:
            return labels
        ending = self.ending(temperature)
        last = self._at_last(ending)
        if bool(((last == -math.inf).all(1) & (self.lengths > 0)).any()):
            raise ImpossibleEvidenceError(
                "There are no samples and no mode: at least one item has no possible segmentation "
                "of its candidates."
            )
        row = (self.lengths[item] > 0).nonzero().squeeze(1)
        place, logs = self.lengths[item[row]] - 1, last[item[row]]
        while len(row):
            chosen = pick(logs)
            duration = chosen // kept
            labels[row, place, duration] = chosen % kept
            follower = self.states[item[row], place].flatten(1).gather(1, chosen.unsqueeze(1))
            place = place - duration - 1
            on = place >= 0
            row, place, follower = row[on], place[on], follower[on]
            before = self.states[item[row], place].flatten(1)
            joined = pairs(self.potential, item[row], place, before, follower.squeeze(1))
            logs = ending[item[row], place].flatten(1) + joined
        return labels

    @cached_property
    def _labels(self) -> Tensor:
        """(B, T + D, D, K) the labels, padded."""
        return pad(self.states, (0, 0, 0, 0, 0, self.states.shape[2]))

    @property
    def _begun_scores(self) -> Tensor:
        """(B, T + D, D, K) -inf throughout, to be filled."""
        batch, steps, durations, kept = self.unary.shape
        return self.unary.new_full((batch, steps + durations, durations, kept), -math.inf)

    def _at_last(self, ending: Tensor) -> Tensor:
        """(B, D K) of (B, T, D, K) at the last position of each item."""
        item = torch.arange(self.batch, device=ending.device)
        return ending[item, (self.lengths - 1).clamp(min=0)].flatten(1)

    def _ahead(
        self, ending: Tensor, place: int, after: Tensor, temperature: float | Tensor
    ) -> Tensor:
        """(B, n) over the segments (B, D, K) that end at a place, for labels (B, n) after them."""
        before, logs = self.states[:, place].flatten(1), ending.flatten(1).unsqueeze(2)
        if isinstance(self.potential, LowRank) and _is_one(temperature):
            low = self.potential.rows(before, after)
            ranks = soft_sum(logs + low.log_left, 1)
            return soft_sum(ranks.unsqueeze(1) + low.log_right, 2)
        potential = potential_after(self.potential, place)
        return soft_sum(logs + potential.evaluate([before, after]), 1, temperature)

    def _behind(self, before: Tensor, scores: Tensor, place: int, temperature: float) -> Tensor:
        """(B, n) over the segments that start after a place, for labels (B, n) that end at it."""
        after, logs = _begun(self._labels, place + 1), _begun(scores, place + 1).unsqueeze(1)
        if place + 1 == self.unary.shape[1]:
            sums = torch.full_like(before, -math.inf, dtype=logs.dtype)
        elif isinstance(self.potential, LowRank) and _is_one(temperature):
            low = self.potential.rows(before, after)
            ranks = soft_sum(logs.mT + low.log_right, 1)
            sums = soft_sum(ranks.unsqueeze(1) + low.log_left, 2)
        else:
            potential = potential_after(self.potential, place)
            sums = soft_sum(logs + potential.evaluate([before, after]), 2, temperature)
        return torch.where((self.lengths == place + 1).unsqueeze(1), 0.0, sums)


def _begun(values: Tensor, place: int) -> Tensor:
    """(B, D K) of padded (B, T + D, D, K): the segments that start at a place."""
    reach = torch.arange(values.shape[2], device=values.device)
    return values[:, place + reach, reach].flatten(1)


def _is_one(temperature: float | Tensor) -> bool:
    return not isinstance(temperature, Tensor) and temperature == 1.0
