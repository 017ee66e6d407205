"""The records of the executor: a program at some sizes, as stages of loops.

`lowering` makes them, with expressions in sizes in place of numbers, so that one function made of a
program gives the numbers for any sizes. `python -m rdpgraph.recurrences.records` writes the header.
"""

from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from rdpgraph.native.records import header


class Kind(IntEnum):
    """What a stage does at each place of a step."""

    SUM = 0  # adds up alternatives, entry by entry
    LINK = 1  # multiplies a row of labels by a matrix
    PAIR = 2  # multiplies two rows of labels, summed over splits, by a matrix of their pairs
    OVER = 3  # sums over labels


@dataclass(frozen=True, slots=True)
class Form:
    """A number that is affine in the coordinates of a place and in the loops of an alternative."""

    c: int = 0  # the constant
    s: int = 0  # the step
    o: int = 0  # the outer three of four axes of places
    q: int = 0
    u: int = 0
    w: int = 0  # the outer of two loops
    p: int = 0  # the innermost axis of places
    r: int = 0  # the inner loop


@dataclass(frozen=True, slots=True)
class Look:
    """An index that is data, and what its numbers add to a place."""

    at: Form  # where its numbers are
    slot: int  # of the tensor; below 0: it is no data, and each label has its own number
    item: int
    hop: int  # from one label to the next
    stride: int  # what one more of a number adds to the place
    level: int  # and, of a table, to the place of its level


@dataclass(frozen=True, slots=True)
class FactorRecord:
    """What a product reads: a row of labels or one number."""

    at: Form  # where its numbers begin, for item 0
    level: Form  # where its level is, the double that its logs are relative to
    slot: int  # of the tensor; 0: the tables
    item: int  # the stride from one item to the next
    hop: int  # the stride from one label to the next; 0: one number for all
    level_item: int  # the stride of levels from one item to the next; below 0: inputs have none
    level_hop: int  # and from one label to the next
    look: int  # the first of its indices that are data
    looks: int
    gather: int  # whether these differ from one entry of a row to the next
    link: int  # the stage of a link that nothing else reads, at the same place; below 0: none


@dataclass(frozen=True, slots=True)
class Alternative:
    """A product, for all values of its loops where its bounds are at least 0."""

    first: int  # of its factors
    count: int
    bound: int  # the first of its forms
    bounds: int
    loops: int  # how many loops it has
    low: int  # the values of the inner loop
    high: int
    low2: int  # and of the outer one
    high2: int
    row: int  # the look of the row of a list that the inner loop goes through; below 0: none


@dataclass(frozen=True, slots=True)
class Stage:
    """What is computed of one table in a step."""

    kind: int  # a Kind
    first: int  # of its alternatives
    count: int
    bound: int  # forms that are at least 0 where the table is defined
    bounds: int
    out: Form  # where its numbers are
    level: Form  # and their levels
    item: int
    level_item: int
    labels: int  # 0: rows are over places in place of labels
    labels2: int  # the labels of the second of two axes that are a row together; 1: it is one axis
    places: int  # of the innermost axis
    wide: int  # and of the outer ones: q, u and o
    wider: int
    widest: int
    depth: int  # labels before the matrix, of the left part of a pair
    depth2: int  # those of its right part
    table: Form  # where the matrix begins
    slot: int  # of the matrix; below 0: none; 0: it is a table
    table_item: int
    table_level: Form  # where the level of the matrix begins, if it is a table
    row_level: int  # strides of its levels
    row2_level: int
    column_level: int
    row: int  # strides of the matrix by labels before it, of the left part, and of the right one
    row2: int
    column: int  # and by labels after it
    column2: int
    fixed: int  # whether all steps have one matrix
    last: int  # the number of the goal that alone reads the table, from 1 on; 0: none
    look: int  # the first of its indices that are data and the same for all labels
    looks: int
    rows: Look  # the places of the labels before the matrix, of the left part and of the right one
    rows2: Look
    columns: Look  # and after it
    columns2: Look
    into: int  # the stage of the sum that alone reads it, at the same place; below 0: none


@dataclass(frozen=True, slots=True)
class Whole:
    """The program: how many records of each kind follow, and how much its tables hold."""

    stages: int
    alternatives: int
    factors: int
    looks: int
    forms: int
    steps: int
    size: int  # numbers of an item in all tables
    levels: int  # and levels


@dataclass(frozen=True, slots=True)
class Call:
    """What a pass upwards is given whatever the numbers; all but three are addresses."""

    records: int  # the program's
    steps: int  # (goals, items) the steps that compute the goals
    cells: int  # (goals, items) where they are, -1: nowhere, -2: before the first, and their levels
    apart: int  # (slots + 1) the bytes from one item to the next, of tables and inputs
    counts: int  # (slots) the numbers of all items; 0 for whole numbers
    slots: int
    items: int
    goals: int


RECORDS = (Form, Look, FactorRecord, Alternative, Stage, Whole, Call)
HEADER = Path(__file__).parents[1] / "native" / "kernels" / "recurrences" / "records.h"


def written() -> str:
    """What HEADER holds."""
    return header("rdpgraph/recurrences/records.py", RECORDS, [Kind])


if __name__ == "__main__":
    HEADER.write_text(written())
