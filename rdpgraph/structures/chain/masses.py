"""The masses of all states of a chain, given a few states at every other step."""

import math

import torch
from torch import Tensor

from rdpgraph.model.potential import Potential
from rdpgraph.model.table import Table
from rdpgraph.structures.chain.recursion import Messages

_AT_ONCE = 2**22  # pairs of states that are looked at together


@torch.no_grad()
def log_masses(
    unary: Tensor,
    transition: Tensor | Potential,
    states: Tensor,
    kept_unary: Tensor,
    messages: Messages,
) -> Tensor:
    """(*lead, T, N): the log of alpha^ beta^ of every state, up to a constant for each step.

    The messages between the kept states are taken one step further, to all states: O(T N K) time,
    O(T N) memory. -inf where nothing leads from or to the states kept, and beyond the length.

    Args:
        unary: (*batch, T, N) of all states.
        transition: between all states.
        states: (*lead, T, K) the states kept, lead ending in batch.
        kept_unary: (*lead, T, K) their unary potentials, weights included.
        messages: of the chain on them, batches in one dim: (B, T, K).
    """
    potential = transition if isinstance(transition, Potential) else Table(transition)
    total = unary.shape[-2]
    masses = unary.detach().expand(*states.shape[:-1], unary.shape[-1]).clone()
    ahead, behind = (
        part.reshape(states.shape) for part in (messages.log_forward, messages.log_backward)
    )
    if total > 1:
        after = (behind + kept_unary)[..., 1:, :]
        # What follows a last step is nothing, which is possible.
        ended = _dead(after) & ~_dead(behind[..., :-1, :])
        width = max(1, _AT_ONCE // max(1, states[..., 1:, :].numel()))
        for some in torch.arange(unary.shape[-1], device=unary.device).split(width):
            forth = potential.evaluate([states[..., :-1, :], some])
            masses[..., 1:, some] += (forth + ahead[..., :-1, :, None]).logsumexp(-2)
            back = potential.evaluate([some, states[..., 1:, :]])
            future = (back + after.unsqueeze(-2)).logsumexp(-1)
            masses[..., :-1, some] += torch.where(ended, 0.0, future)
    return torch.where(_dead(ahead), -math.inf, masses)


def _dead(logs: Tensor) -> Tensor:
    return (logs == -math.inf).all(-1, keepdim=True)
