"""Estimates of Z, or draws without one, combined as probabilities."""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rdpgraph._cache import differentiable_property
from rdpgraph._numbers import student
from rdpgraph.engines.status import Status
from rdpgraph.errors import UnsupportedError
from rdpgraph.model.semiring import soft_sum
from rdpgraph.structures.draws import uniform

_FEW = 8  # fewer replicates do not show that they miss something


@dataclass(frozen=True, eq=False)
class Replicates:
    """Independent estimates of one partition function, or draws that have equal weights.

    Attributes:
        log_partitions: (replicates, *batch) nats; -inf where nothing kept was possible.
        equal: whether the possible ones have equal weights, whatever these are; the mean is no Z.
    """

    log_partitions: Tensor
    equal: bool = False

    @property
    def count(self) -> int:
        """How many replicates there are."""
        return self.log_partitions.shape[0]

    @differentiable_property
    def log_partition(self) -> Tensor:
        """(*batch,) the log of the mean of Z, which is unbiased for Z and too low for log Z.

        Raises:
            UnsupportedError: draws of equal weights, which estimate no Z.
        """
        self.require_estimates()
        return soft_sum(self.log_partitions, 0) - math.log(self.count)

    def require_estimates(self) -> None:
        """Refuse draws of equal weights, which estimate no Z.

        Raises:
            UnsupportedError: these are such.
        """
        if self.equal:
            raise UnsupportedError(
                "An average of dependent draws with equal weights has no log Z, and nothing that "
                "needs one; its marginals, samples and modes are answered."
            )

    @property
    def possible(self) -> Tensor:
        """(replicates, *batch) where anything is."""
        return self.log_partitions.detach() > -math.inf

    @differentiable_property
    def weights(self) -> Tensor:
        """(replicates, *batch) each one's share of the mean; zero where log Z is -inf."""
        alive = self.possible
        if self.equal:
            return alive.to(self.log_partitions) / alive.sum(0).clamp(min=1)
        # They sum to one up to their own rounding, and not to that of a log Z of any size.
        logs = torch.where(alive.any(0), self.log_partitions, 0.0)
        return torch.where(alive, logs.softmax(0), 0.0)

    @property
    def standard_error(self) -> Tensor:
        """(*batch,) of log Z, by the delta method, nats; +inf with one replicate, or where Z is 0.

        Few replicates know it badly: `interval` allows for that.
        """
        if self.count == 1:
            return torch.full_like(self.log_partitions[0].detach(), math.inf)
        relative = self.weights.detach() * self.count
        error = (relative.var(0) / self.count).sqrt()
        return torch.where(self.possible.any(0), error, math.inf)

    def interval(self, confidence: float) -> tuple[Tensor, Tensor]:
        """(*batch,) and (*batch,): the ends by Student's t; infinite with one replicate.

        They hold log Z about that often where replicates differ little.
        """
        log_z, error = self.log_partition.detach(), self.standard_error
        half = student(0.5 + confidence / 2, self.count - 1) * error
        known = half < math.inf
        ends = (torch.where(known, log_z + sign * half, sign * math.inf) for sign in (-1, 1))
        low, high = ends
        return low, high

    @property
    def effective_sample_size(self) -> Tensor:
        """(*batch,) the square of the sum of Z over the sum of its squares; 0 where Z is 0."""
        squares = self.weights.detach().square().sum(0)
        return torch.where(squares > 0, 1.0 / torch.where(squares > 0, squares, 1.0), 0.0)

    def described(self, status: Status) -> Status:
        """A status with their error and effective number, of the item that is known worst.

        None of one replicate, or of draws with equal weights, which say nothing of their error.
        Converged: there are eight and more, and no few of them weigh most. Where messages iterate,
        it is about these, for nothing is known of their error.
        """
        known = self.count > 1 and not self.equal and self.log_partitions.numel() > 0
        status = replace(
            status,
            standard_error=float(self.standard_error.amax()) if known else None,
            effective_sample_size=float(self.effective_sample_size.amin()) if known else None,
        )
        if status.exact or status.bound or self.equal or not self.log_partitions.numel():
            return status
        size = float(self.effective_sample_size.amin())
        if not bool(self.possible.any(0).all()):
            doubt = (
                "no replicate has a possible configuration, so that the kept states of neighbours "
                "cannot be joined: keep more states, or take Exact()"
            )
        elif status.iterations is not None:
            return status
        elif self.count < _FEW:
            doubt = (
                f"{self.count} of {_FEW} replicates that an error is known by: replicates=16, and "
                "interval() for the error by Student's t"
            )
        elif size < self.count / 2:
            doubt = f"{self.count} replicates are worth {size:.2g}: keep more states"
        else:
            return status
        return replace(status, converged=False, remedy=status.remedy or doubt)

    def mean(self, values: Tensor) -> Tensor:
        """(*batch, ...) the mean of (replicates, *batch, ...) values, weighted by Z."""
        extra = values.ndim - self.weights.ndim
        return (values * self.weights.reshape(*self.weights.shape, *(1,) * extra)).sum(0)

    def choose(self, count: int, generator: torch.Generator | None) -> Tensor:
        """(count, *batch) replicates drawn in proportion to their Z."""
        weights = self.weights.detach().double()
        heights = weights.cumsum(0)
        total = heights[-1]
        target = uniform((count, *total.shape), total.device, generator) * total
        target = torch.minimum(target, total.nextafter(torch.zeros_like(total)))
        return (heights.unsqueeze(1) <= target).sum(0).clamp(max=self.count - 1)


def draws_before(chosen: Tensor) -> Tensor:
    """(count, *batch) for each draw how many before it came from the same replicate.

    So many draws of every replicate are enough.

    Args:
        chosen: (count, *batch) the replicate of each draw.
    """
    ordered, order = chosen.sort(dim=0, stable=True)
    place = torch.arange(len(chosen), device=chosen.device)
    place = place.reshape(-1, *(1,) * (chosen.ndim - 1)).expand_as(chosen)
    new = torch.ones_like(chosen, dtype=torch.bool)
    new[1:] = ordered[1:] != ordered[:-1]
    first = torch.where(new, place, 0).cummax(0).values if len(chosen) else place
    return torch.zeros_like(chosen).scatter(0, order, place - first)


def taken(drawn: Tensor, chosen: Tensor) -> Tensor:
    """(count, *batch, ...) for each replicate chosen the next of its draws, in turn.

    Args:
        drawn: (many, replicates, *batch, ...) the draws of all replicates.
        chosen: (count, *batch) the replicate of each draw.
    """
    index = draws_before(chosen) * drawn.shape[1] + chosen
    index = index.reshape(*index.shape, *(1,) * (drawn.ndim - 1 - index.ndim))
    return drawn.flatten(0, 1).take_along_dim(index, 0)
