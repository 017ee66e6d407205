"""Weighted context-free grammars in files: one rule a line."""

import math
import re
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rdpgraph.errors import BudgetError, EvidenceError
from rdpgraph.io.source import WAIT
from rdpgraph.io.text import PathLike, fail, read_text, shown
from rdpgraph.io.tokens import is_number

_TOKEN = re.compile(r"""\s*(?:(#.*)|"([^"]*)"|'([^']*)'|([^\s"'#]+)|(.))""")
_LINE = re.compile(r"[^\r\n]+")
LIMIT = 1 << 25
"""The most bytes of text by default, 32 MiB: a name takes 150 bytes beyond its rules."""
MEMORY = 2.0**29
"""The most bytes of the tables of rules by default, 512 MiB: 406 symbols in float64."""


@dataclass(frozen=True, eq=False)
class Grammar:
    """A weighted grammar whose rules have two symbols, or one word, on the right.

    Attributes:
        symbols: their names, the start symbol first.
        words: the words that rules name.
        log_rules: (N, N, N) log-weights, [parent, left, right]; -inf where there is no rule.
        log_words: (N, V) log-weights of the words.
    """

    symbols: tuple[str, ...]
    words: tuple[str, ...]
    log_rules: Tensor
    log_words: Tensor

    @property
    def start(self) -> Tensor:
        """(N,) 0 for the start symbol, -inf for the others."""
        start = torch.full((len(self.symbols),), -math.inf, dtype=self.log_rules.dtype)
        start[0] = 0.0
        return start

    def lexical(self, sentence: Sequence[str]) -> Tensor:
        """(T, N) log-weights of each word under each symbol.

        Raises:
            EvidenceError: a word that no rule has.
        """
        numbers = {word: number for number, word in enumerate(self.words)}
        for word in sentence:
            if word not in numbers:
                raise EvidenceError(f"The grammar has no rule with the word {shown(word)}.")
        return self.log_words.T[[numbers[word] for word in sentence]]


@dataclass(frozen=True)
class _Rules:
    """The rules of one kind, as columns: numbers of names, weights, lines."""

    parents: "array[int]" = field(default_factory=lambda: array("i"))
    lefts: "array[int]" = field(default_factory=lambda: array("i"))
    rights: "array[int]" = field(default_factory=lambda: array("i"))
    weights: "array[float]" = field(default_factory=lambda: array("d"))
    lines: "array[int]" = field(default_factory=lambda: array("i"))

    def add(self, line: int, weight: float, parent: int, left: int, right: int) -> None:
        """One rule."""
        columns = (self.parents, self.lefts, self.rights, self.lines)
        for column, value in zip(columns, (parent, left, right, line), strict=True):
            column.append(value)
        self.weights.append(weight)


def read_grammar(
    path: PathLike,
    *,
    dtype: torch.dtype = torch.float64,
    limit: int = LIMIT,
    wait: float = WAIT,
    memory_bytes: float = MEMORY,
) -> Grammar:
    """The grammar of a file, plain or gzipped; see `parse_grammar`.

    Args:
        path: the file.
        dtype: of the log-weights.
        limit: the most bytes of text, unpacked.
        wait: how long a pipe may be silent, in seconds.
        memory_bytes: the most that the tables may take.

    Raises:
        FileFormatError: with the line that does not fit.
        BudgetError: tables larger than ``memory_bytes``.
    """
    text = read_text(path, limit=limit, wait=wait)
    return parse_grammar(text, source=str(path), dtype=dtype, memory_bytes=memory_bytes)


def parse_grammar(
    text: str,
    *,
    source: str = "<text>",
    dtype: torch.dtype = torch.float64,
    memory_bytes: float = MEMORY,
) -> Grammar:
    """The grammar of a text.

    A line is a weight, a symbol, an arrow, and two symbols or one word in quotes. The symbol of
    the first line is the start. Weights are finite decimal numbers, not negative, and need not sum
    to one; what follows a ``#`` outside quotes is a comment. Time is linear in the text; the tables
    of N symbols and V words take N^3 + N V numbers.

    Args:
        text: the lines.
        source: what errors call it.
        dtype: of the log-weights.
        memory_bytes: the most that the tables may take.

    Raises:
        FileFormatError: with the line that does not fit.
        BudgetError: tables larger than ``memory_bytes``; none is made.

    Example:
        >>> grammar = parse_grammar('''
        ...     1.0 S  -> NP VP
        ...     0.4 NP -> "dogs"
        ...     0.6 NP -> "cats"
        ...     1.0 VP -> "sleep"   # no objects
        ... ''')
        >>> grammar.symbols, grammar.words
        (('S', 'NP', 'VP'), ('dogs', 'cats', 'sleep'))
    """
    names: dict[str, int] = {}
    words: dict[str, int] = {}
    heads: dict[int, int] = {}  # the symbols that have rules, in the order of their first ones
    binary, lexical = _Rules(), _Rules()
    for line, content in _lines(text):
        tokens = _read_line(content, f"{source}: line {line}")
        if not tokens:
            continue
        weight, parent, *parts = tokens
        number = names.setdefault(parent, len(names))
        heads.setdefault(number, len(heads))
        if len(parts) == 1:
            word = words.setdefault(parts[0], len(words))
            lexical.add(line, float(weight), number, word, 0)
        else:
            left, right = (names.setdefault(part, len(names)) for part in parts)
            binary.add(line, float(weight), number, left, right)
    if not heads:
        fail(source, "expected rules such as: 0.5 S -> NP VP; the grammar has none.")
    places = np.full(len(names), -1)
    places[list(heads)] = list(heads.values())
    symbols = list(names)
    _refuse_headless(binary, places, symbols, source)
    need = torch.empty(0, dtype=dtype).element_size() * len(heads) * (len(heads) ** 2 + len(words))
    if need > memory_bytes:
        raise BudgetError(
            f"{source}: a grammar of {len(heads):,} symbols and {len(words):,} words needs tables "
            f"of {need / 1e9:,.1f} GB, a number for every three symbols; at most "
            f"{memory_bytes / 1e9:.1f} GB are made. Raise `memory_bytes` (--memory)."
        )
    return Grammar(
        tuple(symbols[number] for number in heads),
        tuple(words),
        _table(binary, (places, places, places), (len(heads),) * 3, source, dtype),
        _table(lexical, (places, np.arange(len(words))), (len(heads), len(words)), source, dtype),
    )


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """The lines that are not empty, and their numbers from 1 on."""
    number, end = 1, 0
    for match in _LINE.finditer(text):
        gap = (end, match.start())
        number += text.count("\n", *gap) + text.count("\r", *gap) - text.count("\r\n", *gap)
        end = match.end()
        yield number, match[0]


def _read_line(line: str, where: str) -> list[str]:
    """Weight, parent, and two symbols or one word; or nothing."""
    tokens: list[tuple[str, bool]] = []
    for match in _TOKEN.finditer(line.rstrip()):
        comment, double, single, plain, stray = match.groups()
        if comment is not None or len(tokens) > 5:
            break
        if stray is not None:
            got = shown(line[:100].strip())
            fail(where, f"a quote that is not closed, or is inside a name: {got}.")
        tokens.append((plain, False) if plain is not None else (double or single or "", True))
    if not tokens:
        return []
    texts = [text for text, _ in tokens]
    quoted = [is_word for _, is_word in tokens]
    pair, word = [False] * 5, [False] * 3 + [True]
    if quoted not in (pair, word) or texts[2] != "->" or not all(texts):
        fail(
            where,
            'expected a rule such as: 0.5 S -> NP VP, or: 1.0 N -> "dog"; got '
            f"{shown(' '.join(line[:1000].split()), 60)}.",
        )
    if not is_number(texts[0]) or float(texts[0]) < 0:
        fail(where, f"expected a weight >= 0; got {shown(texts[0])}.")
    return [texts[0], texts[1], *texts[3:]]


def _refuse_headless(
    rules: _Rules, places: NDArray[np.int64], symbols: Sequence[str], source: str
) -> None:
    """Raise an error about the first part of a rule that has no rules itself."""
    parts = np.stack([_column(rules.lefts), _column(rules.rights)], 1)
    lacking = places[parts] < 0
    if lacking.any():
        rule, slot = divmod(int(lacking.argmax()), 2)
        fail(
            source,
            f"line {rules.lines[rule]}: expected symbols that have rules, or words in quotes; got "
            f"{shown(symbols[int(parts[rule, slot])])}.",
        )


def _table(
    rules: _Rules,
    places: tuple[NDArray[np.int64], ...],
    shape: tuple[int, ...],
    source: str,
    dtype: torch.dtype,
) -> Tensor:
    """The log-weights of rules, each of which stands once; -inf elsewhere."""
    columns = (rules.parents, rules.lefts, rules.rights)
    flat = np.zeros(len(rules.lines), dtype=np.int64)
    for column, place, size in zip(columns, places, shape, strict=False):
        flat = flat * size + place[_column(column)]
    order = np.argsort(flat, kind="stable")
    again = np.flatnonzero(np.diff(flat[order]) == 0)
    if len(again):
        lines = _column(rules.lines)[order]
        first = again[lines[again + 1].argmin()]
        fail(
            source,
            f"line {lines[first + 1]}: expected a new rule; it is on line {lines[first]} already.",
        )
    table = torch.full((math.prod(shape),), -math.inf, dtype=dtype)
    log_weights = torch.frombuffer(rules.weights, dtype=torch.float64).log() if len(flat) else []
    table[torch.from_numpy(flat)] = torch.as_tensor(log_weights, dtype=dtype)
    return table.reshape(shape)


def _column(values: "array[int]") -> NDArray[np.int32]:
    return np.frombuffer(values, dtype=np.int32)
