"""Sequences of states: scored, traced back through messages, and drawn exactly or relaxed.

The state at each step is the argmax of ``log p(state | the state after it)`` plus Gumbel noise,
which is an exact draw; the softmax of the same at a temperature is the relaxed one, differentiable
in the potentials (Fu, Cunningham and Lapata 2022, arXiv:2112.03638v3, algorithm 4, on all states).

Exact draws are those of the recurrence, by compiled code. Relaxed ones stay here, as they are
weights of all states of a step given one at the next, which no derivation has; compiled code finds
these states with the noise given. `traceback` finds them where it does not serve, as on GPUs; and
exact draws and best sequences there too, in a call for a step of all draws.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph._core.numbers import lowest
from rdpgraph._core.types import Lengths, Paths, Unary
from rdpgraph.logspace.gradients import possible_alone
from rdpgraph.model.potentials.operators import Monarch
from rdpgraph.structures.chain import recursion, rules
from rdpgraph.structures.chain.parts import AnyChain, columns, inside
from rdpgraph.structures.draws import checked_temperature, gumbel


def states_of(parts: AnyChain, found: Tensor) -> Paths:
    """(count, B, T) the states of sequences, from those of the sites of their recurrence."""
    if not isinstance(parts.transition, Monarch):
        return found
    # Each step has a site for each block of states, of which a sequence uses one.
    width = parts.unary.shape[2] // max(1, found.shape[3])
    block = torch.arange(found.shape[3], device=found.device)
    return torch.where(found >= 0, block * width + found, -1).amax(-1)


@torch.no_grad()
def draw(parts: AnyChain, count: int, generator: torch.Generator | None) -> Paths:
    """Independent exact draws of sequences, (count, B, T); -1 beyond the length. No gradient.

    An item without a possible sequence has states -1. O(T N^2) for the forward messages, and O(N)
    for a step of a draw; with ranks O(T N r), and O(N r).
    """
    bound, shape = rules.bound(parts), parts.unary.shape
    if bound.is_compiled:
        return states_of(parts, bound.states_of("unary", count, generator)[0])

    def noise(_step: int) -> Tensor:
        return gumbel((count, shape[0], shape[2]), parts.unary, generator)

    return traceback(recursion.forward(parts), parts, count=count, noise=noise)


def score(unary: Unary, lengths: Lengths, links: Tensor, states: Paths) -> Tensor:
    """(*lead, B) summed log-potentials (nats) of sequences (*lead, B, T); O(T) each.

    Given the log-values (*lead, B, T - 1) of neighbouring states. -inf, with zero gradient, for a
    sequence with -1 within its length.
    """
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


@torch.no_grad()
def traceback(
    messages: Tensor, parts: AnyChain, *, count: int, noise: Callable[[int], Tensor] | None
) -> Paths:
    """(count, B, T) states decided from the last step backwards, -1 beyond the length.

    The state at each step is the argmax of `conditionals` given the state after it, plus noise:
    with maxima for messages and no noise the best sequence, with sums and Gumbel noise an exact
    draw. An item whose last message is -inf has no possible sequence: its states are -1.

    Args:
        messages: (B, T, N) logs of the maxima or sums over prefixes up to each step, in nats.
        parts: the chains.
        count: the number of sequences for each item.
        noise: of each step, the last first: (count, B, N).
    """
    link, lengths = parts.transition, parts.lengths
    batch, total, _ = messages.shape
    if not total:
        return torch.empty(count, batch, 0, dtype=torch.long, device=messages.device)
    within, rows = inside(lengths, total).unsqueeze(2).unbind(1), messages.unbind(1)
    decided = list[Tensor]()
    for step in range(total - 1, -1, -1):
        logs = rows[step].expand(count, -1, -1)
        if decided:
            into = columns(link, decided[-1].unsqueeze(2), first=step).squeeze(2)
            logs = rows[step] + torch.where(within[step + 1], into, 0.0)
        decided.append((logs if noise is None else logs + noise(step)).argmax(-1))
    lasts = messages[torch.arange(batch, device=messages.device), (lengths - 1).clamp(min=0)]
    told = inside(lengths, total) & (lasts > -math.inf).any(-1).unsqueeze(1)
    return torch.where(told, torch.stack(decided[::-1], -1), -1)


def conditionals(messages: Tensor, parts: AnyChain, following: Tensor, *, first: int) -> Tensor:
    """(count, B, S, N) logs of p(state | the state after it), up to a constant in each row.

    For S steps from ``first`` on: ``messages_t(i) + transition_t(i, z_(t+1))`` within an item,
    ``messages_t`` at its last step, given the next states (count, B, S). Differentiable.
    """
    steps = torch.arange(first, first + messages.shape[1], device=messages.device)
    into = columns(parts.transition, following.clamp(min=0), first=first)
    goes_on = steps + 1 < parts.lengths.unsqueeze(1)
    return messages + torch.where(goes_on.unsqueeze(2), into, 0.0)


def relaxed(
    parts: AnyChain, count: int, temperature: float, generator: torch.Generator | None
) -> Tensor:
    """Independent relaxed draws, (count, B, T, N): at each step weights over states that sum to 1.

    Their argmaxes are exact draws, and each step is conditioned on the argmax of the next.
    Differentiable in unary and transition, with noise and argmaxes fixed;
    exactly zero, as is the gradient, for impossible states and items, and beyond the length. O(T
    N^2) time and O(T N) for each draw, or with ranks O(T N r) and again for each draw.
    """
    checked_temperature(temperature)
    batch, total, states = parts.unary.shape
    noise = parts.unary.new_empty(total, count, batch, states)  # the last step first
    for part in noise.split(tuning.per_block(count * batch * states, tuning.CACHE_BLOCK)):
        part.copy_(gumbel(part.shape, parts.unary, generator))
    return relaxed_by(parts, temperature, noise.flip(0).permute(1, 2, 0, 3).contiguous())


def relaxed_by(parts: AnyChain, temperature: float, noise: Tensor) -> Tensor:
    """`relaxed` as a function of its Gumbel noise, (count, B, T, N)."""
    messages, total = recursion.forward(parts), max(1, parts.unary.shape[1])
    states = None
    if isinstance(parts.transition, Tensor) and total > 2:
        states = rules.bound(parts).perturbed_states_of("unary", noise)
    if states is None:
        by_step = noise.unbind(2)
        states = traceback(messages.detach(), parts, count=len(noise), noise=by_step.__getitem__)

    def of(here: slice) -> Tensor:
        return _weights(messages, parts, states, temperature, noise, here)

    width = max(1, tuning.CACHE_BLOCK * total // max(1, noise.numel()))
    if torch.is_grad_enabled() and messages.requires_grad:
        # The gradient of a part is as large as all messages, and the tables of all steps.
        link = parts.transition
        many = 1 if isinstance(link, Tensor) and link.ndim > 2 else tuning.PATH_PARTS
        width = max(width, -(-total // many))
        return torch.cat([of(slice(at, at + width)) for at in range(0, total, width)], 2)
    weights = torch.empty_like(noise)
    for at in range(0, total, width):
        here = slice(at, at + width)
        weights[:, :, here] = of(here)
    return weights


def _weights(
    messages: Tensor, parts: AnyChain, states: Tensor, temperature: float, noise: Tensor,
    here: slice,
) -> Tensor:  # fmt: skip
    """(count, B, S, N) for some of the steps."""
    following = states[..., here.start + 1 : here.stop + 1]
    many = following.shape[2]  # nothing follows the last step
    last = messages[:, here][:, many:].expand(len(states), -1, -1, -1)
    logits = conditionals(messages[:, here][:, :many], parts, following, first=here.start)
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
