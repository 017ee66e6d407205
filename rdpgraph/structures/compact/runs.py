"""Steps that a mask leaves some choice, between steps that it fixes: the runs of a chain.

What is fixed parts a chain: each run of free steps is summed by itself, given the fixed ones at its
ends, and all runs at once, place by place, on the states that are left.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from rdpgraph._cache import cached_property
from rdpgraph.structures.compact.inside import LOWEST
from rdpgraph.structures.compact.matching import each
from rdpgraph.structures.draws import column

Values = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""Of steps (n,), as item and number, and states (n, A) of them and (n, B) of the next: (n, A, B)
log-values of the transitions."""


@dataclass(frozen=True, eq=False)
class Runs:
    """The free steps of some chains, run by run, the longest runs first.

    Attributes:
        item: (R,) of each run.
        first: (R,) its first step.
        length: (R,) how many steps it has, falling.
        start: (R,) where they begin among all free steps.
        states: (F, K) the states left of each free step, padded.
        unary: (F, K) their log-potentials, -inf for padding.
        before: (R, 1) the state of the step before, -1 if there is none.
        after: (R, 1) and of the step after.
        values: of transitions.
    """

    item: Tensor
    first: Tensor
    length: Tensor
    start: Tensor
    states: Tensor
    unary: Tensor
    before: Tensor
    after: Tensor
    values: Values

    @cached_property
    def alive(self) -> list[int]:
        """How many runs have each place."""
        if not len(self.length):
            return []
        counts = torch.bincount(self.length)
        return (len(self.length) - counts.cumsum(0))[:-1].tolist()

    @cached_property
    def sums(self) -> tuple[Tensor, list[Tensor]]:
        """(F, K) log-sums up to each state, and for each place the transitions into it."""
        sums, steps = self.unary.clone(), list[Tensor]()
        for place, many in enumerate(self.alive):
            at = self.start[:many] + place
            if place == 0:
                into = self._beside(self.first - 1, self.before, self.states[at], ahead=False)
                sums[at] += into
                steps.append(into)
                continue
            item, step = self.item[:many], self.first[:many] + place - 1
            values = self.values(item, step, self.states[at - 1], self.states[at])
            steps.append(values)
            sums[at] += (sums[at - 1].unsqueeze(2) + values).logsumexp(1)
        return sums, steps

    @cached_property
    def ends(self) -> tuple[Tensor, Tensor]:
        """(R, K) log-sums of whole runs by their last state; the transitions out of them."""
        at = self.start + self.length - 1
        out = self._beside(self.first + self.length - 1, self.after, self.states[at], ahead=True)
        return self.sums[0][at] + out, out

    @property
    def log_partition(self) -> Tensor:
        """(R,) of each run."""
        return self.ends[0].logsumexp(1)

    def expected(self) -> tuple[Tensor, Tensor]:
        """(F, K) marginals, and (R,) the expected scores."""
        (sums, steps), (whole, out) = self.sums, self.ends
        chances = torch.zeros_like(sums)
        last = whole.softmax(1)
        chances[self.start + self.length - 1] = last
        score = _times(last, out).sum(1)
        for place in range(len(self.alive) - 1, 0, -1):
            many = self.alive[place]
            at = self.start[:many] + place
            pairs = self._back(place, many) * chances[at].unsqueeze(1)
            chances[at - 1] += pairs.sum(2)
            score[:many] += _times(pairs, steps[place]).sum((1, 2))
        score += _times(chances[self.start], steps[0]).sum(1) if len(score) else 0.0
        run = torch.repeat_interleave(torch.arange(len(score), device=score.device), self.length)
        order = torch.empty_like(run)
        order[self.steps] = run
        score.index_add_(0, order, _times(chances, self.unary).sum(1))
        return chances, score

    @cached_property
    def steps(self) -> Tensor:
        """(F,) the free steps, run by run."""
        run, within = each(self.length)
        return self.start[run] + within

    def draw(self, generator: torch.Generator | None) -> Tensor:
        """(F,) which of the states left each free step is in."""
        (sums, _), (whole, _) = self.sums, self.ends
        chosen = torch.zeros(len(sums), dtype=torch.long, device=sums.device)
        chosen[self.start + self.length - 1] = column(whole.softmax(1), generator)
        for place in range(len(self.alive) - 1, 0, -1):
            many = self.alive[place]
            at = self.start[:many] + place
            back = self._back(place, many).gather(
                2, chosen[at].reshape(-1, 1, 1).expand(-1, sums.shape[1], 1)
            )
            chosen[at - 1] = column(back.squeeze(2), generator)
        return chosen

    def _back(self, place: int, many: int) -> Tensor:
        """(n, K, K) the chances of the states before, given each state at a place."""
        sums, steps = self.sums
        at = self.start[:many] + place
        into = sums[at - 1].unsqueeze(2) + steps[place]
        return (into - into.logsumexp(1, keepdim=True).clamp(min=LOWEST)).exp()

    def _beside(self, step: Tensor, state: Tensor, own: Tensor, *, ahead: bool) -> Tensor:
        """(R, K) the transitions between the ends of runs and the fixed steps beside them."""
        there = (state >= 0).nonzero()[:, 0]
        result = self.unary.new_zeros(own.shape)
        item, step, fixed = self.item[there], step[there], state[there]
        if ahead:
            result[there] = self.values(item, step, own[there], fixed).squeeze(2)
        else:
            result[there] = self.values(item, step, fixed, own[there]).squeeze(1)
        return result


def _times(chances: Tensor, logs: Tensor) -> Tensor:
    return torch.where(chances > 0, chances * logs, 0.0)
