"""Records that Python and C++ share: one definition, and libraries of another one are refused."""

import ctypes
from dataclasses import dataclass
from enum import IntEnum

import pytest

from rdpgraph.engines.loopy import records as messages
from rdpgraph.native.records import check_sizes, header, numbers, size
from rdpgraph.recurrences import executor
from rdpgraph.recurrences.records import HEADER, RECORDS, written


@dataclass(frozen=True)
class Inner:
    first: int
    second: int


@dataclass(frozen=True)
class Outer:
    before: int
    inner: Inner
    after: int


class Kind(IntEnum):
    ONE = 0
    OTHER = 1


def test_the_header_is_that_of_the_dataclasses():
    """If not, `python -m rdpgraph.recurrences.records` writes it, or `engines.loopy.records`."""
    assert HEADER.read_text() == written()
    assert messages.HEADER.read_text() == messages.written()


def test_records_are_structs_in_the_order_of_their_fields():
    text = header("some.py", [Inner, Outer], [Kind])
    assert "struct Outer {\n  int64_t before;\n  Inner inner;\n  int64_t after;\n};" in text
    assert "enum Kind : int64_t { kKindOne = 0, kKindOther = 1 };" in text
    assert [*numbers(Outer(1, Inner(2, 3), 4))] == [1, 2, 3, 4]
    assert size(Outer) == 4


@pytest.mark.skipif(executor.LIBRARY.status.kernel is None, reason="there is no compiled library")
def test_a_library_of_other_records_is_refused():
    library = ctypes.CDLL(str(executor.LIBRARY.status.kernel))
    check_sizes(library, RECORDS)
    with pytest.raises(AttributeError, match="the library was built with another Inner"):
        check_sizes(library, [Inner])
