"""Detector error models of stim, and check matrices in files."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

from rdpgraph.errors import FileFormatError, UnsupportedError
from rdpgraph.io.text import read_text

_LINE = re.compile(r"(?P<name>\w+)(\[[^\]]*\])?\s*(\((?P<args>[^)]*)\))?\s*(?P<rest>.*)$")
_TARGET = re.compile(r"([DL]?)(\d+)$")
_MOST = 10_000_000  # errors, detectors and observables of a file


@dataclass(frozen=True)
class DetectorErrors:
    """Errors with the detectors and observables that they flip; one named twice cancels."""

    columns: list[tuple[list[int], list[int]]]
    rates: list[float]
    num_detectors: int
    num_observables: int


def read_detectors(path: str | os.PathLike[str]) -> DetectorErrors:
    """The errors of a ``.dem`` file, as `parse_detectors` reads them."""
    return parse_detectors(read_text(Path(path)), source=str(path))


def parse_detectors(text: str, *, source: str = "A detector error model") -> DetectorErrors:
    """The errors of a detector error model of stim: error, detector, shift, repeat."""
    columns: list[tuple[list[int], list[int]]] = []
    rates: list[float] = []
    counts = {"D": 0, "L": 0}
    lines = [line.split("#")[0].strip() for line in text.splitlines()]

    def refused(number: int, why: str) -> FileFormatError:
        return FileFormatError(f"{source}, line {number + 1}: {why}; got {lines[number]!r:.80}.")

    def run(first: int, stop: int, shift: int) -> int:
        at = first
        while at < stop:
            parts = _LINE.match(lines[at])
            number, at = at, at + 1
            if not lines[number]:
                continue
            if parts is None:
                raise refused(number, "an instruction is wanted")
            name, rest = parts["name"].lower(), parts["rest"].split()
            if name == "repeat":
                if len(rest) != 2 or not rest[0].isdigit() or rest[1] != "{":
                    raise refused(number, "'repeat COUNT {' is wanted")
                end = closing(number, stop)
                for _ in range(int(rest[0])):
                    shift = run(at, end, shift)
                    if len(columns) > _MOST:
                        raise refused(number, f"expected at most {_MOST:,} errors in all")
                at = end + 1
            elif name == "shift_detectors":
                if rest and not rest[0].isdigit():
                    raise refused(number, "expected a number of detectors")
                shift += int(rest[0]) if rest else 0
            elif name in ("error", "detector", "logical_observable"):
                targets = {"D": list[int](), "L": list[int]()}
                for target in rest:
                    read = _TARGET.match(target)
                    if target != "^" and (read is None or not read[1]):
                        raise refused(
                            number, f"targets are D and L with a number, not {target!r:.20}"
                        )
                    if read is not None:
                        place = int(read[2]) + shift * (read[1] == "D")
                        if place >= _MOST:
                            raise refused(number, f"numbers are below {_MOST:,}")
                        targets[read[1]].append(place)
                        counts[read[1]] = max(counts[read[1]], place + 1)
                if name == "error":
                    columns.append((targets["D"], targets["L"]))
                    rates.append(rate(number, parts["args"]))
            else:
                raise refused(number, "expected error, detector, shift_detectors or repeat")
        return shift

    def rate(number: int, args: str | None) -> float:
        try:
            chance = float(args or "")
        except ValueError:
            raise refused(number, "error(PROBABILITY) is wanted") from None
        if not 0 <= chance <= 1:
            raise refused(number, "a probability is from 0 to 1")
        return chance

    def closing(number: int, stop: int) -> int:
        depth = 0
        for at in range(number, stop):
            depth += lines[at].endswith("{") - (lines[at] == "}")
            if not depth:
                return at
        raise refused(number, "a repeat without a closing brace")

    run(0, len(lines), 0)
    return DetectorErrors(columns, rates, counts["D"], counts["L"])


def parse_alist(text: str, *, source: str = "An alist") -> tuple[list[list[int]], int]:
    """The checks of each bit, and their number, of a check matrix in the alist format.

    The text has the numbers of bits and checks, the largest degrees, all degrees, and the checks of
    each bit, from 1; the rest is ignored.
    """
    try:
        numbers = [int(word) for word in text.split()]
    except ValueError:
        raise FileFormatError(
            f"{source} is not an alist file: expected whole numbers only."
        ) from None
    bits, checks, most = (*numbers[:3], 0, 0, 0)[:3]
    first = 4 + bits + checks
    rows = [numbers[first + most * bit : first + most * (bit + 1)] for bit in range(max(bits, 0))]
    degrees = numbers[4 : 4 + max(bits, 0)]
    sound = len(numbers) >= first + most * bits and min(bits, checks, most) > 0
    if not sound or any(not 0 <= check <= checks for row in rows for check in row):
        raise FileFormatError(
            f"{source} is not an alist file: expected the numbers of bits and checks, the two "
            "largest degrees, all degrees, and the checks of each bit, padded with 0."
        )
    columns = [[check - 1 for check in row if check] for row in rows]
    if [len(row) for row in columns] != degrees:
        raise FileFormatError(
            f"{source} is not an alist file: a bit lists another number of checks than its degree."
        )
    return columns, checks


def load_matrix(path: str) -> Any:
    """The sparse matrix of an ``.npz`` file that scipy saved; scipy reads it."""
    try:
        from scipy.sparse import load_npz  # pyright: ignore[reportMissingTypeStubs, reportUnknownVariableType]
    except ImportError:
        raise UnsupportedError(
            f"{path} is a matrix that scipy saved, and scipy is not installed: pip install scipy."
        ) from None
    try:
        return load_npz(path)
    except (ValueError, KeyError, BadZipFile) as error:
        raise FileFormatError(f"{path} is no sparse matrix of scipy: {error!s:.80}.") from None
