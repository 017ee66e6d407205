"""Weighted context-free grammars in files: one rule a line."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rdpgraph.errors import BudgetError, EvidenceError
from rdpgraph.io.source import WAIT
from rdpgraph.io.text import LIMIT, PathLike, fail, read_text, shown

_TOKEN = re.compile(r"""\s*(?:(#.*)|"([^"]*)"|'([^']*)'|([^\s"'#]+)|(.))""")
_MOST_RULES = 2**28
"""Entries of the table of binary rules."""


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
class _Rule:
    weight: float
    parent: str
    parts: tuple[str, ...]
    word: str | None


def read_grammar(
    path: PathLike, *, dtype: torch.dtype = torch.float64, limit: int = LIMIT, wait: float = WAIT
) -> Grammar:
    """The grammar of a file, plain or gzipped; see `parse_grammar`.

    Raises:
        FileFormatError: with the line that does not fit.
    """
    return parse_grammar(read_text(path, limit=limit, wait=wait), source=str(path), dtype=dtype)


def parse_grammar(
    text: str, *, source: str = "<text>", dtype: torch.dtype = torch.float64
) -> Grammar:
    """The grammar of a text.

    A line is a weight, a symbol, an arrow, and two symbols or one word in quotes. The symbol of
    the first line is the start. Weights are not negative and need not sum to one; what follows a
    ``#`` outside quotes is a comment.

    Args:
        text: the lines.
        source: what errors call it.
        dtype: of the log-weights.

    Raises:
        FileFormatError: with the line that does not fit.
        BudgetError: more symbols than a table of rules is made for.

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
    rules: dict[int, _Rule] = {}
    first: dict[tuple[str, tuple[str, ...], str | None], int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        rule = _read_line(line, f"{source}: line {number}")
        if rule is None:
            continue
        key = (rule.parent, rule.parts, rule.word)
        if key in first:
            fail(source, f"line {number}: expected a new rule; it is on line {first[key]} already.")
        first[key], rules[number] = number, rule
    if not rules:
        fail(source, "expected rules such as: 0.5 S -> NP VP; the grammar has none.")
    heads = {rule.parent for rule in rules.values()}
    for number, rule in rules.items():
        for part in rule.parts:
            if part not in heads:
                fail(
                    source,
                    f"line {number}: expected symbols that have rules, or words in quotes; got "
                    f"{shown(part)}.",
                )
    return _tables(list(rules.values()), dtype)


def _read_line(line: str, where: str) -> _Rule | None:
    """The rule of a line, or None if it has none."""
    tokens: list[tuple[str, bool]] = []
    for comment, double, single, plain, stray in _TOKEN.findall(line.rstrip()):
        if comment:
            break
        if stray:
            fail(where, f"a quote that is not closed, or is inside a name: {shown(line.strip())}.")
        tokens.append((plain, False) if plain else (double or single, True))
    if not tokens:
        return None
    plain = [text for text, quoted in tokens if not quoted]
    fits = len(tokens) >= 4 and not any(quoted for _, quoted in tokens[:3]) and plain[2] == "->"
    parts = tokens[3:]
    quoted = [is_word for _, is_word in parts]
    if not fits or quoted not in ([False, False], [True]) or not all(text for text, _ in parts):
        fail(
            where,
            'expected a rule such as: 0.5 S -> NP VP, or: 1.0 N -> "dog"; got '
            f"{shown(' '.join(line.split()), 60)}.",
        )
    try:
        weight = float(tokens[0][0])
    except ValueError:
        weight = math.nan
    if not 0 <= weight < math.inf:
        fail(where, f"expected a weight >= 0; got {shown(tokens[0][0])}.")
    names = tuple(text for text, _ in parts)
    if quoted == [True]:
        return _Rule(weight, tokens[1][0], (), names[0])
    return _Rule(weight, tokens[1][0], names, None)


def _tables(rules: list[_Rule], dtype: torch.dtype) -> Grammar:
    symbols = {name: number for number, name in enumerate(dict.fromkeys(r.parent for r in rules))}
    named = dict.fromkeys(rule.word for rule in rules if rule.word is not None)
    words = {word: number for number, word in enumerate(named)}
    size = len(symbols)
    if size**3 > _MOST_RULES:
        raise BudgetError(
            f"A grammar of {size:,} symbols needs a table of {size**3:,} rules; at most "
            f"{_MOST_RULES:,} are held."
        )
    table = torch.zeros(size, size, size, dtype=dtype)
    lexicon = torch.zeros(size, len(words), dtype=dtype)
    for rule in rules:
        parent = symbols[rule.parent]
        if rule.word is None:
            table[parent, symbols[rule.parts[0]], symbols[rule.parts[1]]] = rule.weight
        else:
            lexicon[parent, words[rule.word]] = rule.weight
    return Grammar(tuple(symbols), tuple(words), table.log(), lexicon.log())
