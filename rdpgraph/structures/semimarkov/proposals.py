"""Semi-Markov chains on some labels: likely ones of segments, masses given a few, and masks."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from rdpgraph._core import tuning
from rdpgraph._core.cache import cached_property
from rdpgraph.interface.masks import Draw, Expected
from rdpgraph.model.potentials.lowrank import LowRank
from rdpgraph.model.potentials.potential import Potential
from rdpgraph.model.potentials.table import Table
from rdpgraph.structures.chain.masks import LabelMasks
from rdpgraph.structures.chain.parts import flattened, table_of
from rdpgraph.structures.compact.bispans import each, matched
from rdpgraph.structures.compact.masked import RuleForest, RuleMasked
from rdpgraph.structures.semimarkov.scoring import over_positions


@dataclass(frozen=True, eq=False)
class LabelledSegments:
    """Segments of K labels each, one batch dim."""

    unary: Tensor  # (B, T, D, K) float64 log-potentials
    states: Tensor  # (B, T, D, K) the labels
    lengths: Tensor  # (B,)
    # The transition; a `Table` (1 or B, T - 1, N, N) if positions differ.
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


@dataclass(frozen=True, eq=False)
class SemiMarkovMasks(LabelMasks):
    """Questions whether a step lies in a segment of a label.

    A yes leaves the segments over the step that have the label, a no those that have another.
    """

    site_dims = 3

    @cached_property
    def unary(self) -> Tensor:
        """(B, T, D, N) the potentials, -inf for segments that leave the sequence."""
        return unary(self.potentials, self.ends)

    @cached_property
    def best(self) -> Tensor:
        """Return the best score per step (nats) of a segment over each step, (B, T, N).

        It is -inf where no segment with the label covers the step.
        """
        size = torch.arange(1, self.sites[1] + 1, device=self.unary.device).unsqueeze(1)
        return over_positions(self.unary / size, best=True).amax(2)

    def open(self) -> Tensor:
        """The labels of steps that have two or more."""
        asked = self.best > -math.inf
        asked &= asked.sum(-1, keepdim=True) > 1
        return asked.reshape(*self.batch_shape, *self.questions)

    def guess(self, likely: Tensor) -> Tensor:
        """The likely label of each step with the best segment over it."""
        values = self.best.reshape(likely.shape).masked_fill(~likely, -math.inf)
        labels = torch.arange(self.questions[1], device=values.device)
        return (labels == values.argmax(-1, keepdim=True)) & likely

    def masked(self, required: Tensor, forbidden: Tensor) -> "MaskedSemiMarkov":
        lead = tuple(required.shape[:-2])
        kept = self.left(self.best > -math.inf, required, forbidden)
        ends = self.ends.repeat(self.chains(lead))
        forest, places = self._forest(kept, ends)
        return MaskedSemiMarkov(lead, forest, ends == 0, self, places)

    def _forest(self, kept: Tensor, ends: Tensor) -> tuple[RuleForest, Tensor]:
        """Paths through the kept labels, and the segments of their edges.

        Every kept label of a step is two nodes, for segments that start and that end there.
        """
        (items, steps, _), (_, longest, labels) = kept.shape, self.sites
        step, item, label = kept.transpose(0, 1).nonzero().T
        total, device = len(step), kept.device
        rank = torch.arange(total, device=device)
        sizes = torch.bincount(step, minlength=steps)
        before = sizes.cumsum(0) - sizes
        starts = before[step] + rank
        stops = starts + sizes[step]
        number = torch.full(kept.shape, -1, device=device)
        number[item, step, label] = rank
        # Segments: as far back as the label is kept.
        place = torch.arange(steps, device=device).reshape(1, -1, 1)
        gap = torch.where(kept, -1, place).cummax(1).values if steps else place
        run = (place - gap).expand(kept.shape)[item, step, label].clamp(max=longest)
        last, age = each(run)
        item_, step_, label_ = item[last], step[last], label[last]
        weights = self.unary[item_ % max(len(self.unary), 1), step_, age, label_].double()
        some = (weights > -math.inf).nonzero().squeeze(1)
        last, age, weights = last[some], age[some], weights[some]
        first = number[item[last], step[last] - age, label[last]]
        site = ((item[last] * steps + step[last]) * longest + age) * labels + label[last]
        # Transitions from all kept labels of the step before.
        later = (step > 0).nonzero().squeeze(1)
        group = step * items + item
        target, source = matched(group[later] - items, group, among=items * steps)
        target = later[target]
        logs = self.values(
            item[target], step[source], label[source].unsqueeze(1), label[target].unsqueeze(1)
        ).reshape(-1)
        # Edges from no part, and to the sink.
        initial = (step == 0).nonzero().squeeze(1)
        final = (step == ends[item] - 1).nonzero().squeeze(1)
        every = torch.arange(items, device=device)
        sinks = every + 2 * total
        nodes = 2 * total + items
        after = torch.cat([stops[last], starts[target], starts[initial], sinks[item[final]]])
        after, order = after.sort(stable=True)
        nothing = torch.full_like(initial, nodes)
        parts = torch.cat([starts[first], stops[source], nothing, stops[final]])[order]
        others = len(initial) + len(final)
        logs = torch.cat([weights, logs, weights.new_zeros(others)])[order]
        places = pad(site, (0, len(target) + others), value=-1)[order]
        owner = torch.empty(nodes, dtype=torch.long, device=device)
        owner[starts], owner[stops], owner[sinks] = item, item, every
        return RuleForest(owner, after, parts.unsqueeze(0), logs, sinks), places


@dataclass(frozen=True, eq=False)
class MaskedSemiMarkov(RuleMasked):
    """A semi-Markov chain within a mask, as paths from the first step to the last."""

    masks: SemiMarkovMasks  # of the chain
    places: Tensor  # (E,) the segment of each edge; -1: none

    def averages(self, chances: Tensor, used: Tensor, score: Tensor) -> Expected:
        """The labels of steps, and segments."""
        seen = (used > 0) & (self.places >= 0)
        places, mass = self.places[seen], used[seen]
        return Expected(self._covered(places, mass).clamp_(0.0, 1.0), score, places, mass)

    def configuration(self, rules: Tensor) -> Draw:
        """The labels of steps, and segments."""
        places = self.places[rules]
        places = places[places >= 0]
        return Draw(self._covered(places, torch.ones_like(places)) > 0, places)

    def _covered(self, site: Tensor, weights: Tensor) -> Tensor:
        """(*lead, T, N) the summed weights of the segments over each step."""
        steps, longest, labels = self.masks.sites
        label, age = site % labels, site // labels % longest
        last, item = site // (labels * longest) % steps, site // (labels * longest * steps)
        ends = weights.new_zeros(len(self.empty), steps + 1, labels)
        ends.index_put_((item, last - age, label), weights, accumulate=True)
        ends.index_put_((item, last + 1, label), -weights, accumulate=True)
        return ends.cumsum(1)[:, :steps].reshape(*self.lead, *self.masks.questions)
