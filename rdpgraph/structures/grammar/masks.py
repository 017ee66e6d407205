"""Hypertrees within masks of their spans, by a table of rules or by a list."""

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from rdpgraph._core.cache import cached_property
from rdpgraph.interface.masks import Draw, Expected, Masked, StructureMasks
from rdpgraph.structures.compact.bispans import Spans
from rdpgraph.structures.compact.masked import (
    Binary,
    Forest,
    ForestMasked,
    RuleForest,
    RuleMasked,
)
from rdpgraph.structures.grammar.rules import NoRules
from rdpgraph.structures.grammar.sparse_rules import SparseRules


@dataclass(frozen=True, eq=False)
class MaskedSparseHypertree(RuleMasked):
    """A hypertree of listed rules within a mask.

    Places are states of spans that have a tree, and one more for the whole of each item.
    """

    spans: Spans  # the kept spans
    nodes: Tensor  # (2, nodes) the span and the state of each place, without the wholes
    rule: Tensor  # (E,) the rule of each way; -1: a word, or the root
    count: int  # the number of rules
    states: int  # the number of states of a span

    @classmethod
    def of(
        cls, lead: tuple[int, ...], spans: Spans, logs: Tensor, rules: SparseRules,
        tops: Tensor, root: Tensor, empty: Tensor,
    ) -> "MaskedSparseHypertree":  # fmt: skip
        """Find the places that have a tree, smallest spans first.

        Log-potentials (P, N) of the kept spans; ``tops`` (I,) the span of each whole, -1 for none;
        ``root`` (1 or I, N); ``empty`` (I,) bool: sentences of no words.
        """
        wholes, lefts, rights = spans.joins()
        wholes, order = wholes.sort(stable=True)
        lefts, rights = lefts[order], rights[order]
        sizes = torch.tensor(spans.rows, device=wholes.device)
        bounds = torch.searchsorted(wholes, sizes).tolist()
        parent, left, right = rules.triples.T
        weights = rules.log_weights.detach().double().reshape(-1, rules.count)
        first, last = spans.ends
        possible = logs > -math.inf
        # The states of words are given, those of wider spans made by rules.
        alive = possible & (first == last).unsqueeze(1)
        ways = [torch.zeros(4, 0, dtype=torch.long, device=logs.device)]
        for start, stop in pairwise(bounds):
            if start == stop:
                continue
            whole, one, other = wholes[start:stop], lefts[start:stop], rights[start:stop]
            fits = alive[one][:, left] & alive[other][:, right] & possible[whole][:, parent]
            way, rule = fits.nonzero().T
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
        sums = torch.arange(nodes, none, device=span.device)
        owner = torch.cat([spans.item[span], torch.arange(items, device=span.device)])
        forest = RuleForest(owner, made, parts, scores[order], sums)
        return cls(
            lead, forest, empty, spans, torch.stack([span, state]), rule[order],
            rules.count, logs.shape[1],
        )  # fmt: skip

    def averages(self, chances: Tensor, used: Tensor, score: Tensor) -> Expected:
        """Spans and their states; ``"rules"``: the expected uses of each."""
        chances, real = chances[: self.nodes.shape[1]], self.rule >= 0
        item = self.forest.item[self.forest.whole[real]]
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
        """(*lead, T, T) the summed weights of nodes, by span."""
        words = self.spans.number.shape[1]
        span = self.nodes[0, node]
        first, last = self.spans.ends[:, span]
        counts = weights.new_zeros(len(self.empty), words, words)
        counts.index_put_((self.spans.item[span], first, last), weights, accumulate=True)
        return counts.clamp_(max=1.0).reshape(*self.lead, words, words)

    def _places(self, node: Tensor) -> Tensor:
        """Places of nodes among the states of sites."""
        words = self.spans.number.shape[1]
        span, state = self.nodes[:, node]
        first, last = self.spans.ends[:, span]
        return ((self.spans.item[span] * words + first) * words + last) * self.states + state


@dataclass(frozen=True, eq=False)
class HypertreeMasks(StructureMasks):
    """Questions whether a span is a constituent.

    A yes leaves the spans that do not cross it: every binary tree of them has the span itself.
    """

    model: Any  # a `Hypertree`

    site_dims = 3

    @property
    def questions(self) -> tuple[int, ...]:
        return self.sites[:2]

    @cached_property
    def lengths(self) -> Tensor:
        """(B,) the numbers of words of the items."""
        return self.flat_lengths(self.model.lengths, self.sites[0])

    def open(self) -> Tensor:
        """Spans of two words and more, except the whole."""
        place = torch.arange(self.sites[0], device=self.lengths.device)
        first, last = place.unsqueeze(1), place
        most = self.lengths.reshape(-1, 1, 1)
        asked = (last > first) & (last < most) & ((first > 0) | (last < most - 1))
        return asked.reshape(*self.batch_shape, *self.questions)

    def guess(self, likely: Tensor) -> Tensor:
        """Spans that do not cross, chosen greedily by their potentials."""
        shape = (self.items, *self.questions)
        size = self.model.unary.detach().double().logsumexp(-1).reshape(shape)
        flat = likely.reshape(shape)
        chosen = torch.zeros_like(flat)
        for item, mask in enumerate(flat):
            spans = mask.nonzero()
            order = size[item][mask].sort(descending=True).indices
            taken: list[tuple[int, int]] = []
            for first, last in spans[order].tolist():
                if not any(a < first <= b < last or first < a <= last < b for a, b in taken):
                    taken.append((first, last))
                    chosen[item, first, last] = True
        return chosen.reshape(likely.shape)

    @cached_property
    def rules(self) -> Binary:
        """The log-weights of the rules, of one kind."""
        model, states = self.model, self.sites[2]
        parents = states - model.preterminals
        if isinstance(model.rules, NoRules):
            table = model.unary.new_zeros(1, parents, states, states)
        else:
            table = model.rules.flat(self.batch_shape).table(parents, states).detach()
        table = pad(table, (0, 0, 0, 0, 0, states - parents), value=-math.inf)
        return Binary.of([table.to(model.unary.device)])

    def masked(self, required: Tensor, forbidden: Tensor) -> Masked:
        model, lead = self.model, tuple(required.shape[:-2])
        total, _, states = self.sites
        batch, chains = self.items, self.chains(lead)
        # Chains of an item are items here: all are solved as one batch, chain after chain.
        lengths = self.lengths.repeat(chains)
        must = required.reshape(len(lengths), total, total)
        kept = Spans.of(lengths, must, forbidden.reshape(len(lengths), total, total))
        first, last = kept.ends
        logs = self.potentials[kept.item % max(batch, 1), first, last].double()
        # Words have tags and longer spans have none, where there are tags.
        word = (first == last).unsqueeze(1)
        if model.preterminals:
            single = torch.arange(states, device=logs.device) >= states - model.preterminals
            logs = torch.where(word == single, logs, -math.inf)
        whole = (lengths - 1).clamp(min=0)
        # The goal of each item is the span of all its words; -1 for an item without words.
        if total:
            tops = kept.number[torch.arange(len(lengths), device=logs.device), 0, whole]
        else:
            tops = torch.full_like(lengths, -1)
        root = model.flat_root.detach().double()
        root = root.repeat(chains, 1) if len(root) > 1 else root
        empty = lengths == 0
        # Lists of rules have a kernel of their own. Tables of rules take scores of words and of
        # spans apart, as only spans have parts.
        if isinstance(model.rules, SparseRules):
            listed = model.rules.flat(self.batch_shape)
            return MaskedSparseHypertree.of(lead, kept, logs, listed, tops, root, empty)
        parts = logs.masked_fill(~word, -math.inf), logs.masked_fill(word, -math.inf)
        scores, rules = torch.stack(parts, 1), self.rules.repeated(chains)
        forest = Forest(kept.item, scores, [kept.joins()], rules, tops, root)
        return MaskedHypertree(
            forest, lead, first * total + last, total**2, empty, kept.ends, total
        )


@dataclass(frozen=True, eq=False)
class MaskedHypertree(ForestMasked):
    """A hypertree within a mask."""

    ends: Tensor  # (2, P) first and last words
    words: int  # T

    def answering(self, place: Tensor, used: Tensor, ended: Tensor) -> Tensor:
        """Count every use: each place is a span with a state."""
        return used

    def answers(self, item: Tensor, weights: Tensor, place: Tensor) -> Tensor:
        answers = weights.new_zeros(len(self.empty), self.words, self.words)
        first, last = self.ends[:, place]
        answers.index_put_((item, first, last), weights, accumulate=True)
        return answers.reshape(*self.lead, self.words, self.words)

    def counts(self, rules: Tensor) -> dict[str, Tensor]:
        """``"rules"``: uses of each, by classes of parts that no rule distinguishes."""
        return {"rules": rules.squeeze(2)}
