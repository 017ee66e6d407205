"""Factors as tables, for readers and writers of files and of other libraries."""

import math
import sys
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rdpgraph.errors import ModelError, UnsupportedError
from rdpgraph.model.conditional import ConditionalTables
from rdpgraph.model.factor import Factor
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.potentials.table import Table
from rdpgraph.model.variable import States, Variable

Array = NDArray[np.floating[Any]]
Scoped = tuple[tuple[Variable, ...], Array]
"""The scope of a factor, and its log-values."""

_RANGE = (math.log(sys.float_info.min), math.log(sys.float_info.max))


def all_variables(graph: FactorGraph) -> list[Variable]:
    """Every variable of a graph, members of arrays included, in order."""
    return [graph.domain.variable(number) for number in range(graph.num_variables)]


def factor_tables(graph: FactorGraph) -> Iterator[Scoped]:
    """Iterate over the scope and log-values of each factor; refuses batches and evidence."""
    refuse_several(graph)
    for factor in graph.factors():
        yield factor.variables, _written(factor.potential.table(len(factor.variables)))


def refuse_several(graph: FactorGraph) -> None:
    """Raise an `UnsupportedError` for a batch, or a graph with evidence."""
    refuse_evidence(graph)
    if graph.batch_shape:
        raise UnsupportedError(
            f"A file holds one model; this graph is a batch of shape {graph.batch_shape}. "
            "Write its items one by one."
        )


def _written(log_values: Tensor) -> Array:
    narrow = log_values.dtype == torch.float32
    return (log_values if narrow else log_values.double()).detach().cpu().numpy()


def require_graph(asked: str, graph: object) -> None:
    """Raise a `ModelError` for anything but a graph."""
    if not isinstance(graph, FactorGraph):
        raise ModelError(
            f"{asked} needs a FactorGraph, such as the factor_graph() of a structure; got "
            f"{type(graph).__name__}."
        )


def refuse_evidence(graph: FactorGraph) -> None:
    """Raise an `UnsupportedError` for a graph with evidence, which a file would lose."""
    if graph.observed is not None:
        raise UnsupportedError(
            "A model file or a networkx graph cannot hold evidence, and this graph is conditioned. "
            "Write the graph as it was before `condition`."
        )


def values_of(scope: Sequence[Variable], log_values: Array, form: str) -> Array:
    """The shortest decimals whose logs are the log-values; refuses over- and underflow."""
    finite = log_values[np.isfinite(log_values)]
    low, high = (finite.min(), finite.max()) if finite.size else (0.0, 0.0)
    if low < _RANGE[0] or high > _RANGE[1]:
        raise UnsupportedError(
            f"Factor over {[v.name for v in scope]} has log-values from {low:.6g} to {high:.6g}; "
            f"{form} files hold values whose logarithm is -inf or from {_RANGE[0]:.6g} to "
            f"{_RANGE[1]:.6g}. Subtract a constant from the factor."
        )
    return _shortest(np.exp(log_values.astype(np.float64)), log_values)


def _shortest(values: Array, log_values: Array) -> Array:
    """The values of fewest digits whose logarithms are the ones given.

    exp(log(0.1)) is 0.10000000000000002, and log-values of float32 are those of 0.1 to 8 digits.
    """
    short, left = values.copy(), np.ones(values.shape, dtype=np.bool_)
    for digits in (6, 7, 8, 9) if log_values.dtype == np.float32 else (15, 16):
        rounded = np.array([float(f"{value:.{digits}g}") for value in values[left].tolist()])
        again = torch.from_numpy(rounded).log().numpy()
        fits = again.astype(log_values.dtype) == log_values[left]
        places = np.flatnonzero(left)[fits]
        short.flat[places] = rounded[fits]
        left.flat[places] = False
    return short


def conditional_tables(graph: FactorGraph) -> list[Scoped]:
    """The factors P(x | parents) over (*parents, x), for each x in order; refuses other graphs."""
    refuse_several(graph)
    try:
        network = ConditionalTables.read(graph.domain, graph.blocks)
    except UnsupportedError as error:
        raise UnsupportedError(f"{error} Write it as a MARKOV file (.uai).") from None
    scopes = ((*network.parents(number), number) for number in range(graph.num_variables))
    return [
        (tuple(map(graph.domain.variable, scope)), _written(network.log_values(scope[-1])))
        for scope in scopes
    ]


def find_cycle(
    first: Sequence[int], last: Sequence[int], parents: Sequence[int]
) -> list[int] | None:
    """The nodes along a directed cycle, the first one again at the end, or None.

    The parents of node n are ``parents[first[n] : last[n]]``.
    """
    # A depth-first search with its own stack, as paths may be longer than Python recurses.
    met, on_path, done = bytearray(len(first)), 1, 2
    following = array("q", first)
    path = array("q")
    for root in range(len(first)):
        if not met[root]:
            path.append(root)
            met[root] = on_path
        while path:
            node = path[-1]
            place = following[node]
            if place == last[node]:
                met[node] = done
                path.pop()
                continue
            following[node] = place + 1
            parent = parents[place]
            if met[parent] == on_path:
                return [parent, *path[path.index(parent) :][::-1]]
            if not met[parent]:
                met[parent] = on_path
                path.append(parent)
    return None


def graph_of(
    states: Mapping[str, States], tables: Iterable[tuple[Sequence[str], Any]]
) -> FactorGraph:
    """The graph of variables by name and of tables of values >= 0, with a dim for each name."""
    variables = {name: Variable(name, each) for name, each in states.items()}
    factors = [
        Factor(tuple(variables[name] for name in scope), Table.from_probabilities(values))
        for scope, values in tables
    ]
    return FactorGraph(factors, variables=variables.values())


def probabilities(graph: FactorGraph, form: str) -> tuple[list[Scoped], bool]:
    """Return scopes and values of all factors, and whether they are conditional.

    Values are the exponentials of log-values. They are conditional in a Bayesian network, where
    each table is P(last variable | others). In other graphs, factors over no variable are
    multiplied into the first one, and variables without a factor have one of ones.
    """
    parts, directed = list[Scoped](), False
    if graph.num_factors == graph.num_variables:
        with suppress(UnsupportedError):
            parts, directed = conditional_tables(graph), True
    if not directed:
        parts = list(factor_tables(graph))
        constant = sum(float(log_values) for scope, log_values in parts if not scope)
        parts = [(scope, log_values) for scope, log_values in parts if scope]
        covered = {variable.name for scope, _ in parts for variable in scope}
        alone = [v for v in all_variables(graph) if v.name not in covered]
        parts += [((v,), np.zeros(v.size)) for v in alone]
        if constant and not parts:
            raise UnsupportedError(f"A constant without variables has no place in {form}.")
        parts[:1] = [(scope, log_values + constant) for scope, log_values in parts[:1]]
    return [(scope, values_of(scope, logs, form)) for scope, logs in parts], directed
