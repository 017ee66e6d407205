"""All ways to make kept bispans by rules, as one forest."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rdpgraph.structures.compact.rule_forest import RuleForest
from rdpgraph.structures.mixed.ways import PARTIAL, Nodes, Ways


@dataclass(frozen=True, eq=False)
class Listed:
    """A forest of kept bispans and of what stands between them and their rules.

    Attributes:
        forest: the ways, by the nodes that they make.
        item: (nodes,) whose each node is.
        place: (P,) the node of each kept bispan.
        kind: (E,) of the rule that each way ends; `PARTIAL`: of none.
        words: (E, 2, 2) where the words of each begin, on either side, and where they end; zeros
            for those that have none, or that have them around a part.
    """

    forest: RuleForest
    item: Tensor
    place: Tensor
    kind: Tensor
    words: Tensor

    @classmethod
    def of(cls, nodes: Nodes, scores: Tensor, rules: Tensor, tops: Tensor, most: int) -> "Listed":
        """From the ways of nodes, of which those that cannot be are left out.

        Args:
            nodes: the kept bispans, and what stands between.
            scores: (P,) of the kept bispans, nats.
            rules: of kinds of rules, nats.
            tops: (I,) which of them is each item's whole; -1: none.
            most: the largest size of a bispan, in words of both sides.
        """
        item, rank = nodes.boxes
        rank, order = rank.sort(stable=True)
        place = torch.full((len(order) + 1,), len(order), device=order.device)
        place[order] = torch.arange(len(order), device=order.device)
        bounds = torch.arange(2, 2 * most + 3, device=rank.device)
        rows = tuple(torch.searchsorted(rank, bounds).tolist())
        ways = list(nodes.ways())
        kind = torch.cat([torch.full_like(way.made, way.kind) for way in ways])
        made = torch.cat([way.made for way in ways])
        parts = [torch.cat([way.first for way in ways]), torch.cat([way.second for way in ways])]
        logs = torch.cat(
            [scores.new_zeros(len(way.made)) if way.logs is None else way.logs for way in ways]
        )
        ends = kind < PARTIAL
        logs[ends] += scores[made[ends]] + rules[kind[ends]].double()
        words = torch.cat([_stretches(way) for way in ways])
        real = (logs > -math.inf).nonzero().squeeze(1)
        made, by_rank = place[made[real]].sort(stable=True)
        real = real[by_rank]
        parts = torch.stack([place[side[real]] for side in parts])
        tops = torch.where(tops < 0, -1, place[tops])
        forest = RuleForest(rows, made, parts, logs[real], tops)
        return cls(forest, item[order], place[: len(scores)], kind[real], words[real])


def _stretches(ways: Ways) -> Tensor:
    """(E, 2, 2) where the words of either side begin, and where they end."""
    if ways.words is None:
        return torch.zeros(len(ways.made), 2, 2, dtype=torch.int16, device=ways.made.device)
    return ways.words.to(torch.int16)
