"""Hypertrees: distributions over the binary trees of sequences."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from rdpgraph._core import tuning
from rdpgraph._core.arguments import require_fields, typed
from rdpgraph._core.portable import tensors_in
from rdpgraph._core.types import ArrayLike, broadcasts
from rdpgraph.errors import EvidenceError, ModelError
from rdpgraph.interface.masks import Masks
from rdpgraph.interface.sites import Sites
from rdpgraph.interface.structure import Match, is_tracked
from rdpgraph.io.grammar import Grammar
from rdpgraph.logspace.gradients import by_autograd, expectations
from rdpgraph.logspace.logmatrix import soft_scatter
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.potentials.table import (
    as_states,
    checked_log_table,
    checked_log_values,
    settle,
    taken,
)
from rdpgraph.model.restriction import gathered
from rdpgraph.model.soundness import require_possible
from rdpgraph.recurrences.bound import Bound
from rdpgraph.recurrences.declaration import Declared
from rdpgraph.structures.chain.parts import flat_lengths, inside
from rdpgraph.structures.checks import settle_lengths
from rdpgraph.structures.grammar.kept import RestrictedHypertree
from rdpgraph.structures.grammar.masks import HypertreeMasks
from rdpgraph.structures.grammar.rules import (
    DenseRules,
    FactorisedRules,
    LowRankRules,
    NoRules,
    Rules,
    flat,
)
from rdpgraph.structures.grammar.sparse_rules import SparseRules
from rdpgraph.structures.grammar.trees import KBestTrees, Trees, branches, crossed, parts_of
from rdpgraph.structures.grammar.written import Kind, write_rules
from rdpgraph.structures.recurrence import Recurrence
from rdpgraph.structures.structure_potential import recognised_factor, structure_graph

_KINDS: dict[type[Rules], Kind] = {
    LowRankRules: "ranked",
    FactorisedRules: "ranked",
    SparseRules: "listed",
    NoRules: "free",
}
"""How rules are written; those of other kinds by a table."""


@dataclass(frozen=True, eq=False)
class Hypertree(Recurrence):
    """Binary trees over the words of a sequence: spans with states, and rules that join two.

    The score of a tree is the sum of `unary` over its constituents, single words included, of the
    rules at its inner nodes, and of `root` at the whole. A sequence of one word is one leaf; one
    of no words has the empty tree, log Z 0. Sites are spans: those that are no constituent have
    state -1 in `mode` and `sample`, and the marginals of a span sum to the probability that it is
    one. Items without a possible tree have log Z -inf, and marginals, gradients and entropy zero.

    Every answer but trees is differentiable. log Z costs O(T^2 N^3 + T^3 N^2) with `DenseRules`,
    O(T^3 r + T^2 N r) with `LowRankRules`, O(T^3 M) with `SparseRules`, O(T^2 N + T^3) with
    `NoRules`; its gradient takes memory O(T^2 (N + r)), or O(T^2 (N + M)) with sparse rules.
    Entropies, divergences, modes, the k best, max-marginals and relaxed draws are about single
    trees, and take rules of low rank as a table.
    Source: Baker 1979; Lari and Young 1990; low rank: Yang, Zhao and Tu 2021 (arXiv:2104.13727).

    Args:
        unary: (*batch, T, T, N) log-potentials (nats), [first, last, state], both words included;
            -inf forbids a span. Entries below the diagonal and beyond the length are ignored.
        rules: log-weights of a state given those of its two parts.
        root: (*batch, N - preterminals) log-potential of the state of the whole; default: zeros.
        preterminals: the number of states, the last ones, for single words alone; if there are
            any, single words have no others, and a sequence of one word has no tree.
        lengths: (*batch,) integers in 0..T; default: all T.

    Raises:
        ModelError: shapes that do not fit, NaN or +inf, a length out of range.
        BudgetError: a table of rules of low rank would be too large, in answers about single trees.

    Example:
        >>> Hypertree(torch.zeros(4, 4, 1)).log_partition().exp()  # the binary trees of 4 words
        tensor(5.)
    """

    rules: Rules = field(default_factory=NoRules)  # pyright: ignore
    root: Tensor | None = field(default=None, kw_only=True, metadata={"dims": 1})
    preterminals: int = field(default=0, kw_only=True)
    lengths: Tensor | None = field(default=None, kw_only=True, metadata={"dims": 0})

    optional_sites = True
    why_no_graph = ""  # its graph has a factor over all spans

    if TYPE_CHECKING:  # arguments become tensors

        def __init__(
            self,
            unary: ArrayLike,
            rules: Rules = ...,
            *,
            root: ArrayLike | None = None,
            preterminals: int = 0,
            lengths: ArrayLike | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        settle(self, "unary", "root", whole=("lengths",))
        require_fields(self)
        checked_log_values("Hypertree's unary", self.unary)
        shape, more = tuple(self.unary.shape), self.preterminals
        if len(shape) < 3 or shape[-2] != shape[-3] or not shape[-1]:
            raise ModelError(
                "Hypertree needs unary potentials of shape (*batch, T, T, N), [first, last, "
                f"state], N >= 1; got {shape}."
            )
        # Rules and the root are about the states of unary potentials.
        states, batch, rules = shape[-1], shape[:-3], self.rules
        if not 0 <= more < states:
            raise ModelError(
                f"Hypertree of {states} states needs 0 to {states - 1} preterminals; got {more}."
            )
        if rules.shape is not None and rules.shape != (states - more, states):
            raise ModelError(
                f"Hypertree of {states} states, {more} of them preterminals, needs rules of "
                f"(N, C) = {(states - more, states)} parents and children; got {rules.shape}."
            )
        if math.prod(rules.batch_shape) != 1 and not broadcasts(rules.batch_shape, batch):
            raise ModelError(f"Hypertree of batch {batch} got rules of batch {rules.batch_shape}.")
        if any(part.device != self.unary.device for part in rules.parts):
            raise ModelError("Hypertree needs its potentials on one device.")
        if self.root is not None:
            checked_log_table("Hypertree's root", self.root)
            *lead, size = self.root.shape or (0,)
            if size != states - more or not broadcasts(lead, batch):
                raise ModelError(
                    f"Hypertree needs root log-potentials of shape (*batch, {states - more}); got "
                    f"{tuple(self.root.shape)}."
                )
        settle_lengths(self, lengths=shape[-2])
        dtypes = (part.dtype for part in tensors_in(self) if part.is_floating_point())
        dtype = reduce(torch.promote_types, dtypes)
        if dtype != self.unary.dtype:
            object.__setattr__(self, "unary", self.unary.to(dtype))

    @classmethod
    def pcfg(
        cls, root: Tensor, rules: Tensor | Rules, terms: Tensor, *, lengths: Tensor | None = None
    ) -> Self:
        """Parses of sentences by a probabilistic context-free grammar; log Z is log p(words).

        Nonterminals are states 0..NT-1, preterminals NT..NT+PT-1, as in torch-struct's SentCFG.

        Args:
            root: (*batch, NT) log-probabilities of the start symbol.
            rules: (*batch or 1, NT, NT + PT, NT + PT) log-probabilities, [parent, left, right], or
                `LowRankRules` or `FactorisedRules`; a batch dim of 1 is shared.
            terms: (*batch, T, PT) log-probability of each word given each preterminal.
            lengths: (*batch,) of the sentences; default: all T.

        Raises:
            ModelError: shapes that do not fit.
        """
        rules = rules if isinstance(rules, Rules) else DenseRules(rules)
        root, terms = taken("Hypertree's root", root), taken("Hypertree's terms", terms)
        # The potentials of spans are those of their words, else zero.
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
        unary = torch.where(diagonal, words.unsqueeze(-3), zero)
        return cls(unary, rules, root=root, preterminals=terms.shape[-1], lengths=lengths)

    @classmethod
    @typed()
    def parses(cls, grammar: Grammar, sentences: Sequence[Sequence[str]]) -> Self:
        """Parses of sentences by a grammar read from a text, one item for each sentence.

        States are the grammar's symbols; log Z is the log of the summed weights of the trees, and
        -inf where there is none, as for an empty sentence.

        Args:
            grammar: see `read_grammar` and `parse_grammar`.
            sentences: the words of each.

        Raises:
            ModelError: no sentences.
            EvidenceError: a word that no rule has.
        """
        if not sentences:
            raise ModelError("Hypertree.parses needs at least one sentence.")
        # An empty sentence has no tree: it is one word that no symbol derives.
        words = [max(len(sentence), 1) for sentence in sentences]
        total, size = max(words), len(grammar.symbols)
        unary = grammar.log_weights.new_zeros(len(sentences), total, total, size)
        for item, sentence in enumerate(sentences):
            place = torch.arange(len(sentence), device=unary.device)
            unary[item, place, place] = grammar.lexical(sentence)
            if not sentence:
                unary[item, 0, 0] = -math.inf
        lengths = torch.tensor(words, device="cpu")
        return cls(unary, grammar_rules(grammar), root=grammar.start, lengths=lengths)

    @classmethod
    def span_scores(cls, scores: Tensor, *, lengths: Tensor | None = None) -> Self:
        """A tree CRF of order zero: a score for every span, one state, no rules.

        Args:
            scores: (*batch, T, T), [first, last], nats.
            lengths: (*batch,).
        """
        return cls(taken("Hypertree's scores", scores).unsqueeze(-1), lengths=lengths)

    @typed()
    def masked(self, allowed: Tensor) -> Self:
        """A copy with some spans forbidden as constituents.

        Answers are differentiable, at the cost of all spans. ``rdpgraph.pruning.masks_of(hypertree,
        infer)`` gives expectations, log Z and draws in time and memory of the kept spans.

        Args:
            allowed: bool, broadcast to (*batch, T, T), [first, last].

        Raises:
            ModelError: another type, or a shape that does not broadcast.
        """
        shape = tuple(self.unary.shape[:-1])
        if allowed.dtype != torch.bool or not broadcasts(allowed.shape, shape):
            raise ModelError(
                f"masked needs allowed spans as bool (*batch, T, T), to fit {shape}; got "
                f"{allowed.dtype} of shape {tuple(allowed.shape)}."
            )
        return self.with_unary(torch.where(allowed.unsqueeze(-1), self.unary, -math.inf))

    def masks(self) -> Masks:
        """The questions of masks: whether each span is a constituent."""
        return HypertreeMasks(self)

    def score(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, trees: Trees | Tensor
    ) -> Tensor:
        """(*lead, *batch) the summed log-potentials (nats) of trees, differentiable.

        Args:
            trees: (*lead, *batch) trees, or their states (*lead, *batch, T, T) as `mode` gives
                them; -inf for what is not a tree of that length.

        Raises:
            EvidenceError: another shape, or a state out of range.
        """
        states, shape = as_states("Trees", self.site_states(trees)), tuple(self.unary.shape)
        lead = max(states.ndim - len(shape) + 1, 0)
        if tuple(states.shape[lead:]) != shape[:-1] or states.dtype != torch.int64:
            raise EvidenceError(
                f"Hypertree needs trees as int64 states of shape (*lead, *{shape[:-1]}); got "
                f"{states.dtype} of shape {tuple(states.shape)}."
            )
        if states.numel() and int(states.max()) >= shape[-1]:
            raise EvidenceError(
                f"Hypertree of {shape[-1]} states got a tree with state {int(states.max())}."
            )
        counts = math.prod(states.shape[:lead]), math.prod(self.batch_shape)
        flat = states.reshape(*counts, *shape[-2:-1] * 2)
        return self._sum_scores(flat).reshape(states.shape[:-2])

    def _sum_scores(self, states: Tensor) -> Tensor:
        """(R, B) log-potentials of trees (R, B, T, T), -inf for what is no tree; O(T^2) each."""
        count, batch, total, _ = states.shape
        unary, lengths, preterminals = self.flat_unary, self.flat_lengths, self.preterminals
        if not total:
            return unary.sum((1, 2, 3)).expand(count, batch)
        # A tree of n words has its words on the diagonal and n - 1 spans above it.
        place = torch.arange(total, device=states.device)
        last = (lengths - 1).clamp(min=0)
        among = states >= 0
        wide = among & (place.unsqueeze(1) < place)
        words = among.diagonal(dim1=2, dim2=3)
        within = place < lengths.unsqueeze(1)
        fits = (words == within).all(2) & (wide.flatten(2).sum(2) == (lengths - 1).clamp(min=0))
        fits &= ~(among & (place.unsqueeze(1) > place)).flatten(2).any(2)
        # Each span has two parts that are nodes, and a parent that is no tag.
        real, i, j, parent, left, right = branches(states)
        known = unary.shape[3] - preterminals
        fits &= ((left >= 0) & (right >= 0) | ~real).all(2) & ((parent < known) | ~real).all(2)
        triple = (torch.where(parent < known, parent, 0), left, right)
        # Score: rules and spans,
        rules = self.rules.flat(self.batch_shape)
        joint = rules.evaluate(*(part.clamp(min=0).transpose(0, 1).unsqueeze(3) for part in triple))
        joint = joint.reshape(batch, count, real.shape[2]).transpose(0, 1)
        item = torch.arange(batch, device=states.device).unsqueeze(1)
        spans = unary[item, i, j, parent.clamp(0, known - 1)]
        result = torch.where(real, spans + joint, 0.0).sum(2)
        # and words, which have tags where there are any,
        tags = states.diagonal(dim1=2, dim2=3)
        if preterminals:
            fits &= (tags >= known).eq(within).all(2)
        leaves = unary[item, place, place, tags.clamp(min=0)]
        result = result + torch.where(within, leaves, 0.0).sum(2)
        # and the root. What is no tree is -inf.
        item = item.squeeze(1)
        top = states[:, item, 0, last]
        fits &= (top >= 0) | (lengths == 0)
        roots = self.flat_root.expand(batch, -1)[item, top.clamp(min=0)]
        result = result + torch.where(lengths > 0, roots, 0.0)
        return torch.where(fits, result, -math.inf)

    def site_states(self, configuration: Trees | Tensor) -> Tensor:
        """(*lead, *batch, T, T) the states of trees, -1 for spans that are no constituents."""
        return configuration.states if isinstance(configuration, Trees) else configuration

    def span_marginals(self) -> Tensor:
        """(*batch, T, T) the probability that a span is a constituent, in any state."""
        return self.marginals().sum(-1)

    @by_autograd
    def rule_marginals(self) -> tuple[Tensor, ...]:
        """Gradients of log Z in the tensors of the rules, each with all batch dims in front.

        The expected uses of each rule: (*batch, N, C, C) for `DenseRules`, (*batch, M) for
        `SparseRules`. For rules of low rank one tensor for each factor, (*batch, N or C, r): the
        expected uses of a rank by each state as parent, left or right part. Empty for `NoRules`.
        """
        unary, rules, root = self.flat_unary, self.rules.flat(self.batch_shape), self.root
        rules = rules.with_parts([part.expand(len(unary), *part.shape[1:]) for part in rules.parts])
        if root is not None:
            root = flat(root, 1, self.batch_shape).expand(len(unary), -1)
        one = replace(self, unary=unary, rules=rules, root=root, lengths=self.flat_lengths)
        _, gradients = expectations(
            lambda *parts: replace(one, rules=rules.with_parts(parts)).log_partition(),
            rules.parts, tracked=is_tracked(self),
        )  # fmt: skip
        return tuple(part.reshape([*self.batch_shape, *part.shape[1:]]) for part in gradients)

    def restrict(self, states: Tensor, log_weights: Tensor) -> RestrictedHypertree:
        """The trees on some states of each span, with weights, as estimators solve them.

        A tree uses a span once at most, so Z is unbiased if the weights of each span are.

        Args:
            states: (*replicates, *batch, T, T, kept); repeats stay separate.
            log_weights: of that shape; added to the potentials.

        Raises:
            ModelError: shapes that do not fit, or a state out of range.
        """
        unary = gathered(self.name, self._span_potentials(), states, log_weights, sites=2)
        return RestrictedHypertree(unary, states, self)

    def _span_potentials(self) -> Tensor:
        """(*batch, T, T, C) potentials, -inf for what is no span, the root's added to the whole."""
        lengths, total = self.flat_lengths, self.unary.shape[-2]
        values = self.potentials(self.flat_unary)
        place = torch.arange(total, device=values.device)
        allowed = (place.unsqueeze(1) <= place) & (place < lengths.reshape(-1, 1, 1))
        values = torch.where(allowed.unsqueeze(3), values, -math.inf)
        if total:
            item = torch.arange(len(values), device=values.device)
            values[item, 0, (lengths - 1).clamp(min=0)] += self.flat_root
        return values.reshape(self.unary.shape)

    def _compared(self, other: Recurrence) -> tuple[Bound, Bound]:
        if not isinstance(other, Hypertree) or other.unary.shape != self.unary.shape:
            return super()._compared(other)
        lengths = self.flat_lengths, other.flat_lengths
        if self.preterminals != other.preterminals or not torch.equal(*lengths):
            raise ModelError(
                "Hypertrees can be compared only if their preterminals and lengths agree; got "
                f"{self.preterminals} and {other.preterminals}, lengths {lengths[0].tolist()} and "
                f"{lengths[1].tolist()}."
            )
        one, two = self.written_out(), other.written_out()
        lists = [each.rules for each in (one, two) if isinstance(each.rules, SparseRules)]
        if type(one.rules) is not type(two.rules) or (lists and not lists[0].is_like(lists[-1])):
            one, two = self.with_table(), other.with_table()
        return super(Hypertree, one)._compared(two)

    def viterbi(self) -> Trees:
        """(*batch) one most probable tree of each item. Not differentiable; see `score`.

        Raises:
            ImpossibleEvidenceError: an item has no possible tree.
            BudgetError: written out, rules of low rank are too large.
        """
        return Trees(self.mode())

    def k_best(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, k: int
    ) -> KBestTrees:
        """The k most probable trees of each item, best first; the scores are differentiable.

        Raises:
            ModelError: k below 1.
            BudgetError: written out, rules of low rank are too large.
        """
        listed = super().k_best(k)
        return KBestTrees(Trees(listed.states), listed.scores)

    def mbr(self) -> Trees:
        """(*batch) trees with the most expected constituents, their states included.

        Maximises the summed marginals of constituents (Goodman 1996, labelled recall); the rules
        need not allow the tree. Two inside passes; not differentiable.

        Raises:
            ImpossibleEvidenceError: an item has no possible tree.
        """
        possible = self.log_partition().detach() > -math.inf
        require_possible("A hypertree has no best tree", possible)
        weights, states = self.marginals().detach().max(-1)
        shape = Hypertree.span_scores(weights, lengths=self.lengths).mode()
        return Trees(torch.where(shape >= 0, states, -1))

    def factor_graph(self) -> FactorGraph:
        """Spans as variables, with a factor each, and one factor over all: that they form a tree.

        The last state of a span, N, is for no constituent. T^2 variables, of all spans.
        """
        unary = torch.cat([self.unary, torch.zeros_like(self.unary[..., :1])], -1)
        real = self._real.unsqueeze(-1)
        return structure_graph(self, torch.where(real, unary, 0.0))

    @classmethod
    def recognise(cls, graph: FactorGraph) -> Match | None:
        """Trees as `factor_graph` writes them, in any order; other factors are over one span."""
        match = recognised_factor(cls, graph)
        if match is None or not match[2].numel():
            return None
        trees, unary, numbers = match
        unary, none = unary[..., :-1], unary[..., -1]
        # A span that cannot be none is in the tree if, and only if, none that crosses it is.
        required = trees._real & (none == -math.inf)
        free = torch.where(required, 0.0, none)
        crossing = crossed(torch.where(required, 0.0, -math.inf).to(none)) > -math.inf
        unary = (unary - torch.where(trees._real, free, 0.0).unsqueeze(-1)).masked_fill(
            crossing.unsqueeze(-1), -math.inf
        )
        root = free.flatten(-2).sum(-1, keepdim=True)
        words = 1 if trees.lengths is None else trees.lengths.unsqueeze(-1)
        if bool(((root != 0) & torch.as_tensor(words == 0)).any()):
            return None  # potentials of an item without words have no place in a tree
        if trees.root is None:
            root = root.expand(*root.shape[:-1], unary.shape[-1] - trees.preterminals)
        else:
            root = trees.root + root
        return Match(replace(trees, unary=trees.unary + unary, root=root), numbers)

    def variable_values(self, values: Tensor, *, best: bool) -> Tensor:
        """Values with the last state, for spans that are no constituents."""
        if not best:
            none = (1.0 - values.sum(-1, keepdim=True)).clamp(min=0.0)
        else:
            most = values.amax(-1)
            top = most.amax((-2, -1), keepdim=True)
            if self.lengths is not None:  # the tree over no word has the score 0
                empty = (self.lengths == 0).to(top.device).reshape(*self.lengths.shape, 1, 1)
                top = torch.where(empty, 0.0, top)
            none = torch.where(self._real, crossed(most), top).unsqueeze(-1)
        return torch.cat([values, none], -1)

    @property
    def _real(self) -> Tensor:
        """(*batch, T, T) the spans within the length."""
        total = self.unary.shape[-2]
        place = torch.arange(total, device=self.unary.device)
        real = place.unsqueeze(1) <= place
        return real if self.lengths is None else real & inside(self.lengths, total).unsqueeze(-2)

    def sites(self) -> Sites:
        """The spans that trees can have, with the root's potentials at the whole.

        On a few states of each span, all products of the states kept of its parts are summed; since
        a tree uses a span once, Z is unbiased if each span's weights are. The printed eq. 18 of Fu,
        Cunningham and Lapata 2022 lacks the terms of a top state and a sampled one, and is biased.

        A state's mean factor value is the mean rule with it as parent, if the span has parts, times
        that with it as a part, unless it is the whole; over random states of the other two, or all
        of them with `LowRankRules` and `SparseRules`.
        """
        unary = self._span_potentials().detach()
        return Sites(unary, restrict=self.restrict, means=partial(_mean_values, self))

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
        return super(Hypertree, trees)._bind(other, ranks=ranks, **how)

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


def grammar_rules(grammar: Grammar) -> DenseRules | SparseRules:
    """The rules of a grammar as a table or a list, whichever is faster and fits."""
    states, rules, weights = len(grammar.symbols), grammar.rules, grammar.log_weights
    entries = float(states) ** 3
    fits = entries * weights.element_size() <= grammar.memory_bytes
    if fits and entries <= tuning.DENSE_RULES * len(rules):
        return DenseRules(grammar.log_rules)
    if not len(rules):  # words only: one rule that forbids itself
        rules, weights = rules.new_zeros(1, 3), weights.new_full((1,), -math.inf)
    return SparseRules(rules, weights, parents=states)


@torch.no_grad()
def _mean_values(tree: Hypertree, landmarks: int, generator: torch.Generator | None) -> Tensor:
    """(*batch, T, T, C) log mean rules of a state as a parent and as a part."""
    lengths, (total, children) = tree.flat_lengths, tree.unary.shape[-2:]
    states, rules = children - tree.preterminals, tree.rules.flat(tree.batch_shape)
    # The mean weight of rules with a state as the parent, or as a part: exactly from ranks or
    # lists, else over some random states of the others.
    if isinstance(tree.rules, NoRules):
        return tree.unary.new_zeros((*tree.batch_shape, 1, 1, 1))
    if isinstance(rules, LowRankRules):
        parent, part = _means_by_rank(rules)
    elif isinstance(rules, SparseRules):
        parent, part = _means_of_list(rules)
    else:
        device = tree.unary.device
        where = device if generator is None else generator.device
        asked = [
            torch.randint(size, (1, landmarks), generator=generator, device=where).to(device)
            for size in (states, children, children)
        ]
        parent, part = _means(rules, asked, states, children)
    parent = pad(parent, (0, children - states))
    place = torch.arange(total, device=parent.device)
    # A span of several words is a parent, and all but the whole sentence are parts: their sum in
    # logs is the product of both means.
    wide = place.unsqueeze(1) < place
    whole = (place.unsqueeze(1) == 0) & (place == lengths.reshape(-1, 1, 1) - 1)
    above = torch.where(wide.unsqueeze(-1), parent[:, None, None], 0.0)
    below = torch.where(whole.unsqueeze(-1), 0.0, part[:, None, None])
    means = above + below
    return means.reshape(
        *(tree.batch_shape if len(means) == len(lengths) else ()), *means.shape[1:]
    )


def _means_by_rank(rules: LowRankRules) -> tuple[Tensor, Tensor]:
    """(R, N) and (R, C), over all states, from ranks."""
    parent, left, right = (_log_mean(part, 1) for part in rules.parts)
    above = torch.logsumexp(rules.parent + left + right, 2)
    by_left = torch.logsumexp(rules.left + parent + right, 2)
    by_right = torch.logsumexp(rules.right + parent + left, 2)
    return above, torch.logaddexp(by_left, by_right) - math.log(2)


def _means_of_list(rules: SparseRules) -> tuple[Tensor, Tensor]:
    """(R, N) and (R, C), over all states, from listed rules."""
    (states, children), weights = rules.shape, rules.log_weights.mT
    parent, left, right = rules.triples.unbind(1)
    above = soft_scatter(weights, parent, states) - 2 * math.log(children)
    parts = (soft_scatter(weights, side, children) for side in (left, right))
    below = torch.logaddexp(*parts) - math.log(2 * states * children)
    return above.mT, below.mT


def _means(rules: Rules, asked: list[Tensor], states: int, children: int) -> tuple[Tensor, Tensor]:
    """(R, N) and (R, C), over grids of sampled parents, left and right parts, each (1, count)."""
    batch = max([len(part) for part in rules.parts], default=1)
    parents, left, right = (part.expand(batch, -1) for part in asked)
    every = torch.arange(children, device=left.device).expand(batch, -1)
    above = _log_mean(rules.evaluate(every[:, :states], left, right).flatten(2), 2)
    by_left = _log_mean(rules.evaluate(parents, every, right).transpose(1, 2).flatten(2), 2)
    by_right = _log_mean(rules.evaluate(parents, left, every).movedim(3, 1).flatten(2), 2)
    means = above.squeeze(2), torch.logaddexp(by_left, by_right).squeeze(2) - math.log(2)
    return means


def _log_mean(logs: Tensor, dim: int) -> Tensor:
    """Log of the mean of exponentials, the dim kept."""
    return logs.logsumexp(dim, keepdim=True) - math.log(max(1, logs.shape[dim]))
