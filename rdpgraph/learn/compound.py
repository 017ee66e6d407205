"""Emissions that are made of others: products over columns, and mixtures."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from rdpgraph._core.arguments import require_fields
from rdpgraph.errors import ModelError
from rdpgraph.learn.emissions import (
    LOGS,
    Categorical,
    Emission,
    check_columns,
    normalised,
    settle,
    table_of,
)
from rdpgraph.learn.parameters import Probabilities
from rdpgraph.learn.sequences import PaddedBatch, clusters
from rdpgraph.logspace.logmatrix import finite, soft_sum


@dataclass(frozen=True, eq=False)
class Product(Emission):
    """Emissions of several groups of columns, independent given the state: mixed data.

    Args:
        parts: emissions, and the columns that each is of.

    Raises:
        ModelError: a column that is in no part, or in two.

    Example:
        >>> Product([(Categorical(2), [0]), (Categorical(3), [1])]).given
        False
    """

    parts: Sequence[tuple[Emission, Sequence[int]]]

    def __post_init__(self) -> None:
        require_fields(self)
        columns = [column for _, cols in self.parts for column in cols]
        if sorted(columns) != list(range(len(columns))) or not columns:
            raise ModelError(f"Product needs each column from 0 on in one part; got {columns}.")

    @property
    def given(self) -> bool:
        return all(part.given for part, _ in self.parts)

    @property
    def size(self) -> int:
        return sum(part.size for part, _ in self.parts)

    @property
    def kept(self) -> int:
        return sum(part.kept for part, _ in self.parts)

    def blank(self, states: int, observed: Tensor) -> "Product":
        check_columns(self, observed, sum(len(cols) for _, cols in self.parts))
        return Product([(p.blank(states, observed[:, list(cols)]), cols) for p, cols in self.parts])

    def drawn_from(
        self, blank: Any, observed: Tensor, weights: Tensor, generator: torch.Generator
    ) -> "Product":
        """The parts, from the same clusters."""
        parts: list[tuple[Emission, Sequence[int]]] = []
        for (part, cols), (new, _) in zip(self.parts, blank.parts, strict=True):
            rows = observed[:, list(cols)]
            new = new if part.given else part.drawn_from(new, rows, weights, generator)
            parts.append((new, cols))
        return Product(parts)

    def responsible(self, observed: Tensor, states: int, generator: torch.Generator) -> Tensor:
        """Clusters by the columns that have distances; without any, those of the symbols."""
        numbers = [
            c for part, cols in self.parts if not isinstance(part, Categorical) for c in cols
        ]
        if numbers:
            return clusters(observed[:, numbers], states, generator)
        weights = observed.new_ones(len(observed), states)
        for part, cols in self.parts:
            weights = weights * part.responsible(observed[:, list(cols)], states, generator)
        return weights / weights.sum(1, keepdim=True)

    def log_prob(self, observed: Tensor) -> Tensor:
        return torch.stack([p.log_prob(observed[:, list(cols)]) for p, cols in self.parts]).sum(0)

    def statistics(self, rows: PaddedBatch, counts: Tensor) -> tuple[Tensor, ...]:
        """The statistics of the parts, concatenated."""
        seen = rows["observed"]
        each = (
            part.statistics({**rows, "observed": seen[..., list(cols)]}, counts)
            for part, cols in self.parts
        )
        return tuple(tensor for tensors in each for tensor in tensors)

    def maximised(self, statistics: tuple[Tensor, ...]) -> "Product":
        rest, parts = list(statistics), list[tuple[Emission, Sequence[int]]]()
        for part, cols in self.parts:
            parts.append((part.maximised(tuple(rest[: part.kept])), cols))
            del rest[: part.kept]
        return Product(parts)

    def log_prior(self) -> Tensor:
        return torch.stack([part.log_prior().cpu() for part, _ in self.parts]).sum()

    def free(self) -> tuple[Tensor, ...]:
        return tuple(tensor for part, _ in self.parts for tensor in part.free())

    def at(self, free: Sequence[Tensor]) -> "Product":
        rest = iter(free)
        return Product([(p.at([next(rest) for _ in p.free()]), cols) for p, cols in self.parts])

    def estimates(self) -> tuple[Tensor, ...]:
        """The estimates of the parts, concatenated."""
        return tuple(tensor for part, _ in self.parts for tensor in part.estimates())

    def sample(self, states: Tensor, generator: torch.Generator | None = None) -> Tensor:
        drawn = torch.cat([part.sample(states, generator) for part, _ in self.parts], 1)
        order = torch.tensor([column for _, cols in self.parts for column in cols])
        return drawn[:, order.argsort().to(drawn.device)]


@dataclass(frozen=True, eq=False)
class Mixture(Emission):
    """Mixture in each state of emissions of one kind, such as Gaussians.

    Component c of state s is number ``s * components + c`` of the emission that it is made of.

    Args:
        components: of each state.
        emission: of the components, with tables for all of them or none.
        log_weights: (states, components) to start from; None: from the data.
        prior: pseudo-counts of the components.
        fixed: ["log_weights"] where they stay; other tables are fixed in the emission.

    Raises:
        ModelError: a number of components below one.
    """

    tables = ("log_weights",)
    maps = (LOGS,)
    components: int
    emission: Emission
    log_weights: Tensor | None = None
    prior: float = field(default=0.0, kw_only=True)
    fixed: Sequence[str] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        settle(self, "log_weights")
        require_fields(self, components="[1, inf)", prior="[0, inf)")

    @property
    def given(self) -> bool:
        return self.log_weights is not None and self.emission.given

    @property
    def size(self) -> int:
        own = 0 if self.fixed else len(table_of(self.log_weights)) * (self.components - 1)
        return self.emission.size + own

    @property
    def kept(self) -> int:
        return 1 + self.emission.kept

    def width(self, columns: int) -> int:
        return self.components

    def plain(self, states: int, observed: Tensor) -> dict[str, Tensor]:
        level = -math.log(self.components)
        return {"log_weights": observed.new_full((states, self.components), level)}

    def blank(self, states: int, observed: Tensor) -> "Mixture":
        made = super().blank(states, observed)
        emission = self.emission.blank(states * self.components, observed)
        return replace(made, emission=emission)

    def responsible(self, observed: Tensor, states: int, generator: torch.Generator) -> Tensor:
        return self.emission.responsible(observed, states, generator)

    def drawn_from(
        self, blank: Any, observed: Tensor, weights: Tensor, generator: torch.Generator
    ) -> "Mixture":
        """Components from clusters of the rows whose greatest weight is in the state."""
        likeliest, count = weights.argmax(1), self.components
        inner = weights.new_full((*weights.shape, count), 1 / count)
        for state in range(weights.shape[1]):
            rows = (likeliest == state).nonzero().flatten()
            if len(rows) > count and not bool(observed[rows].isnan().all()):
                inner[rows, state] = self.emission.responsible(observed[rows], count, generator)
        shares = weights.unsqueeze(2) * inner
        emission = blank.emission
        if not self.emission.given:
            each = shares.flatten(1)
            emission = self.emission.drawn_from(emission, observed, each, generator)
        totals = shares.sum(0).log().log_softmax(1)
        totals = totals if self.log_weights is None else blank.log_weights
        return replace(blank, emission=emission, log_weights=totals)

    def _joint(self, observed: Tensor) -> Tensor:
        """(rows, states, components)."""
        weights = table_of(self.log_weights)
        return self.emission.log_prob(observed).unflatten(1, weights.shape) + weights

    def log_prob(self, observed: Tensor) -> Tensor:
        return soft_sum(self._joint(observed), 2)

    def statistics(self, rows: PaddedBatch, counts: Tensor) -> tuple[Tensor, ...]:
        """Expected steps of each component, and their statistics."""
        joint = self._joint(rows["observed"].flatten(0, 1))
        shares = (joint - finite(joint.logsumexp(2, keepdim=True))).exp()
        shares = shares * counts.flatten(0, 1).unsqueeze(2)
        each = shares.flatten(1).unflatten(0, counts.shape[:2])
        return shares.sum(0), *self.emission.statistics(rows, each)

    def maximised(self, statistics: tuple[Tensor, ...]) -> "Mixture":
        counts, *rest = statistics
        weights = table_of(self.log_weights)
        if not self.fixed:
            weights = normalised(self, counts, weights, self.prior)
        emission = self.emission.maximised(tuple(rest))
        return replace(self, emission=emission, log_weights=weights)

    def log_prior(self) -> Tensor:
        weights = Probabilities(table_of(self.log_weights), prior=self.prior).log_prior()
        return weights.cpu() + self.emission.log_prior().cpu()

    def free(self) -> tuple[Tensor, ...]:
        """Numbers for the weights, and those of the emission."""
        return *super().free(), *self.emission.free()

    def at(self, free: Sequence[Tensor]) -> "Mixture":
        own = len(super().free())
        return replace(super().at(free[:own]), emission=self.emission.at(free[own:]))

    def estimates(self) -> tuple[Tensor, ...]:
        """Return what is fitted: the log-weights of components, and tables of the emission."""
        return *super().estimates(), *self.emission.estimates()

    def sample(self, states: Tensor, generator: torch.Generator | None = None) -> Tensor:
        shares = table_of(self.log_weights).exp()[states]
        chosen = torch.multinomial(shares, 1, generator=generator).squeeze(1)
        return self.emission.sample(states * self.components + chosen, generator)
