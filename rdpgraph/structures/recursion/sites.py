"""The sites of a tape: indexed, they give the values of their potentials."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rdpgraph.errors import ModelError
from rdpgraph.structures.recursion.values import Labels, Value


@dataclass(frozen=True, eq=False)
class Sites:
    """The sites of a tape, to be indexed.

    Attributes:
        numbers: (*sites) their numbers, row by row.
        states: (B, all, K) which states are kept of each; None: all.
        make: the value of those that labels stand for.
    """

    numbers: Tensor
    states: Tensor | None
    make: Callable[[Labels], Value]

    def __getitem__(self, index: Any) -> Value:
        """The potentials of some sites, one place for each, in the order of the index.

        Raises:
            ModelError: there are no such sites.
        """
        try:
            return self.leaf(self.numbers[index].reshape(-1))
        except (IndexError, TypeError) as error:
            shape = tuple(self.numbers.shape)
            raise ModelError(
                f"Tape.sites of shape {shape} has no {index!r:.80}: {error}."
            ) from None

    def leaf(self, numbers: Tensor) -> Value:
        """The potentials of the sites with some numbers, (P,)."""
        return self.make(self.labels(numbers))

    def labels(self, numbers: Tensor) -> Labels:
        """What the columns of that value stand for; enough for what leads to them."""
        kept = self.states
        return Labels(numbers, None if kept is None else kept.index_select(1, numbers))


def numbered(
    unary: Tensor, states: Tensor | None, batch: int, shape: tuple[int, ...]
) -> tuple[Tensor, Tensor | None]:
    """(*sites) the numbers of sites of a shape, and (B, all, K) which states they have, if any."""
    count = math.prod(shape)
    if states is not None:
        states = states.expand(unary.shape).reshape(batch, count, unary.shape[-1])
    return torch.arange(count, device=unary.device).reshape(shape), states
