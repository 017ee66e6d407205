"""Sequences drawn from chains, exactly or relaxed: forward filtering, backward sampling.

The state at each step is the argmax of ``log p(state | the state after it)`` plus Gumbel noise,
which is an exact draw; the softmax of the same at a temperature is the relaxed one, differentiable
in the potentials (Fu, Cunningham and Lapata 2022, arXiv:2112.03638v3, algorithm 4, on all states).
"""

import torch
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph._core.types import Lengths, Paths, Transition, Unary
from rdpgraph.structures.chain import logs, recursion
from rdpgraph.structures.chain.paths import conditionals, traceback
from rdpgraph.structures.chain.steps import Steps, as_steps
from rdpgraph.structures.draws import Noise, checked_temperature, gumbel

_MOST_PARTS = 8  # blocks with gradients


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
    if isinstance(transition, Tensor):
        messages = recursion.forward(unary, transition, lengths)
    else:
        messages = logs.forward(unary, transition, lengths)

    def noise(_last: int, steps: int) -> Tensor:
        return gumbel((steps, count, unary.shape[0], unary.shape[2]), unary, generator)

    return traceback(messages, transition, lengths, count=count, noise=noise)


def relaxed(
    unary: Unary, transition: Transition | Steps, lengths: Lengths, count: int, temperature: float,
    generator: torch.Generator | None,
) -> Tensor:  # fmt: skip
    """Independent relaxed draws, (count, B, T, N): at each step weights over states that sum to 1.

    Their argmaxes are the draws of `draw` with the same generator, and each step is conditioned on
    the argmax of the next. Differentiable in unary and transition, with noise and argmaxes fixed;
    exactly zero, as is the gradient, for impossible states and items, and beyond the length. O(T
    N^2) time and O(T N) for each draw, or with ranks O(T N r) and again for each draw.
    """
    checked_temperature(temperature)
    batch, total, states = unary.shape
    stacked = unary.new_empty(count, batch, total, states)
    for step in range(total - 1, -1, -1):  # the last step first, as in `draw`
        stacked[:, :, step] = gumbel((count, batch, states), unary, generator)
    return relaxed_by(unary, transition, lengths, temperature, stacked)


def relaxed_by(
    unary: Unary,
    transition: Transition | Steps,
    lengths: Lengths,
    temperature: float,
    noise: Tensor,
) -> Tensor:
    """`relaxed` as a function of its Gumbel noise, (count, B, T, N)."""
    count = noise.shape[0]
    messages = logs.forward(unary, transition, lengths)
    with torch.no_grad():
        states = traceback(messages, transition, lengths, count=count, noise=held(noise))
    steps, total = as_steps(transition), max(1, unary.shape[1])

    def of(here: slice) -> Tensor:
        return _weights(messages, steps, lengths, states, temperature, noise, here)

    width = max(1, tuning.CACHE_BLOCK * total // max(1, noise.numel()))
    if torch.is_grad_enabled() and messages.requires_grad:
        # The gradient of a part is as large as all messages, and the tables of all steps.
        parts = 1 if isinstance(transition, Tensor) and transition.ndim > 2 else _MOST_PARTS
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
