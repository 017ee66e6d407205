"""Patterns of words: regular languages, which become automata."""

import math
import operator
import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from rdpgraph._core.arguments import typed
from rdpgraph._core.cache import cached_property
from rdpgraph._core.numbers import is_whole
from rdpgraph.errors import ModelError
from rdpgraph.model.potentials.automaton import Automaton
from rdpgraph.model.potentials.expressions import Tree, by_letters, by_words

Inside = frozenset[int]


@dataclass(frozen=True, eq=False, repr=False)
class Pattern:
    """A set of sequences of words 0 to V - 1, as the smallest automaton that accepts them.

    ``one + other`` is one after the other, ``one | other`` either, ``one & other`` both at once,
    ``~one`` all other sequences, and ``one.repeated(least, most)`` copies in a row. In each state
    of the automaton, words that are not named share one arc: time and memory depend on the named
    words only. Patterns are made by `parse`, `spelled`, `one_of` and `containing`.

    Attributes:
        vocabulary: how many words there are, V.
        arcs: for each state, the first of which is 0, the next one by words that are named.
        others: for each state the next one by all other words.
        accepted: for each state, True where a sequence may end.

    Example:
        >>> pattern = Pattern.parse("the old* dog .", ["the", "old", "dog", "barks"])
        >>> pattern.automaton(4).table(4).exp().sum()  # "the old dog" and any of four
        tensor(4.)
    """

    vocabulary: int
    arcs: Sequence[dict[int, int]]
    others: Sequence[int]
    accepted: Sequence[bool]

    def __repr__(self) -> str:
        return f"Pattern({len(self.arcs)} states, {self.vocabulary} words)"

    @classmethod
    def parse(cls, expression: str, words: Sequence[str] | int) -> "Pattern":
        r"""The sequences of words that match a regular expression.

        It has words with spaces between them, ``.`` for any word, ``|``, parentheses, and after
        each of these at most one of ``*``, ``+``, ``?``, ``{2}``, ``{2,}``, ``{,5}`` or ``{2,5}``.
        A ``?`` after one of these, which makes it lazy, changes nothing. After a backslash all
        signs are parts of words.

        Args:
            expression: such as ``"the (big | small)? .{2,4} dog"``.
            words: of the vocabulary, in its order; or how many, and words are written as numbers.

        Raises:
            ModelError: a word that is not in the vocabulary, or no such expression. The error
                names the part that cannot be read, and its position.
        """
        spelled = map(str, range(words)) if isinstance(words, int) else words
        known = {word: number for number, word in enumerate(spelled)}

        def meant(atom: str) -> Iterable[int] | None:
            if atom == ".":
                return None
            word = re.sub(r"\\(.)", r"\1", atom)
            if word not in known:
                raise ModelError(
                    f"Pattern got the word {word!r:.80}, which is not in the vocabulary of "
                    f"{len(known)} words."
                )
            return (known[word],)

        return cls._of(by_words(expression), len(known), meant)

    @classmethod
    def spelled(cls, expression: str, tokens: Sequence[str]) -> "Pattern":
        """The sequences of tokens whose text, joined, matches a regular expression of characters.

        They are all ways to cut the text into tokens; empty tokens are in none of them. The
        expression is one of Python's `re`, and the text matches where ``re.fullmatch`` says so:
        characters, escapes, classes, groups, alternatives, repetition (greedy or lazy), comments,
        and the flags ``a``, ``i``, ``s``, ``u`` and ``x``, for all or within ``(?i:...)``. A ``.``
        is any character but a newline, unless ``(?s)`` is given.

        What looks beyond the characters that it takes is refused: anchors, word boundaries,
        lookahead and lookbehind, backreferences, conditional groups, possessive repetition and
        atomic groups.

        Args:
            expression: such as ``"[A-Z][a-z]+( [a-z]+){3}"``.
            tokens: the text of each, spaces included, in the order of the vocabulary.

        Raises:
            ModelError: no such expression, or one that is not supported. The error names the part
                that cannot be read, its position, and what to write in its place.
        """
        letters = sorted(set(expression).union(*tokens))
        numbers = {letter: number for number, letter in enumerate(letters)}

        def meant(atom: str) -> Iterable[int]:
            fits = re.compile(atom).fullmatch
            return [number for letter, number in numbers.items() if fits(letter)]

        by_letter = cls._of(by_letters(expression), len(letters), meant)
        dead = len(by_letter.arcs)
        # A column that stays where it is, for what is beyond the end of a token.
        stay = torch.arange(dead + 1).unsqueeze(1)
        rows = torch.cat([by_letter.table(), torch.full((1, len(letters)), dead)])
        rows = torch.cat([rows, stay], 1)
        codes = [torch.tensor([numbers[letter] for letter in token]).long() for token in tokens]
        place = stay.repeat(1, len(tokens))
        for column in torch.nn.utils.rnn.pad_sequence(codes, padding_value=len(letters)):
            place = rows[place, column]
        place[:, [number for number, token in enumerate(tokens) if not token]] = dead
        common = place.mode(1).values
        arcs: list[dict[int, int]] = []
        for row, other in zip(place, common, strict=True):
            named = (row != other).nonzero().flatten()
            arcs.append(dict(zip(named.tolist(), row[named].tolist(), strict=True)))
        accepted = [*by_letter.accepted, False]
        return cls(len(tokens), arcs, common.tolist(), accepted)._smallest()

    @classmethod
    def _of(
        cls, tree: Tree, vocabulary: int, meant: Callable[[str], Iterable[int] | None]
    ) -> "Pattern":  # fmt: skip
        """The pattern of an expression; ``meant`` gives the words of an atom, None for any."""
        parts = [cls._of(part, vocabulary, meant) for part in tree.parts]
        if tree.atom:
            return cls._word(vocabulary, meant(tree.atom))
        if tree.copies is not None:
            return parts[0].repeated(*tree.copies)
        if tree.either:
            return reduce(operator.or_, parts)
        empty = cls.one_of([()], vocabulary)
        return reduce(lambda rest, part: part + rest, reversed(parts), empty)

    @classmethod
    def one_of(cls, sequences: Iterable[Sequence[int]], vocabulary: int) -> "Pattern":
        """The given sequences of words and no others, by their trie.

        Raises:
            ModelError: a word out of range.
        """
        trie: list[dict[int, int]] = [{}, {}]  # state 1 is that of no return
        ends: set[int] = set()
        for sequence in sequences:
            place = 0
            for word in map(int, sequence):
                if not 0 <= word < vocabulary:
                    raise ModelError(
                        f"Pattern of {vocabulary} words needs words 0 to {vocabulary - 1}; got "
                        f"{word}."
                    )
                if word not in trie[place]:
                    trie[place][word] = len(trie)
                    trie.append({})
                place = trie[place][word]
            ends.add(place)
        accepted = [place in ends for place in range(len(trie))]
        return cls(vocabulary, trie, [1] * len(trie), accepted)._smallest()

    @classmethod
    @typed(vocabulary="[1, inf)")
    def containing(cls, phrases: Iterable[Sequence[int]], vocabulary: int) -> "Pattern":
        """Return the pattern of sequences in which at least one of some phrases occurs.

        Its complement ``~`` has the sequences without any of them. For sequences that have all of
        them, join a pattern for each by ``&``.

        Raises:
            ModelError: a word out of range.
        """
        anything = cls._word(vocabulary, None).repeated()
        return anything + cls.one_of(phrases, vocabulary) + anything

    def automaton(self, length: int, *, dtype: torch.dtype | None = None) -> Automaton:
        """The sequences of so many words, as a potential: log-value 0, else -inf.

        Raises:
            ModelError: a length below 1.
        """
        log_accept = torch.where(torch.tensor(self.accepted), 0.0, -math.inf)
        log_accept = log_accept.to(dtype or torch.get_default_dtype())
        return Automaton(self.table(), log_accept, length)

    def table(self) -> Tensor:
        """(Q, V) the next state from each state, by each word."""
        rows = torch.tensor(self.others).unsqueeze(1).repeat(1, self.vocabulary)
        for row, named in zip(rows, self.arcs, strict=True):
            row[list(named)] = torch.tensor(list(named.values()), dtype=torch.long)
        return rows

    def ended(self, end: int) -> "Pattern":
        """These sequences, less those with a word ``end`` in them, and then that word alone.

        Sequences of up to so many words then are those of one length.
        """
        word = type(self)._word(self.vocabulary, (end,))
        return (self & ~type(self).containing([[end]], self.vocabulary)) + word.repeated(1)

    def repeated(self, least: int = 0, most: int | None = None) -> "Pattern":
        """Repetitions of these sequences, from ``least`` to ``most`` times; None: unbounded.

        Raises:
            ModelError: no such numbers.
        """
        if not is_whole(least) or not (most is None or is_whole(most, max(1, least))):
            raise ModelError(f"Pattern needs 0 <= least <= most; got {least!r} and {most!r}.")
        empty = type(self).one_of([()], self.vocabulary)
        result = self._star() if most is None else empty
        for copy in range(least if most is None else most, 0, -1):
            result = self + result
            result = result if copy <= least else result | empty
        return result

    def __add__(self, other: "Pattern") -> "Pattern":
        self._alike(other)

        def entered(place: int, inside: Inside) -> tuple[int, Inside]:
            """State of the first, and those of the second, which is begun where the first ends."""
            return place, inside | {0} if self.accepted[place] else inside

        return _explored(
            self.vocabulary,
            entered(0, frozenset()),
            lambda state: self._named(state[:1]) | other._named(state[1]),
            lambda state, word: entered(self._next(state[0], word), other._moved(state[1], word)),
            lambda state: any(other.accepted[place] for place in state[1]),
        )

    def __and__(self, other: "Pattern") -> "Pattern":
        return self._beside(other, operator.and_)

    def __or__(self, other: "Pattern") -> "Pattern":
        return self._beside(other, operator.or_)

    def __invert__(self) -> "Pattern":
        return replace(self, accepted=tuple(not accepted for accepted in self.accepted))

    def _beside(self, other: "Pattern", decided: Callable[[bool, bool], bool]) -> "Pattern":
        self._alike(other)

        return _explored(
            self.vocabulary,
            (0, 0),
            lambda state: self._named(state[:1]) | other._named(state[1:]),
            lambda state, word: (self._next(state[0], word), other._next(state[1], word)),
            lambda state: decided(self.accepted[state[0]], other.accepted[state[1]]),
        )

    def _star(self) -> "Pattern":
        def ended(inside: Inside) -> bool:
            return any(self.accepted[place] for place in inside)

        def entered(inside: Inside) -> tuple[Inside, bool]:
            """States inside of a copy, and False: something was read."""
            return (inside | {0} if ended(inside) else inside), False

        return _explored(
            self.vocabulary,
            (frozenset({0}), True),
            lambda state: self._named(state[0]),
            lambda state, word: entered(self._moved(state[0], word)),
            lambda state: state[1] or ended(state[0]),
        )

    @classmethod
    def _word(cls, vocabulary: int, words: Iterable[int] | None) -> "Pattern":
        """The pattern of one word among some; None: any word."""
        arcs = {} if words is None else dict.fromkeys(words, 1)
        others = (1 if words is None else 2, 2, 2)
        return cls(vocabulary, (arcs, {}, {}), others, (False, True, False))._smallest()

    def _smallest(self) -> "Pattern":
        return _explored(
            self.vocabulary, 0, self.arcs.__getitem__, self._next, self.accepted.__getitem__
        )

    def _alike(self, other: "Pattern") -> None:
        if self.vocabulary != other.vocabulary:
            raise ModelError(
                "Patterns can be joined over one vocabulary only; got those of "
                f"{self.vocabulary} and {other.vocabulary} words."
            )

    def _next(self, place: int, word: int | None) -> int:
        """After a word, or after one that is named nowhere."""
        other = self.others[place]
        return other if word is None else self.arcs[place].get(word, other)

    def _named(self, places: Iterable[int]) -> set[int]:
        return {word for place in places for word in self.arcs[place]}

    def _moved(self, places: Iterable[int], word: int | None) -> Inside:
        """Without the state of no return, which would tell equal sets apart."""
        return frozenset(self._next(place, word) for place in places) - self._lost

    @cached_property
    def _lost(self) -> set[int]:
        """The state of no return; there is one at most."""
        each = enumerate(zip(self.arcs, self.others, self.accepted, strict=True))
        return {at for at, (arcs, other, end) in each if other == at and not arcs and not end}


def _explored(
    vocabulary: int, start: Hashable, named: Callable[[Any], Iterable[int]],
    after: Callable[[Any, int | None], Hashable], accepted: Callable[[Any], bool],
) -> Pattern:  # fmt: skip
    """The smallest automaton of the states that are reached, by named words and by others: None."""
    numbers, order = {start: 0}, [start]
    arcs: list[dict[int, int]] = []
    others: list[int] = []

    def number(state: Hashable) -> int:
        if state not in numbers:
            numbers[state] = len(order)
            order.append(state)
        return numbers[state]

    for state in order:  # which grows
        arc = {word: number(after(state, word)) for word in named(state)}
        full = len(arc) == vocabulary  # then there are no others
        others.append(next(iter(arc.values())) if full else number(after(state, None)))
        arcs.append(arc)
    # States are told apart by what follows, one word further in each round.
    kinds, count = [int(accepted(state)) for state in order], 0
    while True:
        seen: dict[Any, int] = {}
        following: list[int] = []
        for kind, arc, other in zip(kinds, arcs, others, strict=True):
            moves = {word: kinds[to] for word, to in arc.items() if kinds[to] != kinds[other]}
            key = kind, kinds[other], frozenset(moves.items())
            following.append(seen.setdefault(key, len(seen)))
        if len(seen) == count:
            break
        kinds, count = following, len(seen)
    first = {kind: place for place, kind in reversed(list(enumerate(kinds)))}
    kept = [first[kind] for kind in range(count)]
    return Pattern(
        vocabulary,
        [
            {w: kinds[a] for w, a in arcs[at].items() if kinds[a] != kinds[others[at]]}
            for at in kept
        ],
        [kinds[others[at]] for at in kept],
        [accepted(order[at]) for at in kept],
    )
