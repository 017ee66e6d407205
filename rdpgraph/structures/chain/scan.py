"""Log Z by an associative scan: pairs of steps multiplied in a tree, for few states and many steps.

It needs a few calls for each of log2 T levels instead of each step, but N times the arithmetic and
O(T N^2) memory: it is faster for small N, where calls dominate.
"""

import math

import torch
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph._core.types import Doubt, Lengths, LogZ, Transition, Unary
from rdpgraph.logspace.logmatrix import safe_log
from rdpgraph.structures.chain.factors import inside, masked, peak


def worthwhile(unary: Tensor) -> bool:
    """Return whether a scan is expected to be faster than the recursion in torch."""
    batch, steps, states = unary.shape
    if steps < 8 or 4 * batch * steps * states**2 > tuning.SCAN_BLOCK:
        return False
    levels = math.ceil(math.log2(steps))
    if unary.device.type == "cpu":
        work = 6 * batch * steps * states**2 / 2e10
        recursion = steps * tuning.RECURSION_STEP
        scan = levels * tuning.SCAN_LEVEL + batch * steps * tuning.SCAN_MATRIX
    else:
        work = 6 * batch * steps * states**2 / 1e12
        recursion = steps * tuning.SECONDS_PER_CALL * tuning.STEP_LAUNCHES
        scan = levels * tuning.SECONDS_PER_CALL * tuning.LEVEL_LAUNCHES
    # Small matrices run below the rate of large ones.
    return scan + 4 * work * states < recursion + work


def log_partition(unary: Unary, lengths: Lengths, transition: Transition) -> tuple[LogZ, Doubt]:
    """`scaled.log_partition` in O(log T) calls; O(T N^3) time and O(T N^2) memory per item."""
    steps, states = unary.shape[1:]
    unary = masked(unary, lengths)
    matrices = (transition if transition.ndim == 4 else transition.expand(1, 1, states, states)) + (
        unary[:, 1:].unsqueeze(2)
    )
    top = peak(matrices.detach(), (-2, -1))
    factors = (matrices - top).exp()
    within = inside(lengths, steps)
    edge = within[:, 1:, None, None]
    doubtful = _low(factors, matrices.detach() > -math.inf, edge)
    identity = torch.eye(states, dtype=unary.dtype, device=unary.device)
    tree, offset = torch.where(edge, factors, identity), torch.where(edge, top, 0.0)
    while tree.shape[1] > 1:
        left, right, odd = tree[:, :-1:2], tree[:, 1::2], tree.shape[1] % 2
        paired = left @ right
        scale = paired.detach().amax((-2, -1), keepdim=True)
        scale = torch.where(scale > 0, scale, 1.0)
        # A zero product has an unbounded gradient, and adds nothing.
        paired = torch.where(paired > 0, paired / scale, 0.0)
        doubtful = doubtful | _low(paired.detach(), paired.detach() > 0, None)
        shifts = offset[:, :-1:2] + offset[:, 1::2] + scale.log()
        if odd:
            paired, shifts = (
                torch.cat([paired, tree[:, -1:]], 1),
                torch.cat([shifts, offset[:, -1:]], 1),
            )
        tree, offset = paired, shifts
    first = peak(unary[:, 0].detach(), (1,))
    start = (unary[:, 0] - first).exp()
    doubtful = doubtful | _low(start, unary[:, 0].detach() > -math.inf, None)
    total = (start.unsqueeze(1) @ tree[:, 0]).sum((1, 2)) if steps > 1 else start.sum(1)
    values = safe_log(total) + first.squeeze(1) + offset.sum((1, 2, 3))
    some = lengths > 0
    return torch.where(some, values, 0.0), doubtful & some


def _low(factors: Tensor, possible: Tensor, within: Tensor | None) -> Tensor:
    """(B,) bool: items with an entry so small that its product with another may underflow."""
    limit = math.exp(-40.0) if factors.dtype == torch.float32 else math.exp(-300.0)
    low = possible & (factors < limit)
    if within is not None:
        low = low & within
    return low.flatten(1).any(1)
