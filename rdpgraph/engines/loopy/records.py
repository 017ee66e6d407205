"""The records that describe a graph's messages to compiled code.

Addresses are whole numbers. `python -m rdpgraph.engines.loopy.records` writes the header.
"""

from dataclasses import dataclass
from pathlib import Path

from rdpgraph.native import building
from rdpgraph.native.records import header


@dataclass(frozen=True, slots=True)
class Class:
    """The variables with equally many states. Beliefs are (variables, states)."""

    states: int
    variables: int  # how many there are
    edges: int
    variable: int  # number of the first variable among those of all classes
    edge: int  # number of the first edge
    message: int  # place of the first message of an item
    belief: int  # place of the first belief of an item
    # From a message's place to that of the next edge's, and to that of its next state. Messages of
    # few states are (states, edges), and those of many are (edges, states).
    edge_step: int
    state_step: int


@dataclass(frozen=True, slots=True)
class KernelRecord:
    """A block of factors of one kind: tables, or automata that read their slots in order."""

    is_automaton: int
    is_pairs: int  # 1: tables of two variables of many states, as `pairs.h` multiplies them
    factors: int
    slots: int
    # (slots, factors) of int32: the place of each slot's first message, below 0 where its variable
    # is settled; that of the variable's belief; and the class
    edges: int
    variables: int
    homes: int
    left: int  # (slots, factors, states) of int32: the states that are left, in order; 0: all are
    settled: int  # (items or 1, slots, factors) of int32 states of settled variables, or below 0
    settled_item: int  # the stride from one item to the next, or 0
    sizes: int  # (slots,) numbers of states, of int64
    entries: int  # (slots,) place of each slot's first state among those of all slots
    all_entries: int
    # Log-values, divided by counting numbers and the temperature, of the cells of tables or of the
    # states of automata; and their strides from an item, a table and a cell to the next, or 0
    logs: int
    logs_item: int
    logs_table: int
    logs_cell: int
    tables: int  # how many there are
    rows: int  # (factors,) of int32, the table of each; 0: each has its own, or all have one
    # Tables as they are multiplied (`tables.h`), with a maximum of one or, for maxima, of zero
    values: int
    values_item: int  # the stride from one item to the next, or 0
    # (items or 1, tables) what was taken off the logs, and the lowest finite ones after that
    peaks: int
    lows: int
    cells: int  # of a table
    states: int  # of the automaton
    transitions: int  # (steps, 3) of int32: from, state of the slot, to; sorted, dead ends left out
    steps: int
    spread: int  # the most transitions that leave or enter a state
    weights: int  # (factors,) counting numbers; 0: all are one


@dataclass(frozen=True, slots=True)
class Model:
    """All that does not change while messages pass."""

    batch: int
    class_count: int
    classes: int
    kernel_count: int
    kernels: int
    variables: int
    factors: int
    edges: int
    entries: int  # of the messages of an item
    beliefs: int  # of all variables' states
    unary: int  # (items or 1, beliefs)
    unary_item: int  # the stride from one item to the next, or 0
    incident_starts: int  # (variables + 1,) of each variable in `incident`
    incident: int  # (edges,) of int32, the places of the messages that it gets
    shares: int  # (edges,) their counting numbers, in that order; 0: all are one
    counts: int  # (variables,) counting numbers of the variables
    owners: int  # (edges,) of int32, the factor that sends, counted over all blocks
    slots: int  # (edges,) of int32, the slot of the factor from which it sends
    ends: int  # (edges,) of int32, the variable that gets
    first_factors: int  # (kernels + 1,) number of each block's first factor, and that of all
    vanishing: int  # 1 if messages may hold hard zeros
    bounded: int  # 1 if messages are not clamped
    reals: int  # (3,) of float64: temperature, bound from below on logs, and how low a log is seen


@dataclass(frozen=True, slots=True)
class OddsGroup:
    """Tables of two binary variables, whose messages stand in a row for each of their ends."""

    factors: int
    first: int  # place of the first message to a first variable
    second: int  # place of the first message to a second variable
    values: int  # (items or 1, 2, 2, factors or 1) values with a maximum of one, or logs
    values_item: int  # the stride from one item to the next, or 0
    tables: int  # the factors that have their own: all or one


@dataclass(frozen=True, slots=True)
class OddsModel:
    """A model of binary variables and pairs, whose messages are log-odds."""

    maximal: int  # 1: maxima, and tables are logs; 0: sums
    variables: int
    edges: int
    group_count: int
    groups: int
    odds: int  # (items, edges) messages, which change
    unary: int  # (items or 1, variables) log-odds of the variables' own potentials
    unary_item: int  # the stride from one item to the next, or 0
    variable: int  # (edges,) of int32, the variable that gets each message
    starts: int  # (variables + 1,) of int32, first place of each variable in `incident`
    incident: int  # (edges,) of int32, the messages that each variable gets


RECORDS = Class, KernelRecord, Model, OddsGroup, OddsModel
HEADER = Path(building.__file__).parent / "kernels" / "messages" / "records.h"


def written() -> str:
    """Return the text of the header."""
    return header("rdpgraph/engines/loopy/records.py", RECORDS)


if __name__ == "__main__":
    HEADER.write_text(written())
