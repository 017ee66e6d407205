"""Running averages over the sweeps of chains, with their errors."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import torch
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph._core.cache import cached_property
from rdpgraph._core.numbers import student

_APART = 2.0  # variances of the mean by chains over that by batches
ALIKE = 1e-4  # values of sweeps that differ by less are one: of a probability, or relative


@dataclass(frozen=True, eq=False)
class Averages:
    """Sums over the sweeps of chains, and means of consecutive sweeps."""

    sweeps: int  # number of sweeps added
    stride: int  # sweeps in a mean
    total: Tensor  # (chains, D) sums
    first: Tensor  # (chains, D) the first sweep of each chain, 0 before it
    squares: Tensor  # (chains, D) sums of squared differences from it, which lose no digits
    under_way: Tensor  # (chains, D) sum of the sweeps that are in no mean yet
    kept: tuple[Tensor, ...] = field(default=(), repr=False)  # (chains, D) means, the oldest first

    @classmethod
    def none(cls, like: Tensor) -> Self:
        """Averages of (chains, D) numbers before the first sweep."""
        none = torch.zeros_like(like)
        return cls(0, 1, none, none, none, none)

    def with_sweep(self, values: Tensor) -> Self:
        """Averages with one more sweep."""
        sweeps, under_way = self.sweeps + 1, self.under_way + values
        kept, stride = self.kept, self.stride
        first = self.first if self.sweeps else values
        if sweeps % stride == 0:
            kept, under_way = (*kept, under_way / stride), torch.zeros_like(values)
            most = min(max(tuning.BLOCK // max(values.numel(), 1), 32), 256)
            if len(kept) >= most and len(kept) % 2 == 0:
                pairs = zip(kept[::2], kept[1::2], strict=True)
                kept, stride = tuple((one + other) / 2 for one, other in pairs), 2 * stride
        return replace(
            self, sweeps=sweeps, stride=stride, total=self.total + values,
            first=first, squares=self.squares + (values - first).square(), under_way=under_way,
            kept=kept,
        )  # fmt: skip

    @classmethod
    def joined(cls, parts: Sequence["Averages"]) -> Self:
        """Averages of all chains, which have equally many sweeps."""
        total, first, squares, under_way = (
            torch.cat([getattr(part, name) for part in parts])
            for name in ("total", "first", "squares", "under_way")
        )
        kept = tuple(map(torch.cat, zip(*(part.kept for part in parts), strict=True)))
        return cls(parts[0].sweeps, parts[0].stride, total, first, squares, under_way, kept)

    @property
    def chains(self) -> int:
        """Number of chains."""
        return len(self.total)

    @property
    def mean(self) -> Tensor:
        """(D,) mean over all sweeps of all chains."""
        return self.total.mean(0) / max(self.sweeps, 1)

    @cached_property
    def _batches(self) -> Tensor:
        """(batches, chains, D) means of about ``sweeps ** (2 / 3)`` sweeps each, the latest."""
        length = max(1, round(self.sweeps ** (2 / 3) / self.stride))
        count = len(self.kept) // length
        if not count:
            return self.total.new_zeros(0, *self.total.shape)
        latest = torch.stack(self.kept[-count * length :])
        return latest.unflatten(0, (count, length)).mean(1)

    @cached_property
    def _variances(self) -> tuple[Tensor, Tensor]:
        """(D,) variance of the mean by independent batches, and by chains; +inf for one."""
        batches = self._batches
        parts = batches.flatten(0, 1), self.total / max(self.sweeps, 1)
        each = (
            part.var(0) / len(part) if len(part) > 1 else part.new_full(part.shape[1:], math.inf)
            for part in parts
        )
        by_batches, by_chains = each
        return by_batches, by_chains

    @property
    def _stuck(self) -> Tensor:
        """(D,) whether chains differ by more than chance allows: batches are not independent."""
        by_batches, by_chains = self._variances
        return (by_chains > _APART * by_batches) & (by_chains < math.inf)

    @property
    def standard_error(self) -> Tensor:
        """(D,) of the mean; +inf with fewer than two batches.

        By the means of batches, or by those of chains if these differ by more than chance allows:
        batches of a chain that hardly moves are not independent.
        """
        by_batches, by_chains = self._variances
        return torch.where(self._stuck, by_chains, by_batches).sqrt()

    def half_width(self, chance: float) -> Tensor:
        """(D,) half-width of a confidence interval of the exact value, by Student's t."""
        freedom = max(len(self._batches) * self.chains - 1, 1), max(self.chains - 1, 1)
        batches, chains = (student(0.5 + chance / 2, each) for each in freedom)
        return torch.where(self._stuck, chains, batches) * self.standard_error

    @property
    def variance(self) -> Tensor:
        """(D,) variance of the sweeps' values: within chains, and between their means."""
        sweeps = max(self.sweeps, 1)
        means = self.total / sweeps
        within = self.squares / sweeps - (means - self.first).square()
        between = means - means.mean(0)
        return (within.clamp(min=0.0) + between.square()).mean(0)

    @property
    def effective(self) -> Tensor:
        """(D,) number of independent sweeps with the same error; all, of constants."""
        many = float(self.chains * self.sweeps)
        error = self.standard_error.square()
        return torch.where(error > 0, self.variance / error, many).clamp(max=many)

    @cached_property
    def r_hat(self) -> Tensor:
        """(D,) near 1 if chains agree; +inf with one chain, or fewer than four values of each.

        The rank-normalised split R-hat of Vehtari et al. 2021, or that of the distances from the
        median where it is larger.
        """
        half = len(self.kept) // 2
        if self.chains < 2 or half < 2:
            return torch.full_like(self.mean, math.inf)
        values = torch.stack(self.kept[-2 * half :]).unflatten(0, (2, half))
        # (D, 2 * chains * half), each half of a chain by itself.
        flat = values.permute(3, 0, 2, 1).flatten(1)
        size = ALIKE * flat.abs().amax(1, keepdim=True).clamp(min=1.0)
        flat = (flat / size).round()
        folded = (flat - flat.median(1, keepdim=True).values).abs()
        return torch.maximum(*(_r_hat(part, half) for part in (flat, folded)))


def _r_hat(values: Tensor, each: int) -> Tensor:
    """(D,) root of the pooled over the inner variance of values (D, n), rank-normalised."""
    ordered = values.sort(1).values
    ranks = sum(torch.searchsorted(ordered, values, right=side) for side in (False, True))
    chances = ((ranks + 1) / 2 - 0.375) / (values.shape[1] + 0.25)
    normal = torch.special.ndtri(chances).unflatten(1, (-1, each))
    within, between = normal.var(2).mean(1), normal.mean(2).var(1)
    ratio = (each - 1) / each + between / torch.where(within > 0, within, 1.0)
    return torch.where(within > 0, ratio.sqrt(), torch.where(between > 0, math.inf, 1.0))


@dataclass(frozen=True, eq=False)
class Visited:
    """Summed probabilities of the places visited, as lists."""

    places: Tensor  # (n,) numbers, none twice after `merged`
    chances: Tensor  # (n,) sums
    pending: tuple[tuple[Tensor, Tensor], ...] = ()  # additions since then
    waiting: int = 0  # number of places in these

    def plus(self, places: Tensor, chances: Tensor) -> "Visited":
        """Add the probabilities of one more sweep."""
        more = replace(
            self, pending=(*self.pending, (places, chances)), waiting=self.waiting + len(places)
        )
        return more.merged() if more.waiting > 2 * len(self.places) + 2**16 else more

    def merged(self) -> "Visited":
        """List every place once."""
        if not self.pending:
            return self
        places = torch.cat([self.places, *(places for places, _ in self.pending)])
        chances = torch.cat([self.chances, *(chances for _, chances in self.pending)])
        places, index = places.unique(return_inverse=True)
        return Visited(places, chances.new_zeros(len(places)).index_add_(0, index, chances))
