"""Covariances of functions at two positions, given the features of both."""

import math
from abc import ABC, abstractmethod
from typing import Final

import torch
from torch import Tensor, nn

from rdpgraph._numbers import is_real
from rdpgraph.errors import ModelError
from rdpgraph.gp.features import Products


class Kernel(nn.Module, ABC):
    """A covariance that depends on inner products and norms of features alone.

    So features are multiplied once, sparsely, and each change of a hyperparameter costs one pass
    over the products. Hyperparameters are positive, kept as logarithms, and learned unless their
    ``requires_grad`` is off. Kernels are added and multiplied with ``+`` and ``*``. One of your
    own is a subclass with `forward`.
    """

    @abstractmethod
    def forward(self, products: Products) -> Tensor:
        """(*batch, left, right) covariances, differentiable in the hyperparameters."""

    def __call__(self, products: Products) -> Tensor:
        """(*batch, left, right) covariances, differentiable in the hyperparameters."""
        covariances: Tensor = super().__call__(products)
        return covariances

    def __add__(self, other: "Kernel") -> "Sum":
        return Sum(self, other)

    def __mul__(self, other: "Kernel") -> "Product":
        return Product(self, other)

    def fixed(self) -> "Kernel":
        """This kernel, its hyperparameters no longer learned."""
        self.requires_grad_(False)  # noqa: FBT003
        return self


class Linear(Kernel):
    """variance * (x . y): linear functions with normal weights.

    Args:
        variance: of each weight.
    """

    def __init__(self, variance: float = 1.0) -> None:
        super().__init__()
        self.log_variance = _log("Linear", "variance", variance)

    def forward(self, products: Products) -> Tensor:
        """(*batch, left, right) covariances."""
        return self.log_variance.exp() * products.dots


class RBF(Kernel):
    """variance * exp(-|x - y|^2 / (2 lengthscale^2)).

    Args:
        lengthscale: the distance at which functions change, in the units of the features.
        variance: of the function.
    """

    def __init__(self, lengthscale: float = 1.0, variance: float = 1.0) -> None:
        super().__init__()
        self.log_lengthscale = _log("RBF", "lengthscale", lengthscale)
        self.log_variance = _log("RBF", "variance", variance)

    def forward(self, products: Products) -> Tensor:
        """(*batch, left, right) covariances."""
        scaled = _squared_distances(products) * (-2 * self.log_lengthscale).exp()
        return (self.log_variance - scaled / 2).exp()


class Matern(Kernel):
    """The Matern covariance of smoothness 1/2, 3/2 or 5/2.

    Rasmussen and Williams 2006, *Gaussian processes for machine learning*, equation 4.17.

    Args:
        lengthscale: the distance at which functions change, in the units of the features.
        variance: of the function.
        smoothness: 0.5, 1.5 or 2.5.
    """

    def __init__(
        self,
        lengthscale: float = 1.0,
        variance: float = 1.0,
        *,
        smoothness: float = 1.5,
    ) -> None:
        super().__init__()
        if smoothness not in (0.5, 1.5, 2.5):
            raise ModelError(f"Matern needs a smoothness of 0.5, 1.5 or 2.5; got {smoothness!r}.")
        self.smoothness: Final = smoothness
        self.log_lengthscale = _log("Matern", "lengthscale", lengthscale)
        self.log_variance = _log("Matern", "variance", variance)

    def forward(self, products: Products) -> Tensor:
        """(*batch, left, right) covariances."""
        squares = _squared_distances(products)
        # The root has no gradient at 0, where the covariance has one, of zero.
        apart = squares > 0
        distance = torch.where(apart, squares, 1.0).sqrt()
        distance = torch.where(apart, distance, 0.0)
        scaled = math.sqrt(2 * self.smoothness) * distance * (-self.log_lengthscale).exp()
        polynomial = torch.ones_like(scaled)
        if self.smoothness > 1:
            polynomial = polynomial + scaled
        if self.smoothness > 2:
            polynomial = polynomial + scaled.square() / 3
        return polynomial * (self.log_variance - scaled).exp()


class Sum(Kernel):
    """The covariance of a sum of independent functions."""

    def __init__(self, *kernels: Kernel) -> None:
        super().__init__()
        self.kernels = nn.ModuleList(kernels)

    def forward(self, products: Products) -> Tensor:
        """(*batch, left, right) covariances."""
        total = torch.zeros_like(products.dots)
        for kernel in self.kernels:
            total = total + kernel(products)
        return total


class Product(Kernel):
    """The product of covariances, which is one."""

    def __init__(self, *kernels: Kernel) -> None:
        super().__init__()
        self.kernels = nn.ModuleList(kernels)

    def forward(self, products: Products) -> Tensor:
        """(*batch, left, right) covariances."""
        total = torch.ones_like(products.dots)
        for kernel in self.kernels:
            total = total * kernel(products)
        return total


def _squared_distances(products: Products) -> Tensor:
    # Rounding may leave a little less than zero.
    return (products.left.unsqueeze(-1) + products.right.unsqueeze(-2) - 2 * products.dots).clamp(
        min=0.0
    )


def _log(kernel: str, name: str, value: float) -> nn.Parameter:
    if not is_real(value) or not 0 < value < math.inf:
        raise ModelError(f"{kernel} needs a positive {name}; got {value!r}.")
    return nn.Parameter(torch.tensor(math.log(value), dtype=torch.float64))
