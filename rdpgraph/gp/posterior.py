"""The variational posterior: Gaussians over functions, their covariances and entropies."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor, nn

from rdpgraph.gp.inducing import Conditional, cholesky, noise
from rdpgraph.gp.likelihoods import Pieces

_DTYPE = torch.float64


class Covariance(nn.Module, ABC):
    """The covariances of K components and V labels, each over M points.

    An object without parameters stands for its kind; `started` makes the parameters.

    Attributes:
        log_scales: (K, V, M) logarithms of the diagonals of lower Cholesky factors.
    """

    log_scales: Tensor

    def started(
        self,
        components: int,
        labels: int,
        points: int,
        *,
        scale: float,
        device: torch.device | None = None,
    ) -> Self:
        """A copy with parameters, all covariances scale^2 times the identity."""
        started, shape = type(self)(), (components, labels, points)
        logs = torch.full(shape, math.log(scale), dtype=_DTYPE, device=device)
        started.log_scales = nn.Parameter(logs)
        started._complete()
        return started

    def _complete(self) -> None:
        """Make the parameters beside the diagonals; none."""

    @abstractmethod
    def projected(self, given: Conditional, component: int, labels: slice = slice(None)) -> Tensor:
        """(B, V, T, T) covariances of the rows times the functions, of one component."""

    @abstractmethod
    def deviations(self, noise: Tensor, component: int) -> Tensor:
        """(S, V, M) standard normal noise transformed to the covariances of one component."""

    @abstractmethod
    def traces(self) -> Tensor:
        """(K,) traces, summed over labels."""

    def log_determinants(self) -> Tensor:
        """(K,) log-determinants, summed over labels."""
        return 2 * self.log_scales.sum((1, 2))

    @abstractmethod
    def pairs(self, means: Tensor) -> tuple[Tensor, Tensor]:
        """(K, K) log-determinants of S_k + S_l, and distances of means (K, V, M) in their metric.

        Distances are (m_k - m_l)^T (S_k + S_l)^-1 (m_k - m_l); both are summed over labels.
        """


class DiagonalCovariance(Covariance):
    """Independent whitened functions at the inducing points: V M numbers for each component.

    O(T^2 M V) for a sequence, and O(T M) memory beside that of the result.
    """

    def projected(self, given: Conditional, component: int, labels: slice = slice(None)) -> Tensor:
        return given.projected(self.log_scales[component, labels])

    def deviations(self, noise: Tensor, component: int) -> Tensor:
        return noise * self.log_scales[component].exp().to(noise)

    def traces(self) -> Tensor:
        return (2 * self.log_scales).exp().sum((1, 2))

    def pairs(self, means: Tensor) -> tuple[Tensor, Tensor]:
        variances = (2 * self.log_scales).exp()
        total = variances.unsqueeze(1) + variances
        apart = (means.unsqueeze(1) - means).square() / total
        return total.log().sum((2, 3)), apart.sum((2, 3))


class FullCovariance(Covariance):
    """Any covariance for each component and label: V M^2 numbers for each component.

    O(T M^2 V) for a sequence by `ScoreFunction`, O(S M^2 V) for a step by `Reparameterised`, and
    O(V M^2) memory.

    Attributes:
        below: (K, V, M, M) entries below the diagonals of Cholesky factors, times M: a step of an
            optimiser that moves all of them alike stays small beside the diagonals.
    """

    below: Tensor

    def _complete(self) -> None:
        logs = self.log_scales
        self.below = nn.Parameter(logs.new_zeros(*logs.shape, logs.shape[-1]))

    def roots(self) -> Tensor:
        """Return the lower Cholesky factors (K, V, M, M), by component and label.

        The covariance of each is L L^T.
        """
        return torch.stack([self._root(component) for component in range(len(self.below))])

    def projected(self, given: Conditional, component: int, labels: slice = slice(None)) -> Tensor:
        root = self._root(component)[labels]
        count, points, _ = root.shape
        wide = root.transpose(0, 1).reshape(points, count * points)
        scaled = (given.rows @ wide).unflatten(-1, (count, points)).transpose(1, 2)
        return scaled @ scaled.mT

    def deviations(self, noise: Tensor, component: int) -> Tensor:
        root = self._root(component).to(noise)
        return torch.einsum("svm,vnm->svn", noise, root)

    def traces(self) -> Tensor:
        return self.roots().square().sum((1, 2, 3))

    def pairs(self, means: Tensor) -> tuple[Tensor, Tensor]:
        roots = self.roots()
        dense = roots @ roots.mT
        root = cholesky(
            dense.unsqueeze(1) + dense,
            "two components together",
            "training has diverged; take smaller steps",
        )
        apart = (means.unsqueeze(1) - means).unsqueeze(-1)
        apart = torch.linalg.solve_triangular(root, apart, upper=False).square()
        log_determinants = 2 * root.diagonal(dim1=-2, dim2=-1).log().sum((2, 3))
        return log_determinants, apart.sum((2, 3, 4))

    def _root(self, component: int) -> Tensor:
        """Return the lower Cholesky factors (V, M, M) of a component's covariances."""
        below = self.below[component].tril(-1) / self.below.shape[-1]
        return below + torch.diag_embed(self.log_scales[component].exp())


@dataclass(frozen=True, eq=False)
class MixtureStatistics:
    """Statistics of K components and of pairs of them, for bounds on the entropy.

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
    """A lower bound of the entropy of a mixture; the ELBO then bounds the evidence from below."""

    def entropy(self, log_weights: Tensor, means: Tensor, covariance: Covariance) -> Tensor:
        """() nats; differentiable, in log-weights (K,) that are normalised and means (K, V, M)."""
        dimension = means.shape[1] * means.shape[2]
        single = (covariance.log_determinants() + dimension * (1 + math.log(2 * math.pi))) / 2
        if len(log_weights) == 1:
            return single.sum()
        pairs = covariance.pairs(means)
        return self.bound(MixtureStatistics(log_weights, single, *pairs, dimension))

    @abstractmethod
    def bound(self, mixture: MixtureStatistics) -> Tensor:
        """() nats, of two components or more."""


class JensenBound(EntropyBound):
    """Equation 35 of Galliani et al. (2017): - sum_k w_k log sum_l w_l N(m_k; m_l, S_k + S_l).

    Low by D (1 - log 2) / 2 nats for D dimensions even where components are far apart or the same,
    so two components may bound the evidence less tightly than one, whose entropy is exact.
    """

    def bound(self, mixture: MixtureStatistics) -> Tensor:
        constant = mixture.dimension * math.log(2 * math.pi)
        densities = -(constant + mixture.log_determinants + mixture.distances) / 2
        logs = mixture.log_weights
        return -(logs.exp() * (logs + densities).logsumexp(-1)).sum()


class PairwiseBound(EntropyBound):
    """A bound by Bhattacharyya distances: exact for components that are equal or far apart.

    Kolchinsky and Tracey 2017, "Estimating mixture entropy with pairwise distances", equation 10
    and section 3.2.
    """

    def bound(self, mixture: MixtureStatistics) -> Tensor:
        diagonal = mixture.log_determinants.diagonal()
        wider = mixture.log_determinants - (diagonal.unsqueeze(1) + diagonal) / 2
        overlap = (mixture.log_weights - mixture.distances / 4 - wider / 2).logsumexp(-1)
        return (mixture.log_weights.exp() * (mixture.single - overlap)).sum()


@dataclass(frozen=True, eq=False)
class Gaussians:
    """Marginals of the posterior at the positions of sequences, to sample from (theorem 2).

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
        """Return the lower Cholesky factors L of the covariances L L^T, (B, V, T, T)."""
        return cholesky(
            self.covariance,
            "the functions at the positions of a sequence",
            "training has diverged, or the nugget is below the rounding of the variances; take "
            "smaller steps, or a larger nugget",
        )


class VariationalPosterior(nn.Module):
    """q(v) = sum_k w_k prod_j N(v_j; m_kj, S_kj) over whitened functions, and q(f_bin).

    Functions at the inducing points are kappa(Z, Z)^(1/2) v, so that the prior of v is N(0, I):
    equations 8 and 16 of Galliani et al. (2017) in other coordinates, in which divergences and
    bounds are the same and gradients are better scaled. q(f_bin) is N(mean, scale^2), independent
    for each pair, with the prior N(0, K_bin).

    Args:
        labels: V of them.
        points: M inducing points.
        components: the number K of components of the mixture.
        covariance: the kind of the matrices S_kj.
        entropy: how the entropy of the mixture is bounded.
        pairwise_scale: prior standard deviation of the score of a pair of labels; or K_bin, the
            covariance (V^2, V^2) of all pairs, [from, to] flattened.
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
        pairwise_scale: float | Tensor,
        scale: float,
        generator: torch.Generator | None = None,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        device = device or torch.get_default_device()
        kind: dict[str, Any] = {"dtype": _DTYPE, "device": device}
        # Several components start apart, as equal ones would have equal gradients.
        apart = noise(components, labels, points, **kind, generator=generator)
        self.means = nn.Parameter(apart * (0.1 if components > 1 else 0.0))
        self.logits = nn.Parameter(torch.zeros(components, **kind))
        self.covariance = covariance.started(components, labels, points, scale=scale, device=device)
        self.pairwise_mean = nn.Parameter(torch.zeros(labels, labels, **kind))
        # Scores of pairs start at their prior, scaled.
        given = torch.as_tensor(pairwise_scale, **kind)
        prior = given if given.ndim else given.square() * torch.eye(labels**2, **kind)
        self.pairwise_root = cholesky(
            prior, "the scores of pairs of labels", "give one without pairs that determine others"
        )
        start = (scale * prior.diagonal().sqrt()).log().reshape(labels, labels)
        self.pairwise_log_scale = nn.Parameter(start)
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
        root, logs = self.pairwise_root, self.pairwise_log_scale.flatten()
        sides = torch.cat([self.pairwise_mean.reshape(-1, 1), logs.exp().diag()], 1)
        squares = torch.linalg.solve_triangular(root, sides, upper=False).square().sum()
        return (squares - len(logs)) / 2 + root.diagonal().log().sum() - logs.sum()


@dataclass(frozen=True, eq=False)
class Functions:
    """The functions at the positions of B sequences, under one component of the posterior.

    Attributes:
        posterior: over functions.
        given: the Gaussian of function values at the positions given those at the inducing points,
            one for all labels or one for each.
        component: of the mixture.
    """

    posterior: VariationalPosterior
    given: tuple[Conditional, ...]
    component: int = 0

    @property
    def _parts(self) -> list[tuple[Conditional, slice]]:
        """Labels whose functions have one kernel and one set of points."""
        if len(self.given) == 1:
            return [(self.given[0], slice(None))]
        return [(one, slice(label, label + 1)) for label, one in enumerate(self.given)]

    def gaussians(self) -> Gaussians:
        """The functions at the positions of B sequences under one component (theorem 3).

        Equation 18 in whitened coordinates; O(T^2 M) for each label and sequence.
        """
        posterior, means, covariances = self.posterior, list[Tensor](), list[Tensor]()
        for given, labels in self._parts:
            centre = posterior.means[self.component, labels]
            means.append(torch.einsum("btm,vm->bvt", given.rows, centre))
            covariance = posterior.covariance.projected(given, self.component, labels)
            covariances.append(covariance + given.covariance.unsqueeze(1))
        return Gaussians(
            torch.cat(means, 1),
            torch.cat(covariances, 1),
            posterior.pairwise_mean,
            posterior.pairwise_log_scale.exp(),
        )

    def drawn(
        self, samples: int, *, dtype: torch.dtype, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """Samples (S, B, T, V) and (S, V, V) of the scores under one component.

        Each is one draw of the functions for all B sequences, paired with its mirror image
        (antithetic), except for the last of an odd number. What sequences share is drawn first.
        O(S T M V) for a sequence. Differentiable.

        Args:
            samples: S.
            dtype: of the samples.
            generator: of the noise.
        """
        posterior, parts, half = self.posterior, self._parts, (samples + 1) // 2
        rows = parts[0][0].rows
        batch, steps, points = rows.shape
        labels = len(posterior.pairwise_mean)

        def normal(*shape: int) -> Tensor:
            return noise(half, *shape, dtype=dtype, device=rows.device, generator=generator)

        # What all sequences share: functions at the inducing points, and scores of pairs.
        deviations = posterior.covariance.deviations(normal(labels, points), self.component)
        values = torch.cat([posterior.means[self.component].to(dtype).unsqueeze(0), deviations])
        pair = posterior.pairwise_log_scale.exp().to(dtype) * normal(labels, labels)
        apart, sums, residuals = normal(batch, steps, labels), list[Tensor](), list[Tensor]()
        # At the positions: means given the points, and what the points leave open.
        for given, some in parts:
            flat, chosen = given.rows.to(dtype).flatten(0, 1), values[:, some]
            product = (flat @ chosen.flatten(0, 1).mT).unflatten(1, chosen.shape[:2])
            sums.append(product.unflatten(0, (batch, steps)).permute(2, 0, 1, 3))
            residuals.append(torch.einsum("btu,sbuv->sbtv", given.root.to(dtype), apart[..., some]))
        both = torch.cat(sums, -1)
        moved = both[1:] + torch.cat(residuals, -1)
        middle = posterior.pairwise_mean.to(dtype)
        unary = both[:1] + torch.cat([moved, -moved])[:samples]
        return unary, middle + torch.cat([pair, -pair])[:samples]

    def cut(self, pieces: Pieces) -> "Functions":
        """The functions at the positions of pieces of the sequences."""
        return replace(self, given=tuple(one.cut(pieces) for one in self.given))
