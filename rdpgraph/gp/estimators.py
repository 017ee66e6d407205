"""Estimates of an expected log-likelihood; their gradients are estimates of its gradient."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph._core.arguments import require_fields
from rdpgraph.errors import ModelError
from rdpgraph.gp.inducing import noise
from rdpgraph.gp.likelihoods import Labelling, Likelihood
from rdpgraph.gp.posterior import Functions


class Noise(NamedTuple):
    """Standard normal draws, unary (B, V, T, S) and pairwise (S, V, V).

    Samples come last where sums over them are products of matrices.
    """

    unary: Tensor
    pairwise: Tensor


class Slopes(NamedTuple):
    """Gradients of the expected log-likelihood of B sequences in their means and covariances.

    Attributes:
        mean: (B, V, T).
        covariance: (B, V, T, T), symmetric.
        pairwise_mean: (B, V, V).
        pairwise_scale: (B, V, V).
    """

    mean: Tensor
    covariance: Tensor
    pairwise_mean: Tensor
    pairwise_scale: Tensor


@dataclass
class Moments:
    """Sums over samples of h, h l and, with ``squares``, h^2 and h^2 l; l is the log-likelihood.

    h is grad log q in the coordinates of the noise e: mean + root (d + (1 + E) e) at d = 0 and
    E = 0. It is e for the mean and e e^T - 1 for the covariance. Nothing of size S T^2 is made:
    sums over samples are products of matrices.

    Attributes:
        total: (B,) the sum of l, at first ().
        sums: of h, h l, h^2 and h^2 l.
    """

    squares: bool = False
    count: int = 0
    total: Tensor = field(default_factory=partial(torch.zeros, (), device="cpu"))
    sums: list[Slopes] = field(default_factory=list[Slopes])

    def add(self, values: Tensor, drawn: Noise) -> None:
        """Add samples: log-likelihoods (S, B), and their noise."""
        values = values.to(drawn.unary.dtype)
        self.count += len(values)
        self.total = self.total + values.double().sum(0)
        ones = torch.ones_like(values)
        sums = [
            _contracted(weights, drawn, power)
            for power in ((1, 2) if self.squares else (1,))
            for weights in (ones, values)
        ]
        self.sums = (
            [Slopes(*map(torch.add, old, new)) for old, new in zip(self.sums, sums, strict=True)]
            if self.sums
            else sums
        )

    def coefficients(self) -> Slopes:
        """Cov(h l, h) / Var(h) for each coordinate, from sums with squares."""
        h, hl, hh, hhl = self.sums
        count = self.count

        def ratio(h: Tensor, hl: Tensor, hh: Tensor, hhl: Tensor) -> Tensor:
            variance = hh - h * h / count
            # zero for one sample
            return torch.where(variance > 0, (hhl - hl * h / count) / variance, 0.0)

        return Slopes(*map(ratio, h, hl, hh, hhl))

    def gradient(self, coefficients: Slopes | None) -> Slopes:
        """The averages of h (l - a)."""
        h, hl = self.sums[:2]
        if coefficients is None:
            return Slopes(*(one / self.count for one in hl))
        return Slopes(
            *((g - a * b) / self.count for g, a, b in zip(hl, coefficients, h, strict=True))
        )


def _contracted(weights: Tensor, drawn: Noise, power: int) -> Slopes:
    """Sums over samples of weights (S, B) times h^power, power 1 or 2."""
    raised = drawn.unary if power == 1 else drawn.unary.square()
    weighted = raised * weights.mT[:, None, None]
    mean = weighted.sum(-1).double()
    covariance = (weighted @ raised.mT).double()
    flat = drawn.pairwise.flatten(1)
    second = weights.mT @ flat.square()
    pair, scale = (
        (weights.mT @ flat, second) if power == 1 else (second, weights.mT @ flat.square().square())
    )
    total = weights.double().sum(0)
    # On the diagonal h is e^2 - 1, and its square e^4 - 2 e^2 + 1.
    diagonal, both = covariance.diagonal(dim1=-2, dim2=-1), scale.double()
    if power == 1:
        diagonal -= total[:, None, None]
        both -= total[:, None]
    else:
        diagonal += total[:, None, None] - 2 * mean
        both += total[:, None] - 2 * second.double()
    shape = (-1, *drawn.pairwise.shape[1:])
    return Slopes(mean, covariance, pair.double().reshape(shape), both.reshape(shape))


class GradientEstimator(ABC):
    """An estimator of the expected log-likelihood of sequences and of its gradient.

    Scores are computed in ``dtype``, parameters and their Gaussians in float64.
    """

    samples: int
    dtype: torch.dtype

    @abstractmethod
    def expected(
        self,
        likelihood: Likelihood,
        labels: Labelling,
        functions: Functions,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """(B,) unbiased estimates in nats; backward gives unbiased ones of their gradients.

        Args:
            likelihood: of the labels.
            labels: B sequences.
            functions: at their positions.
            generator: of the samples.
        """


@dataclass(frozen=True)
class Reparameterised(GradientEstimator):
    """Pathwise gradients: samples are functions of the parameters.

    Far less noisy than the score function, so a few samples suffice; the likelihood must be
    differentiable. Functions are drawn at the inducing points, and at positions given those, so
    that no covariance of T x T is made for each label: O(S T M V) for a sequence. Kingma and
    Welling 2014, arXiv:1312.6114, section 2.4.

    Args:
        samples: S for each sequence; even, as each draw comes with its mirror image.
        dtype: of the scores.
    """

    samples: int = 8
    dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        require_fields(self, samples="[2, inf)")
        if self.samples % 2:
            raise ModelError(
                f"Reparameterised needs an even number of samples; got {self.samples!r}."
            )

    def expected(
        self,
        likelihood: Likelihood,
        labels: Labelling,
        functions: Functions,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        unary, pairwise = functions.drawn(self.samples, dtype=self.dtype, generator=generator)
        return likelihood.log_prob(labels, unary, pairwise).double().mean(0)


@dataclass(frozen=True)
class ScoreFunction(GradientEstimator):
    """The score-function gradient, of a likelihood whose values alone are used.

    It is the mean of grad log q times the log-likelihood: equations 11 and 12 of Galliani et al.
    (2017).

    The control variate is grad log q, whose expectation is zero, times a coefficient Cov / Var for
    each number of the Gaussians. It is estimated from the first part of the samples, and the others
    are averaged, so that the gradient is unbiased. Samples are drawn in blocks, so memory does not
    grow with their number. Where a likelihood has `pieces`, each is sampled by itself, and nothing
    of size T^2 is formed.

    Args:
        samples: S for each sequence.
        control: the share of them for the coefficients; 0, or a share of fewer than two samples,
            for no control variate.
        dtype: of the scores.
    """

    samples: int = 1000
    control: float = 0.1
    dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        require_fields(self, samples="[1, inf)", control="[0, 1)")
        if self.samples - round(self.samples * self.control) < 1:
            raise ModelError(
                f"ScoreFunction needs samples and a part of them below 1 for the control variate; "
                f"got samples={self.samples!r}, control={self.control!r}."
            )

    def expected(
        self,
        likelihood: Likelihood,
        labels: Labelling,
        functions: Functions,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        pieces = likelihood.pieces(labels)
        if pieces is None:
            return self._each(likelihood, labels, functions, generator)
        values = self._each(likelihood, pieces.labels, functions.cut(pieces), generator)
        return pieces.totals(values, len(labels.lengths))

    def _each(
        self,
        likelihood: Likelihood,
        labels: Labelling,
        functions: Functions,
        generator: torch.Generator | None,
    ) -> Tensor:
        gaussians = functions.gaussians()
        parameters = (gaussians.mean, gaussians.covariance, gaussians.pairwise_mean,
                      gaussians.pairwise_scale)  # fmt: skip
        with torch.no_grad():
            root = gaussians.root()
            mean, factors, middle, scale = (
                part.to(self.dtype) for part in (parameters[0], root, *parameters[2:])
            )

            def normal(*shape: int) -> Tensor:
                return noise(*shape, dtype=mean.dtype, device=mean.device, generator=generator)

            def moments(count: int, *, squares: bool = False) -> Moments:
                result = Moments(squares=squares)
                block = tuning.per_block(mean.numel(), tuning.BLOCK)
                for start in range(0, count, block):
                    size = min(block, count - start)
                    drawn = Noise(normal(*mean.shape, size), normal(size, *middle.shape))
                    moved = torch.baddbmm(
                        mean.flatten(0, 1).unsqueeze(-1),
                        factors.flatten(0, 1),
                        drawn.unary.flatten(0, 1),
                    )
                    unary = moved.reshape(drawn.unary.shape).permute(3, 0, 2, 1)
                    pairwise = torch.addcmul(middle, scale, drawn.pairwise)
                    result.add(likelihood.log_prob(labels, unary, pairwise), drawn)
                return result

            first = round(self.samples * self.control)
            first = first if first > 1 else 0  # one sample has no variance
            pilot, rest = moments(first, squares=True), moments(self.samples - first)
            slopes = rest.gradient(pilot.coefficients() if first else None)
            slopes = _in_parameters(slopes, root, gaussians.pairwise_scale)
            value = (pilot.total + rest.total) / self.samples
        for parameter, slope in zip(parameters, slopes, strict=True):
            value = value + (slope * (parameter - parameter.detach())).flatten(1).sum(1)
        return value


def _in_parameters(slopes: Slopes, root: Tensor, scale: Tensor) -> Slopes:
    """Convert slopes from noise coordinates to means, covariances and scales.

    With a root L: L^-T g for the mean and L^-T G L^-1 / 2 for the covariance, equations 60 and 61
    before the products with A.
    """
    mean = torch.linalg.solve_triangular(root.mT, slopes.mean.unsqueeze(-1), upper=True)
    half = torch.linalg.solve_triangular(root.mT, slopes.covariance, upper=True)
    whole = torch.linalg.solve_triangular(root, half, upper=False, left=False)
    return Slopes(
        mean.squeeze(-1), whole / 2, slopes.pairwise_mean / scale, slopes.pairwise_scale / scale
    )
