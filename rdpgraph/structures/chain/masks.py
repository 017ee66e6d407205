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
from rdpgraph.recurrences.bound import Bound, SumPass
from rdpgraph.recurrences.declaration import Input, Lengths, program_of
from rdpgraph.structures.chain.parts import flattened, inside, table_of
from rdpgraph.structures.compact.bispans import each
from rdpgraph.structures.compact.masked import ByItem, weighted

Values = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""Transitions (n, A, B) of steps (n,), by item and number, given states (n, A) and next (n, B)."""


_DECLARED = (("unary", Input("T K")), ("links", Input("T-1 K K")), ("lengths", Lengths("T")))
_RULES = """
    a[0, k] += unary[0, k]
    a[t, k] += a[t-1, j] * links[t-1, j, k] * unary[t, k]
    goal    += a[lengths-1, k]
"""


@dataclass(frozen=True, eq=False)
class FreeSteps:
    """The free steps of some chains, item by item, and in order.

    Those of an item are a chain: where a fixed step is between two, all links are 1, so that the
    sums of both sides multiply.
    """

    item: Tensor  # (F,) of each step
    step: Tensor  # (F,) its number
    states: Tensor  # (F, K) the states left of each step, padded
    # (F, K) their log-potentials, transitions from and to fixed steps included; -inf for padding.
    unary: Tensor
    values: Values  # of transitions

    @cached_property
    def linked(self) -> Tensor:
        """(L,) the steps whose step before is free, too."""
        near = (self.item[1:] == self.item[:-1]) & (self.step[1:] == self.step[:-1] + 1)
        return near.nonzero().squeeze(1) + 1

    @cached_property
    def chains(self) -> tuple[Tensor, ByItem]:
        """The items that have free steps, and the rows of their steps."""
        items, number = self.item.unique(return_inverse=True)
        return items, ByItem.of(number, len(items))

    @cached_property
    def links(self) -> Tensor:
        """(items, most - 1, K, K) transitions into all steps but the first; 0 where none is."""
        (items, most), width = self.chains[1].shape, self.states.shape[1]
        logs, at = self.unary.new_zeros(items * (most - 1), width, width), self.linked
        row = self.chains[1].item[at] * (most - 1) + self.chains[1].place[at] - 1
        ends = self.states[at - 1], self.states[at]
        logs[row] = self.values(self.item[at - 1], self.step[at - 1], *ends)
        return logs.view(items, most - 1, width, width)

    @cached_property
    def sums(self) -> SumPass:
        """The log-sums of the chains."""
        items, chains = self.chains
        given = {
            "unary": chains.rows(self.unary, -math.inf),
            "links": self.links,
            "lengths": torch.bincount(chains.item, minlength=len(items)),
        }
        program = program_of("FreeSteps", _DECLARED, _RULES)
        return Bound.settled(program, given).sums()

    def expected(self) -> tuple[Tensor, Tensor]:
        """(F, K) marginals, and (F,) the expected scores of steps and transitions into them."""
        chances, links = self.sums.expected_uses(["unary", "links"])
        chances = self.chains[1].entries(chances)
        into = pad(weighted(links, self.links).sum((2, 3)), (1, 0))
        return chances, weighted(chances, self.unary).sum(1) + self.chains[1].entries(into)

    def draw(self, generator: torch.Generator | None) -> Tensor:
        """(F,) the index, among the states left, of a draw of each step."""
        (item, place, index), _ = self.sums.entries_of("unary", 1, generator)
        chosen = torch.zeros_like(self.item)
        chosen[self.chains[1].numbers[item, place]] = index
        return chosen


@dataclass(frozen=True, eq=False)
class LabelMasks(StructureMasks):
    """Questions about the labels of the steps of a sequence."""

    model: Structure
    transition: Tensor | Potential  # (N, N), (*batch, T - 1, N, N), or a potential of such a shape
    lengths: Tensor | None

    @property
    def questions(self) -> tuple[int, ...]:
        return self.sites[0], self.sites[-1]

    @cached_property
    def ends(self) -> Tensor:
        """(B,) the lengths."""
        return self.flat_lengths(self.lengths, self.sites[0])

    @cached_property
    def table(self) -> Potential | Tensor:
        """A potential shared by all steps, or (1 or B, T - 1, N, N) log-values."""
        given = self.transition
        if isinstance(given, Potential) and len(given.shape) == 2:
            return given
        table = table_of(given).detach()
        return Table.from_logs(table) if table.ndim == 2 else flattened(table, self.batch_shape)

    def values(self, item: Tensor, step: Tensor, before: Tensor, after: Tensor) -> Tensor:
        """(n, A, B) log-values in doubles from states (n, A) at steps (n,) of items to the next."""
        table = self.table
        if isinstance(table, Potential):
            return table.evaluate([before, after]).double()
        item = item % len(table)
        pair = before.unsqueeze(2), after.unsqueeze(1)
        return table[item[:, None, None], step[:, None, None], *pair].double()

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
        return MaskedChain(self, lead, state, self._free(inside & (count != 1), kept, state))

    def _free(self, free: Tensor, kept: Tensor, state: Tensor) -> FreeSteps:
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
        # Transitions between free steps and adjacent fixed ones.
        for row, ahead in ((start, 0), (stop, 1)):
            fixed = pad(state, (1, 1), value=-1)[item[row], step[row] + 2 * ahead]
            there = (fixed >= 0).nonzero().squeeze(1)
            row, fixed = row[there], fixed[there].unsqueeze(1)
            ends = (states[row], fixed) if ahead else (fixed, states[row])
            logs[row] += self.values(item[row], step[row] - 1 + ahead, *ends).flatten(1)
        return FreeSteps(item, step, states, logs, self.values)


@dataclass(frozen=True, eq=False)
class MaskedChain(Masked):
    """A chain within a mask."""

    masks: ChainMasks  # of the chain
    lead: tuple[int, ...]  # chains and batch dims
    state: Tensor  # (I, T) the state of a fixed step, else -1
    free: FreeSteps  # the other steps

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
        total = self.fixed
        if len(self.free.item):
            total = total.index_add(0, self.free.chains[0], self.free.sums.log_partition)
        return total.reshape(self.lead)

    @property
    def work(self) -> int:
        steps, most = self.free.states.shape
        return len(self.held[0]) + steps * most + len(self.free.linked) * most**2

    def expected(self) -> Expected:
        free, score = self.free, self.fixed
        answers = score.new_zeros(*self.state.shape, self.masks.sites[1])
        answers[self.held] = 1.0
        if len(free.item):
            chances, scores = free.expected()
            at = free.item.unsqueeze(1), free.step.unsqueeze(1), free.states
            answers.index_put_(at, chances, accumulate=True)
            score = score.index_add(0, free.item, scores)
        places, score = answers.flatten().nonzero().squeeze(1), score.reshape(self.lead)
        shape = (*self.lead, *self.masks.questions)
        return Expected(answers.reshape(shape), score, places, answers.flatten()[places])

    def draw(self, generator: torch.Generator | None) -> Draw:
        require_possible(NOTHING, self.log_partition > -math.inf)
        free = self.free
        answers = torch.zeros(
            *self.state.shape, self.masks.sites[1], dtype=torch.bool, device=self.state.device
        )
        answers[self.held] = True
        if len(free.item):
            chosen = free.states.gather(1, free.draw(generator).unsqueeze(1)).squeeze(1)
            answers[free.item, free.step, chosen] = True
        shape = (*self.lead, *self.masks.questions)
        return Draw(answers.reshape(shape), answers.flatten().nonzero().squeeze(1))
