"""What a rule makes of one side of a constituent: its parts, and the words between them."""

from functools import cache
from itertools import combinations, pairwise, permutations

import torch
from torch import Tensor

ORDERS = tuple(order for count in range(4) for order in permutations(range(count)))
"""Of every kind of rule the place in the target of each of its parts, in the order of the source.

Of none, of one, of two straight and inverted, and of three in all orders.
"""
MOST_STRETCHES = (1, 2, 1, 0)
"""How many stretches of words a rule of 0, 1, 2 and 3 parts has at most on either side."""
_SIDES = (("w",), ("p", "wp", "pw", "wpw"), ("pp", "wpp", "pwp", "ppw"), ("ppp",))


@cache
def shapes(words: int, parts: int) -> tuple[Tensor, Tensor]:
    """The ways to lay out a number of parts and stretches of words, three at most, over one side.

    (M, parts, 2) where each part begins and ends; (M, S, 2) and each stretch, (0, 0) where there
    are fewer than S = `MOST_STRETCHES[parts]`.
    """
    splits: list[tuple[list[tuple[int, int]], list[tuple[int, int]]]] = []
    for side in _SIDES[parts]:
        for cuts in combinations(range(1, words), len(side) - 1):
            bounds = (0, *cuts, words)
            pieces = list(pairwise(bounds))
            own = [piece for piece, what in zip(pieces, side, strict=True) if what == "p"]
            rest = [piece for piece, what in zip(pieces, side, strict=True) if what == "w"]
            rest += [(0, 0)] * (MOST_STRETCHES[parts] - len(rest))
            splits.append((own, rest))
    sizes = parts, MOST_STRETCHES[parts]
    own, rest = (
        torch.tensor([pair[side] for pair in splits], dtype=torch.long, device="cpu").reshape(
            len(splits), size, 2
        )
        for side, size in enumerate(sizes)
    )
    return own, rest


@cache
def layouts(source: int, target: int, kind: int) -> tuple[Tensor, Tensor, Tensor]:
    """All rules of a kind over so many words of both sides.

    (M, parts, 4) the ends of the parts, as offsets; (M, S, 2) the stretches of the source, and of
    the target. A rule of one part has words too.
    """
    order = ORDERS[kind]
    (own, words), (other, others) = (shapes(size, len(order)) for size in (source, target))
    rows = torch.arange(len(own), device="cpu").repeat_interleave(len(other))
    columns = torch.arange(len(other), device="cpu").repeat(len(own))
    parts = torch.cat([own[rows], other[columns][:, list(order)]], 2)
    some = torch.ones(len(rows), dtype=torch.bool, device="cpu")
    if len(order) == 1:
        whole = torch.tensor([0, source, 0, target], device="cpu")
        some = (parts[:, 0] != whole).any(1)
    return parts[some], words[rows][some], others[columns][some]
