"""Hypertrees with rules in a list: inside values, and the ways down, rule by rule.

What a span's left and right parts say of a rule is looked up; the splits of a span are summed rule
by rule, and the rules of a parent then with one another. All in logs, at a temperature, so that it
is exact at any range, and maxima are those of rules. Terms are made again for the gradient.
"""

import math
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.utils.checkpoint import checkpoint

from rdpgraph.model.semiring import soft_scatter, soft_sum
from rdpgraph.structures.draws import Pick
from rdpgraph.structures.hypertree.sparse_rules import SparseRules

_BLOCK = 2**22
"""Entries of a block of terms."""
Rows: TypeAlias = list[Tensor]


def inside(rules: SparseRules, leaves: Tensor, phis: Rows, *, temperature: float) -> Rows:
    """By width from 1 (B, T - width, N) log inside values.

    Args:
        rules: flat.
        leaves: (B, T, C) log-values of single words.
        phis: by width from 1 (B, T - width, N) log-potentials.
        temperature: 1 sums, 0 maximises.
    """
    weights, rows, values = rules.log_weights, list[Tensor](), [leaves]
    joined = partial(_joined, rules.triples, rules.parents, temperature)
    for phi in phis:
        if torch.is_grad_enabled():
            each: Tensor = checkpoint(  # pyright: ignore
                joined, weights, *values, use_reentrant=False, preserve_rng_state=False
            )
        else:
            each = joined(weights, *values)
        rows.append(each + phi)
        values.append(pad(rows[-1], (0, leaves.shape[2] - phi.shape[2]), value=-math.inf))
    return rows


def _joined(
    triples: Tensor, parents: int, temperature: float, weights: Tensor, *values: Tensor
) -> Tensor:
    """(B, S, N) of the spans that are one wider than all that are given."""
    width = len(values)
    count = values[0].shape[1] - width
    left = torch.stack([values[m][:, :count] for m in range(width)], 2)
    right = torch.stack([values[width - 1 - m][:, m + 1 :][:, :count] for m in range(width)], 2)
    size = max(1, _BLOCK // max(1, left[..., 0].numel()))
    sums = [
        soft_sum(left[..., first] + right[..., second], 2, temperature)
        for _, first, second in (part.unbind(1) for part in triples.split(size))
    ]
    each = torch.cat(sums, 2) + weights.unsqueeze(1)
    return soft_scatter(each.movedim(2, 0), triples[:, 0], parents, temperature).movedim(0, 2)


def outside(
    rules: SparseRules, above: Tensor, left: Tensor, right: Tensor
) -> tuple[Tensor, Tensor]:
    """The best of what is outside of left and right parts (B, S, w, C), by that of spans above."""
    sides = torch.full_like(left, -math.inf), torch.full_like(right, -math.inf)
    size = max(1, _BLOCK // max(1, left[..., 0].numel()))
    pieces = zip(rules.triples.split(size), rules.log_weights.split(size, 1), strict=True)
    for triples, weights in pieces:
        parent, first, second = triples.unbind(1)
        top = (above[..., parent] + weights.unsqueeze(1)).unsqueeze(2)
        for target, to, terms in (
            (sides[0], first, top + right[..., second]),
            (sides[1], second, top + left[..., first]),
        ):
            target.scatter_reduce_(3, to.expand(terms.shape), terms, "amax")
    return sides


def chosen(
    rules: SparseRules, item: Tensor, state: Tensor, left: Tensor, right: Tensor,
    pick: Pick, temperature: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Of nodes of some states, (Q,), the rule, then the split: the split and the parts' states.

    Left and right parts are those of all splits, (Q, w, C).
    """
    own = item if len(rules.log_weights) > 1 else torch.zeros_like(item)
    rows, known = (part[state] for part in rules.by_parent)
    _, first, second = rules.triples[rows].unbind(2)
    shape = (-1, left.shape[1], -1)
    terms = left.gather(2, first.unsqueeze(1).expand(shape))
    terms = terms + right.gather(2, second.unsqueeze(1).expand(shape))
    weights = rules.log_weights[own.unsqueeze(1), rows].masked_fill(~known, -math.inf)
    at = torch.arange(len(item), device=item.device)
    rule = pick(soft_sum(terms, 1, temperature) + weights)
    return pick(terms[at, :, rule]), first[at, rule], second[at, rule]
