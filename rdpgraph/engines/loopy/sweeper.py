"""What carries out the sweeps of a schedule."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import NoReturn

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


def _no_tensor(*_: object, **__: object) -> NoReturn:
    raise ModelError(
        "A Schedule's residuals are a function: residuals() gives (E,) how much each message would "
        "change now, where looks_at_residuals is True."
    )


class Residuals:
    """The function that a schedule calls for residuals; taken for their tensor, it says so."""

    def __init__(self, ask: Callable[[], Tensor]) -> None:
        self._ask = ask

    def __call__(self) -> Tensor:
        """(E,) the residuals."""
        return self._ask()

    __getattr__ = __getitem__ = __len__ = __iter__ = __neg__ = __abs__ = _no_tensor
    __lt__ = __le__ = __gt__ = __ge__ = __add__ = __sub__ = __mul__ = __truediv__ = _no_tensor
    __torch_function__ = classmethod(_no_tensor)


def unasked() -> Tensor:
    """Refuses: a schedule looks at residuals that did not say so."""
    raise ModelError(
        "A Schedule that calls residuals() needs a property looks_at_residuals that is True."
    )
