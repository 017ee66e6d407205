"""log Z of many chains, each sample with a transition of its own that all its sequences share."""

from typing import Any

import torch
from torch import Tensor

from rdpgraph.structures.chain.factors import inside
from rdpgraph.structures.chain.model import Chain

_HEADROOM = {torch.float32: 60.0, torch.float64: 600.0}
"""Nats between the scores of a transition matrix up to which scaled products do not underflow."""
_FEW_SEQUENCES = 4
"""Up to so many, products and sums are faster than the matrix products of a batch."""


def log_partition(unary: Tensor, pairwise: Tensor, lengths: Tensor) -> Tensor:
    """(S, B) log Z in nats; differentiable once.

    O(S B T V^2) time, as S products of (B, V) and (V, V) for each step; memory O(S B T V) where
    gradients are tracked, beside the unary scores O(S B V) otherwise. `Chain` answers where scores
    are so far apart that scaled probabilities would underflow, at O(S B T V^2) memory.

    Args:
        unary: (S, B, T, V) scores in nats, finite.
        pairwise: (S, V, V) scores of neighbours, [from, to], finite.
        lengths: (B,) from 1 to T.
    """
    limit = _HEADROOM.get(unary.dtype, 0.0)
    with torch.no_grad():
        flat = pairwise.flatten(1)
        apart = flat.amax(1) - flat.amin(1) if flat.numel() else flat.sum(1)
        narrow = bool((apart < limit).all())
    if not narrow:
        return as_chain(unary, pairwise, lengths).log_partition()
    found: Tensor = _LogPartition.apply(unary, pairwise, lengths)
    return found


def as_chain(unary: Tensor, pairwise: Tensor, lengths: Tensor) -> Chain:
    """The same as one batch of `Chain`, whose transitions are written out for every step."""
    samples, batch, steps, states = unary.shape
    each = pairwise.reshape(samples, 1, 1, states, states)
    transition = each.expand(samples, batch, max(steps - 1, 0), states, states)
    return Chain(unary, transition, lengths=lengths.expand(samples, batch))


def score(unary: Tensor, pairwise: Tensor, states: Tensor, lengths: Tensor) -> Tensor:
    """(S, B) unnormalised log-scores of the same sequences (B, T) in every sample."""
    within = inside(lengths, states.shape[1])
    known = torch.where(within, states, 0)
    index = known.unsqueeze(-1).expand(unary.shape[0], *known.shape, 1)
    own = torch.where(within, unary.gather(-1, index).squeeze(-1), 0.0).sum(-1)
    if states.shape[1] < 2:
        return own
    count, labels = len(states), unary.shape[-1]
    pairs = known[:, :-1] * labels + known[:, 1:]
    counts = unary.new_zeros(count, labels * labels)
    counts.scatter_add_(1, pairs, within[:, 1:].to(counts))
    return own + pairwise.flatten(1) @ counts.mT


class _LogPartition(torch.autograd.Function):
    """Forward messages of scaled probabilities, and the gradient by backward ones."""

    @staticmethod
    def forward(ctx: Any, unary: Tensor, pairwise: Tensor, lengths: Tensor) -> Tensor:
        """(S, B) log Z in nats; what the backward pass needs is kept."""
        keep = ctx.needs_input_grad[0] or ctx.needs_input_grad[1]
        # Steps lead, so that each is one block of memory.
        emission = unary.permute(2, 0, 1, 3)
        peaks = emission.amax(-1, keepdim=True)
        emission = torch.sub(emission, peaks, out=emission.new_empty(emission.shape)).exp_()
        top = pairwise.flatten(1).amax(1)
        matrix = (pairwise - top.reshape(-1, 1, 1)).exp_()
        within = inside(lengths, unary.shape[2]).mT.unsqueeze(1)  # (T, 1, B)
        links = (lengths - 1).to(unary)
        total = torch.where(within, peaks.squeeze(-1), 0.0).sum(0) + top.unsqueeze(1) * links
        messages: list[Tensor] = []
        scales: list[Tensor] = []
        state = emission[0]
        whole = int(lengths.min())
        for step in range(len(emission)):
            if step:
                state = _times(messages[-1], matrix).mul_(emission[step])
            scale = state.sum(-1, keepdim=True)
            if step >= whole:  # beyond the length the message stays
                active = within[step].unsqueeze(-1)
                scale = torch.where(active, scale, 1.0)
                state = torch.where(active, state, messages[-1])
            state = state / scale
            scales.append(scale)
            messages = [*messages, state] if keep else [state]
        total = total + torch.stack(scales).squeeze(-1).log_().sum(0)
        if keep:
            ctx.save_for_backward(emission, matrix, torch.stack(messages), torch.stack(scales),
                                  within)  # fmt: skip
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:  # type: ignore[override]
        """Marginals of states, and of neighbours summed over sequences, times the gradient."""
        emission, matrix, messages, scales, within = ctx.saved_tensors
        gradient = gradients[0].unsqueeze(-1)  # (S, B, 1)
        unary = torch.empty_like(emission)
        pairs = torch.zeros_like(matrix)
        after = torch.ones_like(emission[0])
        for step in range(len(emission) - 1, -1, -1):
            active = within[step].unsqueeze(-1)
            unary[step] = messages[step] * after * (gradient * active)
            if step:
                ahead = emission[step] * after / scales[step] * active
                pairs += messages[step - 1].mT @ (ahead * gradient)
                after = torch.where(active, _times(ahead, matrix.mT), after)
        return unary.permute(1, 2, 0, 3), pairs * matrix, None


def _times(state: Tensor, matrix: Tensor) -> Tensor:
    """(S, B, V) times (S, V, V)."""
    if state.shape[1] > _FEW_SEQUENCES:
        return state @ matrix
    return (state.unsqueeze(-1) * matrix.unsqueeze(1)).sum(-2)
