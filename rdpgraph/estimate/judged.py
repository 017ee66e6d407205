"""Errors and statuses of estimates, and lower bounds on Z that show what they lack."""

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from rdpgraph._cache import cached_property
from rdpgraph.engines.solution import Solution
from rdpgraph.engines.status import Status
from rdpgraph.errors import BudgetError
from rdpgraph.estimate.replicates import Replicates
from rdpgraph.estimate.setting import Model, Supports, restricted
from rdpgraph.model.support import Support

_SURE = 0.999  # of the interval that a lower bound is above, where the estimate is called low
_LITTLE = 1e6  # multiply-adds that take no longer than a model's overhead
_ROUNDING = 1e-6  # nats


class Judged(Solution):
    """A solution on some states, as far as it says how sure it is."""

    restriction: Any
    inner: Solution
    replicates: Any

    def engine_status(self) -> Status:
        """The engine's status, with the bias of the choice of states."""
        engine, restriction = self.inner.status(), self.restriction
        exact = engine.exact and restriction.exact
        bound = engine.bound if restriction.exact else restriction.bound if engine.exact else ""
        return replace(engine, exact=exact, biased=not exact, bound=bound)

    def status(self) -> Status:
        """The engine's status, with the bias and the error that the replicates show.

        Converged: the replicates agree, and their states taken together have no more mass.
        """
        status = self.replicates.described(self.engine_status())
        if not bool((self._lacking != 0).any()):
            return status
        remedy = (
            "states that different replicates keep have more mass together than the estimate, or "
            "all states another: keep more states, or take Exact()"
        )
        error = float(self.log_partition_errors().amax())
        return replace(status, converged=False, remedy=remedy, standard_error=error)

    def log_partition_errors(self) -> Tensor:
        """(B,) by the replicates; no less than what they lack of a lower bound."""
        return torch.maximum(self.replicates.standard_error, self._lacking.abs())

    def interval(self, confidence: float) -> tuple[Tensor, Tensor]:
        """(B,) and (B,) by Student's t; any number above where the replicates are too low."""
        if self.engine_status().exact or self.restriction.bound or self.restriction.equal:
            return super().interval(confidence)
        low, high = self.replicates.interval(confidence)
        low = torch.where(self._lacking < 0, -math.inf, low)
        return low, torch.where(self._lacking > 0, math.inf, high)

    @cached_property
    def _lacking(self) -> Tensor:
        """(B,) nats by which log Z is above the estimate, or below; 0 if that may be chance."""
        replicates, status = self.replicates, self.engine_status()
        drawn = replicates.count > 1 and not replicates.equal and not status.bound
        if drawn and not status.exact and self.inner.status().exact:
            restriction = self.restriction
            pairs = zip(restriction.supports, restriction.layout.expanded, strict=True)
            supports = tuple(given and full for given, full in pairs)
            return lacking(
                restriction.original, restriction.model, supports, replicates, restriction.solve
            )
        return torch.zeros_like(replicates.log_partitions[0].detach())


@torch.no_grad()
def lacking(
    model: Model,
    few: Model,
    supports: Supports,
    replicates: Replicates,
    solve: Callable[[Model], Any],
) -> Tensor:
    """(B,) nats by which log Z is above the estimate, or below; 0 if that may be chance.

    The mass of the states that several replicates keep, each counted as it is, is a lower bound on
    Z. It joins states of neighbours that no replicate has together. As many replicates are taken as
    cost no more than the estimate; or all states, where these do not, whose mass is Z itself.

    Args:
        model: as declared.
        few: that on the states kept.
        supports: (replicates, *batch, *shape, kept) those, or None for all.
        replicates: the estimates.
        solve: gives the posterior of a model.
    """
    none = torch.zeros_like(replicates.log_partitions[0].detach())
    most = max(solve(few).plan.flops, _LITTLE)
    for wider in _wider(model, supports, replicates.count):
        with suppress(BudgetError):
            posterior = solve(wider)
            if posterior.plan.flops <= most and posterior.status.exact:
                bound = posterior.solution.log_partition()
                low, high = replicates.interval(_SURE)
                beyond = bound > torch.where(high < math.inf, high, low)
                if wider is model:
                    beyond |= bound < low
                gap = torch.where(beyond, bound, 0.0) - replicates.log_partition
                return torch.where(beyond, gap + gap.sign() * _ROUNDING, none)
    return none


def _wider(model: Model, supports: Supports, count: int) -> Iterator[Model]:
    """The model on all states, then on those of fewer and fewer replicates together."""
    yield model
    while count > 1:
        yield restricted(model, tuple(given and _together(given, count) for given in supports))
        count //= 2


def _together(support: Support, count: int) -> Support:
    """(1, *lead, kept) the states of the first replicates of (replicates, *lead, kept), once."""
    support = support.unweighted().map(lambda part: part[:count].movedim(0, -2).flatten(-2))
    # Of a state the entry that is masked comes last.
    order = (support.states * 2 + (support.log_weights == -math.inf)).argsort(-1)
    support = support.map(lambda part: part.gather(-1, order))
    masked = support.log_weights == -math.inf
    masked[..., 1:] |= support.states[..., 1:] == support.states[..., :-1]
    first = masked.long().argsort(dim=-1, stable=True)
    first = first[..., : max(int((~masked).sum(-1).max()), 1)]
    log_weights = support.log_weights.masked_fill(masked, -math.inf)
    support = Support(support.states, log_weights)
    return support.map(lambda part: part.gather(-1, first).unsqueeze(0))
