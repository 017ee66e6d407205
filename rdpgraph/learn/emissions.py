"""Emissions: distributions of what is observed at a step, one for each hidden state."""

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from rdpgraph._core.arguments import require_fields
from rdpgraph._core.masked import present
from rdpgraph.errors import EvidenceError, ModelError
from rdpgraph.learn.parameters import Parameter, Probabilities, require_table
from rdpgraph.learn.sequences import PaddedBatch, as_rows, clusters
from rdpgraph.model.potentials.table import converted

Map = tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]
LOGS: Map = (lambda free: free.log_softmax(-1), torch.Tensor.detach)
POSITIVE: Map = torch.exp, torch.log


class Emission(Parameter):
    """Distribution of the columns of a step in each state, fitted by weighted maximum likelihood.

    NaN is a missing entry (for symbols and counts -1 as well), which counts for nothing: the
    log-likelihood is that of what was seen, 0 where nothing was. Without tables, they are drawn
    from data by `started`.
    """

    @abstractmethod
    def log_prob(self, observed: Tensor) -> Tensor:
        """(rows, states) log-likelihoods (nats) of rows (rows, columns)."""

    @abstractmethod
    def sample(self, states: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """(n, columns) a draw in each of (n,) states."""

    def plain(self, states: int, observed: Tensor) -> dict[str, Tensor]:
        """Tables by name for so many states, equal for all; default: none.

        Raises:
            EvidenceError: rows that are not of this kind.
        """
        del states, observed
        return {}

    def width(self, columns: int) -> int:
        """The number of entries that all tables have for a state; default: one for each column."""
        return columns

    tables: ClassVar[tuple[str, ...]] = ()
    """Names of the fields that are drawn from data where they are None."""

    maps: ClassVar[tuple[Map, ...]] = ()
    """Maps from all numbers to the values of each table, and their inverses."""

    fixed: Sequence[str] = ()
    """Names of tables that stay as they are."""

    @property
    def _fitted(self) -> list[tuple[str, Map]]:
        """The tables that are fitted, and their maps."""
        pairs = zip(self.tables, self.maps, strict=True)
        return [(name, each) for name, each in pairs if name not in self.fixed]

    @property
    def kept(self) -> int:
        """The number of tensors that `statistics` gives."""
        return 1

    @property
    def given(self) -> bool:
        """True where the emission has its tables."""
        return all(getattr(self, name) is not None for name in self.tables)

    @property
    def size(self) -> int:
        return sum(table_of(getattr(self, name)).numel() for name, _ in self._fitted)

    def responsible(self, observed: Tensor, states: int, generator: torch.Generator) -> Tensor:
        """(rows, states) weights to draw tables from: clusters by k-means++, softened."""
        return clusters(observed, states, generator)

    def blank(self, states: int, observed: Tensor) -> Self:
        """Return the emission with tables for so many states: those given, or equal ones.

        Raises:
            ModelError: the tables given do not fit, or hold values out of range.
        """
        require_table(
            f"The emission {type(self).__name__} of {states:,} states",
            (states, self.width(observed.shape[1])),
            "take fewer states, symbols, components or columns",
        )
        tables, maps = dict[str, Tensor](), dict(zip(self.tables, self.maps, strict=True))
        for name, table in self.plain(states, observed).items():
            given = getattr(self, name)
            given = table if given is None else given
            if given.shape != table.shape:
                raise ModelError(
                    f"{type(self).__name__} needs {name} of shape {tuple(table.shape)} by states "
                    f"and columns; got {tuple(given.shape)}."
                )
            try:
                to, back = maps[name]
                # An infinity is the logarithm of 0 and nothing else.
                finite = given.isfinite() | (given == -math.inf) & name.startswith("log_")
                known = bool(finite.all()) and torch.allclose(to(back(given)), given, atol=1e-3)
            except torch.linalg.LinAlgError:  # pyright: ignore  # there is no Cholesky factor
                known = False
            if not known:
                raise ModelError(
                    f"{type(self).__name__} needs {name} within their range; those given are not, "
                    "or are log-probabilities that do not sum to one."
                )
            tables[name] = given.to(observed)
        emission: Any = self
        return replace(emission, **tables)

    def started(self, states: int, observed: Tensor, generator: torch.Generator) -> Self:
        """The same with tables for so many states, drawn from rows unless they are given.

        Raises:
            ModelError: as for `blank` and `maximised`.
        """
        blank = self.blank(states, observed)
        if self.given:
            return blank
        weights = blank.responsible(observed, states, generator)
        return self.drawn_from(blank, observed, weights, generator)

    def drawn_from(
        self, blank: Any, observed: Tensor, weights: Tensor, generator: torch.Generator
    ) -> Self:
        """Its blank form maximised for weighted rows; tables given stay."""
        del generator
        drawn = blank.maximised(blank.statistics(as_rows([observed]), weights.unsqueeze(0)))
        kept = [name for name in self.tables if getattr(self, name) is not None]
        return replace(drawn, **{name: getattr(blank, name) for name in kept})

    def free(self) -> tuple[Tensor, ...]:
        """Numbers (n,) that map to the entries of each table; bounds such as a rate of 0 stay."""
        flat = [back(table_of(getattr(self, name)).detach()) for name, (_, back) in self._fitted]
        return tuple(part[part.isfinite()] for part in flat)

    def at(self, free: Sequence[Tensor]) -> Self:
        tables: dict[str, Tensor] = {}
        for (name, (to, back)), part in zip(self._fitted, free, strict=True):
            flat = back(table_of(getattr(self, name)).detach())
            moves = flat.isfinite()
            table = to(flat.masked_scatter(moves, part))
            # The gradient of the logarithm of a bound would be NaN.
            tables[name] = torch.where(moves, table, table.detach())
        emission: Any = self
        return replace(emission, **tables)

    def estimates(self) -> tuple[Tensor, ...]:
        """The tables that are fitted, in their order; probabilities instead of logarithms."""
        tables = ((name, table_of(getattr(self, name))) for name, _ in self._fitted)
        return tuple(table.exp() if name.startswith("log_") else table for name, table in tables)

    def value(self, rows: PaddedBatch) -> Tensor:
        """(B, T, states) log-likelihoods of the steps.

        Raises:
            EvidenceError: a density that is infinite, or not a number, at what a step shows.
        """
        observed = rows["observed"]
        values = self.log_prob(observed.flatten(0, 1)).unflatten(0, observed.shape[:2])
        if values.numel() and not float(values.detach().amax()) < math.inf:
            item, step, _ = (~(values < math.inf)).nonzero()[0].tolist()
            got, high = observed[item, step].tolist(), float(values[item, step].detach().amax())
            raise EvidenceError(
                f"{type(self).__name__} has a log-density of {high:g} at {got} in row "
                f"{int(rows['places'][item, 0]) + step}. Mark such values as missing (NaN), or "
                "take another family."
            )
        return values


class LinearEmission(Emission):
    """Exponential family: log-likelihoods are products of features of a row and of a state."""

    @abstractmethod
    def features(self, observed: Tensor) -> Tensor:
        """(rows, k) features of a row, zero where nothing was seen."""

    @abstractmethod
    def natural(self) -> Tensor:
        """(states, k) the weight of each feature in a state; -inf: it is impossible."""

    def base(self, observed: Tensor) -> Tensor | float:
        """(rows, 1) a term common to all states."""
        del observed
        return 0.0

    def log_prob(self, observed: Tensor) -> Tensor:
        features, natural = self.features(observed), self.natural()
        dead = natural == -math.inf
        result = features @ natural.masked_fill(dead, 0.0).mT + self.base(observed)
        if bool(dead.any()):
            result = result.masked_fill(
                (features != 0).to(natural) @ dead.to(natural).mT > 0, -math.inf
            )
        return result

    def statistics(self, rows: PaddedBatch, counts: Tensor) -> tuple[Tensor, ...]:
        """(states, k) the features of all steps, weighted by the probabilities of the states."""
        return (counts.flatten(0, 1).mT @ self.features(rows["observed"].flatten(0, 1)),)


@dataclass(frozen=True, eq=False)
class Categorical(Emission):
    """Symbols 0 to V - 1 in one column.

    Args:
        symbols: V.
        log_values: (states, V) log-probabilities to start from; -inf stays. None: from the data.
        prior: pseudo-counts of symbols, a number or (states, V).
        fixed: ["log_values"] where they stay.

    Raises:
        ModelError: tables of another shape.
    """

    tables = ("log_values",)
    maps = (LOGS,)
    symbols: int
    log_values: Tensor | None = None
    prior: Tensor | float = field(default=0.0, kw_only=True)
    fixed: Sequence[str] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        settle(self, "log_values")
        check_prior(self, "prior")
        require_fields(self, symbols="[1, inf)")
        table = self.log_values
        if table is not None and (table.ndim != 2 or table.shape[1] != self.symbols):
            raise ModelError(
                f"Categorical of {self.symbols} symbols needs log_values (states, "
                f"{self.symbols}); got {tuple(table.shape)}."
            )

    @property
    def size(self) -> int:
        return 0 if self.fixed else Probabilities(table_of(self.log_values)).size

    def plain(self, states: int, observed: Tensor) -> dict[str, Tensor]:
        check_columns(self, observed, 1)
        check_whole(self, observed, self.symbols - 1)
        level = -math.log(self.symbols)
        return {"log_values": observed.new_full((states, self.symbols), level)}

    def width(self, columns: int) -> int:
        return self.symbols

    def responsible(self, observed: Tensor, states: int, generator: torch.Generator) -> Tensor:
        """Draws for each symbol, as symbols have no distance to cluster by."""
        draws = torch.rand(self.symbols + 1, states, generator=generator, dtype=torch.float64) + 0.1
        return (draws / draws.sum(1, keepdim=True)).to(observed)[self._places(observed)]

    def log_prob(self, observed: Tensor) -> Tensor:
        table = table_of(self.log_values)
        padded = torch.cat([table.mT, table.new_zeros(1, len(table))])
        return padded.index_select(0, self._places(observed))

    def statistics(self, rows: PaddedBatch, counts: Tensor) -> tuple[Tensor, ...]:
        """(states, V) the expected number of times that a state shows a symbol."""
        places = self._places(rows["observed"].flatten(0, 1))
        total = counts.new_zeros(self.symbols + 1, counts.shape[2])
        return (total.index_add_(0, places, counts.flatten(0, 1))[:-1].mT,)

    def maximised(self, statistics: tuple[Tensor, ...]) -> "Categorical":
        if self.fixed:
            return self
        table = normalised(self, statistics[0], table_of(self.log_values), self.prior)
        return replace(self, log_values=table)

    def log_prior(self) -> Tensor:
        return Probabilities(table_of(self.log_values), prior=self.prior).log_prior()

    def sample(self, states: Tensor, generator: torch.Generator | None = None) -> Tensor:
        shares = table_of(self.log_values).exp()[states]
        return torch.multinomial(shares, 1, generator=generator).to(shares)

    def _places(self, observed: Tensor) -> Tensor:
        column = observed[:, 0]
        return torch.where(column >= 0, column, self.symbols).long()


@dataclass(frozen=True, eq=False)
class Poisson(LinearEmission):
    """Counts in one or more columns, independent given the state.

    Args:
        rates: (states, columns) to start from; None: from the data.
        shape: of the prior, a Gamma distribution of which the mode is taken; 1 adds nothing.
        rate: of that prior, in pseudo-rows.
        fixed: ["rates"] where they stay.
    """

    tables = ("rates",)
    maps = (POSITIVE,)
    rates: Tensor | None = None
    shape: float = field(default=1.0, kw_only=True)
    rate: float = field(default=0.0, kw_only=True)
    fixed: Sequence[str] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        settle(self, "rates")
        require_fields(self, shape="[1, inf)", rate="[0, inf)")

    def plain(self, states: int, observed: Tensor) -> dict[str, Tensor]:
        check_whole(self, observed, math.inf)
        return {"rates": observed.new_ones(states, observed.shape[1])}

    def features(self, observed: Tensor) -> Tensor:
        seen = observed >= 0
        return torch.cat([torch.where(seen, observed, 0.0), seen.to(observed)], 1)

    def natural(self) -> Tensor:
        rates = table_of(self.rates)
        return torch.cat([rates.log(), -rates], 1)

    def base(self, observed: Tensor) -> Tensor:
        return -torch.where(observed >= 0, (observed + 1).lgamma(), 0.0).sum(1, keepdim=True)

    def maximised(self, statistics: tuple[Tensor, ...]) -> "Poisson":
        if self.fixed:
            return self
        total, weight = statistics[0].clamp(min=0.0).chunk(2, 1)
        check_mass(self, (weight + self.rate).amin(1), "rate")
        return replace(self, rates=(total + self.shape - 1) / (weight + self.rate))

    def log_prior(self) -> Tensor:
        rates = table_of(self.rates)
        shape = torch.full_like(rates, self.shape - 1)
        return (torch.special.xlogy(shape, rates) - self.rate * rates).sum()

    def sample(self, states: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return torch.poisson(table_of(self.rates)[states], generator)


@dataclass(frozen=True, eq=False)
class Bernoulli(LinearEmission):
    """Zeros and ones in one or more columns, independent given the state.

    Args:
        chances: (states, columns) the probabilities of one to start from; None: from the data.
        prior: pseudo-counts of one and of zero each.
        fixed: ["chances"] where they stay.
    """

    tables = ("chances",)
    maps = ((torch.sigmoid, torch.logit),)
    chances: Tensor | None = None
    prior: float = field(default=0.0, kw_only=True)
    fixed: Sequence[str] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        settle(self, "chances")
        require_fields(self, prior="[0, inf)")

    def plain(self, states: int, observed: Tensor) -> dict[str, Tensor]:
        check_whole(self, observed, 1.0)
        return {"chances": observed.new_full((states, observed.shape[1]), 0.5)}

    def features(self, observed: Tensor) -> Tensor:
        return torch.cat([(observed == 1).to(observed), (observed == 0).to(observed)], 1)

    def natural(self) -> Tensor:
        chances = table_of(self.chances)
        return torch.cat([chances, 1 - chances], 1).log()

    def maximised(self, statistics: tuple[Tensor, ...]) -> "Bernoulli":
        if self.fixed:
            return self
        ones, zeros = (statistics[0].clamp(min=0.0) + self.prior).chunk(2, 1)
        check_mass(self, (ones + zeros).amin(1), "prior")
        return replace(self, chances=ones / (ones + zeros))

    def log_prior(self) -> Tensor:
        natural = self.natural()
        return torch.where(natural > -math.inf, self.prior * natural, 0.0).sum()

    def sample(self, states: Tensor, generator: torch.Generator | None = None) -> Tensor:
        return torch.bernoulli(table_of(self.chances)[states], generator=generator)


def table_of(table: Tensor | None) -> Tensor:
    """The table of an emission; raises `ModelError` if it has none."""
    if table is None:
        raise ModelError(
            "This emission has no tables yet: fit it, or call started(...) to draw them."
        )
    return table


def normalised(emission: Emission, counts: Tensor, table: Tensor, prior: Tensor | float) -> Tensor:
    """The logs of counts plus pseudo-counts by rows, where a table has no -inf."""
    counts = torch.where(table > -math.inf, counts.clamp(min=0.0) + prior, 0.0)
    totals = counts.sum(1, keepdim=True)
    check_mass(emission, totals.squeeze(1), "prior")
    return (counts / totals).log()


def settle(emission: Emission, *names: str) -> None:
    """Convert tables to float64, where given, and check the names of those that are fixed."""
    for name in names:
        given = getattr(emission, name)
        if given is not None:
            made = converted(f"{type(emission).__name__}'s {name}", given, "numbers").double()
            object.__setattr__(emission, name, made)
    for name in emission.fixed:
        kind, own = type(emission).__name__, ", ".join(emission.tables)
        if name not in emission.tables:
            raise ModelError(f"{kind} cannot keep {name!r} fixed, which is none of {own}.")
        if getattr(emission, name) is None:
            raise ModelError(f"{kind} cannot keep {name} fixed without a table: give {name}.")


def check_prior(emission: Emission, name: str, least: float = 0.0) -> None:
    """Raise `ModelError` for a prior that is not finite, or less than ``least``."""
    given = present(f"{type(emission).__name__}'s {name}", getattr(emission, name))
    given = torch.as_tensor(given)
    if not bool((given.isfinite() & (given >= least)).all()):
        bound = "" if least == -math.inf else f", at least {least:g}"
        raise ModelError(
            f"{type(emission).__name__} needs finite numbers{bound}, as {name}; got {given!r:.80}."
        )


def check_columns(emission: Emission, observed: Tensor, count: int) -> None:
    """Refuse data of another number of columns."""
    if observed.shape[1] != count:
        raise EvidenceError(
            f"{type(emission).__name__} has parameters for {count} columns; the data has "
            f"{observed.shape[1]}."
        )


def check_whole(emission: Emission, observed: Tensor, most: float) -> None:
    """Refuse entries other than whole numbers up to a bound, -1 or NaN."""
    wrong = (observed % 1 != 0) & ~observed.isnan() | (observed < -1) | (observed > most)
    if bool(wrong.any()):
        row, column = wrong.nonzero()[0].tolist()
        raise EvidenceError(
            f"{type(emission).__name__} needs whole numbers of 0 to {most:g} (-1 or NaN where "
            f"missing); got {float(observed[row, column]):g} in row {row}, column {column}."
        )


def check_mass(emission: Emission, weights: Tensor, remedy: str) -> None:
    """Refuse states (states,) without weight."""
    lost = (weights <= 0).nonzero().flatten()
    if len(lost):
        raise ModelError(
            f"State {int(lost[0])} of {type(emission).__name__} has lost all mass: no step, or no "
            f"value of a column, is assigned to it. Set {remedy}, or take fewer states."
        )
