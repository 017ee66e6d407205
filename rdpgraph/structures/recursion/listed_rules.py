"""Pairs of parts joined by rules in a list, of which few triples of labels have one."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.utils.checkpoint import checkpoint

from rdpgraph.logspace.logmatrix import soft_scatter
from rdpgraph.structures.draws import Pick
from rdpgraph.structures.recursion.reader import Reader
from rdpgraph.structures.recursion.sparse_rules import SparseRules
from rdpgraph.structures.recursion.step import Child, Step, beside, child, soft
from rdpgraph.structures.recursion.values import View

_BLOCK = 2**22  # terms that are held at a time


@dataclass(frozen=True, eq=False)
class Listed(Step):
    """The sum over splits and rules: (B, P, K). Terms are made again for the gradient.

    What the parts of a span say of a rule is looked up; the splits of a span are summed rule by
    rule, and the rules of a parent then with one another. The alternatives of a node are its
    rules, each with all M splits.

    Attributes:
        left: (B, M, P, C).
        right: (B, M, P, C).
        rules: flat.
        width: K, the parents' labels and others, which are never made.
    """

    left: View
    right: View
    rules: SparseRules
    width: int

    def terms(self, reader: Reader, *, scores: bool = True) -> Tensor:
        """(B, A, P, K)."""
        rows, known = self.rules.by_parent
        _, first, second = self.rules.triples[rows].unbind(2)
        left, right = reader.together((self.left, self.right))
        terms = left[..., first] + right[..., second]
        if scores:
            terms = terms + self.rules.log_weights[:, rows][:, None, None]
        terms = torch.where(known, terms, -math.inf)
        return self._wider(terms.movedim(-1, -4).flatten(-4, -3))

    def up(self, reader: Reader, temperature: float) -> Tensor:
        """(B, P, K)."""
        if not torch.is_grad_enabled():
            return self._sums(reader, temperature)
        # Pools are not kept for the gradient, nor later values.
        total: Tensor = checkpoint(  # pyright: ignore
            lambda values: self._sums(Reader(values), temperature),  # pyright: ignore
            list(reader.values), use_reentrant=False, preserve_rng_state=False,
        )  # fmt: skip
        return total

    def _sums(self, reader: Reader, temperature: float) -> Tensor:
        left, right = reader.read(self.left), reader.read(self.right)
        size = max(1, _BLOCK // max(1, left[..., 0].numel()))
        sums = [
            soft(left.index_select(3, first) + right.index_select(3, second), 1, temperature)
            for _, first, second in (part.unbind(1) for part in self.rules.triples.split(size))
        ]
        each = torch.cat(sums, 2) + self.rules.log_weights.unsqueeze(1)
        rows, parent = each.movedim(-1, 0), self.rules.triples[:, 0]
        total = soft_scatter(rows, parent, self.rules.parents, temperature)
        return self._wider(total.movedim(0, -1))

    def at(self, reader: Reader, item: Tensor, place: Tensor, label: Tensor) -> Tensor:
        """(Q, A) the log-values of the alternatives."""
        terms, weights, _ = self._of_nodes(reader, item, place, label)
        return (terms + weights.unsqueeze(1)).mT.flatten(1)

    def chosen(
        self, reader: Reader, pick: Pick, item: Tensor, place: Tensor, label: Tensor
    ) -> Tensor:
        """(Q,) first the rule, then the split."""
        terms, weights, at = self._of_nodes(reader, item, place, label)
        rule = pick(soft(terms, 1, reader.temperature) + weights)
        return rule * self.left.ways + pick(terms[at, :, rule])

    def _of_nodes(
        self, reader: Reader, item: Tensor, place: Tensor, label: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(Q, M, F) what the parts say, (Q, F) the weights of the nodes' rules, (Q,) numbers."""
        rows, known = (part[label] for part in self.rules.by_parent)
        _, first, second = self.rules.triples[rows].unbind(2)
        shape = (-1, self.left.ways, -1)
        left, right = (reader.at(view, item, place) for view in (self.left, self.right))
        terms = left.gather(2, first.unsqueeze(1).expand(shape))
        terms = terms + right.gather(2, second.unsqueeze(1).expand(shape))
        own = item if len(self.rules.log_weights) > 1 else torch.zeros_like(item)
        weights = self.rules.log_weights[own.unsqueeze(1), rows].masked_fill(~known, -math.inf)
        return terms, weights, torch.arange(len(item), device=item.device)

    def children(
        self, chosen: Tensor, item: Tensor, place: Tensor, label: Tensor
    ) -> Iterator[Child]:
        """The two parts."""
        rule, split = chosen // self.left.ways, chosen % self.left.ways
        _, first, second = self.rules.triples[self.rules.by_parent[0][label, rule]].unbind(1)
        yield child(self.left, None, split, item, place, first)
        yield child(self.right, None, split, item, place, second)

    def shares(
        self, reader: Reader, own: Tensor, above: Tensor, *, scores: bool
    ) -> Iterator[tuple[View, Tensor]]:
        """To each part what the other says, summed over the rules of each label."""
        left, right = reader.read(self.left), reader.read(self.right)
        ahead, triples = beside(own, above), self.rules.triples
        weights = self.rules.log_weights if scores else torch.zeros_like(self.rules.log_weights)
        size = max(1, _BLOCK // max(1, left[..., 0].numel()))
        sides = torch.full_like(left, -math.inf), torch.full_like(right, -math.inf)
        for some, said in zip(triples.split(size), weights.split(size, 1), strict=True):
            parent, first, second = some.unbind(1)
            top = (ahead.index_select(2, parent) + said.unsqueeze(1)).unsqueeze(1)
            for side, to, terms in (
                (sides[0], first, top + right.index_select(3, second)),
                (sides[1], second, top + left.index_select(3, first)),
            ):
                side.scatter_reduce_(3, to.expand(terms.shape), terms, "amax")
        yield self.left, left + sides[0]
        yield self.right, right + sides[1]

    @property
    def products(self) -> Sequence[Sequence[View]]:
        """The left and the right part."""
        return ((self.left, self.right),)

    @property
    def alternatives(self) -> int:
        """The most rules that a label has, with the splits of each, A."""
        return self.rules.by_parent[0].shape[1] * self.left.ways

    @property
    def work(self) -> float:
        """Splits, places and rules."""
        return float(self.left.ways * self.left.places * self.rules.count)

    def _wider(self, values: Tensor) -> Tensor:
        return pad(values, (0, self.width - self.rules.parents), value=-math.inf)
