"""Inducing points, and what the functions at other positions are, given those at them."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from rdpgraph.errors import ModelError
from rdpgraph.gp.algebra import cholesky
from rdpgraph.gp.features import Features, Products
from rdpgraph.gp.kernels import Kernel
from rdpgraph.gp.labelling import Pieces

_NOTHING_LEFT = 1e-9
"""Of the largest variance: less than this is explained by the points chosen, up to rounding."""

_SHORT = 16
"""Positions up to which products of the rows of two of them are kept, at most 8 times the rows."""


@dataclass(frozen=True, eq=False)
class Conditional:
    """Functions at the positions of sequences, given whitened ones at the inducing points.

    f = rows v + noise, v of unit covariance: equation 18 with A kappa(Z, Z)^(1/2) as rows.

    Attributes:
        rows: (B, T, M); zero beyond the lengths.
        covariance: (B, T, T) of the noise: equation 19; the identity beyond the lengths.
        root: (B, T, T) its lower Cholesky factor.
        keeps: whether it is one for many steps of training.
    """

    rows: Tensor
    covariance: Tensor
    root: Tensor
    keeps: bool = False
    _pairs: list[Tensor] = field(init=False, default_factory=list[Tensor], repr=False)
    _cut: list[tuple[Pieces, "Conditional"]] = field(init=False, default_factory=list, repr=False)

    @property
    def steps(self) -> int:
        """T, the number of positions."""
        return self.rows.shape[1]

    def pairs(self) -> Tensor | None:
        """(B, T (T + 1) / 2, M) products of the rows of two positions, the second not later.

        Diagonal covariances are linear in them. None where they are not worth their memory: for
        one use, or for long sequences, where products of matrices are as fast.
        """
        steps = self.steps
        if not self.keeps or steps > _SHORT:
            return None
        if not self._pairs:
            first, second = torch.tril_indices(steps, steps, device=self.rows.device)
            self._pairs.append(self.rows[:, first] * self.rows[:, second])
        return self._pairs[0]

    def places(self) -> Tensor:
        """(T T,) where in `pairs` any two positions are."""
        steps, device = self.steps, self.rows.device
        first, second = torch.tril_indices(steps, steps, device=device)
        places = torch.empty(steps, steps, dtype=torch.long, device=device)
        numbers = torch.arange(len(first), device=device)
        places[first, second] = places[second, first] = numbers
        return places.flatten()

    def cut(self, pieces: Pieces) -> "Conditional":
        """The functions at the positions of P pieces of the sequences, (P, W) and so on.

        O(P W M) memory; kept with what it is cut from.
        """
        for known, short in self._cut:
            if known.same(pieces):
                return short
        left, steps = pieces.sequences.unsqueeze(1), pieces.positions
        inside = pieces.labels.inside()
        both = inside.unsqueeze(-1) & inside.unsqueeze(-2)
        rows = torch.where(inside.unsqueeze(-1), self.rows[left, steps], 0.0)
        pairs = self.covariance[left.unsqueeze(2), steps.unsqueeze(2), steps.unsqueeze(1)]
        apart = torch.eye(steps.shape[1], dtype=pairs.dtype, device=pairs.device)
        covariance = torch.where(both, pairs, apart)
        # A principal block of a positive definite matrix is one.
        root = torch.linalg.cholesky(covariance)
        short = Conditional(rows, covariance, root, keeps=self.keeps)
        if self.keeps:
            self._cut.append((pieces, short))
        return short


def root_of(covariance: Tensor) -> Tensor:
    """The lower Cholesky factor of the covariance at the inducing points.

    Raises:
        ModelError: there is none, for points that determine each other.
    """
    return cholesky(
        covariance,
        f"{covariance.shape[-1]} inducing points",
        "drop points that repeat others or are sums of them, or give a number in their place",
    )


def conditional(
    kernel: Kernel,
    root: Tensor,
    cross: Products,
    own: Products,
    *,
    inside: Tensor,
    nugget: float,
) -> Conditional:
    """Functions at the positions of sequences given those at the inducing points.

    Args:
        kernel: the covariance of functions.
        root: (M, M) `root_of` the covariance at the inducing points.
        cross: products of the positions (B, T) with the points.
        own: products of the positions of each sequence, (B, T, T).
        inside: (B, T) whether a position is within the length.
        nugget: variance of independent noise at every position, a part of the model.
    """
    flat = kernel(cross).flatten(0, 1)  # one solve for all sequences
    rows = torch.linalg.solve_triangular(root.mT, flat, upper=True, left=False)
    rows = rows.unflatten(0, inside.shape)
    rows = torch.where(inside.unsqueeze(-1), rows, 0.0)
    both = inside.unsqueeze(-1) & inside.unsqueeze(-2)
    left = torch.where(both, kernel(own) - rows @ rows.mT, 0.0)
    noise = torch.where(inside, nugget, 1.0)
    covariance = left + torch.diag_embed(noise.to(left))
    root = cholesky(
        covariance,
        "the positions of a sequence",
        f"the nugget of {nugget:g} is below the rounding of its variances; take a larger one, or "
        "scale the features",
    )
    return Conditional(rows, covariance, root)


@torch.no_grad()
def chosen(features: Features, kernel: Kernel, count: int) -> Tensor:
    """Which rows are the inducing points: each has the largest variance given those before it.

    The greedy choice of a pivoted Cholesky decomposition (Burt, Rasmussen and van der Wilk 2020,
    section 4.2); it ends early where the points chosen determine all, so a covariance of low rank
    needs no jitter. Deterministic. O(N M^2) for M of N rows, and one row of products for each.

    Returns:
        (at most count,) numbers of rows.
    """
    squares, column = features.squares(), features.columns_of_products()
    variances = _diagonal(kernel, squares)
    limit = _NOTHING_LEFT * float(variances.max())
    count = min(count, features.rows)
    factor = variances.new_zeros(count, features.rows)
    places: list[int] = []
    for step in range(count):
        place = int(variances.argmax())
        left = float(variances[place])
        if not left > limit:
            break
        one = torch.tensor([place], device=squares.device)
        products = Products(column(place).unsqueeze(1), squares, squares[one])
        row = kernel(products).squeeze(1) - factor[:step].mT @ factor[:step, place]
        factor[step] = row / left**0.5
        variances = (variances - factor[step].square()).clamp_(min=0.0)
        variances[place] = 0.0
        places.append(place)
    if not places:
        raise ModelError("The kernel is zero at every position: features are all zero.")
    return torch.tensor(places, device=squares.device)


def _diagonal(kernel: Kernel, squares: Tensor) -> Tensor:
    """(N,) the kernel's variances at the positions."""
    column = squares.unsqueeze(-1)
    return kernel(Products(column.unsqueeze(-1), column, column)).reshape(-1)
