"""Joins of spans and of words where the states of words are others than those of spans."""

from collections.abc import Sequence

from torch import Tensor

from rdpgraph.structures.hypertree.rules import FactorisedRules, LowRankRules, Rules
from rdpgraph.structures.tape.tape import Tape
from rdpgraph.structures.tape.values import Value, View


class SeparateJoins:
    """Joins on a tape by the parts of rules that say something of their labels.

    O(T^2 N (N + P)^2 + T^3 N^2) by a table, O(T^3 r + T^2 N r) by ranks.

    Args:
        tape: whose values they are; words have P labels, wider spans N.
        rules: of N parents and N + P children.
    """

    def __init__(self, tape: Tape, rules: Rules) -> None:
        assert rules.shape is not None
        self.tape, (parents, children) = tape, rules.shape
        kinds = slice(parents, None), slice(parents)
        self.by_rank = tape.ranks and isinstance(rules, LowRankRules | FactorisedRules)
        if isinstance(rules, LowRankRules | FactorisedRules) and self.by_rank:
            left, right, top = tape.sources.ranks(rules)
            self.top = top[..., :parents]
            self.sides = [[side[..., kind, :] for kind in kinds] for side in (left, right)]
            self.ranked = list[Value](), list[Value]()
            return
        table = rules.table(parents, children).movedim(-3, -1)
        self.blocks = [
            [table[..., one, :, :][..., other, :].flatten(-3, -2) for other in kinds]
            for one in kinds
        ]

    def joined(self, rows: Sequence[Value], left: Tensor, right: Tensor) -> Value:
        """All spans of a width, given those of smaller ones.

        Args:
            rows: of widths from 1 on.
            left: (M, P) places of the left parts in all rows, side by side, by split.
            right: (M, P) those of the right parts.
        """
        tape = self.tape
        if self.by_rank:
            for own, known in zip(self.sides, self.ranked, strict=True):
                known.append(tape.link(rows[-1], own[len(rows) > 1]))
            parts = [
                View(tuple(own), at, full=True)
                for own, at in zip(self.ranked, (left, right), strict=True)
            ]
            return tape.link(tape.total(tuple(parts)), self.top)
        before, words = sum(row.places for row in rows[:-1]), rows[0].places
        if not before:
            return self._pairs(rows, left, rows, right, self.blocks[0][0])
        first, last = rows[:1], rows[-1:]
        ways = [
            self._pairs(first, left[:1], last, right[:1] - before, self.blocks[0][1]),
            self._pairs(last, left[-1:] - before, first, right[-1:], self.blocks[1][0]),
        ]
        if len(left) > 2:
            spans, at = rows[1:-1], (left[1:-1] - words, right[1:-1] - words)
            ways.append(self._pairs(spans, at[0], spans, at[1], self.blocks[1][1]))
        return tape.total(*ways)

    def _pairs(
        self, one: Sequence[Value], left: Tensor, two: Sequence[Value], right: Tensor, table: Tensor
    ) -> Value:
        views = View(tuple(one), left, full=True), View(tuple(two), right, full=True)
        return self.tape.link(self.tape.pairs(*views), table)
