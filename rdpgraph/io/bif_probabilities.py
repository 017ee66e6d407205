"""The table of one probability block of a BIF file."""

import math
from array import array
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from rdpgraph._cache import cached_property
from rdpgraph.io.bif_batches import TABLE, rows_of
from rdpgraph.io.bif_tokens import (
    PIECE,
    Tokens,
    find_token,
    name_lists,
    next_token,
    pieces,
    statements,
)
from rdpgraph.io.text import Bytes
from rdpgraph.io.tokens import is_number, non_negative
from rdpgraph.model.compact import CompactVariables, StateLists
from rdpgraph.model.conditional import is_conditional
from rdpgraph.model.names import CODEC

Array = NDArray[np.float64]

MOST_BY_DEFAULT = 1 << 24
"""Table entries that the `default` lines of a file may stand for."""


@dataclass(frozen=True)
class Scope:
    """The child of a block and its parents."""

    variables: CompactVariables
    lists: StateLists
    numbers: "array[int]"

    @property
    def child(self) -> str:
        """The name of the child."""
        return self.variables.names.entry(self.numbers[0])

    @property
    def sizes(self) -> list[int]:
        """Of the child and its parents."""
        return [int(self.variables.sizes[number]) for number in self.numbers]

    def states(self) -> list[Mapping[bytes, int]]:
        """For each parent the numbers of its states."""
        return [self.lists.places(self.variables.list_of(number)) for number in self.numbers[1:]]

    def codes(self) -> list[tuple[Mapping[bytes, int], int]]:
        """The same, and what they are multiplied by in the number of a row."""
        return list(zip(self.states(), strides_of(self.sizes[1:]), strict=True))


def strides_of(sizes: Sequence[int]) -> list[int]:
    """For each dim how far apart its neighbours are; the last is the fastest."""
    return [math.prod(sizes[dim + 1 :]) for dim in range(len(sizes))]


class Probabilities:
    """The table of a block, (child, *parents), as its statements give it.

    Args:
        data: the file.
        source: its name, for messages.
        scope: the child and its parents.
        start: where the text in its braces begins.
        end: where it ends.
        values: the flat table, to be filled; None for one that the text cannot fill.
    """

    def __init__(
        self,
        data: Bytes,
        source: str,
        scope: Scope,
        start: int,
        end: int,
        values: Array | None,
    ) -> None:
        self._data, self._source, self._scope = data, source, scope
        self._start, self._end, self._values = start, end, values
        self._size, *parents = scope.sizes
        self._rows, self._parents = math.prod(parents), len(parents)
        self._listed: defaultdict[int, int] | bytearray = (
            defaultdict(int) if values is None else bytearray(self._rows)
        )
        self._count = 0
        self._default: Array | None = None
        self._whole = False
        self._sums = True

    def read(self, budget: int) -> int:
        """Fill the table; the number of entries that only ``default`` gives, within the budget."""
        if not self._read_numbers_alone():
            for start, end in statements(self._data, self._start, self._end):
                if end - start > PIECE:
                    self._read_long(start, end)
                elif not self._read_rows(start, end):
                    self._read_statements(Tokens.of(self._data, self._source, start, end))
        unlisted = self._filled(budget)
        if self._whole and self._values is not None:
            table = self._values.reshape(self._size, self._rows)
            for at in range(0, self._rows, PIECE):
                self._sums &= is_conditional(table[:, at : at + PIECE], 0)
        if not self._sums:
            expected = f"probabilities of {self._scope.child!r} that sum to 1"
            Tokens(self._source, self._data, self._start, []).fail(0, expected)
        return unlisted

    def _filled(self, budget: int) -> int:
        after = Tokens(self._source, self._data, self._end, [])
        rows, default, child = self._rows, self._default, self._scope.child
        if self._whole and not self._count and default is None:
            return 0
        unlisted = (rows - self._count) * self._size
        if self._whole or (unlisted and default is None):
            after.fail(0, f"{rows} rows of {child!r} (there are {self._count})")
        if unlisted > budget:
            after.fail(0, f"rows of {child!r} rather than a default for {unlisted}")
        listed = self._listed
        if self._values is not None and default is not None and isinstance(listed, bytearray):
            lacking = np.frombuffer(listed, dtype=np.uint8) == 0
            for state, row in enumerate(self._values.reshape(self._size, rows)):
                np.copyto(row, default[state], where=lacking)
        return unlisted

    def _read_numbers_alone(self) -> bool:
        """Read a block that is one ``table`` of numbers, if it is, without its tokens."""
        values = self._values
        match = TABLE.fullmatch(self._data, self._start, self._end)
        if match is None or values is None:
            return False
        (at, end), filled = match.span(1), 0
        while at < end:
            cut = min(self._data.find(b",", min(at + PIECE, end), end) % (end + 1) + 1, end)
            words = bytes(self._data[at:cut]).replace(b",", b" ").split()
            if filled + len(words) > len(values):
                return False
            try:
                values[filled : filled + len(words)] = list(map(float, words))
            except ValueError:
                return False
            filled += len(words)
            at = cut
        self._whole = filled == len(values) and bool(values.min() >= 0 and values.max() < math.inf)
        return self._whole

    def _read_rows(self, start: int, end: int) -> bool:
        """Read a part that consists of rows of the usual form, if it does."""
        text, listed = bytes(self._data[start:end]), self._listed
        if self._values is None or not isinstance(listed, bytearray) or b"(" not in text:
            return False
        codes = [(repeat(states), stride) for states, stride in self._codes]
        read = rows_of(text, text.count(b";"), codes, self._size)
        if read is None:
            return False
        numbers, values = read
        ranked, known = np.sort(numbers), np.frombuffer(listed, dtype=np.uint8)
        if (ranked[1:] == ranked[:-1]).any() or known[numbers].any():
            return False
        known[numbers] = 1
        self._count += len(numbers)
        self._take_rows(numbers, values)
        return True

    def _read_statements(self, tokens: Tokens) -> None:
        at, end, words, places = 0, len(tokens.words), list[bytes](), list[int]()
        while at < end:
            head = tokens.words[at]
            stop = _statement_end(tokens, at, end)
            if head == b"(":
                close = tokens.find(b")", at, stop)
                names = tokens.names(at + 1, close, self._parents, self._what)
                places.append(self._row(tokens, at, names))
                words += _numbers(tokens, close + 1, stop, self._size)
            elif head == b"default" and self._default is None:
                numbers = _numbers(tokens, at + 1, stop, self._size)
                self._take_default(_probabilities(tokens, numbers))
            elif head == b"table" and not self._whole:
                numbers = _numbers(tokens, at + 1, stop, self._size * self._rows)
                self._take_table(_probabilities(tokens, numbers))
            elif head != b"property":
                self._fail_at_statement(tokens, at)
            at = stop + 1
        self._take_rows(places, _probabilities(tokens, words))

    def _read_long(self, start: int, end: int) -> None:
        """Read a single statement, of more than a piece, without all of its tokens at once."""
        data, source = self._data, self._source
        tokens = Tokens(source, data, start, [])
        head = next_token(data, start)
        if head is None or head.start() >= end or head[0] in (b"property", b";"):
            return
        if head[0] == b"(":
            close = find_token(data, head.end(), end, b")", b";")
            if close is None or close[0] != b")":
                place = end if close is None else close.start()
                Tokens(source, data, place, []).fail(0, "')'")
            span = head.end(), close.start()
            listed = name_lists(data, source, *span, self._parents, self._what)
            place = self._row(tokens, 0, list(chain.from_iterable(listed)))
            self._take_rows([place], self._read_numbers(close.end(), end, self._size))
        elif head[0] == b"default" and self._default is None:
            self._take_default(self._read_numbers(head.end(), end, self._size))
        elif head[0] == b"table" and not self._whole:
            self._take_table(self._read_numbers(head.end(), end, self._size * self._rows))
        else:
            self._fail_at_statement(tokens, 0)

    def _read_numbers(self, start: int, end: int, count: int) -> Array:
        """The probabilities of a span, in the table itself if they are all of it."""
        own = self._values
        if own is None or count != len(own) or self._count:
            own = np.empty(count if 2 * count <= end - start + 1 else 0)
        seen, wrong = 0, None
        for part in pieces(self._data, self._source, start, end):
            words = [word for word in part.words if word not in (b",", b";")]
            if wrong is None and seen + len(words) <= len(own):
                values = non_negative(words)
                if values is None:
                    wrong = part, words
                else:
                    own[seen : seen + len(words)] = values
            seen += len(words)
        if seen != count:
            tokens = Tokens(self._source, self._data, start, [])
            tokens.fail(0, f"{count} probabilities here (there are {seen})")
        if wrong is not None:
            _probabilities(*wrong)
        return own

    def _take_rows(self, places: Sequence[int] | NDArray[np.int64], values: Array) -> None:
        if not len(places):
            return
        rows = values.reshape(-1, self._size)
        self._sums &= is_conditional(rows, 1)
        if self._values is not None:
            self._values.reshape(self._size, self._rows)[:, places] = rows.T

    def _take_default(self, values: Array) -> None:
        self._default = values
        self._sums &= is_conditional(values, 0)

    def _take_table(self, values: Array) -> None:
        self._whole = True
        if self._values is not None and self._values is not values:
            self._values[:] = values

    def _row(self, tokens: Tokens, at: int, names: Sequence[bytes]) -> int:
        """The number of the row of some states, not listed before."""
        try:
            pairs = zip(self._codes, names, strict=True)
            row = sum(stride * states[name] for (states, stride), name in pairs)
        except KeyError as error:
            state = error.args[0].decode(*CODEC)
            tokens.fail(at, f"states of {self._scope.child!r}'s parents (one has no {state!r})")
        if self._listed[row]:
            tokens.fail(at, f"a row that {self._scope.child!r} has not listed yet")
        self._listed[row] = 1
        self._count += 1
        return row

    @cached_property
    def _codes(self) -> list[tuple[Mapping[bytes, int], int]]:
        return self._scope.codes()

    @property
    def _what(self) -> str:
        return f"states of {self._scope.child!r}'s parents"

    def _fail_at_statement(self, tokens: Tokens, at: int) -> NoReturn:
        tokens.fail(at, f"a row, table or default of {self._scope.child!r} (one of each)")


def _statement_end(tokens: Tokens, at: int, end: int) -> int:
    try:
        return tokens.words.index(b";", at, end)
    except ValueError:
        return end  # the last semicolon before a brace may lack


def _numbers(tokens: Tokens, start: int, end: int, count: int) -> list[bytes]:
    words = [word for word in tokens.words[start:end] if word != b","]
    if len(words) != count:
        tokens.fail(start, f"{count} probabilities here (there are {len(words)})")
    return words


def _probabilities(tokens: Tokens, words: Sequence[bytes]) -> Array:
    values = non_negative(words)
    if values is None:
        wrong = next(w for w in words if not is_number(w) or float(w) < 0)
        tokens.fail(tokens.words.index(wrong), "a probability >= 0")
    return values
