"""The equations of message passing in a reduced network, and counting numbers of its factors.

Counting numbers are the weights of the factors' entropies in the approximation of log Z.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import cast

import torch
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph._core.arguments import require_fields
from rdpgraph.engines.loopy.edges import Edges, edges_of
from rdpgraph.engines.loopy.equations import Equations
from rdpgraph.engines.loopy.high_order import HighOrderKernel
from rdpgraph.engines.loopy.kernels import FactorKernel, TableKernel
from rdpgraph.engines.reduction.network import Group, Network
from rdpgraph.model.potentials.automaton import Automaton


class CountingNumbers(ABC):
    """A counting number for every factor; a variable has one minus the sum of its factors'."""

    @abstractmethod
    def numbers(self, edges: Edges) -> tuple[Tensor, ...] | None:
        """Return for each kernel (F,) numbers above zero in float64, or None if all are one.

        Args:
            edges: ``edges.ports[kernel]`` are the slots of the kernel's factors, without unary
                factors, and ``edges.factors[kernel]`` is the number of factors.
        """

    @property
    def bounds_above(self) -> bool:
        """True if log Z at a fixed point is an upper bound."""
        return False


@dataclass(frozen=True)
class Bethe(CountingNumbers):
    """Counting numbers of one: plain belief propagation (Yedidia, Freeman, Weiss 2005)."""

    def numbers(self, edges: Edges) -> None:
        """Return None, because the counting numbers of all factors are one."""
        return


@dataclass(frozen=True)
class Fractional(CountingNumbers):
    """One number for all factors: fractional belief propagation (Wiegerinck, Heskes 2003).

    Args:
        number: a number above zero. 1 is plain belief propagation, and large numbers approach mean
            field. The larger it is, the smaller is log Z.
    """

    number: float

    def __post_init__(self) -> None:
        require_fields(self, number="(0, inf)")

    def numbers(self, edges: Edges) -> tuple[Tensor, ...]:
        """Return the number for every factor."""
        return tuple(
            torch.full((count,), self.number, dtype=torch.float64, device="cpu")
            for count in edges.factors
        )


@dataclass(frozen=True)
class TreeReweighted(CountingNumbers):
    """Counting numbers that are the probabilities that a random spanning tree holds the factor.

    At a fixed point log Z is an upper bound (Wainwright, Jaakkola, Willsky 2005, theorem 7). With
    factors of three and more variables the trees are maximal sets of factors without a cycle.

    In pairwise models of up to 2,000 variables the trees are uniform, and the matrix-tree theorem
    gives the probabilities exactly. In others they are the frequencies in a few random trees that
    between them hold every factor. That is a distribution over trees too, so that the bound holds.

    Args:
        trees: how many trees are drawn at least, where they are drawn.
        seed: the seed of the draw.
    """

    trees: int = 8
    seed: int = 0

    def __post_init__(self) -> None:
        require_fields(self, trees="[1, inf)")

    def numbers(self, edges: Edges) -> tuple[Tensor, ...]:
        """Return for each kernel the (F,) probabilities that a random tree holds a factor."""
        scopes, count = edges.scopes, len(edges.home)
        pairwise = all(scope.shape[1] == 2 and bool((scope >= 0).all()) for scope in scopes)
        if count <= tuning.SOLVED_TREES and pairwise:
            joined = torch.cat([*scopes, torch.zeros(0, 2, dtype=torch.long, device="cpu")])
            appearances = _uniform_trees(joined, count)
        else:
            appearances = _drawn_trees(edges.listed_scopes(), count, self.trees, self.seed)
        return torch.split(appearances, [len(scope) for scope in scopes])

    @property
    def bounds_above(self) -> bool:
        """True, because log Z at a fixed point is an upper bound."""
        return True


def _uniform_trees(pairs: Tensor, count: int) -> Tensor:
    """Return the (F,) effective resistances, which are edges' probabilities in a uniform tree."""
    if not len(pairs):
        return torch.zeros(0, dtype=torch.float64, device="cpu")
    laplacian = torch.zeros(count, count, dtype=torch.float64, device="cpu")
    left, right = pairs.T
    ones = torch.ones(len(pairs), dtype=torch.float64, device="cpu")
    for one, other in ((left, right), (right, left)):
        laplacian.index_put_((one, one), ones, accumulate=True)
        laplacian.index_put_((one, other), -ones, accumulate=True)
    inverse = torch.linalg.pinv(laplacian, hermitian=True)
    diagonal = inverse.diagonal()
    resistance = diagonal[left] + diagonal[right] - 2 * inverse[left, right]
    return resistance.clamp(1e-6, 1.0)


def _drawn_trees(scopes: list[tuple[int, ...]], count: int, least: int, seed: int) -> Tensor:
    """Draw maximal acyclic sets until each factor was in one; return (F,) their frequencies."""
    generator = torch.Generator().manual_seed(seed)
    hits = [0] * len(scopes)
    trees = 0
    waiting = len(scopes)
    while trees < least or waiting:
        noise = torch.rand(len(scopes), generator=generator, device="cpu").tolist()
        # Factors that no tree holds yet come first.
        parent = list(range(count))
        for factor in sorted(range(len(scopes)), key=lambda f: (hits[f] > 0, noise[f])):
            roots = {_root(parent, v) for v in scopes[factor]}
            if len(roots) < len(scopes[factor]):
                continue
            first = min(roots, default=0)
            for root in roots:
                parent[root] = first
            waiting -= hits[factor] == 0
            hits[factor] += 1
        trees += 1
    return torch.tensor(hits, dtype=torch.float64, device="cpu") / max(trees, 1)


def _root(parent: list[int], member: int) -> int:
    while parent[member] != member:
        parent[member] = parent[parent[member]]
        member = parent[member]
    return member


def edges_in(network: Network) -> Edges:
    """Return the edges of a network's factors of two and more variables."""
    kernels = _kernels(network, 1.0, None)
    return edges_of(
        [kernel.ports for kernel in kernels],
        [kernel.count for kernel in kernels],
        network.counts,
        network.numbers,
        network.graph.num_variables,
    )


def message_groups(network: Network) -> list[int]:
    """Return the group number of each table kernel of the equations."""
    return [n for n, group in enumerate(network.groups) if group.scopes.shape[1] > 1]


def equations_of(
    network: Network, edges: Edges, counting: CountingNumbers, temperature: float
) -> Equations:
    """Return the equations of a network; factors of one variable become its unary log-potential."""
    weights = counting.numbers(edges)
    if weights is not None:
        weights = tuple(w.to(network.constant) for w in weights)
    kernels = _kernels(network, temperature, weights)
    # States are left that are possible in any item: in another item, a message may have none of
    # them. Potentials and tables may differ between items, and so may what was observed in the
    # other slots of a logical factor.
    observed_apart = len(network.settled) > 1 and bool(network.high_order)
    vanishing = observed_apart or any(not kernel.divisible for kernel in kernels)
    vanishing = vanishing or any(
        len(group.log_tables) > 1 and not group.extent[0] > -math.inf for group in network.groups
    )
    return Equations(
        edges=edges,
        kernels=kernels,
        unary=_unary(network, edges),
        weights=None if weights is None else _edge_weights(edges, weights),
        factor_weights=weights,
        temperature=temperature,
        batch=network.batch,
        vanishing=vanishing,
        lowest=-reach(network.groups, network.constant.dtype),
    )


def reach(groups: Sequence[Group], dtype: torch.dtype) -> float:
    """Return a bound on log-messages, beyond which rounding would lose log-values added to them."""
    largest = 1.0
    for group in groups:
        low, high = group.extent
        if not low > -math.inf and group.log_tables.numel():
            logs = group.log_tables.detach()
            low, high = map(float, torch.where(logs > -math.inf, logs, 0.0).aminmax())
        largest = max(largest, -low, high) if group.log_tables.numel() else largest
    return largest * (1e6 if dtype == torch.float64 else 1e3)


def without_floors(total: Tensor, network: Network, lowest: float) -> Tensor:
    """Return Bethe values, or a lower bound where messages at their floor went into them.

    Messages at their floor contradict each other, and the floor is an arbitrary number. The sum of
    the least log-values of the factors takes the place of a value that such messages went into.
    """
    if not all(isinstance(block.potential, Automaton) for block in network.high_order):
        return total
    with torch.no_grad():
        least = torch.zeros_like(total)
        tables = [(group.each().flatten(2), len(group.scopes)) for group in network.groups]
        for block in network.high_order:
            accept = cast(Automaton, block.potential).log_accept
            ends = *(accept.shape[-2:-1] or (1,)), accept.shape[-1]
            rows = accept.expand(*network.graph.batch_shape, *ends).reshape(-1, *ends)
            tables.append((rows, len(block.scopes)))
        for logs, factors in tables:
            scores = torch.where(logs > -math.inf, logs, math.inf).amin(2).double()
            least = least + scores.expand(-1, factors).sum(1)
        beyond = (total > -math.inf) & (total < least + 0.5 * lowest)
    return torch.where(beyond & least.isfinite(), least, total)


def _kernels(
    network: Network, temperature: float, weights: tuple[Tensor, ...] | None
) -> tuple[FactorKernel, ...]:
    groups = [network.groups[number] for number in message_groups(network)]
    each = weights or [None] * (len(groups) + len(network.high_order))
    return (
        *map(TableKernel, groups, each, repeat(temperature)),
        *(
            HighOrderKernel(block, network, weight, temperature)
            for block, weight in zip(network.high_order, each[len(groups) :], strict=True)
        ),
    )


def _edge_weights(edges: Edges, weights: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    parts: list[list[Tensor]] = [[] for _ in edges.classes]
    for segment in edges.segments:
        rows = edges.ports[segment.kernel][segment.port].rows
        weight = weights[segment.kernel]
        parts[segment.size_class].append(weight if rows is None else weight[rows.to(weight.device)])
    empty = weights[0].new_zeros(0) if weights else torch.zeros(0, device="cpu")
    return tuple(torch.cat([*part, empty]) for part in parts)


def _unary(network: Network, edges: Edges) -> tuple[Tensor, ...]:
    """Return for each class the (1 or B, K, n) unary log-potentials."""
    lone = [group for group in network.groups if group.scopes.shape[1] == 1]
    batch = max([len(group.log_tables) for group in lone], default=1)
    unaries: list[Tensor] = []
    for c in edges.classes:
        total = network.constant.new_zeros(batch, c.size, len(c.variables))
        for group in lone:
            if group.log_tables.shape[2] != c.size:
                continue
            places = edges.local[group.scopes[:, 0]].to(total.device)
            values = group.each().transpose(1, 2).expand(-1, -1, len(places))
            total = total.index_add(2, places, values.expand(batch, -1, -1))
        unaries.append(total)
    return tuple(unaries)
