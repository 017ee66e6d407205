"""The variational posterior: a mixture of Gaussians over functions, a Gaussian over label pairs."""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from rdpgraph.gp.algebra import cholesky, noise
from rdpgraph.gp.covariances import Covariance
from rdpgraph.gp.entropy import EntropyBound
from rdpgraph.gp.inducing import Conditional
from rdpgraph.gp.labelling import Pieces

_DTYPE = torch.float64


@dataclass(frozen=True, eq=False)
class Gaussians:
    """What is sampled for the expected log-likelihood: nothing larger than T x T (theorem 2).

    Attributes:
        mean: (B, V, T) of the functions at the positions of each sequence.
        covariance: (B, V, T, T).
        pairwise_mean: (V, V).
        pairwise_scale: (V, V) standard deviations.
    """

    mean: Tensor
    covariance: Tensor
    pairwise_mean: Tensor
    pairwise_scale: Tensor

    def root(self) -> Tensor:
        """(B, V, T, T) lower Cholesky factors of the covariances."""
        return cholesky(
            self.covariance,
            "the functions at the positions of a sequence",
            "training has diverged, or the nugget is below the rounding of the variances; take "
            "smaller steps, or a larger nugget",
        )


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
        device: of the parameters.
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
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        device = device or torch.get_default_device()
        kind: dict[str, Any] = {"dtype": _DTYPE, "device": device}
        apart = noise(components, labels, points, **kind, generator=generator)
        self.means = nn.Parameter(apart * (0.1 if components > 1 else 0.0))
        self.logits = nn.Parameter(torch.zeros(components, **kind))
        self.covariance = covariance.started(components, labels, points, scale=scale, device=device)
        self.pairwise_mean = nn.Parameter(torch.zeros(labels, labels, **kind))
        start = torch.full((labels, labels), math.log(scale * pairwise_scale), **kind)
        self.pairwise_log_scale = nn.Parameter(start)
        self.pairwise_prior = pairwise_scale
        self.entropy = entropy

    @property
    def components(self) -> int:
        """K, the number of components of the mixture."""
        return len(self.logits)

    def weights(self) -> Tensor:
        """(K,) of the components."""
        return self.logits.softmax(0)

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
        """The functions at the positions of B sequences under one component (theorem 3).

        Equation 18 in whitened coordinates; O(T^2 M) for each label and sequence.
        """
        posterior, given = self.posterior, self.given
        mean = torch.einsum("btm,vm->bvt", given.rows, posterior.means[self.component])
        covariance = posterior.covariance.projected(given, self.component)
        return Gaussians(
            mean,
            covariance + given.covariance.unsqueeze(1),
            posterior.pairwise_mean,
            posterior.pairwise_log_scale.exp(),
        )

    def drawn(
        self,
        samples: int,
        *,
        dtype: torch.dtype,
        generator: torch.Generator | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Samples (S, B, T, V) and (S, V, V) of the scores under one component.

        Each is one draw of the functions, the same for all B sequences, and comes with its mirror
        image, except for the last of an odd number. O(S T M V) for a sequence. Differentiable.

        Args:
            samples: S.
            dtype: of the samples.
            generator: of the noise.
        """
        posterior, given, half = self.posterior, self.given, (samples + 1) // 2
        batch, steps, points = given.rows.shape
        labels = len(posterior.pairwise_mean)

        def normal(*shape: int) -> Tensor:
            return noise(half, *shape, dtype=dtype, device=given.rows.device, generator=generator)

        spread = posterior.covariance.spread(normal(labels, points), self.component)
        centre = posterior.means[self.component].to(dtype)
        flat = given.rows.to(dtype).flatten(0, 1)
        both = (flat @ torch.cat([centre, spread.flatten(0, 1)]).mT).unflatten(1, (-1, labels))
        both = both.unflatten(0, (batch, steps)).permute(2, 0, 1, 3)
        own = torch.einsum("btu,sbuv->sbtv", given.root.to(dtype), normal(batch, steps, labels))
        moved = both[1:] + own
        pair = posterior.pairwise_log_scale.exp().to(dtype) * normal(labels, labels)
        middle = posterior.pairwise_mean.to(dtype)
        unary = both[:1] + torch.cat([moved, -moved])[:samples]
        return unary, middle + torch.cat([pair, -pair])[:samples]

    def cut(self, pieces: Pieces) -> "Functions":
        """The functions at the positions of pieces of the sequences."""
        return replace(self, given=self.given.cut(pieces))
