"""Messages by the blocks and slots of a graph, and their interpolation from kept states to all."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph._core.cache import cached_property, differentiable_property
from rdpgraph.engines.loopy.arithmetic import rescaled, take
from rdpgraph.engines.loopy.edges import Edges, Segment
from rdpgraph.engines.loopy.equations import Messages
from rdpgraph.engines.loopy.network_equations import message_groups
from rdpgraph.engines.loopy.solution import LoopySolution
from rdpgraph.engines.reduction.network import Network
from rdpgraph.interface.sites import free_numbers, free_variables, site_potentials
from rdpgraph.logspace.logmatrix import soft_sum
from rdpgraph.model.block import Block
from rdpgraph.model.graph import FactorGraph

BySlot: TypeAlias = Mapping[tuple[int, int], Tensor]
"""Per block and slot (B, F, k) logs over the states of the slot's variables."""


def arriving_messages(solution: LoopySolution, missing: float = 0.0) -> BySlot:
    """Return the messages of each factor to the variable at each slot, or ``missing``.

    ``missing`` stands where no message is passed.
    """
    return _with_edges(solution, _filled(solution.network, missing), solution.outcome.messages)


def cavities(solution: LoopySolution) -> BySlot:
    """Return the messages of the variable at each slot to its factor.

    They are beliefs without the factor's own message, and -inf at states that hard zeros rule out.
    """
    network, messages = solution.network, solution.outcome.messages
    if network.impossible:
        return _filled(network, 0.0)
    equations, edges = solution.equations, solution.edges
    beliefs = equations.beliefs(messages)
    filled = _filled(network, -math.inf)
    # A variable that is settled, as by evidence, says its state.
    for (block, slot), logs in filled.items():
        settled = network.settled[:, network.graph.blocks[block].scopes[:, slot]].unsqueeze(-1)
        known = settled == torch.arange(logs.shape[2], device="cpu")
        filled[block, slot] = logs.masked_fill(known.to(logs.device), 0.0)
    for block, origins in enumerate(network.origins):
        several = network.graph.blocks[block].arity > 1
        for members, group, slots in origins if several else ():
            if len(slots) == 1:
                # The other slots are settled, and the factor is a part of a variable's unary one.
                unary = network.groups[group]
                active = unary.scopes[:, 0]
                home = int(edges.home[active[0]])
                belief = take(beliefs[home], edges.local[active].to(beliefs[home].device))
                part = unary.each().transpose(1, 2)
                alive = part > -math.inf
                rest = torch.where(alive, belief - torch.where(alive, part, 0.0), -math.inf)
                filled[block, slots[0]] = _at_left(
                    network, filled[block, slots[0]], block, slots[0], members, rest
                )
    return _with_edges(solution, filled, equations.cavities(messages))


def started(solution: LoopySolution, messages: BySlot) -> LoopySolution:
    """Return the solution with these messages as its start, uniform at slots without any."""
    network, edges = solution.network, solution.edges
    start = [
        network.constant.new_zeros(network.batch, c.size, c.count).detach() for c in edges.classes
    ]
    for block, slot, members, segment in _ends(network, edges):
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


def started_from(solution: LoopySolution, other: LoopySolution) -> LoopySolution:
    """Return a solution that starts at another's messages, where both share factors and states."""
    network, before = solution.network, other.network
    if before.batch not in (1, network.batch):
        return started(solution, {})
    shared: dict[tuple[int, int], Tensor] = {}
    pairs = enumerate(zip(network.graph.blocks, before.graph.blocks, strict=False))
    alike = {n: new.scopes == old.scopes for n, (new, old) in pairs if new.sizes == old.sizes
             and new.scopes.shape == old.scopes.shape}  # fmt: skip
    for (block, slot), values in arriving_messages(other, -math.inf).items():
        if block in alike:
            same = alike[block][:, slot, None].to(values.device)
            shared[block, slot] = torch.where(same, values, -math.inf)
    return started(solution, shared)


def _ends(network: Network, edges: Edges) -> Iterator[tuple[int, int, Tensor, Segment]]:
    """List for every segment of edges its block, its slot and the rows of the block's factors."""
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
    for block, slot, members, segment in _ends(network, edges):
        messages = values[segment.size_class][:, :, segment.start : segment.stop]
        filled[block, slot] = _at_left(network, filled[block, slot], block, slot, members, messages)
    return filled


def _at_left(
    network: Network, target: Tensor, block: int, slot: int, members: Tensor, values: Tensor
) -> Tensor:
    """Put (b, left, n) values at the remaining states of some factors' variables in (B, F, k)."""
    scopes = network.graph.blocks[block].scopes[members, slot]
    states = network.states_left(scopes, values.shape[1])
    batch = torch.arange(network.batch, device="cpu").reshape(-1, 1, 1)
    index = (batch, members.reshape(-1, 1), states)
    return _put(target, index, values.transpose(1, 2).expand(network.batch, -1, -1))


def _put(target: Tensor, index: tuple[Tensor, ...], values: Tensor) -> Tensor:
    return target.index_put(tuple(part.to(target.device) for part in index), values.to(target))


@dataclass(frozen=True, eq=False)
class InterpolatedMessages:
    """The messages of a restricted model, at all states of the whole model.

    A message sums a factor's values over the kept states of the other variables, with their
    weights. So it is defined at every state of its own variable, and not only at those kept. This
    is Nystrom's interpolation of an integral equation, by which messages for one choice of states
    are the start for the next.
    """

    graph: FactorGraph  # the model; its restriction has the same factors, in parts of its blocks
    # (replicates, B, n, K) kept states of (n,) variables with equally many
    selected: Callable[[Tensor], Tensor]
    free: Tensor  # (V,) variables that are not observed
    solution: LoopySolution  # of the restricted model

    @property
    def restricted(self) -> FactorGraph:
        """Return the model on the kept states."""
        return self.solution.network.graph

    @differentiable_property
    def messages(self) -> BySlot:
        """Messages (B', F, all states of the slot), by block of the restricted model and slot.

        Messages to observed variables are uniform.
        """
        incoming = cavities(self.solution)
        messages: dict[tuple[int, int], Tensor] = {}
        for number, block in enumerate(self.restricted.blocks):
            if block.arity < 2:
                continue
            for slot in range(block.arity):
                rows = self.free[block.scopes[:, slot]].nonzero().flatten()
                if not len(rows):
                    size = self._source_of(block).sizes[slot]
                    lead = self.solution.network.batch, block.count
                    messages[number, slot] = incoming[number, slot].new_zeros(*lead, size)
                    continue
                new = self._interpolated(number, slot, rows, incoming)
                empty = new.new_zeros(new.shape[0], block.count, new.shape[2])
                messages[number, slot] = empty.index_copy(1, rows.to(new.device), new)
        return messages

    def _interpolated(self, number: int, slot: int, rows: Tensor, incoming: BySlot) -> Tensor:
        """Return (B', n, states) messages of some of a block's factors to a slot's variables."""
        block = self.restricted.blocks[number]
        source, origin = self._source_of(block), self._origins[1]
        others = [other for other in range(block.arity) if other != slot]
        size = source.sizes[slot]
        # All states of the slot are joined with the kept states of the others; blocks of factors
        # bound the size of these tables.
        cells = math.prod(block.sizes[other] for other in others) * size
        at_once = tuning.per_block(cells * self.solution.network.batch, tuning.BLOCK)
        everything = torch.arange(size, device=self.graph.device)
        lead = self.restricted.batch_shape
        parts: list[Tensor] = []
        for chosen in rows.split(at_once):
            states = [everything] * block.arity
            for other in others:
                kept = self.selected(block.scopes[chosen, other])
                states[other] = kept.reshape(*lead, *kept.shape[2:])
            places = origin[block.declared[chosen]]
            every = torch.equal(places, torch.arange(source.count, device="cpu"))
            # The potential as declared is evaluated at these states, of all or some of its factors.
            logs = source.select(None if every else places).evaluate(states)
            shape = [*lead, len(chosen), *logs.shape[logs.ndim - block.arity :]]
            logs = logs.expand(shape).flatten(0, len(lead) - 1)
            for other in others:
                # Add what the kept states of the others say, and sum these out.
                part = incoming[number, other][:, chosen.to(logs.device)]
                logs = logs + part.unflatten(
                    -1, [-1 if place == other else 1 for place in range(block.arity)]
                )
            parts.append(soft_sum(logs, [other + 2 for other in others]))
        return torch.cat(parts, 1)

    def _source_of(self, block: Block) -> Block:
        """The block of the graph that a block of the restricted model is a part of."""
        return self.graph.blocks[int(self._origins[0][block.declared[0]])]

    @cached_property
    def _origins(self) -> tuple[Tensor, Tensor]:
        """Return the block of every factor, by its place of declaration, and its row there."""
        places = torch.zeros(2, self.graph.num_factors, dtype=torch.long, device="cpu")
        for number, block in enumerate(self.graph.blocks):
            places[0, block.declared] = number
            places[1, block.declared] = torch.arange(block.count, device="cpu")
        return places[0], places[1]

    def at_states_of(self, other: "InterpolatedMessages") -> dict[tuple[int, int], Tensor]:
        """Return the messages at the states that another restriction keeps, as a start for that."""
        messages: dict[tuple[int, int], Tensor] = {}
        for (number, slot), values in self.messages.items():
            states = other.selected(other.restricted.blocks[number].scopes[:, slot]).flatten(0, 1)
            messages[number, slot] = values.gather(2, states.clamp(max=values.shape[2] - 1))
        return messages

    @differentiable_property
    def log_beliefs(self) -> tuple[Tensor, ...]:
        """The unnormalised log-beliefs (B', n, states) of all states, by `free_numbers`."""
        groups = free_numbers(self.graph).items()
        return tuple(self._log_beliefs(numbers, size) for size, numbers in groups)

    def _log_beliefs(self, numbers: Tensor, size: int) -> Tensor:
        place, free = (
            torch.full((self.graph.num_variables,), -1, device="cpu"),
            free_variables(self.graph),
        )
        place[numbers] = torch.arange(len(numbers), device="cpu")
        shape = (*self.restricted.batch_shape, len(numbers), size)
        total = site_potentials(self.graph, numbers, size).expand(shape).reshape(-1, *shape[-2:])
        for number, block in enumerate(self.restricted.blocks):
            if block.arity < 2:
                continue
            # Factors whose other variables are observed are a part of the unary potentials.
            joint = free[block.scopes].sum(1) > 1
            for slot in range(block.arity):
                sites = place[block.scopes[:, slot]]
                rows = (joint & (sites >= 0)).nonzero().flatten()
                if len(rows):
                    values = self.messages[number, slot][:, rows.to(total.device)]
                    total = total.index_add(1, sites[rows].to(total.device), values)
        return total
