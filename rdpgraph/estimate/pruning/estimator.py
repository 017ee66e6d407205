"""Randomized pruning (Bouchard-Côté, Petrov and Klein 2009), with its masks and questions."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from rdpgraph._core.arguments import require_fields
from rdpgraph._core.progress import Progress, goes_on, reporting
from rdpgraph._core.types import broadcasts
from rdpgraph.errors import ModelError
from rdpgraph.estimate.estimator import Estimator, Model, Problem
from rdpgraph.estimate.pruning.graphs import GraphMasks
from rdpgraph.estimate.pruning.sampler import Alternating, Sampler, Selected
from rdpgraph.estimate.pruning.solution import PrunedSolution, PruningRun, sweeps_of
from rdpgraph.interface.masks import Masks
from rdpgraph.interface.structure import Structure
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.potentials.table import converted
from rdpgraph.plan.clock import stopped


def masks_of(model: object, solve: Callable[[Any], Any]) -> Masks:
    """Return the masks of a model, which hold answers to its yes-or-no questions.

    Raises:
        ModelError: something else than a model.
        UnsupportedError: a structure without masks.
    """
    if isinstance(model, Structure):
        return model.masks()
    if isinstance(model, FactorGraph):
        return GraphMasks(model, solve)
    raise ModelError(
        f"RandomizedPruning needs a FactorGraph or a Structure; got {type(model).__name__}."
    )


class Likely(ABC):
    """Chooses the likely questions: a sweep may hold their answers, of which it makes its mask.

    Holding a yes prunes much, and holding a no little, so choose questions whose answer is likely
    to be yes. Averages converge to the exact ones for any choice.
    """

    @abstractmethod
    def questions(self, masks: Masks, solve: Callable[[Any], Any]) -> Tensor:
        """(*batch, *questions) bool.

        Args:
            masks: of the model.
            solve: runs inference on a model.
        """


@dataclass(frozen=True)
class Everything(Likely):
    """The choice of questions that takes all of them as likely."""

    def questions(self, masks: Masks, solve: Callable[[Any], Any]) -> Tensor:
        return masks.open()


@dataclass(frozen=True, eq=False)
class Given(Likely):
    """User-defined questions: spans, or links of an aligner.

    Args:
        mask: bool, of the shape (*batch, *questions) or what broadcasts to that.
    """

    mask: Tensor

    def __post_init__(self) -> None:
        object.__setattr__(self, "mask", converted("Given's mask", self.mask, "booleans"))

    def questions(self, masks: Masks, solve: Callable[[Any], Any]) -> Tensor:
        """Return the mask, expanded to all questions.

        Raises:
            ModelError: another type or shape.
        """
        shape = (*masks.batch_shape, *masks.questions)
        if self.mask.dtype == torch.bool and broadcasts(self.mask.shape, shape):
            return self.mask.expand(shape)
        raise ModelError(
            f"Given needs likely questions as bool {shape}; got {self.mask.dtype} of shape "
            f"{tuple(self.mask.shape)}."
        )


@dataclass(frozen=True, eq=False)
class LikelyBy(Likely):
    """Questions to which a cheaper model says yes with some probability.

    A grammar of fewer symbols, for one: ``Hypertree.parses(grammar.coarsened(...), sentences)``.
    The cheaper model is solved once, without a mask.

    Args:
        model: any with the same questions: a hypertree over the same words, whatever its states.
        above: the least probability.
    """

    model: Structure | FactorGraph
    above: float = 0.2

    def __post_init__(self) -> None:
        require_fields(self, above="[0, 1]")

    def questions(self, masks: Masks, solve: Callable[[Any], Any]) -> Tensor:
        """Choose questions by the cheaper model's posterior.

        Raises:
            ModelError: its questions differ.
        """
        cheap = masks_of(self.model, solve)
        asked, offered = ((*each.batch_shape, *each.questions) for each in (masks, cheap))
        if asked != offered:
            raise ModelError(
                f"LikelyBy needs a model with the same questions, {asked}; it offers {offered}."
            )
        none = torch.zeros(1, *asked, dtype=torch.bool, device=cheap.open().device)
        return cheap.masked(none, none).expected().answers[0] > self.above


@dataclass(frozen=True, eq=False)
class RandomizedPruning(Estimator):
    """Averages over many masks, each of which skips most of a recursion; exact in the limit.

    Every sweep conditions on the current answers to some yes-or-no questions (is this span a
    constituent, are these two words aligned, is this step in that state), solves the rest exactly,
    adds its expectations to the running averages, and draws the next configuration from it: block
    Gibbs sampling. Errors fall as one over the root of the sweeps, and a sweep costs what its mask
    leaves. It answers marginals, expected scores and counts, without gradients: these averages are
    the gradient of log Z themselves. Log Z, entropies, joints, modes and max-marginals raise
    `UnsupportedError`.

    Args:
        sweeps: how many are averaged, of each chain.
        selected: which questions a sweep holds; default two thirds of the likely ones, in turn.
        likely: the questions whose answers may be held; default all. Those likely to be answered
            yes prune the most.
        chains: independent ones, swept at once; two or more have an R-hat.
        warm_up: sweeps before the averages begin; default a tenth of `sweeps`.
        seconds: no sweep begins after that many.
        progress: called with a `Progress` after every sweep; for a graph also every two seconds
            while a sweep lasts.
        resume: a posterior of the same model by randomized pruning, to go on from; its chains,
            selections and averages are taken over, and it is not warmed up again: `selected`,
            `likely`, `chains` and `warm_up` are those of the earlier run.

    Raises:
        ModelError: less than one sweep or chain, or a warm-up or budget below 0.

    Source: Bouchard-Côté, Petrov and Klein 2009, "Randomized pruning", with the masks of algorithm
    2 corrected: only spans that cross a required one are pruned.
    """

    takes_structures = True

    sweeps: int
    selected: Selected = field(default_factory=Alternating, kw_only=True)
    likely: Likely = field(default_factory=Everything, kw_only=True)
    chains: int = field(default=1, kw_only=True)
    warm_up: int | None = field(default=None, kw_only=True)
    seconds: float = field(default=math.inf, kw_only=True)
    progress: Callable[[Progress], object] | None = field(
        default=None, kw_only=True, compare=False, metadata={"elsewhere": None}
    )
    resume: Any = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        positive = "[1, inf)"
        require_fields(
            self, sweeps=positive, chains=positive, warm_up="[0, inf)", seconds="(0, inf]"
        )

    @property
    def warming(self) -> int:
        """Number of sweeps before the averages begin."""
        return self.sweeps // 10 if self.warm_up is None else self.warm_up

    def prepare(
        self, model: Model, *, solve: Callable[[Model], Any], generator: torch.Generator | None
    ) -> Problem:
        """Run the sweeps; their averages need no solution of the model."""
        with reporting(self.progress, "randomized pruning"):
            return averaged(model, self.run(model, solve=solve, generator=generator))

    @torch.no_grad()
    def run(
        self, model: Model, *, solve: Callable[[Model], Any], generator: torch.Generator | None
    ) -> PruningRun:
        """Run the sweeps.

        Raises:
            ModelError: no question is likely; or the posterior to resume is of another kind.
            UnsupportedError: the model has no masks.
            ImpossibleEvidenceError: an item of the model has no possible configuration.
        """
        warm = self.warming
        if self.resume is not None:
            run, warm = sweeps_of(self.resume).run, 0
            if run.sampler.masks.model is not model:
                raise ModelError(
                    "RandomizedPruning(resume=posterior) needs the model object of that posterior; "
                    "got another one: give infer the model that it was made from."
                )
        else:
            sampler = self.sampler(model, solve=solve)
            run = PruningRun(sampler, sampler.first(generator))
        return run.onward(
            self.sweeps, warm_up=warm, seconds=self.seconds, generator=generator,
            progress=self._told,
        )  # fmt: skip

    def _told(self, step: Progress) -> None:
        if not goes_on(self.progress, step) or stopped():
            raise StopIteration

    def sampler(self, model: Model, *, solve: Callable[[Model], Any]) -> Sampler:
        """Kernel of the chains.

        Raises:
            ModelError: no question is likely.
            UnsupportedError: the model has no masks.
        """
        masks = masks_of(model, solve)
        asked = masks.open()
        likely = self.likely.questions(masks, solve).to(asked.device) & asked
        if bool(asked.any()) and not bool(likely.any()):
            raise ModelError(
                f"{type(self.likely).__name__} finds no question likely, so that the sweeps have "
                "no mask to draw: lower its threshold, or use Exact()."
            )
        return Sampler(masks, likely, self.selected, self.chains)


def averaged(model: Model, run: PruningRun) -> Problem:
    """Problem whose answers are the averages of a run."""
    # A structure is not solved, nor is a graph: what has no variables is quick to.
    solved = model if isinstance(model, FactorGraph) else FactorGraph([])
    return Problem(solved, PrunedSolution(run))
