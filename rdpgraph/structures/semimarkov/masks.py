"""Semi-Markov chains within masks of the labels of their steps."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from rdpgraph._core.cache import cached_property
from rdpgraph.interface.masks import Draw, Expected
from rdpgraph.structures.chain.masks import LabelMasks
from rdpgraph.structures.compact.bispans import each, matched
from rdpgraph.structures.compact.masked import RuleForest, RuleMasked


@dataclass(frozen=True, eq=False)
class SemiMarkovMasks(LabelMasks):
    """Questions whether a step lies in a segment of a label.

    A yes leaves the segments over the step that have the label, a no those that have another.
    """

    site_dims = 3

    @cached_property
    def unary(self) -> Tensor:
        """(B, T, D, N) the potentials, -inf for segments that leave the sequence."""
        steps, longest, _ = self.sites
        unary = self.potentials
        place = torch.arange(steps, device=unary.device)
        real = torch.arange(longest, device=unary.device) <= place.unsqueeze(1)
        inside = place < self.ends.unsqueeze(1)
        return unary.masked_fill(~(real & inside.unsqueeze(2)).unsqueeze(3), -math.inf)

    @cached_property
    def best(self) -> Tensor:
        """(B, T, N) the largest potential per step of a segment over each step; -inf: none."""
        steps, longest, _ = self.sites
        size = torch.arange(1, longest + 1, device=self.unary.device).unsqueeze(1)
        best = self.unary.new_full((len(self.unary), *self.questions), -math.inf)
        if not best.numel() or not longest:
            return best
        longer = (self.unary / size).flip(2).cummax(2).values.flip(2)
        for later in range(min(longest, steps)):
            part = longer[:, later:, later]
            best[:, : steps - later] = torch.maximum(best[:, : steps - later], part)
        return best

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
        forest, owner, places = self._forest(kept, ends)
        return MaskedSemiMarkov(lead, forest, owner, ends == 0, self, places)

    def _forest(self, kept: Tensor, ends: Tensor) -> tuple[RuleForest, Tensor, Tensor]:
        """Paths through the kept labels, the items of their nodes, and the segments of their edges.

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
        bounds = (2 * before.repeat_interleave(2)).tolist()
        bounds[1::2] = [a + b for a, b in zip(bounds[1::2], sizes.tolist(), strict=True)]
        rows = (*bounds, 2 * total, 2 * total + items)
        after = torch.cat([stops[last], starts[target], starts[initial], sinks[item[final]]])
        after, order = after.sort(stable=True)
        nothing = torch.full_like(initial, rows[-1])
        parts = torch.cat([starts[first], stops[source], nothing, stops[final]])[order]
        others = len(initial) + len(final)
        logs = torch.cat([weights, logs, weights.new_zeros(others)])[order]
        places = pad(site, (0, len(target) + others), value=-1)[order]
        owner = torch.empty(rows[-1], dtype=torch.long, device=device)
        owner[starts], owner[stops], owner[sinks] = item, item, every
        return RuleForest(rows, after, parts.unsqueeze(0), logs, sinks), owner, places


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
