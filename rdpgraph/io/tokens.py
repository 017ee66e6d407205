"""The tokens of a file of numbers, with the places that error messages need."""

import math
import re
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from rdpgraph.io.text import fail, shown

_COMMENT = re.compile(r"#[^\n]*|//[^\n]*|^[ \t]*c(?:[ \t\r][^\n]*)?$", re.MULTILINE)
_WORD = re.compile(r"\S+")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


@dataclass(frozen=True, eq=False)
class Numbers:
    """The numbers of a file, after a heading of some words.

    Attributes:
        source: the file's name, for messages.
        text: the file without its comments; its lines keep their numbers.
        heading: the words before the numbers.
        values: (N,) float64, all finite.
    """

    source: str
    text: str
    heading: tuple[str, ...]
    values: NDArray[np.float64]

    def fail(self, place: int, expected: str) -> NoReturn:
        """Raise an error about the number at a place, or about the end of the file."""
        place += len(self.heading)
        for at, match in enumerate(_WORD.finditer(self.text)):
            if at == place:
                line = self.text.count("\n", 0, match.start()) + 1
                where = f"line {line}, token {place + 1}"
                fail(self.source, f"{where}: expected {expected}, got {shown(match[0])}.")
        end = len(self.heading) + len(self.values)
        fail(self.source, f"token {end + 1}: expected {expected}, got the end of the file.")

    def whole(self, place: int, expected: str, most: float = math.inf) -> int:
        """The number at a place, which must be a whole number from 0 to ``most``."""
        value = self.values[place] if place < len(self.values) else -1.0
        if not 0 <= value <= min(most, 2.0**53) or value % 1:
            self.fail(place, expected if most == math.inf else f"{expected} up to {most}")
        return int(value)

    def check(self, good: NDArray[np.bool_], places: NDArray[np.int64], expected: str) -> None:
        """Raise an error about the first number that is not good."""
        if not good.all():
            self.fail(int(places[~good].min()), expected)


def read_numbers(text: str, source: str, *, kinds: tuple[str, ...] = ()) -> Numbers:
    """Every number of a text, ``#``, ``//`` and ``c`` comments left out, in one pass.

    Args:
        text: the file.
        source: its name, for messages.
        kinds: the words of which one, in any case, must come before the numbers; none by default.

    Raises:
        FileFormatError: another first word, or a token after it that is not a finite number.
    """
    if "#" in text or "//" in text or "c" in text:
        text = _COMMENT.sub("", text)
    words = text.split()
    head, body = (tuple(words[:1]), words[1:]) if kinds else ((), words)
    if kinds and (not head or head[0].upper() not in kinds):
        got = f"got {shown(head[0])}" if head else "the file is empty"
        fail(source, f"token 1: expected {' or '.join(kinds)}; {got}.")
    clean = "_" not in text and text.isascii()  # float() takes more than a file may say
    try:
        values = np.fromiter(map(float, body), dtype=np.float64, count=len(body))
        clean = clean and bool(np.isfinite(values).all())
    except ValueError:
        values, clean = np.zeros(len(body)), False
    numbers = Numbers(source, text, head, values)
    if not clean:
        for place, word in enumerate(body):
            if not is_number(word):
                numbers.fail(place, "a finite number")
    return numbers


def is_number(word: str) -> bool:
    """Whether a word is a finite decimal number."""
    return _NUMBER.fullmatch(word) is not None and math.isfinite(float(word))
