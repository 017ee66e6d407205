"""Arcs whose finite scores stand for absence, as -1e30 does."""

import math

import torch
from torch import Tensor

from rdpgraph._types import Arcs, Lengths
from rdpgraph.structures.hypertree.arborescence import log_partition

_FAR = 1e3  # nats below a word's best head from where on an arc may be one of them
_NOTHING = 800.0  # nats below which a share of Z is zero in doubles


@torch.no_grad()
def faint_arcs(unary: Arcs, lengths: Lengths) -> Tensor | None:
    """(B, n, n + 1) arcs that add nothing to any sum over trees of one root; None: none does.

    Elimination keeps the root's arc for the end, whatever the others score: it would take one of
    -1e30 first, and lose the digits of all the rest to it. An arc adds nothing if it is further
    below its word's best head than all others together can be, and there is a tree without any
    such arc.

    Args:
        unary: (B, n, n + 1) in nats, [word, head], -inf where there is no arc.
        lengths: (B,).
    """
    words = unary.shape[1]
    behind = unary.amax(2, keepdim=True) - unary
    there = unary > -math.inf
    faint = there & (behind > _FAR)
    if not bool(faint.any()):
        return None
    others = torch.where(there & ~faint, behind, 0.0).amax((1, 2)) + math.log(words + 1)
    least = torch.where(faint, behind, math.inf).amin((1, 2))
    faint &= (least > words * others + _NOTHING).reshape(-1, 1, 1)
    rest = unary.masked_fill(faint, -math.inf)
    faint &= (log_partition(rest, lengths, multiroot=False) > -math.inf).reshape(-1, 1, 1)
    return faint if bool(faint.any()) else None
