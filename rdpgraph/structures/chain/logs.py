"""The recursion in log-space: exact at any range of potentials, and differentiable.

This loop stays beside the rules of chains because a `Bound` gives goals and uses, and no messages
of each step where it is torch that answers: on GPUs, without a compiled library, and for
derivatives of messages. It also serves log Z of operators there, and devices without float64, for
which it keeps a level for each step.

Arguments are as for `recursion.log_partition`.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from rdpgraph._core.types import Lengths, LogZ, Transition, Unary
from rdpgraph.logspace.logmatrix import finite, soft_sum
from rdpgraph.structures.chain.factors import inside, masked
from rdpgraph.structures.chain.steps import Steps, as_steps


def log_partition(unary: Unary, transition: Transition | Steps, lengths: Lengths) -> LogZ:
    """Log Z of each item, (B,), in nats; differentiable any number of times.

    O(T N^2) exponentials per item with a table, of which O(T N) are kept for the gradient and the
    rest is recomputed in blocks of columns; O(T (N + r)) with ranks.
    """
    wide = unary.dtype if unary.device.type == "mps" else torch.float64
    totals, lacking = list[Tensor](), unary.new_zeros(len(unary), dtype=wide)
    for state, top in _swept(masked(unary, lengths), as_steps(transition)):
        lacking = lacking + top.squeeze(1)
        totals.append(soft_sum(state, 1) + lacking)
    last = torch.arange(len(totals), device=lengths.device) == lengths.unsqueeze(1) - 1
    return torch.where(last, torch.stack(totals, 1), 0.0).sum(1).to(unary.dtype)


def forward(unary: Unary, transition: Transition | Steps, lengths: Lengths) -> Unary:
    """(B, T, N) log-probability of the state given the prefix that ends there; differentiable.

    Up to a constant in each row, without gradient: their softmax over states is the filtered
    distribution. -inf, with zero gradient, beyond the length and where a state cannot be reached.
    """
    if not unary.shape[1]:
        return unary
    swept = _swept(masked(unary, lengths), as_steps(transition))
    return _within(lengths, [state for state, _ in swept])


def backward(unary: Unary, transition: Transition | Steps, lengths: Lengths) -> Unary:
    """(B, T, N) log of the sum over suffixes after each step, its maximum 0; -inf beyond.

    Differentiable, at the cost of `forward`.
    """
    if not unary.shape[1]:
        return unary
    steps, scores = as_steps(transition).turned(), masked(unary, lengths).unbind(1)
    messages = [torch.zeros_like(scores[0])]
    for step in range(len(scores) - 2, -1, -1):
        passed = steps.advance(step, messages[-1] + scores[step + 1])
        passed = torch.where((step + 1 < lengths).unsqueeze(1), passed, 0.0)
        messages.append(passed - finite(passed.detach().amax(1, keepdim=True)))
    return _within(lengths, messages[::-1])


def _swept(unary: Tensor, steps: Steps) -> Iterator[tuple[Tensor, Tensor]]:
    """Log alpha of each step, its maximum 0, and the shift, (B, 1)."""
    state = unary
    for step, score in enumerate(unary.unbind(1)):  # the gradient of a slice is as large as unary
        state = steps.advance(step - 1, state) + score if step else score
        top = finite(state.detach().amax(1, keepdim=True))
        state = state - top
        yield state, top


def _within(lengths: Tensor, messages: list[Tensor]) -> Tensor:
    """(B, T, N) messages, -inf beyond the lengths."""
    return torch.where(
        inside(lengths, len(messages)).unsqueeze(2), torch.stack(messages, 1), -math.inf
    )
