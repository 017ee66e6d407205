"""Finds the paths that the pairs of a graph make up; whole-tensor integer operations only."""

from collections.abc import Sequence

import torch
from torch import Tensor

_MOST_PADDED = 2  # times as many sites as variables


def lined_up(scopes: Sequence[Tensor], count: int, *, fewest: int) -> Tensor | None:
    """The variables along paths, (paths, length), if that is what pairs make up; -1 beyond ends.

    Linear in the pairs, and O(V log length) for the order. A variable with three neighbours, a
    cycle, or paths of which most are much shorter than the longest give None; one variable without
    a neighbour is a path. A path runs in the direction of its first pair, if its ends agree on
    one, else from the smaller number; paths are ordered by their first variables' numbers.

    Args:
        scopes: (F, 2) pairs of different variables, in any order and with repeats.
        count: V, the number of variables.
        fewest: variables in the longest path; shorter ones give None.
    """
    ends = torch.cat([*scopes, *(scope.flip(1) for scope in scopes)])
    near, far = ends[:, 0], ends[:, 1]
    lowest = torch.full((count,), count, device="cpu").scatter_reduce(0, near, far, "amin")
    highest = torch.full((count,), -1, device="cpu").scatter_reduce(0, near, far, "amax")
    if bool(((far != lowest[near]) & (far != highest[near])).any()):
        return None
    variables = torch.arange(count, device="cpu")
    alone = highest < 0
    lowest, highest = torch.where(alone, variables, lowest), torch.where(alone, variables, highest)
    single = lowest == highest
    outer, paths = (single & ~alone).nonzero().flatten(), int(single.sum() + alone.sum()) // 2
    if not len(outer):
        return None
    # The others have two variables at least, or one.
    joined = count - int(alone.sum())
    longest = joined - len(outer) + 2
    last, hops = _walked(lowest, highest, single, 2 * joined // len(outer), longest)
    if not bool(single[last].all()):
        return None
    hops = torch.where(alone, 0, hops)
    length = int(hops[0][outer].amax()) + 1
    if length < fewest or paths * length > _MOST_PADDED * count:
        return None
    # Both ways out of a variable lead to the ends of its path.
    heads = torch.zeros(count, dtype=torch.bool, device="cpu")
    for scope in scopes:
        heads[scope[:, 0]] = True
    rank = variables + count * ~heads
    ahead = rank[last[0]] < rank[last[1]]
    start = torch.where(ahead, last[0], last[1])
    place = torch.where(ahead, hops[0], hops[1])
    own = single & (start == variables)
    row = own.long().cumsum(0) - 1
    result = torch.full((paths, length), -1, device="cpu")
    result[row[start], place] = variables
    return result


def _walked(
    lowest: Tensor, highest: Tensor, single: Tensor, mean: int, longest: int
) -> tuple[Tensor, Tensor]:
    """Where the walks from each variable end, and after how many steps, each (2, V).

    Walk 0 sets out for the smaller neighbour, walk 1 for the larger; walk 1 of an end stays there.
    By doubling: after r rounds a walk has made 2^r steps or stands at an end. The longest path has
    ``mean`` variables at least, and ``longest`` at most.
    """
    count = len(lowest)
    variables = torch.arange(count, device="cpu")
    # A state of a walk is way * V + variable: at that variable, about to leave in that way.
    following = torch.stack([lowest, highest])
    came_from_lowest = lowest[following] == variables
    way = torch.where(came_from_lowest, 1, 0)
    jump = way * count + following
    jump = torch.where(single[following], count + following, jump).reshape(-1)
    stays = torch.cat([torch.zeros(count, dtype=torch.bool, device="cpu"), single])
    jump = torch.where(stays, torch.arange(2 * count, device="cpu"), jump)
    hops = (~stays).long()
    for rounds in range(max(longest - 1, 1).bit_length()):
        if rounds >= (mean - 1).bit_length() and bool(stays[jump].all()):
            break
        hops = hops + hops.index_select(0, jump)
        jump = jump.index_select(0, jump)
    return (jump % count).reshape(2, count), hops.reshape(2, count)
