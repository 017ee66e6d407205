"""The UAI format of the inference competitions: models, read in linear time."""

import math
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph.errors import BudgetError, ModelError
from rdpgraph.io.tables import all_variables, conditional_tables, factor_tables, values_of
from rdpgraph.io.text import Bytes, fail
from rdpgraph.io.tokens import MOST_UNLISTED, TokenNumbers
from rdpgraph.model.block import Block, no_factors
from rdpgraph.model.conditional import SumsOff
from rdpgraph.model.domain import Domain
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.names import CompactVariables, Decimals
from rdpgraph.model.potentials.table import Table
from rdpgraph.model.restriction import grouped_rows

_KINDS = ("MARKOV", "BAYES")
_ARITIES = {float(arity): arity for arity in range(tuning.MOST_DIMS + 1)}


def parse_uai(
    text: str | Bytes, *, source: str = "<text>", dtype: torch.dtype = torch.float64
) -> FactorGraph:
    """The model of a UAI file's text; its variables are named "0", "1", ....

    Factors of like shape become one block, constants one. Time is linear in the bytes; memory is
    at most six times the text, beyond 1 MB.

    Raises:
        FileFormatError: with the line and the token that do not fit.
        BudgetError: factors of more than 16,384 shapes, in less than 700 bytes of text each.

    Example:
        >>> graph = parse_uai("MARKOV 2  2 3  1  2 0 1  6  1 2 3 4 5 6")
        >>> [variable.size for variable in graph.variables]
        [2, 3]
    """
    data = text.encode() if isinstance(text, str) else text
    most_shapes = max(tuning.MOST_SHAPES, len(data) // tuning.SHAPE_TEXT)
    numbers = TokenNumbers(data, source, kinds=_KINDS)
    del text, data
    sizes = _read_sizes(numbers)
    groups = _by_shape(numbers, sizes, *_read_scopes(numbers, len(sizes)), most_shapes)
    log_values = _read_tables(numbers, groups, dtype)
    if numbers.heading == "BAYES":
        _warn_of_sums(groups, log_values, source)
    del numbers
    return _graph(sizes, groups, log_values, source, dtype)


def format_uai(graph: FactorGraph, *, kind: Literal["MARKOV", "BAYES"] = "MARKOV") -> str:
    """The text of a model in the UAI format; variables are numbered in the graph's order.

    ``BAYES`` writes each table with its child last.

    Raises:
        UnsupportedError: a batched graph, a log-value outside the range of a float64's
            logarithm, or for ``BAYES`` a graph whose factors are no conditional tables.
    """
    variables = all_variables(graph)
    number = {variable.name: place for place, variable in enumerate(variables)}
    scopes: list[str] = []
    tables: list[str] = []
    parts = conditional_tables(graph) if kind == "BAYES" else factor_tables(graph)
    for scope, log_values in parts:
        values = values_of(scope, log_values, "UAI").ravel().tolist()
        scopes.append(" ".join(map(str, [len(scope), *(number[v.name] for v in scope)])))
        tables.append(f"{len(values)}\n {' '.join(map(repr, values))}")
    sizes = " ".join(str(variable.size) for variable in variables)
    head = f"{kind}\n{len(number)}\n{sizes}\n{len(scopes)}"
    return "\n".join([head, *scopes, "", *tables]) + "\n"


@dataclass(frozen=True, eq=False)
class _FactorGroup:
    """Factors of one shape: their scopes (F, arity), and their numbers in the file."""

    scopes: NDArray[np.int32]
    rows: NDArray[np.int32]
    shape: tuple[int, ...]


def _graph(
    sizes: NDArray[np.int64],
    groups: list[_FactorGroup],
    log_values: NDArray[Any],
    source: str,
    dtype: torch.dtype,
) -> FactorGraph:
    """Build the graph; its tables are views of the one array that was read."""
    domain = Domain(CompactVariables(Decimals(range(len(sizes))), sizes).made())
    blocks = [] if groups else [no_factors(dtype)]
    numbers = np.arange(sum(len(group.rows) for group in groups))
    start = declared = 0
    for group in groups:
        count = len(group.rows)
        end = start + count * math.prod(group.shape)
        # A slice of numpy has separate storage in torch, so that a table is pickled alone; the
        # logarithm of a finite number is a log-value.
        table = torch.from_numpy(log_values[start:end]).to(dtype)
        if group.shape:
            scopes = torch.from_numpy(group.scopes).long()
            shape, table = (count,), table.reshape(count, *group.shape)
        else:
            scopes, count = torch.zeros((1, 0), dtype=torch.long), 1
            shape, table = (), table.sum()
        places = torch.from_numpy(numbers[declared : declared + count])
        blocks.append(Block(scopes, Table.checked(table), shape, None, places))
        start, declared = end, declared + count
    try:
        return FactorGraph.from_blocks(domain, blocks)
    except ModelError as error:
        fail(source, str(error))


def _warn_of_sums(groups: list[_FactorGroup], log_values: NDArray[Any], source: str) -> None:
    """Warn of tables of a Bayesian network, children last, whose rows do not sum to one."""
    off, start = SumsOff(), 0
    for group in groups:
        end = start + len(group.rows) * math.prod(group.shape)
        if group.shape:
            rows = log_values[start:end].reshape(-1, group.shape[-1])
            children = np.repeat(group.scopes[:, -1], math.prod(group.shape[:-1]))
            for at in range(0, len(rows), tuning.PIECE):
                sums = np.exp(rows[at : at + tuning.PIECE]).sum(1, keepdims=True)
                off.add(children[at : at + tuning.PIECE], sums)
        start = end
    off.warn(source, str)


def _read_sizes(numbers: TokenNumbers) -> NDArray[np.int64]:
    count = numbers.whole("a number of variables", max(numbers.total - 1, 0))
    sizes = np.empty(min(count, numbers.total - numbers.place), dtype=np.int64)
    most = max(numbers.total, MOST_UNLISTED)
    for at in range(0, len(sizes), tuning.PIECE):
        place = numbers.place
        piece = numbers.take(min(tuning.PIECE, len(sizes) - at))
        numbers.check((piece >= 1) & (piece % 1 == 0), place, "a number of states >= 1")
        numbers.check(piece <= most, place, f"at most {most} states in a file of this length")
        sizes[at : at + len(piece)] = piece
    if len(sizes) < count:
        numbers.fail(numbers.total, "a number of states")
    return sizes


def _read_scopes(
    numbers: TokenNumbers, variables: int
) -> tuple[NDArray[np.int8], NDArray[np.int32]]:
    """The arity of each factor, and the variables of all scopes, concatenated."""
    left = max(numbers.total - numbers.place - 1, 0)
    count = numbers.whole("a number of factors", left)
    arities = np.empty(count, dtype=np.int8)
    members = array("i")
    factor = pending = 0  # pending: variables missing of the last scope
    while factor < count or pending:
        piece = numbers.ahead()
        if not len(piece):
            what = f"a scope of {arities[factor - 1]} variables" if pending else "a scope"
            numbers.fail(numbers.total, what)
        listed, at, heads = piece.tolist(), pending, list[int]()
        first = factor
        while at < len(listed) and factor < count:
            arity = _ARITIES.get(listed[at])
            if arity is None:
                what = f"the scope's length of factor {factor},"
                numbers.checked_whole(listed[at], numbers.place + at, what, tuning.MOST_DIMS)
                raise AssertionError("every whole number up to the most is an arity")
            heads.append(at)
            factor += 1
            at += 1 + arity
        arities[first:factor] = piece[heads]
        used = min(at, len(listed))
        body = np.ones(used, dtype=np.bool_)
        body[heads] = False
        numbers_read = piece[:used]
        good = (numbers_read >= 0) & (numbers_read < variables) & (numbers_read % 1 == 0) | ~body
        numbers.check(good, numbers.place, f"a variable from 0 to {variables - 1}")
        members.frombytes(numbers_read[body].astype(np.int32).tobytes())
        pending = at - used
        numbers.skip(used)
    return arities, np.frombuffer(members, dtype=np.int32)


def _by_shape(
    numbers: TokenNumbers,
    sizes: NDArray[np.int64],
    arities: NDArray[np.int8],
    members: NDArray[np.int32],
    most_shapes: int,
) -> list[_FactorGroup]:
    """The factors grouped by shape; refuses a scope that repeats a variable."""
    groups: list[_FactorGroup] = []
    for arity in np.unique(arities).tolist():
        rows = np.flatnonzero(arities == arity).astype(np.int32)
        every = len(rows) == len(arities)
        flat = members if every else members[np.repeat(arities == arity, arities)]
        scopes = flat.reshape(len(rows), arity)
        # Repeated variables are neighbours in a sorted scope; in pieces, to bound the memory.
        for at in range(0, len(rows) if arity > 1 else 0, tuning.PIECE):
            ranked = np.sort(scopes[at : at + tuning.PIECE], axis=1)
            repeats = (ranked[:, 1:] == ranked[:, :-1]).any(1)
            if repeats.any():
                _fail_at_repeat(numbers, arities, int(rows[at + repeats.argmax()]), members)
        shapes, parts = grouped_rows(torch.from_numpy(sizes[scopes]))
        if len(groups) + len(parts) > most_shapes:
            raise BudgetError(
                f"{numbers.source}: the factors have more than {most_shapes:,} different shapes, "
                "of about 4 kB each; a file of this length may have no more."
            )
        for shape, part in zip(shapes, map(Tensor.numpy, parts), strict=True):
            groups.append(_FactorGroup(scopes[part], rows[part], tuple(shape.tolist())))
    return groups


def _fail_at_repeat(
    numbers: TokenNumbers, arities: NDArray[np.int8], factor: int, members: NDArray[np.int32]
) -> NoReturn:
    """Raise an error about a variable repeated in a factor's scope."""
    start = int(arities[:factor].sum(dtype=np.int64))
    scope = members[start : start + int(arities[factor])].tolist()
    slot = next(slot for slot, variable in enumerate(scope) if variable in scope[:slot])
    first = numbers.place - len(members) - len(arities)
    expected = "a variable that its scope does not hold yet"
    numbers.fail(first + start + factor + 1 + slot, expected)


def _read_tables(
    numbers: TokenNumbers, groups: list[_FactorGroup], dtype: torch.dtype
) -> NDArray[Any]:
    """The log-values of the factors, group by group; every length and value is checked."""
    count, end = sum(len(group.rows) for group in groups), numbers.total
    bounds = np.empty(count + 1)  # places of the tables' lengths, and the end
    bounds[0] = numbers.place
    for rows, sizes in _sized(groups):
        bounds[rows + 1] = sizes + 1
    np.cumsum(bounds, out=bounds)
    # Allocate only what the numbers in the file will fill, whatever the header says.
    fits = bounds[-1] == end
    shifts = _shifts(groups, bounds) if fits else np.empty(0, np.int64)
    kind = np.float32 if dtype == torch.float32 else np.float64
    log_values: NDArray[Any] = np.empty(end - numbers.place - count if fits else 0, dtype=kind)
    while len(piece := numbers.ahead()):
        start = numbers.place
        first, last = np.searchsorted(bounds[:-1], [start, start + len(piece)]).tolist()
        heads = bounds[first:last].astype(np.int64) - start
        wrong = piece[heads] != np.diff(bounds[first : last + 1]) - 1
        if wrong.any():
            _fail_at_length(numbers, bounds, first + int(wrong.argmax()))
        negative = (piece < 0) & (np.arange(start, start + len(piece)) < bounds[-1])
        if negative.any():
            place = start + int(negative.argmax())
            factor = int(np.searchsorted(bounds, place, side="right")) - 1
            numbers.fail(place, f"a value >= 0 in factor {factor}'s table")
        if fits:  # the piece begins within factor first - 1
            counts = np.diff(np.concatenate([[0], heads, [len(piece)]]))
            places = np.arange(start, start + len(piece))
            places += np.repeat(shifts[np.arange(first - 1, last)], counts)
            is_value = np.ones(len(piece), dtype=np.bool_)
            is_value[heads] = False
            log_values[places[is_value]] = torch.from_numpy(piece[is_value]).log().numpy()
        numbers.skip(len(piece))
    if bounds[-1] < end:
        numbers.fail(int(bounds[-1]), f"the end of the file after {count} tables")
    if not fits:
        factor = int((bounds[1:] > end).argmax())
        length = bounds[factor + 1] - bounds[factor] - 1
        if bounds[factor] >= end:
            _fail_at_length(numbers, bounds, factor)
        numbers.fail(end, f"the {length:.0f} values of factor {factor}")
    return log_values


def _shifts(groups: list[_FactorGroup], bounds: NDArray[np.float64]) -> NDArray[np.int64]:
    """Offsets, for each factor, from places of values in the file to those of log-values."""
    shifts, start = np.empty(len(bounds) - 1, dtype=np.int64), 0.0
    for rows, sizes in _sized(groups):
        ends = start + sizes.cumsum()
        shifts[rows] = ends - sizes - bounds[rows] - 1  # the length of a table comes first
        start = float(ends[-1])
    return shifts


def _sized(groups: list[_FactorGroup]) -> Iterator[tuple[NDArray[np.int32], NDArray[np.float64]]]:
    """Iterate over the factors, group by group, and their numbers of values."""
    rows, sizes, count = list[NDArray[np.int32]](), list[float](), 0
    for group in groups:
        size = math.prod(map(float, group.shape))
        for at in range(0, len(group.rows), tuning.PIECE):
            rows.append(group.rows[at : at + tuning.PIECE])
            sizes.append(size)
            count += len(rows[-1])
            if count >= tuning.PIECE:
                yield np.concatenate(rows), np.repeat(sizes, list(map(len, rows)))
                rows, sizes, count = [], [], 0
    if rows:
        yield np.concatenate(rows), np.repeat(sizes, list(map(len, rows)))


def _fail_at_length(numbers: TokenNumbers, bounds: NDArray[np.float64], factor: int) -> NoReturn:
    length = bounds[factor + 1] - bounds[factor] - 1
    place = min(int(bounds[factor]), numbers.total)
    numbers.fail(place, f"the {length:.0f} of factor {factor}'s table")
