"""Bitexts of rules that mix words and up to three parts."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from rdpgraph._core.cache import cached_property, remembered
from rdpgraph.errors import ModelError
from rdpgraph.interface.masks import Draw, Expected, Masks
from rdpgraph.interface.structure import is_tracked
from rdpgraph.logspace.gradients import by_autograd, expectations
from rdpgraph.model.potentials.table import checked_log_values, settle, taken
from rdpgraph.recurrences.declaration import Declared, Input, Lengths
from rdpgraph.structures.bitext.mixed_rules import (
    AROUND,
    ORDERS,
    PARTIAL,
    Boxes,
    Listed,
    Nodes,
    StretchScores,
)
from rdpgraph.structures.bitext.model import SentencePairs
from rdpgraph.structures.checks import settle_lengths
from rdpgraph.structures.compact.bispans import Bispans
from rdpgraph.structures.compact.masked import LOWEST, LinkMasks, RuleMasked


@dataclass(frozen=True, eq=False)
class MixedMasks(LinkMasks):
    """Questions whether one rule has a source and a target word.

    A yes leaves the bispans that have both words or neither; a no leaves the rules that lack one.
    """

    model: "MixedBitext"

    def open(self) -> Tensor:
        return super().open() & (self.model.pairs.detach() > -math.inf)

    def gains(self) -> Tensor:
        model = self.model
        alone = model.source.detach().unsqueeze(-1) + model.target.detach().unsqueeze(-2)
        return model.pairs.detach().double() - alone.double().clamp(min=LOWEST)

    def masked(self, required: Tensor, forbidden: Tensor) -> "MaskedMixed":
        lead, (p, q), model = tuple(required.shape[:-2]), self.questions, self.model
        batch, chains = self.items, self.chains(lead)
        lengths = self.lengths[0].repeat(chains), self.lengths[1].repeat(chains)
        items = len(lengths[0])
        spans = Bispans.of(lengths, required.reshape(items, p, q).nonzero(), None)
        # Bispans that the mask keeps and that are possible, with their potentials.
        i, k, j, m = spans.ends
        logs = self.potentials[spans.item % max(batch, 1), i, k, j, m, 0].double()
        some = ((k > i) & (m > j) & (logs > -math.inf)).nonzero().squeeze(1)
        kept, logs = Boxes(spans.item[some], spans.ends[:, some], max(p, q)), logs[some]
        pairs = model.pairs.detach().reshape(batch, p, q).repeat(chains, 1, 1)
        emission = StretchScores(
            pairs.masked_fill(forbidden.reshape(items, p, q), -math.inf),
            model.source.detach().reshape(batch, p),
            model.target.detach().reshape(batch, q),
        )
        weights = logs.new_zeros(len(ORDERS)) if model.rules is None else model.rules.detach()
        # The node of each item that covers both of its sentences, or -1.
        top = (kept.ends[0] == 0) & (kept.ends[2] == 0)
        top &= kept.ends[1] == lengths[0][kept.item]
        top &= kept.ends[3] == lengths[1][kept.item]
        tops = torch.full((items,), -1, device=logs.device)
        tops[kept.item[top]] = top.nonzero().squeeze(1)
        listed = Listed.of(Nodes.of(kept, emission), logs, weights, tops)
        empty = (lengths[0] == 0) & (lengths[1] == 0)
        return MaskedMixed(lead, listed.forest, empty, self, kept, listed)


@dataclass(frozen=True, eq=False)
class MaskedMixed(RuleMasked):
    """A bitext of mixed rules within a mask."""

    masks: MixedMasks  # of the bitext
    kept: Boxes  # the bispans
    listed: Listed  # their ways

    @cached_property
    def places(self) -> Tensor:
        """(P,) the site of each bispan."""
        rows, _, columns, _, _ = self.masks.sites
        i, k, j, m = self.kept.ends
        return (((self.kept.item * rows + i) * rows + k) * columns + j) * columns + m

    def averages(self, chances: Tensor, used: Tensor, score: Tensor) -> Expected:
        """Aligned words, and bispans; ``"orders"``: the expected uses of each kind of rule."""
        chances, item = chances[self.listed.place], self.forest.item[self.forest.whole]
        seen = chances > 0
        counts = used.new_zeros(len(self.empty) * (PARTIAL + 1))
        counts.index_add_(0, item * (PARTIAL + 1) + self.listed.kind, used)
        counts = counts.reshape(*self.lead, PARTIAL + 1)[..., :PARTIAL]
        rules = (used > 0).nonzero().squeeze(1)
        return Expected(
            self._aligned(rules, used[rules]), score, self.places[seen], chances[seen],
            {"orders": counts},
        )  # fmt: skip

    def configuration(self, rules: Tensor) -> Draw:
        ones = torch.ones(len(rules), dtype=torch.float64, device=rules.device)
        made = self.forest.whole[rules[self.listed.kind[rules] < PARTIAL]]
        return Draw(self._aligned(rules, ones) > 0.5, self.places[self.number[made]])

    @cached_property
    def number(self) -> Tensor:
        """(nodes,) the bispan of each node; -1: none."""
        number = torch.full((len(self.forest.item),), -1, device=self.forest.item.device)
        number[self.listed.place] = torch.arange(len(self.kept), device=number.device)
        return number

    def _aligned(self, ways: Tensor, weights: Tensor) -> Tensor:
        """(*lead, p, q) the summed weights of the ways with both words, by corners."""
        p, q = self.masks.questions
        counts = weights.new_zeros(len(self.empty) * (p + 1) * (q + 1))

        def add(rows: Tensor, columns: Tensor, values: Tensor, sign: int = 1) -> None:
            for a in (0, 1):
                for b in (0, 1):
                    at = rows[:, a] * (q + 1) + columns[:, b]
                    counts.index_add_(0, at, values, alpha=sign if a == b else -sign)

        whole, kept, listed = self.forest.whole[ways], self.kept, self.listed
        around = listed.kind[ways] == AROUND
        some = (~around).nonzero().squeeze(1)
        words = listed.words[ways[some]]
        both = (words[:, 1] > 0).all(1).nonzero().squeeze(1)
        some, words = some[both], words[both].long()
        first = (self.forest.item[whole[some]] * (p + 1)).unsqueeze(1)
        add(words[:, :, 0] + first, words[:, :, 1], weights[some])
        # Words around a part, by inclusion and exclusion of both bispans.
        some = around.nonzero().squeeze(1)
        outer, inner = self.number[whole[some]], self.number[self.forest.parts[0, ways[some]]]
        rows = (kept.item * (p + 1)).unsqueeze(1) + kept.ends[:2].T
        columns, weights = kept.ends[2:].T, weights[some]
        both = weights.new_zeros(len(kept)).index_add_(0, outer, weights)
        add(rows, columns, both.index_add_(0, inner, weights))
        add(rows[outer], columns[inner], weights, -1)
        add(rows[inner], columns[outer], weights, -1)
        sums = counts.reshape(-1, p + 1, q + 1).cumsum(1).cumsum(2).clamp_(0.0, 1.0)
        return sums[:, :p, :q].reshape(*self.lead, p, q)


DECLARED: Declared = (
    ("unary", Input("P+1 P+1 Q+1 Q+1 N")),
    ("ways", Input("E")),
    ("scored", Input("V")),
    ("unscored", Input("V")),
    ("bispans", Input("V 4", whole=True)),
    ("rows", Input("V+1", whole=True)),
    ("parts", Input("E 2", whole=True)),
    ("tops", Lengths("V")),
)
"""What the rules of mixed bitexts read, as `Every` lists it."""
RULES = """
    a[0] += 1
    w[v] += ways[e] * a[parts[e, 0]] * a[parts[e, 1]] if rows[v] <= e < rows[v + 1]
    a[v] += w[v] * unscored[v]
    a[v] += w[v] * scored[v]
            * unary[bispans[v, 0], bispans[v, 1], bispans[v, 2], bispans[v, 3], n]
    goal += a[tops]
"""
"""Nodes are bispans, whose states are scored, and others between these and their rules."""


@dataclass(frozen=True, eq=False)
class MixedBitext(SentencePairs):
    """Trees over two sentences of rules that mix words with up to three parts, in any order.

    The grammar of Bouchard-Côté, Petrov and Klein 2009. A constituent is a bispan, words i..k-1 of
    the source and j..l-1 of the target, at least one of each. Its rule lays out either side as
    parts, which are constituents, and stretches of words, at most three of both together: no part;
    one part and words before or after it; two parts, and words before, between or after them;
    three parts. Words of one rule are aligned with each other, many to many, or with nothing
    if the rule has none of the other side. The score of a tree is the sum of `unary` over its
    constituents, of `rules`, and of the words of rules: `pairs` over aligned pairs, `source` and
    `target` over unaligned words.

    O(p^4 q^4) time for rules of one part and O(p^3 q^3) for others, all constituents of one size at
    once. Trees with equal alignments count separately. Sites are bispans, of one state; two
    sentences without words have one tree, of score 0, and one without the other has none.

    Args:
        unary: (*batch, p + 1, p + 1, q + 1, q + 1, 1) log-potentials (nats), [i, k, j, l, 0];
            -inf forbids. Bispans that lack words on a side are ignored.
        pairs: (*batch, p, q) of words in one rule, nats.
        source: (*batch, p) of source words in a rule without target words.
        target: (*batch, q) of target words in a rule without source words.
        rules: (10,) of the rules of no part, of one, of two straight and inverted, and of three
            in the orders 123, 132, 213, 231, 312 and 321: place in the target of the first,
            second and third of the source. Default: zeros. Missing batch dims of pairs, source and
            target broadcast.
        source_lengths: (*batch,) integers in 0..p; default: all p.
        target_lengths: (*batch,) integers in 0..q; default: all q.

    Raises:
        ModelError: shapes that do not fit, a length out of range.

    Example:
        >>> bitext = MixedBitext.words(torch.zeros(1, 2), torch.zeros(1), torch.zeros(2))
        >>> bitext.log_partition().exp()  # both words by one rule; or one of them is null
        tensor(3.)
    """

    pairs: Tensor = field(metadata={"dims": 2})
    source: Tensor = field(metadata={"dims": 1})
    target: Tensor = field(metadata={"dims": 1})
    rules: Tensor | None = field(  # pyright: ignore[reportIncompatibleVariableOverride]
        default=None, kw_only=True
    )

    def __post_init__(self) -> None:
        names = "unary", "pairs", "source", "target", "rules"
        settle(self, *names, whole=("source_lengths", "target_lengths"))
        checked_log_values("MixedBitext's unary", self.unary)
        shape, batch = tuple(self.unary.shape), self.batch_shape
        # The sizes of the unary decide those of all other fields, which broadcast to them.
        p, q = (max(size - 1, 0) for size in (shape[-4:-1:2] if len(shape) > 4 else (0, 0)))
        wanted = {
            "unary": (*batch, p + 1, p + 1, q + 1, q + 1, 1),
            "pairs": (*batch, p, q),
            "source": (*batch, p),
            "target": (*batch, q),
            "rules": (len(ORDERS),),
        }
        for name, size in wanted.items():
            if (given := getattr(self, name)) is None:
                continue
            checked_log_values(f"MixedBitext's {name}", given)
            try:
                object.__setattr__(self, name, given.expand(size))
            except RuntimeError:
                raise ModelError(
                    f"MixedBitext of unary (*batch, p + 1, p + 1, q + 1, q + 1, 1) needs {name} "
                    f"{size}; got {tuple(given.shape)}."
                ) from None
        settle_lengths(self, source_lengths=p, target_lengths=q)

    @classmethod
    def words(cls, pairs: Tensor, source: Tensor, target: Tensor, **rest: Any) -> "MixedBitext":
        """Trees scored by words and rules alone: `unary` is zero. The rest are other fields."""
        pairs = taken("MixedBitext's pairs", pairs)
        if pairs.ndim < 2:
            raise ModelError(
                f"MixedBitext.words needs pairs (*batch, p, q); got {tuple(pairs.shape)}."
            )
        *batch, p, q = pairs.shape
        return cls(pairs.new_zeros(*batch, p + 1, p + 1, q + 1, q + 1, 1), pairs, source, target,
                   **rest)  # fmt: skip

    @by_autograd
    def pair_marginals(self) -> Tensor:
        """(*batch, p, q) the probability that a source and a target word are aligned.

        The gradient of log Z in the pairs; differentiable if anything in the bitext is.
        """
        _, (gradient,) = expectations(
            lambda pairs: replace(self, pairs=pairs).log_partition(),
            [self.pairs],
            tracked=is_tracked(self),
        )
        return gradient

    def masks(self) -> Masks:
        """The questions of masks: for each pair of words, whether one rule has both."""
        return MixedMasks(self)

    def written(self) -> tuple[Declared, str]:
        return DECLARED, RULES

    def inputs(self) -> Mapping[str, Any]:
        p, q = self.unary.shape[-5] - 1, self.unary.shape[-3] - 1
        every_of = _remembered if p * q <= 64 else Every.of  # they grow as the cube of both lengths
        every, items = every_of(p, q, self.unary.device), math.prod(self.batch_shape)
        emission = StretchScores(
            self.pairs.reshape(items, p, q), self.source.reshape(items, p),
            self.target.reshape(items, q),
        )  # fmt: skip
        # Scores of words around parts come last.
        logs = [
            emission.scores(None, *every.words),
            emission.around(None, every.ends, *every.around),
        ]
        logs = torch.cat([part.expand(items, -1) for part in logs], 1)
        if self.rules is not None:
            logs = logs + pad(self.rules.double(), (0, 1))[every.kind]
        ways = logs.index_select(1, every.place).reshape(*self.batch_shape, len(every.place))
        scored = every.scored.to(self.unary)
        return {
            "unary": self.unary, "ways": ways, "scored": scored.log(),
            "unscored": (1 - scored).log(), "bispans": every.bispans, "rows": every.rows,
            "parts": every.parts, "tops": every.number[self._ends],
        }  # fmt: skip


@dataclass(frozen=True, eq=False)
class Every:
    """The ways to make all bispans of two sentences, by nodes in an order that parts come first."""

    ends: Tensor  # (4, P) the bispans
    kind: Tensor  # (E,) of the rule that each way completes; those around a part last
    words: tuple[Tensor, Tensor]  # (E - A, 2) where the words of a way begin and end, twice
    around: tuple[Tensor, Tensor]  # (A,) the whole and the part of ways around a part
    place: Tensor  # (E,) where each way of the list of nodes is among those
    rows: Tensor  # (V + 1,) where the ways of each node begin; node 0 is no part
    parts: Tensor  # (E, 2) the nodes that ways of the list read
    bispans: Tensor  # (V, 4) the bispan of each node; zeros: none
    scored: Tensor  # (V,) 1 if it has one, 0 if not
    # (p + 1, q + 1) the node of the first words of both sentences: 0 for none of both, V where
    # there are none of one.
    number: Tensor

    @classmethod
    def of(cls, p: int, q: int, device: torch.device) -> "Every":
        """List the ways of all bispans of p source and q target words."""
        shape = p + 1, p + 1, q + 1, q + 1
        ends = torch.ones(shape, device=device).nonzero().T
        ends = ends[:, (ends[0] < ends[1]) & (ends[2] < ends[3])]
        kept = Boxes(torch.zeros_like(ends[0]), ends, max(p, q))
        zeros = torch.zeros(1, p, q, device=device)
        nodes = Nodes.of(kept, StretchScores(zeros, zeros.sum(2), zeros.sum(1)))
        none, free = torch.full((1,), -1, device=device), zeros.new_zeros(max(len(kept), PARTIAL))
        listed = Listed.of(nodes, free[: len(kept)], free[:PARTIAL], none)
        forest, total = listed.forest, len(listed.forest.item)
        bispan = torch.full((total,), len(kept), device=device)
        bispan[listed.place] = torch.arange(len(kept), device=device)
        # Ways around a part come last.
        apart = listed.kind == AROUND
        order = apart.argsort(stable=True)
        bispans = torch.zeros(1 + total, 4, dtype=torch.long, device=device)
        bispans[1 + listed.place] = ends.mT
        scored = torch.zeros(1 + total, device=device)
        scored[1 + listed.place] = 1.0
        number = torch.full((p + 1, q + 1), 1 + total, device=device)
        number[0, 0] = 0
        whole = (ends[0] == 0) & (ends[2] == 0)
        number[ends[1, whole], ends[3, whole]] = 1 + listed.place[whole]
        rows, parts = forest.given["rows"][0], forest.given["parts"][0]
        source, target = listed.words[order][~apart[order]].long().unbind(2)
        around = bispan[forest.whole[apart]], bispan[forest.parts[0, apart]]
        return cls(
            ends, listed.kind[order], (source, target), around, order.argsort(),
            rows[: total + 2], parts[: len(forest.whole)], bispans, scored, number,
        )  # fmt: skip


_remembered = remembered(8)(Every.of)
