"""Derivations of a forest drawn from the wholes downwards, all at once."""

from dataclasses import dataclass

import torch
from torch import Tensor

from rdpgraph.model.masks import NOTHING
from rdpgraph.model.soundness import require_possible
from rdpgraph.structures.compact.inside import Inside
from rdpgraph.structures.draws import column, drawn_between


@dataclass(frozen=True, eq=False)
class Drawn:
    """The places that derivations use.

    Attributes:
        item: (n,) whose derivation.
        place: (n,) the place.
        label: (n,) its label.
        ended: (n,) whether it has no parts.
    """

    item: Tensor
    place: Tensor
    label: Tensor
    ended: Tensor


def descend(inside: Inside, item: Tensor, generator: torch.Generator | None) -> Drawn:
    """An exact draw of each of some items, which may be named more than once.

    Raises:
        ImpossibleEvidenceError: an item has no derivation.
    """
    forest, rules = inside.forest, inside.forest.rules
    lost = inside.log_partition[item] == -torch.inf
    spared = torch.ones_like(inside.log_partition, dtype=torch.bool)
    require_possible(NOTHING, spared.index_fill(0, item[lost], value=False))
    ends, joined, left, right = inside.choices
    options = torch.cat([ends.unsqueeze(2), joined], 2)
    lefts, rights = rules.counts
    # The shares of the ways, class pair by class pair; those of a whole are a stretch of it.
    sums = inside.shares.T.flatten().cumsum(0)
    ways = len(forest.left)

    place, label = forest.tops[item], column(inside.tops[item].softmax(1), generator)
    done: list[tuple[Tensor, ...]] = [(item[:0], place[:0], label[:0], label[:0] > 0)]
    while len(place):
        way = column(options[place, label], generator) - 1
        done.append((item, place, label, way < 0))
        on = (way >= 0).nonzero().squeeze(1)
        item, place, way = item[on], place[on], way[on]
        if not len(place):
            break
        kind, pair = way // (lefts * rights), way % (lefts * rights)
        whole = place * rules.kinds + kind
        start, stop = forest.before[whole] + pair * ways, forest.before[whole + 1] + pair * ways
        edge = drawn_between(sums, start, stop, generator) - pair * ways
        one, other = forest.left[edge], forest.right[edge]
        first = torch.where(rules.left == (pair // rights).unsqueeze(1), left[one], 0.0)
        second = torch.where(rules.right == (pair % rights).unsqueeze(1), right[other], 0.0)
        item, place = item.repeat(2), torch.cat([one, other])
        label = column(torch.cat([first, second]), generator)
    columns = [torch.cat(column) for column in zip(*done, strict=True)]
    return Drawn(columns[0], columns[1], columns[2], columns[3])
