"""The interface of a selection: how many states are kept, which, and with what weights."""

import math
from abc import ABC, abstractmethod
from typing import TypeAlias

import torch
from torch import Tensor

from rdpgraph.errors import ModelError
from rdpgraph.model.support import Support
from rdpgraph.structures.draws import uniform

Size: TypeAlias = int | float
"""A number of states, or a share of them: a float in (0, 1]."""

_MOST_AT_ONCE = 1 << 22  # scores per step: a few hundred MB of float64 at the most


class Selection(ABC):
    """Chooses states by their scores.

    What makes an estimate of Z unbiased is that for every state of non-zero score the expectation
    of its weight, zero where it is not kept, is one; and that sites are chosen independently.
    """

    @abstractmethod
    def select(self, log_q: Tensor, generator: torch.Generator | None) -> Support:
        """States and log-weights for every row of scores.

        Args:
            log_q: (*lead, N) log-scores, not necessarily normalised; a state of -inf is not kept.
            generator: all the randomness there is.

        Returns:
            A support of (*lead, kept) states; where fewer states are possible than are kept, the
            entries left over have log-weight -inf.
        """

    @property
    def bound(self) -> str:
        """``"lower"`` where log Z of what is kept never exceeds log Z; else empty."""
        return ""


class Inversion(Selection):
    """A selection that is a function of a few uniform numbers per row.

    A function can be checked over all of its arguments: each entry's state does not decrease as
    the number that decides it grows.
    """

    def select(self, log_q: Tensor, generator: torch.Generator | None) -> Support:
        """States and log-weights for every row of scores.

        Raises:
            ModelError: scores of NaN or +inf.
        """
        if log_q.ndim < 1 or not bool((log_q < math.inf).all()):
            raise ModelError(
                f"{type(self).__name__} needs log-scores (..., states) below +inf and not NaN."
            )
        *lead, states = log_q.shape
        flat = log_q.reshape(-1, states)
        uniforms = uniform((len(flat), self.num_uniforms(states)), log_q.device, generator)
        rows = max(1, _MOST_AT_ONCE // max(states, 1))
        parts = list(map(self.choose, flat.split(rows), uniforms.split(rows)))
        return Support.joined(parts, 0).map(lambda part: part.reshape(*lead, parts[0].kept))

    @abstractmethod
    def num_uniforms(self, states: int) -> int:
        """How many uniform numbers a row of scores takes."""

    @abstractmethod
    def choose(self, log_q: Tensor, uniforms: Tensor) -> Support:
        """What is kept, given (*lead, `num_uniforms`) float64 numbers in [0, 1)."""


def checked_size(owner: str, name: str, size: Size, least: int = 1) -> None:
    """Refuse what is neither a number of states nor a share of them."""
    share = isinstance(size, float) and 0.0 < size <= 1.0
    number = isinstance(size, int) and not isinstance(size, bool) and size >= least
    if not share and not number:
        raise ModelError(
            f"{owner} needs {name} as a number of states >= {least}, or a share of them as a float "
            f"in (0, 1]; got {size!r}."
        )


def count_of(size: Size, states: int) -> int:
    """The number of states that a size stands for; a share is at least one."""
    count = max(1, round(size * states)) if isinstance(size, float) else size
    return min(count, states)
