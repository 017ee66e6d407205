"""What carries out the sweeps of a schedule."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable

from torch import Tensor

from rdpgraph.engines.loopy.arithmetic import rescaled
from rdpgraph.engines.loopy.damping import Damping
from rdpgraph.engines.loopy.equations import Equations, Messages
from rdpgraph.errors import ModelError


class Sweeper(ABC):
    """Carries out the sweeps of a schedule."""

    def __init__(self, equations: Equations, damping: Damping) -> None:
        self.equations = equations
        self.damping = damping
        self.updates = 0
        self.deadline = math.inf  # on `clock.now`, for what takes a sweep in many parts
        self.cut = False  # the last sweep ended at the deadline, before its end

    @abstractmethod
    def sweep(self, messages: Messages, sets: Iterable[Tensor | None]) -> tuple[Messages, Tensor]:
        """The messages after one sweep of these sets, and (B,) the largest change."""

    def finish(self, messages: Messages) -> Messages:
        """The messages where `sweep` holds them in another form; sweeps may go on after it."""
        return messages

    @abstractmethod
    def residuals(self) -> Tensor:
        """(E,) how much every message of the one batch item would change now, within a sweep."""

    def _mixed(self, new: Tensor, old: Tensor) -> Tensor:
        """Damped, and rescaled again."""
        if self.damping.share == 0:
            return new
        return rescaled(self.damping.mix(new, old), vanishing=self.equations.vanishing)[0]


def unasked() -> Tensor:
    """Refuses: a schedule looks at residuals that did not say so."""
    raise ModelError("A Schedule that calls residuals() must say so in looks_at_residuals.")
