"""Sequences of states: traced back through messages, scored, and drawn exactly or relaxed.

The state at each step is the argmax of ``log p(state | the state after it)`` plus Gumbel noise,
which is an exact draw; the softmax of the same at a temperature is the relaxed one, differentiable
in the potentials (Fu, Cunningham and Lapata 2022, arXiv:2112.03638v3, algorithm 4, on all states).

Compiled rules draw where they serve. Relaxed draws stay a loop of their own, as their weights of
all states at a step are no answer of a recurrence; and so does the trace back on GPUs, where the
draws of a step take one call.
"""

import math

import torch
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph._core.numbers import lowest
from rdpgraph._core.types import Lengths, Paths, Transition, Unary
from rdpgraph.logspace.gradients import possible_alone
from rdpgraph.model.potentials.potential import Potential
from rdpgraph.structures.chain import logs, operators, recursion, rules
from rdpgraph.structures.chain.factors import inside
from rdpgraph.structures.chain.steps import Steps, as_steps
from rdpgraph.structures.draws import Noise, checked_temperature, gumbel


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
    steps = as_steps(transition)
    many = tuning.per_block(count * batch * width, tuning.CACHE_BLOCK)
    if not total:
        return torch.empty(count, batch, 0, dtype=torch.long, device=messages.device)
    within, rows = inside(lengths, total).unsqueeze(2).unbind(1), messages.unbind(1)
    decided, shaken = list[Tensor](), list[Tensor]()
    for step in range(total - 1, -1, -1):
        logs = rows[step].expand(count, -1, -1)
        if decided:
            columns = steps.columns(decided[-1].unsqueeze(2), first=step).squeeze(2)
            logs = rows[step] + torch.where(within[step + 1], columns, 0.0)
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
    steps = torch.arange(total, device=unary.device)
    items = torch.arange(batch, device=unary.device).unsqueeze(1)
    values, told = unary[items, steps, states.clamp(min=0)], lowest(states) >= 0
    if not told or lowest(lengths) < total:
        within = steps < lengths.unsqueeze(1)
        values, links = torch.where(within, values, 0.0), torch.where(within[:, 1:], links, 0.0)
        told = told or ((states >= 0) | ~within).all(-1)
    scores = values.sum(-1) + links.sum(-1)
    return possible_alone(scores if told is True else torch.where(told, scores, -math.inf))


def between(transition: Transition | Steps | Potential, before: Tensor, after: Tensor) -> Tensor:
    """(*lead, B, T - 1) the log-values (nats) of states and the next ones; differentiable.

    A potential's states have dims (*lead, *batch, T - 1).
    """
    if not before.shape[-1]:
        return torch.zeros(before.shape, device=before.device)
    if isinstance(transition, Potential):
        return transition.evaluate([before.unsqueeze(-1), after.unsqueeze(-1)])[..., 0, 0]
    return as_steps(transition).values(before, after)


@torch.no_grad()
def draw(
    unary: Unary, transition: Transition | Steps, lengths: Lengths, count: int,
    generator: torch.Generator | None,
) -> Paths:  # fmt: skip
    """Independent exact draws of sequences, (count, B, T); -1 beyond the length. No gradient.

    An item without a possible sequence has states -1. O(T N^2) for the forward messages, and O(N)
    for a step of a draw; with ranks O(T N r), and O(N r). (count, B, N) memory at a time. Arguments
    as for `recursion.log_partition`.
    """
    if rules.serves(unary, transition):
        return rules.draw(unary, transition, lengths, count, generator)
    if operators.serves(unary, transition):
        return operators.draw(unary, transition, lengths, count, generator)
    messages = logs.forward(unary, transition, lengths)

    def noise(_last: int, steps: int) -> Tensor:
        return gumbel((steps, count, unary.shape[0], unary.shape[2]), unary, generator)

    return traceback(messages, transition, lengths, count=count, noise=noise)


def relaxed(
    unary: Unary, transition: Transition | Steps, lengths: Lengths, count: int, temperature: float,
    generator: torch.Generator | None,
) -> Tensor:  # fmt: skip
    """Independent relaxed draws, (count, B, T, N): at each step weights over states that sum to 1.

    Their argmaxes are exact draws, and each step is conditioned on the argmax of the next.
    Differentiable in unary and transition, with noise and argmaxes fixed;
    exactly zero, as is the gradient, for impossible states and items, and beyond the length. O(T
    N^2) time and O(T N) for each draw, or with ranks O(T N r) and again for each draw.
    """
    checked_temperature(temperature)
    batch, total, states = unary.shape
    noise = unary.new_empty(total, count, batch, states)  # the last step first, as in `draw`
    for part in noise.split(tuning.per_block(count * batch * states, tuning.CACHE_BLOCK)):
        part.copy_(gumbel(part.shape, unary, generator))
    noise = noise.flip(0).permute(1, 2, 0, 3).contiguous()
    return relaxed_by(unary, transition, lengths, temperature, noise)


def relaxed_by(
    unary: Unary,
    transition: Transition | Steps,
    lengths: Lengths,
    temperature: float,
    noise: Tensor,
) -> Tensor:
    """`relaxed` as a function of its Gumbel noise, (count, B, T, N)."""
    count = noise.shape[0]
    messages = recursion.forward(unary, transition, lengths)
    with torch.no_grad():
        if isinstance(transition, Tensor) and rules.takes_noise(unary, transition):
            states = rules.perturbed(unary, transition, lengths, noise)
        else:
            states = traceback(messages, transition, lengths, count=count, noise=held(noise))
    steps, total = as_steps(transition), max(1, unary.shape[1])

    def of(here: slice) -> Tensor:
        return _weights(messages, steps, lengths, states, temperature, noise, here)

    width = max(1, tuning.CACHE_BLOCK * total // max(1, noise.numel()))
    if torch.is_grad_enabled() and messages.requires_grad:
        # The gradient of a part is as large as all messages, and the tables of all steps.
        parts = 1 if isinstance(transition, Tensor) and transition.ndim > 2 else tuning.PATH_PARTS
        width = max(width, -(-total // parts))
        return torch.cat([of(slice(at, at + width)) for at in range(0, total, width)], 2)
    weights = torch.empty_like(noise)
    for at in range(0, total, width):
        here = slice(at, at + width)
        weights[:, :, here] = of(here)
    return weights


def _weights(
    messages: Tensor, steps: Steps, lengths: Tensor, states: Tensor, temperature: float,
    noise: Tensor, here: slice,
) -> Tensor:  # fmt: skip
    """(count, B, S, N) for some of the steps."""
    following = states[..., here.start + 1 : here.stop + 1]
    many = following.shape[2]  # nothing follows the last step
    last = messages[:, here][:, many:].expand(len(states), -1, -1, -1)
    logits = conditionals(messages[:, here][:, :many], steps, lengths, following, first=here.start)
    # Reuse one name to free intermediate results, which are as large as the answer.
    logits = torch.cat([logits, last], 2) if last.shape[2] else logits
    logits = logits + noise[:, :, here]
    told = (states[..., here] >= 0).unsqueeze(-1)
    logits = torch.where(told, logits, 0.0)
    # The softmax divides by the temperature; with the largest at 0 nothing overflows.
    logits = logits - logits.detach().amax(-1, keepdim=True)
    logits = logits / temperature
    logits = logits.softmax(-1)
    return torch.where(told, logits, 0.0)


def held(noise: Tensor) -> Noise:
    """Given noise (count, B, T, N) as `traceback` asks for it."""

    def block(last: int, steps: int) -> Tensor:
        return noise[:, :, last + 1 - steps : last + 1].flip(2).permute(2, 0, 1, 3)

    return block
