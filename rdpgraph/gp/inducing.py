"""Inducing points, and functions at positions of padded sequences conditioned on them."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from rdpgraph._core import tuning
from rdpgraph._core.cache import cached_property
from rdpgraph.errors import ModelError
from rdpgraph.gp.kernels import Features, Kernel, Products
from rdpgraph.gp.likelihoods import Labelling, Pieces


def noise(
    *shape: int, dtype: torch.dtype, device: torch.device, generator: torch.Generator | None
) -> Tensor:
    """Independent standard normal draws on a device, whatever the generator's."""
    source = device if generator is None else generator.device
    return torch.randn(*shape, dtype=dtype, device=source, generator=generator).to(device)


def cholesky(covariance: Tensor, what: str, remedy: str) -> Tensor:
    """Lower Cholesky factors (*batch, n, n), differentiable; a `ModelError` says the remedy."""
    factor, failed = torch.linalg.cholesky_ex(covariance)
    if bool(failed.any()):
        raise ModelError(
            f"The covariance of {what} is not positive definite in {covariance.dtype} (no Cholesky "
            f"factor at row {int(failed.max())}): {remedy}."
        )
    return factor


_NOTHING_LEFT = 1e-9
"""Share of the largest variance below which a residual is rounding."""


@dataclass(frozen=True, eq=False)
class Conditional:
    """Functions at the positions of sequences, given whitened ones at the inducing points.

    f = rows v + noise, v of unit covariance: equation 18 with A kappa(Z, Z)^(1/2) as rows.

    Attributes:
        rows: (B, T, M); zero beyond the lengths.
        covariance: (B, T, T) of the noise: equation 19; the identity beyond the lengths.
        root: (B, T, T) its lower Cholesky factor.
        keeps: True where it is used in many steps of training, so that products are cached.
    """

    rows: Tensor
    covariance: Tensor
    root: Tensor
    keeps: bool = False
    _pairs: list[Tensor] = field(init=False, default_factory=list[Tensor], repr=False)
    _cut: list[tuple[Pieces, "Conditional"]] = field(init=False, default_factory=list, repr=False)

    def pairs(self) -> Tensor | None:
        """(B, T (T + 1) / 2, M) products of rows of two positions, the second not later; or None.

        Diagonal covariances are linear in them. Cached for short sequences in training.
        """
        steps = self.rows.shape[1]
        if not self.keeps or steps > tuning.PAIRED_POSITIONS:
            return None
        if not self._pairs:
            first, second = torch.tril_indices(steps, steps, device=self.rows.device)
            self._pairs.append(self.rows[:, first] * self.rows[:, second])
        return self._pairs[0]

    def projected(self, log_scales: Tensor) -> Tensor:
        """(B, V, T, T) covariances of the rows times independent functions of scales (V, M)."""
        pairs = self.pairs()
        if pairs is None:
            projected: Tensor = _Projected.apply(self.rows, log_scales.exp())
            return projected
        below = pairs @ (2 * log_scales).exp().mT
        steps = torch.arange(self.rows.shape[1], device=self.rows.device)
        later, earlier = torch.maximum(steps, steps[:, None]), torch.minimum(steps, steps[:, None])
        places = later * (later + 1) // 2 + earlier  # in `pairs`
        return below.index_select(1, places.flatten()).unflatten(1, places.shape).movedim(-1, 1)

    def cut(self, pieces: Pieces) -> "Conditional":
        """The functions at the positions of P pieces of the sequences; O(P W M) memory, cached."""
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
        # Principal blocks of positive definite matrices are positive definite.
        root = torch.linalg.cholesky(covariance)
        short = Conditional(rows, covariance, root, keeps=self.keeps)
        if self.keeps:
            self._cut.append((pieces, short))
        return short


class _Projected(torch.autograd.Function):
    """(B, V, T, T) of rows (B, T, M) and scales (V, M): rows scales^2 rows^T for each label.

    Computed label by label in both directions, without copies of the rows for all labels.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, scales: Tensor) -> Tensor:
        """Covariances (B, V, T, T)."""
        ctx.save_for_backward(rows, scales)
        return torch.stack([scaled @ scaled.mT for scaled in (rows * one for one in scales)], 1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor]:  # type: ignore[override]
        """Gradients of the rows, if needed, and of the scales."""
        rows, scales = ctx.saved_tensors
        total = torch.zeros_like(rows) if ctx.needs_input_grad[0] else None
        slopes = torch.empty_like(scales)
        for label, gradient in enumerate(gradients[0].unbind(1)):
            both = (gradient + gradient.mT) @ rows
            slopes[label] = (both * rows).sum((0, 1)) * scales[label]
            if total is not None:
                total += both * scales[label].square()
        return total, slopes


def root_of(covariance: Tensor) -> Tensor:
    """The lower Cholesky factor of the covariance at the inducing points."""
    return cholesky(
        covariance,
        f"{covariance.shape[-1]} inducing points",
        "drop points that repeat others or are sums of them, or give a number in their place",
    )


def conditional(
    kernel: Kernel, root: Tensor, cross: Products, inner: Products, *, inside: Tensor, nugget: float
) -> Conditional:
    """Functions at the positions of sequences given those at the inducing points.

    ``cross`` and ``inner`` are products of positions (B, T) with the points and with each other,
    ``inside`` (B, T) marks positions within the lengths; ``nugget`` is the variance of noise.
    """
    flat = kernel(cross).flatten(0, 1)  # one solve for all sequences
    rows = torch.linalg.solve_triangular(root.mT, flat, upper=True, left=False)
    rows = rows.unflatten(0, inside.shape)
    rows = torch.where(inside.unsqueeze(-1), rows, 0.0)
    both = inside.unsqueeze(-1) & inside.unsqueeze(-2)
    left = torch.where(both, kernel(inner) - rows @ rows.mT, 0.0)
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
    """Rows for inducing points (at most ``count``), each of largest variance given those before it.

    The greedy choice of a pivoted Cholesky decomposition (Burt, Rasmussen and van der Wilk 2020,
    section 4.2); it ends early where the points chosen determine all, so a covariance of low rank
    needs no jitter. Deterministic. O(N M^2) for M of N rows.
    """
    squares, column = features.squares(), features.columns_of_products()
    norms = squares.unsqueeze(-1)
    variances = kernel(Products(norms.unsqueeze(-1), norms, norms)).reshape(-1)
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


@dataclass(frozen=True, eq=False)
class Group:
    """Sequences of similar lengths, padded to one.

    Attributes:
        places: of the sequences among all.
        labels: of the sequences.
        cross: products of their positions (B, T) with the M inducing points.
        within: products of the positions of each sequence with each other.
        each: the group by the points of each label, where they differ.
    """

    places: list[int]
    labels: Labelling
    cross: Products
    within: Products
    each: tuple["Group", ...] = ()


@dataclass(eq=False)
class Basis:
    """Inducing points, a kernel, a nugget, and a cache that `forget` clears.

    Where other labels have more points, ``width`` of them, rows end in zeros.
    """

    points: Features
    kernel: Kernel
    nugget: float
    width: int = 0
    _reused: dict[int, tuple[Group, Conditional]] = field(
        init=False, repr=False, default_factory=dict
    )
    _root: Tensor | None = field(init=False, default=None, repr=False)

    @cached_property
    def _products(self) -> Products:
        return self.points.products(self.points)

    def kernels(self) -> list[Kernel]:
        """Kernels of the functions."""
        return [self.kernel]

    def forget(self) -> None:
        """Clear the cache after a change of hyperparameters."""
        self._reused.clear()
        self._root = None

    def root(self) -> Any:
        """(M, M) the Cholesky factor of the covariance at the inducing points; a list by labels."""
        if torch.is_grad_enabled() and any(one.requires_grad for one in self.kernel.parameters()):
            return root_of(self.kernel(self._products))
        if self._root is None:
            with torch.no_grad():
                self._root = root_of(self.kernel(self._products))
        return self._root

    def conditional(self, group: Group) -> Any:
        """The functions at the positions of a group, given those at the points; not cached."""
        with torch.no_grad():
            return self._computed(group, self.root())

    def reused(self, group: Group, root: Any = None) -> Any:
        """The result of `conditional`, cached; with a ``root``, fresh and differentiable in it."""
        if root is not None:
            return self._computed(group, root)
        reused = self._reused.get(id(group))
        if reused is None:
            with torch.no_grad():
                given = replace(self._computed(group, self.root()), keeps=True)
            reused = self._reused[id(group)] = (group, given)
        return reused[1]

    def group(
        self,
        places: list[int],
        features: Sequence[Features],
        states: Sequence[Tensor] | None,
        edges: Sequence[Tensor] | None,
    ) -> Group:
        """Group some of the sequences."""
        chosen = [features[place] for place in places]
        device = chosen[0].device
        lengths = torch.tensor([one.rows for one in chosen], device=device)
        longest = int(lengths.max())
        if states is None:
            padded = torch.full((len(places), longest), -1, device=device)
        else:
            padded = pad_sequence([states[place] for place in places], True, -1)  # noqa: FBT003
        within = [one.products(one) for one in chosen]
        sizes = lengths.tolist()
        left = pad_sequence([one.left for one in within], batch_first=True)
        square = left.new_zeros(len(places), longest, longest)
        for item, one in enumerate(within):
            square[item, : sizes[item], : sizes[item]] = one.dots
        tied = None if edges is None else tuple(edges[place] for place in places)
        return Group(
            places,
            Labelling(padded, lengths, tied),
            self.cross(chosen, left),
            Products(square, left, left),
        )

    def cross(self, chosen: Sequence[Features], squares: Tensor) -> Products:
        """Products (B, T, M) of sequences with the points, given squares of positions (B, T)."""
        cross = Features.stacked(chosen).products(self.points)
        dots = pad_sequence(list(cross.dots.split([one.rows for one in chosen])), batch_first=True)
        return Products(dots, squares, cross.right.expand(len(chosen), -1))

    def groups(
        self,
        size: int,
        features: Sequence[Features],
        states: Sequence[Tensor] | None,
        edges: Sequence[Tensor] | None,
    ) -> list[Group]:
        """Groups of all sequences, each of about a size, sorted by length to limit padding."""
        order = sorted(range(len(features)), key=lambda place: features[place].rows)
        count = -(-len(order) // size)
        bounds = [len(order) * part // count for part in range(count + 1)]
        return [
            self.group(order[start:stop], features, states, edges)
            for start, stop in pairwise(bounds)
        ]

    def _computed(self, group: Group, root: Tensor) -> Conditional:
        given = conditional(
            self.kernel,
            root,
            group.cross,
            group.within,
            inside=group.labels.inside(),
            nugget=self.nugget,
        )
        more = max(self.width - self.points.rows, 0)
        return replace(given, rows=pad(given.rows, (0, more))) if more else given
