"""The inside recursion with a table of rules: outer products of the parts, summed over splits.

One matrix product applies the rules to the sums. Splits with a single word on one side use rules
that are contracted with that word in advance. O(T^2 N^3 + T^3 N^2) for each item; keeps
O(T^2 N + T N (N + P)).
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from rdpgraph.structures.hypertree.charts import (
    Chart,
    HypertreeTensors,
    lowest,
    lowest_log,
    peak,
    products,
    times,
)
from rdpgraph.structures.hypertree.rules import DenseRules
from rdpgraph.structures.hypertree.sweep import Sweep


class DenseSweep(Sweep):
    """Spans by a table of rules, as scaled values by whether the parts are spans or words.

    Attributes:
        spans: (R, N * N, N) span and span, [left and right, parent].
        left_words: (R, P, N * N) a word on the left, [left, parent and right].
        right_words: (R, P, N * N) a word on the right, [right, parent and left].
        words: (R, P * P, N) two words.
    """

    def __init__(self, parts: HypertreeTensors, *, recorded: bool = False) -> None:
        super().__init__(parts, recorded=recorded)
        assert isinstance(parts.rules, DenseRules)
        log_rule, self.states = parts.rules.log_rule, parts.spans.shape[3]
        flat = log_rule.flatten(1)
        top = peak(flat)
        values = (log_rule - top.reshape(-1, 1, 1, 1)).exp()
        self.top, self.low = top.unsqueeze(2), lowest_log(flat - top).unsqueeze(1)
        first = self.states if parts.split else 0
        self.span, self.word = slice(0, self.states), slice(first, first + parts.leaves.shape[2])
        self.spans = values[:, :, self.span, self.span].permute(0, 2, 3, 1).flatten(1, 2)
        self.left_words = values[:, :, self.word, self.span].permute(0, 2, 1, 3).flatten(2, 3)
        self.right_words = values[:, :, self.span, self.word].permute(0, 3, 1, 2).flatten(2, 3)
        self.words = values[:, :, self.word, self.word].permute(0, 2, 3, 1).flatten(1, 2)
        self.charts["values"] = self.chart(self.states)
        self.rows["words"] = []

    def put(self, width: int, value: Tensor, scale: Tensor) -> None:
        """Spans are the same on both sides; words are taken to their rules."""
        self.charts["scales"].put(width, scale, scale)
        if not self.recorded:
            low = lowest(value)
            self.lows.put(width, low, low)
        if width:
            self.charts["values"].put(width, value, value)
        else:
            shape = *value.shape[:2], self.states, self.states
            sides = (times(value, rules) for rules in (self.left_words, self.right_words))
            self.rows["words"] = [value, *(side.reshape(shape) for side in sides)]
            self.charts["values"].skip()

    def sums(self, width: int, weights: Tensor) -> Tensor:
        """A word and a span, a span and a word, and two spans."""
        _, left_words, right_words = self.rows["words"]
        if width == 1:
            return times(self._pairs(weights).flatten(2), self.words)
        values = self.charts["values"]
        raw = _applied(left_words[:, :-width], values.right(width - 1)[:, 1:] * weights[..., :1])
        raw += _applied(right_words[:, width:], values.left(width - 1)[:, :-1] * weights[..., -1:])
        if width > 2:
            raw += times(self._outer(width, weights).flatten(2), self.spans)
        return raw

    def _pairs(self, weights: Tensor) -> Tensor:
        """(B, S, P, P) two words."""
        words = self.rows["words"][0]
        return (words[:, :-1] * weights).unsqueeze(3) * words[:, 1:].unsqueeze(2)

    def _outer(self, width: int, weights: Tensor) -> Tensor:
        """(B, S, N, N) sums over the splits into two spans of outer products."""
        values = self.charts["values"]
        left = values.left_parts(width, 1, width - 1) * weights[..., 1:-1, None]
        return left.mT @ values.right_parts(width, 1, width - 1)

    def value(self, width: int) -> Tensor:
        """Of the chart; those of words are kept apart."""
        return self.charts["values"].left(width) if width else self.rows["words"][0]

    def backward(self, gradient: Tensor, doubtful: Tensor) -> list[Tensor]:
        """With room for the gradients."""
        leaves, words = self.parts.leaves, self.rows["words"][0]
        batch, total = leaves.shape[:2]
        self.into = Chart.of(leaves, self.states)
        # Gradients of Y, with the weights of the splits that have a word on the left or right.
        self.by_left = leaves.new_zeros(batch, total, total, self.states)
        self.by_right = torch.zeros_like(self.by_left)
        self.of_words, self.of_word_rules = torch.zeros_like(words), torch.zeros_like(self.words)
        self.of_span_rules = torch.zeros_like(self.spans)
        return super().backward(gradient, doubtful)

    def above(self, width: int) -> Tensor:
        """As left and as right parts; the rules of a word and a span give to words at the end."""
        if width:
            return self.into.left(width) + self.into.right(width)
        # A word at t and the spans that start at t + 1; and those that end at t - 1.
        values, total = self.charts["values"], self.parts.leaves.shape[1]
        lefts, rights = values.tensors
        lefts = (self.by_left[:, :-1, 2:].mT @ lefts[:, 1:, 1 : total - 1]).flatten(2)
        rights = (self.by_right[:, 1:, :-2].mT @ rights[:, :-1, 1 : total - 1]).flatten(2)
        self.sides = lefts, rights
        self.of_words[:, :-1] += times(lefts, self.left_words.mT)
        self.of_words[:, 1:] += times(rights, self.right_words.mT)
        return self.of_words

    def below(self, width: int, sums: Tensor, weights: Tensor) -> None:
        """By the three kinds of splits."""
        (words, left_words, right_words), into = self.rows["words"], self.into
        count, total = len(self.words), self.parts.leaves.shape[1]
        if width == 1:
            pairs = self._pairs(weights)
            self.of_word_rules += products(pairs.flatten(2), sums, count)
            back = times(sums, self.words.mT).reshape(*pairs.shape) * weights.unsqueeze(3)
            self.of_words[:, :-1] += _applied(back, words[:, 1:])
            self.of_words[:, 1:] += _applied(back.mT, words[:, :-1])
            return
        first, last = sums * weights[..., :1], sums * weights[..., -1:]
        self.by_left[:, : total - width, width] = first
        self.by_right[:, width:, total - 1 - width] = last
        into.right(width - 1)[:, 1:] += _applied(left_words[:, :-width].mT, first)
        into.left(width - 1)[:, :-1] += _applied(right_words[:, width:].mT, last)
        if width > 2:
            outer = self._outer(width, weights)
            self.of_span_rules += products(outer.flatten(2), sums, count)
            back = times(sums, self.spans.mT).reshape(*outer.shape)
            middle, values = weights[..., 1:-1, None], self.charts["values"]
            right = values.right_parts(width, 1, width - 1)
            left = values.left_parts(width, 1, width - 1)
            into.left_parts(width, 1, width - 1).addcmul_(middle, right @ back.mT)
            into.right_parts(width, 1, width - 1).addcmul_(middle, left @ back)

    def of_rules(self) -> Sequence[Tensor]:
        """(R, N, C, C)."""
        assert isinstance(self.parts.rules, DenseRules)
        (lefts, rights), words = self.sides, self.rows["words"][0]
        span, word, states, size = self.span, self.word, self.states, words.shape[2]
        left_words = products(words[:, :-1], lefts, len(self.words)) * self.left_words
        right_words = products(words[:, 1:], rights, len(self.words)) * self.right_words
        of_spans, of_words = self.of_span_rules * self.spans, self.of_word_rules * self.words
        result = torch.zeros_like(self.parts.rules.log_rule)
        result[:, :, span, span] = of_spans.unflatten(1, (states, states)).permute(0, 3, 1, 2)
        result[:, :, word, span] += left_words.unflatten(2, (states, states)).permute(0, 2, 1, 3)
        result[:, :, span, word] += right_words.unflatten(2, (states, states)).permute(0, 2, 3, 1)
        result[:, :, word, word] += of_words.unflatten(1, (size, size)).permute(0, 3, 1, 2)
        return [result]


def _applied(matrices: Tensor, rows: Tensor) -> Tensor:
    """(B, S, N, M) times (B, S, M)."""
    return (matrices @ rows.unsqueeze(3)).squeeze(3)
