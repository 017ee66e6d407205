"""A random factor graph, and every configuration of it with its score."""

import itertools
import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

import rdpgraph as rg
from tests.fuzz.compare import Array
from tests.fuzz.pieces import Piece, Style, finite_share, piece, style

MOST_CONFIGURATIONS = 600
MOST_CELLS = 120_000  # configurations times batch items
Entry = rg.Variable | rg.VariableArray


@dataclass(frozen=True)
class Holder:
    """Some alike factors: the variables of each by number, and their piece.

    Attributes:
        scopes: (F, arity).
        number: of the piece.
        slots: what a `rg.FactorBlock` takes, None for a `rg.Factor`.
        rows: whether the piece has a dim over factors, its last lead dim.
    """

    scopes: list[tuple[int, ...]]
    number: int
    slots: tuple[Any, ...] | None
    rows: bool


@dataclass(frozen=True)
class Drawn:
    """A model as data of our own; `graph` is the library's.

    Attributes:
        entries: variables and arrays in order of declaration.
        holders: the factors.
        pieces: their potentials.
        batch: the dims in front.
        observed: (*batch, V) states, -1 where nothing is observed; None without evidence.
        how: the style of its numbers.
        split: how many holders come by `with_factors`.
    """

    entries: tuple[Entry, ...]
    holders: tuple[Holder, ...]
    pieces: tuple[Piece, ...]
    batch: tuple[int, ...]
    observed: NDArray[np.int64] | None
    how: Style
    split: int

    @cached_property
    def variables(self) -> list[rg.Variable]:
        """Every single one, members of arrays included, by number."""
        found: list[rg.Variable] = []
        for entry in self.entries:
            if isinstance(entry, rg.Variable):
                found.append(entry)
            else:
                found += [entry.member(place) for place in range(math.prod(entry.shape))]
        return found

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The numbers of states."""
        return tuple(variable.size for variable in self.variables)

    @cached_property
    def configurations(self) -> NDArray[np.int64]:
        """(C, V) all of them."""
        total = math.prod(self.sizes)
        return np.indices(self.sizes).reshape(len(self.sizes), total).T.astype(np.int64)

    def scores(self, pieces: tuple[Piece, ...] | None = None) -> Array:
        """(*batch, C) by looking up each factor's value; -inf against the evidence."""
        pieces = self.pieces if pieces is None else pieces
        total = np.zeros((*self.batch, len(self.configurations)))
        for holder in self.holders:
            values = pieces[holder.number].values()
            for row, scope in enumerate(holder.scopes):
                own = values
                if holder.rows:
                    axis = values.ndim - len(scope) - 1
                    own = values.take(row if values.shape[axis] > 1 else 0, axis)
                place = np.zeros(len(self.configurations), dtype=np.int64)
                for number in scope:
                    place = place * self.sizes[number] + self.configurations[:, number]
                lead = own.shape[: own.ndim - len(scope)]
                total = total + own.reshape(*lead, -1)[..., place]
        if self.observed is not None:
            seen = self.observed[..., None, :]
            clash = ((seen >= 0) & (seen != self.configurations)).any(-1)
            total = np.where(clash, -np.inf, total)
        return total

    @cached_property
    def spread(self) -> float:
        """The largest magnitude of a score: what rounding is relative to."""
        return sum(
            finite_share(self.pieces[h.number].values()) * len(h.scopes) for h in self.holders
        )

    def potentials(self, tensors: list[dict[str, torch.Tensor]] | None = None) -> list[Any]:
        """The library's, one for each piece."""
        if tensors is None:
            tensors = [piece.tensors() for piece in self.pieces]
        return [p.build(own) for p, own in zip(self.pieces, tensors, strict=True)]

    def graph(self, rng: np.random.Generator, potentials: list[Any]) -> rg.FactorGraph:
        """The library's graph, evidence included, by one of the ways to say it."""
        factors: list[rg.Factor | rg.FactorBlock] = []
        for holder in self.holders:
            potential = potentials[holder.number]
            if holder.slots is None:
                scope = tuple(self.variables[number] for number in holder.scopes[0])
                factors.append(rg.Factor(scope, potential))
            else:
                factors.append(rg.FactorBlock(holder.slots, potential))
        first = len(factors) - self.split
        graph = rg.FactorGraph(factors[:first], variables=self.entries)
        if self.split:
            graph = graph.with_factors(*factors[first:])
        for evidence in self.evidence(rng):
            graph = graph.condition(evidence)
        return graph

    def evidence(self, rng: np.random.Generator) -> list[dict[Any, Any]]:
        """Draw evidence: by variables or names, indices, names of states or tensors."""
        if self.observed is None:
            return []
        given: list[tuple[Any, Any]] = []
        start = 0
        for entry in self.entries:
            count = math.prod(entry.shape)
            states = self.observed[..., start : start + count]
            start += count
            if (states < 0).all() and rng.random() < 0.7:
                continue
            key: Any = entry.name if rng.random() < 0.5 else entry
            if self.batch or not isinstance(entry, rg.Variable):
                value: Any = torch.tensor(states.reshape(*self.batch, *entry.shape))
            else:
                value = None if states[0] < 0 else int(states[0])
                names = (
                    entry.states if isinstance(entry.states, tuple) and value is not None else ()
                )
                if names:
                    value = names[value] if rng.random() < 0.5 else torch.tensor(value)
            given.append((key, value))
        if len(self.batch) == 1 and given and rng.random() < 0.3:
            return [self._frame([entry for entry, _ in given])]
        parts = [dict(given)]
        if len(given) > 1 and rng.random() < 0.3:
            parts = [dict(given[:1]), dict(given[1:])]
        lead_lost = self.batch and not any(given for given in parts)
        return (
            [{entry: torch.full((*self.batch, *entry.shape), -1) for entry in self.entries[:1]}]
            if lead_lost
            else parts
        )

    def _frame(self, keys: list[Any]) -> Any:
        """Rows of states by their values, a column for each variable; a frame or a list."""
        kept = {key if isinstance(key, str) else key.name for key in keys}
        rows: list[dict[str, Any]] = [{} for _ in range(self.batch[0])]
        for number, variable in enumerate(self.variables):
            names = variable.states if isinstance(variable.states, tuple) else range(variable.size)
            if variable.name.split("[")[0] in kept:
                for row, state in zip(rows, self.rows[:, number], strict=True):
                    row[variable.name] = None if state < 0 else names[state]
        return pd.DataFrame(rows, dtype=object) if len(rows) % 2 else rows

    @property
    def rows(self) -> NDArray[np.int64]:
        """(B, V) what is observed in each item of one batch dim."""
        assert self.observed is not None
        return np.broadcast_to(self.observed, (*self.batch, len(self.variables)))

    def without(self, number: int) -> "Drawn":
        """The same with fewer holders: to make a failing case smaller by hand."""
        return replace(self, holders=self.holders[:number] + self.holders[number + 1 :])


def draw(rng: np.random.Generator) -> Drawn:
    """A random model, at times of no variables or no factors."""
    how = style(rng)
    entries = _entries(rng)
    blank = Drawn(tuple(entries), (), (), (), None, how, 0)
    total = math.prod(blank.sizes)
    batch = _batch(rng, total)
    pieces: list[Piece] = []
    holders: list[Holder] = []

    def lead() -> tuple[int, ...]:
        shape = rng.choice([0, 1, 2], p=[0.6, 0.3, 0.1])
        if shape == 0:
            return batch
        return () if shape == 1 else tuple(n if rng.random() < 0.5 else 1 for n in batch)

    for _ in range(int(rng.integers(0, 3 + len(blank.sizes)))):
        arity = min(int(rng.choice([0, 1, 2, 2, 2, 3, 3, 4])), len(blank.sizes))
        scope = tuple(int(n) for n in rng.permutation(len(blank.sizes))[:arity])
        known = [
            number
            for number, p in enumerate(pieces)
            if p.values().shape[len(p.lead) :] == tuple(blank.sizes[n] for n in scope)
            and len(p.lead) <= len(batch)
        ]
        if known and rng.random() < 0.2:  # one potential in two factors
            holders.append(Holder([scope], int(rng.choice(known)), None, rows=False))
            continue
        holders.append(Holder([scope], len(pieces), None, rows=False))
        pieces.append(piece(rng, how, tuple(blank.sizes[n] for n in scope), lead()))
    for entry in entries:
        if isinstance(entry, rg.VariableArray) and rng.random() < 0.8:
            slots, scopes = _slots(rng, entry, blank)
            sizes = tuple(blank.sizes[number] for number in scopes[0])
            rows = bool(rng.random() < 0.6)
            own = lead()
            shape = (*own, len(scopes) if rng.random() < 0.8 else 1) if rows else ()
            made = piece(rng, how, sizes, shape)
            # A piece that shares all its numbers has no lead, whatever was asked for.
            rows = rows and bool(made.lead)
            holders.append(Holder(scopes, len(pieces), slots, rows=rows))
            pieces.append(made)
    order = [holders[int(place)] for place in rng.permutation(len(holders))]
    leads = [
        p.values().shape[: -len(h.scopes[0]) or None] for h in order for p in (pieces[h.number],)
    ]
    leads = [shape[:-1] if h.rows else shape for h, shape in zip(order, leads, strict=True)]
    observed = None
    if len(blank.sizes) and rng.random() < 0.5:
        seen = rng.integers(0, np.array(blank.sizes), size=(*batch, len(blank.sizes)))
        share = rng.choice([0.2, 0.5, 0.9])
        observed = np.where(rng.random(seen.shape) < share, seen, -1)
        if rng.random() < 0.5:  # the same variables in all items, as in a data set
            observed = np.where(rng.random(len(blank.sizes)) < share, seen, -1)
        leads.append(batch)
    batch = np.broadcast_shapes(*leads) if leads else ()
    split = int(rng.integers(0, len(order) + 1)) if rng.random() < 0.3 else 0
    return Drawn(tuple(entries), tuple(order), tuple(pieces), batch, observed, how, split)


def _entries(rng: np.random.Generator) -> list[Entry]:
    entries: list[Entry] = []
    total = 1
    if rng.random() < 0.5:
        shape = tuple(int(n) for n in rng.choice([[3, 1], [4, 1], [2, 2], [5, 1]]))
        shape = shape[:1] if shape[1] == 1 else shape
        size = int(rng.choice([2, 2, 3]))
        if size ** math.prod(shape) <= MOST_CONFIGURATIONS:
            entries.append(rg.VariableArray("a", shape, size))
            total = size ** math.prod(shape)
    small = rng.random() < 0.4  # for logical factors
    for number in range(int(rng.integers(0, 7))):
        size = 2 if small else int(rng.choice([1, 2, 2, 3, 3, 4]))
        if total * size > MOST_CONFIGURATIONS:
            break
        total *= size
        named = rng.random() < 0.4
        names = [tuple(f"s{place}" for place in range(size)), tuple(range(2, 2 + size))]
        names += [(True, False)] if size == 2 else []
        states = names[int(rng.integers(len(names)))] if named else size
        entries.append(rg.Variable(f"x{number}", states))
    return [entries[int(place)] for place in rng.permutation(len(entries))]


def _batch(rng: np.random.Generator, total: int) -> tuple[int, ...]:
    most = max(min(MOST_CELLS // max(total, 1), 400), 1)
    kind = rng.random()
    if kind < 0.15:
        return ()
    if kind < 0.25:
        return int(rng.integers(1, 4)), int(rng.integers(1, 5))
    return (int(rng.integers(min(50, most), most + 1)),)


def _slots(
    rng: np.random.Generator, array: rg.VariableArray, blank: Drawn
) -> tuple[tuple[Any, ...], list[tuple[int, ...]]]:
    """Slots of a block over an array, and the scopes of its factors, in order."""
    start = next(n for n, v in enumerate(blank.variables) if v.name.startswith("a["))
    places = np.arange(math.prod(array.shape)).reshape(array.shape) + start
    flat = places.reshape(-1)
    others = [v for v in blank.variables if not v.name.startswith("a[")]
    kind = int(rng.integers(0, 4 if others else 3))
    if kind == 0 and len(array.shape) == 1:
        return (array,), [(int(n),) for n in flat]
    if kind == 1 and len(array.shape) == 1:
        pairs = itertools.pairwise(flat)
        return (array[:-1], array[1:]), [(int(i), int(j)) for i, j in pairs]
    members = [array.member(place) for place in range(len(flat))]
    if kind == 3:
        other = others[int(rng.integers(0, len(others)))]
        number = blank.variables.index(other)
        return (members, other), [(int(n), number) for n in flat]
    turned = [int(n) for n in rng.permutation(len(flat))]
    half = max(len(flat) // 2, 1)
    pairs = list(zip(turned[:half], turned[half : 2 * half], strict=True))
    slots = ([members[i] for i, _ in pairs], [members[j] for _, j in pairs])
    return slots, [(int(flat[i]), int(flat[j])) for i, j in pairs]
