"""Graphs of binary variables and hard parity constraints, recognised as parity models."""

import math

import torch
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.potentials.automaton import Automaton
from rdpgraph.structures.chain.recognition import unary_sum
from rdpgraph.structures.parity.parities import Parities


def recognised(graph: FactorGraph) -> tuple[Parities, Tensor, Tensor, Tensor] | None:
    """Parities, unary (*batch, V, 2), syndrome (*batch, checks) and numbers of all variables.

    None where it is another graph, or the sweep is wide.
    """
    joint = [block for block in graph.blocks if block.arity > 1]
    parities = [block.select() for block in joint if isinstance(block.potential, Automaton)]
    if not joint or len(parities) < len(joint) or bool((graph.domain.sizes != 2).any()):
        return None
    if any(block.arity == 0 for block in graph.blocks):
        return None  # a constant, which is no potential of a variable
    columns: list[list[int]] = [[] for _ in range(graph.num_variables)]
    count, seen, batch = 0, list[Tensor](), graph.batch_shape
    numbers = torch.arange(graph.num_variables, device="cpu")
    unary = unary_sum(graph, numbers, len(numbers))
    for block, parity in zip(joint, parities, strict=True):
        if not isinstance(parity, Automaton) or parity.transitions.tolist() != [[0, 1], [1, 0]]:
            return None
        accept = parity.log_accept.expand(*batch, block.count, 2).to(unary)
        either, value = (accept > -math.inf).unbind(-1), accept.amax(-1)
        alike = either[0] & either[1] & (accept[..., 0] != accept[..., 1])
        if bool(alike.any()) or not bool((either[0] | either[1]).all()):
            return None  # a soft parity, or nothing possible
        seen.append(torch.where(either[0], -either[1].to(torch.int8), 1))
        if bool((value != 0).any()) or value.requires_grad:
            first = block.scopes[:, 0].to(unary.device)
            unary = unary.index_add(-2, first, value.unsqueeze(-1).expand(*value.shape, 2))
        for check, scope in enumerate(block.scopes.tolist(), count):
            for number in scope:
                columns[number].append(check)
        count += block.count
    checks = Parities([(flipped, ()) for flipped in columns], count)
    if not checks.narrow(tuning.RECOGNISED_CHECKS):
        return None
    work = checks.program(observables=False, merged=True).work * math.prod(batch)
    return (checks, unary, torch.cat(seen, -1), numbers) if work < tuning.RECOGNISED_WORK else None
