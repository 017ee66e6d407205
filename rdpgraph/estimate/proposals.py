"""Proposals: their interface, and those that read potentials of a site and its neighbours."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor

from rdpgraph._core.numbers import is_real, is_whole
from rdpgraph.engines.reduction.network import Network
from rdpgraph.engines.reduction.tables import Floats
from rdpgraph.errors import ModelError
from rdpgraph.estimate.estimator import Model, Setting
from rdpgraph.estimate.selections import TopSystematic
from rdpgraph.interface.sites import Sites

Scores: TypeAlias = tuple[Tensor, ...]
"""Per group of sites (*batch, *sites, states), or broadcastable to that."""


class Proposal:
    """Log-scores over the states of every site; they need not be normalised.

    Any scores give an unbiased estimate of Z, as long as no state that matters has -inf; the
    nearer they are to the marginals, the smaller its variance. They are computed without gradient.
    A proposal has `log_scores`, or `scores_of` where it looks at the whole model.

    Example:
        >>> class Sharpened(Proposal):
        ...     def log_scores(self, sites):
        ...         return 2 * sites.unary
    """

    def log_scores(self, sites: Sites) -> Tensor:
        """(*batch, *sites, states) log-scores, or what broadcasts to that; -inf: never selected.

        Raises:
            ModelError: this proposal has `scores_of` of all sites together.
        """
        raise ModelError(
            f"{type(self).__name__} has no scores of some sites alone: ask for scores_of(setting), "
            "or give it log_scores(sites)."
        )

    def scores_of(self, setting: Setting) -> Scores:
        """Log-scores of all groups of sites of a model; asked for once."""
        return tuple(self.log_scores(sites) for sites in setting.groups)


@dataclass(frozen=True)
class Mixture(Proposal):
    """A weighted mean of normalised proposals.

    A small share of a broad one keeps every state within reach: the weight of a state drawn is
    then at most that of the broad proposal alone, divided by the share.

    Args:
        proposals: one or more.
        weights: as many, positive; normalised to sum to one.
    """

    proposals: tuple[Proposal, ...]
    weights: tuple[float, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.proposals, Iterable) or not isinstance(self.weights, Iterable):
            raise ModelError(
                "Mixture needs lists of proposals and of their weights; got "
                f"{self.proposals!r:.80} and {self.weights!r:.80}."
            )
        object.__setattr__(self, "proposals", tuple(self.proposals))
        object.__setattr__(self, "weights", tuple(self.weights))
        for part in self.proposals:
            if not isinstance(cast(object, part), Proposal):
                raise ModelError(f"Mixture needs proposals, such as Local(); got {part!r:.80}.")
        positive = all(is_real(weight) and 0 < weight < math.inf for weight in self.weights)
        if not self.proposals or len(self.proposals) != len(self.weights) or not positive:
            raise ModelError(
                "Mixture needs a positive weight for each of one or more proposals; got "
                f"{len(self.proposals)} proposals and weights {self.weights}."
            )

    def log_scores(self, sites: Sites) -> Tensor:
        """Log of the weighted mean of the normalised scores."""
        return mixed(((part.log_scores(sites),) for part in self.proposals), self.weights)[0]

    def scores_of(self, setting: Setting) -> Scores:
        return mixed((part.scores_of(setting) for part in self.proposals), self.weights)


def mixed(scores: Iterable[Scores], weights: Sequence[float]) -> Scores:
    """Logs of the weighted means of several proposals' scores, each normalised first.

    ``scores`` are made one after the other, so that none is held for longer than it takes.
    """
    means: list[Tensor] = []
    for weight, every in zip(weights, scores, strict=True):
        shares = [normalised(part, math.log(weight / sum(weights))) for part in every]
        del every
        means = list(map(torch.logaddexp, means, shares)) if means else shares
    return tuple(means)


def normalised(log_scores: Tensor, share: float = 0.0) -> Tensor:
    """Log-probabilities (..., states) plus ``share``; -inf throughout where nothing is possible."""
    total = log_scores.logsumexp(-1, keepdim=True)
    return log_scores - torch.where(total > -math.inf, total - share, 0.0)


@dataclass(frozen=True)
class Uniform(Proposal):
    """Equal scores for all states that a site's own potential allows."""

    def log_scores(self, sites: Sites) -> Tensor:
        return torch.where(sites.unary > -math.inf, 0.0, -math.inf).to(sites.unary)


@dataclass(frozen=True)
class Local(Proposal):
    """Softmax of a site's own log-potential, an emission for instance."""

    def log_scores(self, sites: Sites) -> Tensor:
        return sites.unary


@dataclass(frozen=True)
class Global(Proposal):
    """L1 norm of a state's embedding: large norms make large inner products.

    The second term of Fu, Cunningham and Lapata 2022, eq. 34, as it is printed. `SoftmaxGlobal` is
    what their released code computes. A state has the mean over its `Bilinear` factors; if a model
    has no embeddings, the mean factor value over a few random states of the neighbours is used
    instead.

    Args:
        landmarks: number of states, in that case.
    """

    landmarks: int = 16

    def log_scores(self, sites: Sites) -> Tensor:
        """Log of the norm, or of the mean factor value if there are no embeddings."""
        norms = sites.norms()
        if norms is None:
            return sites.mean_values(self.landmarks)
        bare = (norms == 0).all(-1, keepdim=True)
        return torch.where(bare, 0.0, norms.log())


@dataclass(frozen=True)
class SoftmaxGlobal(Proposal):
    """Softmax of the L1 norm of a state's embedding, as in the authors' code.

    Fu, Cunningham and Lapata 2022; `Global` is the formula of their paper. Without embeddings the
    two are the same.

    Args:
        landmarks: as for `Global`.
    """

    landmarks: int = 16

    def log_scores(self, sites: Sites) -> Tensor:
        """Norm of the embedding, or the log of the mean factor value if there are no embeddings."""
        norms = sites.norms()
        return sites.mean_values(self.landmarks) if norms is None else norms


def LocalGlobal(prior: Proposal | None = None) -> Mixture:
    """Half `Local`, half a global prior: Fu, Cunningham and Lapata 2022, eq. 34.

    With `Global` the formula as printed, where phi is the exponential of the emission score; with
    `SoftmaxGlobal` what the released code computes.

    Args:
        prior: the global half; default `Global()`.
    """
    return Mixture((Local(), Global() if prior is None else prior), (0.5, 0.5))


@dataclass(frozen=True)
class Landmark(Proposal):
    """Product of a site's own potential and its factors' mean values over random neighbour states.

    O(count N) evaluations per factor, whatever the potentials.

    Args:
        count: number of random states.
    """

    count: int = 8

    def __post_init__(self) -> None:
        if not is_whole(self.count, 1):
            raise ModelError(f"Landmark needs a count of states >= 1; got {self.count!r:.80}.")

    def log_scores(self, sites: Sites) -> Tensor:
        return sites.unary + sites.mean_values(self.count)


def broad() -> Proposal:
    """Half `Landmark`, half `LocalGlobal(SoftmaxGlobal())`, each good where the other errs."""
    return Mixture((Landmark(), LocalGlobal(SoftmaxGlobal())), (0.5, 0.5))


@dataclass(frozen=True)
class Oracle(Proposal):
    """Marginals of the whole model, for tests and for plots of the least error.

    Costs the inference that an estimator is there to avoid.
    """

    def scores_of(self, setting: Setting) -> Scores:
        marginals = setting.marginals(setting.solve(setting.model))
        return tuple(torch.where(m > 0, m.clamp(min=0.0).log(), -math.inf) for m in marginals)


_KEPT = 0.5
"""Fraction of the states that proposals with inference of their own keep; as many are drawn."""


@torch.no_grad()
def log_likely(
    proposal: Proposal,
    network: Network,
    *,
    solve: Callable[[Model], Any],
    generator: torch.Generator | None,
) -> list[list[Floats]]:
    """Per batch item and active variable the log-probabilities of its remaining states.

    Equal ones for auxiliary variables, and where the proposal gives -inf to all states.
    """
    setting = Setting.of(
        network.graph, TopSystematic(_KEPT, _KEPT), solve=solve, generator=generator
    )
    of_groups = proposal.scores_of(setting) if setting.groups else ()
    rows = {int(number): place for place, number in enumerate(network.numbers.tolist())}
    equal = [np.full(size, -np.log(max(size, 1))) for size in network.sizes]
    every = [list(equal) for _ in range(network.batch)]
    for sites, given in zip(setting.groups, of_groups, strict=True):
        scores = given.to(sites.unary).expand(sites.unary.shape)
        if bool((scores.isnan() | (scores == torch.inf)).any()):
            raise ModelError(f"{type(proposal).__name__} gives scores that are NaN or +inf.")
        flat = scores.double().cpu().reshape(-1, *sites.unary.shape[-2:])
        flat = flat.expand(network.batch, *flat.shape[1:])
        assert sites.numbers is not None
        for site, number in enumerate(sites.numbers.tolist()):
            place = rows.get(number)
            if place is None:
                continue
            alone = torch.tensor([number], device="cpu")
            states = network.states_left(alone, network.sizes[place])[0]
            here = flat[:, site, states]
            silent = (here == -torch.inf).all(-1, keepdim=True)  # it knows of no possible state
            log_chances = normalised(torch.where(silent, 0.0, here)).numpy()
            for item in range(network.batch):
                every[item][place] = log_chances[item]
    return every
