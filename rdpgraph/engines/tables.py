"""The factors of one batch item as arrays of NumPy, and the scores of configurations."""

import math
from collections.abc import Set
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from rdpgraph._cache import cached_property
from rdpgraph.engines.network import Network
from rdpgraph.plan.orders import PrimalGraph

_SURE = 40.0
"""Nats by which a violated factor outweighs all else together."""


Integers: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Stack:
    """Factors of like shape.

    Attributes:
        scopes: (F, arity) variables, in increasing order.
        values: (F, *sizes) log-values. A hard zero is so low a number that a configuration which
            violates fewer factors has the higher score, whatever the finite values are.
    """

    scopes: Integers
    values: Floats

    def at(self, rows: Integers, states: Integers, free: int = -1) -> Floats:
        """(n,) the values of some factors at states of all variables.

        Args:
            rows: (n,) of the factors.
            states: (V,) of all variables.
            free: a slot whose states are all read: the result is (n, size) then.
        """
        index = [
            slice(None) if slot == free else states[self.scopes[rows, slot]]
            for slot in range(self.scopes.shape[1])
        ]
        return self.values[(rows, *index)]


@dataclass(frozen=True, eq=False)
class Tables:
    """Factors with different scopes over active variables.

    Attributes:
        sizes: the states of each variable.
        stacks: the factors by shape.
        span: a bound on the absolute value of every sum of finite log-values.
    """

    sizes: tuple[int, ...]
    stacks: tuple[Stack, ...]
    span: float

    @cached_property
    def graph(self) -> PrimalGraph:
        """Who shares a factor with whom."""
        adjacency: list[set[int]] = [set() for _ in self.sizes]
        for stack in self.stacks:
            for scope in stack.scopes.tolist():
                for v in scope:
                    adjacency[v].update(scope)
        for v, near in enumerate(adjacency):
            near.discard(v)
        return PrimalGraph(tuple(adjacency), self.sizes)

    @cached_property
    def starts(self) -> Integers:
        """(V + 1,) where the states of each variable begin in a list of all."""
        return np.concatenate([[0], np.cumsum(self.sizes)]).astype(np.int64)

    def is_possible(self, score: float) -> bool:
        """Whether a configuration with this score violates no factor."""
        return score >= -self.span - 0.5 * _SURE

    def score(self, states: Integers) -> float:
        """The summed log-values of a configuration of all variables, hard zeros included."""
        every = [np.arange(len(stack.scopes)) for stack in self.stacks]
        pairs = zip(self.stacks, every, strict=True)
        return float(sum(stack.at(rows, states).sum() for stack, rows in pairs))


def tables_of(
    network: Network, item: int, summed: Set[int] = frozenset(), *, zeros: bool = False
) -> Tables:
    """The factors of one batch item of a network; those with one scope are added up.

    Args:
        network: reduced, without whole potentials.
        item: of the batch.
        summed: variables that will be summed over.
        zeros: leave hard zeros as they are, -inf.
    """
    merged: dict[tuple[int, ...], Floats] = {}
    for group in network.groups:
        tables = group.log_tables.detach().double().cpu().numpy()
        tables = tables[item if len(tables) > 1 else 0]
        scopes = group.scopes.tolist()
        shared = len(tables) == 1
        rows = range(len(scopes)) if group.rows is None else group.rows.tolist()
        for scope, row in zip(scopes, rows, strict=True):
            dims = sorted(range(len(scope)), key=scope.__getitem__)
            own = tuple(scope[dim] for dim in dims)
            values = tables[0 if shared else row].transpose(dims)
            merged[own] = merged[own] + values if own in merged else values
    span = math.fsum(_range(values) for values in merged.values())
    span += sum(math.log(network.sizes[v]) for v in summed)
    by_shape: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    for scope, values in merged.items():
        by_shape.setdefault(values.shape, []).append(scope)
    stacks: list[Stack] = []
    for scopes in by_shape.values():
        values = np.stack([merged[scope] for scope in scopes])
        if not zeros:
            values[values == -math.inf] = -2 * span - _SURE
        stacks.append(Stack(np.array(scopes, np.int64), values))
    return Tables(network.sizes, tuple(stacks), span)


def _range(values: Floats) -> float:
    """The distance of the largest finite value from the smallest, and of both from zero."""
    finite = values[np.isfinite(values)]
    return float(finite.max() - finite.min() + abs(finite.max())) if finite.size else 0.0
