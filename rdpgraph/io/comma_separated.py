"""Rows of comma-separated values: states written as text, and read back as the same states."""

import csv
import json
from collections.abc import Callable, Iterator
from io import BytesIO, TextIOWrapper
from itertools import islice
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph._core.once import warn_once
from rdpgraph.errors import EvidenceError, ModelError
from rdpgraph.io.text import Bytes, detected_encoding, fail
from rdpgraph.io.tokens import is_number
from rdpgraph.model.domain import Domain
from rdpgraph.model.evidence import MISSING
from rdpgraph.model.variable import State, States, names_of, state_index

GAPS = "", "?", "*", "NA", "NaN", "nan", "null"
"""Texts of missing values, unless a state has such a name; so is -1, with a warning."""
_NEEDS_QUOTES = frozenset(',"\r\n')


def parse_rows(data: Bytes, domain: Domain, *, source: str) -> dict[str, Tensor]:
    r"""Read rows of comma-separated values: for each column the states, (rows,), -1 where missing.

    The first line names the variables. A field is the name of a state, as text: nothing is taken
    for a number or a truth value, and blanks belong to it. Where states have no names, a field is
    the number of a state. In a table of one column, an empty line between rows is a missing value;
    other empty lines are skipped.

    Args:
        data: the content of the file.
        domain: the variables of the model.
        source: the file's name, for messages.

    Raises:
        FileFormatError: no such table, a column that is no variable, or a field that is no state;
            the message gives the row, counted from 0, and the line.

    Example:
        >>> from rdpgraph import Variable
        >>> rain = Variable("rain", ("True", "False"))
        >>> parse_rows(b"rain\nTrue\n?\nFalse\n", Domain.of([rain]), source="days.csv")
        {'rain': tensor([ 0, -1,  1], dtype=torch.int8)}
    """
    reader = _reader(data)
    try:
        columns = _columns(_names(reader), domain, source)
        rows, count = _filled(reader, len(columns)), 0
        while piece := list(islice(rows, tuning.PIECE)):
            # Rows of another length come first, because they would shift the other columns.
            lengths = list(map(len, piece))
            if lengths.count(len(columns)) < len(piece):
                wrong = next(at for at, length in enumerate(lengths) if length != len(columns))
                kind = "more" if lengths[wrong] > len(columns) else "fewer"
                message = f"a row has {kind} fields than the first line, {lengths[wrong]} and not"
                _fail_at_row(data, source, count + wrong, f"{message} {len(columns)}.")
            for column, texts in zip(columns, zip(*piece, strict=True), strict=True):
                try:
                    column.read(texts)
                except EvidenceError as error:
                    wrong = next(at for at, text in enumerate(texts) if text not in column)
                    _fail_at_row(data, source, count + wrong, str(error))
            count += len(piece)
    except csv.Error as error:
        line = reader.line_num
        fail(source, f"not a table of comma-separated values; line {line}: {error}.")
    for column in columns:
        if column.get(str(MISSING)) == MISSING:
            warn_once(
                f"{source}: -1 is no state of {column.name!r}, and is read as a missing value; "
                "leave the field empty where a value is missing."
            )
    if not count:
        fail(source, "there are no rows below the names of the columns.")
    return {column.name: column.states() for column in columns}


class _Column(dict[str, int]):
    """A column: the state for each text that occurred, -1 for a gap, and the states of its rows."""

    def __init__(self, name: str, states: States) -> None:
        named = {} if isinstance(states, int) else {str(s): i for i, s in enumerate(states)}
        super().__init__(dict.fromkeys(GAPS, MISSING) | named)
        self.name, self._states = name, states
        size = states if isinstance(states, int) else len(states)
        self._kind = np.min_scalar_type(-size)
        self._pieces: list[NDArray[Any]] = [np.empty(0, self._kind)]

    def __missing__(self, text: str) -> int:
        if text == str(MISSING):
            return self.setdefault(text, MISSING)
        state: int | str = text
        if isinstance(self._states, int) and is_number(text.strip()) and float(text) % 1 == 0:
            state = int(float(text))  # pandas writes 1.0 next to missing values
        self[text] = index = state_index(self.name, self._states, state)
        return index

    def read(self, texts: tuple[str, ...]) -> None:
        """Append rows; raises `EvidenceError` for a text that is no state."""
        self._pieces.append(np.fromiter(map(self.__getitem__, texts), self._kind, len(texts)))

    def states(self) -> Tensor:
        """(rows,) the states of all rows."""
        return torch.from_numpy(np.concatenate(self._pieces))


def _reader(data: Bytes) -> Any:
    """A reader of a text's rows; line ends within quotes stay as they are."""
    lines = TextIOWrapper(BytesIO(data), detected_encoding(data), newline="")
    return csv.reader(lines, strict=True)


def _names(reader: Any) -> list[str]:
    """The fields of the first line that is not empty."""
    return next(filter(None, reader), [])


def _columns(names: list[str], domain: Domain, source: str) -> list[_Column]:
    """The columns that the first line names."""
    if not names:
        fail(source, "not a table of comma-separated values; expected the variables' names first.")
    columns: dict[str, _Column] = {}
    for name in names:
        if name in columns:
            fail(source, f"Column {name!r} occurs twice; drop one of them, or rename it.")
        try:
            domain.number(name)
        except ModelError as error:
            fail(source, f"Column {name!r} is no variable of the model; drop it. {error}")
        columns[name] = _Column(name, domain.states_of(name))
    return list(columns.values())


def _filled(reader: Any, width: int) -> Iterator[list[str]]:
    """The rows of a reader; in a table of one column, an empty line before another row is one."""
    empty = 0
    for row in reader:
        if not row:
            empty += width == 1
            continue
        for _ in range(empty):
            yield [""]
        empty = 0
        yield row


def _fail_at_row(data: Bytes, source: str, row: int, message: str) -> NoReturn:
    """Raise an error about a row, whose line is found by reading the text again."""
    reader = _reader(data)
    rows = _filled(reader, len(_names(reader)))
    next(islice(rows, row, None))
    fail(source, f"row {row} (line {reader.line_num}): {message}")


def format_rows(states: Tensor, domain: Domain) -> str:
    r"""The text of rows of states (rows, V) as comma-separated values, which `parse_rows` reads.

    Example:
        >>> from rdpgraph import Variable
        >>> domain = Domain.of([Variable("x", ("a, b", "c")), Variable("y", 2)])
        >>> format_rows(torch.tensor([[0, 1], [1, 0]]), domain)
        'x,y\n"a, b",1\nc,0\n'
    """
    names = ",".join(_field(domain.variable(number).name) for number in range(domain.count))
    lines = _lines(states, domain, lambda _, state: _field(str(state)))
    return "\n".join([names, *lines, ""])


def format_records(states: Tensor, domain: Domain) -> str:
    r"""The text of rows of states (rows, V) as a JSON list of objects.

    Example:
        >>> from rdpgraph import Variable
        >>> format_records(torch.tensor([[0], [1]]), Domain.of([Variable("x", ("a", "b"))]))
        '[{"x":"a"},{"x":"b"}]\n'
    """
    lines = _lines(states, domain, lambda name, state: f"{json.dumps(name)}:{json.dumps(state)}")
    return f"[{','.join(f'{{{line}}}' for line in lines)}]\n"


def _lines(states: Tensor, domain: Domain, written: Callable[[str, State], str]) -> Iterator[str]:
    """For each row the text of its states, with commas between them."""
    variables = map(domain.variable, range(domain.count))
    texts = [[written(v.name, state) for state in names_of(v.states)] for v in variables]
    for piece in states.split(tuning.PIECE):
        columns = [
            map(known.__getitem__, column)
            for known, column in zip(texts, piece.T.tolist(), strict=True)
        ]
        yield from map(",".join, zip(*columns, strict=True))


def _field(text: str) -> str:
    """A field of one line; quoted where it would be read as something else."""
    if text and _NEEDS_QUOTES.isdisjoint(text):
        return text
    return '"' + text.replace('"', '""') + '"'
