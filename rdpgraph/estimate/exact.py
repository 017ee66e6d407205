"""The estimator interface, and the one that changes nothing."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.structure import Structure

Model: TypeAlias = FactorGraph | Structure


@dataclass(frozen=True, eq=False)
class Problem:
    """What an estimator made of a model.

    Attributes:
        model: the model to solve in its place.
        exact: whether its answers are those of the original.
    """

    model: Model
    exact: bool


class Estimator(ABC):
    """A rewrite of a model into one that is cheaper to solve; it never touches the recursion."""

    @abstractmethod
    def prepare(
        self, model: Model, *, solve: Callable[[Model], Any], generator: torch.Generator | None
    ) -> Problem:
        """The problem to solve in place of a model.

        Args:
            model: as declared, evidence included.
            solve: runs inference on a model, for estimators that want a pilot.
            generator: all the randomness there is.
        """


@dataclass(frozen=True)
class Exact(Estimator):
    """The identity: the model as it is."""

    def prepare(
        self, model: Model, *, solve: Callable[[Model], Any], generator: torch.Generator | None
    ) -> Problem:
        """The model itself."""
        return Problem(model, exact=True)
