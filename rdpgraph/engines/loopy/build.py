"""A reduced network in message-passing form, and messages carried from one to another."""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from rdpgraph.engines.loopy.arithmetic import take
from rdpgraph.engines.loopy.counting import CountingNumbers
from rdpgraph.engines.loopy.edges import Edges, Segment, edges_of
from rdpgraph.engines.loopy.equations import Equations, Messages
from rdpgraph.engines.loopy.high_order import HighOrderKernel
from rdpgraph.engines.loopy.kernels import FactorKernel, TableKernel
from rdpgraph.engines.reduction.network import Group, Network


def edges_in(network: Network) -> Edges:
    """The edges of a network's factors of two and more variables."""
    kernels = _kernels(network, 1.0)
    return edges_of(
        [kernel.ports for kernel in kernels],
        [kernel.count for kernel in kernels],
        network.sizes,
        network.numbers,
        network.graph.num_variables,
    )


def message_groups(network: Network) -> list[int]:
    """The group that each kernel of the equations stands for."""
    return [n for n, group in enumerate(network.groups) if group.scopes.shape[1] > 1]


def equations_of(
    network: Network, edges: Edges, counting: CountingNumbers, temperature: float
) -> Equations:
    """The equations of a network; factors of one variable become its unary log-potential."""
    weights = counting.numbers(edges)
    kernels = _kernels(network, temperature)
    if weights is not None:
        weights = tuple(w.to(network.constant) for w in weights)
        kernels = [k.weighted(w) for k, w in zip(kernels, weights, strict=True)]
    vanishing = any(
        len(group.log_tables) > 1 and not group.extent[0] > -math.inf for group in network.groups
    )
    return Equations(
        edges=edges,
        kernels=tuple(kernels),
        unary=_unary(network, edges),
        weights=None if weights is None else _edge_weights(edges, weights),
        factor_weights=weights,
        temperature=temperature,
        batch=network.batch,
        vanishing=vanishing,
        lowest=-reach(network.groups, network.constant.dtype),
    )


def reach(groups: Sequence[Group], dtype: torch.dtype) -> float:
    """How far log-messages may go: so far that what is added to them is still seen."""
    largest = 1.0
    for group in groups:
        low, high = group.extent
        if not low > -math.inf and group.log_tables.numel():
            logs = group.log_tables.detach()
            low, high = map(float, torch.where(logs > -math.inf, logs, 0.0).aminmax())
        largest = max(largest, -low, high) if group.log_tables.numel() else largest
    return largest * (1e6 if dtype == torch.float64 else 1e3)


def _kernels(network: Network, temperature: float) -> list[FactorKernel]:
    tables = [
        TableKernel(network.groups[number], None, temperature) for number in message_groups(network)
    ]
    return [*tables, *(HighOrderKernel(w, network, None, temperature) for w in network.high_order)]


def _edge_weights(edges: Edges, weights: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    parts: list[list[Tensor]] = [[] for _ in edges.classes]
    for segment in edges.segments:
        rows = edges.ports[segment.kernel][segment.port].rows
        own = weights[segment.kernel]
        parts[segment.size_class].append(own if rows is None else own[rows.to(own.device)])
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


def carried(old: tuple[Network, Edges, Messages], new: tuple[Network, Edges]) -> Messages:
    """Messages for a new network, those that it shares with an old one at their old values.

    A message is shared if its factor stands in the same place of the same block, and its variable
    has the same states left. All others say nothing, as does every one if the batches differ.
    """
    network, edges = new
    before, old_edges, messages = old
    batch = network.batch
    if messages and messages[0].shape[0] not in (1, batch):
        messages = tuple(message[:0] for message in messages)
    like = network.constant
    result = [like.new_zeros(batch, c.size, c.count) for c in edges.classes]
    if not messages or not messages[0].shape[0]:
        return tuple(result)
    old_ends = _ends(before, old_edges)
    for key, (place, numbers, edge_of) in _ends(network, edges).items():
        if key not in old_ends:
            continue
        old_place, old_numbers, old_edge_of = old_ends[key]
        if len(edge_of) != len(old_edge_of):
            continue
        both = (edge_of >= 0) & (old_edge_of >= 0) & (numbers == old_numbers)
        rows = both.nonzero().flatten()
        variables, size = numbers[rows], key[2]
        same = network.states_left(variables, size) == before.states_left(variables, size)
        rows = rows[same.all(1)]
        values = take(messages[old_place].detach(), old_edge_of[rows])
        # What the evidence before ruled out need not be ruled out now.
        values = torch.where((values > -math.inf).all(1, keepdim=True), values, 0.0)
        result[place].index_copy_(2, edge_of[rows], values.to(like).expand(batch, -1, -1))
    return tuple(result)


def ends(network: Network, edges: Edges) -> Iterator[tuple[int, int, Tensor, Segment]]:
    """For every segment of edges: the block, the slot, and which of the block's factors."""
    tables = message_groups(network)
    for block, origins in enumerate(network.origins):
        for members, group, slots in origins:
            if group in tables:
                for port, slot in enumerate(slots):
                    segment = edges.by_kernel[tables.index(group)][port]
                    yield block, slot, members, edges.segments[segment]
    for number, block in enumerate(network.high_order):
        kernel = len(tables) + number
        for port, segment in zip(edges.ports[kernel], edges.by_kernel[kernel], strict=True):
            assert port.rows is not None
            yield block.number, port.slot, port.rows, edges.segments[segment]


def _ends(network: Network, edges: Edges) -> dict[tuple[int, int, int], tuple[int, Tensor, Tensor]]:
    """Per block, slot and size: the class, and each factor's variable and edge (or -1)."""
    by_slot = dict[tuple[int, int, int], tuple[int, Tensor, Tensor]]()
    for block, slot, members, segment in ends(network, edges):
        scopes = network.graph.blocks[block].scopes
        # The factors of a slot may differ in the states that their variables have left.
        key = (block, slot, edges.classes[segment.size_class].size)
        if key not in by_slot:
            none = torch.full((len(scopes),), -1, device="cpu")
            by_slot[key] = (segment.size_class, scopes[:, slot], none)
        by_slot[key][2][members] = torch.arange(segment.start, segment.stop, device="cpu")
    return by_slot
