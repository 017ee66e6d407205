"""The sites of a tape: indexed, they give the values of their potentials."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from rdpgraph.structures.tape.values import Labels, Value


@dataclass(frozen=True, eq=False)
class Sites:
    """The sites of a tape, to be indexed.

    Attributes:
        numbers: (*sites) their numbers, row by row.
        leaf: makes the value of some.
        labels: what the columns of that value stand for; enough for what leads to them.
    """

    numbers: Tensor
    leaf: Callable[[Tensor], Value]
    labels: Callable[[Tensor], Labels]

    def __getitem__(self, index: Any) -> Value:
        """The potentials of some sites, one place for each, in the order of the index."""
        return self.leaf(self.numbers[index].reshape(-1))
