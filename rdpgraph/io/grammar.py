"""Weighted context-free grammars in files: one rule a line."""

import math
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph._core.arguments import require_fields, typed
from rdpgraph._core.cache import cached_property
from rdpgraph.errors import BudgetError, EvidenceError
from rdpgraph.io.grammar_lines import rules_of
from rdpgraph.io.text import LIMIT, WAIT, Bytes, PathLike, fail, read_bytes, shown, utf8
from rdpgraph.logspace.logmatrix import soft_scatter
from rdpgraph.model.names import CODEC, Names

MEMORY = 2.0**29
"""Default maximum of bytes of a table of rules: 406 symbols in float64."""


@dataclass(frozen=True, eq=False)
class Grammar:
    """A weighted grammar whose rules have two symbols, or one word, on the right.

    Attributes:
        symbols: their names, the start symbol first, as a tuple or as `Names`.
        words: the words that rules name, likewise.
        rules: (M, 3) int64 the rules of two symbols, [parent, left, right].
        log_weights: (M,) theirs.
        word_rules: (L, 2) int64 the rules of a word, [symbol, word].
        log_word_weights: (L,) theirs.
        memory_bytes: the most that a table of rules may take.
    """

    symbols: Sequence[str]
    words: Sequence[str]
    rules: Tensor
    log_weights: Tensor
    word_rules: Tensor
    log_word_weights: Tensor
    memory_bytes: float = MEMORY

    def __post_init__(self) -> None:
        require_fields(self, memory_bytes="[0, inf]")

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
    def _numbers(self) -> Names:
        return self.words if isinstance(self.words, Names) else Names(self.words)

    @cached_property
    def _by_word(self) -> tuple[Tensor, Tensor]:
        """(L,) the rules of words in the order of their words, and (V + 1,) where each begins."""
        words, rows = self.word_rules[:, 1].sort(stable=True)
        return rows, torch.searchsorted(words, torch.arange(len(self.words) + 1))

    def coarsened(self, coarse: Callable[[str], str]) -> "Grammar":
        """A grammar of fewer symbols, for a cheap model of the spans.

        The weight of a coarse rule is summed over the fine symbols of its parts and averaged, in
        equal shares, over those of its parent.

        Args:
            coarse: from a symbol to its coarse one.

        Example:
            >>> text = ['1 S -> NP-1 NP-2', '2 NP-1 -> "dogs"', '4 NP-2 -> "dogs"']
            >>> fine = parse_grammar(chr(10).join(text))
            >>> fine.coarsened(lambda symbol: symbol.split("-")[0]).log_words.exp()
            tensor([[0.],
                    [3.]], dtype=torch.float64)
        """
        symbols = Names()
        number = torch.from_numpy(
            symbols.add_all([coarse(s).encode(*CODEC) for s in self.symbols])
        ).long()
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
        scores = self.log_weights.new_full((len(sentence), len(self.symbols)), -math.inf)
        rows, starts = self._by_word
        for place, word in enumerate(sentence):
            number = self._numbers.find(word)
            if number < 0:
                raise EvidenceError(f"The grammar has no rule with the word {shown(word)}.")
            rules = rows[int(starts[number]) : int(starts[number + 1])]
            scores[place, self.word_rules[rules, 0]] = self.log_word_weights[rules]
        return scores


def _summed(places: Tensor, logs: Tensor) -> tuple[Tensor, Tensor]:
    """Distinct rules, and the logs of their summed weights."""
    rules, group = places.unique(dim=0, return_inverse=True)
    return rules, soft_scatter(logs, group, len(rules))


@dataclass(frozen=True)
class _Columns:
    """Columns of the rules of one kind: numbers of names, weights."""

    numbers: "list[array[int]]"
    weights: "array[float]" = field(default_factory=lambda: array("d"))

    def extend(self, weights: NDArray[np.float64], *numbers: NDArray[np.int32]) -> None:
        """Append rules: their weights and the numbers of their names."""
        for column, more in zip(self.numbers, numbers, strict=True):
            column.frombytes(more.tobytes())
        self.weights.frombytes(weights.tobytes())


@typed(limit="[0, inf)", wait="[0, inf]", memory_bytes="[0, inf]")
def read_grammar(
    path: PathLike,
    *,
    dtype: torch.dtype = torch.float64,
    limit: int = LIMIT,
    wait: float = WAIT,
    memory_bytes: float = MEMORY,
    encoding: str | None = None,
) -> Grammar:
    """The grammar of a file, plain or gzipped; see `parse_grammar`.

    Args:
        path: the file.
        dtype: of the log-weights.
        limit: the most bytes of text, unpacked.
        wait: how long a pipe may be silent, in seconds.
        memory_bytes: the most that a table of rules may take, where one is made.
        encoding: of the text, as for `read`.

    Raises:
        FileFormatError: with the line that does not fit.
    """
    data = read_bytes(path, limit=limit, wait=wait, encoding=encoding)
    return parse_grammar(data, source=str(path), dtype=dtype, memory_bytes=memory_bytes)


@typed(memory_bytes="[0, inf]")
def parse_grammar(
    text: str | Bytes | memoryview,
    *,
    source: str = "<text>",
    dtype: torch.dtype = torch.float64,
    memory_bytes: float = MEMORY,
) -> Grammar:
    """The grammar of a text.

    A line is a weight, a symbol, an arrow, and two symbols or one word in quotes. The symbol of
    the first line is the start. Weights are finite decimal numbers, not negative, and need not sum
    to one; what follows a ``#`` outside quotes is a comment. Time is linear in the text, and memory
    at most six times as much: rules are lists, and tables of all triples of symbols are made where
    they are asked for.

    Args:
        text: the lines; bytes are UTF-8, or else Latin-1.
        source: its name in errors.
        dtype: of the log-weights.
        memory_bytes: the most that a table of rules may take, where one is made.

    Raises:
        FileFormatError: with the line that does not fit.
        ModelError: no text.

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
    data = utf8(bytes(text) if isinstance(text, memoryview) else text)
    del text
    names, words = Names(), Names()
    # The rank of each symbol by its first rule, or -1; and the inverse.
    order, heads = array("i"), array("i")
    binary = _Columns([array("i"), array("i"), array("i")])
    lexical = _Columns([array("i"), array("i")])
    for rules in rules_of(data, source):
        numbers = names.add_all([*rules.parents, *rules.left, *rules.right])
        ends = [len(rules.parents), len(numbers) - len(rules.right)]
        parents, left, right = np.split(numbers, ends)
        order.frombytes(np.full(len(names) - len(order), -1, dtype=np.int32).tobytes())
        _enter(parents, order, heads)
        alone = rules.lexical
        binary.extend(rules.weights[~alone], parents[~alone], left, right)
        lexical.extend(rules.weights[alone], parents[alone], words.add_all(rules.words))
    if not heads:
        fail(source, "expected rules such as: 0.5 S -> NP VP; the grammar has none.")
    places = _column(order)
    _refuse_headless(binary, places, names, data, source)
    if heads != array("i", range(len(names))):
        names = names.picked(heads)
    del heads
    rules = _listed(binary, (places, places, places), data, source, dtype)
    word_rules = _listed(lexical, (places, None), data, source, dtype)
    return Grammar(names, words, *rules, *word_rules, memory_bytes)


def _enter(parents: NDArray[np.int32], order: "array[int]", heads: "array[int]") -> None:
    """Append parents that are new to the heads."""
    places = _column(order)
    new = parents[places[parents] < 0]
    first = new[np.sort(np.unique(new, return_index=True)[1])]
    places[first] = np.arange(len(heads), len(heads) + len(first))
    heads.frombytes(first.tobytes())


def _line_of(rule: int, data: Bytes, source: str, *, lexical: bool) -> int:
    """The line of a rule, numbered among those of two symbols or those of a word."""
    for rules in rules_of(data, source):
        lines = rules.lines[rules.lexical == lexical]
        if rule < len(lines):
            return int(lines[rule])
        rule -= len(lines)
    raise AssertionError("the rule has been read")


def _refuse_headless(
    rules: _Columns, places: NDArray[np.int32], symbols: Names, data: Bytes, source: str
) -> None:
    """Raise an error about the first part of a rule that heads no rule."""
    _, left, right = map(_column, rules.numbers)
    lacking = (places[left] < 0) | (places[right] < 0)
    if lacking.any():
        rule = int(lacking.argmax())
        name = symbols[int(left[rule] if places[left[rule]] < 0 else right[rule])]
        where = f"line {_line_of(rule, data, source, lexical=False)}"
        wanted = "symbols that have rules, or words in quotes"
        fail(source, f"{where}: expected {wanted}; got {shown(name)}.")


def _refuse_repeats(rules: _Columns, data: Bytes, source: str) -> None:
    """Raise an error about the first repeated rule."""
    columns = [_column(column) for column in rules.numbers]
    order = np.lexsort(columns[::-1])
    same = np.ones(max(len(order) - 1, 0), dtype=np.bool_)
    for column in columns:
        ranked = column[order]
        same &= ranked[1:] == ranked[:-1]
    again = np.flatnonzero(same)
    if len(again):
        first = again[order[again + 1].argmin()]
        lines = [
            _line_of(int(order[at]), data, source, lexical=len(columns) == 2)
            for at in (first + 1, first)
        ]
        expected = f"expected a new rule; it is on line {lines[1]} already."
        fail(source, f"line {lines[0]}: {expected}")


def _column(values: "array[int]") -> NDArray[np.int32]:
    return np.frombuffer(values, dtype=np.int32)


def _listed(
    rules: _Columns,
    places: tuple[NDArray[np.int32] | None, ...],
    data: Bytes,
    source: str,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """(M, 2 or 3) the numbers in distinct rules, and (M,) log-weights."""
    count = len(rules.weights)
    _refuse_repeats(rules, data, source)
    listed = np.empty((count, len(places)), dtype=np.int64)
    for number, place in enumerate(places):
        column = _column(rules.numbers.pop(0))  # frees its memory
        for start in range(0, count, tuning.PIECE):
            piece = column[start : start + tuning.PIECE]
            listed[start : start + tuning.PIECE, number] = piece if place is None else place[piece]
    if not count:
        return torch.from_numpy(listed), torch.empty(0, dtype=dtype)
    weights = torch.frombuffer(rules.weights, dtype=torch.float64)
    return torch.from_numpy(listed), weights.log_().to(dtype)
