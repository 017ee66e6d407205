"""Running averages over the sweeps of chains, with what they are worth."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Self

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Averages:
    """Sums over sweeps of some numbers per chain, and over batches of sweeps in turn.

    Attributes:
        sweeps: how many have been added.
        length: sweeps in a batch.
        total: (chains, D) sums.
        squares: (chains, D) sums of squares.
        batch: (chains, D) the sum of the batch under way.
        batches: (chains, D) sums of the means of batches.
        batch_squares: (chains, D) and of their squares.
    """

    sweeps: int
    length: int
    total: Tensor
    squares: Tensor
    batch: Tensor
    batches: Tensor
    batch_squares: Tensor

    @classmethod
    def none(cls, length: int, like: Tensor) -> Self:
        """Of numbers (chains, D), none yet."""
        return cls(0, length, *(torch.zeros_like(like) for _ in range(5)))

    def with_sweep(self, values: Tensor) -> Self:
        """The averages with one more sweep."""
        sweeps, batch = self.sweeps + 1, self.batch + values
        batches, squares = self.batches, self.batch_squares
        if sweeps % self.length == 0:
            mean = batch / self.length
            batch, batches = torch.zeros_like(batch), batches + mean
            squares = squares + mean.square()
        return replace(
            self, sweeps=sweeps, total=self.total + values,
            squares=self.squares + values.square(), batch=batch, batches=batches,
            batch_squares=squares,
        )  # fmt: skip

    @classmethod
    def joined(cls, parts: Sequence["Averages"]) -> Self:
        """Those of all chains, which have as many sweeps, in batches as long."""
        names = [part.name for part in fields(cls)][2:]
        sums = (torch.cat([getattr(part, name) for part in parts]) for name in names)
        return cls(parts[0].sweeps, parts[0].length, *sums)

    @property
    def chains(self) -> int:
        """How many chains there are."""
        return len(self.total)

    @property
    def mean(self) -> Tensor:
        """(D,) over all sweeps of all chains."""
        return self.total.mean(0) / max(self.sweeps, 1)

    @property
    def freedom(self) -> int:
        """The degrees of freedom: batches, less one."""
        return self.chains * (self.sweeps // self.length) - 1

    @property
    def standard_error(self) -> Tensor:
        """(D,) of the mean, by the means of batches; +inf with fewer than two batches."""
        count = self.freedom + 1
        if count < 2:
            return torch.full_like(self.mean, math.inf)
        centre = self.batches.sum(0) / count
        spread = self.batch_squares.sum(0) / count - centre.square()
        return (spread.clamp(min=0.0) / (count - 1)).sqrt()

    @property
    def effective(self) -> Tensor:
        """(D,) how many independent sweeps would have that error; all, of what does not vary."""
        many = self.chains * self.sweeps
        centre = self.total.sum(0) / max(many, 1)
        variance = (self.squares.sum(0) / max(many, 1) - centre.square()).clamp(min=0.0)
        error = self.standard_error.square()
        return torch.where(error > 0, variance / error, float(many)).clamp(max=float(many))

    @property
    def r_hat(self) -> Tensor:
        """(D,) Gelman and Rubin's: near 1 where the chains agree; +inf with one chain or sweep.

        The root of the pooled variance over that within chains; 1 of what does not vary.
        """
        n, many = self.sweeps, self.chains
        if many < 2 or n < 2:
            return torch.full_like(self.mean, math.inf)
        means = self.total / n
        within = ((self.squares / n - means.square()).clamp(min=0.0) * n / (n - 1)).mean(0)
        between = means.var(0)
        ratio = (n - 1) / n + between / torch.where(within > 0, within, 1.0)
        still = torch.where(between > 0, math.inf, 1.0)
        return torch.where(within > 0, ratio.sqrt(), still)


def student(chance: float, freedom: int) -> float:
    """The quantile of Student's t, by the expansion of Cornish and Fisher; good from 4 on."""
    z = math.sqrt(2.0) * float(
        torch.erfinv(torch.tensor(2.0 * chance - 1.0, dtype=torch.float64, device="cpu"))
    )
    n = max(freedom, 1)
    return (
        z
        + (z**3 + z) / (4 * n)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
    )


@dataclass(frozen=True, eq=False)
class Visited:
    """The summed chances of places, of which few have been visited: as lists.

    Attributes:
        places: (n,) numbers, none twice after `merged`.
        chances: (n,) sums.
        pending: what has been added since, and how much of it.
    """

    places: Tensor
    chances: Tensor
    pending: tuple[tuple[Tensor, Tensor], ...] = ()
    waiting: int = 0

    def plus(self, places: Tensor, chances: Tensor) -> "Visited":
        """With the chances of one more sweep."""
        more = replace(
            self, pending=(*self.pending, (places, chances)), waiting=self.waiting + len(places)
        )
        return more.merged() if more.waiting > 2 * len(self.places) + 2**16 else more

    def merged(self) -> "Visited":
        """The same chances, with every place listed once."""
        if not self.pending:
            return self
        places = torch.cat([self.places, *(places for places, _ in self.pending)])
        chances = torch.cat([self.chances, *(chances for _, chances in self.pending)])
        places, index = places.unique(return_inverse=True)
        return Visited(places, chances.new_zeros(len(places)).index_add_(0, index, chances))
