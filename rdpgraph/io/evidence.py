"""The UAI formats beside the models: evidence and the queries of marginal MAP."""

import math

from rdpgraph.io.source import WAIT
from rdpgraph.io.text import Bytes, PathLike, read_bytes
from rdpgraph.io.tokens import Numbers

LIMIT = 1 << 25
"""The most bytes of text by default, 32 MiB: a row is a dict, ten times as large as its text."""


def read_evidence(
    path: PathLike, *, limit: int = LIMIT, wait: float = WAIT
) -> list[dict[str, int]]:
    """The rows of an evidence file, each ready for ``graph.condition(row)``.

    Both dialects are read, told apart by the number of tokens: ``n v1 s1 ... vn sn`` (2014, one
    row) and ``samples``, then for each sample ``n v1 s1 ... vn sn`` (2010). An empty file and a
    lone 0 are one row without evidence.

    Args:
        path: the file, plain or gzipped.
        limit: the most bytes of text, unpacked.
        wait: how long a pipe may be silent, in seconds.

    Returns:
        At least one row: {variable: state}, the variables named as `read_uai` names them.

    Raises:
        FileFormatError: with the line and the token that do not fit.
    """
    return parse_evidence(read_bytes(path, limit=limit, wait=wait), source=str(path))


def parse_evidence(text: str | Bytes, *, source: str = "<text>") -> list[dict[str, int]]:
    """The rows of an evidence file's text; see `read_evidence`.

    Example:
        >>> parse_evidence("2  0 1  3 0"), parse_evidence("2  1 0 1  1 0 0")
        ([{'0': 1, '3': 0}], [{'0': 1}, {'0': 0}])
    """
    listed = _Listed(text, source)
    if listed.end == 0:
        return [{}]
    count = listed.whole(0, "a number of observed variables, or of samples", listed.end - 1)
    if listed.end == 1 + 2 * count:
        return [_row(listed, 0)[0]]
    rows: list[dict[str, int]] = []
    at = 1
    for _ in range(count):
        row, at = _row(listed, at)
        rows.append(row)
    if at < listed.end:
        expected = f"the end of the file after {count} samples, or {1 + 2 * count} tokens in all"
        listed.numbers.fail(at, expected)
    return rows


def read_query(path: PathLike, *, limit: int = LIMIT, wait: float = WAIT) -> list[str]:
    """The query variables of a marginal MAP file (``n v1 ... vn``), by name.

    Raises:
        FileFormatError: with the line and the token that do not fit.
    """
    return parse_query(read_bytes(path, limit=limit, wait=wait), source=str(path))


def parse_query(text: str | Bytes, *, source: str = "<text>") -> list[str]:
    """The query variables of a marginal MAP file's text; see `read_query`."""
    listed = _Listed(text, source)
    count = listed.whole(0, "a number of query variables", max(listed.end - 1, 0))
    names: dict[str, None] = {}
    for at in range(1, 1 + count):
        name = str(listed.whole(at, "a variable"))
        if name in names:
            listed.numbers.fail(at, "a variable that the query does not hold yet")
        names[name] = None
    if listed.end > 1 + count:
        listed.numbers.fail(1 + count, f"the end of the file after {count} variables")
    return list(names)


class _Listed:
    """All numbers of a file at once."""

    def __init__(self, text: str | Bytes, source: str) -> None:
        self.numbers = Numbers(text.encode() if isinstance(text, str) else text, source)
        self.end = self.numbers.total
        self._values = self.numbers.take(self.end).data  # quicker, item by item

    def whole(self, place: int, expected: str, most: float = math.inf) -> int:
        """The number at a place, which must be a whole number from 0 to ``most``."""
        value = self._values[place] if place < self.end else -1.0
        return self.numbers.checked_whole(value, place, expected, most)


def _row(listed: _Listed, at: int) -> tuple[dict[str, int], int]:
    """One ``n v1 s1 ... vn sn``, and the place after it."""
    left = (listed.end - at - 1) // 2
    count = listed.whole(at, "a number of observed variables", max(left, 0))
    row: dict[str, int] = {}
    for place in range(at + 1, at + 1 + 2 * count, 2):
        name = str(listed.whole(place, "a variable"))
        state = listed.whole(place + 1, f"a state of variable {name}")
        if row.setdefault(name, state) != state:
            listed.numbers.fail(
                place + 1, f"the state {row[name]} that variable {name} has already"
            )
    return row, at + 1 + 2 * count
