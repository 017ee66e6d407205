"""Weighted context-free grammars in files: one rule a line."""

import math
import re
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rdpgraph._cache import cached_property
from rdpgraph.errors import BudgetError, EvidenceError
from rdpgraph.io.source import WAIT
from rdpgraph.io.text import PathLike, fail, read_text, shown
from rdpgraph.io.tokens import is_number
from rdpgraph.model.semiring import soft_scatter

_TOKEN = re.compile(r"""\s*(?:(#.*)|"([^"]*)"|'([^']*)'|([^\s"'#]+)|(.))""")
_LINE = re.compile(r"[^\r\n]+")
LIMIT = 1 << 25
"""The most bytes of text by default, 32 MiB: a name takes 150 bytes beyond its rules."""
MEMORY = 2.0**29
"""The most bytes of a table of rules by default, 512 MiB: 406 symbols in float64."""


@dataclass(frozen=True, eq=False)
class Grammar:
    """A weighted grammar whose rules have two symbols, or one word, on the right.

    Attributes:
        symbols: their names, the start symbol first.
        words: the words that rules name.
        rules: (M, 3) int64 the rules of two symbols, [parent, left, right].
        log_weights: (M,) theirs.
        word_rules: (L, 2) int64 the rules of a word, [symbol, word].
        log_word_weights: (L,) theirs.
        memory_bytes: the most that a table of rules may take.
    """

    symbols: tuple[str, ...]
    words: tuple[str, ...]
    rules: Tensor
    log_weights: Tensor
    word_rules: Tensor
    log_word_weights: Tensor
    memory_bytes: float = MEMORY

    @cached_property
    def log_rules(self) -> Tensor:
        """(N, N, N) log-weights, [parent, left, right]; -inf where there is no rule.

        Raises:
            BudgetError: a table larger than `memory_bytes`.
        """
        return self._table(self.rules, self.log_weights, (len(self.symbols),) * 3)

    @cached_property
    def log_words(self) -> Tensor:
        """(N, V) log-weights of the words.

        Raises:
            BudgetError: a table larger than `memory_bytes`.
        """
        sizes = len(self.symbols), len(self.words)
        return self._table(self.word_rules, self.log_word_weights, sizes)

    def _table(self, places: Tensor, values: Tensor, sizes: tuple[int, ...]) -> Tensor:
        need = float(math.prod(sizes)) * values.element_size()
        if need > self.memory_bytes:
            raise BudgetError(
                f"A table of the rules of a grammar of {len(self.symbols):,} symbols and "
                f"{len(self.words):,} words takes {need / 1e9:,.1f} GB; at most "
                f"{self.memory_bytes / 1e9:.1f} GB are made. Raise `memory_bytes`, or use the "
                "lists, as Hypertree.parses does."
            )
        table = values.new_full(sizes, -math.inf)
        table[tuple(places.unbind(1))] = values
        return table

    @property
    def start(self) -> Tensor:
        """(N,) 0 for the start symbol, -inf for the others."""
        start = self.log_weights.new_full((len(self.symbols),), -math.inf)
        start[0] = 0.0
        return start

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.words)}

    @cached_property
    def _by_word(self) -> tuple[Tensor, Tensor]:
        """(L,) the rules of words in the order of their words, and (V + 1,) where each begins."""
        words, rows = self.word_rules[:, 1].sort(stable=True)
        return rows, torch.searchsorted(words, torch.arange(len(self.words) + 1))

    def coarsened(self, coarse: Callable[[str], str]) -> "Grammar":
        """A grammar of fewer symbols: what a cheap model of the spans is made of.

        A coarse rule has the weights of its fine ones, summed over the symbols that its parts stand
        for, and averaged over those that its parent does, each as often as the others.

        Args:
            coarse: from a symbol to the one that stands for it.

        Example:
            >>> text = ['1 S -> NP-1 NP-2', '2 NP-1 -> "dogs"', '4 NP-2 -> "dogs"']
            >>> fine = parse_grammar(chr(10).join(text))
            >>> fine.coarsened(lambda symbol: symbol.split("-")[0]).log_words.exp()
            tensor([[0.],
                    [3.]], dtype=torch.float64)
        """
        names = [coarse(symbol) for symbol in self.symbols]
        symbols = tuple(dict.fromkeys(names))
        number = torch.tensor([symbols.index(name) for name in names])
        share = -torch.bincount(number).to(self.log_weights).log()[number]
        rules, weights = _summed(number[self.rules], self.log_weights + share[self.rules[:, 0]])
        places = torch.stack([number[self.word_rules[:, 0]], self.word_rules[:, 1]], 1)
        lexical, logs = _summed(places, self.log_word_weights + share[self.word_rules[:, 0]])
        return Grammar(symbols, self.words, rules, weights, lexical, logs, self.memory_bytes)

    def lexical(self, sentence: Sequence[str]) -> Tensor:
        """(T, N) log-weights of each word under each symbol.

        Raises:
            EvidenceError: a word that no rule has.
        """
        found = self.log_weights.new_full((len(sentence), len(self.symbols)), -math.inf)
        rows, starts = self._by_word
        for place, word in enumerate(sentence):
            number = self._numbers.get(word)
            if number is None:
                raise EvidenceError(f"The grammar has no rule with the word {shown(word)}.")
            own = rows[int(starts[number]) : int(starts[number + 1])]
            found[place, self.word_rules[own, 0]] = self.log_word_weights[own]
        return found


def _summed(places: Tensor, logs: Tensor) -> tuple[Tensor, Tensor]:
    """Rules named once each, and the logs of their summed weights."""
    rules, group = places.unique(dim=0, return_inverse=True)
    return rules, soft_scatter(logs, group, len(rules))


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
        memory_bytes: the most that a table of rules may take, where one is made.

    Raises:
        FileFormatError: with the line that does not fit.
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
    to one; what follows a ``#`` outside quotes is a comment. Time and memory are linear in the
    text: rules are lists, and tables of all triples of symbols are made where they are asked for.

    Args:
        text: the lines.
        source: what errors call it.
        dtype: of the log-weights.
        memory_bytes: the most that a table of rules may take, where one is made.

    Raises:
        FileFormatError: with the line that does not fit.

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
    return Grammar(
        tuple(symbols[number] for number in heads),
        tuple(words),
        *_listed(binary, (places, places, places), source, dtype),
        *_listed(lexical, (places, np.arange(len(words))), source, dtype),
        memory_bytes,
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


def _listed(
    rules: _Rules, places: tuple[NDArray[np.int64], ...], source: str, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """(M, 2 or 3) the numbers in rules, each of which stands once, and (M,) log-weights."""
    columns = (rules.parents, rules.lefts, rules.rights)
    pairs = zip(columns, places, strict=False)
    found = [place.astype(np.int32)[_column(column)] for column, place in pairs]
    order = np.lexsort(found[::-1])
    same = np.ones(max(len(order) - 1, 0), dtype=np.bool_)
    for column in found:
        same &= np.diff(column[order]) == 0
    again = np.flatnonzero(same)
    if len(again):
        lines = _column(rules.lines)[order]
        first = again[lines[again + 1].argmin()]
        fail(
            source,
            f"line {lines[first + 1]}: expected a new rule; it is on line {lines[first]} already.",
        )
    listed = torch.stack([torch.from_numpy(column).long() for column in found], 1)
    if not len(listed):
        return listed, torch.empty(0, dtype=dtype)
    return listed, torch.frombuffer(rules.weights, dtype=torch.float64).log().to(dtype)


def _column(values: "array[int]") -> NDArray[np.int32]:
    return np.frombuffer(values, dtype=np.int32)
