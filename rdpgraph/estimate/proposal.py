"""The interface of a proposal: which states look likely."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from rdpgraph.errors import ModelError
from rdpgraph.estimate.setting import Setting
from rdpgraph.model.sites import Sites


class Proposal(ABC):
    """Log-scores over the states of every site; they need not be normalised.

    Any scores give an unbiased estimate of Z, as long as no state that matters has -inf; the
    nearer they are to the marginals, the smaller its variance. They are computed without gradient.

    Example:
        >>> class Sharpened(Proposal):
        ...     def log_scores(self, sites):
        ...         return 2 * sites.unary
    """

    @abstractmethod
    def log_scores(self, sites: Sites) -> Tensor:
        """(*batch, *sites, states) log-scores, or what broadcasts to that; -inf: never kept."""

    def informed(self, setting: Setting) -> "Proposal":
        """The proposal to use in this setting; called once, before any scores are asked for."""
        return self


class FromModel(Proposal):
    """A proposal that has scores only after `informed` has asked about the whole model."""

    def log_scores(self, sites: Sites) -> Tensor:
        """Not before the model is known.

        Raises:
            ModelError: always.
        """
        raise ModelError(
            f"{type(self).__name__} has no scores before informed(setting) has seen the model."
        )

    @abstractmethod
    def informed(self, setting: Setting) -> Proposal:
        """The proposal that the model gives; called once."""


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
        object.__setattr__(self, "proposals", tuple(self.proposals))
        object.__setattr__(self, "weights", tuple(self.weights))
        positive = all(0 < weight < math.inf for weight in self.weights)
        if not self.proposals or len(self.proposals) != len(self.weights) or not positive:
            raise ModelError(
                "Mixture needs a positive weight for each of one or more proposals; got "
                f"{len(self.proposals)} proposals and weights {self.weights}."
            )

    def log_scores(self, sites: Sites) -> Tensor:
        """The log of the weighted mean of the normalised scores."""
        total: Tensor | None = None
        for proposal, weight in zip(self.proposals, self.weights, strict=True):
            share = math.log(weight / sum(self.weights))
            part = normalised(proposal.log_scores(sites)) + share
            total = part if total is None else torch.logaddexp(total, part)
        assert total is not None
        return total

    def informed(self, setting: Setting) -> "Mixture":
        """The same mixture of proposals that have each seen the model."""
        return Mixture(tuple(part.informed(setting) for part in self.proposals), self.weights)


@dataclass(frozen=True, eq=False)
class Given(Proposal):
    """Scores that are known already.

    Args:
        scores: for each group of sites.
        groups: which they are.
    """

    scores: tuple[Tensor, ...]
    groups: tuple[Sites, ...]

    def log_scores(self, sites: Sites) -> Tensor:
        """The scores given for these sites."""
        for known, scores in zip(self.groups, self.scores, strict=True):
            if known is sites:
                return scores
        raise ModelError("Given scores are of other sites than those asked for.")


def normalised(log_scores: Tensor) -> Tensor:
    """Log-probabilities of the states of each site; -inf throughout where nothing is possible."""
    total = log_scores.logsumexp(-1, keepdim=True)
    return log_scores - torch.where(total > -math.inf, total, 0.0)
