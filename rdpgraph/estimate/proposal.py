"""The interface of a proposal: which states look likely."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast

import torch
from torch import Tensor

from rdpgraph._numbers import is_real
from rdpgraph.errors import ModelError
from rdpgraph.estimate.setting import Setting
from rdpgraph.model.sites import Sites

Scores: TypeAlias = tuple[Tensor, ...]
"""For each group of sites (*batch, *sites, states), or what broadcasts to that."""


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
        """The log-scores of all groups of sites of a model; asked for once."""
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
        """The log of the weighted mean of the normalised scores."""
        return mixed(((part.log_scores(sites),) for part in self.proposals), self.weights)[0]

    def scores_of(self, setting: Setting) -> Scores:
        """The logs of the weighted means of the normalised scores."""
        return mixed((part.scores_of(setting) for part in self.proposals), self.weights)


def mixed(scores: Iterable[Scores], weights: Sequence[float]) -> Scores:
    """The logs of the weighted means of several proposals' scores, each normalised before.

    Args:
        scores: of each proposal; made one after the other, none is held for longer than it takes.
        weights: as many, positive.
    """
    means: list[Tensor] = []
    for weight, every in zip(weights, scores, strict=True):
        shares = [normalised(part, math.log(weight / sum(weights))) for part in every]
        del every
        means = list(map(torch.logaddexp, means, shares)) if means else shares
    return tuple(means)


def normalised(log_scores: Tensor, share: float = 0.0) -> Tensor:
    """Log-probabilities of the states of each site; -inf throughout where nothing is possible.

    Args:
        log_scores: (..., states).
        share: added to all of them.
    """
    total = log_scores.logsumexp(-1, keepdim=True)
    return log_scores - torch.where(total > -math.inf, total - share, 0.0)
