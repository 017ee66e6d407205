"""The BIF format of Bayesian networks: reading."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from rdpgraph.errors import ModelError
from rdpgraph.io.bif_tokens import Item, Tokens, items_of, statements
from rdpgraph.io.source import WAIT
from rdpgraph.io.tables import find_cycle, is_conditional
from rdpgraph.io.text import LIMIT, Bytes, PathLike, decoded, fail, read_bytes
from rdpgraph.io.tokens import is_number
from rdpgraph.model.factor import Factor
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.table import Table
from rdpgraph.model.variable import Variable

_TABLE = re.compile(r"\s*table\s([0-9eE+.,\s-]*+);?\s*")
_PIECE = 1 << 16
_MOST_SLOTS = 60  # numpy and torch stop at 64 dims
_MOST_BY_DEFAULT = 1 << 24  # table entries that the `default` lines of a file may stand for


@dataclass(frozen=True, eq=False)
class _Block:
    """A ``probability`` block: its scope, child first, and the span of text in its braces."""

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
    text = text if isinstance(text, str) else decoded(text)
    variables: dict[str, Variable] = {}
    probabilities: list[Item] = []
    for item in items_of(text, source):
        if item.word == "probability":
            probabilities.append(item)
        elif item.word == "variable":
            tokens = Tokens.of(text, source, item.start, item.end)
            variable = _read_variable(tokens)
            if variable.name in variables:
                tokens.fail(1, "a variable that is not declared yet")
            variables[variable.name] = variable
    if not variables:
        fail(source, "expected a variable; the file declares none.")
    budget = _MOST_BY_DEFAULT
    factors: list[Factor] = []
    for block in _read_headers(text, source, probabilities, variables):
        values, unlisted = _read_table(text, source, block, budget)
        budget -= unlisted
        factors.append(Factor(block.scope, Table(torch.from_numpy(values).log().to(dtype))))
    try:
        return FactorGraph(factors, variables=variables.values())
    except ModelError as error:
        fail(source, str(error))


def _read_variable(tokens: Tokens) -> Variable:
    """``variable NAME { type discrete [ k ] { names }; }``."""
    start = 1
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
        return Variable(name, states)
    except ModelError as error:
        tokens.fail(start, f"a variable; {error}")


def _read_headers(
    text: str, source: str, items: Sequence[Item], variables: dict[str, Variable]
) -> list[_Block]:
    """The block of every variable, in the file's order."""
    blocks: dict[str, _Block] = {}
    for item in items:
        tokens = Tokens.of(text, source, item.start, item.body)
        start = tokens.expect(1, "(")
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
        tokens.expect(close + 1, "{")
        child = next(iter(scope))
        blocks[child] = _Block(tuple(scope.values()), item.body, item.end - 1)
    lacking = [name for name in variables if name not in blocks]
    if lacking:
        fail(source, f"expected a probability block for variable {lacking[0]!r}; got none.")
    parents = {child: [v.name for v in block.scope[1:]] for child, block in blocks.items()}
    cycle = find_cycle(parents)
    if cycle is not None:
        names = [repr(name) for name in cycle[:8]]
        fail(source, f"expected parents without a cycle; got {' - '.join(names)}.")
    return list(blocks.values())


def _read_table(
    text: str, source: str, block: _Block, budget: int
) -> tuple[NDArray[np.float64], int]:
    """The values (child, *parents) of a block, and how many entries only ``default`` gives."""
    child, size = block.scope[0], block.scope[0].size
    shape = tuple(variable.size for variable in block.scope)
    whole = _numbers_alone(text, block)
    if whole is not None:
        return _checked(text, source, block, whole.reshape(shape)), 0
    codes = _row_codes(block.scope[1:])
    rows: dict[int, None] = {}
    listed: list[NDArray[np.float64]] = []
    default: NDArray[np.float64] | None = None
    for tokens in statements(text, source, block.start, block.end):
        at, end, words = 0, len(tokens.words), list[str]()
        while at < end:
            head = tokens.words[at]
            stop = _statement_end(tokens, at, end)
            if head == "(":
                close = tokens.find(")", at, stop)
                names = tokens.names(
                    at + 1, close, len(codes), f"states of {child.name!r}'s parents"
                )
                try:
                    row = sum(code[name] for code, name in zip(codes, names, strict=True))
                except KeyError as error:
                    tokens.fail(at, f"states of {child.name!r}'s parents (one has no {error})")
                if row in rows:
                    tokens.fail(at, f"a row that {child.name!r} has not listed yet")
                rows[row] = None
                words += _row(tokens, close + 1, stop, size)
            elif head == "default" and default is None:
                default = _probabilities(tokens, _row(tokens, at + 1, stop, size))
            elif head == "table" and whole is None:
                whole = _probabilities(tokens, _row(tokens, at + 1, stop, size * block.rows))
            elif head != "property":
                tokens.fail(at, f"a row, table or default of {child.name!r} (one of each)")
            at = stop + 1
        listed.append(_probabilities(tokens, words))
    after = Tokens(source, text, block.end, [])
    if whole is not None and not rows and default is None:
        return _checked(text, source, block, whole.reshape(shape)), 0
    unlisted = (block.rows - len(rows)) * size
    if whole is not None or (unlisted and default is None):
        after.fail(0, f"{block.rows} rows of {child.name!r} (there are {len(rows)})")
    if unlisted > budget:
        after.fail(0, f"rows of {child.name!r} rather than a default for {unlisted}")
    values = np.empty((block.rows, size))
    if default is not None:
        values[:] = default
    if rows:
        values[list(rows)] = np.concatenate(listed).reshape(-1, size)
    values = np.moveaxis(values.reshape(*shape[1:], size), -1, 0)
    return _checked(text, source, block, values), unlisted


def _numbers_alone(text: str, block: _Block) -> NDArray[np.float64] | None:
    """The values of a block that is one ``table`` of numbers, if it is, without its tokens."""
    match = _TABLE.fullmatch(text, block.start, block.end)
    if match is None:
        return None
    at, end = match.span(1)
    parts: list[NDArray[np.float64]] = []
    while at < end:
        cut = min(text.find(",", min(at + _PIECE, end), end) % (end + 1) + 1, end)
        words = text[at:cut].replace(",", " ").split()
        try:
            parts.append(np.fromiter(map(float, words), dtype=np.float64, count=len(words)))
        except ValueError:
            return None
        at = cut
    values = np.concatenate(parts) if parts else np.empty(0)
    fits = len(values) == block.scope[0].size * block.rows
    return values if fits and bool(((values >= 0) & (values < math.inf)).all()) else None


def _checked(
    text: str, source: str, block: _Block, values: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The values, which must be probabilities of the child."""
    if not is_conditional(values, 0):
        expected = f"probabilities of {block.scope[0].name!r} that sum to 1"
        Tokens(source, text, block.start, []).fail(0, expected)
    return np.ascontiguousarray(values)


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


def _probabilities(tokens: Tokens, words: list[str]) -> NDArray[np.float64]:
    text = "".join(words)
    if "_" not in text and text.isascii():  # float() takes more than a file may say
        try:
            values = np.fromiter(map(float, words), dtype=np.float64, count=len(words))
            if bool(((values >= 0) & (values < math.inf)).all()):
                return values
        except ValueError:
            pass
    wrong = next(w for w in words if not is_number(w) or float(w) < 0)
    tokens.fail(tokens.words.index(wrong), "a probability >= 0")
