"""Hypertrees within masks of their spans."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from rdpgraph._cache import cached_property
from rdpgraph.model.masks import Masked, StructureMasks
from rdpgraph.structures.compact.forest import Binary, Forest, joined_forest
from rdpgraph.structures.compact.masked import ForestMasked
from rdpgraph.structures.compact.spans import Spans
from rdpgraph.structures.hypertree.fields import HypertreeFields
from rdpgraph.structures.hypertree.form import Form
from rdpgraph.structures.hypertree.rules import NoRules
from rdpgraph.structures.hypertree.sparse_masks import MaskedSparseHypertree
from rdpgraph.structures.hypertree.sparse_rules import SparseRules


@dataclass(frozen=True, eq=False)
class HypertreeMasks(StructureMasks):
    """The question of a span is whether it is a constituent.

    A yes leaves the spans that do not cross it, of which every binary tree has the span itself.

    Args:
        model: the hypertree.
    """

    model: HypertreeFields

    site_dims = 3

    @property
    def questions(self) -> tuple[int, ...]:
        """(T, T), [first, last]."""
        return self.sites[:2]

    @cached_property
    def lengths(self) -> Tensor:
        """(B,) the numbers of words of the items."""
        return self.flat_lengths(self.model.lengths, self.sites[0])

    def open(self) -> Tensor:
        """The spans of two words and more that are not the whole."""
        place = torch.arange(self.sites[0], device=self.lengths.device)
        first, last = place.unsqueeze(1), place
        most = self.lengths.reshape(-1, 1, 1)
        asked = (last > first) & (last < most) & ((first > 0) | (last < most - 1))
        return asked.reshape(*self.batch_shape, *self.questions)

    def guess(self, likely: Tensor) -> Tensor:
        """Spans that do not cross, those of large potentials first."""
        shape = (self.items, *self.questions)
        size = self.model.unary.detach().double().logsumexp(-1).reshape(shape)
        flat = likely.reshape(shape)
        chosen = torch.zeros_like(flat)
        for item, own in enumerate(flat):
            spans = own.nonzero()
            order = size[item][own].sort(descending=True).indices
            taken: list[tuple[int, int]] = []
            for first, last in spans[order].tolist():
                if not any(a < first <= b < last or first < a <= last < b for a, b in taken):
                    taken.append((first, last))
                    chosen[item, first, last] = True
        return chosen.reshape(likely.shape)

    @cached_property
    def rules(self) -> Binary:
        """The log-weights of the rules, of which there is one kind."""
        model, states = self.model, self.sites[2]
        parents = states - model.preterminals
        if isinstance(model.rules, NoRules):
            table = model.unary.new_zeros(1, parents, states, states)
        else:
            table = model.rules.flat(self.batch_shape).table(parents, states).detach()
        table = pad(table, (0, 0, 0, 0, 0, states - parents), value=-math.inf)
        return Binary.of([table.to(model.unary.device)])

    def masked(self, required: Tensor, forbidden: Tensor) -> Masked:
        """The spans that are left."""
        model, lead = self.model, tuple(required.shape[:-2])
        total, _, states = self.sites
        batch, chains = self.items, self.chains(lead)
        lengths = self.lengths.repeat(chains)
        must = required.reshape(len(lengths), total, total)
        kept = Spans.of(lengths, must, forbidden.reshape(len(lengths), total, total))
        first, last = kept.ends
        logs = self.potentials[kept.item % max(batch, 1), first, last].double()
        word = (first == last).unsqueeze(1)
        if model.preterminals:
            single = torch.arange(states, device=logs.device) >= states - model.preterminals
            logs = torch.where(word == single, logs, -math.inf)
        whole = (lengths - 1).clamp(min=0)
        if total:
            tops = kept.number[torch.arange(len(lengths), device=logs.device), 0, whole]
        else:
            tops = torch.full_like(lengths, -1)
        root = Form(model).root.detach().double()
        root = root.repeat(chains, 1) if len(root) > 1 else root
        empty = lengths == 0
        if isinstance(model.rules, SparseRules):
            listed = model.rules.flat(self.batch_shape)
            return MaskedSparseHypertree.of(lead, kept, logs, listed, tops, root, empty)
        rules = self.rules
        if len(rules.table) > 1:
            rules = Binary(rules.table.repeat(chains, 1, 1), 1, rules.left, rules.right)
        forest = Forest(
            kept.item, logs.masked_fill(~word, -math.inf), logs.masked_fill(word, -math.inf),
            kept.rows, *joined_forest(len(kept.item), [kept.joins()]), rules, tops, root,
        )  # fmt: skip
        return MaskedHypertree(
            forest, lead, first * total + last, total**2, empty, kept.ends, total
        )


@dataclass(frozen=True, eq=False)
class MaskedHypertree(ForestMasked):
    """A hypertree within a mask.

    Attributes:
        ends: (2, P) first and last words.
        words: T.
    """

    ends: Tensor
    words: int

    def answering(self, place: Tensor, used: Tensor, ended: Tensor) -> Tensor:
        """All chances: every place is a span with a state."""
        return used

    def answers(self, item: Tensor, weights: Tensor, place: Tensor) -> Tensor:
        """The spans themselves."""
        answers = weights.new_zeros(len(self.empty), self.words, self.words)
        first, last = self.ends[:, place]
        answers.index_put_((item, first, last), weights, accumulate=True)
        return answers.reshape(*self.lead, self.words, self.words)

    def counts(self, rules: Tensor) -> dict[str, Tensor]:
        """``"rules"``: of each, by classes of parts that no rule tells apart."""
        return {"rules": rules.squeeze(2)}
