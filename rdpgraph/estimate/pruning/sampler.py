"""Sweeps of auxiliary-variable block Gibbs sampling over masks."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rdpgraph.errors import ImpossibleEvidenceError
from rdpgraph.estimate.pruning.selected import Selected
from rdpgraph.model.masks import Draw, Expected, Masks
from rdpgraph.structures.draws import uniform


@dataclass(frozen=True, eq=False)
class State:
    """Where the chains are.

    Attributes:
        draw: their configurations, and the answers of those.
        selected: (chains, *batch, *questions) what the last sweep held.
    """

    draw: Draw
    selected: Tensor


@dataclass(frozen=True, eq=False)
class Sweep:
    """What a sweep gave: the averages within its mask, before its draw."""

    state: State
    expected: Expected
    work: int


@dataclass(frozen=True, eq=False)
class Sampler:
    """The chain of masks, draws and selections, for several chains of every item at once.

    Args:
        masks: of the model.
        likely: (*batch, *questions) the questions to select from.
        selected: the policy of selections.
        chains: how many, independent of one another.
    """

    masks: Masks
    likely: Tensor
    selected: Selected
    chains: int

    def first(self, generator: torch.Generator | None) -> State:
        """A configuration to begin with.

        Drawn with a random two thirds of the likely questions that the potentials speak most for
        held to a yes, or with others and fewer of them, and so on, until that allows something:
        the chain may begin anywhere.

        Raises:
            ImpossibleEvidenceError: the model allows nothing.
        """
        masks, likely = self.masks, self.likely
        guess = masks.guess(likely).expand(self.chains, *likely.shape)
        none, share = torch.zeros_like(guess), 2 / 3
        required = _part(guess, share, generator)
        while True:
            masked = masks.masked(required, none)
            lost = masked.log_partition == -torch.inf
            if not bool(lost.any()):
                break
            if not bool(required[lost].any()):
                raise ImpossibleEvidenceError(
                    "Randomized pruning has nothing to sample: at least one item has no possible "
                    "configuration."
                )
            share = 0.7 * share if share > 0.02 else 0.0
            # Of those that are lost, others, and fewer.
            held = _part(guess, share, generator)
            required = torch.where(_beside(lost, required), held, required)
        selection = self.selected.first(self._flat(likely.expand_as(guess)), generator)
        return State(masked.draw(generator), selection.reshape(guess.shape))

    def step(self, state: State, generator: torch.Generator | None) -> Sweep:
        """One sweep: a selection, its mask, the averages within that, and a draw from it."""
        likely = self._flat(self.likely.expand_as(state.selected))
        selection = self.selected.after(self._flat(state.selected), likely, generator)
        selection = selection.reshape(state.selected.shape)
        return self.within(selection, state.draw, generator)

    def within(self, selection: Tensor, draw: Draw, generator: torch.Generator | None) -> Sweep:
        """A sweep with a given selection: the kernel k_s of the paper."""
        masked = self.masks.masked(selection & draw.answers, selection & ~draw.answers)
        expected = masked.expected()
        return Sweep(State(masked.draw(generator), selection), expected, masked.work)

    def _flat(self, values: Tensor) -> Tensor:
        batch = math.prod(self.masks.batch_shape)
        return values.reshape(self.chains, batch, self.masks.questions_count)


def _part(flags: Tensor, share: float, generator: torch.Generator | None) -> Tensor:
    """A random share of what is flagged."""
    return flags & (uniform(flags.shape, flags.device, generator) < share)


def _beside(flags: Tensor, other: Tensor) -> Tensor:
    return flags.reshape(*flags.shape, *(1,) * (other.ndim - flags.ndim))
