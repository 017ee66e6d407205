"""The randomized sum-product estimator, and control variates from a model solved exactly."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from rdpgraph._core.arguments import require_fields, typed
from rdpgraph._core.numbers import lowest
from rdpgraph.errors import ModelError
from rdpgraph.estimate.estimator import Estimator, Model, Problem, Setting, sites_of
from rdpgraph.estimate.proposals import Pilot, Proposal, Scores, Uniform, broad, mixed
from rdpgraph.estimate.replicates import Replicates
from rdpgraph.estimate.restriction import Restriction
from rdpgraph.estimate.selections import Selection, Size, TopSystematic, checked_size
from rdpgraph.estimate.signed import Signed
from rdpgraph.interface.sites import Sites
from rdpgraph.logspace.logmatrix import finite
from rdpgraph.model.potentials.potential import checked_log_values
from rdpgraph.model.restriction import Support

_GROUPS = 4
"""Groups of replicates: each asks for scores of its own, so that one pilot does not lead all.

Given its scores, each replicate is unbiased for Z, so that replicates are uncorrelated whether they
share scores or not. But replicates that share them may all miss a mode, and then agree.
"""


@dataclass(frozen=True)
class Randomized(Estimator):
    """Inference on a few states of every variable, weighted so that Z is right on average.

    The randomized sum-product of Fu, Cunningham and Lapata 2022, on any graph: a proposal scores
    the states of every variable, a selection keeps some with log-weights, and the model on those
    is solved instead of the whole. As variables are chosen independently and Z is a sum over
    each of them in turn, the expectation of Z is exact on every graph, loops included, if the
    engine is; log Z is too low on average. With K of N states kept, a pairwise factor costs K^2
    instead of N^2. Gradients flow through the potentials of the states kept, not the choice.

    Marginals of a `Chain`, of a graph without cycles, and of any graph by `Loopy` are read at all
    states, by one step more of the messages, in O(K N) for each factor. So are those of a
    `SemiMarkov` and a `Hypertree`, in up to 8 N / K times the operations of the estimate, if exact
    inference takes longer. Without cycles Z times the marginals is unbiased. Marginals of other
    models, and all other answers, the gradient of log Z included, are those of the states kept.

    Args:
        proposal: scores the states.
        selection: chooses the states to keep, and their weights.
        replicates: how many independent choices, solved together and averaged in Z; four and more
            give a standard error. These are divided into four groups, for each of which the
            proposal is run anew, so that a pilot that misses a mode does not lead all of them.
        defensive: the share of `Uniform` mixed into the proposal, so that no possible state is
            out of reach; 0 leaves the proposal as it is.

    Raises:
        ModelError: replicates below one, or a share outside [0, 1).
    """

    takes_structures = True

    proposal: Proposal
    selection: Selection
    replicates: int = 1
    defensive: float = 0.1

    def __post_init__(self) -> None:
        require_fields(self, replicates="[1, inf)", defensive="[0, 1)")

    @staticmethod
    def default(*, keep: Size, replicates: int = 1) -> "Randomized":
        """Recommended settings: half of the states the likeliest, half a systematic sample.

        Likely by `Landmark` and `LocalGlobal` together, at O(N) for each site and factor: within a
        factor of two of the best of the quick proposals on all potentials tried.

        Args:
            keep: number of states kept of each variable, or a fraction of them.
            replicates: as for the class.
        """
        return Randomized(broad(), _halves("default", keep), replicates=replicates)

    @staticmethod
    def piloted(*, keep: Size, replicates: int = 1) -> "Randomized":
        """Recommended settings with a `Pilot`: for sharp potentials, or where few states are kept.

        With sharp potentials it divides the squared error by ten and more, and with flat ones by
        two at most. A structure that defines ``masses`` (a chain) pays O(64 N) for each factor,
        in addition to the O(K^2) of the estimate itself.

        Args:
            keep: number of states kept of each variable, or a fraction of them.
            replicates: as for the class; each of their groups has a pilot of its own.
        """
        return Randomized(Pilot(), _halves("piloted", keep), replicates=replicates)

    def prepare(
        self, model: Model, *, solve: Callable[[Model], Any], generator: torch.Generator | None
    ) -> Problem:
        """Restrict the model to the chosen states; replicates are its first batch dim."""
        with torch.no_grad():
            setting = Setting.of(model, self.selection, solve=solve, generator=generator)
            restriction = self.drawn(setting, partial(self.proposal.scores_of, setting))
        return Problem(restriction.model, restriction)

    def drawn(self, setting: Setting, scores_of: Callable[[], Scores]) -> Restriction:
        """Restrict the model to states drawn by scores, which each group of replicates asks for."""
        # The replicates of a group share its scores. These have no name here, by which they would
        # be held after they are mixed.
        parts: list[list[Support]] = []
        groups: list[int] = []
        count = _GROUPS if self.replicates >= _GROUPS else 1  # fewer show no error
        for number in range(count):
            size = (self.replicates + number) // count
            parts.append(self._chosen(setting, scores_of, size))
            groups += [number] * size
        chosen = parts[0]
        if count > 1:
            chosen = [Support.joined(part, 0) for part in zip(*parts, strict=True)]
        complete = list(map(_is_complete, chosen, setting.groups))
        if not all(complete):  # one of them at least carries the replicates
            pairs = zip(chosen, complete, strict=True)
            chosen = [None if every else support for support, every in pairs]
        return Restriction(
            setting.model, setting.supports(chosen), setting.solve,
            replicates=self.replicates, exact=all(complete), bound=self.selection.bound,
            groups=tuple(groups),
        )  # fmt: skip

    def _chosen(
        self, setting: Setting, scores_of: Callable[[], Scores], count: int
    ) -> list[Support]:
        """Choose the states of one group of replicates, (count, *batch, *sites, kept) by sites."""
        scores = scores_of() if setting.groups else ()
        if self.defensive:
            shares = (1.0 - self.defensive, self.defensive)
            scores = mixed((scores, Uniform().scores_of(setting)), shares)
        chosen: list[Support] = []
        for given, sites in zip(scores, setting.groups, strict=True):
            log_scores = given.to(sites.unary)
            # A state that its potential makes impossible adds nothing, and takes no place.
            # One that is not a number is left to the selection to refuse.
            if not lowest(sites.unary) > -math.inf:
                log_scores = torch.where(sites.unary > -math.inf, log_scores, sites.unary)
            log_scores = log_scores.expand(sites.unary.shape)
            support = self.selection.select_each(log_scores, count, setting.generator)
            checked_log_values(f"{type(self.selection).__name__}'s choice", support.log_weights)
            chosen.append(support)
        return chosen


def _halves(of: str, keep: Size) -> Selection:
    checked_size(f"Randomized.{of}", "keep", keep)
    top = keep / 2 if isinstance(keep, float) else keep // 2
    # Two halves of an odd number of states may round to less than all.
    return TopSystematic(top, keep if keep == 1.0 else keep - top)


def _is_complete(support: Support, sites: Sites) -> bool:
    """Return whether every possible state is kept with weight one."""
    if support.kept != sites.states:
        return False
    everything = torch.arange(sites.states, device=support.states.device)
    as_it_is: Tensor = (support.log_weights == 0) | (sites.unary == -torch.inf)
    return bool((support.states == everything).all()) and bool(as_it_is.all())


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

        +inf as of `Signed`, and where no replicate has a possible configuration of the model: then
        Z^ is the surrogate's.
        """
        known = (self.log_plain > -math.inf).any(0)
        return torch.where(known, super().standard_error, math.inf)


@typed(coefficient="(-inf, inf)")
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
    errors cancel; where it is not, it adds an error.

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
        ModelError: a surrogate of other variables, states or batch, or another estimator.
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
    few = problem.model, replace(restriction, original=surrogate).model
    # Without a choice of states there is one estimate, and no dim of replicates.
    shape = restriction.replicates, *restriction.original.batch_shape
    plain, control = (solve(each).log_partition.reshape(shape) for each in few)
    return ControlledEstimate(plain, control, solve(surrogate).log_partition, coefficient)
