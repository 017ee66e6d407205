"""Control variates: a randomized estimate corrected by that of a model solved exactly."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from rdpgraph.errors import ModelError
from rdpgraph.estimate.estimator import Model, sites_of
from rdpgraph.estimate.randomized import Randomized
from rdpgraph.estimate.replicates import Replicates
from rdpgraph.estimate.restriction import Restriction
from rdpgraph.estimate.signed import Signed
from rdpgraph.logspace.logmatrix import finite


@dataclass(frozen=True, eq=False)
class ControlledEstimate(Signed):
    """``Z^ = mean_r(Z^_r + c (Z_s - Z^_s,r))`` of a model, with a surrogate s known exactly.

    Unbiased for Z, whatever the surrogate and for any c fixed in advance. It may be negative:
    ``sign`` and ``log_absolute`` are the estimate itself, unbiased as a signed number, and what to
    average over runs. A log exists only where it is positive; `log_partition` takes the plain
    estimate where it is not, and that choice makes it biased, upwards in Z.

    Attributes:
        log_plain: (replicates, *batch) log Z^_r of the model, nats.
        log_control: (replicates, *batch) log Z^_s,r of the surrogate on the same states.
        log_surrogate: (*batch,) log Z_s, exact.
        coefficient: c.
    """

    log_plain: Tensor
    log_control: Tensor
    log_surrogate: Tensor
    coefficient: float

    def relative(self) -> tuple[Tensor, Tensor]:
        """The estimates, relative to the largest of their terms."""
        logs = torch.stack(
            [self.log_plain, self.log_control, self.log_surrogate.expand_as(self.log_plain)]
        )
        shift = finite(logs.detach().amax((0, 1)))
        plain, control, surrogate = (logs - shift).exp()
        return plain + self.coefficient * (surrogate - control), shift

    @property
    def log_partition(self) -> Tensor:
        """(*batch,) log Z^ where that is positive, else of the plain estimate; differentiable."""
        plain = Replicates(self.log_plain).log_partition
        return torch.where(self.sign > 0, self.log_absolute, plain)

    @property
    def standard_error(self) -> Tensor:
        """(*batch,) of Z^ relative to |Z^|, over replicates.

        +inf with one, where Z^ is 0, or where no replicate has a possible configuration of the
        model: then Z^ is the surrogate's.
        """
        known = (self.log_plain > -math.inf).any(0)
        return torch.where(known, super().standard_error, math.inf)


def controlled(
    model: Model,
    surrogate: Model,
    *,
    estimator: Randomized,
    solve: Callable[[Model], Any],
    generator: torch.Generator | None = None,
    coefficient: float = 1.0,
) -> ControlledEstimate:
    """A randomized estimate of Z with a surrogate as control variate.

    The surrogate is solved once exactly, and once more on the states that the estimator chose for
    the model. Where it is close to the model, as a low-rank one with enough features is, the two
    errors cancel; where it is not, it adds its own.

    Args:
        model: to estimate.
        surrogate: of the same variables and batch, such as
            ``LowRankFactors(features, shared=True).prepare(chain, ...).model`` for a `Chain`.
        estimator: chooses the states.
        solve: `rdpgraph.infer`.
        generator: the randomness.
        coefficient: c; 1.0 removes the surrogate's error completely. Fix it in advance: one that
            is fitted to the same replicates makes Z^ biased.

    Raises:
        ModelError: a surrogate of other variables, states or batch.
    """
    problem = estimator.prepare(model, solve=solve, generator=generator)
    restriction = problem.lift
    assert isinstance(restriction, Restriction)
    mine, theirs = (
        [tuple(sites.unary.shape) for sites in sites_of(one)]
        for one in (restriction.original, surrogate)
    )
    if mine != theirs:
        raise ModelError(
            "controlled needs a surrogate of the same variables, states and batch; the model has "
            f"sites (*batch, *sites, states) {mine}, the surrogate {theirs}."
        )
    return ControlledEstimate(
        solve(problem.model).log_partition,
        solve(replace(restriction, original=surrogate).model).log_partition,
        solve(surrogate).log_partition,
        coefficient,
    )
