"""Tables of BIF files of the usual form, read many at a time; what differs is left to others."""

import re
from collections.abc import Iterable, Mapping, Sequence
from operator import getitem

import numpy as np
from numpy.typing import NDArray

from rdpgraph.io.tokens import non_negative

Array = NDArray[np.float64]

TABLE = re.compile(rb"\s*table\s([0-9eE+.,\s-]*+);?\s*")
_MARKS = (b"(", b")", b";")
_UNUSUAL = b'"/[]|{}\x1c\x1d\x1e\x1f'  # quotes, comments, and what stands between words elsewhere


def rows_of(
    text: bytes, count: int, codes: Sequence[tuple[Iterable[Mapping[bytes, int]], int]], size: int
) -> tuple[NDArray[np.int64], Array] | None:
    """Rows ``(names) probabilities;``: (R,) their numbers and (R, size) the probabilities.

    Args:
        text: the rows.
        count: how many there are.
        codes: for each parent the numbers of its states, row by row, and their stride.
        size: how many probabilities are in a row.

    Returns:
        None for a text that is anything else, or that may be.
    """
    if any(text.count(mark) != count for mark in _MARKS):
        return None
    if len(text.translate(None, _UNUSUAL)) < len(text):
        return None
    for mark in (b",", *_MARKS):
        text = text.replace(mark, b" " if mark == b"," else b" " + mark + b" ")
    words = text.split()
    parents = len(codes)
    width = parents + size + 3
    if len(words) != count * width:
        return None
    for place, mark in zip((0, parents + 1, width - 1), _MARKS, strict=True):
        if words[place::width].count(mark) != count:
            return None
    numbers = np.zeros(count, dtype=np.int64)
    try:
        for place, (states, stride) in enumerate(codes, 1):
            known = map(getitem, states, words[place::width])
            numbers += stride * np.fromiter(known, dtype=np.int64, count=count)
    except KeyError:
        return None
    values = np.empty((count, size))
    for state in range(size):
        column = non_negative(words[parents + 2 + state :: width])
        if column is None:
            return None
        values[:, state] = column
    return numbers, values


def tables_of(texts: Sequence[bytes], size: int, rows: int) -> Array | None:
    """(B, size, rows) the probabilities of texts ``table probabilities;``; None for any others."""
    if not all(map(TABLE.fullmatch, texts)):
        return None
    text = b"}".join(texts).replace(b",", b" ").replace(b";", b" ; ").replace(b"}", b" } ")
    words, count = text.split(), size * rows
    width = (len(words) + 1) // len(texts)
    marks = [(0, b"table"), (count + 1, b";"), (width - 1, b"}")]
    if width == count + 2:  # no semicolons
        del marks[1]
    if len(words) != width * len(texts) - 1 or width != count + len(marks):
        return None
    for place, mark in marks[::-1]:
        if words[place::width].count(mark) != len(texts) - (mark == b"}"):
            return None
    for left, (place, _) in zip((width, width - 1, width - 2), marks[::-1], strict=False):
        del words[place::left]
    values = non_negative(words)
    return None if values is None else values.reshape(len(texts), size, rows)


def listed_of(
    texts: Sequence[bytes],
    size: int,
    rows: int,
    codes: Sequence[tuple[Sequence[Mapping[bytes, int]], int]],
) -> Array | None:
    """(B, size, rows) the probabilities of texts of all rows of a block each; None for others.

    Args:
        texts: the rows of each block.
        size: how many probabilities are in a row.
        rows: how many rows are in a block.
        codes: for each parent the numbers of its states, block by block, and their stride.
    """
    if any(text.count(b";") != rows for text in texts):
        return None
    spread = [([of for of in each for _ in range(rows)], stride) for each, stride in codes]
    read = rows_of(b"".join(texts), len(texts) * rows, spread, size)
    if read is None:
        return None
    numbers = read[0].reshape(len(texts), rows)
    if (np.sort(numbers, axis=1) != np.arange(rows)).any():
        return None
    values = np.empty((len(texts), rows, size))
    np.put_along_axis(values, numbers[..., None], read[1].reshape(values.shape), 1)
    return values.transpose(0, 2, 1)
