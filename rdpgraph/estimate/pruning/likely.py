"""The masks of a model, and the questions worth selecting by what a cheaper one says."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rdpgraph._shapes import broadcasts
from rdpgraph.errors import ModelError
from rdpgraph.estimate.pruning.graphs import GraphMasks
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.masks import Masks
from rdpgraph.model.structure import Structure


def masks_of(model: object, solve: Callable[[Any], Any]) -> Masks:
    """The questions that a model can be masked by.

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
    """Chooses M', the questions that masks are made of.

    A yes that is held prunes much and a no little, so they should be those whose answer is likely
    to be yes. Whatever they are, the averages converge to the exact ones.
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
    """All questions are likely."""

    def questions(self, masks: Masks, solve: Callable[[Any], Any]) -> Tensor:
        """The questions that are open."""
        return masks.open()


@dataclass(frozen=True, eq=False)
class Given(Likely):
    """Questions of your own: spans, or links of an aligner.

    Args:
        mask: bool, of the shape (*batch, *questions) or what broadcasts to that.
    """

    mask: Tensor

    def questions(self, masks: Masks, solve: Callable[[Any], Any]) -> Tensor:
        """The mask.

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
    """The questions to which a cheaper model says yes with some probability.

    A grammar of fewer symbols, for one: ``Hypertree.parses(grammar.coarsened(...), sentences)``.
    The cheaper model is solved once, without a mask.

    Args:
        model: any with the same questions: a hypertree over the same words, whatever its states.
        above: the least probability.
    """

    model: Structure | FactorGraph
    above: float = 0.2

    def questions(self, masks: Masks, solve: Callable[[Any], Any]) -> Tensor:
        """By the cheaper model's posterior.

        Raises:
            ModelError: its questions differ.
        """
        cheap = masks_of(self.model, solve)
        asked, offered = ((*each.batch_shape, *each.questions) for each in (masks, cheap))
        if asked != offered:
            raise ModelError(
                f"LikelyBy needs a model with the same questions, {asked}; its own are {offered}."
            )
        none = torch.zeros(1, *asked, dtype=torch.bool, device=cheap.open().device)
        return cheap.masked(none, none).expected().answers[0] > self.above
