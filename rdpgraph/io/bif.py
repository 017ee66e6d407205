"""The BIF format of Bayesian networks: reading."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from rdpgraph.errors import ModelError
from rdpgraph.io.bif_tokens import Tokens
from rdpgraph.io.source import WAIT
from rdpgraph.io.tables import find_cycle, is_conditional
from rdpgraph.io.text import LIMIT, Bytes, PathLike, decoded, fail, read_bytes
from rdpgraph.io.tokens import is_number
from rdpgraph.model.factor import Factor
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.table import Table
from rdpgraph.model.variable import Variable

_MOST_SLOTS = 60  # numpy and torch stop at 64 dims
_MOST_BY_DEFAULT = 1 << 24  # table entries that the `default` lines of a file may stand for


@dataclass(frozen=True, eq=False)
class _Block:
    """A ``probability`` block: its scope, child first, and the span of tokens in its braces."""

    scope: tuple[Variable, ...]
    start: int
    end: int

    @property
    def rows(self) -> int:
        """The number of the parents' configurations."""
        return math.prod(parent.size for parent in self.scope[1:])


def read_bif(
    path: PathLike, *, dtype: torch.dtype = torch.float64, limit: int = LIMIT, wait: float = WAIT
) -> FactorGraph:
    """The network of a BIF file, plain or gzipped.

    Every ``probability`` block becomes the factor P(X | parents) over (X, *parents); the
    variables keep the file's order and the names of their states. The sum of a row may be off by
    a file's rounding (0.1), and a row may be all zeros.

    Args:
        path: the file.
        dtype: of the log-values.
        limit: the most bytes of text, unpacked.
        wait: how long a pipe may be silent, in seconds.

    Raises:
        FileFormatError: with the line that does not fit.
    """
    return parse_bif(read_bytes(path, limit=limit, wait=wait), source=str(path), dtype=dtype)


def parse_bif(
    text: str | Bytes, *, source: str = "<text>", dtype: torch.dtype = torch.float64
) -> FactorGraph:
    """The network of a BIF file's text; see `read_bif`.

    Example:
        >>> graph = parse_bif('''
        ...     variable rain { type discrete [2] { no, yes }; }
        ...     probability (rain) { table 0.8, 0.2; }
        ... ''')
        >>> graph.variables[0].states
        ('no', 'yes')
    """
    tokens = Tokens.of(text if isinstance(text, str) else decoded(text), source)
    variables: dict[str, Variable] = {}
    headers: list[int] = []
    at = 0
    while at < len(tokens.words):
        word = tokens.words[at]
        if word == "variable":
            variable, end = _read_variable(tokens, at)
            if variable.name in variables:
                tokens.fail(at + 1, "a variable that is not declared yet")
            variables[variable.name] = variable
            at = end
        elif word in ("network", "probability"):
            if word == "probability":
                headers.append(at)
            at = tokens.find("}", tokens.find("{", at)) + 1
        elif word == "property":
            at = tokens.find(";", at) + 1
        else:
            tokens.fail(at, "network, variable, probability or property")
    if not variables:
        fail(source, "expected a variable; the file declares none.")
    budget = _MOST_BY_DEFAULT
    factors: list[Factor] = []
    for block in _read_headers(tokens, headers, variables):
        values, unlisted = _read_table(tokens, block, budget)
        budget -= unlisted
        factors.append(Factor(block.scope, Table(torch.from_numpy(values).log().to(dtype))))
    try:
        return FactorGraph(factors, variables=variables.values())
    except ModelError as error:
        fail(source, str(error))


def _read_variable(tokens: Tokens, at: int) -> tuple[Variable, int]:
    """``variable NAME { type discrete [ k ] { names }; }``, and the place after it."""
    start = at + 1
    name = tokens.name(start, "the name of a variable")
    at = tokens.expect(start + 1, "{")
    states: tuple[str, ...] | None = None
    while tokens.words[at : at + 1] != ["}"]:
        if tokens.words[at : at + 1] == ["property"]:
            at = tokens.find(";", at) + 1
            continue
        if states is not None:
            tokens.fail(at, f"the closing brace of variable {name!r}")
        at = tokens.expect(at, "type", "discrete", "[")
        count = tokens.name(at, f"the number of states of {name!r}")
        if not re.fullmatch("[1-9][0-9]{0,8}", count) or int(count) > len(tokens.words):
            tokens.fail(at, f"a number of states that {name!r} lists")
        at = tokens.expect(at + 1, "]", "{")
        end = tokens.find("}", at)
        states = tuple(tokens.names(at, end, int(count), f"state names of {name!r}"))
        at = end + 1
        if tokens.words[at : at + 1] == [";"]:
            at += 1
    if states is None:
        tokens.fail(at, f"the type of variable {name!r}")
    try:
        return Variable(name, states), at + 1
    except ModelError as error:
        tokens.fail(start, f"a variable; {error}")


def _read_headers(
    tokens: Tokens, headers: Sequence[int], variables: dict[str, Variable]
) -> list[_Block]:
    """The block of every variable, in the file's order."""
    blocks: dict[str, _Block] = {}
    for at in headers:
        start = tokens.expect(at + 1, "(")
        close = tokens.find(")", start)
        scope: dict[str, Variable] = {}
        for place in range(start, close):
            if tokens.words[place] in (",", "|"):
                continue
            name = tokens.name(place, "the name of a variable")
            if name not in variables:
                tokens.fail(place, "a declared variable")
            if name in scope:
                tokens.fail(place, "a variable that its scope does not hold yet")
            if not scope and name in blocks:
                tokens.fail(place, "a variable that no probability block has defined yet")
            scope[name] = variables[name]
        if not 1 <= len(scope) <= _MOST_SLOTS:
            tokens.fail(start, f"a scope of 1 to {_MOST_SLOTS} variables (it has {len(scope)})")
        body = tokens.expect(close + 1, "{")
        child = next(iter(scope))
        blocks[child] = _Block(tuple(scope.values()), body, tokens.find("}", body))
    lacking = [name for name in variables if name not in blocks]
    if lacking:
        fail(tokens.source, f"expected a probability block for variable {lacking[0]!r}; got none.")
    parents = {child: [v.name for v in block.scope[1:]] for child, block in blocks.items()}
    cycle = find_cycle(parents)
    if cycle is not None:
        names = [repr(name) for name in cycle[:8]]
        fail(tokens.source, f"expected parents without a cycle; got {' - '.join(names)}.")
    return list(blocks.values())


def _read_table(tokens: Tokens, block: _Block, budget: int) -> tuple[NDArray[np.float64], int]:
    """The values (child, *parents) of a block, and how many entries only ``default`` gives."""
    child, size = block.scope[0], block.scope[0].size
    shape = tuple(variable.size for variable in block.scope)
    codes = _row_codes(block.scope[1:])
    rows: dict[int, None] = {}
    listed: list[str] = []
    default: list[str] | None = None
    whole: list[str] | None = None
    at = block.start
    while at < block.end:
        head = tokens.words[at]
        stop = _statement_end(tokens, at, block.end)
        if head == "(":
            close = tokens.find(")", at, stop)
            names = tokens.names(at + 1, close, len(codes), f"states of {child.name!r}'s parents")
            try:
                row = sum(code[name] for code, name in zip(codes, names, strict=True))
            except KeyError as error:
                tokens.fail(at, f"states of {child.name!r}'s parents (one has no {error})")
            if row in rows:
                tokens.fail(at, f"a row that {child.name!r} has not listed yet")
            rows[row] = None
            listed += _row(tokens, close + 1, stop, size)
        elif head == "default" and default is None:
            default = _row(tokens, at + 1, stop, size)
        elif head == "table" and whole is None:
            whole = _row(tokens, at + 1, stop, size * block.rows)
        elif head != "property":
            tokens.fail(at, f"a row, table or default of {child.name!r} (one of each)")
        at = stop + 1
    if whole is not None and not rows and default is None:
        values = _probabilities(tokens, block, whole).reshape(shape)
        unlisted = 0
    else:
        unlisted = (block.rows - len(rows)) * size
        if whole is not None or (unlisted and default is None):
            tokens.fail(block.end, f"{block.rows} rows of {child.name!r} (there are {len(rows)})")
        if unlisted > budget:
            tokens.fail(block.end, f"rows of {child.name!r} rather than a default for {unlisted}")
        values = np.empty((block.rows, size))
        if default is not None:
            values[:] = _probabilities(tokens, block, default)
        values[list(rows)] = _probabilities(tokens, block, listed).reshape(-1, size)
        values = np.moveaxis(values.reshape(*shape[1:], size), -1, 0)
    if not is_conditional(values, 0):
        tokens.fail(block.start, f"probabilities of {child.name!r} that sum to 1")
    return np.ascontiguousarray(values), unlisted


def _row_codes(parents: Sequence[Variable]) -> list[dict[str, int]]:
    """Per parent, what each state adds to the number of a row (the last parent is the fastest)."""
    codes: list[dict[str, int]] = []
    stride = 1
    for parent in reversed(parents):
        assert isinstance(parent.states, tuple)
        codes.append({state: stride * place for place, state in enumerate(parent.states)})
        stride *= parent.size
    return codes[::-1]


def _statement_end(tokens: Tokens, at: int, end: int) -> int:
    try:
        return tokens.words.index(";", at, end)
    except ValueError:
        return end  # the last semicolon before a brace may lack


def _row(tokens: Tokens, start: int, end: int, count: int) -> list[str]:
    words = [word for word in tokens.words[start:end] if word != ","]
    if len(words) != count:
        tokens.fail(start, f"{count} probabilities here (there are {len(words)})")
    return words


def _probabilities(tokens: Tokens, block: _Block, words: list[str]) -> NDArray[np.float64]:
    text = "".join(words)
    if "_" not in text and text.isascii():  # float() takes more than a file may say
        try:
            values = np.fromiter(map(float, words), dtype=np.float64, count=len(words))
            if bool(((values >= 0) & (values < math.inf)).all()):
                return values
        except ValueError:
            pass
    wrong = next(w for w in words if not is_number(w) or float(w) < 0)
    tokens.fail(tokens.words.index(wrong, block.start), "a probability >= 0")
