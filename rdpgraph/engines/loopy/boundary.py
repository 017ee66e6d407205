"""Equations that are part of more: some of their variables stand in others too, held elsewhere."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from torch import Tensor


class Boundary(ABC):
    """What the other parts of a model, in other processes, add to the equations of this one.

    Every method but `solved` is called by all parts, in the same order. So are the gradients of
    `joined`, for which every sum that comes of it has a part in what follows, though no factor be
    there.

    Attributes:
        bounded: whether in no part a message can grow without bound.
        records: whether a gradient would reach a potential of any part.
    """

    bounded: bool
    records: bool

    @abstractmethod
    def joined(self, values: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Per class (B, M, n) what all parts say of the variables, summed; differentiable.

        The values given may be written to.
        """

    @abstractmethod
    def counted(self, number: int) -> Tensor:
        """(n,) 1 for each variable of a class that this part counts, 0 where another one does."""

    @abstractmethod
    def total(self, values: Tensor) -> Tensor:
        """The sums over all parts; the gradient of each part's values is that of the sum."""

    @abstractmethod
    def largest(self, values: Tensor) -> Tensor:
        """The largest over all parts; no gradient."""

    @abstractmethod
    def solved(self, values: Tensor) -> Tensor:
        """The sums over the parts that have messages, which alone make this call; no gradient."""
