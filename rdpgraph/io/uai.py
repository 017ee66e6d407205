"""The UAI format of the inference competitions: models."""

import math
from typing import Literal

import numpy as np
import torch

from rdpgraph.errors import ModelError
from rdpgraph.io.source import WAIT
from rdpgraph.io.tables import all_variables, conditional_tables, factor_tables, values_of
from rdpgraph.io.text import LIMIT, Bytes, PathLike, fail, read_bytes, write_text_atomically
from rdpgraph.io.uai_content import Content, read_content
from rdpgraph.model.block import Block
from rdpgraph.model.compact import CompactVariables
from rdpgraph.model.domain import Domain
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.names import Decimals
from rdpgraph.model.table import Table


def read_uai(
    path: PathLike, *, dtype: torch.dtype = torch.float64, limit: int = LIMIT, wait: float = WAIT
) -> FactorGraph:
    """The model of a UAI file, plain or gzipped; its variables are named "0", "1", ....

    Factors of like shape become one block, constants one. Time is linear in the bytes; memory is
    at most six times the text, beyond 1 MB.

    Args:
        path: a file that begins with ``MARKOV`` or ``BAYES``; both hold tables of values >= 0,
            the last variable of a scope the fastest.
        dtype: of the log-values.
        limit: the most bytes of text, unpacked.
        wait: how long a pipe may be silent, in seconds.

    Raises:
        FileFormatError: with the line and the token that do not fit.
        BudgetError: factors of more than 16,384 shapes, in less than 700 bytes of text each.
    """
    return parse_uai(read_bytes(path, limit=limit, wait=wait), source=str(path), dtype=dtype)


def parse_uai(
    text: str | Bytes, *, source: str = "<text>", dtype: torch.dtype = torch.float64
) -> FactorGraph:
    """The model of a UAI file's text, as `read_uai` has it of a file.

    Raises:
        FileFormatError: with the line and the token that do not fit.

    Example:
        >>> graph = parse_uai("MARKOV 2  2 3  1  2 0 1  6  1 2 3 4 5 6")
        >>> [variable.size for variable in graph.variables]
        [2, 3]
    """
    data = text.encode() if isinstance(text, str) else text
    return _graph(read_content(data, source, dtype), source, dtype)


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
    """The text of a model in the UAI format, which `write_uai` writes."""
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


def _graph(content: Content, source: str, dtype: torch.dtype) -> FactorGraph:
    """The graph; its tables lie in the one array that was read."""
    domain = Domain(CompactVariables(Decimals(range(len(content.sizes))), content.sizes).made())
    blocks: list[Block] = []
    numbers = np.arange(sum(len(group.rows) for group in content.groups))
    start = declared = 0
    for group in content.groups:
        count = len(group.rows)
        end = start + count * math.prod(group.shape)
        # A slice of numpy is a storage of its own in torch, so that a table is pickled alone; the
        # logarithm of a finite number is a log-value.
        table = torch.from_numpy(content.log_values[start:end]).to(dtype)
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
