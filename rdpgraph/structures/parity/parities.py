"""Sparse checks and observables of bits, orders in which a sweep closes them; recognised graphs."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any, cast

import torch
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph._core.cache import cached_property
from rdpgraph._core.masked import present
from rdpgraph.errors import ModelError
from rdpgraph.io.detectors import load_matrix, parse_alist
from rdpgraph.io.text import read_text
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.potentials.automaton import Automaton
from rdpgraph.model.potentials.table import as_values, is_array
from rdpgraph.structures.chain.recognition import unary_sum

OPEN, FLIP, CLOSE = 0, 1, 2  # kinds of steps
_WORD = 64  # bits


@dataclass(frozen=True, eq=False)
class ParityProgram:
    """The steps of a sweep over the parities of open checks."""

    # (n, 3) int64: the kind; the bit that is closed, or the mask of bits that an error flips; the
    # number of the check or the column. A check that opens is a new top bit; one that closes shifts
    # the bits above it down.
    steps: Tensor
    # For each round (2, columns) the pairs of columns that are merged; -1: none.
    merges: tuple[Tensor, ...]
    bits: tuple[int, ...]  # the observable of each bit that stays open to the end
    width: int  # the largest number of bits
    work: float  # the multiply-adds for one item


@dataclass(frozen=True, eq=False)
class Slots:
    """The steps of a sweep over kept states: checks have slots, and errors masks of them."""

    steps: Tensor  # (n, 3) int64: the kind, the slot, the number of the check or the column
    masks: Tensor  # (columns, words) int64: slots from the lowest bit up, observables at the top
    merges: tuple[Tensor, ...]  # as for `ParityProgram`


class Parities:
    """The checks and observables that each error flips; pairs of equal numbers cancel."""

    def __init__(
        self, columns: Iterable[tuple[Iterable[int], Iterable[int]]], num_checks: int,
        num_observables: int = 0,
    ) -> None:  # fmt: skip
        self.columns = tuple((_odd(checks), _odd(seen)) for checks, seen in columns)
        self.num_checks, self.num_observables = num_checks, num_observables

    def __repr__(self) -> str:
        return (
            f"Parities({self.num_checks} checks, {len(self.columns)} errors, "
            f"{self.num_observables} observables)"
        )

    @classmethod
    def of(cls, checks: Any, observables: Any) -> "Parities":
        """Read matrices (checks, errors) and (observables, errors), or files of them.

        Raises:
            ModelError: no matrix of whole numbers, or numbers of errors that differ.
        """
        if isinstance(checks, Parities):
            return checks
        rows, shape = _matrix("checks", checks)
        seen, size = (
            ([()] * shape[1], (0, shape[1]))
            if observables is None
            else _matrix("observables", observables)
        )
        if size[1] != shape[1]:
            raise ModelError(
                f"ParityModel of {shape[1]} errors needs observables (count, {shape[1]}); got "
                f"{size}."
            )
        return cls(zip(rows, seen, strict=True), shape[0], size[0])

    @cached_property
    def undetectable(self) -> tuple[int, ...]:
        """The errors that flip an observable, and no check."""
        return tuple(at for at, (checks, seen) in enumerate(self.columns) if seen and not checks)

    def parts(self) -> list[tuple[list[int], list[int], list[int]]]:
        """Errors, checks and observables of each part that shares nothing with the others."""
        part: dict[int, int] = {}  # a parent of each check, and of each observable, -1 - number

        def root(one: int) -> int:
            while (above := part.setdefault(one, one)) != one:
                part[one] = one = part[above]
            return one

        numbers = [*range(self.num_checks), *(-1 - seen for seen in range(self.num_observables))]
        for checks, seen in self.columns:
            ends = [*checks, *(-1 - one for one in seen)]
            for one in ends[1:]:
                part[root(one)] = root(ends[0])
        found: dict[int, tuple[list[int], list[int], list[int]]] = {}
        for one in numbers:
            _, checks, seen = found.setdefault(root(one), ([], [], []))
            (checks if one >= 0 else seen).append(one if one >= 0 else -1 - one)
        for at, (checks, seen) in enumerate(self.columns):
            for one in [*checks, *(-1 - each for each in seen)][:1]:
                found[root(one)][0].append(at)
        idle = [at for at, column in enumerate(self.columns) if not any(column)]
        return [*found.values(), *([(idle, [], [])] if idle else [])]

    def part(self, errors: Sequence[int], checks: Sequence[int], seen: Sequence[int]) -> "Parities":
        """Some errors, with some checks, and observables -1 - number among the checks, in order."""
        rows, places = ({one: at for at, one in enumerate(each)} for each in (checks, seen))
        columns = [
            (
                [rows[one] for one in (*flips, *(-1 - each for each in sees)) if one in rows],
                [places[one] for one in sees if one in places],
            )
            for flips, sees in (self.columns[at] for at in errors)
        ]
        return Parities(columns, len(checks), len(seen))

    @cached_property
    def rows(self) -> list[list[int]]:
        """The errors that flip each check."""
        rows: list[list[int]] = [[] for _ in range(self.num_checks)]
        for number, (checks, _) in enumerate(self.columns):
            for check in checks:
                rows[check].append(number)
        return rows

    @cached_property
    def matrices(self) -> tuple[Tensor, Tensor]:
        """(checks, errors) and (observables, errors) float64, 1 where an error flips one."""
        both = [
            torch.zeros(size, len(self.columns), dtype=torch.float64, device="cpu")
            for size in (self.num_checks, self.num_observables)
        ]
        for number, column in enumerate(self.columns):
            for matrix, rows in zip(both, column, strict=True):
                matrix[list(rows), number] = 1.0
        return both[0], both[1]

    @cached_property
    def order(self) -> tuple[int, ...]:
        """The order in which checks are closed: that of least work among several.

        Greedy orders close next the check that leaves the fewest others open; they start at
        different checks and break ties differently. The order of the numbers is tried too.
        """
        orders = [list(range(self.num_checks))]
        ways = [(last, up) for last in (False, True) for up in (1, -1)]
        orders += [_greedy(self._touch, last=last, up=up) for last, up in ways]
        return tuple(min(orders, key=self._work))

    @cached_property
    def _touch(self) -> list[set[int]]:
        """The checks that share an error with each."""
        touch: list[set[int]] = [{check} for check in range(self.num_checks)]
        for checks, _ in set(self.columns):
            for check in checks:
                touch[check].update(checks)
        return touch

    def narrow(self, limit: int) -> bool:
        """Return whether an order is found with so many open checks at most; soon if not."""
        if max((len(checks) for checks, _ in self.columns), default=0) > limit:
            return False
        order = _greedy(self._touch, last=False, up=1, limit=limit)
        return len(order) == self.num_checks and self.open_checks <= limit

    def by_windows(self, windows: Sequence[int]) -> "Parities":
        """The same, with checks closed window after window."""
        other = Parities(self.columns, self.num_checks, self.num_observables)
        vars(other)["order"] = tuple(sorted(self.order, key=windows.__getitem__))
        return other

    def _work(self, order: Sequence[int]) -> float:
        opened, work = 0, 0.0
        for step in self._plan(order):
            opened += (step[0] == OPEN) - (step[0] == CLOSE)
            work += 2.0 ** min(opened, 900) if step[0] == FLIP else 0.0
        return work

    def _plan(self, order: Sequence[int]) -> list[tuple[int, int]]:
        """Steps as (kind, number of check or column); a column comes before its checks close."""
        steps = [(FLIP, at) for at, (checks, _) in enumerate(self.columns) if not checks]
        opened, done = set[int](), set[int]()
        for check in order:
            for number in self.rows[check]:
                if number in done:
                    continue
                done.add(number)
                for other in self.columns[number][0]:
                    if other not in opened:
                        opened.add(other)
                        steps.append((OPEN, other))
                steps.append((FLIP, number))
            if check not in opened:
                opened.add(check)
                steps.append((OPEN, check))
            steps.append((CLOSE, check))
        return steps

    def merged(self, *, observables: bool) -> tuple["Parities", tuple[Tensor, ...]]:
        """Merge equal columns, of which only the parity is seen, in rounds of pairs."""
        groups: dict[Any, list[int]] = {}
        for number, (checks, seen) in enumerate(self.columns):
            groups.setdefault((checks, seen if observables else ()), []).append(number)
        seen = self.num_observables if observables else 0
        parities = Parities(groups, self.num_checks, seen)
        vars(parities)["order"] = self.order
        rows, rounds = list(groups.values()), list[Tensor]()
        places: list[list[int]] = rows
        while any(len(row) > 1 for row in places):
            pairs = [list(zip(row[::2], [*row[1::2], -1], strict=False)) for row in places]
            flat = [pair for row in pairs for pair in row]
            rounds.append(torch.tensor(flat, device="cpu").T.contiguous())
            count = iter(range(len(flat)))
            places = [[next(count) for _ in row] for row in pairs]
        if not rounds or any(row != [at] for at, row in enumerate(places)):
            first = torch.tensor([row[0] for row in places], device="cpu", dtype=torch.long)
            rounds.append(torch.stack([first, torch.full_like(first, -1)]))
        return parities, tuple(rounds)

    def program(self, *, observables: bool, merged: bool) -> ParityProgram:
        """The steps of an exact sweep, with or without observables; cached."""
        kept: dict[tuple[bool, bool], ParityProgram] = vars(self).setdefault("_programs", {})
        key = observables, merged
        if key not in kept:
            parities, rounds = self.merged(observables=observables) if merged else (self, ())
            kept[key] = parities._program(rounds, observables=observables)
        return kept[key]

    def _program(self, rounds: tuple[Tensor, ...], *, observables: bool) -> ParityProgram:
        bits: list[int] = []  # checks, and observables as -1 - number
        rows: list[tuple[int, int, int]] = []
        width, work = 0, 0.0
        for kind, number in self._plan(self.order):
            if kind == FLIP:
                checks, seen = self.columns[number]
                flipped = [*checks, *(-1 - one for one in seen if observables)]
                for one in flipped:
                    if one < 0 and one not in bits:
                        bits.append(one)
                        rows.append((OPEN, 0, -1))
                rows.append((FLIP, sum(1 << bits.index(one) for one in flipped), number))
                work += 2.0 ** len(bits)
            elif kind == OPEN:
                bits.append(number)
                rows.append((OPEN, 0, number))
            else:
                rows.append((CLOSE, bits.index(number), number))
                bits.remove(number)
            width = max(width, len(bits))
            if width > 60:
                break
        for one in range(self.num_observables if observables else 0):
            if -1 - one not in bits:
                bits.append(-1 - one)
                rows.append((OPEN, 0, -1))
        width = max(width, len(bits))
        if width > 60:
            # Masks of more bits do not fit into int64. Only the cost is of use: that of all checks
            # that are open, with the observables beside them from the beginning.
            beside = self.num_observables if observables else 0
            width, rows = self.open_checks + beside, []
            work = self._work(self.order) * 2.0 ** min(beside, 90)
        steps = torch.tensor(rows, dtype=torch.long, device="cpu").reshape(-1, 3)
        return ParityProgram(steps, rounds, tuple(-1 - one for one in bits), width, work)

    @cached_property
    def open_checks(self) -> int:
        """The most checks that are open at once."""
        opened = most = 0
        for kind, _ in self._plan(self.order):
            opened += (kind == OPEN) - (kind == CLOSE)
            most = max(most, opened)
        return most

    @cached_property
    def slots(self) -> Slots:
        """The steps of a sweep over kept states, columns merged, with observables."""
        (parities, rounds), words = self.merged(observables=True), 1
        while words * _WORD < self.open_checks + self.num_observables:
            words *= 2
        # A check has a bit of the state while it is open, and gives it back when it closes.
        # Observables have the highest bits.
        free, slot = list(range(self.open_checks))[::-1], dict[int, int]()
        masks, rows = [0] * len(parities.columns), list[tuple[int, int, int]]()
        top = words * _WORD - self.num_observables
        for kind, number in parities._plan(self.order):
            if kind == OPEN:
                slot[number] = free.pop()
            if kind == FLIP:
                checks, seen = parities.columns[number]
                masks[number] = sum(1 << slot[check] for check in checks)
                masks[number] |= sum(1 << (top + observable) for observable in seen)
            rows.append((kind, slot.get(number, 0) if kind != FLIP else 0, number))
            if kind == CLOSE:
                free.append(slot.pop(number))
        # Masks of many bits are divided into words.
        low = (1 << _WORD) - 1
        split = [[mask >> (_WORD * at) & low for at in range(words)] for mask in masks]
        split = [[word - (word >> (_WORD - 1) << _WORD) for word in row] for row in split]
        return Slots(
            torch.tensor(rows, dtype=torch.long, device="cpu").reshape(-1, 3),
            torch.tensor(split, dtype=torch.long, device="cpu").reshape(-1, words),
            rounds,
        )


def _odd(numbers: Iterable[int]) -> tuple[int, ...]:
    """Numbers that occur an odd number of times, in order."""
    left: set[int] = set()
    for number in numbers:
        left ^= {number}
    return tuple(sorted(left))


def _greedy(touch: list[set[int]], *, last: bool, up: int, limit: float = math.inf) -> list[int]:
    """Close next the check that opens the fewest, among these one whose neighbours closed first.

    Ends early where more than ``limit`` are open.
    """
    count, live = len(touch), 0
    # For each check: `new`, how many checks next to it are not open yet, and `age`, when the first
    # of its neighbours was closed.
    new, age = [len(near) for near in touch], [count] * count
    pool, opened, closed = set[int](), [False] * count, [False] * count
    order: list[int] = []
    left = sorted(range(count), key=lambda check: (new[check], -check if last else check))
    # One connected part after the other, from the check with the fewest neighbours.
    for start in left:
        if closed[start]:
            continue
        pool.add(start)
        while pool:
            # Closing a check opens its neighbours: `live` counts the open ones, which are the
            # sweep's width.
            best = min(pool, key=lambda check: (new[check], age[check], up * check))
            pool.remove(best)
            live += new[best]
            if live > limit:
                return order
            live -= 1
            closed[best] = True
            for near in touch[best]:
                age[near] = min(age[near], len(order))
                if not opened[near]:
                    opened[near] = True
                    for other in touch[near]:
                        new[other] -= 1
                if not closed[near]:
                    pool.add(near)
            order.append(best)
    return order


def _matrix(name: str, given: Any) -> tuple[list[list[int]], tuple[int, int]]:
    """The rows of the odd entries in each column, and the shape."""
    # A file of alist or of NumPy; then a sparse matrix of scipy or torch, or a dense one.
    if isinstance(given, str | PathLike):
        path = str(cast("str | PathLike[str]", given))
        if not path.endswith(".npz"):
            columns, total = parse_alist(read_text(path), source=path)
            return columns, (total, len(columns))
        given = load_matrix(path)
    if hasattr(given, "tocoo"):
        coo = given.tocoo()
        row, column = (torch.as_tensor(part.astype("int64")) for part in (coo.row, coo.col))
        values, shape = torch.as_tensor(coo.data), tuple(coo.shape)
    elif isinstance(given, Tensor) and given.layout != torch.strided:
        coo = given.detach().to_sparse_coo().coalesce().cpu()
        (row, column), values, shape = coo.indices(), coo.values(), tuple(coo.shape)
    else:
        plain = given = present(f"ParityModel's {name}", given)
        if is_array(given) or not isinstance(given, Tensor):
            plain = as_values(f"ParityModel's {name}", given)
        shape = tuple(plain.shape)
        row, column = plain.nonzero().T if plain.ndim == 2 else (torch.zeros(0).long(),) * 2
        values = plain[row, column] if plain.ndim == 2 else plain
    if len(shape) != 2:
        raise ModelError(
            f"ParityModel needs {name} as a matrix (rows, errors), dense or of scipy or torch; got "
            f"shape {shape}."
        )
    # Entries count modulo 2: an even one is none.
    values = values.detach().cpu().double()
    if not bool((values == values.round()).all()):
        raise ModelError(
            f"ParityModel needs {name} as whole numbers, odd where an error flips the row."
        )
    rows: list[list[int]] = [[] for _ in range(shape[1])]
    odd = values.long() % 2 == 1
    for r, c in zip(row[odd].tolist(), column[odd].tolist(), strict=True):
        rows[c].append(r)
    return rows, (int(shape[0]), int(shape[1]))


def recognised(graph: FactorGraph) -> tuple[Parities, Tensor, Tensor, Tensor] | None:
    """Parities, unary (*batch, V, 2), syndrome (*batch, checks) and numbers of all variables.

    None where it is another graph, or the sweep is wide.
    """
    joint = [block for block in graph.blocks if block.arity > 1]
    if not joint or any(type(block.potential) is not Automaton for block in joint):
        return None
    if bool((graph.domain.sizes != 2).any()):
        return None
    # An automaton of parity has two states; others need not be read row by row.
    automata = [b.potential for b in joint if isinstance(b.potential, Automaton)]
    if any(potential.transitions.shape[-2:] != (2, 2) for potential in automata):
        return None
    if any(block.arity == 0 for block in graph.blocks):
        return None  # a constant, which is no potential of a variable
    parities = [block.select() for block in joint]
    columns: list[list[int]] = [[] for _ in range(graph.num_variables)]
    count, seen, batch = 0, list[Tensor](), graph.batch_shape
    numbers = torch.arange(graph.num_variables, device="cpu")
    unary = unary_sum(graph, numbers, len(numbers))
    for block, parity in zip(joint, parities, strict=True):
        if not isinstance(parity, Automaton) or parity.transitions.tolist() != [[0, 1], [1, 0]]:
            return None
        accept = parity.log_accept.expand(*batch, block.count, 2).to(unary)
        either, value = (accept > -math.inf).unbind(-1), accept.amax(-1)
        alike = either[0] & either[1] & (accept[..., 0] != accept[..., 1])
        if bool(alike.any()) or not bool((either[0] | either[1]).all()):
            return None  # a soft parity, or nothing possible
        seen.append(torch.where(either[0], -either[1].to(torch.int8), 1))
        if bool((value != 0).any()) or value.requires_grad:
            first = block.scopes[:, 0].to(unary.device)
            unary = unary.index_add(-2, first, value.unsqueeze(-1).expand(*value.shape, 2))
        for check, scope in enumerate(block.scopes.tolist(), count):
            for number in scope:
                columns[number].append(check)
        count += block.count
    checks = Parities([(flipped, ()) for flipped in columns], count)
    if not checks.narrow(tuning.RECOGNISED_CHECKS):
        return None
    work = checks.program(observables=False, merged=True).work * math.prod(batch)
    return (checks, unary, torch.cat(seen, -1), numbers) if work < tuning.RECOGNISED_WORK else None
