"""Random features: exponentials of inner products as inner products of positive features."""

import math
import warnings
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph._core.arguments import require_fields
from rdpgraph.errors import ModelError
from rdpgraph.logspace.logmatrix import soft_sum
from rdpgraph.model.potentials.lowrank import LowRank
from rdpgraph.model.potentials.table import as_values


@dataclass(frozen=True)
class FeatureError:
    """Predicted errors of exp(x . y) from random features.

    Attributes:
        log_relative: log of the mean over pairs of the squared error over the squared value.
        log_absolute: log of the mean squared error over pairs.
        log_weighted: log of that mean over the mean squared value: the pairs that weigh most.
        norm: the root mean square of |x + y|, which determines all errors.
        heavy_norm: the same with each pair weighted by its squared value.
    """

    log_relative: float
    log_absolute: float
    log_weighted: float
    norm: float
    heavy_norm: float


@dataclass(frozen=True, eq=False)
class RandomFeatures:
    """Positive features whose inner products are exp(x . y) on average.

    ``log phi_i(x) = w_i . x - |x|^2 / 2 - log(d) / 2`` with Gaussian w_i, so that
    ``E_w[phi(x) . phi(y)] = exp(x . y)``. One draw of w serves any number of embeddings. The
    squared error for a pair is ``exp(2 x . y) (exp(|x + y|^2) - 1) / d`` on average with
    independent w_i: it explodes with |x + y|, and d features are of use up to about
    ``|x + y|^2 = log(1 + d)``. For embeddings longer than that, learn the features:
    `rdpgraph.nn.FeatureMap`.

    Args:
        dimension: of the embeddings.
        features: how many, d; the rank of what `low_rank` gives.
        orthogonal: w_i orthogonal in blocks of ``dimension``, each still Gaussian; unbiased, with
            less variance than independent ones.
        maps: dims of independent maps, in front: (F,) for one map for each factor of a block.
        generator: the randomness.
        dtype: of the directions; default torch's.

    Attributes:
        directions: (*maps, d, dimension) the w_i.

    Raises:
        ModelError: a dimension or a number of features below 1.

    Source: Choromanski et al. 2021 (arXiv:2009.14794), lemmas 1 and 2; Chiu 2021, "Random Fourier
    features for scaling MRFs".

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> states = torch.tensor([[0.6, 0.0], [0.0, -0.6]])
        >>> features = RandomFeatures(2, 4096, generator=generator)
        >>> values = features.low_rank(states, states).table(2).exp()
        >>> torch.allclose(values, (states @ states.T).exp(), atol=0.15)
        True
    """

    dimension: int
    features: int
    orthogonal: bool = field(default=True, kw_only=True)
    maps: tuple[int, ...] = field(default=(), kw_only=True)
    generator: torch.Generator | None = field(default=None, kw_only=True, repr=False)
    dtype: torch.dtype | None = field(default=None, kw_only=True)
    directions: Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        require_fields(self, dimension="[1, inf)", features="[1, inf)", maps="[0, inf)")
        shape = (*self.maps, self.features, self.dimension)
        drawn = self._orthogonal() if self.orthogonal else self._normal(shape)
        dtype = self.dtype or torch.get_default_dtype()
        object.__setattr__(self, "directions", drawn.to(dtype))

    def _normal(self, shape: tuple[int, ...]) -> Tensor:
        device = "cpu" if self.generator is None else self.generator.device
        return torch.randn(shape, generator=self.generator, dtype=torch.float64, device=device)

    def _orthogonal(self) -> Tensor:
        """Directions uniform on the orthogonal group, lengths those of Gaussian vectors."""
        size, blocks = self.dimension, -(-self.features // self.dimension)
        orthogonal, upper = torch.linalg.qr(self._normal((*self.maps, blocks, size, size)))
        # With signs from the diagonal the distribution is uniform: Mezzadri 2007, section 5.
        orthogonal = orthogonal * upper.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)
        lengths = self._normal((*self.maps, blocks, size, size)).norm(dim=-1, keepdim=True)
        return (orthogonal.mT * lengths).flatten(-3, -2)[..., : self.features, :]

    def log_features(self, embeddings: Tensor) -> Tensor:
        """(*lead, n, dimension) embeddings as (*lead, n, d) log-features (nats); O(n d dimension).

        Differentiable in the embeddings.

        Raises:
            ModelError: embeddings of another dimension.
        """
        embeddings = self._checked(embeddings)
        directions = self.directions.to(embeddings)
        half = embeddings.square().sum(-1, keepdim=True) / 2 + math.log(self.features) / 2
        return embeddings @ directions.mT - half

    def low_rank(self, left: Tensor, right: Tensor, *, centred: bool = True) -> LowRank:
        """The potential of value ``phi(x_i) . phi(y_j)``, exp(x_i . y_j) on average.

        The log of the value is too low on average (Jensen). Features are logs throughout, each
        shifted by its peak where it is exponentiated, so that nothing overflows.

        Args:
            left: (*lead, N, dimension) embeddings x; gradients flow to them.
            right: (*lead, M, dimension) embeddings y.
            centred: move both sides to mean zero and to one scale first, which makes |x + y|
                smaller. Exact: ``x . y = (x - a) . (y - b) + x . b + a . y - a . b``.

        Warns:
            UserWarning: for the pairs that weigh most, |x + y| is so large that the squared error
                is above the squared value.
        """
        left, right = self._checked(left), self._checked(right)
        if left.numel() and right.numel():
            self._warn(left, right, centred=centred)
        before, after = torch.zeros_like(left[..., :1]), torch.zeros_like(right[..., :1])
        if centred:
            left, right, before, after = centred_sides(left, right)
        return LowRank(self.log_features(left) + before, self.log_features(right) + after)

    def predicted_error(self, left: Tensor, right: Tensor, *, centred: bool = True) -> FeatureError:
        """The mean squared error of `low_rank` on embeddings, from the formula of the class.

        Exact for independent features, an upper bound in practice for orthogonal ones. Where
        there are more than 2,048 states on a side, that many of them stand for all.

        Args:
            left: (N, dimension).
            right: (M, dimension).
            centred: as for `low_rank`.
        """
        left, right = self._checked(left), self._checked(right)
        for name, side in (("left", left), ("right", right)):
            if side.ndim != 2 or not len(side):
                raise ModelError(
                    f"RandomFeatures of dimension {self.dimension} need {name} embeddings (N, "
                    f"{self.dimension}), N >= 1; got {tuple(side.shape)}."
                )
            if not bool(side.isfinite().all()):
                raise ModelError(
                    f"RandomFeatures need finite {name} embeddings; got NaN or infinity."
                )
        left, right = (_some(side.detach().double(), tuning.ERROR_STATES) for side in (left, right))
        return self._predicted(left, right, centred=centred)

    def _checked(self, embeddings: Tensor) -> Tensor:
        values = as_values("RandomFeatures' embeddings", embeddings)
        if values.ndim < 2 or values.shape[-1] != self.dimension:
            raise ModelError(
                f"RandomFeatures of dimension {self.dimension} needs embeddings (*lead, n, "
                f"{self.dimension}); got {tuple(values.shape)}."
            )
        return values

    def _predicted(self, left: Tensor, right: Tensor, *, centred: bool) -> FeatureError:
        plain = left @ right.mT
        if centred:
            left, right, _, _ = centred_sides(left, right)
        squares = left.square().sum(-1, keepdim=True) + right.square().sum(-1).unsqueeze(-2)
        squares = (squares + 2 * left @ right.mT).clamp(min=0.0)
        logs = squares + torch.log(-torch.expm1(-squares)) - math.log(self.features)
        count = math.log(max(logs.numel(), 1))
        heavy = (2 * plain).flatten().softmax(0)
        absolute, size = (soft_sum(part.flatten(), 0) for part in (logs + 2 * plain, 2 * plain))
        return FeatureError(
            float(soft_sum(logs.flatten(), 0)) - count,
            float(absolute) - count,
            float(absolute - size),
            float(squares.mean().sqrt()),
            float((heavy * squares.flatten()).sum().sqrt()),
        )

    def _warn(self, left: Tensor, right: Tensor, *, centred: bool) -> None:
        """Warn by the errors on some of the states, of the first batch item or factor."""
        sides = (left.detach().double(), right.detach().double())
        first, second = (
            _some(side.reshape(-1, *side.shape[-2:])[0], tuning.WARNING_STATES) for side in sides
        )
        error = self._predicted(first, second, centred=centred)
        most, worst = math.sqrt(math.log1p(self.features)), error.heavy_norm
        if worst > most:
            warnings.warn(
                f"Random features are useless here: the norm |x + y| is {worst:.3g} for the pairs "
                f"of largest value (root mean square; {error.norm:.3g} for all), at which "
                f"{self.features} features have a relative mean squared error of "
                f"e^{worst**2 - math.log(self.features):.3g}; it should be below {most:.3g}. "
                "Scale the embeddings down, or learn the features (rdpgraph.nn.FeatureMap).",
                stacklevel=3,
            )


def centred_sides(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Sides of mean zero and one scale, and the logs (*lead, n, 1) to add to each again."""
    left_mean, right_mean = (side.detach().mean(-2, keepdim=True) for side in (left, right))
    first, second = left - left_mean, right - right_mean
    before = (left * right_mean).sum(-1, keepdim=True)
    after = (second * left_mean).sum(-1, keepdim=True)
    sizes = (s.detach().square().mean((-2, -1), keepdim=True).sqrt() for s in (first, second))
    left_size, right_size = sizes
    ratio = torch.where((left_size > 0) & (right_size > 0), right_size / left_size, 1.0).sqrt()
    return first * ratio, second / ratio, before, after


def _some(side: Tensor, most: int) -> Tensor:
    if len(side) <= most:
        return side
    return side[torch.linspace(0, len(side) - 1, most, device=side.device).long()]
