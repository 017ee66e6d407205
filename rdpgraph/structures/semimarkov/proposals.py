"""Likely labels of segments, for proposals, and masses of all labels given a few."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from rdpgraph._core import tuning
from rdpgraph._core.cache import cached_property
from rdpgraph.model.potentials.lowrank import LowRank
from rdpgraph.model.potentials.potential import Potential
from rdpgraph.model.potentials.table import Table
from rdpgraph.structures.chain.tensors import flattened, table_of


@dataclass(frozen=True, eq=False)
class LabelledSegments:
    """Segments of K labels each, one batch dim."""

    unary: Tensor  # (B, T, D, K) float64 log-potentials
    states: Tensor  # (B, T, D, K) the labels
    lengths: Tensor  # (B,)
    # The transition; a `Table` (1 or B, T - 1, N, N) if each position has its own.
    potential: Potential

    @torch.no_grad()
    def masses(self, unary: Tensor) -> Tensor:
        """(B, T, D, N) the log-mass of all segmentations with each segment.

        Unary potentials (B, T, D, N) of all labels are -inf where there is no segment.
        """
        batch, steps, durations, labels = unary.shape
        entering = unary.new_zeros(batch, steps, labels, dtype=torch.float64)
        leaving = torch.zeros_like(entering)
        if not steps:
            return unary
        ending, begun = self._ending(), self._begun_scores()
        width = labels
        if not isinstance(self.potential, LowRank):
            width = tuning.per_block(self.unary[:, 0].numel(), tuning.BLOCK)
        for some in torch.arange(labels, device=unary.device).split(width):
            asked = some.expand(batch, -1)
            for place in range(steps):
                leaving[:, place, some] = self._behind(asked, begun, place)
                if place + 1 < steps:
                    sums = self._ahead(ending[:, place], place, asked)
                    entering[:, place + 1, some] = sums
        place = torch.arange(steps, device=unary.device).unsqueeze(1)
        first = (place - torch.arange(durations, device=unary.device)).clamp(min=0)
        return unary + entering[:, first] + leaving.unsqueeze(2)

    def _ending(self) -> Tensor:
        """(B, T, D, K) log-sum of the prefixes that end with each segment."""
        ending = self.unary.clone()
        steps, durations = ending.shape[1:3]
        reach = torch.arange(durations, device=ending.device)
        for place in range(steps):
            # A segment is complete once all that end before its start have been visited.
            ending[:, place, place + 1 :] = -math.inf
            if place + 1 < steps:
                ages = reach[: steps - place - 1]
                after = self._labels[:, place + 1 + ages, ages].flatten(1)
                sums = self._ahead(ending[:, place], place, after)
                ending[:, place + 1 + ages, ages] += sums.unflatten(1, (len(ages), -1))
        return ending

    def _begun_scores(self) -> Tensor:
        """(B, T + D, D, K) log-sum of the suffixes that begin with each segment; -inf beyond."""
        batch, steps, durations, kept = self.unary.shape
        begun = self.unary.new_full((batch, steps + durations, durations, kept), -math.inf)
        for place in range(steps - 1, -1, -1):
            after = self._behind(self.states[:, place].flatten(1), begun, place)
            begun[:, place] = self.unary[:, place] + after.unflatten(1, (durations, kept))
        return begun

    @cached_property
    def _labels(self) -> Tensor:
        """(B, T + D, D, K) the labels, padded."""
        return pad(self.states, (0, 0, 0, 0, 0, self.states.shape[2]))

    def _ahead(self, ending: Tensor, place: int, after: Tensor) -> Tensor:
        """(B, n) sums over segments (B, D, K) that end at a place, for labels (B, n) after them."""
        return self._summed(place, self.states[:, place].flatten(1), after, ending.flatten(1), 1)

    def _behind(self, before: Tensor, scores: Tensor, place: int) -> Tensor:
        """(B, n) sums over segments that start after a place, for labels (B, n) that end at it."""
        if place + 1 == self.unary.shape[1]:
            sums = torch.full_like(before, -math.inf, dtype=scores.dtype)
        else:
            after, logs = _begun(self._labels, place + 1), _begun(scores, place + 1)
            sums = self._summed(place, before, after, logs, 2)
        return torch.where((self.lengths == place + 1).unsqueeze(1), 0.0, sums)

    def _summed(self, place: int, before: Tensor, after: Tensor, logs: Tensor, dim: int) -> Tensor:
        """(B, m) log-sums over labels before, dim 1, or after, dim 2, which have logs (B, n)."""
        if isinstance(self.potential, LowRank):
            low = self.potential.rows(before, after)
            near, far = (low.log_left, low.log_right)[:: 3 - 2 * dim]
            ranks = (logs.unsqueeze(2) + near).logsumexp(1)
            return (ranks.unsqueeze(1) + far).logsumexp(2)
        potential = self.potential
        if isinstance(potential, Table) and len(potential.shape) > 2:
            each = potential.log_values
            potential = Table.from_logs(each[0, place] if len(each) == 1 else each[:, place])
        return (logs.unsqueeze(3 - dim) + potential.evaluate([before, after])).logsumexp(dim)


def _begun(values: Tensor, place: int) -> Tensor:
    """(B, D K) of padded (B, T + D, D, K): the segments that start at a place."""
    reach = torch.arange(values.shape[2], device=values.device)
    return values[:, place + reach, reach].flatten(1)


@torch.no_grad()
def unary(segments: Tensor, lengths: Tensor | None) -> Tensor:
    """(*batch, T, D, N) potentials; -inf for segments that leave the sequence."""
    place, reach, length = _places(segments, lengths)
    return torch.where((place >= reach) & (place < length), segments, -math.inf)


@torch.no_grad()
def mean_values(
    segments: Tensor,
    lengths: Tensor | None,
    potential: Potential,
    landmarks: int,
    generator: torch.Generator | None,
) -> Tensor:
    """(*batch, T, D, N) the log of a label's mean transition from others, and to others."""
    place, reach, length = _places(segments, lengths)
    before, after = _means(potential, landmarks, generator)
    if before.ndim > 1:
        # Transition t is between segments that end at t and those that start at t + 1.
        steps = torch.arange(segments.shape[-3], device=before.device)
        start = (steps.unsqueeze(1) - reach.T - 1).clamp(0, max(before.shape[-2] - 1, 0))
        before = before[..., start, :] if before.shape[-2] else before.new_zeros(1)
        after = pad(after, (0, 0, 0, 1)).unsqueeze(-2)
    return torch.where(place > reach, before, 0.0) + torch.where(place < length - 1, after, 0.0)


@torch.no_grad()
def log_masses(
    every: Tensor, lengths: Tensor | None, potential: Potential, states: Tensor, kept: Tensor
) -> Tensor:
    """(*lead, T, D, N) the log-mass of every label of a segment given those kept, for `Sites`.

    Potentials (*batch, T, D, N) of all labels, and ``kept`` (*lead, T, D, K) of the labels in
    ``states``.
    """
    (*lead, steps, durations, few), labels = states.shape, every.shape[-1]
    every = unary(every, lengths).expand(*lead, steps, durations, labels)
    lengths = torch.tensor(steps, device=every.device) if lengths is None else lengths
    if len(potential.shape) > 2:
        potential = Table.from_logs(flattened(table_of(potential, of="SemiMarkov"), lead))
    shape = (math.prod(lead), steps, durations, few)
    segments = LabelledSegments(
        kept.double().reshape(shape),
        states.reshape(shape),
        lengths.expand(lead).reshape(-1),
        potential,
    )
    return segments.masses(every.reshape(*shape[:-1], labels)).reshape(every.shape)


def _places(segments: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """The ends of segments, their lengths less one, and lengths of sequences, against (T, D, N)."""
    device, (steps, durations) = segments.device, segments.shape[-3:-1]
    lengths = torch.tensor(steps, device=device) if lengths is None else lengths
    place = torch.arange(steps, device=device).reshape(-1, 1, 1)
    reach = torch.arange(durations, device=device).reshape(-1, 1)
    return place, reach, lengths.to(device).reshape(*lengths.shape, 1, 1, 1)


def _means(
    potential: Potential, landmarks: int, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """(*each, N) means over labels before, and after; over all labels if that costs O(N r)."""
    labels = potential.shape[-1]
    if isinstance(potential, LowRank):
        left, right = potential.log_left, potential.log_right
        # The means of the factors, over the labels at the other end.
        onto, back = ((part.logsumexp(0) - math.log(labels)) for part in (left, right))
        return (onto + right).logsumexp(1), (back + left).logsumexp(1)
    device = potential.device
    where = device if generator is None else generator.device
    asked = torch.randint(labels, (landmarks,), generator=generator, device=where).to(device)
    every = torch.arange(labels, device=device)
    before, after = potential.evaluate([asked, every]), potential.evaluate([every, asked])
    return before.logsumexp(-2) - math.log(landmarks), after.logsumexp(-1) - math.log(landmarks)
