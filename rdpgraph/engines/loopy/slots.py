"""Messages by block and slot of the graph, whatever the reduction to a network did to them."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TypeAlias

import torch
from torch import Tensor

from rdpgraph.engines.loopy.arithmetic import rescaled, take
from rdpgraph.engines.loopy.equations import Messages
from rdpgraph.engines.loopy.restart import ends
from rdpgraph.engines.loopy.solution import LoopySolution
from rdpgraph.engines.network import Network

BySlot: TypeAlias = Mapping[tuple[int, int], Tensor]
"""For a block and a slot (B, F, k) logs over the states of the slot's variables."""


def arriving_messages(solution: LoopySolution) -> BySlot:
    """What each factor says to the variable at each slot; 0 where no message is passed."""
    network = solution.network
    filled = _filled(network, 0.0)
    return _with_edges(solution, filled, solution.outcome.messages)


def cavities(solution: LoopySolution) -> BySlot:
    """What the variable at each slot says to each factor: its belief without the factor's own part.

    -inf at states that hard zeros have ruled out.
    """
    network, messages = solution.network, solution.outcome.messages
    if network.impossible:
        return _filled(network, 0.0)
    equations, edges = solution.equations, solution.edges
    beliefs = equations.beliefs(messages)
    filled = _filled(network, -math.inf)
    rows = torch.arange(len(network.settled), device="cpu")
    for block, origins in enumerate(network.origins):
        scopes = network.graph.blocks[block].scopes
        for members, group, slots in origins if scopes.shape[1] > 1 else ():
            for slot in range(scopes.shape[1]):
                if slot not in slots:
                    states = network.settled[:, scopes[members, slot]].unsqueeze(-1)
                    index = (rows.reshape(-1, 1, 1), members.reshape(-1, 1), states)
                    zeros = filled[block, slot].new_zeros(())
                    if len(rows) == 1:
                        index = (
                            torch.arange(network.batch, device="cpu").reshape(-1, 1, 1),
                            *index[1:],
                        )
                    filled[block, slot] = _put(filled[block, slot], index, zeros)
            if len(slots) == 1:
                # The other slots are settled, and the factor is a part of a variable's unary one.
                own = network.groups[group]
                active = own.scopes[:, 0]
                home = int(edges.home[active[0]])
                belief = take(beliefs[home], edges.local[active].to(beliefs[home].device))
                part = own.each().transpose(1, 2)
                alive = part > -math.inf
                rest = torch.where(alive, belief - torch.where(alive, part, 0.0), -math.inf)
                filled[block, slots[0]] = _at_left(
                    network, filled[block, slots[0]], block, slots[0], members, rest
                )
    return _with_edges(solution, filled, equations.cavities(messages, beliefs))


def started(solution: LoopySolution, messages: BySlot) -> LoopySolution:
    """The same, beginning with these messages; a slot that none is given for begins with none."""
    network, edges = solution.network, solution.edges
    start = [
        network.constant.new_zeros(network.batch, c.size, c.count).detach() for c in edges.classes
    ]
    for block, slot, members, segment in ends(network, edges):
        given = messages.get((block, slot))
        if given is None:
            continue
        size = edges.classes[segment.size_class].size
        left = network.states_left(network.graph.blocks[block].scopes[members, slot], size)
        device = given.device
        values = given.detach()[:, members.to(device)].gather(
            2, left.to(device).expand(len(given), -1, -1)
        )
        values = rescaled(values.transpose(1, 2), vanishing=True)[0]
        # A state that nothing kept before spoke for may have support now.
        values = torch.where((values > -math.inf).all(1, keepdim=True), values, 0.0)
        start[segment.size_class][:, :, segment.start : segment.stop] = values
    return replace(solution, start=tuple(start))


def _filled(network: Network, value: float) -> dict[tuple[int, int], Tensor]:
    like = network.constant
    return {
        (number, slot): like.new_full((network.batch, block.count, size), value)
        for number, block in enumerate(network.graph.blocks)
        for slot, size in enumerate(block.sizes)
        if block.arity > 1
    }


def _with_edges(
    solution: LoopySolution, filled: dict[tuple[int, int], Tensor], values: Messages
) -> BySlot:
    network, edges = solution.network, solution.edges
    for block, slot, members, segment in ends(network, edges):
        own = values[segment.size_class][:, :, segment.start : segment.stop]
        filled[block, slot] = _at_left(network, filled[block, slot], block, slot, members, own)
    return filled


def _at_left(
    network: Network, target: Tensor, block: int, slot: int, members: Tensor, values: Tensor
) -> Tensor:
    """(B, F, k) with (b, left, n) values put at the states left of some factors' variables."""
    scopes = network.graph.blocks[block].scopes[members, slot]
    states = network.states_left(scopes, values.shape[1])
    batch = torch.arange(network.batch, device="cpu").reshape(-1, 1, 1)
    index = (batch, members.reshape(-1, 1), states)
    return _put(target, index, values.transpose(1, 2).expand(network.batch, -1, -1))


def _put(target: Tensor, index: tuple[Tensor, ...], values: Tensor) -> Tensor:
    return target.index_put(tuple(part.to(target.device) for part in index), values.to(target))
