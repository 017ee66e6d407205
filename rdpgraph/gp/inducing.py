"""Inducing points, and functions at positions of padded sequences conditioned on them."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from numbers import Real
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from rdpgraph._core.cache import cached_property
from rdpgraph._core.numbers import is_whole
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
    """

    rows: Tensor
    covariance: Tensor
    root: Tensor

    def projected(self, log_scales: Tensor) -> Tensor:
        """(B, V, T, T) covariances of the rows times independent functions of scales (V, M)."""
        projected: Tensor = _Projected.apply(self.rows, log_scales.exp())
        return projected

    def cut(self, pieces: Pieces) -> "Conditional":
        """The functions at the positions of P pieces of the sequences; O(P W M) memory."""
        left, steps = pieces.sequences.unsqueeze(1), pieces.positions
        inside = pieces.labels.inside()
        both = inside.unsqueeze(-1) & inside.unsqueeze(-2)
        rows = torch.where(inside.unsqueeze(-1), self.rows[left, steps], 0.0)
        pairs = self.covariance[left.unsqueeze(2), steps.unsqueeze(2), steps.unsqueeze(1)]
        apart = torch.eye(steps.shape[1], dtype=pairs.dtype, device=pairs.device)
        covariance = torch.where(both, pairs, apart)
        # Principal blocks of positive definite matrices are positive definite.
        root = torch.linalg.cholesky(covariance)
        return Conditional(rows, covariance, root)


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


@torch.no_grad()
def chosen(features: Features, kernel: Kernel, count: int) -> Tensor:
    """Rows for inducing points (at most ``count``), each of largest variance given those before it.

    The greedy choice of a pivoted Cholesky decomposition (Burt, Rasmussen and van der Wilk 2020,
    section 4.2); it ends early where the points chosen determine all, so a covariance of low rank
    needs no jitter. Deterministic. O(N M^2) for M of N rows.
    """
    squares = features.squares()
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
        # The next column of the Cholesky factor, by which the variances that are left shrink.
        one = torch.tensor([place], device=squares.device)
        products = Products(features.dots(features[one]), squares, squares[one])
        row = kernel(products).squeeze(1) - factor[:step].mT @ factor[:step, place]
        factor[step] = row / left**0.5
        variances = (variances - factor[step].square()).clamp_(min=0.0)
        variances[place] = 0.0
        places.append(place)
    if not places:
        raise ModelError(
            "The kernel is zero at every position, as features are all zero; add a constant one."
        )
    return torch.tensor(places, device=squares.device)


@dataclass(frozen=True, eq=False)
class PaddedGroup:
    """Sequences of similar lengths, padded to one.

    Attributes:
        places: the numbers of its B sequences among all.
        labels: (B, T) their labels.
        cross: products of their (B, T) positions with the inducing points; for each label, if
            labels have points of their own.
        within: products of the (T, T) pairs of positions of each sequence.
    """

    places: list[int]
    labels: Labelling
    cross: list[Products]
    within: Products


@dataclass(eq=False)
class Basis:
    """Inducing points and a kernel for all labels, or for each; and caches that `forget` clears.

    Where some labels have fewer points than others, their rows end in zeros. ``nugget`` is the
    variance of noise.
    """

    points: list[Features]
    kernels: list[Kernel]
    nugget: float
    _reused: dict[PaddedGroup, tuple[Conditional, ...]] = field(
        init=False, repr=False, default_factory=dict
    )
    _roots: list[Tensor] | None = field(init=False, default=None, repr=False)

    @property
    def width(self) -> int:
        """M, the largest number of inducing points."""
        return max(one.rows for one in self.points)

    @cached_property
    def _products(self) -> list[Products]:
        return [one.products(one) for one in self.points]

    def forget(self) -> None:
        """Clear the caches after a change of hyperparameters."""
        self._reused.clear()
        self._roots = None

    def roots(self) -> list[Tensor]:
        """(M, M) the Cholesky factors of the covariances at the inducing points."""
        hyperparameters = (one for kernel in self.kernels for one in kernel.parameters())
        learned = torch.is_grad_enabled() and any(one.requires_grad for one in hyperparameters)
        if self._roots is not None and not learned:
            return self._roots
        with torch.set_grad_enabled(learned):
            roots = [
                cholesky(
                    kernel(products),
                    f"{products.dots.shape[0]} inducing points",
                    "drop points that repeat others or are sums of them, or give the number of "
                    "points instead",
                )
                for kernel, products in zip(self.kernels, self._products, strict=True)
            ]
        if not learned:
            self._roots = roots
        return roots

    def conditional(
        self, group: PaddedGroup, roots: Sequence[Tensor] | None = None
    ) -> tuple[Conditional, ...]:
        """The functions at the positions of a group, given those at the points; not cached.

        Differentiable in ``roots``, if given, and the hyperparameters.
        """
        with torch.set_grad_enabled(roots is not None):
            parts = zip(self.kernels, roots or self.roots(), group.cross, strict=True)
            return tuple(self._conditional(*part, group) for part in parts)

    def reused(
        self, group: PaddedGroup, roots: Sequence[Tensor] | None = None
    ) -> tuple[Conditional, ...]:
        """The result of `conditional`, cached; with ``roots``, fresh and differentiable in them."""
        if roots is not None:
            return self.conditional(group, roots)
        if group not in self._reused:
            self._reused[group] = self.conditional(group)
        return self._reused[group]

    def group(
        self,
        places: list[int],
        features: Sequence[Features],
        states: Sequence[Tensor] | None,
        edges: Sequence[Tensor] | None,
    ) -> PaddedGroup:
        """Group some of the sequences."""
        chosen = [features[place] for place in places]
        device = chosen[0].device
        sizes = [one.rows for one in chosen]
        lengths, longest = torch.tensor(sizes, device=device), max(sizes)
        if states is None:
            padded = torch.full((len(places), longest), -1, device=device)
        else:
            padded = pad_sequence([states[place] for place in places], True, -1)  # noqa: FBT003
        # Products of rows within each sequence, padded to the longest.
        within = [one.products(one) for one in chosen]
        left = pad_sequence([one.left for one in within], batch_first=True)
        square = left.new_zeros(len(places), longest, longest)
        for item, one in enumerate(within):
            square[item, : sizes[item], : sizes[item]] = one.dots
        tied = None if edges is None else tuple(edges[place] for place in places)
        # Products with inducing points are made for all rows at once.
        stacked, cross = Features.stacked(chosen), list[Products]()
        for points in self.points:
            each = stacked.products(points)
            dots = pad_sequence(list(each.dots.split(sizes)), batch_first=True)
            cross.append(Products(dots, left, each.right.expand(len(places), -1)))
        return PaddedGroup(
            places, Labelling(padded, lengths, tied), cross, Products(square, left, left)
        )

    def groups(
        self,
        size: int,
        features: Sequence[Features],
        states: Sequence[Tensor] | None,
        edges: Sequence[Tensor] | None,
    ) -> list[PaddedGroup]:
        """Groups of all sequences, each of about a size, sorted by length to limit padding."""
        order = sorted(range(len(features)), key=lambda place: features[place].rows)
        count = -(-len(order) // size)
        bounds = [len(order) * part // count for part in range(count + 1)]
        return [
            self.group(order[start:stop], features, states, edges)
            for start, stop in pairwise(bounds)
        ]

    def _conditional(
        self, kernel: Kernel, root: Tensor, cross: Products, group: PaddedGroup
    ) -> Conditional:
        inside = group.labels.inside()
        flat = kernel(cross).flatten(0, 1)  # one solve for all sequences
        rows = torch.linalg.solve_triangular(root.mT, flat, upper=True, left=False)
        rows = torch.where(inside.unsqueeze(-1), rows.unflatten(0, inside.shape), 0.0)
        both = inside.unsqueeze(-1) & inside.unsqueeze(-2)
        left = torch.where(both, kernel(group.within) - rows @ rows.mT, 0.0)
        noise = torch.where(inside, self.nugget, 1.0)
        covariance = left + torch.diag_embed(noise.to(left))
        factor = cholesky(
            covariance,
            "the positions of a sequence",
            f"the nugget of {self.nugget:g} is below the rounding of its variances; take a larger "
            "one, or scale the features",
        )
        return Conditional(pad(rows, (0, self.width - rows.shape[-1])), covariance, factor)


def basis_of(
    labels: Sequence[Hashable], kernel: Any, inducing: Any, everything: Features, nugget: float
) -> Basis:
    """The basis of a kernel and points that all labels share, or of dicts of them by labels."""
    for name, given in (("kernel", kernel), ("inducing", inducing)):
        if isinstance(given, Mapping) and set(given) != set(labels):  # pyright: ignore[reportUnknownArgumentType]
            raise ModelError(
                f"StructuredGP needs {name} for each of the labels {tuple(labels)!r:.80}; got "
                f"{tuple(given)!r:.80}."
            )
    apart = isinstance(kernel, Mapping) or isinstance(inducing, Mapping)
    points, kernels = list[Features](), list[Kernel]()
    for label in labels if apart else labels[:1]:
        one: Any = kernel[label] if isinstance(kernel, Mapping) else kernel
        if not isinstance(one, Kernel):
            raise ModelError(f"StructuredGP needs a Kernel for each label; got {one!r:.80}.")
        kernels.append(one.to(everything.device))
        given = inducing[label] if isinstance(inducing, Mapping) else inducing
        points.append(_points_of(everything, given, kernels[-1]))
    return Basis(points, kernels, nugget)


def _points_of(everything: Features, given: Any, kernel: Kernel) -> Features:
    """Inducing points: a number of all positions, chosen by their variances, or those given."""
    count: Any = everything.rows if given is None else given
    if given is None or isinstance(given, Real):
        if not is_whole(count, 1):
            raise ModelError(f"StructuredGP needs 1 inducing point or more; got {count!r}.")
        return everything[chosen(everything, kernel, int(count))]
    points = Features.of(given, "inducing", dtype=torch.float64)
    if points.columns != everything.columns or not points.rows:
        raise ModelError(
            f"Inducing points need {everything.columns} features, as the sequences; got "
            f"{tuple(points.matrix.shape)}."
        )
    return points
