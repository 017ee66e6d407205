"""Steps that a mask leaves some choice, between steps that it fixes: the runs of a chain.

What is fixed parts a chain: each run of free steps is summed by itself, given the fixed ones at its
ends, and all runs at once, place by place, on the states that are left.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from rdpgraph._core.cache import cached_property
from rdpgraph.structures.compact.inside import LOWEST, weighted
from rdpgraph.structures.draws import column

Values = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""Of steps (n,), as item and number, and states (n, A) of them and (n, B) of the next: (n, A, B)
log-values of the transitions."""


@dataclass(frozen=True, eq=False)
class Runs:
    """The free steps of some chains, item by item, and the runs of them, the longest first.

    Attributes:
        item: (F,) of each free step.
        step: (F,) its number.
        start: (R,) where each run begins among the free steps.
        length: (R,) how many steps it has, falling.
        states: (F, K) the states left of each free step, padded.
        unary: (F, K) their log-potentials, transitions from and to fixed steps included; -inf for
            padding.
        values: of transitions.
    """

    item: Tensor
    step: Tensor
    start: Tensor
    length: Tensor
    states: Tensor
    unary: Tensor
    values: Values

    @cached_property
    def places(self) -> list[Tensor]:
        """For each place of a run but the first, which free steps stand there."""
        counts = torch.bincount(self.length) if len(self.length) else self.length
        alive = (len(self.length) - counts.cumsum(0))[1:-1].tolist()
        return [self.start[:many] + place for place, many in enumerate(alive, 1)]

    @cached_property
    def sums(self) -> tuple[Tensor, list[Tensor]]:
        """(F, K) log-sums up to each state, and for each place the transitions into it."""
        sums, steps = self.unary.clone(), list[Tensor]()
        for at in self.places:
            before = at - 1
            ends = self.states[before], self.states[at]
            steps.append(self.values(self.item[before], self.step[before], *ends))
            sums[at] += (sums[before].unsqueeze(2) + steps[-1]).logsumexp(1)
        return sums, steps

    @cached_property
    def ends(self) -> tuple[Tensor, Tensor]:
        """(R,) the last step of each run, and (R, K) the log-sums of the whole by its state."""
        last = self.start + self.length - 1
        return last, self.sums[0][last]

    @property
    def log_partition(self) -> Tensor:
        """(R,) of each run."""
        return self.ends[1].logsumexp(1)

    def expected(self) -> tuple[Tensor, Tensor]:
        """(F, K) marginals, and (F,) the expected scores of steps and transitions into them."""
        last, whole = self.ends
        chances = torch.zeros_like(self.unary)
        chances[last] = whole.softmax(1)
        score = chances.new_zeros(len(chances))
        for at, values in zip(self.places[::-1], self.sums[1][::-1], strict=True):
            pairs = self._back(at, values) * chances[at].unsqueeze(1)
            chances[at - 1] += pairs.sum(2)
            score[at] = weighted(pairs, values).sum((1, 2))
        return chances, score + weighted(chances, self.unary).sum(1)

    def draw(self, generator: torch.Generator | None) -> Tensor:
        """(F,) which of the states left each free step is in."""
        last, whole = self.ends
        chosen = torch.zeros_like(self.item)
        chosen[last] = column(whole.softmax(1), generator)
        for at, values in zip(self.places[::-1], self.sums[1][::-1], strict=True):
            into = chosen[at].reshape(-1, 1, 1).expand(-1, self.states.shape[1], 1)
            chosen[at - 1] = column(self._back(at, values).gather(2, into).squeeze(2), generator)
        return chosen

    def _back(self, at: Tensor, values: Tensor) -> Tensor:
        """(n, K, K) the chances of the states before, given each state of some steps."""
        into = self.sums[0][at - 1].unsqueeze(2) + values
        return (into - into.logsumexp(1, keepdim=True).clamp(min=LOWEST)).exp()
