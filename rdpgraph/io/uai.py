"""The UAI format of the inference competitions: models."""

from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from rdpgraph.errors import ModelError
from rdpgraph.io.tables import all_variables, conditional_tables, factor_tables, values_of
from rdpgraph.io.text import PathLike, fail, read_text, write_text_atomically
from rdpgraph.io.tokens import Numbers, read_numbers
from rdpgraph.model.factor import Factor, FactorBlock
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.table import Table
from rdpgraph.model.variable import Variable

KINDS = ("MARKOV", "BAYES")
_MOST_SLOTS = 60  # numpy and torch stop at 64 dims
_MOST_UNSUPPORTED_STATES = 1 << 20  # of a variable whose states no table lists


def read_uai(path: PathLike, *, dtype: torch.dtype = torch.float64) -> FactorGraph:
    """The model of a UAI file, plain or gzipped; its variables are named "0", "1", ....

    Args:
        path: a file that begins with ``MARKOV`` or ``BAYES``; both hold tables of values >= 0,
            the last variable of a scope the fastest.
        dtype: of the log-values.

    Raises:
        FileFormatError: with the line and the token that do not fit.
    """
    return parse_uai(read_text(path), source=str(path), dtype=dtype)


def parse_uai(
    text: str, *, source: str = "<text>", dtype: torch.dtype = torch.float64
) -> FactorGraph:
    """The model of a UAI file's text. Factors of like shape become one block, constants one.

    Raises:
        FileFormatError: with the line and the token that do not fit.

    Example:
        >>> graph = parse_uai("MARKOV 2  2 3  1  2 0 1  6  1 2 3 4 5 6")
        >>> [variable.size for variable in graph.variables]
        [2, 3]
    """
    numbers = read_numbers(text, source, kinds=KINDS)
    sizes = _read_sizes(numbers)
    arities, scope_starts = _read_scopes(numbers, 1 + len(sizes))
    members = _read_members(numbers, sizes, arities, scope_starts)
    lengths = np.ones(len(arities))
    with np.errstate(over="ignore"):  # a length beyond any file: it fails below
        for arity, scopes in members.items():
            lengths[arities == arity] = sizes[scopes].astype(np.float64).prod(axis=1)
    first = int(scope_starts[-1] + arities[-1]) if len(arities) else 2 + len(sizes)
    table_starts = _read_tables(numbers, first, lengths)

    variables = [Variable(str(number), int(size)) for number, size in enumerate(sizes)]
    factors: list[Factor | FactorBlock] = []
    constants = table_starts[arities == 0]
    if len(constants):
        log_value = torch.from_numpy(numbers.values[constants]).log().sum().to(dtype)
        factors.append(Factor((), Table(log_value)))
    for arity, scopes in members.items():
        starts = table_starts[arities == arity]
        for shape, rows in _like_shapes(sizes[scopes]):
            slots = tuple([variables[v] for v in column] for column in scopes[rows].T.tolist())
            places = starts[rows, None] + np.arange(int(np.prod(shape)))
            log_values = torch.from_numpy(numbers.values[places]).log().to(dtype)
            factors.append(FactorBlock(slots, Table(log_values.reshape(-1, *shape))))
    try:
        return FactorGraph(factors, variables=variables)
    except ModelError as error:
        fail(source, str(error))


def write_uai(
    graph: FactorGraph, path: PathLike, *, kind: Literal["MARKOV", "BAYES"] = "MARKOV"
) -> None:
    """Write a model in the UAI format; variables are numbered in the graph's order.

    Args:
        graph: an unbatched graph.
        path: the file, replaced in one step; gzipped if it ends in ``.gz``.
        kind: ``BAYES`` writes each table with its child last.

    Raises:
        UnsupportedError: a batched graph, a log-value outside the range of a float64's
            logarithm, or for ``BAYES`` a graph whose factors are no conditional tables.
    """
    write_text_atomically(path, format_uai(graph, kind=kind))


def format_uai(graph: FactorGraph, *, kind: Literal["MARKOV", "BAYES"] = "MARKOV") -> str:
    """The text of a model in the UAI format; see `write_uai`."""
    variables = all_variables(graph)
    number = {variable.name: place for place, variable in enumerate(variables)}
    scopes: list[str] = []
    tables: list[str] = []
    if kind == "BAYES":
        parts = [
            ((*c.parents, c.child), np.moveaxis(c.log_values, 0, -1))
            for c in conditional_tables(graph)
        ]
    else:
        parts = factor_tables(graph)
    for scope, log_values in parts:
        values = values_of(scope, log_values, "UAI").ravel().tolist()
        scopes.append(" ".join(map(str, [len(scope), *(number[v.name] for v in scope)])))
        tables.append(f"{len(values)}\n {' '.join(map(repr, values))}")
    sizes = " ".join(str(variable.size) for variable in variables)
    head = f"{kind}\n{len(number)}\n{sizes}\n{len(scopes)}"
    return "\n".join([head, *scopes, "", *tables]) + "\n"


def _read_sizes(numbers: Numbers) -> NDArray[np.int64]:
    count = numbers.whole(0, "a number of variables", max(len(numbers.values) - 1, 0))
    sizes = numbers.values[1 : 1 + count]
    places = np.arange(1, 1 + count)
    most = max(len(numbers.values), _MOST_UNSUPPORTED_STATES)
    good = (sizes >= 1) & (sizes % 1 == 0)
    numbers.check(good, places, "a number of states >= 1")
    numbers.check(sizes <= most, places, f"at most {most} states in a file of this length")
    return sizes.astype(np.int64)


def _read_scopes(numbers: Numbers, at: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Per factor its arity, and the place of its first variable."""
    left = len(numbers.values) - at - 1
    count = numbers.whole(at, "a number of factors", max(left, 0))
    arities = np.empty(count, dtype=np.int64)
    starts = np.empty(count, dtype=np.int64)
    at += 1
    for factor in range(count):
        arity = numbers.whole(at, f"the scope's length of factor {factor},", _MOST_SLOTS)
        arities[factor], starts[factor] = arity, at + 1
        at += 1 + arity
    if at > len(numbers.values):
        numbers.fail(len(numbers.values), f"a scope of {arities[-1]} variables")
    return arities, starts


def _read_members(
    numbers: Numbers,
    sizes: NDArray[np.int64],
    arities: NDArray[np.int64],
    starts: NDArray[np.int64],
) -> dict[int, NDArray[np.int64]]:
    """For each arity above 0 the scopes (F, arity) of its factors, in order."""
    members: dict[int, NDArray[np.int64]] = {}
    for arity in np.unique(arities[arities > 0]).tolist():
        places = starts[arities == arity, None] + np.arange(arity)
        scopes = numbers.values[places]
        good = (scopes >= 0) & (scopes < len(sizes)) & (scopes % 1 == 0)
        numbers.check(good, places, f"a variable from 0 to {len(sizes) - 1}")
        order = np.argsort(scopes, axis=1, kind="stable")
        ranked = np.take_along_axis(scopes, order, axis=1)
        repeats = ranked[:, 1:] == ranked[:, :-1]
        again = np.take_along_axis(places, order, axis=1)[:, 1:]
        numbers.check(~repeats, again, "a variable that its scope does not hold yet")
        members[arity] = scopes.astype(np.int64)
    return members


def _read_tables(numbers: Numbers, first: int, lengths: NDArray[np.float64]) -> NDArray[np.int64]:
    """The place of each factor's first value, once every length and value is checked."""
    end = len(numbers.values)
    before = first + np.concatenate([[0.0], np.cumsum(lengths + 1)])
    counts = before[:-1]
    inside = counts < end
    places = counts[inside].astype(np.int64)
    wrong = numbers.values[places] != lengths[inside]
    if wrong.any():
        factor = int(wrong.argmax())
        numbers.fail(int(places[factor]), f"the {lengths[factor]:.0f} of factor {factor}'s table")
    if before[-1] > end:
        factor = int((before[1:] > end).argmax())
        numbers.fail(end, f"the {lengths[factor]:.0f} values of factor {factor}")
    if before[-1] < end:
        numbers.fail(int(before[-1]), f"the end of the file after {len(lengths)} tables")
    negative = numbers.values[first:] < 0
    if negative.any():
        place = first + int(negative.argmax())
        factor = int(np.searchsorted(before, place, side="right")) - 1
        numbers.fail(place, f"a value >= 0 in factor {factor}'s table")
    return places + 1


def _like_shapes(
    shapes: NDArray[np.int64],
) -> list[tuple[tuple[int, ...], NDArray[np.int64]]]:
    """Each distinct row of (F, arity) sizes, with the rows that hold it."""
    if (shapes == shapes[0]).all():
        return [(tuple(shapes[0].tolist()), np.arange(len(shapes)))]
    distinct, inverse = np.unique(shapes, axis=0, return_inverse=True)
    order = np.argsort(inverse.ravel(), kind="stable")
    ends = np.cumsum(np.bincount(inverse.ravel(), minlength=len(distinct)))
    rows = np.split(order, ends[:-1])
    return [(tuple(shape.tolist()), part) for shape, part in zip(distinct, rows, strict=True)]
