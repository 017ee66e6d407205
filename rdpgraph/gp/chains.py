"""log Z of many chains: samples of transitions, each shared by all sequences."""

from typing import Any

import torch
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph.structures.chain.factors import inside
from rdpgraph.structures.chain.model import Chain

_HEADROOM = {torch.float32: 60.0, torch.float64: 600.0}
"""Maximum difference of scores, in nats, for products without underflow."""


def log_partition(unary: Tensor, pairwise: Tensor, lengths: Tensor) -> Tensor:
    """(S, B) log Z in nats of scores (S, B, T, V) and pairwise (S, V, V); differentiable once.

    O(S B T V^2) time, as S products of (B, V) and (V, V) for each step; memory O(S B T V) where
    gradients are tracked, else O(S B V). `Chain` answers where scaled probabilities would
    underflow.
    """
    if not narrow(pairwise):
        return as_chain(unary, pairwise, lengths).log_partition()
    total: Tensor = _LogPartition.apply(unary, pairwise, lengths)
    return total


def as_chain(unary: Tensor, pairwise: Tensor, lengths: Tensor) -> Chain:
    """A batch (S, B) of `Chain` with a transition for every sample."""
    samples, batch, steps, states = unary.shape
    each = pairwise.reshape(samples, 1, 1, states, states)
    transition = each.expand(samples, batch, max(steps - 1, 0), states, states)
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
    return pairwise.flatten(1) @ counts.mT


def chosen(values: Tensor, states: Tensor) -> Tensor:
    """(S, B, T) of (S, B, T, V): the entries of states (B, T)."""
    index = states.unsqueeze(-1).expand(*values.shape[:-1], 1)
    return values.gather(-1, index).squeeze(-1)


def log_sums(unary: Tensor, pairwise: Tensor, states: Tensor) -> Tensor:
    """(S, B, T - 1) for each two neighbours: log-sums over each one's states, the other one known.

    log sum_v exp(u_t+1(v) + f(y_t, v)) + log sum_v exp(u_t(v) + f(v, y_t+1)), as products of
    matrices of exponentials; differentiable.
    """
    before, after = states[:, :-1], states[:, 1:]
    if not narrow(pairwise):
        forward = (unary[:, :, 1:] + pairwise[:, before]).logsumexp(-1)
        return forward + (unary[:, :, :-1] + pairwise.mT[:, after]).logsumexp(-1)
    unary = unary.contiguous()
    peaks = peaks_of(unary, pairwise)
    top = pairwise.detach().flatten(1).amax(1)
    emission = (unary if peaks is None else unary - peaks).exp().flatten(1, 2)
    matrix = (pairwise - top.reshape(-1, 1, 1)).exp()
    shape = unary.shape
    forward = chosen((emission @ matrix.mT).reshape(shape)[:, :, 1:], before)
    backward = chosen((emission @ matrix).reshape(shape)[:, :, :-1], after)
    sums = forward.log() + backward.log() + 2 * top.reshape(-1, 1, 1)
    return sums if peaks is None else sums + (peaks[:, :, 1:] + peaks[:, :, :-1]).squeeze(-1)


def narrow(pairwise: Tensor) -> bool:
    """Test if pair scores are close enough for scaled products not to underflow."""
    with torch.no_grad():
        return float(_apart(pairwise)) < _HEADROOM.get(pairwise.dtype, 0.0)


def peaks_of(unary: Tensor, pairwise: Tensor) -> Tensor | None:
    """(..., 1) maxima to subtract from scores (..., V) before exponentiation; or None."""
    with torch.no_grad():
        low, high = unary.aminmax()
        room = _HEADROOM[unary.dtype] - float(_apart(pairwise))
        if -room < float(low) and float(high) < room:
            return None
        return unary.amax(-1, keepdim=True)


def _apart(pairwise: Tensor) -> Tensor:
    """() the largest difference of scores in one matrix."""
    flat = pairwise.flatten(1)
    return (flat.amax(1) - flat.amin(1)).amax() if flat.numel() else flat.sum()


class _LogPartition(torch.autograd.Function):
    """Forward messages of scaled probabilities, and the gradient by backward ones."""

    @staticmethod
    def forward(ctx: Any, unary: Tensor, pairwise: Tensor, lengths: Tensor) -> Tensor:
        """(S, B) log Z in nats."""
        keep = ctx.needs_input_grad[0] or ctx.needs_input_grad[1]
        # Steps first, so that each is contiguous.
        emission = unary.permute(2, 0, 1, 3).clone(memory_format=torch.contiguous_format)
        peaks = peaks_of(emission, pairwise)
        emission = (emission if peaks is None else emission.sub_(peaks)).exp_()
        top = pairwise.flatten(1).amax(1)
        matrix = (pairwise - top.reshape(-1, 1, 1)).exp_()
        within = inside(lengths, unary.shape[2]).mT.unsqueeze(1)  # (T, 1, B)
        total = top.unsqueeze(1) * (lengths - 1).to(unary)
        if peaks is not None:
            total = total + torch.where(within, peaks.squeeze(-1), 0.0).sum(0)
        messages: list[Tensor] = []
        scales: list[Tensor] = []
        state = emission[0]
        whole = int(lengths.min())
        for step in range(len(emission)):
            if step:
                state = _times(messages[-1], matrix).mul_(emission[step])
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
    if state.shape[1] > tuning.BROADCAST_SEQUENCES:
        return state @ matrix
    return (state.unsqueeze(-1) * matrix.unsqueeze(1)).sum(-2)
