"""Gaussian emissions, with covariances of four kinds and entries that are missing."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor
from torch.distributions import constraints, transform_to

from rdpgraph._core import tuning
from rdpgraph._core.arguments import require_fields
from rdpgraph._core.cache import cached_property
from rdpgraph.errors import ModelError
from rdpgraph.learn.emissions import Emission, Map, check_mass, check_prior, settle, table_of
from rdpgraph.learn.sequences import PaddedBatch

Kind = Literal["spherical", "diagonal", "full", "tied"]

_APART = 1e6
"""Squared distance of a mean from the common one, in variances, up to which squares are expanded:
what cancels is this part of rounding."""
_SINGULAR = 1e-12  # relative size of a variance that is rounding
_VARIANCES: Map = torch.exp, lambda table: torch.where(table > 0, table, math.nan).log()
_LOWER = transform_to(constraints.lower_cholesky)
_SQUARE: Map = (
    lambda free: _LOWER(free) @ _LOWER(free).mT,
    lambda table: _LOWER.inv(torch.linalg.cholesky(table)),
)


@dataclass(frozen=True, eq=False)
class Gaussian(Emission):
    """Real columns, normally distributed in each state.

    Entries that are missing (NaN) are left out: log-likelihoods are those of the entries that were
    seen. Covariances that are full or tied are maximised from conditional means and covariances of
    the missing entries given the others of their row and the state; each pattern of missing entries
    costs a matrix inverse.

    Args:
        covariance: "spherical" (one variance for each state), "diagonal", "full", or "tied" (one
            full covariance for all states).
        means: (states, columns) to start from; None: from the data.
        covariances: (states,), (states, columns), (states, columns, columns), or (columns, columns)
            by kind, to start from; None: from the data.
        mean_prior: (columns,) or a number: the mean of the prior of means.
        mean_weight: of that prior, in rows.
        covariance_prior: a sum of squares, a number for the diagonal or (columns, columns), that
            is added to those of the data.
        covariance_weight: the number of rows that it stands for.
        fixed: names of tables that stay, "means" or "covariances".

    Raises:
        ModelError: a kind that is none of these, or a negative weight.
    """

    tables = "means", "covariances"
    covariance: Kind = "diagonal"
    means: Tensor | None = None
    covariances: Tensor | None = None
    mean_prior: Tensor | float = field(default=0.0, kw_only=True)
    mean_weight: float = field(default=0.0, kw_only=True)
    covariance_prior: Tensor | float = field(default=0.0, kw_only=True)
    covariance_weight: float = field(default=0.0, kw_only=True)
    fixed: Sequence[str] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        settle(self, "means", "covariances", "mean_prior", "covariance_prior")
        require_fields(self, mean_weight="[0, inf)", covariance_weight="[0, inf)")
        check_prior(self, "mean_prior", -math.inf)
        # A matrix has products of columns beside the diagonal, which may be negative.
        matrix = isinstance(self.covariance_prior, Tensor) and self.covariance_prior.ndim == 2
        check_prior(self, "covariance_prior", -math.inf if matrix else 0.0)

    @property
    def maps(self) -> tuple[Map, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Identities for means; Cholesky factors for covariances, logarithms for variances."""
        return (torch.Tensor.clone, torch.Tensor.clone), _VARIANCES if self._diagonal else _SQUARE

    @property
    def kept(self) -> int:
        return 3

    @property
    def size(self) -> int:
        states, columns = table_of(self.means).shape
        square = columns * (columns + 1) // 2
        each = {"spherical": states, "diagonal": states * columns, "full": states * square}
        sizes = {"means": states * columns, "covariances": each.get(self.covariance, square)}
        return sum(size for name, size in sizes.items() if name not in self.fixed)

    @property
    def _diagonal(self) -> bool:
        return self.covariance in ("spherical", "diagonal")

    def width(self, columns: int) -> int:
        return columns if self._diagonal else columns**2

    def plain(self, states: int, observed: Tensor) -> dict[str, Tensor]:
        columns = observed.shape[1]
        variances = (observed - observed.nanmean(0)).square().nanmean(0).nan_to_num(0.0)
        variances = torch.where(variances > 0, variances, 1.0)
        covariances = {
            "spherical": variances.mean().expand(states),
            "diagonal": variances.expand(states, columns),
            "full": variances.diag().expand(states, columns, columns),
            "tied": variances.diag(),
        }[self.covariance]
        means = observed.nanmean(0).nan_to_num(0.0).expand(states, columns)
        return {"means": means, "covariances": covariances}

    def blank(self, states: int, observed: Tensor) -> "Gaussian":
        return replace(
            super().blank(states, observed),
            mean_prior=torch.as_tensor(self.mean_prior).to(observed),
            covariance_prior=torch.as_tensor(self.covariance_prior).to(observed),
        )

    def log_prob(self, observed: Tensor) -> Tensor:
        means = table_of(self.means)
        result = observed.new_zeros(len(observed), len(means))
        # log N = -1/2 sum_d (log 2 pi v_d + (x_d - m_d)^2 / v_d). Where data are near the means
        # (`_close`) the square is expanded, which makes all states one matrix product; far away
        # that would cancel, and differences are taken.
        if self._diagonal:
            precision = 1 / self._variances
            level = (2 * math.pi / precision).log()
            if self._close:
                near = means - self._shift
                level = level + near.square() * precision
                natural = torch.cat([level, -2 * near * precision, precision], 1)
                return (natural.mul_(-0.5) @ self._features(observed)).mT.contiguous()
            for part in _parts(observed, means):
                terms = (observed[part].unsqueeze(1) - means).square() * precision + level
                result[part] = terms.nansum(2) * -0.5
            return result
        if self._close:
            # The same with (x - m)^T P (x - m), P the inverse covariance: pairs of columns other
            # than the diagonal count twice.
            inverse, near = torch.linalg.inv(self._table), (means - self._shift).unsqueeze(2)
            level = torch.linalg.slogdet(2 * math.pi * self._table).logabsdet.unsqueeze(1)
            level = level + (near.mT @ inverse @ near).squeeze(2)
            one, other = torch.triu_indices(*inverse.shape[1:], device=inverse.device)
            squares = inverse[:, one, other] * (2 - (one == other).to(inverse))
            natural = torch.cat([level, -2 * (inverse @ near).squeeze(2), squares], 1)
            result = (natural.mul_(-0.5) @ self._features(observed)).mT.contiguous()
        # Rows with gaps, pattern by pattern, and all rows where data are far: the Cholesky factor L
        # of the columns that are seen, and |L^-1 (x - m)|^2.
        for rows, seen in _patterns(observed, whole=not self._close):
            factor = torch.linalg.cholesky(self._table[:, seen][:, :, seen])
            unit = torch.eye(factor.shape[1]).to(factor).expand_as(factor)
            white = torch.linalg.solve_triangular(factor, unit, upper=False)
            levels = factor.diagonal(dim1=1, dim2=2).log().sum(1)
            levels = levels + 0.5 * factor.shape[1] * math.log(2 * math.pi)
            for part in _parts(rows, means):
                apart = (observed[rows[part]][:, seen] - means[:, None, seen]) @ white.mT
                result[rows[part]] = (-0.5 * apart.square().sum(2) - levels.unsqueeze(1)).mT
        return result

    def statistics(self, rows: PaddedBatch, counts: Tensor) -> tuple[Tensor, ...]:
        """Sums of weights, and of first and second moments about the means as they are.

        Weights are (states, columns) where covariances are diagonal or spherical: those of entries
        that were seen. Otherwise (states,): those of steps of which something was.
        """
        observed, weights = rows["observed"].flatten(0, 1), counts.flatten(0, 1)
        means = table_of(self.means)
        if self._diagonal and self._close:
            near = means - self._shift
            mass, first, second = (weights.mT @ self._features(observed).mT).chunk(3, 1)
            return mass, first - near * mass, second - near * (2 * first - near * mass)
        if self._diagonal:
            sums = means.new_zeros(3, *means.shape)
            for part in _parts(observed, means):
                apart = observed[part].unsqueeze(1) - means
                moments = torch.stack([(~apart.isnan()).to(apart), apart, apart.square()])
                sums += torch.einsum("rn,krnc->knc", weights[part], moments.nan_to_num(0.0))
            return tuple(sums)
        states, columns = means.shape
        mass, first = means.new_zeros(states), torch.zeros_like(means)
        second = means.new_zeros(states, columns, columns)
        if self._close:
            near = means - self._shift
            one, other = torch.triu_indices(columns, columns, device=means.device)
            sums = weights.mT @ self._features(observed).mT
            mass, first, squares = sums.split([1, columns, len(one)], 1)
            second[:, one, other] = second[:, other, one] = squares
            second = second - _outer(first, near)
            mass, first = mass.squeeze(1), first - near * mass
            second = second - _outer(near, first)
        for places, seen in _patterns(observed, whole=not self._close):
            some = not bool(seen.all())
            # Conditional means and covariances of missing entries.
            gain = self._table[:, :, seen] @ torch.linalg.inv(self._table[:, seen][:, :, seen])
            for part in _parts(places, means):
                weight = weights[places[part]].mT.unsqueeze(1)
                apart = observed[places[part]][:, seen] - means[:, None, seen]
                apart = apart @ gain.mT if some else apart
                mass = mass + weight.sum((1, 2))
                first = first + (weight @ apart).squeeze(1)
                second = second + (apart.mT * weight) @ apart
            if some:
                rest = self._table - gain @ self._table[:, seen]
                second = second + weights[places].sum(0)[:, None, None] * rest
        return mass, first, second

    def maximised(self, statistics: tuple[Tensor, ...]) -> "Gaussian":
        """Posterior modes under a normal prior of means and an inverse Wishart one of covariances.

        Raises:
            ModelError: a state has lost all mass, or its covariance is singular.
        """
        mass, first, second = statistics
        rows = mass if self._diagonal else mass.unsqueeze(1)
        old, weight = table_of(self.means), self.covariance_weight
        ahead = self.mean_prior - old
        step = torch.zeros_like(old)
        if "means" not in self.fixed:
            check_mass(self, (rows + self.mean_weight).amin(1), "mean_weight")
            step = (first + self.mean_weight * ahead) / (rows + self.mean_weight)
        means, gap = old + step, ahead - step
        if "covariances" in self.fixed:
            return replace(self, means=means)
        # Variances below this are rounding.
        floor = (8 * torch.finfo(means.dtype).eps * means).square()
        if self._diagonal:
            squares = second - step * (2 * first - rows * step) + self.mean_weight * gap.square()
            squares = squares + self._prior.diagonal()
            if self.covariance == "spherical":
                squares, second, rows = (p.sum(1, keepdim=True) for p in (squares, second, rows))
                weight = weight * means.shape[1]
            check_mass(self, (rows + weight).amin(1), "covariance_weight")
            table = squares / (rows + weight)
            sound = (table > floor + _SINGULAR * second / torch.where(rows > 0, rows, 1.0)).all(1)
            covariances = table.squeeze(1) if self.covariance == "spherical" else table
        else:
            cross = first.unsqueeze(2) * step.unsqueeze(1)
            squares = second - cross - cross.mT + rows.unsqueeze(2) * _outer(step, step)
            squares = squares + self.mean_weight * _outer(gap, gap)
            if self.covariance == "tied":
                squares, second, rows = (p.sum(0, keepdim=True) for p in (squares, second, rows))
                floor = floor.amax(0, keepdim=True)
            check_mass(self, (rows + weight).amin(1), "covariance_weight")
            table = (squares + self._prior) / (rows + weight).unsqueeze(2)
            variances = table.diagonal(dim1=1, dim2=2)
            least = second.diagonal(dim1=1, dim2=2) / torch.where(rows > 0, rows, 1.0)
            sound = (variances > floor + _SINGULAR * least).all(1)
            scale = torch.where(sound.unsqueeze(1), variances, 1.0).rsqrt()
            factor, info = torch.linalg.cholesky_ex(table * _outer(scale, scale))
            pivots = factor.diagonal(dim1=1, dim2=2).square()
            sound &= (info == 0) & (pivots > _SINGULAR).all(1)
            covariances = table[0] if self.covariance == "tied" else table
        if not bool(sound.all()):
            state = int((~sound).nonzero()[0])
            where = "all states" if self.covariance == "tied" else f"state {state}"
            raise ModelError(
                f"Gaussian's {self.covariance} covariance of {where} is singular, from "
                f"{float(rows[state].amax()):.4g} rows: set covariance_prior, a sum of squares "
                "such as 1e-2, or take fewer states."
            )
        return replace(self, means=means, covariances=covariances)

    def log_prior(self) -> Tensor:
        means, table = table_of(self.means), self._table
        inverse = torch.linalg.inv(table)
        gap = (means - self.mean_prior).unsqueeze(1)
        total = self.mean_weight * (gap @ inverse @ gap.mT).sum()
        if self.covariance == "tied":
            table, inverse = table[:1], inverse[:1]
        levels = torch.linalg.slogdet(table).logabsdet.sum()
        return -0.5 * (total + (inverse * self._prior).sum() + self.covariance_weight * levels)

    def sample(self, states: Tensor, generator: torch.Generator | None = None) -> Tensor:
        means = table_of(self.means)[states]
        noise = torch.randn(means.shape, generator=generator, dtype=means.dtype).to(means)
        factor = torch.linalg.cholesky(self._table)[states]
        return means + (factor @ noise.unsqueeze(2)).squeeze(2)

    @property
    def _variances(self) -> Tensor:
        """(states, columns) where there are no others."""
        given = table_of(self.covariances)
        return given.unsqueeze(1).expand_as(table_of(self.means)) if given.ndim == 1 else given

    @property
    def _table(self) -> Tensor:
        """The covariances of all states, (states, columns, columns)."""
        if self._diagonal:
            return self._variances.diag_embed()
        means = table_of(self.means)
        return table_of(self.covariances).expand(*means.shape, means.shape[1])

    @property
    def _prior(self) -> Tensor:
        """(columns, columns) the sum of squares of the prior."""
        given = torch.as_tensor(self.covariance_prior)
        columns = table_of(self.means).shape[1]
        return given if given.ndim == 2 else torch.eye(columns).to(given) * given

    @cached_property
    def _shift(self) -> Tensor:
        return table_of(self.means).mean(0)

    @cached_property
    def _close(self) -> bool:
        """True where squares about one mean may be expanded, and are few."""
        near = table_of(self.means) - self._shift
        if self._diagonal:
            return bool((near.square() <= _APART * self._variances).all())
        inverse = torch.linalg.inv(self._table).diagonal(dim1=1, dim2=2).sum(1)
        size = near.square().sum(1) + self._table.diagonal(dim1=1, dim2=2).sum(1)
        return near.shape[1] <= tuning.PAIRED_COLUMNS and bool((size * inverse <= _APART).all())

    def _features(self, observed: Tensor) -> Tensor:
        """(k, rows): indicators of seen entries, values and squares about the common mean.

        Zero for missing entries where covariances are diagonal; else for rows with one, and squares
        are the products of pairs of columns.
        """
        apart = observed.mT.contiguous() - self._shift.unsqueeze(1)
        seen = ~(apart if self._diagonal else apart.sum(0, keepdim=True)).isnan()
        apart = torch.where(seen, apart, 0.0)
        squares = [apart.square()]
        if not self._diagonal:
            squares = [apart[place:] * coordinate for place, coordinate in enumerate(apart)]
        return torch.cat([seen.to(apart), apart, *squares])


def _outer(one: Tensor, other: Tensor) -> Tensor:
    return one.unsqueeze(-1) * other.unsqueeze(-2)


def _parts(rows: Tensor, means: Tensor) -> list[slice]:
    """Slices of rows that bound the memory for all states and columns."""
    width = tuning.per_block(means.numel(), tuning.CORE_BLOCK)
    return [slice(at, at + width) for at in range(0, len(rows), width)]


def _patterns(observed: Tensor, *, whole: bool) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows with the same entries seen, and (columns,) which; without rows that have none.

    ``whole`` includes the rows without gaps.
    """
    gaps = observed.sum(1).isnan()
    if whole and not bool(gaps.all()):
        yield (~gaps).nonzero().flatten(), gaps.new_ones(observed.shape[1])
    rest = gaps.nonzero().flatten()
    seen = ~observed[rest].isnan()
    rest, seen = rest[seen.any(1)], seen[seen.any(1)]
    if len(rest):
        kinds, places, counts = seen.unique(dim=0, return_inverse=True, return_counts=True)
        groups = rest[places.argsort()].split(counts.tolist())
        yield from zip(groups, kinds, strict=True)
