"""The estimator interface: a smaller model, and how its solution speaks of the whole one."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from rdpgraph.engines.solution import Solution
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.structure import Structure
from rdpgraph.model.support import Support

Model: TypeAlias = FactorGraph | Structure
Supports: TypeAlias = tuple[Support | None, ...]
Lift: TypeAlias = Callable[[Solution], Solution]


@dataclass(frozen=True, eq=False)
class Problem:
    """What an estimator made of a model.

    Attributes:
        model: the model to solve in its place.
        lift: from the solution of that to one of the model as declared, in its own variables and
            states; its `Solution.status` says whether the answers are exact. A dataclass, or a
            function that pickles, so that posteriors do. None: the model is the one declared.
    """

    model: Model
    lift: Lift | None = None


class Estimator(ABC):
    """A rewrite of a model into one that is cheaper to solve; it never touches the recursion."""

    @abstractmethod
    def prepare(
        self, model: Model, *, solve: Callable[[Model], Any], generator: torch.Generator | None
    ) -> Problem:
        """The problem to solve in place of a model.

        Args:
            model: as declared, evidence included.
            solve: gives the posterior of a model, by the scheduler that solves the problem: for a
                pilot, or for what a lift must ask again. It may be kept.
            generator: all the randomness there is.
        """


@dataclass(frozen=True)
class Exact(Estimator):
    """The identity: the model as it is."""

    def prepare(
        self, model: Model, *, solve: Callable[[Model], Any], generator: torch.Generator | None
    ) -> Problem:
        """The model itself."""
        return Problem(model)
