"""Estimates of the expected log-likelihood, whose gradients are estimates of its gradient."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from rdpgraph._numbers import is_real, is_whole
from rdpgraph.errors import ModelError
from rdpgraph.gp.labelling import Labelling
from rdpgraph.gp.likelihoods import Likelihood
from rdpgraph.gp.moments import Draws, Moments
from rdpgraph.gp.posterior import Functions

_CELLS = 2**22
"""Scores that are in memory at a time, where samples can be treated one after another."""


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
        if not is_whole(self.samples, 2) or self.samples % 2:
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
    so memory does not grow with their number. Where a likelihood has `pieces`, each of them is
    sampled by itself, and nothing of size T^2 is left.

    Args:
        samples: S for each sequence.
        control: the part of them from which coefficients are estimated; 0 for no control variate.
        dtype: of the scores.
    """

    samples: int = 1000
    control: float = 0.1
    dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        numbers = is_whole(self.samples, 1) and is_real(self.control) and 0 <= self.control < 1
        if not numbers or self.samples - round(self.samples * self.control) < 1:
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
        with torch.no_grad():
            draws = Draws.of(gaussians, self.dtype)
            first = round(self.samples * self.control)
            pilot = self._moments(likelihood, labels, draws, first, generator, squares=True)
            rest = self._moments(likelihood, labels, draws, self.samples - first, generator)
            coefficients = pilot.coefficients() if first else None
            slopes = draws.in_parameters(rest.gradient(coefficients))
            value = (pilot.total + rest.total) / self.samples
        parameters = (gaussians.mean, gaussians.covariance, gaussians.pairwise_mean,
                      gaussians.pairwise_scale)  # fmt: skip
        for parameter, slope in zip(parameters, slopes, strict=True):
            value = value + (slope * (parameter - parameter.detach())).flatten(1).sum(1)
        return value

    def _moments(
        self,
        likelihood: Likelihood,
        labels: Labelling,
        draws: Draws,
        count: int,
        generator: torch.Generator | None,
        *,
        squares: bool = False,
    ) -> Moments:
        moments = Moments(squares=squares)
        block = max(1, _CELLS // max(1, draws.mean.numel()))
        for start in range(0, count, block):
            drawn = draws.drawn(min(block, count - start), generator)
            moments.add(likelihood.log_prob(labels, *draws.scores(drawn)), drawn)
        return moments
