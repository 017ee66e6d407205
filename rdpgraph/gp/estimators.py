"""Estimates of the expected log-likelihood, whose gradients are estimates of its gradient."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from rdpgraph.errors import ModelError
from rdpgraph.gp.likelihoods import Labelling, Likelihood
from rdpgraph.gp.posterior import Functions, Gaussians

_CELLS = 2**22
"""Scores that are in memory at a time, where samples can be treated one after another."""


class Noise(NamedTuple):
    """Standard normal draws.

    Attributes:
        unary: (S, B, V, T).
        pairwise: (S, V, V).
    """

    unary: Tensor
    pairwise: Tensor


class GradientEstimator(ABC):
    """How the expected log-likelihood of sequences and its gradient are estimated.

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
    """Samples are functions of the parameters, and gradients pass through the likelihood.

    Far less noisy than the score function, so a few samples do; the likelihood must be
    differentiable. Functions are drawn at the inducing points, and at positions given those, so
    that no covariance of T x T is made for each label: O(S T M V) for a sequence. Kingma and
    Welling 2014, arXiv:1312.6114, section 2.4.

    Args:
        samples: S for each sequence; an even number, for each draw comes with its mirror image.
        dtype: of the scores.
    """

    samples: int = 8
    dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        if self.samples < 2 or self.samples % 2:
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
        """(B,) unbiased estimates in nats; backward gives unbiased ones of their gradients."""
        unary, pairwise = functions.drawn(self.samples, dtype=self.dtype, generator=generator)
        return likelihood.log_prob(labels, unary, pairwise).double().mean(0)


@dataclass(frozen=True)
class ScoreFunction(GradientEstimator):
    """The gradient of log q times the log-likelihood, which is a black box: equations 11 and 12.

    The control variate is grad log q itself, whose expectation is zero, times a coefficient
    Cov / Var for each number of the Gaussians. It is estimated from the first part of the samples,
    and the others are averaged, so that the gradient is unbiased. Samples are treated in blocks,
    so memory does not grow with their number.

    Gradients are taken in the coordinates of the noise: mean + root (d + (1 + E) noise), at d = 0
    and E = 0 (lower triangular), where grad log q is the noise, and noise noise^T - 1.

    Args:
        samples: S for each sequence.
        control: the part of them from which coefficients are estimated; 0 for no control variate.
        dtype: of the scores.
    """

    samples: int = 1000
    control: float = 0.1
    dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        if not 0 <= self.control < 1 or self.samples - round(self.samples * self.control) < 1:
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
        """(B,) unbiased estimates in nats; backward gives unbiased ones of their gradients."""
        gaussians = functions.gaussians()
        with torch.no_grad():
            first = round(self.samples * self.control)
            pilot = (
                self._moments(likelihood, labels, gaussians, first, generator) if first else None
            )
            rest = self._moments(likelihood, labels, gaussians, self.samples - first, generator)
            local = rest.gradient(pilot and pilot.coefficients())
            mean, root, pairwise_mean, pairwise_scale = _in_parameters(local, gaussians)
            value = rest.value if pilot is None else (
                rest.value * rest.count + pilot.value * pilot.count
            ) / self.samples  # fmt: skip
        found = value
        for parameter, gradient in (
            (gaussians.mean, mean),
            (gaussians.root, root),
            (gaussians.pairwise_mean, pairwise_mean),
            (gaussians.pairwise_scale, pairwise_scale),
        ):
            moved = gradient * (parameter - parameter.detach())
            found = found + moved.flatten(1).sum(1)
        return found

    def _moments(
        self,
        likelihood: Likelihood,
        labels: Labelling,
        gaussians: Gaussians,
        count: int,
        generator: torch.Generator | None,
    ) -> "_Moments":
        found = _Moments()
        block = max(1, _CELLS // max(1, gaussians.mean.numel()))
        for start in range(0, count, block):
            noise = drawn(gaussians, min(block, count - start), self.dtype, generator)
            values = likelihood.log_prob(labels, *scores(gaussians, noise))
            found.add(values, noise)
        return found


def drawn(
    gaussians: Gaussians, samples: int, dtype: torch.dtype, generator: torch.Generator | None
) -> Noise:
    """Draws of standard normal noise for B sequences."""
    shape, labels = gaussians.mean.shape, gaussians.mean.shape[1]
    return Noise(
        torch.randn(samples, *shape, dtype=dtype, generator=generator),
        torch.randn(samples, labels, labels, dtype=dtype, generator=generator),
    )


def scores(gaussians: Gaussians, noise: Noise) -> tuple[Tensor, Tensor]:
    """Samples (S, B, T, V) of unary and (S, V, V) of pairwise scores, in the type of the noise."""
    dtype = noise.unary.dtype
    moved = torch.einsum("bvtu,sbvu->sbtv", gaussians.root.to(dtype), noise.unary)
    unary = moved + gaussians.mean.to(dtype).mT
    pairwise = gaussians.pairwise_scale.to(dtype) * noise.pairwise
    return unary, pairwise + gaussians.pairwise_mean.to(dtype)


class _Local(NamedTuple):
    """A number for each coordinate: (B, V, T), (B, V, T, T), (B, V, V) and (B, V, V)."""

    mean: Tensor
    root: Tensor
    pairwise_mean: Tensor
    pairwise_scale: Tensor


@dataclass
class _Moments:
    """Sums over samples of h, h^2, and both times the log-likelihood l; h is grad log q.

    For off-diagonal entries of a root h is e_i e_j; for diagonal ones, and scales, e_i^2 - 1.
    Nothing of size S T^2 is made: sums over samples are products of matrices.
    """

    count: int = 0
    total: Tensor | float = 0.0
    sums: list[_Local] = field(default_factory=list)

    @property
    def value(self) -> Tensor:
        """(B,) the average log-likelihood."""
        return torch.as_tensor(self.total) / self.count

    def add(self, values: Tensor, noise: Noise) -> None:
        """Samples more: log-likelihoods (S, B), and their noise."""
        values = values.to(noise.unary.dtype)
        self.count += len(values)
        self.total = self.total + values.double().sum(0)
        both = [torch.ones_like(values), values]
        sums = [
            _contracted(weights, noise, power)
            for power in (1, 2)
            for weights in both
        ]  # fmt: skip
        self.sums = (
            [_Local(*map(torch.add, old, new)) for old, new in zip(self.sums, sums, strict=True)]
            if self.sums
            else sums
        )

    def coefficients(self) -> _Local:
        """Cov(h l, h) / Var(h) for each coordinate."""
        h, hl, hh, hhl = self.sums
        count = self.count

        def ratio(h: Tensor, hl: Tensor, hh: Tensor, hhl: Tensor) -> Tensor:
            variance = hh - h * h / count
            # Beyond the lengths, and above the diagonal, h is 0 in all samples.
            return torch.where(variance > 0, (hhl - hl * h / count) / variance, 0.0)

        return _Local(*map(ratio, h, hl, hh, hhl))

    def gradient(self, coefficients: _Local | None) -> _Local:
        """The averages of h (l - a)."""
        h, hl = self.sums[:2]
        if coefficients is None:
            return _Local(*(one / self.count for one in hl))
        return _Local(
            *((g - a * b) / self.count for g, a, b in zip(hl, coefficients, h, strict=True))
        )


def _contracted(weights: Tensor, noise: Noise, power: int) -> _Local:
    """Sums over samples of weights (S, B) times h^power."""
    unary, pairwise = noise
    samples, labels = len(unary), unary.shape[1:3]
    raised = unary if power == 1 else unary.square()
    weighted = raised * weights.reshape(samples, -1, 1, 1)
    left, right = weighted.permute(1, 2, 3, 0), raised.permute(1, 2, 0, 3)
    root = (left @ right).tril_()
    squared = unary.square() - 1
    own = squared if power == 1 else squared.square()
    diagonal = torch.einsum("sb,sbvt->bvt", weights, own)
    root.diagonal(dim1=-2, dim2=-1).copy_(diagonal)
    flat = pairwise.flatten(1)
    pair = flat if power == 1 else flat.square()
    scale = flat.square() - 1
    scale = scale if power == 1 else scale.square()
    shape = (-1, labels[1], labels[1])
    return _Local(
        weighted.sum(0).double(),
        root.double(),
        (weights.mT @ pair).reshape(shape).double(),
        (weights.mT @ scale).reshape(shape).double(),
    )


def _in_parameters(local: _Local, gaussians: Gaussians) -> _Local:
    """Gradients in the coordinates of the noise as those in means, roots and scales."""
    back = gaussians.root.mT
    mean = torch.linalg.solve_triangular(back, local.mean.unsqueeze(-1), upper=True).squeeze(-1)
    # Only the lower triangle matters: roots move within it.
    root = torch.linalg.solve_triangular(back, local.root, upper=True).tril()
    scale = gaussians.pairwise_scale
    return _Local(mean, root, local.pairwise_mean / scale, local.pairwise_scale / scale)
