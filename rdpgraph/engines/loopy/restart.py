"""Messages carried from one solved model to another that shares factors with it."""

import math
from collections.abc import Iterator
from typing import TypeAlias

import torch
from torch import Tensor

from rdpgraph.engines.loopy.arithmetic import take
from rdpgraph.engines.loopy.edges import Edges, Segment
from rdpgraph.engines.loopy.equations import Messages
from rdpgraph.engines.network import Network

_Ends: TypeAlias = dict[tuple[int, int, int], tuple[int, Tensor, Tensor]]


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
    tables = [n for n, group in enumerate(network.groups) if group.scopes.shape[1] > 1]
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


def _ends(network: Network, edges: Edges) -> _Ends:
    """Per block, slot and size: the class, and each factor's variable and edge (or -1)."""
    by_slot: _Ends = {}
    for block, slot, members, segment in ends(network, edges):
        scopes = network.graph.blocks[block].scopes
        # The factors of a slot may differ in the states that their variables have left.
        key = (block, slot, edges.classes[segment.size_class].size)
        if key not in by_slot:
            by_slot[key] = (
                segment.size_class,
                scopes[:, slot],
                torch.full((len(scopes),), -1, device="cpu"),
            )
        by_slot[key][2][members] = torch.arange(segment.start, segment.stop, device="cpu")
    return by_slot
