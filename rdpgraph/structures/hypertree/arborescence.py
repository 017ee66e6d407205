"""Spanning arborescences: the matrix-tree theorem without subtraction.

A word's pivot is the sum of the weights of its heads among what is left, which is what Gaussian
elimination of the Laplacian would have on its diagonal after cancellation (Grassmann, Taksar and
Heyman 1985). Arcs that go through an eliminated word are added to those that go past it.
"""

import math

import torch
from torch import Tensor

from rdpgraph._types import Arcs, Lengths, LogZ
from rdpgraph.model.semiring import soft_sum

_FAR = 1e3  # nats below a word's best head from where on an arc may be one of them
_NOTHING = 800.0  # nats below which a share of Z is zero in doubles


def log_partition(unary: Arcs, lengths: Lengths, *, multiroot: bool) -> LogZ:
    """(B,) the log of the sum over trees, nats; differentiable any number of times. O(n^3).

    With one root only the part that is linear in the weights of the root's arcs is kept (Koo et
    al. 2007 have it as the determinant with a row replaced): those arcs have no part in pivots,
    until a word has no head but the root.

    Args:
        unary: (B, n, n + 1) in nats, [word, head], -inf where there is no arc.
        lengths: (B,).
        multiroot: whether more than one word may have the root as its head.
    """
    batch, words = unary.shape[:2]
    arcs, root = unary[:, :, 1:], unary[:, :, 0]
    used = torch.full((batch,), multiroot, device=unary.device)
    log_z = unary[:, :0].sum((1, 2))
    for word in range(words - 1, -1, -1):
        inside = word < lengths
        heads, below = arcs[:, word, :word], arcs[:, :word, word]
        own = root[:, word]
        among = soft_sum(heads, 1) if word else torch.full_like(own, -math.inf)
        only = ~used & (among.detach() == -math.inf)
        pivot = torch.where(used, _added(among, own), torch.where(only, own, among))
        log_z = log_z + torch.where(inside, pivot, 0.0)
        shift = torch.where(pivot > -math.inf, pivot, 0.0)
        through = below + torch.where(only, 0.0, own - shift).unsqueeze(1)
        through = torch.where(inside.unsqueeze(1), through, -math.inf)
        # The one root is found: what it gives is all there is, and no longer a first-order term.
        kept = torch.where((only & inside).unsqueeze(1), -math.inf, root[:, :word])
        root = _added(kept, through)
        past = below.unsqueeze(2) + (heads - shift.unsqueeze(1)).unsqueeze(1)
        past = torch.where(inside.reshape(-1, 1, 1), past, -math.inf)
        arcs = _added(arcs[:, :word, :word], past)
        arcs = torch.where(torch.eye(word, dtype=torch.bool, device=arcs.device), -math.inf, arcs)
        used = used | (only & inside)
    return torch.where(log_z > -math.inf, log_z, -math.inf)


def _added(first: Tensor, second: Tensor) -> Tensor:
    return soft_sum(torch.stack([first, second]), 0)


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
