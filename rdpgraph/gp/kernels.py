"""Features of positions, and covariances of functions at two of them."""

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn

from rdpgraph._core.masked import present
from rdpgraph._core.numbers import is_real
from rdpgraph.errors import ModelError


class Products(NamedTuple):
    """Inner products of rows, and their squared norms.

    Attributes:
        dots: (*batch, left, right) inner products of rows.
        left: (*batch, left) squared norms of the rows on the left.
        right: (*batch, right) those on the right.
    """

    dots: Tensor
    left: Tensor
    right: Tensor


@dataclass(frozen=True, eq=False)
class Features:
    """A matrix of features, (rows, columns), dense or sparse COO and coalesced."""

    matrix: Tensor

    @classmethod
    def of(cls, given: Any, name: str, *, dtype: torch.dtype) -> "Features":
        """Features of a tensor, dense or sparse, a sparse matrix of scipy, or an array."""
        if isinstance(given, Features):
            return given
        given = present(name, given)
        # Whatever it came as becomes a matrix of torch, dense or in coordinates.
        if hasattr(given, "tocoo") and not isinstance(given, Tensor):
            given = _of_scipy(given)
        try:
            matrix = given if isinstance(given, Tensor) else torch.as_tensor(given)
        except (TypeError, ValueError, RuntimeError):
            raise ModelError(
                f"{name} needs a matrix of features, dense or sparse; got {given!r:.60}."
            ) from None
        if matrix.ndim != 2 or matrix.is_complex():
            raise ModelError(
                f"{name} needs a matrix (positions, features); got {tuple(matrix.shape)} of "
                f"{matrix.dtype}."
            )
        if matrix.layout is not torch.strided:
            matrix = matrix.to_sparse_coo().to(dtype).coalesce()
        else:
            matrix = matrix.to(dtype)
        # Entries that are not stored are zeros, and finite.
        values = matrix.values() if matrix.is_sparse else matrix
        if not bool(values.isfinite().all()):
            raise ModelError(
                f"{name} has features that are not finite numbers; replace NaN and infinity."
            )
        return cls(matrix)

    @classmethod
    def stacked(cls, parts: Sequence["Features"]) -> "Features":
        """The concatenated rows of several, which are all sparse or all dense."""
        if any(part.matrix.is_sparse for part in parts):
            sparse = [part.matrix.to_sparse_coo() for part in parts]
            return cls(torch.cat(sparse).coalesce())
        return cls(torch.cat([part.matrix for part in parts]))

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self.matrix.shape[0]

    @property
    def columns(self) -> int:
        """The number of features."""
        return self.matrix.shape[1]

    @property
    def device(self) -> torch.device:
        """The device of the matrix."""
        return self.matrix.device

    def __getitem__(self, rows: Tensor) -> "Features":
        chosen = self.matrix.index_select(0, rows)
        return Features(chosen.coalesce() if chosen.is_sparse else chosen)

    def squares(self) -> Tensor:
        """(rows,) squared norms."""
        if not self.matrix.is_sparse:
            return self.matrix.square().sum(1)
        values = self.matrix.values()
        total = values.new_zeros(self.rows)
        return total.index_add_(0, self.matrix.indices()[0], values.square())

    def dots(self, other: "Features") -> Tensor:
        """(rows, other's rows) inner products, dense."""
        with warnings.catch_warnings():
            # torch warns that its sparse CSR products are in beta.
            warnings.filterwarnings("ignore", message="Sparse CSR")
            products = torch.mm(self.matrix, other.matrix.t())
        return products.to_dense() if products.is_sparse else products

    def products(self, other: "Features") -> Products:
        """Products of these rows and others, for a kernel."""
        return Products(self.dots(other), self.squares(), other.squares())


def feature_list(sequences: Iterable[Any], *, columns: int | None = None) -> list[Features]:
    """The features of each sequence, checked against each other and a number of columns."""
    if not isinstance(sequences, Iterable):
        raise ModelError(
            f"A StructuredGP needs a list of matrices (positions, features); got {sequences!r:.80}."
        )
    # The first sequence decides the number of columns, unless training has, and the device.
    checked: list[Features] = []
    for place, given in enumerate(sequences):
        features = Features.of(given, f"Sequence {place}", dtype=torch.float64)
        if not features.rows:
            raise ModelError(f"Sequence {place} is empty; drop it, and its labels.")
        columns = features.columns if columns is None else columns
        if features.columns != columns:
            raise ModelError(
                f"Sequence {place} needs {columns} features, as those before it or in training; "
                f"got {features.columns} (drop unseen features, or declare them in training)."
            )
        if checked and features.device != checked[0].device:
            raise ModelError(
                f"Sequence {place} is on {features.device} and those before it on "
                f"{checked[0].device}; move all to one device."
            )
        checked.append(features)
    if not checked:
        raise ModelError("A tagger needs at least one sequence; got none.")
    return checked


def _of_scipy(given: Any) -> Tensor:
    """A sparse tensor of a sparse matrix of scipy."""
    entries = given.tocoo()
    places = torch.stack([torch.as_tensor(entries.row), torch.as_tensor(entries.col)]).long()
    values = torch.as_tensor(entries.data)
    return torch.sparse_coo_tensor(places, values, tuple(entries.shape), check_invariants=True)


class Kernel(nn.Module, ABC):
    """A covariance that depends on inner products and norms of features alone.

    Features are multiplied once, and each change of a hyperparameter costs one pass over the
    products. Hyperparameters are positive, kept as logarithms, and learned unless their
    ``requires_grad`` is off. Kernels are added and multiplied with ``+`` and ``*``. Subclasses
    implement `forward`, the covariances from the products of two sets of features.
    """

    @abstractmethod
    def forward(self, products: Products) -> Tensor:
        """(*batch, left, right) covariances, differentiable in the hyperparameters."""

    def __add__(self, other: "Kernel") -> "Sum":
        return Sum(self, other)

    def __mul__(self, other: "Kernel") -> "Product":
        return Product(self, other)

    def fixed(self) -> "Kernel":
        """The kernel with hyperparameters that are not learned."""
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
        self, lengthscale: float = 1.0, variance: float = 1.0, *, smoothness: float = 1.5
    ) -> None:
        super().__init__()
        if smoothness not in (0.5, 1.5, 2.5):
            raise ModelError(f"Matern needs a smoothness of 0.5, 1.5 or 2.5; got {smoothness!r}.")
        self.smoothness: Final = smoothness
        self.log_lengthscale = _log("Matern", "lengthscale", lengthscale)
        self.log_variance = _log("Matern", "variance", variance)

    def forward(self, products: Products) -> Tensor:
        squares = _squared_distances(products)
        # The square root has no gradient at 0; that of the covariance is zero.
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


class _Combined(Kernel):
    def __init__(self, *kernels: Kernel) -> None:
        super().__init__()
        self.kernels = nn.ModuleList(kernels)


class Sum(_Combined):
    """The covariance of a sum of independent functions."""

    def forward(self, products: Products) -> Tensor:
        return reduce(torch.add, [kernel(products) for kernel in self.kernels])


class Product(_Combined):
    """The product of covariances, itself a covariance."""

    def forward(self, products: Products) -> Tensor:
        return reduce(torch.mul, [kernel(products) for kernel in self.kernels])


def _squared_distances(products: Products) -> Tensor:
    # Clamped against rounding.
    return (products.left.unsqueeze(-1) + products.right.unsqueeze(-2) - 2 * products.dots).clamp(
        min=0.0
    )


def _log(kernel: str, name: str, value: float) -> nn.Parameter:
    if not is_real(value) or not 0 < value < math.inf:
        raise ModelError(f"{kernel} needs a positive {name}; got {value!r}.")
    return nn.Parameter(torch.tensor(math.log(value), dtype=torch.float64))
