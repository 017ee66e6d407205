"""What an estimator sees of a model: groups of sites, and the model on some states of them."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from rdpgraph.estimate.exact import Model, Supports
from rdpgraph.estimate.sites import Sites
from rdpgraph.model.support import Support


class View(ABC):
    """A model as groups of sites."""

    @property
    @abstractmethod
    def groups(self) -> tuple[Sites, ...]:
        """Sites by their number of states."""

    @abstractmethod
    def supports(self, chosen: Supports) -> tuple[Support | None, ...]:
        """Supports of the groups as those of the model's own parts."""

    @abstractmethod
    def restrict(self, supports: Supports) -> Model:
        """The model on supports of its own parts; further dims in front are batch dims."""

    @abstractmethod
    def marginals(self, answer: Any) -> tuple[Tensor, ...]:
        """What the posterior of a restricted model says of the groups, in the groups' shape."""

    def masses(self, chosen: Sequence[Support]) -> tuple[Tensor, ...] | None:
        """The log-mass of every state beside those chosen, by a way of the model's own; or None."""
        return None

    @property
    @abstractmethod
    def num_tables(self) -> int:
        """How many tables the restricted model has, batch items counted."""


def expanded(support: Support, lead: Sequence[int]) -> Support:
    """A support with further dims in front."""
    return Support(
        support.states.expand(*lead, *support.states.shape),
        support.log_weights.expand(*lead, *support.log_weights.shape),
    )
