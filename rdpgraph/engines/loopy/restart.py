"""Messages carried from one solved model to another that shares factors with it."""

from typing import TypeAlias

import torch
from torch import Tensor

from rdpgraph.engines.loopy.arithmetic import take
from rdpgraph.engines.loopy.edges import Edges
from rdpgraph.engines.loopy.field import Messages
from rdpgraph.engines.network import Network

_Ends: TypeAlias = dict[tuple[int, int], tuple[int, Tensor, Tensor]]


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
        size = edges.classes[place].size
        if size != old_edges.classes[old_place].size or len(edge_of) != len(old_edge_of):
            continue
        both = (edge_of >= 0) & (old_edge_of >= 0) & (numbers == old_numbers)
        rows = both.nonzero().flatten()
        variables = numbers[rows]
        same = network.states_left(variables, size) == before.states_left(variables, size)
        rows = rows[same.all(1)]
        values = take(messages[old_place].detach(), old_edge_of[rows])
        result[place].index_copy_(2, edge_of[rows], values.to(like).expand(batch, -1, -1))
    return tuple(result)


def _ends(network: Network, edges: Edges) -> _Ends:
    """Per block and slot: the class, and for each factor its variable and its edge (or -1)."""
    kernels: dict[int, int] = {}
    for group, members in enumerate(network.groups):
        if members.scopes.shape[1] > 1:
            kernels[group] = len(kernels)
    found: _Ends = {}
    for block, origins in enumerate(network.origins):
        scopes = network.graph.blocks[block].scopes
        for members, group, slots in origins:
            if group not in kernels:
                continue
            for port, slot in enumerate(slots):
                segment = edges.segments[edges.by_kernel[kernels[group]][port]]
                # Factors of a block with different states left lie in different groups.
                key = (block, slot)
                if key in found and found[key][0] != segment.size_class:
                    continue
                if key not in found:
                    nowhere = torch.full((len(scopes),), -1)
                    found[key] = (segment.size_class, scopes[:, slot], nowhere)
                found[key][2][members] = torch.arange(segment.start, segment.stop)
    return found
