"""Families of Bayesian networks: scopes, counts and tables, from edges and rows of data."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph._core.arguments import require_fields
from rdpgraph._core.masked import filled, present
from rdpgraph.errors import BudgetError, EvidenceError, ModelError
from rdpgraph.io.tables import all_variables
from rdpgraph.learn.parameters import NoisyMax, Probabilities, require_table
from rdpgraph.model.conditional import is_conditional, refuse_cycle
from rdpgraph.model.domain import Domain
from rdpgraph.model.evidence import MISSING, states_given
from rdpgraph.model.factor import Factor
from rdpgraph.model.frames import (
    codes_of,
    columns_of,
    is_frame,
    is_gap,
    is_series,
    require_one_index,
)
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.potentials.table import Table, as_values
from rdpgraph.model.variable import States, Variable
from rdpgraph.plan.plan import require_room


@dataclass(frozen=True)
class BDeu:
    """The prior of Heckerman, Geiger and Chickering 1995: one imagined sample, divided evenly.

    Attributes:
        size: the equivalent sample size; divided by the number of a table's entries it is the
            pseudo-count of each.
    """

    size: float = 10.0

    def __post_init__(self) -> None:
        require_fields(self, size="[0, inf)")


def edges_of(structure: Any) -> tuple[list[str], list[tuple[str, str]]]:
    """Nodes and edges (parent, child) of a `FactorGraph`, a `networkx.DiGraph`, or pairs."""
    if isinstance(structure, FactorGraph):
        nodes = [variable.name for variable in all_variables(structure)]
        return nodes, [(p.name, x) for x in nodes for p in structure.parents(x)]
    if hasattr(structure, "nodes") and hasattr(structure, "is_directed"):
        if not structure.is_directed():
            raise ModelError("A BayesianNetwork needs a DiGraph; got an undirected graph.")
        edges = [(str(parent), str(child)) for parent, child in structure.edges]
        return [str(node) for node in structure.nodes], edges
    pairs: list[Any] = list(structure) if isinstance(structure, Iterable) else [structure]
    for pair in pairs:
        if isinstance(pair, str) or not isinstance(pair, Sequence) or len(pair) != 2:
            raise ModelError(
                "A BayesianNetwork needs edges (parent, child), a DiGraph, or a FactorGraph; got "
                f"{pair!r:.80}."
            )
    edges = [(str(parent), str(child)) for parent, child in pairs]
    return list(dict.fromkeys(end for edge in edges for end in edge)), edges


@dataclass(frozen=True, eq=False)
class Distinct:
    """Distinct rows of states in small integers, -1 where missing.

    Attributes:
        states: (distinct, variables).
        weights: (distinct,) sums over equal rows, float64.
        first: (distinct,) the number of the first such row.
        inverse: (rows,) for each row its place among the distinct ones.
    """

    states: Tensor
    weights: Tensor
    first: NDArray[np.int64]
    inverse: NDArray[np.int64]

    @staticmethod
    def of(
        states: NDArray[Any], weights: NDArray[np.float64], first: NDArray[np.int64]
    ) -> "Distinct":
        """Distinct rows among (rows, variables), of given weights and numbers."""
        states = np.ascontiguousarray(states)
        keys = states.view(np.dtype((np.void, states.itemsize * states.shape[1])))[:, 0]
        _, places, inverse = np.unique(keys, return_index=True, return_inverse=True)
        return Distinct(
            torch.from_numpy(states[places]),
            torch.from_numpy(np.bincount(inverse, weights, len(places))),
            first[places],
            inverse,
        )


def read_rows(
    data: Any, domain: Domain, weights: NDArray[np.float64] | None = None
) -> Iterator[Distinct]:
    """Distinct rows of a table, chunk by chunk; absent columns are missing, weights one each."""
    count = count_rows(data)
    for name in columns(data):
        if not domain.holds(name):
            raise ModelError(f"Column {name!r} is no variable of the network; drop it, or add it.")
    if not domain.count:
        raise ModelError("The network has no variables; give edges, or columns of data.")
    kind = np.min_scalar_type(-int(domain.sizes.max()))
    for begin in range(0, count, tuning.COUNTED_ROWS):
        some = _some(data, begin, begin + tuning.COUNTED_ROWS)
        states = states_given(some, domain, first=begin)
        states = states.expand(min(tuning.COUNTED_ROWS, count - begin), -1).numpy().astype(kind)
        first = np.arange(begin, begin + len(states))
        yield Distinct.of(
            states, np.ones(len(states)) if weights is None else weights[first], first
        )


def distinct_rows(data: Any, domain: Domain, weights: Any = None) -> Distinct:
    """Distinct rows of a whole table; refuses weights that do not fit."""
    count = count_rows(data)
    weights = present("Weights", weights)
    given = None if weights is None else np.asarray(weights, np.float64)
    if given is not None and given.shape != (count,):
        raise ModelError(f"Weights must be {count} numbers of at least 0; got shape {given.shape}.")
    wrong = [] if given is None else np.flatnonzero(~((given >= 0) & (given < math.inf)))
    if given is not None and len(wrong):
        raise ModelError(
            f"Weights must be finite numbers of at least 0; got {given[wrong[0]]:g} in row "
            f"{wrong[0]}."
        )
    if given is not None and not given.sum() > 0:
        raise ModelError("Weights of rows are all zero; there is nothing to fit.")
    parts = list(read_rows(data, domain, given))
    if not parts:
        raise EvidenceError("The data has no rows; a fit needs one or more.")
    return Distinct.of(
        np.concatenate([part.states.numpy() for part in parts]),
        np.concatenate([part.weights.numpy() for part in parts]),
        np.concatenate([part.first for part in parts]),
    )


def columns(data: Any) -> dict[Any, Any]:
    """The columns of a DataFrame, or of a mapping, by name."""
    if is_frame(data):
        return columns_of(data)
    if isinstance(data, Mapping) and data:
        require_one_index(data.values())
        return {name: _unmasked(column) for name, column in data.items()}
    raise EvidenceError(
        "Data must be a DataFrame of pandas, or a mapping from variables to columns; got "
        f"{type(data).__name__}."
    )


def _unmasked(column: Any) -> Any:
    """A column with None at masked entries, or -1 in a tensor."""
    return filled(column, MISSING if isinstance(column, Tensor) else None)


def count_rows(data: Any) -> int:
    """The number of rows; refuses columns of different lengths."""
    counts = (
        {len(column) for column in columns(data).values()} if not is_frame(data) else {len(data)}
    )
    if len(counts) != 1:
        raise EvidenceError(f"The columns of the data have different lengths: {sorted(counts)}.")
    return counts.pop()


def states_in(name: str, column: Any) -> States:
    """The states of a column: its categories, or the values that occur, sorted."""
    kind = getattr(column, "dtype", None)
    categories = getattr(kind, "categories", None)
    if categories is not None:
        return tuple(categories.tolist())
    # The values that occur, without gaps; whole numbers of any type as int.
    if isinstance(column, Tensor):
        values: list[Any] = column.unique().tolist()
    elif is_series(column):
        values = codes_of(column)[1]
    else:
        values = np.asarray(column, object).tolist()
        values = list(dict.fromkeys(value for value in values if not is_gap(value)))
    states: list[Any] = [value for value in values if not is_gap(value)]
    states = [int(v) if isinstance(v, float | np.floating) and v % 1 == 0 else v for v in states]
    states = [value for value in states if isinstance(value, str) or value != MISSING]
    if not states:
        raise EvidenceError(f"Column {name!r} has no states; give them: states={{{name!r}: 2}}.")
    wrong = [value for value in states if isinstance(value, float)]
    if wrong:
        raise EvidenceError(
            f"Column {name!r} holds {wrong[0]!r}, which is no state: states are names or whole "
            "numbers. Cut numbers into intervals, as by pandas.cut."
        )
    return tuple(sorted(states, key=lambda value: (str(type(value)), value)))


_MOST_PARENTS = 62
"""A tensor has 64 dims at most: those of the parents, of the variable, and of batches."""


def _require_tables(scopes: Mapping[str, tuple[Variable, ...]]) -> None:
    """Refuse tables that would not fit into the memory, by the name of the largest one."""
    sizes = {name: [variable.size for variable in scope] for name, scope in scopes.items()}
    for name in sorted(sizes, key=lambda name: -math.prod(sizes[name])):
        require_table(f"The table of {_family(scopes[name])}", sizes[name], _FEWER)
        if len(sizes[name]) - 1 > _MOST_PARENTS:
            raise BudgetError(
                f"The table of {_family(scopes[name])} has more dims than tensors have, which is "
                f"{_MOST_PARENTS} for parents; {_FEWER}."
            )
    total = sum(map(math.prod, sizes.values()))
    require_room(
        tuning.FITTED_ENTRY * total,
        f"The tables of {len(sizes):,} variables have {total:,} entries and",
        remedy=_FEWER,
    )


_FEWER = (
    "take parents away, join states of theirs, or let groups of them act through hidden variables "
    "of few states"
)


def _family(scope: tuple[Variable, ...]) -> str:
    """A variable and its parents, in words; of many parents the first ones."""
    *parents, child = [variable.name for variable in scope]
    if not parents:
        return repr(child)
    listed = ", ".join(parents[:3]) + (", ..." if len(parents) > 3 else "")
    return f"{child!r} with {len(parents)} parent{'s' * (len(parents) > 1)} ({listed})"


def _some(data: Any, begin: int, end: int) -> Any:
    if is_frame(data):
        return data.iloc[begin:end]
    return {
        name: (column.iloc if is_series(column) and hasattr(column, "iloc") else column)[begin:end]
        for name, column in data.items()
    }


@dataclass(frozen=True, eq=False)
class Families:
    """Scopes of the tables of a Bayesian network: for each name (*parents, the variable).

    Attributes:
        scopes: by the names of variables.
        domain: the variables, numbered in that order.
        given: the tables of a graph that was given, (*parents, states); none of edges.
        noisy: names of those whose tables are `NoisyMax`.
    """

    scopes: Mapping[str, tuple[Variable, ...]]
    domain: Domain
    given: Mapping[str, Tensor]
    noisy: frozenset[str] = frozenset()

    @staticmethod
    def read(
        structure: Any, states: Mapping[str, Any], columns: Mapping[Any, Any],
        noisy: Iterable[str] = (),
    ) -> "Families":  # fmt: skip
        """The families of a structure, with states of variables and columns of data."""
        # A structure without nodes has all columns of the data, without edges.
        nodes, edges = edges_of(structure)
        edges = list(dict.fromkeys(edges))
        if not nodes and not isinstance(structure, FactorGraph):
            nodes = [name for name in columns if isinstance(name, str)]
        parents: dict[str, list[str]] = {name: [] for name in dict.fromkeys([*nodes, *states])}
        for parent, child in edges:
            parents[child].append(parent)
        refuse_cycle(parents)
        # States are those of the graph, else those given, else those in the data.
        graph = structure if isinstance(structure, FactorGraph) else None
        variables: dict[str, Variable] = {}
        for name in parents:
            if graph is not None and name in graph:
                variables[name] = graph.domain.variable(graph.domain.number(name))
                if name in states and Variable(name, states[name]) != variables[name]:
                    raise ModelError(
                        f"states= gives variable {name!r} {states[name]!r:.80}, and the graph "
                        f"{variables[name].states!r:.80}; leave it out of states."
                    )
            elif name in states:
                variables[name] = Variable(name, states[name])
            elif name in columns:
                variables[name] = Variable(name, states_in(name, columns[name]))
            else:
                raise ModelError(
                    f"Variable {name!r} has no column and no states; if it is hidden, give "
                    f"states={{{name!r}: 2}}."
                )
        scopes = {
            x: (*map(variables.__getitem__, above), variables[x]) for x, above in parents.items()
        }
        _require_tables(scopes)
        # Tables of a graph are kept, but for noisy-or families, whose tables follow from few
        # numbers.
        noisy = frozenset(noisy)
        tabled = (x for x in nodes if graph is not None and x not in noisy)
        tables = {x: structure.cpt(x).detach() for x in tabled}
        return Families(scopes, Domain.of(variables.values()), tables, noisy)

    def sizes(self, name: str) -> tuple[int, ...]:
        """The shape of a table, (*parents, states)."""
        return tuple(variable.size for variable in self.scopes[name])

    def start(
        self, name: str, rows: Distinct, prior: Any, fixed: Any, generator: torch.Generator
    ) -> Probabilities:
        """The initial table of a variable: the one given, near that of complete rows, or random."""
        sizes, noisy = self.sizes(name), name in self.noisy
        parents, kind = sizes[:-1], Probabilities
        # A noisy-max has a row for each state of each parent but its first, and one without a
        # cause.
        if noisy:
            sizes = (1 + sum(parents) - len(parents), sizes[-1])
            kind = partial(NoisyMax, sizes=parents)
        # A table that is fixed, else one of the structure.
        held: Mapping[str, Any] = fixed if isinstance(fixed, Mapping) else dict.fromkeys(fixed)
        table = held.get(name)
        table = self.given.get(name) if table is None else table
        # BDeu spreads one count over all entries of a table.
        if isinstance(prior, BDeu):
            prior = prior.size / math.prod(sizes)
        elif isinstance(prior, Mapping):
            prior = prior.get(name, 0.0)
        prior = as_values(f"The prior of {name!r}", prior).double()
        if table is None and name in held:
            raise ModelError(f"Variable {name!r} is fixed and has no table; give fixed={{...}}.")
        if table is None:
            # Without a table: near the counts of complete rows, with one added to each, where there
            # are any; else at random, as equal rows would never part.
            uniform = torch.full(sizes, 1 / sizes[-1], dtype=torch.float64).log()
            counts = self.counted(rows, name)
            parameter = kind(uniform, prior=prior)
            if not bool((counts > 0).any()):
                return parameter.drawn(generator)
            near = parameter if noisy else Probabilities(uniform).maximised((counts + 1,))
            return replace(parameter, log_values=near.log_values)
        # A given table is checked, and scaled so that rows sum to one in all digits.
        table = as_values(f"The table of {name!r}", table).double()
        if tuple(table.shape) != sizes or not is_conditional(table.numpy(), -1):
            raise ModelError(
                f"The table of {name!r} needs probabilities of shape {sizes}, parents first, that "
                f"sum to one over the last dim; got {tuple(table.shape)}."
            )
        totals = table.sum(-1, keepdim=True)
        table = table / torch.where(totals > 0, totals, 1.0)
        return kind(table.log(), prior=prior, fixed=name in held)

    def counted(self, rows: Distinct, name: str) -> Tensor:
        """(*parents, states) the weights of rows that have the whole family."""
        places = [self.domain.number(variable) for variable in self.scopes[name]]
        states = rows.states[:, places]
        whole = (states != MISSING).all(-1)
        flat = torch.zeros(int(whole.sum()), dtype=torch.long)
        for column, size in zip(states[whole].T, self.sizes(name), strict=True):
            flat = flat * size + column
        counts = flat.bincount(rows.weights[whole], math.prod(self.sizes(name)))
        return counts.double().reshape(self.sizes(name))

    def batches(self, rows: Distinct, size: int) -> tuple[list[dict[str, Any]], list[Tensor]]:
        """Rows without gaps as mean counts, then the others in batches; and their weights."""
        whole, used = (rows.states != MISSING).all(-1), rows.weights > 0
        batches: list[dict[str, Any]] = []
        masses: list[Tensor] = []
        if bool((whole & used).any()):
            mass = rows.weights[whole].sum()
            full = Distinct(rows.states[whole], rows.weights[whole], rows.first, rows.inverse)
            counts = {name: self.counted(full, name)[None] / mass for name in self.scopes}
            batches.append({"counts": counts})
            masses.append(mass[None])
        states, weights = rows.states[~whole & used], rows.weights[~whole & used]
        batches += [{"states": part} for part in states.split(size) if len(part)]
        return batches, masses + [part for part in weights.split(size) if len(part)]

    def graph(self, values: Mapping[str, Tensor]) -> FactorGraph:
        """The network of log-tables (*parents, states), its factors over (x, *parents)."""
        factors = [
            Factor((scope[-1], *scope[:-1]), Table.from_logs(values[name].movedim(-1, 0)))
            for name, scope in self.scopes.items()
        ]
        return FactorGraph(factors, self.domain.entries)

    def model(self, values: dict[str, Tensor], batch: dict[str, Any]) -> FactorGraph:
        """The graph of a batch; of counts, a constant with the mean log-likelihood as its log Z."""
        if "counts" not in batch:
            graph = self.graph(values)
            return FactorGraph.from_blocks(graph.domain, graph.blocks, batch["states"].long())
        total = torch.zeros(1, dtype=torch.float64)
        for name, table in values.items():
            counts = batch["counts"][name]
            total = total + (counts * torch.where(counts > 0, table, 0.0)).sum()
        return FactorGraph([Factor((), Table.from_logs(total))])
