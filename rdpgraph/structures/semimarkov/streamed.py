"""Segmentations of long sequences with scores by position, without a (T, D, N) tensor.

The scores of segments are recomputed in blocks of some hundred positions, upwards and for the
gradient. Memory is O(T N), and that of one block.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from rdpgraph.structures.semimarkov.scoring import Segmentation

_PIECE = 2**24  # bytes of a block of scores; equally fast from 2**22 to 2**26


def log_ends(unary: Tensor, transition: Tensor, duration: Tensor) -> Tensor:
    """(B, T, N) log-weight of all segmentations of the first t + 1 positions with last label n.

    Differentiable once; T short calls of torch each way. In float64: long sums leave few digits to
    the differences that are marginals. Unary (B, T, N), transition (N, N), duration (D, N).
    """
    result: Tensor = _Ends.apply(unary, transition, duration)  # pyright: ignore
    return result


def best(unary: Tensor, transition: Tensor, duration: Tensor, lengths: Tensor) -> Segmentation:
    """(B, T) a most probable segmentation of each possible item, of lengths (B,) from 1.

    Unary (B, T, N), transition (N, N), duration (D, N).
    """
    ends, _, spans, before = _upwards(unary, transition, duration, maximum=True)
    item, last = torch.arange(len(unary), device=unary.device), lengths - 1
    label = ends[item, last].argmax(-1)
    cuts: list[tuple[Tensor, ...]] = []
    while len(item):
        age = len(duration) - 1 - spans[item, last, label]
        cuts.append((item, last, age, label))
        on = last > age
        item, last = item[on], (last - age)[on] - 1
        label = before[item, last, label[on]]
    parts = (torch.cat(each) for each in zip(*cuts, strict=True))
    return Segmentation.cut(*parts, shape=tuple(unary.shape[:2]))


def _pieces(unary: Tensor, duration: Tensor) -> list[tuple[int, int]]:
    steps = unary.shape[1]
    size = max(1, _PIECE // max(1, len(unary) * duration.numel() * unary.element_size()))
    return [(start, min(start + size, steps)) for start in range(0, steps, size)]


def _around(unary: Tensor, longest: int, start: int, stop: int) -> Tensor:
    """(B, D - 1 + L, N) some positions and those before; absent ones are -inf."""
    first = max(0, start - longest + 1)
    return pad(unary[:, first:stop], (0, 0, longest - 1 - start + first, 0), value=-math.inf)


def _segments(part: Tensor, duration: Tensor) -> Tensor:
    """(B, L, D, N) scores of the segments that end at each position, the longest first."""
    sums = part.unfold(1, len(duration), 1).flip(-1).cumsum(-1).flip(-1)
    return sums.transpose(-1, -2) + duration.flip(0)


def _upwards(
    unary: Tensor, transition: Tensor, duration: Tensor, *, maximum: bool = False
) -> tuple[Tensor, ...]:
    """Log-weights of what ends at each position and enters each, (B, T, N) and (B, D + T, N).

    The latter begins D - 1 positions before the first. For maxima also two choices, (B, T, N): the
    best segment that ends there with a label, the longest being 0, and the best label before a
    label.
    """
    batch, steps, labels = unary.shape
    longest = len(duration)
    ends = torch.empty_like(unary)
    entering = unary.new_full((batch, longest + steps, labels), -math.inf)
    entering[:, longest - 1] = 0.0
    choices = [ends.new_empty(ends.shape if maximum else 0, dtype=torch.long) for _ in range(2)]
    for start, stop in _pieces(unary, duration):
        segments = _segments(_around(unary, longest, start, stop), duration)
        for place in range(start, stop):
            whole = segments[:, place - start] + entering[:, place : place + longest]
            if maximum:
                ends[:, place], choices[0][:, place] = whole.max(1)
                follows = (ends[:, place].unsqueeze(2) + transition).max(1)
                entering[:, place + longest], choices[1][:, place] = follows
            else:
                ends[:, place] = last = whole.logsumexp(1)
                entering[:, place + longest] = (last.unsqueeze(2) + transition).logsumexp(1)
    return ends, entering, *choices


def _probabilities(logs: Tensor, total: Tensor) -> Tensor:
    """Probabilities of terms in their sum; 0 where that is -inf."""
    return (logs - total.masked_fill(total == -math.inf, 0.0)).exp()


class _Ends(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, unary: Tensor, transition: Tensor, duration: Tensor) -> Tensor:
        ends, entering, *_ = _upwards(unary, transition, duration)
        ctx.save_for_backward(unary, transition, duration, ends, entering)
        return ends

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:  # pyright: ignore
        unary, transition, duration, ends, entering = ctx.saved_tensors
        longest, grads = len(duration), [torch.zeros_like(each) for each in (transition, duration)]
        of_entering = torch.zeros_like(entering)
        padded = unary.new_zeros(len(unary), longest - 1 + unary.shape[1], unary.shape[2])
        for start, stop in reversed(_pieces(unary, duration)):
            part = _around(unary, longest, start, stop).requires_grad_()
            table = duration.detach().requires_grad_()
            with torch.enable_grad():
                segments = _segments(part, table)
            begun = entering[:, start : stop + longest - 1].unfold(1, longest, 1)
            here, after = ends[:, start:stop], slice(start + longest, stop + longest)
            taken = _probabilities(segments.detach() + begun.transpose(-1, -2), here.unsqueeze(2))
            joined = here.unsqueeze(3) + transition
            joined = _probabilities(joined, entering[:, after].unsqueeze(2))
            for place in range(stop - 1, start - 1, -1):
                follows = joined[:, place - start] @ of_entering[:, place + longest].unsqueeze(-1)
                terms = taken[:, place - start]
                terms *= (grad[:, place] + follows.squeeze(-1)).unsqueeze(1)
                of_entering[:, place : place + longest] += terms
            of_part, of_table = torch.autograd.grad(segments, (part, table), taken)
            padded[:, start : stop + longest - 1] += of_part
            grads[0] += (joined * of_entering[:, after].unsqueeze(2)).sum((0, 1))
            grads[1] += of_table
        return padded[:, longest - 1 :], *grads
