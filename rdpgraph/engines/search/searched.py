"""Configurations that a search came to."""

import math
import warnings
from dataclasses import dataclass

from torch import Tensor

from rdpgraph.errors import BudgetError
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.soundness import items_named, require_possible

_NOT_FOUND = (
    "No possible configuration was found for some item; its mode has probability zero, and "
    "FactorGraph.violations(mode) counts what it violates. More time may find a better one."
)


@dataclass(frozen=True, eq=False)
class Searched:
    """Configurations found.

    Attributes:
        states: (B, V) of all variables; of summed ones any. Where no possible configuration was
            found, one with few violations.
        scores: (B,) their log-values in nats, in float64; what sums that do not fit are at least.
        optimal: (B,) whether it is proved that none is better; of a score of -inf, that there is
            no possible configuration.
    """

    states: Tensor
    scores: Tensor
    optimal: Tensor

    @property
    def found(self) -> Tensor:
        """(B,) whether the configuration is possible."""
        return self.scores > -math.inf

    @property
    def exists(self) -> Tensor:
        """(B,) False where it is proved that no configuration is possible."""
        return (self.found | ~self.optimal).cpu()

    def required(self, graph: FactorGraph, what: str = "mode") -> "Searched":
        """The same, where each item has a possible configuration.

        Raises:
            BudgetError: one has none that was found.
            ImpossibleEvidenceError: it is proved that an item has none.
        """
        require_possible(f"There is no {what}", self.exists.reshape(graph.batch_shape))
        if not bool(self.found.all()):
            lost = ~self.found.reshape(graph.batch_shape)
            where = f" in {items_named(lost)}" if lost.ndim else ""
            raise BudgetError(
                f"No possible configuration was found{where}: raise the time budget, or check that "
                "the hard zeros allow one."
            )
        return self

    def warned(self) -> "Searched":
        """The same, after a warning if a configuration is of probability zero."""
        if not bool((self.found | self.optimal).all()):
            warnings.warn(_NOT_FOUND, stacklevel=2)
        return self
