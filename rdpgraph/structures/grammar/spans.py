"""Hypertrees: fields with checks, from probabilistic grammars too, and their recurrences."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from rdpgraph._core import tuning
from rdpgraph._core.arguments import require_fields
from rdpgraph._core.portable import tensors_in
from rdpgraph.errors import ModelError
from rdpgraph.io.grammar import Grammar
from rdpgraph.model.potentials.table import settle
from rdpgraph.recurrences.bound import Bound
from rdpgraph.recurrences.declaration import Declared
from rdpgraph.structures.chain.factors import flat_lengths
from rdpgraph.structures.checks import (
    checked_root,
    checked_rules,
    checked_unary,
    settle_lengths,
)
from rdpgraph.structures.grammar.rules import (
    DenseRules,
    FactorisedRules,
    LowRankRules,
    NoRules,
    Rules,
    flat,
)
from rdpgraph.structures.grammar.sparse_rules import SparseRules
from rdpgraph.structures.grammar.trees import parts_of
from rdpgraph.structures.grammar.written import Kind, write_rules
from rdpgraph.structures.recurrence import Recurrence


@dataclass(frozen=True, eq=False)
class HypertreeFields(Recurrence):
    """The fields and the recurrence of a `Hypertree`."""

    rules: Rules = field(default_factory=NoRules)  # pyright: ignore
    root: Tensor | None = field(default=None, kw_only=True, metadata={"dims": 1})
    preterminals: int = field(default=0, kw_only=True)
    lengths: Tensor | None = field(default=None, kw_only=True, metadata={"dims": 0})

    def __post_init__(self) -> None:
        settle(self, "unary", "root", whole=("lengths",))
        require_fields(self)
        checked_unary(self.unary)
        checked_rules(self.rules, self.unary, self.preterminals)
        checked_root(self.root, self.unary, self.preterminals)
        settle_lengths(self, lengths=self.unary.shape[-2])
        dtypes = (part.dtype for part in tensors_in(self) if part.is_floating_point())
        dtype = reduce(torch.promote_types, dtypes)
        if dtype != self.unary.dtype:
            object.__setattr__(self, "unary", self.unary.to(dtype))

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

        Of these `restrict` keeps some; the recurrence of all states reads no others.
        """
        if not self.preterminals:
            return unary
        count, total = unary.shape[-1], unary.shape[-2]
        word = torch.eye(total, dtype=torch.bool, device=unary.device).unsqueeze(-1)
        single = torch.arange(count, device=unary.device) >= count - self.preterminals
        return torch.where(word == single, unary, -torch.inf)

    # ---- the recurrence ----

    def _bind(
        self, other: Mapping[str, Tensor] | None = None, *, ranks: bool = False, **how: Any
    ) -> Bound:
        trees = self if ranks else self.written_out()
        return super(HypertreeFields, trees)._bind(other, ranks=ranks, **how)

    def written_out(self) -> Self:
        """The trees with rules of low rank as a table, so that a tree is one derivation.

        Raises:
            BudgetError: it would be too large.
        """
        by_rank = isinstance(self.rules, LowRankRules | FactorisedRules)
        return self.with_table() if by_rank else self

    def with_table(self) -> Self:
        """The trees with their rules as a table.

        Raises:
            BudgetError: it would be too large.
        """
        states = self.unary.shape[-1]
        table = self.rules.table(states - self.preterminals, states)
        return replace(self, rules=DenseRules(table))

    def written(self) -> tuple[Declared, str]:
        return self.written_for()

    def written_for(self, *, ranks: bool = False, kept: bool = False) -> tuple[Declared, str]:
        kind, levels = _KINDS.get(type(self.rules), "dense"), 0
        if kind == "ranked" and not ranks:
            kind = "dense"
        if isinstance(self.rules, SparseRules):
            levels = len(self.rules.listing.members)
        return write_rules(kind, self.preterminals, levels)

    def inputs(self) -> Mapping[str, Any]:
        given, rules = {"unary": self.unary, "lengths": self.lengths}, self.rules
        states, more = self.unary.shape[-1], self.preterminals
        root = self.unary.new_zeros(states - more) if self.root is None else self.root
        match rules:
            case NoRules():
                return {**given, "roots": root}
            case LowRankRules() | FactorisedRules():
                parent, left, right = rules.ranks()
                own = {"parent": parent[..., : states - more, :], "left": left, "right": right}
            case SparseRules():
                own = self._listed(rules)
                root = pad(root, (0, more), value=-math.inf)
            case _:
                own = {"ruled": rules.table(states - more, states)}
        return {**given, **own, "roots": root}

    def _listed(self, rules: SparseRules) -> dict[str, Tensor]:
        """The inputs of listed rules, and what forbids words other states than preterminals."""
        listing = rules.listing
        own = {"weight": pad(rules.log_weights[..., listing.order], (0, 1), value=-math.inf)}
        own |= {"left": listing.left, "right": listing.right}
        own |= {f"members{level}": one for level, one in enumerate(listing.members)}
        if self.preterminals:
            single = self.unary.new_zeros(self.unary.shape[-1])
            single[: -self.preterminals] = -math.inf
            own["single"] = single
        return own


_KINDS: dict[type[Rules], Kind] = {
    LowRankRules: "ranked",
    FactorisedRules: "ranked",
    SparseRules: "listed",
    NoRules: "free",
}
"""How rules are written; those of other kinds by a table."""


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
