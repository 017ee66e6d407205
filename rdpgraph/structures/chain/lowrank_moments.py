"""The entropy of chains of low rank: sums over all pairs of states, formed in blocks."""

import math

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from rdpgraph.model.logmatrix import LogMatrix
from rdpgraph.model.semiring import finite, soft_sum
from rdpgraph.structures.chain.factors import inside, masked
from rdpgraph.structures.chain.logs import backward, forward
from rdpgraph.structures.chain.tensors import RankTensors

_CELLS = 2**24


def entropy(parts: RankTensors) -> Tensor:
    """(B,) nats; 0 for an impossible item. Factors are shared by all steps.

    The log of a sum of ranks has no form of low rank, so this costs O(T N^2) products and
    O(N^2 r) for the values, in blocks; memory is O(T N) and one block. A sum of small terms, the
    entropy of each state given the one before. Differentiable, the blocks computed again.
    """
    unary, (left, right) = masked(parts.unary, parts.lengths), parts.steps.sides
    if not unary.shape[1]:
        return unary.sum((1, 2))
    ahead, back = forward(*parts), backward(*parts)
    total = soft_sum(ahead + back, 2).unsqueeze(2)
    within = inside(parts.lengths, unary.shape[1])
    dead = (total.detach().squeeze(2) == -math.inf) & within
    possible = ~dead.any(1)
    logs = torch.where(total > -math.inf, ahead + back - finite(total), -math.inf)
    logs = torch.where(possible[:, None, None], logs, -math.inf)
    marginals = logs.exp()
    first = -(marginals[:, 0] * finite(logs[:, 0])).sum(-1)
    if unary.shape[1] == 1:
        return first
    after = (back + unary)[:, 1:]
    future = LogMatrix.of(left).times(LogMatrix.of(right.mT).times(after))
    terms = (marginals[:, :-1] * finite(future)).sum(-1)
    terms = terms - (marginals[:, 1:] * finite(after)).sum(-1)
    rows = (within[:, 1:] & possible.unsqueeze(1)).nonzero(as_tuple=True)
    if len(rows[0]):
        joint = soft_sum(ahead[:, :-1][rows] + future[rows], 1)
        means = _pair_means(ahead[:, :-1][rows], after[rows], joint, left, right)
        terms = terms.index_put(rows, terms[rows] - means)
    return first + torch.where(within[:, 1:] & possible.unsqueeze(1), terms, 0.0).sum(1)


def _pair_means(
    before: Tensor, after: Tensor, joint: Tensor, left: Tensor, right: Tensor
) -> Tensor:
    """(S,) the mean log-value of a pair under ``exp(before_i + value_ij + after_j - joint)``."""
    tops = finite(before.detach().amax(1)), finite(after.detach().amax(1))
    highest = left.detach().amax() + right.detach().amax() + math.log(left.shape[-1])
    gap = joint.detach() - tops[0] - tops[1] - highest
    sound = gap > math.log(torch.finfo(joint.dtype).tiny) / 2
    matrix, total = LogMatrix.of(right), torch.zeros_like(joint)
    width = max(1, _CELLS // len(right))
    for start in range(0, len(left), width):
        here = slice(start, start + width)
        block = (before[:, here], after, joint, left[here])
        total = total + checkpoint(
            _block_means, *block, tops, sound, matrix, highest, use_reentrant=False
        )  # pyright: ignore
    return total


def _block_means(
    before: Tensor, after: Tensor, joint: Tensor, left: Tensor, tops: tuple[Tensor, Tensor],
    sound: Tensor, matrix: LogMatrix, highest: Tensor,
) -> Tensor:  # fmt: skip
    """The part of some states before."""
    values = matrix.times(left)
    weights = (values - highest).exp() * finite(values)
    first = (before - tops[0].unsqueeze(1)).exp()
    second = (after - tops[1].unsqueeze(1)).exp()
    scale = torch.where(sound, tops[0] + tops[1] + highest - joint, 0.0).exp()
    means = torch.where(sound, ((first @ weights) * second).sum(1) * scale, 0.0)
    lost = (~sound).nonzero().squeeze(1)
    for row in lost.tolist():
        logs = before[row].unsqueeze(1) + values + after[row] - joint[row]
        means = means.index_add(
            0, lost.new_tensor([row]), (logs.exp() * finite(values)).sum()[None]
        )
    return means
