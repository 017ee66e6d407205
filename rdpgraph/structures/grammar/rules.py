"""Rules of binary branching: log-weights of a span's state given the states of its two parts."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, ClassVar, Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from rdpgraph._core import tuning
from rdpgraph._core.types import ArrayLike
from rdpgraph.errors import BudgetError, ModelError
from rdpgraph.logspace.logmatrix import log_products, soft_sum
from rdpgraph.model.potentials.table import checked_log_table, checked_log_values, looked_up, settle


@dataclass(frozen=True, eq=False)
class Rules(ABC):
    """Log-weights of a parent's state given the states of its left and right part.

    With ``N`` states of parents and ``C >= N`` of parts, the first N of which are those of parents;
    if C > N, the others belong to single words (preterminals).

    Attributes:
        own_dims: the number of dims of each tensor after the batch dims.
    """

    own_dims: ClassVar[int]

    @property
    def parts(self) -> tuple[Tensor, ...]:
        """The tensors that gradients flow to."""
        return tuple(getattr(self, field.name) for field in fields(self) if field.type is Tensor)

    def with_parts(self, parts: Sequence[Tensor]) -> Self:
        """The same rules with other tensors."""
        names = [field.name for field in fields(self) if field.type is Tensor]
        return replace(self, **dict(zip(names, parts, strict=True)))

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int] | None:
        """(N, C); None: any."""

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """The dims in front of the tensors."""
        return tuple(self.parts[0].shape[: -self.own_dims])

    def flat(self, batch: tuple[int, ...]) -> Self:
        """The same with one dim in front, 1 or that of the flattened batch."""
        return self.with_parts([flat(part, self.own_dims, batch) for part in self.parts])

    def table(self, parents: int, children: int) -> Tensor:
        """(*batch, N, C, C) log-weights, differentiable.

        Raises:
            BudgetError: it would be too large.
        """
        batch, rank = self.batch_shape, self.parts[0].shape[-1] if self.parts else 1
        within_budget(self, math.prod(batch) * parents * children**2 * rank)
        rules, grid = self.flat(batch), (parents, children, children)
        items = max((len(part) for part in rules.parts), default=1)
        device = rules.parts[0].device if rules.parts else "cpu"
        states = (torch.arange(size, device=device).expand(items, -1) for size in grid)
        return rules.evaluate(*states).reshape(*batch, *grid)

    @abstractmethod
    def evaluate(self, parents: Tensor, left: Tensor, right: Tensor) -> Tensor:
        """Log-weights of flat rules on the grid of some states, (B, *lead, K, K, K).

        Args:
            parents: (B, *lead, K) states.
            left: (B, *lead, K).
            right: (B, *lead, K).
        """

    def scaled(self, factor: float) -> "Rules":
        """Rules with log-weights times a factor above 0.

        Raises:
            BudgetError: written out, they would be too large.
        """
        parents, children = self.shape or (0, 0)
        return DenseRules(self.table(parents, children) * factor)


@dataclass(frozen=True, eq=False)
class DenseRules(Rules):
    """A log-weight for every rule.

    Args:
        log_rule: (*batch, N, C, C) nats, [parent, left, right]; -inf forbids a rule.

    Raises:
        ModelError: another shape, NaN or +inf.
    """

    log_rule: Tensor

    own_dims = 3

    if TYPE_CHECKING:  # arguments become tensors

        def __init__(self, log_rule: ArrayLike) -> None: ...

    def __post_init__(self) -> None:
        settle(self, "log_rule")
        checked_log_table("DenseRules", self.log_rule)
        shape = tuple(self.log_rule.shape)
        if len(shape) < 3 or shape[-1] != shape[-2] or not 0 < shape[-3] <= shape[-1]:
            raise ModelError(
                f"DenseRules needs log_rule (*batch, N, C, C), [parent, left, right], 0 < N <= C; "
                f"got {shape}."
            )

    @property
    def shape(self) -> tuple[int, int]:
        return self.log_rule.shape[-3], self.log_rule.shape[-1]

    def table(self, parents: int, children: int) -> Tensor:
        return self.log_rule

    def evaluate(self, parents: Tensor, left: Tensor, right: Tensor) -> Tensor:
        item = items_of(self.log_rule, parents)
        ends = left.unsqueeze(-2).unsqueeze(-1), right.unsqueeze(-2).unsqueeze(-2)
        return looked_up(self.log_rule, (item[..., None, None], parents[..., None, None], *ends))


@dataclass(frozen=True, eq=False)
class LowRankRules(Rules):
    """Rules of rank r: weight(k, a, b) = sum_r exp(parent_kr + left_ar + right_br).

    The form of TN-PCFG (Yang, Zhao and Tu 2021, arXiv:2104.13727); charts cost O(T^3 r + T^2 N r).

    Args:
        parent: (*batch, N, r) log-factors; -inf allowed.
        left: (*batch, C, r).
        right: (*batch, C, r).

    Raises:
        ModelError: other shapes, NaN or +inf.
    """

    parent: Tensor
    left: Tensor
    right: Tensor

    own_dims = 2

    if TYPE_CHECKING:  # arguments become tensors

        def __init__(self, parent: ArrayLike, left: ArrayLike, right: ArrayLike) -> None: ...

    def __post_init__(self) -> None:
        settle(self, "parent", "left", "right")
        for part in self.parts:
            checked_log_table("LowRankRules", part)
        shapes = [tuple(part.shape) for part in self.parts]
        ranks = {shape[-1] for shape in shapes if len(shape) >= 2}
        fits = all(len(shape) >= 2 for shape in shapes) and len(ranks) == 1 and 0 not in ranks
        if not fits or shapes[1] != shapes[2] or not 0 < shapes[0][-2] <= shapes[1][-2]:
            raise ModelError(
                "LowRankRules needs log-factors parent (*batch, N, r), left and right (*batch, C, "
                f"r), 0 < N <= C, r > 0; got {', '.join(map(str, shapes))}."
            )
        if shapes[0][:-2] != shapes[1][:-2]:
            raise ModelError(
                f"LowRankRules needs factors of one batch; got {shapes[0][:-2]} and "
                f"{shapes[1][:-2]}."
            )

    @property
    def shape(self) -> tuple[int, int]:
        return self.parent.shape[-2], self.left.shape[-2]

    def ranks(self) -> tuple[Tensor, Tensor, Tensor]:
        """(*batch, C, r) factors of parents, left and right parts; -inf for no parents."""
        more = self.left.shape[-2] - self.parent.shape[-2]
        return pad(self.parent, (0, 0, 0, more), value=-math.inf), self.left, self.right

    def evaluate(self, parents: Tensor, left: Tensor, right: Tensor) -> Tensor:
        item = items_of(self.parent, parents)
        first, second = self.left[item, left], self.right[item, right]
        pairs = (first.unsqueeze(-2) + second.unsqueeze(-3)).flatten(-3, -2)
        products = log_products(self.parent[item, parents], pairs)
        return products.unflatten(-1, (left.shape[-1], right.shape[-1]))


@dataclass(frozen=True, eq=False)
class SidedRules(Rules):
    """Rules by vectors of each parent with its left parts, and with its right parts."""

    left: Tensor  # (*batch, N, C, r)
    right: Tensor

    own_dims = 3

    if TYPE_CHECKING:  # arguments become tensors

        def __init__(self, left: ArrayLike, right: ArrayLike) -> None: ...

    @property
    def shape(self) -> tuple[int, int]:
        return self.left.shape[-3], self.left.shape[-2]

    def _settle_sides(self, what: str, last: str) -> None:
        """Make both sides tensors, and check them."""
        settle(self, "left", "right")
        name, shape = type(self).__name__, list(self.left.shape)
        for part in self.parts:
            checked_log_values(name, part)
        if self.left.dtype != self.right.dtype:
            raise ModelError(
                f"{name} needs sides of one dtype; got {self.left.dtype} and {self.right.dtype}."
            )
        fits = len(shape) >= 3 and shape == list(self.right.shape) and shape[-1]
        if not fits or not 0 < shape[-3] <= shape[-2]:
            raise ModelError(
                f"{name} needs {what} left and right (*batch, N, C, {last}), 0 < N <= C, "
                f"{last} > 0; got {tuple(shape)} and {tuple(self.right.shape)}."
            )


@dataclass(frozen=True, eq=False)
class FactorisedRules(SidedRules):
    """Rules normalised for each parent: weight(k, a, b) = phi(k, a) . psi(k, b) / n_k.

    n_k makes the weights of a parent sum to one; charts cost O(T^3 N r + T^2 N^2 r). Chiu 2021,
    "Random Fourier features for scaling MRFs", eq. 13-16.

    Args:
        left: (*batch, N, C, r) log-features phi; -inf allowed.
        right: (*batch, N, C, r) log-features psi.

    Raises:
        ModelError: other shapes, NaN or +inf, a parent without any weight.
    """

    def __post_init__(self) -> None:
        self._settle_sides("log-features", "r")
        if not bool((self.log_normaliser.detach() > -math.inf).all()):
            raise ModelError(
                "FactorisedRules needs a rule of positive weight for every parent; one has none."
            )

    def ranks(self) -> tuple[Tensor, Tensor, Tensor]:
        """(*batch, C, N r) factors of parents, left and right parts, with r ranks of each parent.

        They are -inf for the ranks of other parents, and for states that are no parents.
        """
        parents, rank = self.left.shape[-3], self.left.shape[-1]
        same = torch.eye(parents, device=self.left.device).repeat_interleave(rank, 1) > 0
        logs = torch.where(same, -self.log_normaliser.unsqueeze(-1), -math.inf)
        left, right = (part.transpose(-3, -2).flatten(-2) for part in self.parts)
        return pad(logs, (0, 0, 0, left.shape[-2] - parents), value=-math.inf), left, right

    @property
    def log_normaliser(self) -> Tensor:
        """(*batch, N) log n_k, nats."""
        return soft_sum(soft_sum(self.left, -2) + soft_sum(self.right, -2), -1)

    def evaluate(self, parents: Tensor, left: Tensor, right: Tensor) -> Tensor:
        item = items_of(self.left, parents)
        rows = parents.unsqueeze(-1)
        phi = self.left[item[..., None], rows, left.unsqueeze(-2)]
        psi = self.right[item[..., None], rows, right.unsqueeze(-2)]
        return log_products(phi, psi) - self.log_normaliser[item, parents][..., None, None]


@dataclass(frozen=True, eq=False)
class BilinearRules(SidedRules):
    """Rules normalised for each parent: weight(k, a, b) = exp(x_ka . y_kb) / n_k.

    Charts take them as a table. `LowRankFactors` makes `FactorisedRules` of them, by random
    features. Chiu 2021, "Random Fourier features for scaling MRFs", section 7.

    Args:
        left: (*batch, N, C, dimension) embeddings x, finite.
        right: (*batch, N, C, dimension) embeddings y.

    Raises:
        ModelError: other shapes, or values that are not finite.
    """

    def __post_init__(self) -> None:
        self._settle_sides("embeddings", "dimension")
        if not all(bool(part.isfinite().all()) for part in self.parts):
            raise ModelError("BilinearRules needs finite embeddings.")

    def evaluate(self, parents: Tensor, left: Tensor, right: Tensor) -> Tensor:
        rows = items_of(self.left, parents)[..., None], parents.unsqueeze(-1)
        first, second = self.left[*rows, left.unsqueeze(-2)], self.right[*rows, right.unsqueeze(-2)]
        normaliser = (self.left @ self.right.mT).flatten(-2).logsumexp(-1)[*rows]
        return first @ second.mT - normaliser.unsqueeze(-1)


@dataclass(frozen=True, eq=False)
class NoRules(Rules):
    """Every rule has log-weight 0: only spans and their states count. O(T^3 + T^2 N)."""

    @property
    def shape(self) -> None:
        return None

    @property
    def batch_shape(self) -> tuple[int, ...]:
        return ()

    def flat(self, batch: tuple[int, ...]) -> "NoRules":
        return self

    def evaluate(self, parents: Tensor, left: Tensor, right: Tensor) -> Tensor:
        shape = (*parents.shape, left.shape[-1], right.shape[-1])
        return torch.zeros((), device=parents.device).expand(shape)

    def scaled(self, factor: float) -> "NoRules":
        return self


def flat(part: Tensor, dims: int, batch: tuple[int, ...]) -> Tensor:
    """(B or 1, ...) from (*batch, ...), with so many dims after the batch."""
    ends = part.shape[part.ndim - dims :]
    lead = part.shape[: part.ndim - dims]
    if math.prod(lead) == 1:
        return part.reshape(1, *ends)
    return part.expand(*batch, *ends).reshape(math.prod(batch), *ends)


def items_of(part: Tensor, states: Tensor) -> Tensor:
    """(B or 1, 1, ...) the row of flat rules for (B, ..., K) states."""
    item = torch.arange(len(part), device=states.device)
    return item.reshape(-1, *(1,) * (states.ndim - 1))


def within_budget(rules: Rules, entries: int) -> None:
    """Raise `BudgetError` if a table would have too many entries."""
    if entries > tuning.MOST_TABULATED:
        raise BudgetError(
            f"{type(rules).__name__} would be written out to {entries:,} numbers, more than the "
            f"limit of {tuning.MOST_TABULATED:,}; this question needs the weight of every single "
            "rule. log_partition, marginals, sample and mbr do not need them."
        )
