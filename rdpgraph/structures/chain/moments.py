"""Expectations under chains: entropy, cross-entropy, joint probabilities of neighbours."""

import math
from typing import Any

import torch
from torch import Tensor

from rdpgraph.model.gradients import differentiable_once, expectations
from rdpgraph.model.semiring import finite
from rdpgraph.structures.chain.factors import inside, peak, product
from rdpgraph.structures.chain.pairs import pair_sums
from rdpgraph.structures.chain.recursion import Messages, log_partition, messages
from rdpgraph.structures.chain.steps import TableSteps
from rdpgraph.structures.chain.tensors import ChainTensors


def entropy(parts: ChainTensors, log_base: Tensor | None = None) -> Tensor:
    """(B,) nats; 0 for an impossible item. Cost and gradient as for `cross_entropy`.

    Args:
        parts: the chains.
        log_base: (*batch, T, N) without gradient, whose expectation is added.
    """
    # The gradient in q is zero where q is p.
    sent = messages(*parts)
    return _cross_entropy(parts, parts.detach(), sent, sent, log_base)


def cross_entropy(parts: ChainTensors, other: ChainTensors) -> Tensor:
    """(B,) nats: the expectation under one chain of minus the log-probability in another.

    A sum of small terms, one for each step, and not a difference of log Z and an expected score,
    both of which are large. +inf, with no gradient, where the other forbids what the first allows;
    0 for an impossible item. Differentiable once. O(B T N^2) in matrix products; the memory of the
    inputs.

    Args:
        parts: the first chains.
        other: the other ones, of the same lengths.
    """
    return _cross_entropy(parts, other, messages(*parts), messages(*other))


def _cross_entropy(
    parts: ChainTensors, other: ChainTensors, inward: Messages, outward: Messages,
    log_base: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The same, given the messages of both, with the expectation of a log-base added."""
    scored = other.unary
    if log_base is not None:
        scored = scored - finite(log_base).reshape(scored.shape)
    first, second = parts.transition, other.transition
    if first.ndim != second.ndim or len(first) != len(second):
        rows = max(len(t) if t.ndim == 4 else 1 for t in (first, second))
        shape = (rows, max(parts.unary.shape[1] - 1, 0), *first.shape[-2:])
        first, second = first.expand(shape), second.expand(shape)
    nats: Any = _CrossEntropy.apply(
        parts.unary, first, parts.lengths, other.unary, second, scored.detach(), inward, outward
    )
    return nats


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, unary: Tensor, transition: Tensor, lengths: Tensor, other_unary: Tensor,
        other_transition: Tensor, scored: Tensor, inward: Messages, outward: Messages,
    ) -> Tensor:  # fmt: skip
        p, q = (
            ChainTensors(unary, transition, lengths),
            ChainTensors(other_unary, other_transition, lengths),
        )
        means = (_probabilities(inward) * finite(scored)).sum(-1)
        terms = _log_ratios(q, outward) - means
        if unary.shape[1] > 1:
            terms[:, 1:] -= pair_sums(p, inward, finite(q.transition))
        total = (
            torch.where(inside(lengths, unary.shape[1]), terms, 0.0).double().sum(1).to(unary.dtype)
        )
        possible, allowed = _possible(p, inward), ~_forbidden(p, q, inward)
        ctx.save_for_backward(
            unary, transition, lengths, other_unary, other_transition, scored, possible & allowed
        )
        return torch.where(possible, torch.where(allowed, total, math.inf), 0.0)

    @staticmethod
    @differentiable_once
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *gradients: Tensor
    ) -> tuple[Tensor | None, ...]:
        """In p, minus the covariance with q's score; in q, its marginals less those of p."""
        unary, transition, lengths, other_unary, other_transition, scored, counted = (
            ctx.saved_tensors
        )
        weights = torch.where(counted, gradients[0], 0.0)
        in_p, in_q = any(ctx.needs_input_grad[:2]), any(ctx.needs_input_grad[3:5])
        for_p, for_q = (None, None), (None, None)
        with torch.enable_grad():
            own = (unary.detach().requires_grad_(), transition.detach().requires_grad_())
            means = _gradients(log_partition(*own, lengths), own, weights, create_graph=in_p)
            if in_p:
                # Minus the derivative of log Z along q's potentials, differentiated once more.
                along = (means[0] * finite(scored)).sum()
                along = along + (means[1] * finite(other_transition)).sum()
                for_p = _gradients(-along, own, torch.ones_like(along))
            if in_q:
                theirs = (
                    other_unary.detach().requires_grad_(),
                    other_transition.detach().requires_grad_(),
                )
                slopes = _gradients(log_partition(*theirs, lengths), theirs, weights)
                for_q = tuple(f - m.detach() for f, m in zip(slopes, means, strict=True))
        return (*for_p, None, *for_q, None, None, None)


def _gradients(
    values: Tensor, inputs: tuple[Tensor, ...], weights: Tensor, *, create_graph: bool = False
) -> tuple[Tensor, ...]:
    return torch.autograd.grad(
        values, inputs, weights, create_graph=create_graph, allow_unused=True,
        materialize_grads=True,
    )  # fmt: skip


def edge_marginals(parts: ChainTensors) -> Tensor:
    """(B, T - 1, N, N) probabilities of neighbours' states, as large as that; differentiable."""
    unary, transition, lengths = parts
    batch, total, states = unary.shape
    shape = (batch, max(total - 1, 0), states, states)
    if total < 2:
        return unary.new_zeros(shape)
    tracked = unary.requires_grad or transition.requires_grad
    _, (gradient,) = expectations(
        lambda steps: log_partition(unary, steps, lengths), [transition.expand(shape)],
        tracked=tracked,
    )  # fmt: skip
    return gradient


def _log_ratios(parts: ChainTensors, sent: Messages) -> Tensor:
    """(B, T): log Z of the first t + 1 steps less that of the first t; O(T N)."""
    unary, transition, _ = parts
    forward = sent.log_forward
    if not unary.shape[1]:
        return unary.new_zeros(unary.shape[:2])
    first = unary[:, 0].logsumexp(-1, keepdim=True)
    # p(x_t | prefix) = exp(unary + log of what arrives - ratio): one state with mass will do.
    best = forward[:, 1:].argmax(-1, keepdim=True)
    columns = TableSteps(transition).columns(best.squeeze(2)[None], first=0)[0]
    arriving = (forward[:, :-1] + columns).logsumexp(-1, keepdim=True)
    later = arriving + unary[:, 1:].gather(2, best) - forward[:, 1:].gather(2, best)
    return torch.cat([first, later.squeeze(-1)], 1)


def _probabilities(sent: Messages) -> Tensor:
    """(B, T, N) marginals, zero where nothing is possible."""
    logs = sent.log_forward + sent.log_backward
    values = (logs - peak(logs, (2,))).exp()
    total = values.sum(-1, keepdim=True)
    return values / torch.where(total > 0, total, 1.0)


def _possible(parts: ChainTensors, sent: Messages) -> Tensor:
    """(B,) whether any sequence is possible."""
    dead = ~(sent.log_forward > -math.inf).any(-1)
    return ~(dead & inside(parts.lengths, dead.shape[1])).any(1)


def _forbidden(parts: ChainTensors, other: ChainTensors, sent: Messages) -> Tensor:
    """(B,) whether the other chain forbids a sequence that the first allows; in logs, exactly."""
    logs, within = (
        sent.log_forward + sent.log_backward,
        inside(parts.lengths, parts.unary.shape[1]),
    )
    lost = (logs > -math.inf) & (other.unary == -math.inf) & within.unsqueeze(2)
    forbidden = lost.flatten(1).any(1)
    gone = (other.transition == -math.inf) & (parts.transition > -math.inf)
    if parts.unary.shape[1] < 2 or not bool(gone.any()):
        return forbidden
    before = (sent.log_forward[:, :-1] > -math.inf).to(parts.unary)
    right = (sent.log_backward + parts.unary)[:, 1:]
    reached = product(before, gone.to(before))
    crossed = ((reached > 0) & (right > -math.inf)).any(-1) & within[:, 1:]
    return forbidden | crossed.any(1)
