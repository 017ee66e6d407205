"""Chains within masks of the states of their steps."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rdpgraph._cache import cached_property
from rdpgraph.errors import ImpossibleEvidenceError
from rdpgraph.model.masks import NOTHING, Draw, Expected, Masked, StructureMasks
from rdpgraph.model.potential import Potential
from rdpgraph.model.structure import Structure
from rdpgraph.structures.chain.factors import inside
from rdpgraph.structures.chain.links import Transitions
from rdpgraph.structures.compact.runs import Runs


@dataclass(frozen=True, eq=False)
class ChainMasks(StructureMasks):
    """The question of a step and a state is whether the step is in it.

    A yes fixes the step, and parts the chain there; a no takes the state away.

    Args:
        model: the chain.
        transition: its own.
        lengths: its own.
    """

    model: Structure
    transition: Tensor | Potential
    lengths: Tensor | None

    site_dims = 2

    @property
    def questions(self) -> tuple[int, ...]:
        """(T, N): whether each step is in each state."""
        return self.sites

    @cached_property
    def inside(self) -> Tensor:
        """(B, T) bool: the steps within the length."""
        return inside(self.flat_lengths(self.lengths, self.sites[0]), self.sites[0])

    @cached_property
    def possible(self) -> Tensor:
        """(B, T, N) bool: the states of steps within the length that have a potential."""
        return (self.potentials > -math.inf) & self.inside.unsqueeze(2)

    def open(self) -> Tensor:
        """The possible states of steps that have two or more."""
        asked = self.possible & (self.possible.sum(-1, keepdim=True) > 1)
        return asked.reshape(*self.batch_shape, *self.sites)

    def guess(self, likely: Tensor) -> Tensor:
        """The likely state of largest potential, of each step."""
        values = self.model.unary.detach().masked_fill(~likely, -math.inf)
        states = torch.arange(self.sites[1], device=values.device)
        return (states == values.argmax(-1, keepdim=True)) & likely

    @cached_property
    def values(self) -> Transitions:
        """The log-values of transitions, which `Runs` looks up."""
        return Transitions(self.transition, self.batch_shape)

    def masked(self, required: Tensor, forbidden: Tensor) -> "MaskedChain":
        """The states that are left."""
        lead, (total, states) = tuple(required.shape[:-2]), self.sites
        items, chains = math.prod(lead), self.chains(lead)
        required = required.reshape(items, total, states)
        possible = self.possible.repeat(chains, 1, 1)
        inside = self.inside.repeat(chains, 1)
        kept = possible & ~forbidden.reshape(items, total, states)
        # A step is in one state: of two that are required none is left.
        held = required.sum(2, keepdim=True)
        kept &= (required & (held == 1)) | (held == 0)
        count = kept.sum(2)
        state = torch.where(inside & (count == 1), kept.long().argmax(2), -1)
        free = inside & (count != 1)
        return MaskedChain(self, lead, kept, state, self._runs(free, kept, count, state))

    def _runs(self, free: Tensor, kept: Tensor, count: Tensor, state: Tensor) -> Runs:
        edge = torch.nn.functional.pad(free, (1, 1))
        item, first = (edge[:, 1:-1] & ~edge[:, :-2]).nonzero().T
        last = (edge[:, 1:-1] & ~edge[:, 2:]).nonzero()[:, 1]
        length = last - first + 1
        start = length.cumsum(0) - length
        order = length.argsort(descending=True)
        rows = free.nonzero()
        own = kept[rows[:, 0], rows[:, 1]]
        most = max(int(count[free].max()), 1) if len(rows) else 1
        states = torch.zeros(len(rows), most, dtype=torch.long, device=free.device)
        row, number = own.nonzero().T
        size = own.sum(1)
        slot = torch.arange(len(row), device=row.device) - (size.cumsum(0) - size)[row]
        states[row, slot] = number
        logs = states.new_zeros(states.shape, dtype=torch.float64).fill_(-math.inf)
        item_of = rows[row, 0] % len(self.potentials)
        logs[row, slot] = self.potentials[item_of, rows[row, 1], number].double()
        wide = torch.nn.functional.pad(state, (1, 1), value=-1)
        before, after = wide[item, first].unsqueeze(1), wide[item, last + 2].unsqueeze(1)
        return Runs(
            item[order], first[order], length[order], start[order], states, logs,
            before[order], after[order], self.values,
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class MaskedChain(Masked):
    """A chain within a mask.

    Attributes:
        masks: of the chain.
        lead: chains and batch dims.
        kept: (I, T, N) bool: the states left.
        state: (I, T) that of a step that is fixed, else -1.
        runs: of the other steps.
    """

    masks: ChainMasks
    lead: tuple[int, ...]
    kept: Tensor
    state: Tensor
    runs: Runs

    @cached_property
    def fixed(self) -> Tensor:
        """(I,) the log-potentials of what is fixed."""
        items = len(self.state)
        unary = self.masks.potentials
        item, step = (self.state >= 0).nonzero().T
        score = unary.new_zeros(items, dtype=torch.float64)
        own = unary[item % max(len(unary), 1), step, self.state[item, step]].double()
        score.index_add_(0, item, own)
        item, step = ((self.state[:, :-1] >= 0) & (self.state[:, 1:] >= 0)).nonzero().T
        if len(item):
            ends = self.state[item, step].unsqueeze(1), self.state[item, step + 1].unsqueeze(1)
            score.index_add_(0, item, self.masks.values(item, step, *ends).reshape(-1))
        return score

    @property
    def log_partition(self) -> Tensor:
        """(*lead,) log Z of what the mask allows, nats."""
        log_z = self.fixed.index_add(0, self.runs.item, self.runs.log_partition)
        return log_z.reshape(self.lead)

    @property
    def work(self) -> int:
        """States and pairs of states."""
        most = self.runs.states.shape[1]
        steps = sum(self.runs.alive)
        pairs = (steps - len(self.runs.item)) * most**2
        return int((self.state >= 0).sum()) + steps * most + pairs

    def expected(self) -> Expected:
        """Run by run."""
        chances, scores = self.runs.expected()
        score = self.fixed.index_add(0, self.runs.item, scores)
        answers = self.kept.new_zeros(self.kept.shape, dtype=torch.float64)
        item, step = (self.state >= 0).nonzero().T
        answers[item, step, self.state[item, step]] = 1.0
        item, step = self._free
        answers.index_put_(
            (item.unsqueeze(1), step.unsqueeze(1), self.runs.states), chances, accumulate=True
        )
        places = answers.flatten().nonzero().squeeze(1)
        shape = (*self.lead, *self.masks.questions)
        return Expected(
            answers.reshape(shape), score.reshape(self.lead), places, answers.flatten()[places]
        )

    def draw(self, generator: torch.Generator | None) -> Draw:
        """Run by run, from the last step."""
        if not bool((self.log_partition > -math.inf).all()):
            raise ImpossibleEvidenceError(NOTHING)
        chosen = self.runs.states.gather(1, self.runs.draw(generator).unsqueeze(1)).squeeze(1)
        state = self.state.clone()
        state[self._free] = chosen
        item, step = (state >= 0).nonzero().T
        answers = torch.zeros_like(self.kept)
        answers[item, step, state[item, step]] = True
        shape = (*self.lead, *self.masks.questions)
        return Draw(answers.reshape(shape), answers.flatten().nonzero().squeeze(1))

    @cached_property
    def _free(self) -> tuple[Tensor, Tensor]:
        item, step = ((self.state < 0) & self._inside).nonzero().T
        return item, step

    @property
    def _inside(self) -> Tensor:
        own = self.masks.inside
        return own.repeat(len(self.state) // max(len(own), 1), 1)
