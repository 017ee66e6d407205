"""Lower bounds of the entropy of a mixture of Gaussians; all are exact for one component."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor

from rdpgraph.gp.covariances import Covariance


@dataclass(frozen=True, eq=False)
class Mixture:
    """What bounds are made of: K components, and pairs of them.

    Attributes:
        log_weights: (K,) normalised.
        single: (K,) entropies of the components.
        log_determinants: (K, K) of the sums of their covariances.
        distances: (K, K) squared, of their means, in the metric of those sums.
        dimension: of the space.
    """

    log_weights: Tensor
    single: Tensor
    log_determinants: Tensor
    distances: Tensor
    dimension: int


class EntropyBound(ABC):
    """A lower bound of the entropy of a mixture, so that the ELBO stays one of the evidence."""

    def entropy(self, log_weights: Tensor, means: Tensor, covariance: Covariance) -> Tensor:
        """() nats; differentiable.

        Args:
            log_weights: (K,) normalised.
            means: (K, V, M).
            covariance: of the components.
        """
        single = _gaussian(means, covariance)
        if len(log_weights) == 1:
            return single.sum()
        pairs = covariance.pairs(means)
        return self.bound(Mixture(log_weights, single, *pairs, means.shape[1] * means.shape[2]))

    @abstractmethod
    def bound(self, mixture: Mixture) -> Tensor:
        """() nats, of two components or more."""


class JensenBound(EntropyBound):
    """Equation 35 of the paper: - sum_k w_k log sum_l w_l N(m_k; m_l, S_k + S_l).

    Low by D (1 - log 2) / 2 nats for D dimensions even where components are far apart or the same,
    so two components may bound the evidence less tightly than one, whose entropy is exact.
    """

    def bound(self, mixture: Mixture) -> Tensor:
        """() nats, of two components or more."""
        constant = mixture.dimension * math.log(2 * math.pi)
        densities = -(constant + mixture.log_determinants + mixture.distances) / 2
        logs = mixture.log_weights
        return -(logs.exp() * (logs + densities).logsumexp(-1)).sum()


class PairwiseBound(EntropyBound):
    """By Bhattacharyya distances between components: exact where they are the same or far apart.

    Kolchinsky and Tracey 2017, "Estimating mixture entropy with pairwise distances", equation 10
    and section 3.2.
    """

    def bound(self, mixture: Mixture) -> Tensor:
        """() nats, of two components or more."""
        own = mixture.log_determinants.diagonal()
        wider = mixture.log_determinants - (own.unsqueeze(1) + own) / 2
        overlap = (mixture.log_weights - mixture.distances / 4 - wider / 2).logsumexp(-1)
        return (mixture.log_weights.exp() * (mixture.single - overlap)).sum()


def _gaussian(means: Tensor, covariance: Covariance) -> Tensor:
    """(K,) the entropies of the components, nats."""
    dimension = means.shape[1] * means.shape[2]
    return (covariance.log_determinants() + dimension * (1 + math.log(2 * math.pi))) / 2
