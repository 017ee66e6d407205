"""Reduced networks as weighted clauses: the direct encoding, with short clauses where cheap."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rdpgraph._core.cache import cached_property
from rdpgraph.engines.reduction.network import Group, Network
from rdpgraph.model.block import Block
from rdpgraph.model.potentials.sparse import Projection
from rdpgraph.plan.tree import component_labels

Clause: TypeAlias = tuple[int, ...]
Bools: TypeAlias = npt.NDArray[np.bool_]

_NEAR = 1e3
"""Nats below a table's largest value that its constant may be: the digits of others stay."""


@dataclass(frozen=True, eq=False)
class Encoding:
    """A formula whose satisfying assignments are the possible configurations, with weights.

    Variables of the formula are numbered from 1, and -x is the literal that x is false. Each
    possible configuration is one satisfying assignment, whose weight, the product of those of its
    literals, is the configuration's. So the weighted count is Z, and the heaviest assignment a
    mode.
    """

    # per active variable the literals of its remaining states
    literals: tuple[tuple[int, ...], ...]
    clauses: tuple[Clause, ...]  # sorted, none twice
    log_weights: Tensor  # (batch or 1, 2 n) of literals x and -x, at 2 (x - 1) and 2 (x - 1) + 1
    constant: Tensor  # (batch or 1,) log-values that are in no clause
    hidden: int = 0  # so many last literals need some values, and are not summed over

    @property
    def count(self) -> int:
        """Number of literals."""
        return self.log_weights.shape[1] // 2

    @cached_property
    def components(self) -> tuple[tuple[tuple[int, ...], tuple[Clause, ...]], ...]:
        """Return the variables and the clauses of each connected component."""
        pairs = [(abs(clause[0]), abs(x)) for clause in self.clauses for x in clause]
        first, other = np.array(pairs, np.int64).reshape(-1, 2).T
        label = component_labels(first, other, self.count + 1).tolist()
        parts: dict[int, tuple[list[int], list[Clause]]] = {}
        for x in range(1, self.count + 1):
            parts.setdefault(label[x], ([], []))[0].append(x)
        for clause in self.clauses:
            parts[label[abs(clause[0])]][1].append(clause)
        return tuple((tuple(variables), tuple(clauses)) for variables, clauses in parts.values())


def place(literal: int) -> int:
    """Column of a literal's weight."""
    return 2 * abs(literal) - 2 + (literal < 0)


def encoded(network: Network) -> Encoding:
    """Clauses of a possible network without whole potentials.

    A variable of two states is a literal, any other one a literal for each state. Configurations
    that no item allows are clauses, merged into larger cubes where the table allows. Equal values
    of a table share a literal that holds where they do, and the most frequent one has none; each
    configuration has its own if the table has gradients, which flow to the weights. All items of a
    batch share the clauses, and differ in weights.
    """
    making = _Making(network)
    for group in network.groups:
        making.add(group)
    blocks = [b for b in network.graph.blocks if isinstance(b.potential, Projection)]
    return _projected(making.made(), network, blocks) if blocks else making.made()


def _projected(encoding: Encoding, network: Network, blocks: list[Block]) -> Encoding:
    """The encoding with the clauses of projections, and their hidden variables as last literals."""
    clauses, true = {*encoding.clauses}, encoding.count + 1
    clauses.add((true,))  # stands for the literals that are settled
    count = true
    for potential, scope in ((b.potential, scope) for b in blocks for scope in b.scopes.tolist()):
        assert isinstance(potential, Projection)
        settled = [true if state else -true for state in network.settled[0, scope].tolist()]
        active = network.active[scope].tolist()
        slots = [
            encoding.literals[v][1] if v >= 0 else known
            for v, known in zip(active, settled, strict=True)
        ]
        placed, hidden = potential.placed(slots, count)
        count += hidden
        rows = [{*clause} or {-true} for clause in placed]
        clauses.update(tuple(sorted(row)) for row in rows if not any(-x in row for x in row))
    hidden = count - encoding.count
    return replace(
        encoding,
        clauses=tuple(sorted(clauses)),
        log_weights=torch.nn.functional.pad(encoding.log_weights, (0, 2 * hidden)),
        hidden=hidden,
    )


class _Making:
    """Clauses and weights so far."""

    def __init__(self, network: Network) -> None:
        self._count = 0
        self._literals: list[tuple[int, ...]] = []
        for size in network.sizes:
            literals = [self._new() for _ in range(1 if size == 2 else size)]
            self._literals.append((-literals[0], literals[0]) if size == 2 else tuple(literals))
        self._clauses: set[Clause] = set()
        for literals in self._literals:
            if len(literals) > 2:
                self._clauses.add(literals)
                self._clauses.update(tuple(sorted((-x, -y))) for x, y in combinations(literals, 2))
        self._weights: list[tuple[list[int], Tensor]] = []
        self._constant = network.constant
        self._covers: dict[tuple[bytes, bytes, tuple[int, ...]], list[list[tuple[int, ...]]]] = {}

    def _new(self) -> int:
        self._count += 1
        return self._count

    def add(self, group: Group) -> None:
        """Add factors of one shape."""
        tables = group.log_tables
        shape = tuple(tables.shape[2:])
        scopes = group.scopes.tolist()
        rows = group.rows.tolist() if group.rows is not None else range(len(scopes))
        # Factors may share tables: `which` has the table of each, `_split` is asked once a table.
        which = [row if tables.shape[1] > 1 else 0 for row in rows]
        # A factor of one variable is the weights of its literals, without a clause.
        if len(shape) == 1:
            places = [place(self._literals[v][s]) for (v,) in scopes for s in range(shape[0])]
            self._weights.append((places, tables[:, which].flatten(1)))
            return
        flat = tables.flatten(2)
        known = flat.detach().double().cpu().numpy()
        split = [self._split(known[:, u], shape, apart=tables.requires_grad)
                 for u in range(known.shape[1])]  # fmt: skip
        # A larger factor has a base value, as a constant; hard zeros, as clauses; and for each
        # other value a variable that holds in exactly the rows of that value, weighted by its ratio
        # to the base.
        for scope, u in zip(scopes, which, strict=True):
            literals = [self._literals[v] for v in scope]
            forbidden, base, defined = split[u]
            self._forbid(literals, forbidden, forbidden)
            if base >= 0:
                self._constant = self._constant + flat[:, u, base]
            for rows_with in defined:
                holds = self._new()
                first = int(rows_with.reshape(-1).argmax())
                self._forbid(literals, rows_with, rows_with | forbidden, holds)
                self._forbid(literals, ~(rows_with | forbidden), ~rows_with, -holds)
                log_value = flat[:, u, [first]]
                value = log_value - flat[:, u, [base]] if base >= 0 else log_value
                self._weights.append(([place(holds)], value))

    @staticmethod
    def _split(
        values: npt.NDArray[np.float64], shape: tuple[int, ...], *, apart: bool
    ) -> tuple[Bools, int, list[Bools]]:
        """Forbidden configurations, one of constant value (or -1), and those of each literal.

        From log-values (batch or 1, n); if ``apart``, no two configurations share a literal.
        """
        forbidden = (values == -np.inf).all(0)
        groups: dict[bytes, list[int]] = {}
        for row in np.flatnonzero(~forbidden).tolist():
            key = row.to_bytes(8) if apart else (values[:, row] + 0.0).tobytes()
            groups.setdefault(key, []).append(row)
        sets = sorted(groups.values(), key=len)
        base = -1
        if not apart:
            near = (np.isfinite(values) & (values >= values.max(1, keepdims=True) - _NEAR)).all(0)
            numbers = [number for number, rows in enumerate(sets) if near[rows[0]]]
            base = sets.pop(numbers[-1])[0] if numbers else -1
        masks = np.zeros((len(sets), len(forbidden)), np.bool_)
        for mask, chosen in zip(masks, sets, strict=True):
            mask[chosen] = True
        return forbidden.reshape(shape), base, [mask.reshape(shape) for mask in masks]

    def _forbid(
        self, scope: list[tuple[int, ...]], target: Bools, within: Bools, *others: int
    ) -> None:
        """Add a clause per cube of configurations: it is excluded, or one of ``others`` holds."""
        key = target.tobytes(), within.tobytes(), target.shape
        if key not in self._covers:
            self._covers[key] = list(_cover(target, within))
        for cube in self._covers[key]:
            clause = {*others}
            for literals, chosen in zip(scope, cube, strict=True):
                if len(chosen) == 1:
                    clause.add(-literals[chosen[0]])
                elif len(chosen) < len(literals):
                    clause.update(x for s, x in enumerate(literals) if s not in chosen)
            if not any(-x in clause for x in clause):
                self._clauses.add(tuple(sorted(clause)))

    def made(self) -> Encoding:
        """Encoding with sorted clauses, and weights summed by literal."""
        device, dtype = self._constant.device, self._constant.dtype
        batch = max([1, *(len(values) for _, values in self._weights)])
        weights = torch.zeros(batch, 2 * self._count, dtype=dtype, device=device)
        if self._weights:
            places = [x for targets, _ in self._weights for x in targets]
            values = torch.cat([values.expand(batch, -1) for _, values in self._weights], 1)
            weights = weights.index_add(1, torch.tensor(places, device=device), values)
        return Encoding(
            tuple(self._literals), tuple(sorted(self._clauses)), weights, self._constant
        )


def _cover(target: Bools, within: Bools) -> Iterator[list[tuple[int, ...]]]:
    """Maximal cubes within a set of configurations that cover a target.

    A cube is the states of each variable, extended one variable after another.
    """
    left = target.copy()
    for start in zip(*np.nonzero(target), strict=True):
        if not left[start]:
            continue
        cube = [[int(s)] for s in start]
        for slot in range(target.ndim):
            others = [*cube]
            others[slot] = list(range(target.shape[slot]))
            inside = within[np.ix_(*others)]
            fits = inside.all(tuple(d for d in range(target.ndim) if d != slot))
            cube[slot] = np.flatnonzero(fits).tolist()
        left[np.ix_(*cube)] = False
        yield [tuple(states) for states in cube]
