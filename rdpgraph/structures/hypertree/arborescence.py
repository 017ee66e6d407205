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
