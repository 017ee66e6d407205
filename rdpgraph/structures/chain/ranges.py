"""Whether scaled products of probabilities lost anything to underflow.

Every product of the recursion is alpha_{t-1}(i) P_ij e_t(j), each factor at most 1. If the positive
entries of alpha_{t-1} are at least `state_limit`, and the least positive P_ij times the least
positive e_t(j) at least `step_limit`, no product is below the smallest normal number, so alpha_t is
positive where it should be and right to rounding; if its entries are at least `state_limit` again,
the next step is safe too. That is the whole check: it needs the minima of what was computed anyway,
and by induction it suffices. It is not necessary: a left-to-right chain leaves its early states
behind at a geometric rate and does not miss them. Whether it does cannot be read off computed
forward and backward messages, however well they overlap: a path may be lost by the forward pass for
its beginning and by the backward pass for its end, and still be the best one for its middle. So the
recursion is run twice, in float64: once with everything below a floor set to zero, which bounds Z
from below, and once with everything below it, except for hard zeros, raised to the floor, which
bounds Z from above. Where the two agree, the share in Z of all paths that were lost is known to be
as small as the gap. That holds for the marginals as well: of the paths that the forward pass
kept, the backward pass, which takes its scales from the forward one so that alpha beta sums to one,
can lose at a state no more than alpha times a number that underflows. Where they differ, log-space
is left.
"""

import math

import torch

FLOOR = 1e-140
"""Of float64 states between which the two bounds are squeezed."""

FACTOR_FLOOR = 1e-80
"""Of float64 factors, so that a floored state times two of them is still a normal number."""

LEAST_SCALE = 1e-150
"""Of a float64 step: what the backward pass divides by."""

GAP = 1e-9
"""Nats between the bounds, at most, on top of what rounding makes of their sums."""

ROUNDING = 1e-13
"""Relative, of those sums."""


def state_limit(dtype: torch.dtype) -> float:
    """The least that a positive entry of a normalised state may be."""
    return math.exp(-45.0) if dtype == torch.float32 else math.exp(-370.0)


def step_limit(dtype: torch.dtype) -> float:
    """The least that the product of the two other factors may be."""
    return math.exp(-42.0) if dtype == torch.float32 else math.exp(-330.0)
