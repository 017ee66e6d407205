"""Chains on some states of each step, and what these say of all states."""

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from rdpgraph._core import tuning
from rdpgraph.logspace.logmatrix import LogMatrix, finite, soft_scatter, soft_sum
from rdpgraph.model.potentials.lowrank import LowRank
from rdpgraph.model.potentials.operators import PairOperator
from rdpgraph.model.potentials.potential import Potential
from rdpgraph.model.potentials.table import Table
from rdpgraph.structures.chain import recursion
from rdpgraph.structures.chain.parts import ChainTensors


def log_masses(
    unary: Tensor, transition: Tensor | Potential, states: Tensor, few: ChainTensors
) -> Tensor:
    """The log-mass of every state of each step given the states kept at the others.

    With the kept states S_t, their log-weights w_t and the messages a_t and b_t between them,

        M_t(x) = u_t(x) + logsumexp_{y in S_t-1} (a_t-1(y) + f(y, x))
                        + logsumexp_{y in S_t+1} (f(x, y) + w_t+1(y) + u_t+1(y) + b_t+1(y)).

    The states of one step are chosen independently of those of the others, so that the two sums are
    independent of each other: exp(M_t(x)) is unbiased for the mass of all sequences through x, up
    to the constant of a step that the messages leave out. In O(T N K) time and O(T N) memory, or
    O(T N r) by way of ranks; differentiable.

    Args:
        unary: (*batch, T, N) the potentials of all states.
        transition: of all states.
        states: (*replicates, *batch, T, K) the states kept.
        few: the chain on these, with their weights.

    Returns:
        (*replicates, *batch, T, N), up to a constant for each step. -inf where nothing leads from
        or to the states kept, and beyond the length.
    """
    total, size = unary.shape[-2:]
    # Log-probabilities of each state given the prefix, and log-sums over the suffixes behind it.
    sent = recursion.forward(few)
    sent = sent - finite(soft_sum(sent, 2)).unsqueeze(2)
    ahead, behind = (part.reshape(states.shape) for part in (sent, recursion.backward(few)))
    masses = unary.expand(*states.shape[:-1], size)
    if total > 1:
        before = ahead[..., :-1, :]
        after = (behind + few.unary.reshape(states.shape))[..., 1:, :]
        # Nothing follows a last step, which is possible.
        ended = _dead(after) & ~_dead(behind[..., :-1, :])
        forth, back = _one_step_on(transition, states, before, after, size)
        edge = forth.new_zeros(*states.shape[:-2], 1, size)
        masses = masses + torch.cat([edge, forth], -2)
        masses = masses + torch.cat([torch.where(ended, 0.0, back), edge], -2)
    return torch.where(_dead(ahead), -math.inf, masses)


def _one_step_on(
    transition: Tensor | Potential, states: Tensor, before: Tensor, after: Tensor, size: int
) -> tuple[Tensor, Tensor]:
    """Sums over the kept states before each transition, and after it, for all states.

    Args:
        transition: of all states.
        states: (*lead, T, K) the states kept.
        before: (*lead, T - 1, K) logs of the states before each transition.
        after: likewise of those after it.
        size: the number N of all states.

    Returns:
        (*lead, T - 1, N) of the states after, and of those before.
    """
    potential = transition if isinstance(transition, Potential) else Table.checked(transition)
    first, last = states[..., :-1, :], states[..., 1:, :]
    if _is_whole(potential, before, size):
        return _whole_sums(potential, _placed(first, before, size), _placed(last, after, size))
    # The values of all states with those kept are formed in blocks, and again for a gradient.
    summed: Callable[..., tuple[Tensor, Tensor]] = partial(_block_sums, potential)
    if torch.is_grad_enabled():
        summed = partial(checkpoint, summed, use_reentrant=False, preserve_rng_state=False)  # pyright: ignore
    everything, few = torch.arange(size, device=before.device), states.shape[-1]
    if math.prod(potential.lead(2)) != 1:
        # Blocks of states, because the steps have different potentials.
        width = tuning.per_block(first.numel(), tuning.CACHE_BLOCK)
        return _beside(
            [summed(first, last, some, before, after) for some in everything.split(width)]
        )
    # Blocks of steps; where there are many states, one step, and blocks of these.
    blocks = everything.split(tuning.per_block(few, tuning.BLOCK))
    count = tuning.per_block(few * size, tuning.CACHE_BLOCK)
    parts = [part.reshape(-1, few).split(count) for part in (first, last, before, after)]
    sums = [
        _beside([summed(one, other, some, *logs) for some in blocks])
        for one, other, *logs in zip(*parts, strict=True)
    ]
    forth, back = (torch.cat(part) for part in zip(*sums, strict=True))
    shape = *before.shape[:-1], size
    return forth.reshape(shape), back.reshape(shape)


def _beside(sums: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Sums for blocks of states, side by side."""
    forth, back = (torch.cat(part, -1) for part in zip(*sums, strict=True))
    return forth, back


def _whole_sums(potential: Potential, before: Tensor, after: Tensor) -> tuple[Tensor, Tensor]:
    """The sums of `_one_step_on` by one product for all steps.

    The logs are (*lead, T - 1, N), -inf at states that are not kept.
    """
    if isinstance(potential, LowRank | PairOperator):
        potential = potential.replaced([part.to(before) for part in potential.tensors])
        forth = potential.sums(before.flatten(0, -2))
        back = potential.turned().sums(after.flatten(0, -2))
        return forth.reshape(before.shape), back.reshape(after.shape)
    table = potential.table(2).to(before)
    matrix = LogMatrix.of(table.reshape(table.shape[-2:]))
    return matrix.times_columns(before), matrix.times(after)


def _block_sums(
    potential: Potential, first: Tensor, last: Tensor, some: Tensor, before: Tensor, after: Tensor
) -> tuple[Tensor, Tensor]:
    """The sums of `_one_step_on` for some states, from the first and to the last of steps' ends."""
    into = LogMatrix.of(potential.evaluate([first, some]).to(before))
    out = LogMatrix.of(potential.evaluate([some, last]).to(after))
    forth, back = into.times_columns(before.unsqueeze(-2)), out.times(after.unsqueeze(-2))
    return forth.squeeze(-2), back.squeeze(-2)


def _is_whole(potential: Potential, before: Tensor, size: int) -> bool:
    """Return whether one product with the whole transition takes less time than its kept lines."""
    if math.prod(potential.lead(2)) != 1:
        return False
    if isinstance(potential, LowRank | PairOperator):
        return True
    rows, few = before.numel() // max(before.shape[-1], 1), before.shape[-1]
    # The whole takes N^2 exponentials, and as many products for each of the rows; the lines take
    # two exponentials for each row, state and kept state. Measured for N of 1,000 to 4,000.
    return size**2 <= tuning.LARGE_BLOCK and size * (1 + rows / 50) <= 2.2 * rows * few


def _placed(states: Tensor, logs: Tensor, size: int) -> Tensor:
    """(*lead, N) logs (*lead, K) at the places of their states; repeats are summed, others -inf."""
    rows, count = states.flatten(0, -2), math.prod(states.shape[:-1])
    groups = rows + size * torch.arange(count, device=rows.device).unsqueeze(1)
    return soft_scatter(logs.flatten(), groups.flatten(), count * size).reshape(
        *states.shape[:-1], size
    )


def _dead(logs: Tensor) -> Tensor:
    return (logs == -math.inf).all(-1, keepdim=True)
