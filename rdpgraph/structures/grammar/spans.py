"""Hypertrees: fields with checks, from probabilistic grammars too, and the recursion over spans."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from rdpgraph._core import tuning
from rdpgraph._core.arguments import require_fields
from rdpgraph._core.cache import remembered
from rdpgraph.errors import ModelError
from rdpgraph.io.grammar import Grammar
from rdpgraph.model.potentials.table import settle
from rdpgraph.structures.chain.factors import flat_lengths
from rdpgraph.structures.checks import (
    checked_root,
    checked_rules,
    checked_unary,
    settle_lengths,
)
from rdpgraph.structures.grammar.trees import parts_of
from rdpgraph.structures.recursion.rules import (
    DenseRules,
    FactorisedRules,
    LowRankRules,
    NoRules,
    Rules,
    flat,
)
from rdpgraph.structures.recursion.sparse_rules import SparseRules
from rdpgraph.structures.recursion.tape import Tape
from rdpgraph.structures.recursion.values import Value, View, Way
from rdpgraph.structures.recursions import Recursion


class SeparateJoins:
    """Joins on a tape by blocks of rules, one for each combination of words and wider spans.

    Words have P labels, wider spans N. O(T N (N + P)^2 + T^2 N^3 + T^3 N^2) by a table,
    O(T^3 r + T^2 N r) by ranks.
    """

    def __init__(self, tape: Tape, rules: Rules) -> None:
        assert rules.shape is not None
        self.tape, (parents, children) = tape, rules.shape
        self.by_rank = tape.ranks and isinstance(rules, LowRankRules | FactorisedRules)
        if isinstance(rules, LowRankRules | FactorisedRules) and self.by_rank:
            left, right, top = tape.sources.ranks(rules)
            self.top = top[..., :parents]
            kinds = slice(parents, None), slice(parents)
            self.sides = [[side[..., kind, :] for kind in kinds] for side in (left, right)]
            self.ranked = list[Value](), list[Value]()
            return
        self.parents, sizes = parents, (parents, children - parents)
        (spans, right), (left, words) = (
            [part.movedim(-3, -1) for part in side.split(sizes, -1)]
            for side in rules.table(parents, children).split(sizes, -2)
        )
        self.pairs = words.flatten(-3, -2), spans.flatten(-3, -2)
        # From a word on one side to pairs of the span on the other and the parent.
        self.words = left.flatten(-2), right.transpose(-3, -2).flatten(-2)

    def joined(self, rows: Sequence[Value], left: Tensor, right: Tensor) -> Value:
        """All spans of a width, given the rows of smaller widths from 1 on.

        ``left`` and ``right`` (M, P) are the places of the parts in all rows concatenated, by
        split.
        """
        tape = self.tape
        if self.by_rank:
            for side, known in zip(self.sides, self.ranked, strict=True):
                known.append(tape.link(rows[-1], side[len(rows) > 1]))
            parts = [
                View(tuple(values), at)
                for values, at in zip(self.ranked, (left, right), strict=True)
            ]
            return tape.link(tape.total(tuple(parts)), self.top)
        before, words = sum(row.places for row in rows[:-1]), rows[0].places
        if not before:
            return self._pairs(rows, left, right, self.pairs[0])
        ways = list[Way]()
        sides = (left[:1], right[:1]), (right[-1:], left[-1:])
        for table, (word, span) in zip(self.words, sides, strict=True):
            linked = tape.link(rows[0], table)
            ways.append((
                View((linked,), word, parts=self.parents),
                View((rows[-1],), span - before, parts=self.parents),
            ))  # fmt: skip
        if len(left) > 2:
            at = left[1:-1] - words, right[1:-1] - words
            ways.append(self._pairs(rows[1:-1], *at, self.pairs[1]))
        return tape.total(*ways)

    def _pairs(self, rows: Sequence[Value], left: Tensor, right: Tensor, table: Tensor) -> Value:
        views = View(tuple(rows), left), View(tuple(rows), right)
        return self.tape.link(self.tape.pairs(*views), table)


kept_layout = remembered(16, where=lambda words, device: words <= 64)  # noqa: ARG005
"""Caches the places of all parts of all spans; in long sentences they are as large as charts."""


@dataclass(frozen=True, eq=False)
class HypertreeFields(Recursion):
    """The fields and recursion of a `Hypertree`."""

    rules: Rules = field(default_factory=NoRules)
    root: Tensor | None = field(default=None, kw_only=True, metadata={"dims": 1})
    preterminals: int = field(default=0, kw_only=True)
    lengths: Tensor | None = field(default=None, kw_only=True, metadata={"dims": 0})

    site_dims = 2

    def __post_init__(self) -> None:
        settle(self, "unary", "root", whole=("lengths",))
        require_fields(self)
        checked_unary(self.unary)
        checked_rules(self.rules, self.unary, self.preterminals)
        checked_root(self.root, self.unary, self.preterminals)
        settle_lengths(self, lengths=self.unary.shape[-2])

    @property
    def flat_unary(self) -> Tensor:
        """(B, T, T, C) the potentials in one batch dim."""
        return self.unary.flatten(0, -4) if self.unary.ndim > 3 else self.unary.unsqueeze(0)

    @property
    def flat_lengths(self) -> Tensor:
        """(B,) the numbers of words of the items."""
        return flat_lengths(self.lengths, self.unary.shape[:-2], self.unary)

    @property
    def flat_root(self) -> Tensor:
        """(1 or B, C) the root's potentials, -inf for preterminals."""
        root = self.root
        if root is None:
            root = self.unary.new_zeros(self.unary.shape[-1] - self.preterminals)
        return pad(flat(root, 1, self.batch_shape), (0, self.preterminals), value=-math.inf)

    def place(self, site: tuple[int, ...]) -> tuple[float, float] | None:
        first, last = site
        return ((first + last) / 2, float(last - first)) if first <= last else None

    def joined(self, used: Mapping[tuple[int, ...], int]) -> list[tuple[Any, Any]]:
        return parts_of(used)

    def potentials(self, unary: Tensor) -> Tensor:
        """Potentials with -inf for preterminals of wide spans, and for other states of words.

        The recursion has this itself where all states are kept.
        """
        if not self.preterminals:
            return unary
        count, total = unary.shape[-1], unary.shape[-2]
        word = torch.eye(total, dtype=torch.bool, device=unary.device).unsqueeze(-1)
        single = torch.arange(count, device=unary.device) >= count - self.preterminals
        return torch.where(word == single, unary, -torch.inf)

    def recursion(self, tape: Tape) -> Value:
        words, device, states = tape.site_shape[0], tape.device, self.unary.shape[-1]
        lengths = tape.lengths(self.lengths, words).unsqueeze(1)
        listed = isinstance(self.rules, NoRules | SparseRules)
        apart = self.preterminals > 0 and tape.states is None and not listed
        joins = SeparateJoins(tape, self.rules) if apart else None
        kinds = torch.arange(states, device=device).tensor_split([states - self.preterminals])
        # Potentials of kept states have it already that words have other states than wider spans.
        barred = self.preterminals > 0 and tape.states is None and not joins
        spans = torch.arange(states, device=device) < states - self.preterminals
        masks = [torch.where(kind, 0.0, -math.inf).to(tape.dtype) for kind in (spans, ~spans)]
        rows = list[Value]()
        for first, last, left, right in _rows(words, device):
            row = tape.sites[first, last]
            factors = [tape.pick(row, kinds[not rows]) if joins else row]
            if barred:
                factors.append(tape.lookup(masks[not rows], row))
            if joins and rows:
                factors.append(joins.joined(rows, left, right))
            elif rows:
                one, two = (View(tuple(rows), at) for at in (left, right))
                factors.append(tape.join(one, two, self.rules, to=row))
            rows.append(tape.total(tuple(factors)) if len(factors) > 1 else factors[0])
        empty = tape.allowed(lengths == 0)
        whole = rows[1:] if joins else rows
        if not whole:
            return empty
        # The place of the whole in the remaining rows; with preterminals a word is no tree.
        width, least = (lengths - 1).clamp(min=0), 1 if joins else 0
        last = _start(width, words).unsqueeze(2) - least * words
        last = torch.where(lengths.unsqueeze(2) > least, last, -1)
        whole = tape.total(tape.view(whole, last))
        if self.root is not None or self.preterminals:
            root = self.unary.new_zeros(states - self.preterminals)
            root = root if self.root is None else self.root
            if not joins:
                root = pad(root, (0, self.preterminals), value=-torch.inf)
            whole = tape.total((whole, tape.lookup(root, whole)))
        return tape.total(tape.sum(whole), empty)


def _start(width: int | Tensor, words: int) -> Any:
    """The index of the first span of a width among those of all widths."""
    return width * words - width * (width - 1) // 2


@kept_layout
def _rows(words: int, device: torch.device) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """The first and last words of the spans of each width, and places of their parts, by split."""
    rows = list[tuple[Tensor, Tensor, Tensor, Tensor]]()
    for width in range(words):
        first = torch.arange(words - width, device=device)
        split = torch.arange(width, device=device).unsqueeze(1)
        left = _start(split, words) + first
        right = _start(width - 1 - split, words) + first + split + 1
        rows.append((first, first + width, left, right))
    return rows


def pcfg_unary(root: Tensor, rules: Rules, terms: Tensor) -> Tensor:
    """(*batch, T, T, NT + PT) span potentials of a grammar: those of its words, else zero."""
    if rules.shape is None or terms.ndim < 2 or root.ndim < 1:
        raise ModelError(
            "Hypertree.pcfg needs rules of a size, root (*batch, NT) and terms (*batch, T, PT)."
        )
    parents, children = rules.shape
    if children - parents != terms.shape[-1] or root.shape[-1] != parents:
        raise ModelError(
            f"Hypertree.pcfg with rules of {parents} parents and {children} children needs "
            f"root (*batch, {parents}) and terms (*batch, T, {children - parents}); got "
            f"{tuple(root.shape)} and {tuple(terms.shape)}."
        )
    words = pad(terms, (parents, 0))
    diagonal = torch.eye(terms.shape[-2], dtype=torch.bool, device=terms.device).unsqueeze(-1)
    zero = torch.zeros((), dtype=words.dtype, device=words.device)
    return torch.where(diagonal, words.unsqueeze(-3), zero)


def sentence_unary(grammar: Grammar, sentences: Sequence[Sequence[str]]) -> tuple[Tensor, Tensor]:
    """(S, T, T, N) span potentials of the words of sentences, and lengths (S,)."""
    if not sentences:
        raise ModelError("Hypertree.parses needs at least one sentence.")
    # An empty sentence has no tree: it is one word that no symbol derives, so that log Z is -inf.
    lengths = [max(len(sentence), 1) for sentence in sentences]
    total, size = max(lengths), len(grammar.symbols)
    unary = grammar.log_weights.new_zeros(len(sentences), total, total, size)
    for item, sentence in enumerate(sentences):
        place = torch.arange(len(sentence), device=unary.device)
        unary[item, place, place] = grammar.lexical(sentence)
        if not sentence:
            unary[item, 0, 0] = -math.inf
    return unary, torch.tensor(lengths, device="cpu")


def grammar_rules(grammar: Grammar) -> DenseRules | SparseRules:
    """The rules of a grammar as a table or a list, whichever is faster and fits."""
    states, rules, weights = len(grammar.symbols), grammar.rules, grammar.log_weights
    fits = float(states) ** 3 * weights.element_size() <= grammar.memory_bytes
    if fits and prefers_table(states, len(rules)):
        return DenseRules(grammar.log_rules)
    if not len(rules):  # words only: one rule that forbids itself
        rules, weights = rules.new_zeros(1, 3), weights.new_full((1,), -math.inf)
    return SparseRules(rules, weights, parents=states)


def prefers_table(states: int, rules: int) -> bool:
    """Return whether a table of rules is faster than a list of so many."""
    return float(states) ** 3 <= tuning.DENSE_RULES * rules
