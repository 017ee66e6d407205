"""Sequences of states: traced back through messages, and scored."""

import math

import torch
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph._core.types import Lengths, Paths, Transition, Unary
from rdpgraph.model.potentials.potential import Potential
from rdpgraph.structures.chain import native
from rdpgraph.structures.chain.factors import inside
from rdpgraph.structures.chain.steps import Steps, as_steps
from rdpgraph.structures.draws import Noise


def traceback(
    messages: Unary, transition: Transition | Steps, lengths: Lengths, *, count: int,
    noise: Noise | None,
) -> Paths:  # fmt: skip
    """(count, B, T) states decided from the last step backwards, -1 beyond the length.

    The state at each step is the argmax of `conditionals` given the state after it, plus noise:
    with maxima for messages and no noise the best sequence, with sums and Gumbel noise an exact
    draw. (count, B, N) memory at a time, or 2^20 numbers. An item whose last message is -inf has no
    possible sequence: its states are -1. Not differentiable.

    Args:
        messages: (B, T, N) logs of the maxima or sums over prefixes up to each step, in nats.
        transition: (N, N), or (1 or B, T-1, N, N) per step; [from, to]; or `Steps`.
        lengths: (B,) int64.
        count: the number of sequences for each item.
        noise: called for each step, the last first; see `Noise`, (steps, count, B, N).
    """
    batch, total, width = messages.shape
    many = tuning.per_block(count * batch * width, tuning.CACHE_BLOCK)
    if not isinstance(transition, Tensor) or not native.applies(messages, transition):
        return _traced(messages, as_steps(transition), lengths, count, noise, many)
    states = lengths.new_empty(count, batch, total)
    messages, turned = messages.contiguous(), transition.mT.contiguous()
    lengths, last = lengths.contiguous(), total - 1
    while last >= 0:
        steps = last + 1 if noise is None else min(last + 1, many)
        shaken = None if noise is None else noise(last, steps).contiguous()
        native.trace(messages, turned, lengths, states, shaken, last)
        last -= steps
    return states


def _traced(
    messages: Tensor, steps: Steps, lengths: Tensor, count: int, noise: Noise | None, many: int
) -> Tensor:
    """`traceback` step by step in torch, with the noise of ``many`` steps at a time."""
    batch, total, width = messages.shape
    if not total:
        return torch.empty(count, batch, 0, dtype=torch.long, device=messages.device)
    ends, rows = set(lengths.tolist()), messages.unbind(1)
    decided, shaken = list[Tensor](), list[Tensor]()
    for step in range(total - 1, -1, -1):
        logs = rows[step].expand(count, -1, -1)
        if decided:
            following = decided[-1]
            if step + 1 in ends:  # the state after the last step is N, to which anything leads
                following = following.masked_fill(lengths == step + 1, width)
            logs = rows[step] + steps.column(step, following)
        if noise is not None:
            shaken = shaken or list(noise(step, min(step + 1, many)).unbind(0))[::-1]
            logs = logs + shaken.pop()
        decided.append(logs.argmax(-1))
    lasts = messages[torch.arange(batch, device=messages.device), (lengths - 1).clamp(min=0)]
    told = inside(lengths, total) & (lasts > -math.inf).any(-1).unsqueeze(1)
    return torch.where(told, torch.stack(decided[::-1], -1), -1)


def conditionals(
    messages: Tensor, transition: Tensor | Steps, lengths: Tensor, following: Tensor, *, first: int
) -> Tensor:
    """(count, B, S, N) logs of p(state | the state after it), up to a constant in each row.

    For S steps from ``first`` on: ``messages_t(i) + transition_t(i, z_(t+1))`` within an item,
    ``messages_t`` at its last step, given the next states (count, B, S). Differentiable.
    """
    steps = torch.arange(first, first + messages.shape[1], device=messages.device)
    columns = as_steps(transition).columns(following.clamp(min=0), first=first)
    goes_on = steps + 1 < lengths.unsqueeze(1)
    columns = torch.where(goes_on.unsqueeze(2), columns, 0.0)
    return messages + columns


def score(unary: Unary, transition: Transition | Steps, lengths: Lengths, states: Paths) -> Tensor:
    """(*lead, B) summed log-potentials (nats) of sequences (*lead, B, T); O(T) each.

    -inf, with zero gradient, for a sequence with -1 within its length.
    """
    known = states.clamp(min=0)
    links = between(transition, known[..., :-1], known[..., 1:])
    return along(unary, links, lengths, states)


def along(unary: Unary, links: Tensor, lengths: Lengths, states: Paths) -> Tensor:
    """`score`, given the log-values (*lead, B, T - 1) of neighbouring states."""
    batch, total, _ = unary.shape
    within, known = inside(lengths, total), states.clamp(min=0)
    steps = torch.arange(total, device=unary.device)
    items = torch.arange(batch, device=unary.device).unsqueeze(1)
    values = torch.where(within, unary[items, steps, known], 0.0).sum(-1)
    values = values + torch.where(within[:, 1:], links, 0.0).sum(-1)
    told = ((states >= 0) | ~within).all(-1)
    return torch.where(told & (values > -math.inf), values, -math.inf)


def between(transition: Transition | Steps | Potential, before: Tensor, after: Tensor) -> Tensor:
    """(*lead, B, T - 1) the log-values (nats) of states and the next ones; differentiable.

    A potential's states have dims (*lead, *batch, T - 1).
    """
    if not before.shape[-1]:
        return torch.zeros(before.shape, device=before.device)
    if isinstance(transition, Potential):
        return transition.evaluate([before.unsqueeze(-1), after.unsqueeze(-1)])[..., 0, 0]
    return as_steps(transition).values(before, after)
