"""The BIF format of Bayesian networks."""

import itertools
import re
from array import array
from collections.abc import Sequence
from operator import itemgetter

import numpy as np
import torch
from numpy.typing import NDArray

from rdpgraph._core import tuning
from rdpgraph.errors import UnsupportedError
from rdpgraph.io.bif_tables import Headers, read_tables
from rdpgraph.io.tables import Array, all_variables, conditional_tables, find_cycle, values_of
from rdpgraph.io.text import Bytes, fail
from rdpgraph.io.tokens import MARKS, BifText, unquoted, words_of
from rdpgraph.model.block import no_factors
from rdpgraph.model.domain import Domain
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.names import CODEC, MOST_SHARED, SHARED, CompactVariables, Names, StateLists
from rdpgraph.model.variable import Variable, names_of

# Blocks of the usual form, matched many at a time.
_VARIABLE = (
    rb"variable\s++([^\s{}()|,;\"]++)\s*+\{\s*+type\s++discrete\s*+\[\s*+([1-9][0-9]{0,8})\s*+\]\s*+\{"
    rb"([^{}()|;]*+)\}\s*+;?\s*+\}"
)
_PROBABILITY = rb"(probability\s*+\([^{}]*+\{)([^{}]*+\})"
_BLOCKS = re.compile(rb"(\s*+(?:%b|%b))|([\s\S]++)" % (_VARIABLE, _PROBABILITY))
_COUNT = re.compile(rb"discrete\s*+\[\s*+([^\s{}()\[\]|,;\"]++)\s*+\]")
_HEADERS = re.compile(rb"probability\s*+\(([^(){};]*+)\)\s*+\{|([\s\S]++)")
_WRITTEN_PLAIN = re.compile(r"""(?!//|/\*)[^\s\x00-\x1f\x7f{}()\[\]|,;"]+""")
_QUOTABLE = re.compile(r'[^"\x00-\x1f\x7f]*')


def parse_bif(
    text: str | Bytes, *, source: str = "<text>", dtype: torch.dtype = torch.float64
) -> FactorGraph:
    """The network of a BIF file's text, P(X | parents) over (X, *parents).

    The sum of a row may be off by a file's rounding (0.1): the row is then used as it is, with a
    warning. A row may be all zeros. Time is linear in the text, and memory at most six times as
    much, beyond 1 MB. A bytearray is overwritten.

    Raises:
        FileFormatError: text that is no BIF, or a row that is off by more; with the line.

    Example:
        >>> graph = parse_bif('''
        ...     variable rain { type discrete [2] { no, yes }; }
        ...     probability (rain) { table 0.8, 0.2; }
        ... ''')
        >>> graph.variables[0].states
        ('no', 'yes')
    """
    prepared = BifText.of(text, source)
    del text
    blocks = _Blocks(prepared)
    headers = blocks.read()
    del blocks
    _refuse_cycles(source, headers)
    tables = read_tables(prepared, headers, dtype) or [no_factors(dtype)]
    return FactorGraph.from_blocks(Domain(headers.variables.made()), tables)


class _Blocks:
    """A reader of the variables of a file and of the headers of its probability blocks."""

    def __init__(self, text: BifText) -> None:
        self._text, self._data = text, text.data
        self._names, self._lists = Names(), StateLists()
        self._sizes, self._list_of = array("q"), array("i")
        self._known: dict[tuple[bytes, bytes], tuple[int, int]] = {}
        self._spans = array("q")  # start, body and end of each probability block

    def read(self) -> Headers:
        """Read all blocks."""
        text, at = self._text, 0
        while True:
            # Files as most writers make them are read in one go, by regular expressions; what does
            # not match is read here token by token, with errors that name the line.
            start, at = at, self._read_usual(at)
            if at > start:
                continue
            match = text.next(at)
            if match is None:
                return self._headers()
            word, start, body = match[0], match.start(), match.end()
            if word == b"variable":
                at = self._read_variable(start)
            elif word in (b"network", b"probability"):
                # The bodies of probability blocks are only located: their scopes are read once all
                # variables are known.
                name, body = body, text.after(body, b"{")
                at = text.after(body, b"}")
                if word == b"network":
                    for token in text.tokens(name, body - 1):
                        if token[0] in MARKS:
                            text.fail(token.start(), "'{' after the network's name")
                    inner = text.data.find(b"{", body, at)
                    if inner >= 0:
                        text.fail(inner, "the closing brace of the network")
                if word == b"probability":
                    self._spans.extend((start, body, at))
            elif word == b"property":
                at = text.after(body, b";")
            else:
                text.fail(start, "network, variable, probability or property")

    def _read_usual(self, at: int) -> int:
        """Read blocks while they have the usual form; the place after them."""
        matches: list[tuple[bytes, ...]] = _BLOCKS.findall(self._data, at, at + tuning.PIECE)
        if matches and matches[-1][-1]:
            del matches[-1]
        if not matches:
            return at
        whole, names, _, _, heads, tails, _ = zip(*matches, strict=True)
        stops = at + _lengths(whole).cumsum()
        places = np.flatnonzero(_lengths(names))
        taken = self._add_usual([matches[place][1:4] for place in places.tolist()])
        most = len(matches) if taken == len(places) else int(places[taken])
        bodies = stops - _lengths(tails)
        spans = np.stack([bodies - _lengths(heads), bodies, stops], 1)[:most]
        self._spans.frombytes(spans[_lengths(heads)[:most] > 0].tobytes())
        return int(stops[most - 1]) if most else at

    def _add_usual(self, variables: Sequence[tuple[bytes, ...]]) -> int:
        """Add variables given as (name, number, names of states); the number of usual ones."""
        numbered = (self._list(*each[1:]) for each in variables)
        lists = list(itertools.takewhile(itemgetter(1), numbered))
        numbers = self._names.add_all([name for name, *_ in variables[: len(lists)]])
        again = np.flatnonzero(numbers != np.arange(len(numbers)) + len(self._sizes))
        taken = int(again[0]) if len(again) else len(lists)
        self._list_of.extend(number for number, _ in lists[:taken])
        self._sizes.extend(size for _, size in lists[:taken])
        return taken

    def _list(self, digits: bytes, text: bytes) -> tuple[int, int]:
        """The number and length of a list of states as in the file; length 0 if it is unusual."""
        key = digits, text
        known = self._known.get(key)
        if known is None:
            words = text.replace(b",", b" ").split()
            if len(words) != int(digits) or len(set(words)) < len(words) or b'"' in text:
                return 0, 0
            known = self._lists.add(b"\n".join(words)), len(words)
            if len(self._known) < SHARED and len(text) <= MOST_SHARED:
                self._known[key] = known
        return known

    def _read_variable(self, start: int) -> int:
        """Read ``variable NAME { type discrete [ k ] { names }; }``; the place after it."""
        text = self._text
        named = text.name(start + len(b"variable"), "the name of a variable")
        name = unquoted(named[0])
        shown = repr(name.decode(*CODEC))
        at = text.expect(named.end(), b"{")
        known: tuple[int, int] | None = None
        while (mark := text.next(at)) is None or mark[0] != b"}":
            if mark is not None and mark[0] == b"property":
                at = text.after(mark.end(), b";")
            elif known is not None:
                text.fail(at, f"the closing brace of variable {shown}")
            else:
                known, at = self._read_states(named.start(), shown, at)
        if known is None:
            text.fail(at, f"the type of variable {shown}")
        if not name:
            text.fail(named.start(), "a variable with a name that is not empty")
        if self._names.add_bytes(name) < len(self._sizes):
            text.fail(named.start(), "a variable that is not declared yet")
        self._list_of.append(known[0])
        self._sizes.append(known[1])
        return mark.end()

    def _read_states(self, named: int, variable: str, start: int) -> tuple[tuple[int, int], int]:
        """The states of a variable from its ``type`` on, and the place after them."""
        text = self._text
        after = text.expect(start, b"type")
        kind = text.next(after)
        if kind is None or not kind[0].startswith(b"discrete"):
            text.fail(after, "'discrete'")
        number = _COUNT.match(text.data, kind.start())
        if number is None:
            text.fail(kind.start(), f"discrete [NUMBER] for the number of states of {variable}")
        first = text.after(start, b"{")
        last = text.after(first, b"}")
        # A name takes a byte at least, so that no file makes us allocate for more states than it
        # lists.
        if not re.fullmatch(b"[1-9][0-9]{0,8}", number[1]) or int(number[1]) > last - first:
            text.fail(number.start(1), f"a number of states that {variable} lists", number.end(1))
        text.expect(number.end(), b"{")
        count = int(number[1])
        # Names are kept joined, as bytes: an object for each would take several times the memory.
        # Repeated
        # ones are found by their hashes.
        joined, hashes = bytearray(), array("q")
        for names in text.names(first, last - 1, count, f"state names of {variable}"):
            joined += b"\n".join(names) + b"\n"
            hashes.extend(map(hash, names))
        states = bytes(memoryview(joined)[:-1])
        del joined
        repeated = _repeated(states, hashes)
        if repeated is not None:
            state = repeated.decode(*CODEC)
            text.fail(named, f"a variable; {variable} has the state name {state!r} twice")
        mark = text.next(last)
        stop = mark.end() if mark is not None and mark[0] == b";" else last
        return (self._lists.add(states), count), stop

    def _headers(self) -> Headers:
        """The variables, and the scope of every variable's block, in the file's order."""
        source, names = self._text.source, self._names
        if self._text.next(0) is None:
            fail(source, "expected a network; the file is empty.")
        spans = np.frombuffer(self._spans, np.int64).reshape(-1, 3)
        starts, members, defined = array("q", [0]), array("i"), bytearray(len(names))
        # Scopes come out as flat arrays, a part of the blocks at a time; a part with unusual
        # spelling is read block by block.
        for at in range(0, len(spans), tuning.HEADERS):
            part = spans[at : at + tuning.HEADERS]
            scopes = self._usual_scopes(part, defined)
            if scopes is not None:
                starts.frombytes((scopes[0].cumsum() + len(members)).tobytes())
                members.frombytes(scopes[1].tobytes())
                continue
            for start, body, _ in part.tolist():
                members.extend(self._read_scope(start, body, defined))
                starts.append(len(members))
        # Every variable needs one block; a second one was refused when it was read.
        lacking = defined.find(0)
        if lacking >= 0:
            fail(source, f"expected a probability block for variable {names[lacking]!r}; got none.")
        sizes = np.frombuffer(self._sizes, dtype=np.int64)
        variables = CompactVariables(names, sizes, (self._lists, self._list_of))
        return Headers(
            variables,
            self._lists,
            np.frombuffer(starts, np.int64),
            np.frombuffer(members, np.int32),
            spans[:, 1:] - [0, 1],
        )

    def _usual_scopes(
        self, spans: NDArray[np.int64], defined: bytearray
    ) -> tuple[NDArray[np.int64], NDArray[np.int32]] | None:
        """Sizes of the scopes of some headers, and their members; None if a header is unusual."""
        if (spans[:, 1] - spans[:, 0] > tuning.PIECE).any():
            return None
        # The words of all headers, with a mark between one scope and the next.
        texts = [bytes(self._data[start:body]) for start, body, _ in spans.tolist()]
        scopes: list[tuple[bytes, bytes]] = _HEADERS.findall(b"".join(texts))
        if scopes[-1][1]:
            return None
        text = b";".join([scope for scope, _ in scopes]).replace(b"|", b" ")
        words = words_of(text)
        marks = np.fromiter(map(b";".__eq__, words), np.bool_, len(words))
        counts = np.diff(np.flatnonzero(marks), prepend=-1, append=len(words)) - 1
        named = list(map(unquoted, words)) if b'"' in text else words
        members = self._names.find_all(named)[~marks]
        if counts.min() < 1 or counts.max() > tuning.MOST_DIMS or members.min() < 0:
            return None
        # A variable with two headers, or twice in one, is for the slower reader to name.
        ranked = np.sort(members + len(self._sizes) * np.repeat(np.arange(len(counts)), counts))
        known, children = np.frombuffer(defined, np.uint8), members[counts.cumsum() - counts]
        again = known[children].any() or len(np.unique(children)) < len(children)
        if again or (ranked[1:] == ranked[:-1]).any():
            return None
        known[children] = 1
        return counts, members

    def _read_scope(self, start: int, body: int, defined: bytearray) -> list[int]:
        """The variables of a header, the child first."""
        text, scope = self._text, dict[int, None]()
        first = at = text.expect(start, b"probability", b"(")
        for match in text.tokens(first, body):  # the last token is a brace
            word, at = match[0], match.start()
            if word in (b",", b"|"):
                continue
            if word == b"{":
                text.fail(at, "')'")
            if word == b")":
                break
            if word in MARKS:
                text.fail(at, "the name of a variable")
            number = self._names.find_bytes(unquoted(word))
            if number < 0:
                text.fail(at, "a declared variable")
            if number in scope:
                text.fail(at, "a variable that its scope does not hold yet")
            if not scope and defined[number]:
                text.fail(at, "a variable that no probability block has defined yet")
            scope[number] = None
        if not 1 <= len(scope) <= tuning.MOST_DIMS:
            text.fail(first, f"a scope of 1 to {tuning.MOST_DIMS} variables (it has {len(scope)})")
        text.expect(at + 1, b"{")
        defined[next(iter(scope))] = 1
        return list(scope)


def _lengths(texts: Sequence[bytes]) -> NDArray[np.int64]:
    return np.fromiter(map(len, texts), np.int64, len(texts))


def _repeated(names: bytes, hashes: "array[int]") -> bytes | None:
    """A name that occurs twice in newline-separated text, or None."""
    ranked = np.frombuffer(hashes, dtype=np.int64).copy()
    ranked.sort()
    again = frozenset(ranked[1:][ranked[1:] == ranked[:-1]].tolist())
    met: set[bytes] = set()
    for name in names.split(b"\n") if again else ():
        if hash(name) in again:
            if name in met:
                return name
            met.add(name)
    return None


def _refuse_cycles(source: str, headers: Headers) -> None:
    starts, members = headers.starts, headers.members
    children = members[starts[:-1]]
    blocks = np.empty(len(children), dtype=np.int32)
    blocks[children] = np.arange(len(children))
    if (blocks[members] <= np.repeat(np.arange(len(blocks)), np.diff(starts))).all():
        return  # all parents precede their children
    cycle = find_cycle((starts[:-1] + 1).data, starts[1:].data, blocks[members].data)
    if cycle is not None:
        names = headers.variables.names
        shown = " - ".join(repr(names[int(children[block])]) for block in cycle[:8])
        fail(source, f"expected parents without a cycle; got {shown}.")


def format_bif(graph: FactorGraph) -> str:
    """The text of a Bayesian network in the BIF format; unnamed states are named "0", "1", ....

    Raises:
        UnsupportedError: a batch, factors that are not P(x | parents), one for each variable and x
            first or last in all, or a name that holds a quote or a line's end.
    """
    parts = ["network unknown {\n}"]
    for variable in all_variables(graph):
        states = ", ".join(_state_names(variable))
        parts.append(
            f"variable {_quoted(variable.name)} {{\n"
            f"  type discrete [ {variable.size} ] {{ {states} }};\n}}"
        )
    parts.extend(_probability(*each) for each in conditional_tables(graph))
    return "\n".join(parts) + "\n"


def _probability(scope: Sequence[Variable], log_values: Array) -> str:
    values = values_of(scope, log_values, "BIF").reshape(-1, scope[-1].size)
    *parents, child = (_quoted(variable.name) for variable in scope)
    rows = [", ".join(map(repr, row)) for row in values.tolist()]
    if not parents:
        return f"probability ( {child} ) {{\n  table {rows[0]};\n}}"
    labels = itertools.product(*map(_state_names, scope[:-1]))
    lines = [f"  ({', '.join(label)}) {row};" for label, row in zip(labels, rows, strict=True)]
    return "\n".join([f"probability ( {child} | {', '.join(parents)} ) {{", *lines, "}"])


def _state_names(variable: Variable) -> list[str]:
    return [_quoted(str(state)) for state in names_of(variable.states)]


def _quoted(name: str) -> str:
    if _WRITTEN_PLAIN.fullmatch(name):
        return name
    if not _QUOTABLE.fullmatch(name):
        raise UnsupportedError(
            f"Name {name!r} holds a quote or a control character, which BIF cannot say. Rename it."
        )
    return f'"{name}"'
