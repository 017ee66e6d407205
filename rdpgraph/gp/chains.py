"""log Z of many chains: samples of transitions, each shared by all sequences."""

import math
from typing import Any

import torch
from torch import Tensor

from rdpgraph.logspace.gradients import differentiable_once
from rdpgraph.structures.chain.model import Chain
from rdpgraph.structures.chain.parts import inside

_HEADROOM = {torch.float32: 60.0, torch.float64: 600.0}
"""Maximum difference of scores, in nats, for products without underflow."""


def log_partition(unary: Tensor, pairwise: Tensor, lengths: Tensor) -> Tensor:
    """(S, B) log Z in nats of scores (S, B, T, V) and pairwise (S, V, V); differentiable once.

    O(S B T V^2) time, as S products of (B, V) and (V, V) for each step; memory O(S B T V) where
    gradients are tracked, else O(S B V). `Chain` answers where scaled probabilities would
    underflow.
    """
    peaks = peaks_of(unary, pairwise)
    if peaks is None:
        return as_chain(unary, pairwise, lengths).log_partition()
    total: Tensor = _ChainLogPartition.apply(unary, pairwise, lengths, peaks)
    return total


def log_ratio(scores: Tensor, log_z: Tensor) -> Tensor:
    """Scores less log Z; -inf where the score is, also where log Z is too."""
    return torch.where(scores > -math.inf, scores - log_z, -math.inf)


def as_chain(unary: Tensor, pairwise: Tensor, lengths: Tensor) -> Chain:
    """A batch (S, B) of `Chain` with a transition for every sample."""
    samples, batch, steps, states = unary.shape
    each = pairwise.reshape(samples, 1, 1, states, states)
    transition = each.expand(samples, batch, max(steps - 1, 0), states, states)
    unary = torch.where(inside(lengths, steps).unsqueeze(-1), unary, 0.0)
    return Chain(unary, transition, lengths=lengths.expand(samples, batch))


def score(unary: Tensor, pairwise: Tensor, states: Tensor, lengths: Tensor) -> Tensor:
    """(S, B) unnormalised log-scores of the same sequences (B, T) in every sample."""
    within = inside(lengths, states.shape[1])
    known = torch.where(within, states, 0)
    unaries = torch.where(within, chosen(unary, known), 0.0).sum(-1)
    return unaries + pair_scores(pairwise, known[:, :-1], known[:, 1:], within[:, 1:])


def pair_scores(pairwise: Tensor, sources: Tensor, targets: Tensor, within: Tensor) -> Tensor:
    """(S, B) sums of the scores of pairs of states (B, E) where `within` (B, E)."""
    labels = pairwise.shape[-1]
    counts = pairwise.new_zeros(len(sources), labels * labels)
    counts.scatter_add_(1, sources * labels + targets, within.to(counts))
    flat = pairwise.flatten(1)
    dead = flat == -math.inf
    sums = torch.where(dead, 0.0, flat) @ counts.mT
    return torch.where(dead.to(counts) @ counts.mT > 0, -math.inf, sums)


def chosen(values: Tensor, states: Tensor) -> Tensor:
    """(S, B, T) of (S, B, T, V): the entries of states (B, T)."""
    index = states.unsqueeze(-1).expand(*values.shape[:-1], 1)
    return values.gather(-1, index).squeeze(-1)


def peaks_of(unary: Tensor, pairwise: Tensor) -> Tensor | None:
    """(..., 1) maxima to subtract from scores (..., V) before exponentiation, or a scalar 0.

    None where products of scaled probabilities may underflow, a position has no state, or there
    are no scores.
    """
    if not unary.numel():
        return None
    with torch.no_grad():
        low, high = pairwise.flatten(1).aminmax(dim=1)
        room = _HEADROOM.get(unary.dtype, 0.0) - float((high - low).amax())
        if not room > 0:
            return None
        low, high = unary.aminmax()
        if -room < float(low) and float(high) < room:
            return unary.new_zeros(())
        peaks = unary.amax(-1, keepdim=True)
        return None if bool((peaks == -math.inf).any()) else peaks


class _ChainLogPartition(torch.autograd.Function):
    """Forward messages of scaled probabilities, and the gradient by backward ones."""

    @staticmethod
    def forward(
        ctx: Any, unary: Tensor, pairwise: Tensor, lengths: Tensor, peaks: Tensor
    ) -> Tensor:
        """(S, B) log Z in nats."""
        keep = ctx.needs_input_grad[0] or ctx.needs_input_grad[1]
        # Steps first, so that each is contiguous.
        emission = unary.permute(2, 0, 1, 3).clone(memory_format=torch.contiguous_format)
        peaks = peaks.permute(2, 0, 1, 3) if peaks.ndim else peaks
        emission = (emission.sub_(peaks) if peaks.ndim else emission).exp_()
        top = pairwise.flatten(1).amax(1)
        matrix = (pairwise - top.reshape(-1, 1, 1)).exp_()
        within = inside(lengths, unary.shape[2]).mT.unsqueeze(1)  # (T, 1, B)
        total = top.unsqueeze(1) * (lengths - 1).to(unary)
        if peaks.ndim:
            total = total + torch.where(within, peaks.squeeze(-1), 0.0).sum(0)
        messages: list[Tensor] = []
        scales: list[Tensor] = []
        state = emission[0]
        whole = int(lengths.min())
        for step in range(len(emission)):
            if step:
                state = (messages[-1] @ matrix).mul_(emission[step])
            scale = state.sum(-1, keepdim=True)
            if step >= whole:  # beyond the length the message is unchanged
                active = within[step].unsqueeze(-1)
                scale = torch.where(active, scale, 1.0)
                state = torch.where(active, state, messages[-1])
            state = state / scale
            scales.append(scale)
            messages = [*messages, state] if keep else [state]
        total = total + torch.stack(scales).squeeze(-1).log_().sum(0)
        if keep:
            ctx.save_for_backward(emission, matrix, torch.stack(messages), torch.stack(scales),
                                  within, unary, pairwise)  # fmt: skip
        return total

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:  # type: ignore[override]
        """Marginals of states, and of neighbours summed over sequences, times the gradient."""
        emission, matrix, messages, scales, within, *_ = ctx.saved_tensors
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
                after = torch.where(active, ahead @ matrix.mT, after)
        return unary.permute(1, 2, 0, 3), pairs * matrix, None, None
