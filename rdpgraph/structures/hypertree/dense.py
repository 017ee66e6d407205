"""The inside recursion with a table of rules, by scaled products, and its gradient.

All splits of all spans of a width at once: outer products of left and right parts are summed over
the splits, and one matrix product applies the rules. Splits with a single word on one side use
rules that are contracted with that word in advance. With Y the sum over splits and rules, the
inside value of a span is alpha_k = exp(phi_k) Y_k; its log-scale is kept apart.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rdpgraph.structures.hypertree.charts import (
    Chart,
    HypertreeTensors,
    limit,
    lowest,
    lowest_log,
    peak,
    products,
    rescaled,
    roots,
    split_weights,
    times,
)
from rdpgraph.structures.hypertree.plain import recomputed
from rdpgraph.structures.hypertree.rules import DenseRules


def log_roots(parts: HypertreeTensors) -> tuple[Tensor, Tensor]:
    """(B, N) the log inside values of whole sentences, and (B,) whether underflow may have hurt.

    O(T^2 N^3 + T^3 N^2) for each item; keeps O(T^2 N + T N (N + P)). Twice differentiable.
    """
    assert isinstance(parts.rules, DenseRules)
    return _Dense.apply(  # pyright: ignore
        parts.leaves, parts.spans, parts.rules.log_rule, parts.lengths, parts.split
    )


@dataclass(frozen=True, eq=False)
class _Rules:
    """Rules as scaled values, by whether the left and right part is a span or a word.

    Attributes:
        spans: (R, N * N, N) span and span, [left and right, parent].
        left_words: (R, P, N * N) a word on the left, [left, parent and right].
        right_words: (R, P, N * N) a word on the right, [right, parent and left].
        words: (R, P * P, N) two words.
        top: (R, 1, 1) their log-scale.
        low: (R, 1) the smallest log of them, less the scale.
    """

    spans: Tensor
    left_words: Tensor
    right_words: Tensor
    words: Tensor
    top: Tensor
    low: Tensor

    @staticmethod
    def of(log_rule: Tensor, split: bool) -> "_Rules":  # noqa: FBT001
        flat = log_rule.flatten(1)
        top = peak(flat)
        values = (log_rule - top.reshape(-1, 1, 1, 1)).exp()
        span, word = _places(log_rule, split)
        return _Rules(
            values[:, :, span, span].permute(0, 2, 3, 1).flatten(1, 2),
            values[:, :, word, span].permute(0, 2, 1, 3).flatten(2, 3),
            values[:, :, span, word].permute(0, 3, 1, 2).flatten(2, 3),
            values[:, :, word, word].permute(0, 2, 3, 1).flatten(1, 2),
            top.unsqueeze(2),
            lowest_log(flat - top).unsqueeze(1),
        )


def _places(log_rule: Tensor, split: bool) -> tuple[slice, slice]:  # noqa: FBT001
    parents = log_rule.shape[1]
    return slice(0, parents), slice(parents, None) if split else slice(0, parents)


@dataclass(frozen=True, eq=False)
class _Inside:
    """What the forward pass keeps: inside values, log-scales, peaks, words with their rules."""

    values: Chart
    scales: Chart
    peaks: Tensor
    words: Tensor
    left_words: Tensor
    right_words: Tensor
    doubtful: Tensor


def _forward(parts: HypertreeTensors, rules: _Rules) -> _Inside:
    batch, total, _, states = parts.spans.shape
    low_enough = limit(parts.spans.dtype)
    words, _, word_scales = rescaled((parts.leaves - peak(parts.leaves)).exp(),
                                       peak(parts.leaves))  # fmt: skip
    values = Chart.of(parts.leaves, states)
    scales, lows = Chart.of(parts.leaves), Chart.of(parts.leaves)
    scales.put(0, word_scales, word_scales)
    word_lows = lowest(words)
    lows.put(0, word_lows, word_lows)
    left_words = times(words, rules.left_words).reshape(batch, total, states, states)
    right_words = times(words, rules.right_words).reshape(batch, total, states, states)
    peaks = parts.leaves.new_ones(batch, total, total)
    doubtful = (lowest_log(parts.leaves - peak(parts.leaves)) < low_enough).any(1)
    for width in range(1, total):
        weights, top, low = split_weights(scales, lows, width)
        if width == 1:
            pairs = (words[:, :-1] * weights).unsqueeze(3) * words[:, 1:].unsqueeze(2)
            raw = times(pairs.flatten(2), rules.words)
        else:
            first, last = weights[..., :1], weights[..., -1:]
            raw = _applied(left_words[:, :-width], values.right(width - 1)[:, 1:] * first)
            raw += _applied(right_words[:, width:], values.left(width - 1)[:, :-1] * last)
        if width > 2:
            raw += times(_outer(values, weights, width).flatten(2), rules.spans)
        phi = parts.phi(width)
        high = peak(phi)
        scaled, tops, scale = rescaled(raw * (phi - high).exp(), top + high + rules.top)
        peaks[:, : total - width, width] = tops.squeeze(2)
        values.put(width, scaled, scaled)
        scales.put(width, scale, scale)
        least = lowest(scaled)
        lows.put(width, least, least)
        worst = low + rules.low + lowest_log(phi - high).clamp(max=0.0)
        doubtful |= ((worst < low_enough) & parts.inside(width)).any(1)
    return _Inside(values, scales, peaks, words, left_words, right_words, doubtful)


def _outer(values: Chart, weights: Tensor, width: int) -> Tensor:
    """(B, S, N, N) sums over the splits into two spans of outer products."""
    left = values.left_parts(width, 1, width - 1) * weights[..., 1:-1, None]
    return left.mT @ values.right_parts(width, 1, width - 1)


def _applied(matrices: Tensor, rows: Tensor) -> Tensor:
    """(B, S, N, M) times (B, S, M)."""
    return (matrices @ rows.unsqueeze(3)).squeeze(3)


def _backward(
    parts: HypertreeTensors, rules: _Rules, inside: _Inside, gradient: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the leaves, the spans and the rules (R, N, C, C), by the outside recursion."""
    batch, total, _, states = parts.spans.shape
    values, words, count = inside.values, inside.words, len(rules.top)
    into = Chart.of(parts.leaves, states)
    # Gradients of Y, with the weights of the splits that have a word on the left or right.
    by_left = parts.leaves.new_zeros(batch, total, total, states)
    by_right = parts.leaves.new_zeros(batch, total, total, states)
    span_grads, word_grads = torch.zeros_like(parts.spans), torch.zeros_like(words)
    rule_spans, rule_words = torch.zeros_like(rules.spans), torch.zeros_like(rules.words)
    whole = parts.lengths - 1
    # What is in doubt is solved again by others, and has no gradient here.
    sure = ~inside.doubtful.reshape(-1, 1, 1)
    for width in range(total - 1, 0, -1):
        mine = values.left(width)
        alive = (mine > 0) & sure
        marginals = torch.where(alive, (into.left(width) + into.right(width)) * mine, 0.0)
        marginals[:, 0] += torch.where((whole == width).unsqueeze(1) & alive[:, 0], gradient, 0.0)
        span_grads.diagonal(offset=width, dim1=1, dim2=2).copy_(marginals.mT)
        phi = parts.phi(width)
        gain = (phi - peak(phi)).exp() / inside.peaks[:, : total - width, width, None]
        sums = torch.where(alive, marginals / torch.where(alive, mine, 1.0) * gain, 0.0)
        scales = inside.scales.left_parts(width, 0, width) + inside.scales.right_parts(
            width, 0, width
        )
        weights = (scales - peak(scales)).exp()
        if width == 1:
            pairs = (words[:, :-1] * weights).unsqueeze(3) * words[:, 1:].unsqueeze(2)
            rule_words += products(pairs.flatten(2), sums, count)
            back = times(sums, rules.words.mT).reshape(*pairs.shape) * weights.unsqueeze(3)
            word_grads[:, :-1] += _applied(back, words[:, 1:])
            word_grads[:, 1:] += _applied(back.mT, words[:, :-1])
            continue
        first, last = sums * weights[..., :1], sums * weights[..., -1:]
        by_left[:, : total - width, width] = first
        by_right[:, width:, total - 1 - width] = last
        into.right(width - 1)[:, 1:] += _applied(inside.left_words[:, :-width].mT, first)
        into.left(width - 1)[:, :-1] += _applied(inside.right_words[:, width:].mT, last)
        if width > 2:
            outer = _outer(values, weights, width)
            rule_spans += products(outer.flatten(2), sums, count)
            back = times(sums, rules.spans.mT).reshape(*outer.shape)
            middle = weights[..., 1:-1, None]
            right = values.right_parts(width, 1, width - 1)
            left = values.left_parts(width, 1, width - 1)
            into.left_parts(width, 1, width - 1).addcmul_(middle, right @ back.mT)
            into.right_parts(width, 1, width - 1).addcmul_(middle, left @ back)
    log_rule = _rule_grads(parts, rules, inside, by_left, by_right, rule_spans, rule_words,
                           word_grads)  # fmt: skip
    return word_grads.mul_(words), span_grads, log_rule


def _rule_grads(
    parts: HypertreeTensors, rules: _Rules, inside: _Inside, by_left: Tensor, by_right: Tensor,
    rule_spans: Tensor, rule_words: Tensor, word_grads: Tensor,
) -> Tensor:  # fmt: skip
    """The gradient of the rules, (R, N, C, C); what words get from theirs is added to theirs."""
    assert isinstance(parts.rules, DenseRules)
    log_rule = parts.rules.log_rule
    states, words, count = log_rule.shape[1], inside.words, len(log_rule)
    # A word at t and the spans that start at t + 1; and those that end at t - 1.
    lefts = by_left[:, :-1, 2:].mT @ inside.values.lefts[:, 1:, 1:-1]
    rights = by_right[:, 1:, :-2].mT @ inside.values.rights[:, :-1, 1:-1]
    lefts, rights = lefts.flatten(2), rights.flatten(2)
    word_grads[:, :-1] += times(lefts, rules.left_words.mT)
    word_grads[:, 1:] += times(rights, rules.right_words.mT)
    left_words = products(words[:, :-1], lefts, count) * rules.left_words
    right_words = products(words[:, 1:], rights, count) * rules.right_words
    span, word = _places(log_rule, parts.split)
    result = torch.zeros_like(log_rule)
    size = words.shape[2]
    result[:, :, span, span] = _square(rule_spans * rules.spans, states).permute(0, 3, 1, 2)
    result[:, :, word, span] += left_words.unflatten(2, (states, states)).permute(0, 2, 1, 3)
    result[:, :, span, word] += right_words.unflatten(2, (states, states)).permute(0, 2, 3, 1)
    result[:, :, word, word] += _square(rule_words * rules.words, size).permute(0, 3, 1, 2)
    return result


def _square(values: Tensor, size: int) -> Tensor:
    return values.unflatten(1, (size, size))


class _Dense(torch.autograd.Function):
    @staticmethod
    def forward(  # pyright: ignore
        ctx: Any, leaves: Tensor, spans: Tensor, log_rule: Tensor, lengths: Tensor,
        split: bool,  # noqa: FBT001
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        ctx.set_materialize_grads(False)  # pyright: ignore
        parts = HypertreeTensors(leaves, spans, DenseRules(log_rule), lengths, split)
        inside = _forward(parts, _Rules.of(log_rule, split))
        ctx.split = split  # pyright: ignore
        ctx.save_for_backward(  # pyright: ignore
            leaves, spans, log_rule, lengths, inside.values.lefts, inside.values.rights,
            inside.scales.lefts, inside.scales.rights, inside.peaks, inside.words,
            inside.left_words, inside.right_words, inside.doubtful,
        )  # fmt: skip
        ctx.mark_non_differentiable(inside.doubtful)  # pyright: ignore
        mine, scale = roots(inside.values, inside.scales.lefts, lengths)
        return mine.log() + scale, inside.doubtful

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None, _: Tensor | None):  # pyright: ignore
        if gradient is None:
            return None, None, None, None, None
        leaves, spans, log_rule, lengths, *kept = ctx.saved_tensors  # pyright: ignore
        parts = HypertreeTensors(leaves, spans, DenseRules(log_rule), lengths, ctx.split)  # pyright: ignore
        if torch.is_grad_enabled():
            return *recomputed(parts, gradient), None, None
        inside = _Inside(Chart(*kept[:2]), Chart(*kept[2:4]), *kept[4:])
        rules = _Rules.of(log_rule, ctx.split)  # pyright: ignore
        return *_backward(parts, rules, inside, gradient), None, None
