"""Chains within masks of the states of their steps."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from rdpgraph._core.cache import cached_property
from rdpgraph.interface.masks import NOTHING, Draw, Expected, Masked, StructureMasks
from rdpgraph.interface.structure import Structure
from rdpgraph.model.potentials.potential import Potential
from rdpgraph.model.potentials.table import Table
from rdpgraph.model.soundness import require_possible
from rdpgraph.structures.chain.factors import inside
from rdpgraph.structures.chain.steps import flattened, table_of
from rdpgraph.structures.compact.bispans import each
from rdpgraph.structures.compact.masked import LOWEST, weighted
from rdpgraph.structures.draws import column

Values = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""Transitions (n, A, B) of steps (n,), by item and number, given states (n, A) and next (n, B)."""


@dataclass(frozen=True, eq=False)
class Runs:
    """The free steps of some chains, item by item, and their runs, the longest first."""

    item: Tensor  # (F,) of each free step
    step: Tensor  # (F,) its number
    start: Tensor  # (R,) the first free step of each run
    length: Tensor  # (R,) its number of steps, descending
    states: Tensor  # (F, K) the states left of each free step, padded
    # (F, K) their log-potentials, transitions from and to fixed steps included; -inf for padding.
    unary: Tensor
    values: Values  # of transitions

    @cached_property
    def places(self) -> list[Tensor]:
        """The free steps at each place of a run but the first."""
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
        """(R,) the last step of each run, and (R, K) the log-sums of the run by its last state."""
        last = self.start + self.length - 1
        return last, self.sums[0][last]

    @property
    def log_partition(self) -> Tensor:
        """(R,) log-sums of the runs."""
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
        """(F,) the index, among the states left, of a draw of each free step."""
        last, whole = self.ends
        chosen = torch.zeros_like(self.item)
        chosen[last] = column(whole.softmax(1), generator)
        for at, values in zip(self.places[::-1], self.sums[1][::-1], strict=True):
            into = chosen[at].reshape(-1, 1, 1).expand(-1, self.states.shape[1], 1)
            chosen[at - 1] = column(self._back(at, values).gather(2, into).squeeze(2), generator)
        return chosen

    def _back(self, at: Tensor, values: Tensor) -> Tensor:
        """(n, K, K) probabilities of the states before, given each state of some steps."""
        into = self.sums[0][at - 1].unsqueeze(2) + values
        return (into - into.logsumexp(1, keepdim=True).clamp(min=LOWEST)).exp()


@dataclass(frozen=True, eq=False)
class Transitions:
    """Log-values of the transitions of a chain, looked up in doubles, without gradients."""

    given: Tensor | Potential  # (N, N), (*batch, T - 1, N, N), or a potential of such a shape
    batch_shape: tuple[int, ...]  # of the chain

    @cached_property
    def table(self) -> Potential | Tensor:
        """A potential shared by all steps, or (1 or B, T - 1, N, N) log-values."""
        given = self.given
        if isinstance(given, Potential) and len(given.shape) == 2:
            return given
        table = table_of(given).detach()
        return Table.from_logs(table) if table.ndim == 2 else flattened(table, self.batch_shape)

    def __call__(self, item: Tensor, step: Tensor, before: Tensor, after: Tensor) -> Tensor:
        """(n, A, B) of states (n, A) at steps (n,) of items, and states (n, B) at the next."""
        table = self.table
        if isinstance(table, Potential):
            return table.evaluate([before, after]).double()
        item = item % len(table)
        pair = before.unsqueeze(2), after.unsqueeze(1)
        return table[item[:, None, None], step[:, None, None], *pair].double()


@dataclass(frozen=True, eq=False)
class LabelMasks(StructureMasks):
    """Questions about the labels of the steps of a sequence."""

    model: Structure
    transition: Tensor | Potential
    lengths: Tensor | None

    @property
    def questions(self) -> tuple[int, ...]:
        return self.sites[0], self.sites[-1]

    @cached_property
    def ends(self) -> Tensor:
        """(B,) the lengths."""
        return self.flat_lengths(self.lengths, self.sites[0])

    @cached_property
    def values(self) -> Transitions:
        """The log-values of transitions."""
        return Transitions(self.transition, self.batch_shape)

    def left(self, possible: Tensor, required: Tensor, forbidden: Tensor) -> Tensor:
        """(I, T, N) bool: the labels that a mask leaves of the possible ones, (B, T, N)."""
        lead = tuple(required.shape[:-2])
        shape = math.prod(lead), *self.questions
        required = required.reshape(shape)
        # A step has one label: two required ones leave none.
        held = required.sum(2, keepdim=True)
        kept = possible.repeat(self.chains(lead), 1, 1) & ~forbidden.reshape(shape)
        return kept & ((required & (held == 1)) | (held == 0))


@dataclass(frozen=True, eq=False)
class ChainMasks(LabelMasks):
    """Questions whether a step is in a state.

    A yes fixes the step, and splits the chain there; a no removes the state.
    """

    site_dims = 2

    @cached_property
    def inside(self) -> Tensor:
        """(B, T) bool: the steps within the length."""
        return inside(self.ends, self.sites[0])

    @cached_property
    def possible(self) -> Tensor:
        """(B, T, N) bool: the states of steps within the length that have a potential."""
        return (self.potentials > -math.inf) & self.inside.unsqueeze(2)

    def open(self) -> Tensor:
        """The possible states of steps that have two or more."""
        asked = self.possible & (self.possible.sum(-1, keepdim=True) > 1)
        return asked.reshape(*self.batch_shape, *self.sites)

    def guess(self, likely: Tensor) -> Tensor:
        """The likely state of largest potential, for each step."""
        values = self.model.unary.detach().masked_fill(~likely, -math.inf)
        states = torch.arange(self.sites[1], device=values.device)
        return (states == values.argmax(-1, keepdim=True)) & likely

    def masked(self, required: Tensor, forbidden: Tensor) -> "MaskedChain":
        lead, kept = tuple(required.shape[:-2]), self.left(self.possible, required, forbidden)
        inside, count = self.inside.repeat(self.chains(lead), 1), kept.sum(2)
        state = torch.where(inside & (count == 1), kept.long().argmax(2), -1)
        return MaskedChain(self, lead, state, self._runs(inside & (count != 1), kept, state))

    def _runs(self, free: Tensor, kept: Tensor, state: Tensor) -> Runs:
        item, step = free.nonzero().T
        size = (allowed := kept[item, step]).sum(1)
        (row, slot), label = each(size), allowed.nonzero()[:, 1]
        most = max(int(size.max()), 1) if len(size) else 1
        states = label.new_zeros(len(size), most).index_put_((row, slot), label)
        logs = states.new_full(states.shape, -math.inf, dtype=torch.float64)
        item_of = item[row] % max(len(self.potentials), 1)
        logs[row, slot] = self.potentials[item_of, step[row], label].double()
        edge = pad(free, (1, 1))
        start = (~edge[item, step]).nonzero().squeeze(1)
        stop = (~edge[item, step + 2]).nonzero().squeeze(1)
        # Transitions between the ends of runs and adjacent fixed steps.
        for row, ahead in ((start, 0), (stop, 1)):
            fixed = pad(state, (1, 1), value=-1)[item[row], step[row] + 2 * ahead]
            there = (fixed >= 0).nonzero().squeeze(1)
            row, fixed = row[there], fixed[there].unsqueeze(1)
            ends = (states[row], fixed) if ahead else (fixed, states[row])
            logs[row] += self.values(item[row], step[row] - 1 + ahead, *ends).flatten(1)
        length, order = (stop - start + 1).sort(descending=True)
        return Runs(item, step, start[order], length, states, logs, self.values)


@dataclass(frozen=True, eq=False)
class MaskedChain(Masked):
    """A chain within a mask."""

    masks: ChainMasks  # of the chain
    lead: tuple[int, ...]  # chains and batch dims
    state: Tensor  # (I, T) the state of a fixed step, else -1
    runs: Runs  # of the other steps

    @cached_property
    def held(self) -> tuple[Tensor, Tensor, Tensor]:
        """(n,) the items, the numbers and the states of the fixed steps."""
        item, step = (self.state >= 0).nonzero().T
        return item, step, self.state[item, step]

    @cached_property
    def fixed(self) -> Tensor:
        """(I,) the log-potentials of fixed steps and the transitions between them."""
        unary, (item, step, state) = self.masks.potentials, self.held
        score = unary.new_zeros(len(self.state), dtype=torch.float64)
        score.index_add_(0, item, unary[item % max(len(unary), 1), step, state].double())
        item, step = ((self.state[:, :-1] >= 0) & (self.state[:, 1:] >= 0)).nonzero().T
        if len(item):
            ends = self.state[item, step].unsqueeze(1), self.state[item, step + 1].unsqueeze(1)
            score.index_add_(0, item, self.masks.values(item, step, *ends).reshape(-1))
        return score

    @property
    def log_partition(self) -> Tensor:
        item = self.runs.item[self.runs.start]
        return self.fixed.index_add(0, item, self.runs.log_partition).reshape(self.lead)

    @property
    def work(self) -> int:
        steps, most = self.runs.states.shape
        return len(self.held[0]) + steps * most + (steps - len(self.runs.start)) * most**2

    def expected(self) -> Expected:
        runs, (chances, scores) = self.runs, self.runs.expected()
        answers = chances.new_zeros(*self.state.shape, self.masks.sites[1])
        answers[self.held] = 1.0
        at = runs.item.unsqueeze(1), runs.step.unsqueeze(1), runs.states
        answers.index_put_(at, chances, accumulate=True)
        places = answers.flatten().nonzero().squeeze(1)
        score = self.fixed.index_add(0, runs.item, scores).reshape(self.lead)
        shape = (*self.lead, *self.masks.questions)
        return Expected(answers.reshape(shape), score, places, answers.flatten()[places])

    def draw(self, generator: torch.Generator | None) -> Draw:
        require_possible(NOTHING, self.log_partition > -math.inf)
        runs = self.runs
        chosen = runs.states.gather(1, runs.draw(generator).unsqueeze(1)).squeeze(1)
        answers = torch.zeros(
            *self.state.shape, self.masks.sites[1], dtype=torch.bool, device=chosen.device
        )
        answers[self.held] = answers[runs.item, runs.step, chosen] = True
        shape = (*self.lead, *self.masks.questions)
        return Draw(answers.reshape(shape), answers.flatten().nonzero().squeeze(1))
