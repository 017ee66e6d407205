"""Covariances of the variational posterior over whitened functions at the inducing points."""

import math
from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from rdpgraph.gp.algebra import cholesky
from rdpgraph.gp.inducing import Conditional


class Covariance(nn.Module, ABC):
    """The covariances of K components and V labels, each over M points.

    An object without parameters says which kind is wanted; `started` makes the parameters.
    """

    @abstractmethod
    def started(
        self,
        components: int,
        labels: int,
        points: int,
        *,
        scale: float,
        device: torch.device | None = None,
    ) -> "Covariance":
        """A new one with parameters, all covariances scale^2 times the identity."""

    @abstractmethod
    def projected(self, given: Conditional, component: int) -> Tensor:
        """(B, V, T, T) covariances of the rows times the functions, of one component."""

    @abstractmethod
    def spread(self, noise: Tensor, component: int) -> Tensor:
        """(S, V, M) standard normal noise made noise of these covariances, of one component."""

    @abstractmethod
    def traces(self) -> Tensor:
        """(K,) traces, summed over labels."""

    @abstractmethod
    def log_determinants(self) -> Tensor:
        """(K,) log-determinants, summed over labels."""

    @abstractmethod
    def pairs(self, means: Tensor) -> tuple[Tensor, Tensor]:
        """(K, K) log-determinants of S_k + S_l, and distances of means (K, V, M) in their metric.

        Distances are (m_k - m_l)^T (S_k + S_l)^-1 (m_k - m_l); both are summed over labels.
        """


def _log_scales(shape: tuple[int, ...], scale: float, device: torch.device | None) -> nn.Parameter:
    scales = torch.full(shape, math.log(scale), dtype=torch.float64, device=device)
    return nn.Parameter(scales)


class DiagonalCovariance(Covariance):
    """Independent whitened functions at the inducing points: V M numbers for each component.

    O(T^2 M V) for a sequence, and O(T M) memory beside that of the result.
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
    ) -> "Covariance":
        """A new one with parameters, all covariances scale^2 times the identity."""
        started = DiagonalCovariance()
        shape = components, labels, points
        started.log_scales = _log_scales(shape, scale, device)
        return started

    def projected(self, given: Conditional, component: int) -> Tensor:
        """(B, V, T, T) covariances of the rows times the functions, of one component."""
        pairs = given.pairs()
        if pairs is None:
            scales = self.log_scales[component].exp()
            projected: Tensor = _Projected.apply(given.rows, scales)
            return projected
        below = pairs @ (2 * self.log_scales[component]).exp().mT
        return below.index_select(1, given.places()).unflatten(1, (given.steps, -1)).movedim(-1, 1)

    def spread(self, noise: Tensor, component: int) -> Tensor:
        """(S, V, M) standard normal noise made noise of these covariances, of one component."""
        return noise * self.log_scales[component].exp().to(noise)

    def traces(self) -> Tensor:
        """(K,) traces, summed over labels."""
        return (2 * self.log_scales).exp().sum((1, 2))

    def log_determinants(self) -> Tensor:
        """(K,) log-determinants, summed over labels."""
        return 2 * self.log_scales.sum((1, 2))

    def pairs(self, means: Tensor) -> tuple[Tensor, Tensor]:
        """(K, K) log-determinants of S_k + S_l, and distances of means in their metric."""
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
        log_scales: (K, V, M) logarithms of the diagonals.
    """

    below: Tensor
    log_scales: Tensor

    def started(
        self,
        components: int,
        labels: int,
        points: int,
        *,
        scale: float,
        device: torch.device | None = None,
    ) -> "Covariance":
        """A new one with parameters, all covariances scale^2 times the identity."""
        started = FullCovariance()
        shape = components, labels, points
        started.log_scales = _log_scales(shape, scale, device)
        started.below = nn.Parameter(started.log_scales.new_zeros(*shape, points))
        return started

    def roots(self) -> Tensor:
        """(K, V, M, M) lower Cholesky factors."""
        return torch.stack([self._root(component) for component in range(len(self.below))])

    def projected(self, given: Conditional, component: int) -> Tensor:
        """(B, V, T, T) covariances of the rows times the functions, of one component."""
        root = self._root(component)
        labels, points, _ = root.shape
        wide = root.transpose(0, 1).reshape(points, labels * points)
        scaled = (given.rows @ wide).unflatten(-1, (labels, points)).transpose(1, 2)
        return scaled @ scaled.mT

    def spread(self, noise: Tensor, component: int) -> Tensor:
        """(S, V, M) standard normal noise made noise of these covariances, of one component."""
        root = self._root(component).to(noise)
        return torch.einsum("svm,vnm->svn", noise, root)

    def traces(self) -> Tensor:
        """(K,) traces, summed over labels."""
        return self.roots().square().sum((1, 2, 3))

    def log_determinants(self) -> Tensor:
        """(K,) log-determinants, summed over labels."""
        return 2 * self.log_scales.sum((1, 2))

    def pairs(self, means: Tensor) -> tuple[Tensor, Tensor]:
        """(K, K) log-determinants of S_k + S_l, and distances of means in their metric."""
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
        """(V, M, M)."""
        below = self.below[component].tril(-1) / self.below.shape[-1]
        return below + torch.diag_embed(self.log_scales[component].exp())


class _Projected(torch.autograd.Function):
    """(B, V, T, T) of rows (B, T, M) and scales (V, M): rows scales^2 rows^T for each label.

    Label by label, forwards and backwards, so that no copy of the rows is made for each of them.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, scales: Tensor) -> Tensor:
        """(B, V, T, T) covariances of the positions, for each label."""
        ctx.save_for_backward(rows, scales)
        return torch.stack([scaled @ scaled.mT for scaled in (rows * one for one in scales)], 1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor]:  # type: ignore[override]
        """Gradients of the rows, if they are asked for, and of the scales."""
        rows, scales = ctx.saved_tensors
        total = torch.zeros_like(rows) if ctx.needs_input_grad[0] else None
        slopes = torch.empty_like(scales)
        for label, gradient in enumerate(gradients[0].unbind(1)):
            both = (gradient + gradient.mT) @ rows
            slopes[label] = (both * rows).sum((0, 1)) * scales[label]
            if total is not None:
                total += both * scales[label].square()
        return total, slopes
