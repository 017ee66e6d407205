"""Hypertrees: distributions over the binary trees of sequences."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor

from rdpgraph._core.arguments import typed
from rdpgraph._core.types import ArrayLike
from rdpgraph.errors import ModelError
from rdpgraph.interface.masks import Masks
from rdpgraph.interface.sites import Sites
from rdpgraph.interface.structure import Match
from rdpgraph.io.grammar import Grammar
from rdpgraph.logspace.gradients import by_autograd
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.potentials.table import as_states, taken
from rdpgraph.model.restriction import gathered
from rdpgraph.model.soundness import require_possible
from rdpgraph.recurrences.bound import Bound
from rdpgraph.structures.chain.factors import inside
from rdpgraph.structures.checks import checked_mask, checked_trees
from rdpgraph.structures.grammar import batched
from rdpgraph.structures.grammar.kept import RestrictedHypertree
from rdpgraph.structures.grammar.masks import HypertreeMasks
from rdpgraph.structures.grammar.rules import DenseRules, Rules
from rdpgraph.structures.grammar.spans import (
    HypertreeFields,
    grammar_rules,
    pcfg_unary,
    sentence_unary,
)
from rdpgraph.structures.grammar.sparse_rules import SparseRules
from rdpgraph.structures.grammar.trees import KBestTrees, Trees, crossed
from rdpgraph.structures.recurrence import Recurrence
from rdpgraph.structures.structure_potential import recognised_factor, structure_graph


@dataclass(frozen=True, eq=False)
class Hypertree(HypertreeFields):
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
        unary = pcfg_unary(root, rules, terms)
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
        unary, lengths = sentence_unary(grammar, sentences)
        rules = grammar_rules(grammar)
        return cls(unary, rules, root=grammar.start, lengths=lengths)

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
        checked_mask(allowed, self.unary.shape)
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
        states = as_states("Trees", self.site_states(trees))
        lead = checked_trees(states, self.unary.shape)
        flat = states.reshape(math.prod(lead), math.prod(self.batch_shape), *states.shape[-2:])
        return batched.score(self, flat).reshape(states.shape[:-2])

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
        return tuple(batched.rule_uses(self))

    def restrict(self, states: Tensor, log_weights: Tensor) -> RestrictedHypertree:
        """The trees on some states of each span, with weights, as estimators solve them.

        A tree uses a span once at most, so Z is unbiased if the weights of each span are.

        Args:
            states: (*replicates, *batch, T, T, kept); repeats stay separate.
            log_weights: of that shape; added to the potentials.

        Raises:
            ModelError: shapes that do not fit, or a state out of range.
        """
        unary = self.potentials(self.unary)
        unary = gathered(self.name, unary, states, log_weights, sites=2)
        return RestrictedHypertree(unary, states, self)

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
        means = partial(batched.mean_values, self)
        unary = batched.site_unary(self)
        return Sites(unary, restrict=self.restrict, means=means)
