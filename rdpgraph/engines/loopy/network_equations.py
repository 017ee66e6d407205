"""Message-passing equations of a reduced network."""

import math
from collections.abc import Sequence
from itertools import repeat

import torch
from torch import Tensor

from rdpgraph.engines.loopy.counting import CountingNumbers
from rdpgraph.engines.loopy.edges import Edges, edges_of
from rdpgraph.engines.loopy.equations import Equations
from rdpgraph.engines.loopy.high_order import HighOrderKernel
from rdpgraph.engines.loopy.kernels import FactorKernel, TableKernel
from rdpgraph.engines.reduction.network import Group, Network


def edges_in(network: Network) -> Edges:
    """Edges of a network's factors of two and more variables."""
    kernels = _kernels(network, 1.0, None)
    return edges_of(
        [kernel.ports for kernel in kernels],
        [kernel.count for kernel in kernels],
        network.sizes,
        network.numbers,
        network.graph.num_variables,
    )


def message_groups(network: Network) -> list[int]:
    """Group number of each table kernel of the equations."""
    return [n for n, group in enumerate(network.groups) if group.scopes.shape[1] > 1]


def equations_of(
    network: Network, edges: Edges, counting: CountingNumbers, temperature: float
) -> Equations:
    """Equations of a network; factors of one variable become its unary log-potential."""
    weights = counting.numbers(edges)
    if weights is not None:
        weights = tuple(w.to(network.constant) for w in weights)
    vanishing = any(
        len(group.log_tables) > 1 and not group.extent[0] > -math.inf for group in network.groups
    )
    return Equations(
        edges=edges,
        kernels=_kernels(network, temperature, weights),
        unary=_unary(network, edges),
        weights=None if weights is None else _edge_weights(edges, weights),
        factor_weights=weights,
        temperature=temperature,
        batch=network.batch,
        vanishing=vanishing,
        lowest=-reach(network.groups, network.constant.dtype),
    )


def reach(groups: Sequence[Group], dtype: torch.dtype) -> float:
    """Bound on the size of log-messages; beyond it, added log-values would be lost to rounding."""
    largest = 1.0
    for group in groups:
        low, high = group.extent
        if not low > -math.inf and group.log_tables.numel():
            logs = group.log_tables.detach()
            low, high = map(float, torch.where(logs > -math.inf, logs, 0.0).aminmax())
        largest = max(largest, -low, high) if group.log_tables.numel() else largest
    return largest * (1e6 if dtype == torch.float64 else 1e3)


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
    """Per class (1 or B, K, n)."""
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
