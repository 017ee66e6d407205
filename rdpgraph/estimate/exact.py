"""The estimator interface, and the one that changes nothing."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.structure import Structure
from rdpgraph.model.support import Support

Model: TypeAlias = FactorGraph | Structure
Supports: TypeAlias = Sequence[Support | None]


@dataclass(frozen=True, eq=False)
class Kept:
    """What was kept of a model, and how to answer for the whole of it.

    Attributes:
        original: the model as declared.
        supports: (replicates, *batch, *shape, kept) for each variable or array of a graph, in its
            order; None where all states are kept. A structure has one, over its sites.
        replicates: how many independent choices there are.
        restrict: the model on other supports of the same kind.
        bound: ``"lower"`` where exact inference on what is kept bounds log Z below; else empty.
    """

    original: Model
    supports: tuple[Support | None, ...]
    replicates: int
    restrict: Callable[[Supports], Model]
    bound: str = ""


@dataclass(frozen=True, eq=False)
class Problem:
    """What an estimator made of a model.

    Attributes:
        model: the model to solve in its place.
        exact: whether its answers are those of the original.
        kept: how its states stand for those of the original, where there are fewer of them and
            the answers are to be those of the original; its replicates are the first batch dim.
        plain: the model that answers are about, where ``model`` has variables beside its own.
    """

    model: Model
    exact: bool
    kept: Kept | None = None
    plain: FactorGraph | None = None


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
