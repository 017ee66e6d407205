"""Detector error models of stim, and check matrices in files."""

import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from math import isfinite
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

from rdpgraph.errors import FileFormatError, UnsupportedError
from rdpgraph.io.text import read_text

# The language of stim is ASCII outside of tags and comments: other digits and spaces are no parts
# of it. A target is followed by a space, the end of its line, or the brace of a repeat.
_BETWEEN = re.compile(r"(?:[ \t\r\n\v\f]|#[^\n]*)*")
_NAME = re.compile(r"[A-Za-z0-9_]*")
_TAG = re.compile(r"\[(?:[^\]\\\n]|\\[nrBC])*\]")
_ARGUMENTS = re.compile(r"\(([0-9eE+\-., \t]*)\)")
_TARGET = re.compile(r"[ \t\r]+([DdLl]?[0-9]+|\^)(?=[ \t\r\n#{]|$)")
_END = re.compile(r"[ \t\r]*(?:\n|#[^\n]*|$)")
_BRACE = re.compile(r"[ \t\r]*\{")
_TARGETS = {
    "detector": "one detector, as D0",
    "logical_observable": "one observable, as L0",
    "shift_detectors": "a number of detectors",
    "repeat": "a count, and then {",
}
_MOST = 10_000_000  # errors, detectors and observables that a file may make us hold


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


def is_detectors(text: str) -> bool:
    """Return whether a string is a detector error model, and not the path of a file of one."""
    first = text.strip()
    end = _end(_NAME, first, 0)
    instruction = first[:end].lower() in ("error", *_TARGETS) and first[end : end + 1] in " \t([{#"
    return not first or first[0] == "#" or "\n" in text or instruction


@dataclass
class _Block:
    """What the instructions so far say, of a text or of a repeat; detectors from its beginning."""

    repeats: int = 1
    start: int = 0  # place of the repeat in the text
    columns: list[tuple[list[int], list[int]]] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    shift: int = 0
    detectors: int = 0  # one more than the largest
    observables: int = 0

    def see(self, detectors: int, observables: int) -> None:
        """Count detectors, before the shift, and observables."""
        if detectors:
            self.detectors = max(self.detectors, self.shift + detectors)
        self.observables = max(self.observables, observables)

    def add(self, body: "_Block") -> None:
        """Append all repetitions of a block; those without errors take no time."""
        begin = self.shift
        for number in range(body.repeats if body.columns else 0):
            shift = begin + number * body.shift
            self.columns += [([at + shift for at in checks], seen) for checks, seen in body.columns]
            self.rates += body.rates
        if body.repeats:
            # Shifts are not negative, so that the last repetition has the largest detector.
            self.shift = begin + (body.repeats - 1) * body.shift
            self.see(body.detectors, 0)
        # Stim counts the observables of a repeat that happens zero times, but not its detectors.
        self.see(0, body.observables)
        self.shift = begin + body.repeats * body.shift


def parse_detectors(text: str, *, source: str = "A detector error model") -> DetectorErrors:
    """The errors of a detector error model, in the language of stim.

    The instructions are error, detector, logical_observable, shift_detectors and repeat. Each ends
    with its line, except that others may follow a brace.

    Raises:
        FileFormatError: with the line, for what is none of these.
    """
    blocks, at = [_Block()], 0

    def refused(place: int, why: str) -> FileFormatError:
        line = text.count("\n", 0, place) + 1
        got = text[text.rfind("\n", 0, place) + 1 :].partition("\n")[0].strip()
        return FileFormatError(f"{source}, line {line}: {why}; got {got!r:.80}.")

    def number(target: str) -> int:
        digits = target.lstrip("DL").lstrip("0")
        if len(digits) > 18:
            raise refused(at, "numbers have 18 digits at most")
        return int(digits or "0")

    while True:
        at = _end(_BETWEEN, text, at)
        block = blocks[-1]
        if at == len(text):
            break
        if text[at] == "}":
            # The end of a repeat: its errors are written out in the block around it.
            body = blocks.pop()
            if not blocks:
                raise refused(at, "this brace closes no repeat")
            block, begin, at = blocks[-1], body.start, at + 1
            if len(block.columns) + body.repeats * len(body.columns) > _MOST:
                raise refused(begin, f"at most {_MOST:,} errors are read")
            block.add(body)
        else:
            begin = at
            name, arguments, targets, after = _instruction(text, at, refused)
            if name == "error":
                # An error: the checks and the observables that it flips.
                checks, seen = ([number(t) for t in targets if t[0] == kind] for kind in "DL")
                block.columns.append(([each + block.shift for each in checks], seen))
                block.rates.append(arguments[0])
                block.see(max(checks, default=-1) + 1, max(seen, default=-1) + 1)
            elif name == "repeat":
                blocks.append(_Block(number(targets[0]), at))
            elif name == "shift_detectors":
                block.shift += number(targets[0])
            else:
                count = number(targets[0]) + 1
                block.see(count * (name == "detector"), count * (name == "logical_observable"))
            at = after
        if max(block.detectors, block.observables, len(block.columns)) > _MOST:
            raise refused(begin, f"numbers of errors, D and L are up to {_MOST:,}")
    if len(blocks) > 1:
        raise refused(blocks[-1].start, "a repeat needs a closing brace")
    return DetectorErrors(block.columns, block.rates, block.detectors, block.observables)


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    """Place after a match; -1 if there is none."""
    found = pattern.match(text, at)
    return found.end() if found else -1


def _instruction(
    text: str, begin: int, refused: Callable[[int, str], FileFormatError]
) -> tuple[str, list[float], list[str], int]:
    """Name, arguments and targets of the instruction at a place, checked, and the place after."""
    at = _end(_NAME, text, begin)
    name = text[begin:at].lower()
    if name != "error" and name not in _TARGETS:
        wanted = "error, detector, logical_observable, shift_detectors or repeat is wanted"
        raise refused(begin, wanted)
    if text.startswith("[", at):
        at = _end(_TAG, text, at)
        if at < 0:
            escapes = r"\n, \r, \B and \C"
            raise refused(begin, f"a tag ends with ] on its line, and its escapes are {escapes}")
    arguments = list[float]()
    if text.startswith("(", at):
        given = _ARGUMENTS.match(text, at)
        # An argument that is left out is 0.
        words = given[1].split(",") if given else [""]
        with suppress(ValueError):
            arguments = [float(word.strip() or "0") for word in words]
        if given is None or not arguments or not all(map(isfinite, arguments)):
            raise refused(begin, "arguments are finite numbers between parentheses")
        at = given.end()
    targets = list[str]()
    while found := _TARGET.match(text, at):
        targets.append(found[1].upper())
        at = found.end()
    after = _end(_BRACE if name == "repeat" else _END, text, at)
    if name == "error":
        if len(arguments) != 1:
            raise refused(begin, "error(PROBABILITY) is wanted")
        if not 0 <= arguments[0] <= 1:
            raise refused(begin, "a probability is from 0 to 1")
        if after < 0 or any(target.isdigit() for target in targets):
            raise refused(begin, "targets are D and L with a number, with spaces between them")
        around = ["^", *targets, "^"] if targets else []
        if any(one == other == "^" for one, other in pairwise(around)):
            raise refused(begin, "^ stands between targets")
        return name, arguments, targets, after
    kind = {"detector": "D", "logical_observable": "L"}.get(name, "")
    one = len(targets) == 1 and targets[0].removeprefix(kind).isdigit()
    if after < 0 or not one or not targets[0].startswith(kind):
        raise refused(begin, f"{name} takes {_TARGETS[name]}")
    if arguments and name in ("logical_observable", "repeat"):
        raise refused(begin, f"{name} takes no arguments")
    return name, arguments, targets, after


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
    # Rows of bits begin after four sizes and the degrees, all as long as the largest of these.
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
