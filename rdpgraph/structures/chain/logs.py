"""The recursion in log-space: exact whatever the range of the potentials, and differentiable."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from rdpgraph._core.types import Lengths, LogZ, Transition, Unary
from rdpgraph.logspace.logmatrix import finite, soft_sum
from rdpgraph.structures.chain.factors import inside, masked
from rdpgraph.structures.chain.steps import Steps, TableSteps, as_steps


def log_partition(unary: Unary, transition: Transition | Steps, lengths: Lengths) -> LogZ:
    """Log Z of each item, (B,), in nats; differentiable any number of times.

    O(T N^2) exponentials per item with a table, of which O(T N) are kept for the gradient and the
    rest is computed again, in blocks of columns of the transition; O(T (N + r)) with ranks.

    Args:
        unary: (B, T, N) in nats, T > 0; -inf allowed; anything beyond the lengths.
        transition: (N, N), or (1 or B, T-1, N, N) per step; [from, to]; or `Steps`.
        lengths: (B,) int64.
    """
    steps = TableSteps(transition, slow=True) if isinstance(transition, Tensor) else transition
    wide = unary.dtype if unary.device.type == "mps" else torch.float64
    totals, lacking = list[Tensor](), unary.new_zeros(len(unary), dtype=wide)
    for state, top in _swept(masked(unary, lengths), steps):
        lacking = lacking + top.squeeze(1)
        totals.append(soft_sum(state, 1) + lacking)
    last = torch.arange(len(totals), device=lengths.device) == lengths.unsqueeze(1) - 1
    return torch.where(last, torch.stack(totals, 1), 0.0).sum(1).to(unary.dtype)


def forward(unary: Unary, transition: Transition | Steps, lengths: Lengths) -> Unary:
    """(B, T, N) log-probability of the state given the prefix that ends there; differentiable.

    Up to a constant in each row, to which no gradient goes: their softmax over states is the
    filtered distribution, with its gradient. -inf beyond the length, and where a state cannot be
    reached, the gradient there zero. Costs O(T N^2) with a table, whose exponentials and O(T N)
    are kept for the gradient, or O(T N r) with ranks.

    Args:
        unary: (B, T, N) in nats; -inf allowed.
        transition: (N, N), or (1 or B, T-1, N, N) per step; [from, to]; -inf allowed; or `Steps`.
        lengths: (B,) int64.
    """
    if not unary.shape[1]:
        return unary
    swept = _swept(masked(unary, lengths), as_steps(transition))
    return _within(lengths, [state for state, _ in swept])


def filtered(unary: Unary, transition: Transition | Steps, lengths: Lengths) -> Unary:
    """(B, T, N) the probabilities of the state given the prefix; differentiable; 0 where none is.

    Arguments and cost as for `forward`.
    """
    messages = forward(unary, transition, lengths)
    alive = (messages.detach() > -math.inf).any(-1, keepdim=True)
    return torch.where(alive, torch.where(alive, messages, 0.0).softmax(-1), 0.0)


def backward(unary: Unary, transition: Transition | Steps, lengths: Lengths) -> Unary:
    """(B, T, N) log of the sum over suffixes after each step, its maximum 0; -inf beyond.

    Differentiable, as `forward`, and of the same cost.
    """
    if not unary.shape[1]:
        return unary
    steps, own = as_steps(transition).turned(), masked(unary, lengths).unbind(1)
    messages = [torch.zeros_like(own[0])]
    for step in range(len(own) - 2, -1, -1):
        passed = steps.advance(step, messages[-1] + own[step + 1])
        passed = torch.where((step + 1 < lengths).unsqueeze(1), passed, 0.0)
        messages.append(passed - finite(passed.detach().amax(1, keepdim=True)))
    return _within(lengths, messages[::-1])


def _swept(unary: Tensor, steps: Steps) -> Iterator[tuple[Tensor, Tensor]]:
    """Each step's log alpha, its maximum 0, and what was taken off for that, (B, 1)."""
    state = unary
    for step, own in enumerate(unary.unbind(1)):  # the gradient of a slice is as large as unary
        state = steps.advance(step - 1, state) + own if step else own
        top = finite(state.detach().amax(1, keepdim=True))
        state = state - top
        yield state, top


def _within(lengths: Tensor, messages: list[Tensor]) -> Tensor:
    """(B, T, N) messages, -inf beyond the lengths."""
    return torch.where(
        inside(lengths, len(messages)).unsqueeze(2), torch.stack(messages, 1), -math.inf
    )
