"""Chains on a few states of each step, and the masses of all states given these."""

import math

import torch
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph.model.potentials.lowrank import LowRank
from rdpgraph.model.potentials.potential import Potential
from rdpgraph.model.potentials.table import Table
from rdpgraph.model.restriction import gathered
from rdpgraph.structures.chain.recursion import messages
from rdpgraph.structures.chain.steps import ChainTensors


def kept(
    unary: Tensor, transition: Tensor | Potential, states: Tensor, log_weights: Tensor
) -> tuple[Tensor, Tensor | LowRank]:
    """Potentials of a chain on some states of each step, with weights, for `Chain.restrict`.

    Unary (*replicates, *batch, T, K), and a transition (*replicates, *batch, T - 1, K, K), of low
    rank if it is and that is cheaper.
    """
    few = gathered("Chain", unary, states, log_weights, sites=1)
    potential = transition if isinstance(transition, Potential) else Table.from_logs(transition)
    ends = states[..., :-1, :], states[..., 1:, :]
    if isinstance(potential, LowRank) and 2 * potential.rank <= states.shape[-1]:
        return few, potential.rows(*ends)
    return few, potential.evaluate(ends)


@torch.no_grad()
def log_masses(
    unary: Tensor,
    transition: Tensor | Potential,
    states: Tensor,
    few: ChainTensors,
) -> Tensor:
    """(*lead, T, N): the log of alpha beta of every state, up to a constant for each step.

    The messages between the kept states (*lead, T, K) are extended by one step to all states, in
    O(T N K) time and O(T N) memory. -inf where nothing leads from or to the states kept, and beyond
    the length. Unary and transition are of all states, ``few`` is the chain on those kept.
    """
    potential = transition if isinstance(transition, Potential) else Table.from_logs(transition)
    total = unary.shape[-2]
    masses = unary.detach().expand(*states.shape[:-1], unary.shape[-1]).clone()
    sent = messages(few.unary, few.transition, few.lengths)
    ahead, behind = (part.reshape(states.shape) for part in (sent.log_forward, sent.log_backward))
    if total > 1:
        after = (behind + few.unary.reshape(states.shape))[..., 1:, :]
        # Nothing follows a last step, which is possible.
        ended = _dead(after) & ~_dead(behind[..., :-1, :])
        width = tuning.per_block(states[..., 1:, :].numel(), tuning.BLOCK)
        for some in torch.arange(unary.shape[-1], device=unary.device).split(width):
            forth = potential.evaluate([states[..., :-1, :], some])
            masses[..., 1:, some] += (forth + ahead[..., :-1, :, None]).logsumexp(-2)
            back = potential.evaluate([some, states[..., 1:, :]])
            future = (back + after.unsqueeze(-2)).logsumexp(-1)
            masses[..., :-1, some] += torch.where(ended, 0.0, future)
    return torch.where(_dead(ahead), -math.inf, masses)


def _dead(logs: Tensor) -> Tensor:
    return (logs == -math.inf).all(-1, keepdim=True)
