"""Sweeps of auxiliary-variable block Gibbs sampling over masks, and the selection chain."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rdpgraph._core import effort, tuning
from rdpgraph._core.arguments import require_fields
from rdpgraph.errors import ImpossibleEvidenceError, ModelError
from rdpgraph.interface.masks import Draw, Expected, Masks
from rdpgraph.structures.draws import uniform


class Selected(ABC):
    """A policy that chooses the questions whose present answers a sweep holds.

    It sees the likely questions and the last selection, but not the answers: a choice that depended
    on them would not leave the posterior invariant (Andrieu and Moulines 2006). Any configuration
    must be reachable from any other by what is left out: if the first and third of a step's three
    states are held in odd sweeps and the second in even ones, the chain never leaves the second.
    """

    @abstractmethod
    def first(self, likely: Tensor, generator: torch.Generator | None) -> Tensor:
        """(chains, items, questions) bool: the first selection.

        Args:
            likely: (chains, items, questions) bool: the questions that may be selected.
            generator: the randomness.
        """

    @abstractmethod
    def after(self, last: Tensor, likely: Tensor, generator: torch.Generator | None) -> Tensor:
        """Next selection, of the last one's shape."""


@dataclass(frozen=True)
class Alternating(Selected):
    """A fixed share of the likely questions: all left out last time, and a random rest.

    With two thirds, the share of Bouchard-Côté, Petrov and Klein 2009, section 3.2, the next
    selection is what was left out and a random half of what was selected, so that no two sweeps in
    turn have the same mask.

    Args:
        share: in 0..1. At 0 every sweep is exact inference; below 1 at least one likely question of
            each item is left out; at 1 none is, and the chain never changes the answers to the
            likely questions.

    Raises:
        ModelError: a share out of range.
    """

    share: float = 2 / 3

    def __post_init__(self) -> None:
        require_fields(self, share="[0, 1]")

    def first(self, likely: Tensor, generator: torch.Generator | None) -> Tensor:
        """Select a random subset of the likely questions."""
        order = uniform(likely.shape, likely.device, generator)
        return _smallest(order.masked_fill(~likely, 2.0), self._size(likely))

    def after(self, last: Tensor, likely: Tensor, generator: torch.Generator | None) -> Tensor:
        """Select the questions left out last time, and a random part of the others."""
        # Those left out come first; where they are too many, a random part of them is taken.
        order = uniform(likely.shape, likely.device, generator) + last.double()
        return _smallest(order.masked_fill(~likely, 3.0), self._size(likely))

    def _size(self, likely: Tensor) -> Tensor:
        total = likely.sum(-1, keepdim=True)
        size = (self.share * total).round().long()
        return size if self.share == 1.0 else torch.minimum(size, (total - 1).clamp(min=0))


def _smallest(values: Tensor, count: Tensor) -> Tensor:
    """Places of the `count` smallest entries of each row."""
    if not values.shape[-1]:
        return values > 0
    last = values.sort(-1).values.gather(-1, (count - 1).clamp(min=0))
    return (values <= last) & (count > 0)


@dataclass(frozen=True, eq=False)
class State:
    """State of the chains."""

    draw: Draw  # their configurations, and the answers of those
    selected: Tensor  # (chains, *batch, *questions) the last selection
    # (n, *batch, *questions) answers of configurations that the chains had before their averages
    # began: a wide sweep holds nothing that a few of these say yes to
    known: Tensor
    # the part of the selection that wide sweeps hold; +inf: there are none, as before one has been
    # tried
    share: float = math.inf
    tried: float = 0.25  # the part to try next, while the averages have not begun; +inf: none
    work: float = math.inf  # of the last sweep that was not wide

    def judged(self, work: int) -> "State":
        """State with another part to try next, after a wide sweep."""
        if work > effort.WIDE_WORK * max(self.work, tuning.LITTLE_SWEEP):
            return replace(self, tried=min(self.share, 1.0))
        return replace(self, share=self.tried, tried=self.tried / 4 if self.tried > 0.1 else 0.0)


@dataclass(frozen=True, eq=False)
class SamplerSweep:
    """A sweep: expectations within its mask, and the state after its draw."""

    state: State
    expected: Expected
    work: int


@dataclass(frozen=True, eq=False)
class Sampler:
    """Kernel of masks, draws and selections, for several chains of every item at once."""

    masks: Masks  # of the model
    likely: Tensor  # (*batch, *questions) the questions to select from
    selected: Selected  # the policy of selections
    chains: int  # number of independent chains

    def first(self, generator: torch.Generator | None) -> State:
        """Initial configuration of each chain, as different as possible.

        Drawn with a random two thirds of the likely questions that the potentials favour most held
        to a yes, or with others and fewer of them, and so on, until some configuration is possible.
        All but the first chain know a random half of the questions only.

        Raises:
            ImpossibleEvidenceError: the model has no possible configuration.
        """
        masks, likely = self.masks, self.likely
        halves = [likely, *(_part(likely, 1 / 2, generator) for _ in range(self.chains - 1))]
        guess = torch.stack([masks.guess(half) for half in halves])
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
        draw = masked.draw(generator)
        return State(draw, selection.reshape(guess.shape), draw.answers)

    def step(
        self, state: State, generator: torch.Generator | None, *, warming: bool = False
    ) -> SamplerSweep:
        """Run one sweep: a selection, its mask, the expectations within it, and a draw from it.

        A part of the sweeps, the wide ones, fix only a share of the selected questions to their
        answers, so that chains move from one mode to another. During warm-up this share shrinks as
        long as the work allows; after it the share does not change.
        """
        likely = self._flat(self.likely.expand_as(state.selected))
        selection = self.selected.after(self._flat(state.selected), likely, generator)
        selection = selection.reshape(state.selected.shape)
        wide = float(uniform((), likely.device, generator)) < (
            2 * effort.WIDE_SWEEPS if warming else effort.WIDE_SWEEPS
        )
        state = replace(state, selected=selection)
        share = state.tried if warming else state.share
        if not wide or share == math.inf:
            sweep = self.within(selection, state.draw, generator)
            return replace(sweep, state=replace(state, draw=sweep.state.draw, work=sweep.work))
        part = _part(selection, share, generator) & ~self._between(state.known, generator)
        # Of an item of which nothing is left out everything is asked to be held.
        moves = (likely & ~self._flat(selection)).any(-1)
        moves = moves.reshape(self.chains, *self.masks.batch_shape)
        part = torch.where(_beside(moves, selection), part, selection)
        try:
            sweep = self.within(part, state.draw, generator)
        except ModelError:  # too wide for exact answers
            sweep = self.within(selection, state.draw, generator)
            return replace(
                sweep, state=replace(state, draw=sweep.state.draw, share=math.inf, tried=math.inf)
            )
        if warming:
            state = state.judged(sweep.work)
        return replace(sweep, state=replace(state, draw=sweep.state.draw))

    def within(self, held: Tensor, draw: Draw, generator: torch.Generator | None) -> SamplerSweep:
        """Run a sweep with given questions held: the kernel k_s of the paper."""
        masked = self.masks.masked(held & draw.answers, held & ~draw.answers)
        expected = masked.expected()
        return SamplerSweep(State(masked.draw(generator), held, held[:0]), expected, masked.work)

    def _between(self, known: Tensor, generator: torch.Generator | None) -> Tensor:
        """(chains, *batch, *questions) the yeses of some of the known configurations."""
        share = min(1.0, effort.WIDE_MOVES / max(len(known), 1))
        some = uniform((self.chains, len(known)), known.device, generator) < share
        yeses = some.float() @ known.flatten(1).float() > 0
        return yeses.reshape(self.chains, *known.shape[1:])

    def _flat(self, values: Tensor) -> Tensor:
        batch = math.prod(self.masks.batch_shape)
        return values.reshape(self.chains, batch, self.masks.questions_count)


def _part(flags: Tensor, share: float, generator: torch.Generator | None) -> Tensor:
    """Random part of the flags."""
    return flags & (uniform(flags.shape, flags.device, generator) < share)


def _beside(flags: Tensor, other: Tensor) -> Tensor:
    return flags.reshape(*flags.shape, *(1,) * (other.ndim - flags.ndim))
