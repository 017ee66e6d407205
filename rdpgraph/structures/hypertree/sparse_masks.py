"""Hypertrees of listed rules within masks: the rules whose parts have trees, span by span."""

import math
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import pad

from rdpgraph.model.masks import Draw, Expected
from rdpgraph.structures.compact.forest import joined_forest
from rdpgraph.structures.compact.rule_forest import RuleForest
from rdpgraph.structures.compact.ruled import RuleMasked
from rdpgraph.structures.compact.spans import Spans
from rdpgraph.structures.hypertree.sparse_rules import SparseRules


@dataclass(frozen=True, eq=False)
class MaskedSparseHypertree(RuleMasked):
    """A hypertree of listed rules within a mask.

    Places are states of spans that have a tree, and for each item one more, the whole.

    Attributes:
        spans: those that are kept.
        nodes: (2, nodes) the span and the state of each place, without the wholes.
        rule: (E,) which rule; -1: a word, or the root.
        count: how many rules there are.
        states: how many states a span has.
    """

    spans: Spans
    nodes: Tensor
    rule: Tensor
    count: int
    states: int

    @classmethod
    def of(
        cls, lead: tuple[int, ...], spans: Spans, logs: Tensor, rules: SparseRules,
        tops: Tensor, root: Tensor, empty: Tensor,
    ) -> "MaskedSparseHypertree":  # fmt: skip
        """From the kept spans.

        Args:
            lead: chains and batch dims.
            spans: the kept spans of I items.
            logs: (P, N) their potentials.
            rules: of batch dims (I,) or none.
            tops: (I,) the span of each item's whole; -1: it has none.
            root: (1 or I, N) potentials of its state.
            empty: (I,) bool: sentences of no words.
        """
        lefts, rights, ways = joined_forest(len(logs), [spans.joins()])
        wholes = torch.repeat_interleave(torch.arange(len(ways), device=ways.device), ways)
        before = pad(ways.cumsum(0), (1, 0))
        bounds = before[torch.tensor(spans.rows, device=ways.device)].tolist()
        parent, left, right = rules.triples.T
        weights = rules.log_weights.detach().double().reshape(-1, rules.count)
        first, last = spans.ends
        possible = logs > -math.inf
        # A word has its own states; of a wider span those that a rule makes.
        alive = possible & (first == last).unsqueeze(1)
        ways = [torch.zeros(4, 0, dtype=torch.long, device=logs.device)]
        for start, stop in pairwise(bounds):
            if start == stop:
                continue
            whole, one, other = wholes[start:stop], lefts[start:stop], rights[start:stop]
            own = alive[one][:, left] & alive[other][:, right] & possible[whole][:, parent]
            way, rule = own.nonzero().T
            alive[whole[way], parent[rule]] = True
            ways.append(torch.stack([whole[way], one[way], other[way], rule]))
        whole, one, other, rule = torch.cat(ways, 1)
        span, state = alive.nonzero().T
        number = alive.flatten().long().cumsum(0).sub_(1).reshape(alive.shape)
        nodes, items = len(span), len(tops)
        words = (first[span] == last[span]).nonzero().squeeze(1)
        heads = (span == tops[spans.item[span]]).nonzero().squeeze(1)
        none = nodes + items
        owner = spans.item[whole] % len(weights)
        top = spans.item[span[heads]]
        made = torch.cat([number[whole, parent[rule]], words, nodes + top])
        scores = torch.cat([
            logs[whole, parent[rule]] + weights[owner, rule],
            logs[span[words], state[words]],
            root[top % len(root), state[heads]],
        ])  # fmt: skip
        lexical, others = torch.full_like(words, none), len(words) + len(heads)
        one = torch.cat([number[one, left[rule]], lexical, heads])
        other = pad(number[other, right[rule]], (0, others), value=none)
        rule = pad(rule, (0, others), value=-1)
        made, order = made.sort(stable=True)
        parts = torch.stack([one[order], other[order]])
        rows = torch.searchsorted(span, torch.tensor(spans.rows, device=span.device)).tolist()
        sums = torch.arange(nodes, none, device=span.device)
        forest = RuleForest((*rows, none), made, parts, scores[order], sums)
        owner = torch.cat([spans.item[span], torch.arange(items, device=span.device)])
        return cls(
            lead, forest, owner, empty, spans, torch.stack([span, state]), rule[order],
            rules.count, logs.shape[1],
        )  # fmt: skip

    def averages(self, chances: Tensor, used: Tensor, score: Tensor) -> Expected:
        """Spans and their states; ``"rules"``: how often each is used."""
        chances, real = chances[: self.nodes.shape[1]], self.rule >= 0
        item = self.owner[self.forest.whole[real]]
        counts = used.new_zeros(len(self.empty), self.count)
        counts.index_put_((item, self.rule[real]), used[real], accumulate=True)
        seen = (chances > 0).nonzero().squeeze(1)
        return Expected(
            self._spans(seen, chances[seen]), score, self._places(seen), chances[seen],
            {"rules": counts.reshape(*self.lead, self.count)},
        )  # fmt: skip

    def configuration(self, rules: Tensor) -> Draw:
        """Spans and their states."""
        node = self.forest.whole[rules]
        node = node[node < self.nodes.shape[1]]
        ones = torch.ones(len(node), dtype=torch.float64, device=node.device)
        return Draw(self._spans(node, ones) > 0.5, self._places(node))

    def _spans(self, node: Tensor, weights: Tensor) -> Tensor:
        """(*lead, T, T) the summed weights of nodes by span."""
        words = self.spans.number.shape[1]
        span = self.nodes[0, node]
        first, last = self.spans.ends[:, span]
        counts = weights.new_zeros(len(self.empty), words, words)
        counts.index_put_((self.spans.item[span], first, last), weights, accumulate=True)
        return counts.clamp_(max=1.0).reshape(*self.lead, words, words)

    def _places(self, node: Tensor) -> Tensor:
        """The numbers of nodes among the states of sites."""
        words = self.spans.number.shape[1]
        span, state = self.nodes[:, node]
        first, last = self.spans.ends[:, span]
        return ((self.spans.item[span] * words + first) * words + last) * self.states + state
