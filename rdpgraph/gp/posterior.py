"""The variational posterior: a mixture of Gaussians over functions, a Gaussian over label pairs."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rdpgraph.gp.covariances import Covariance
from rdpgraph.gp.entropy import EntropyBound
from rdpgraph.gp.inducing import Conditional

_DTYPE = torch.float64


@dataclass(frozen=True, eq=False)
class Gaussians:
    """What is sampled for the expected log-likelihood: nothing larger than T x T (theorem 2).

    Attributes:
        mean: (B, V, T) of the functions at the positions of each sequence.
        root: (B, V, T, T) lower Cholesky factors of their covariances.
        pairwise_mean: (V, V).
        pairwise_scale: (V, V) standard deviations.
    """

    mean: Tensor
    root: Tensor
    pairwise_mean: Tensor
    pairwise_scale: Tensor


class VariationalPosterior(nn.Module):
    """q(v) = sum_k w_k prod_j N(v_j; m_kj, S_kj) over whitened functions, and q(f_bin).

    Functions at the inducing points are kappa(Z, Z)^(1/2) v, so that the prior of v is N(0, I):
    equations 8 and 16 in other coordinates, in which divergences and bounds are the same and
    gradients are better scaled. q(f_bin) is N(mean, scale^2), independent for each pair, with the
    prior N(0, pairwise_scale^2).

    Args:
        labels: V of them.
        points: M inducing points.
        components: K of the mixture.
        covariance: its kind.
        entropy: the bound of the mixture's entropy.
        pairwise_scale: prior standard deviation of the score of a pair of labels.
        scale: standard deviations at the start, as a part of the prior's.
        generator: of the means at the start, which are zero for one component and small otherwise.
    """

    def __init__(
        self,
        labels: int,
        points: int,
        *,
        components: int,
        covariance: Covariance,
        entropy: EntropyBound,
        pairwise_scale: float,
        scale: float,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        apart = torch.randn(components, labels, points, generator=generator, dtype=_DTYPE)
        self.means = nn.Parameter(apart * (0.1 if components > 1 else 0.0))
        self.logits = nn.Parameter(torch.zeros(components, dtype=_DTYPE))
        self.covariance = covariance.started(components, labels, points, scale=scale)
        self.pairwise_mean = nn.Parameter(torch.zeros(labels, labels, dtype=_DTYPE))
        start = torch.full((labels, labels), math.log(scale * pairwise_scale), dtype=_DTYPE)
        self.pairwise_log_scale = nn.Parameter(start)
        self.pairwise_prior = pairwise_scale
        self.entropy = entropy

    @property
    def components(self) -> int:
        """K."""
        return len(self.logits)

    def weights(self) -> Tensor:
        """(K,) of the components."""
        return self.logits.softmax(0)

    def gaussians(self, given: Conditional, component: int) -> Gaussians:
        """The functions at the positions of B sequences under one component (theorem 3).

        Equation 18 in whitened coordinates; O(T^2 M + T^3) for each label and sequence.
        """
        mean = torch.einsum("btm,vm->bvt", given.rows, self.means[component])
        covariance = self.covariance.projected(given, component)
        root = torch.linalg.cholesky(covariance + given.covariance.unsqueeze(1))
        return Gaussians(mean, root, self.pairwise_mean, self.pairwise_log_scale.exp())

    def drawn(
        self,
        given: Conditional,
        component: int,
        samples: int,
        *,
        dtype: torch.dtype,
        generator: torch.Generator | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Samples (S, B, T, V) and (S, V, V) of the scores under one component.

        Each is one draw of the functions, the same for all B sequences, and comes with its mirror
        image, except for the last of an odd number. O(S T M V) for a sequence. Differentiable.

        Args:
            given: the functions at the positions, given those at the inducing points.
            component: of the mixture.
            samples: S.
            dtype: of the samples.
            generator: of the noise.
        """
        half = (samples + 1) // 2
        batch, steps, points = given.rows.shape
        labels = len(self.pairwise_mean)

        def normal(*shape: int) -> Tensor:
            return torch.randn(half, *shape, dtype=dtype, generator=generator)

        spread = self.covariance.spread(normal(labels, points), component)
        centre, flat = self.means[component].to(dtype), given.rows.to(dtype).flatten(0, 1)
        both = (flat @ torch.cat([centre, spread.flatten(0, 1)]).mT).unflatten(1, (-1, labels))
        both = both.unflatten(0, (batch, steps)).permute(2, 0, 1, 3)
        own = torch.einsum("btu,sbuv->sbtv", given.root.to(dtype), normal(batch, steps, labels))
        moved = both[1:] + own
        pair = self.pairwise_log_scale.exp().to(dtype) * normal(labels, labels)
        middle = self.pairwise_mean.to(dtype)
        unary = both[:1] + torch.cat([moved, -moved])[:samples]
        return unary, middle + torch.cat([pair, -pair])[:samples]

    def divergence(self) -> Tensor:
        """() nats: KL(q(u) || p(u)) + KL(q(f_bin) || p(f_bin)); for mixtures an upper bound."""
        means, covariance = self.means, self.covariance
        size = means.shape[1] * means.shape[2]
        log_weights = self.logits.log_softmax(0)
        squares = means.square().sum((1, 2)) + covariance.traces()
        cross = (log_weights.exp() * (squares + size * math.log(2 * math.pi))).sum() / 2
        return cross - self.entropy.entropy(log_weights, means, covariance) + self._pairwise()

    def _pairwise(self) -> Tensor:
        """Equation 33, with |V|^2 as its constant and the sign of a divergence."""
        prior = self.pairwise_prior
        log_ratio = self.pairwise_log_scale - math.log(prior)
        squares = (self.pairwise_mean / prior).square() + (2 * log_ratio).exp()
        return (squares - 1 - 2 * log_ratio).sum() / 2


@dataclass(frozen=True, eq=False)
class Functions:
    """The functions at the positions of B sequences, under one component of the posterior.

    Attributes:
        posterior: over functions.
        given: the functions at the positions, given those at the inducing points.
        component: of the mixture.
    """

    posterior: VariationalPosterior
    given: Conditional
    component: int = 0

    def gaussians(self) -> Gaussians:
        """The functions at the positions of B sequences under one component (theorem 3)."""
        return self.posterior.gaussians(self.given, self.component)

    def drawn(
        self, samples: int, *, dtype: torch.dtype, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        """Samples (S, B, T, V) and (S, V, V) of the scores under one component."""
        posterior = self.posterior
        return posterior.drawn(
            self.given, self.component, samples, dtype=dtype, generator=generator
        )
