"""Hypertrees: distributions over the binary trees of sequences."""

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from rdpgraph.errors import (
    EvidenceError,
    ImpossibleEvidenceError,
    ModelError,
    UnsupportedError,
)
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.structure import Structure
from rdpgraph.structures.hypertree import best, inside, kbest, moments, plain
from rdpgraph.structures.hypertree.charts import Parts
from rdpgraph.structures.hypertree.checks import (
    checked_lengths,
    checked_root,
    checked_rules,
    checked_unary,
)
from rdpgraph.structures.hypertree.descent import Pick, descend, drawn, largest
from rdpgraph.structures.hypertree.ranks import Ranks, kernel_form
from rdpgraph.structures.hypertree.restricted import RestrictedHypertree
from rdpgraph.structures.hypertree.rules import DenseRules, NoRules, Rules
from rdpgraph.structures.hypertree.score import score
from rdpgraph.structures.hypertree.trees import KBestTrees, Trees


@dataclass(frozen=True, eq=False)
class Hypertree(Structure):
    """Binary trees over the words of a sequence: spans with states, and rules that join two.

    The score of a tree is the sum of `unary` over its constituents, single words included, of the
    rules at its inner nodes, and of `root` at the whole. A sequence of one word is one leaf; one
    of no words has the empty tree, log Z 0. Sites are spans: those that are no constituent have
    state -1 in `mode` and `sample`, and the marginals of a span sum to the probability that it is
    one. Items without a possible tree have log Z -inf, and marginals, gradients and entropy zero.

    Every answer but trees is differentiable. log Z costs O(T^2 N^3 + T^3 N^2) with `DenseRules`,
    O(T^3 r + T^2 N r) with `LowRankRules`, O(T^2 N + T^3) with `NoRules`, and memory O(T^2 (N + r))
    for its gradient (O(T^2 N + T N^2) with dense rules).

    Args:
        unary: (*batch, T, T, N) log-potentials (nats), [first, last, state], both words included;
            -inf forbids a span. What lies below the diagonal and beyond the length is ignored.
        rules: log-weights of a state given those of its two parts.
        root: (*batch, N - preterminals) log-potential of the state of the whole; default: zeros.
        preterminals: how many of the states, the last ones, are for single words alone; if there
            are any, single words have none but those, and a sequence of one word has no tree.
        lengths: (*batch,) integers in 0..T; default: all T.

    Raises:
        ModelError: shapes that do not fit, NaN or +inf, a length out of range.

    Example:
        >>> Hypertree(torch.zeros(4, 4, 1)).log_partition().exp()  # the binary trees of 4 words
        tensor(5.)
    """

    rules: Rules = field(default_factory=NoRules)
    root: Tensor | None = field(default=None, kw_only=True)
    preterminals: int = field(default=0, kw_only=True)
    lengths: Tensor | None = field(default=None, kw_only=True, metadata={"dims": 0})

    def __post_init__(self) -> None:
        checked_unary(self.unary)
        checked_rules(self.rules, self.unary, self.preterminals)
        checked_root(self.root, self.unary, self.preterminals)
        if self.lengths is not None:
            total = self.unary.shape[-2]
            lengths = checked_lengths("Hypertree", self.lengths, self.batch_shape, total)
            object.__setattr__(self, "lengths", lengths.to(self.unary.device))

    @classmethod
    def pcfg(
        cls, root: Tensor, rules: Tensor | Rules, terms: Tensor, *, lengths: Tensor | None = None
    ) -> Self:
        """The parses of sentences by a probabilistic context-free grammar; log Z is log p(words).

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
        rules = DenseRules(rules) if isinstance(rules, Tensor) else rules
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
        total = terms.shape[-2]
        diagonal = torch.eye(total, dtype=torch.bool, device=terms.device).unsqueeze(-1)
        unary = torch.where(diagonal, words.unsqueeze(-3), torch.zeros((), dtype=words.dtype))
        return cls(unary, rules, root=root, preterminals=children - parents, lengths=lengths)

    @classmethod
    def span_scores(cls, scores: Tensor, *, lengths: Tensor | None = None) -> Self:
        """A tree CRF of order zero: a score for every span, one state, no rules.

        Args:
            scores: (*batch, T, T), [first, last], nats.
            lengths: (*batch,).
        """
        return cls(scores.unsqueeze(-1), lengths=lengths)

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """The dims in front."""
        return tuple(self.unary.shape[:-3])

    def log_partition(self) -> Tensor:
        """(*batch,) log Z in nats, by the inside recursion; twice differentiable.

        Source: Baker 1979; Lari and Young 1990; low rank: Yang, Zhao and Tu 2021
        (arXiv:2104.13727).
        """
        return self._shaped(inside.log_partition(self._parts(), self._root()))

    def score(self, states: Tensor) -> Tensor:
        """(*lead, *batch) the summed log-potentials (nats) of trees, differentiable.

        Args:
            states: (*lead, *batch, T, T) as `Trees.states`; what is no tree of that length has
                score -inf.

        Raises:
            EvidenceError: another shape, or a state out of range.
        """
        shape = self.unary.shape
        lead = states.shape[: max(states.ndim - len(shape) + 1, 0)]
        if states.shape[len(lead) :] != shape[:-1] or states.dtype != torch.int64:
            raise EvidenceError(
                f"Hypertree needs trees as int64 states of shape (*lead, *{tuple(shape[:-1])}); "
                f"got {states.dtype} of shape {tuple(states.shape)}."
            )
        if states.numel() and int(states.max()) >= shape[-1]:
            raise EvidenceError(
                f"Hypertree of {shape[-1]} states got a tree with state {int(states.max())}."
            )
        flat = states.reshape(math.prod(lead), self._batch, *shape[-3:-1])
        found = score(flat, self._parts(plain_rules=True), self._root(), self._flat_rules)
        return found.reshape([*lead, *self.batch_shape])

    def log_prob(self, states: Tensor) -> Tensor:
        """The log-probabilities of trees, (*lead, *batch, T, T) as (*lead, *batch)."""
        log_z = self.log_partition()
        alive = log_z.detach() > -math.inf
        return torch.where(alive, self.score(states) - torch.where(alive, log_z, 0.0), -math.inf)

    def span_marginals(self) -> Tensor:
        """(*batch, T, T) the probability that a span is a constituent, in whatever state."""
        return self.marginals().sum(-1)

    def rule_marginals(self) -> tuple[Tensor, ...]:
        """The gradients of log Z in the tensors of the rules, each with all batch dims in front.

        Of `DenseRules` one tensor (*batch, N, C, C): the expected number of uses of each rule. Of
        rules of low rank, one for each factor, (*batch, N or C, r): the expected number of uses of
        a rank by each state as parent, left or right part. Nothing for `NoRules`.
        """
        wide = self._expanded_rules(self.rules)
        _, found = moments.gradients(wide, wide.rules.parts)
        return tuple(part.reshape([*self.batch_shape, *part.shape[1:]]) for part in found)

    def entropy(self) -> Tensor:
        """(*batch,) nats; 0 where no tree is possible. Differentiable.

        Log Z less the expected score. Rules of low rank are written out, for their trees' scores
        are those of whole rules.

        Raises:
            BudgetError: written out, the rules are too large.
        """
        rules = self.rules
        if not isinstance(rules, NoRules):
            rules = DenseRules(rules.table(self._states, self.unary.shape[-1]))
        return self._shaped(moments.entropy(self._expanded_rules(rules)))

    def viterbi(self) -> Trees:
        """(*batch) one most probable tree of each item. Not differentiable; see `score`.

        Raises:
            ImpossibleEvidenceError: an item has no possible tree.
            BudgetError: rules of low rank that are too large when written out.
        """
        return Trees(self.mode())

    def mode(self) -> Tensor:
        """(*batch, T, T) the states of the constituents of one most probable tree, else -1.

        Raises:
            ImpossibleEvidenceError: an item has no possible tree.
            BudgetError: rules of low rank that are too large when written out.
        """
        parts, root = self._best_parts
        rows = self._best_rows
        return self._descended(parts, rows, root, 1, largest, 0.0).squeeze(0)

    def max_marginals(self) -> Tensor:
        """(*batch, T, T, N) the score of the best tree with each constituent; -inf where none is.

        Costs what `mode` does, twice. Not differentiable.

        Raises:
            BudgetError: rules of low rank that are too large when written out.
        """
        if not self._batch or not self.unary.shape[-2]:
            return self.unary.detach()
        parts, root = self._best_parts
        found = best.max_marginals(parts, self._best_rows, root)
        return found.to(self.unary.dtype).reshape(self.unary.shape)

    def k_best(self, k: int) -> KBestTrees:
        """The k most probable trees of each item, best first; the scores are differentiable.

        Items are taken one by one, with the lazy lists of Huang and Chiang 2005, algorithm 3.

        Raises:
            ModelError: k below 1.
            BudgetError: rules of low rank that are too large when written out.
        """
        if k < 1:
            raise ModelError(f"k_best needs k >= 1; got {k}.")
        parts, root = self._best_parts
        states = kbest.k_best(parts, self._best_rows, root, k)
        states = states.reshape([k, *self.unary.shape[:-1]])
        scores = self.score(states)
        absent = (states < 0).flatten(-2).all(-1)
        if self.lengths is not None:
            first = torch.arange(k, device=states.device).reshape(-1, *(1,) * self.lengths.ndim)
            absent = absent & ((self.lengths > 0) | (first > 0))
        return KBestTrees(Trees(states), torch.where(absent, -math.inf, scores))

    def mbr(self) -> Trees:
        """(*batch) trees of the largest expected number of right constituents, with their states.

        The maximum of the summed marginals of constituents (Goodman 1996, labelled recall), which
        the rules need not allow. Two inside passes; not differentiable.

        Raises:
            ImpossibleEvidenceError: an item has no possible tree.
        """
        with torch.no_grad():
            _require_possible(self.log_partition())
        weights, states = self.marginals().detach().max(-1)
        shape = Hypertree.span_scores(weights, lengths=self.lengths).mode()
        return Trees(torch.where(shape >= 0, states, -1))

    def sample(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """(count, *batch, T, T) independent exact draws, as `mode` gives its tree.

        One inside pass in doubles, then top-down; ``Trees(hypertree.sample(10))``.

        Raises:
            ImpossibleEvidenceError: an item has no possible tree.
        """
        if count < 0:
            raise ModelError(f"A hypertree needs a count of draws >= 0; got {count}.")
        parts = self._parts().to(torch.float64)
        root = self._root().double()
        return self._descended(parts, inside.charts(parts), root, count, drawn(generator), 1.0)

    def rsample(
        self, count: int, *, temperature: float, generator: torch.Generator | None = None
    ) -> Tensor:
        """(count, *batch, T, T, N) relaxed trees, differentiable: a stochastic softmax.

        The marginals at a temperature of the model with Gumbel noise on every span; as the
        temperature falls to 0, they become the best tree of the noisy model, which is not an exact
        draw of this one (Paulus et al. 2020, arXiv:2006.08063).

        Args:
            count: how many.
            temperature: above 0.
            generator: the randomness.

        Raises:
            ModelError: another temperature.
            BudgetError: rules of low rank that are too large when written out.
        """
        if not 0 < temperature < math.inf:
            raise ModelError(
                f"Relaxed samples need a temperature above 0, and finite; got {temperature}."
            )
        shape = (count, *self.unary.shape)
        device = self.unary.device
        noise = torch.rand(shape, generator=generator, dtype=torch.float64, device=device)
        noise = -(-noise.clamp_(min=2.0**-54).log_()).log_().to(self.unary)
        root = None if self.root is None else self.root / temperature
        lengths = None if self.lengths is None else self.lengths.expand(count, *self.batch_shape)
        unary = (self.unary + noise) / temperature
        rules = self.rules.scaled(1.0 / temperature)
        relaxed = replace(self, unary=unary, rules=rules, root=root, lengths=lengths)
        return relaxed.marginals()

    def restrict(self, states: Tensor, log_weights: Tensor) -> RestrictedHypertree:
        """The hypertree on some states of each span, with weights; what estimators solve.

        All products of kept states of the two parts enter, whatever made them be kept; as a tree
        uses a span once, Z is unbiased if each span's weights are. The printed eq. 18 of Fu,
        Cunningham and Lapata 2022 lacks the terms of a top state and a sampled one, and is not.

        Args:
            states: (*replicates, *batch, T, T, K); repeats stay separate.
            log_weights: of that shape; added to the unary potentials.

        Raises:
            ModelError: shapes that do not fit, or a state out of range.
        """
        shape = tuple(self.unary.shape)
        fits = states.shape == log_weights.shape and states.ndim >= len(shape)
        if not fits or tuple(states.shape[-len(shape) : -1]) != shape[:-1]:
            raise ModelError(
                f"Hypertree.restrict needs states and log_weights (*replicates, *{shape[:-1]}, "
                f"kept); got {tuple(states.shape)} and {tuple(log_weights.shape)}."
            )
        if states.numel() and (int(states.min()) < 0 or int(states.max()) >= shape[-1]):
            raise ModelError(f"Hypertree.restrict of {shape[-1]} states got one out of range.")
        lead = tuple(states.shape[:-3])
        unary = self.unary.expand(*lead, *shape[-3:])
        if self.preterminals:
            total = shape[-2]
            word = torch.eye(total, dtype=torch.bool, device=unary.device).unsqueeze(-1)
            single = torch.arange(shape[-1], device=unary.device) >= self._states
            unary = torch.where(word == single, unary, -math.inf)
        kept = unary.gather(-1, states) + log_weights
        lengths = None if self.lengths is None else self.lengths.expand(lead)
        return RestrictedHypertree(kept, states, self, lengths=lengths)

    def factor_graph(self) -> FactorGraph:
        """There is none.

        Raises:
            UnsupportedError: always.
        """
        raise UnsupportedError(
            "A Hypertree is no factor graph of few variables, and cannot be turned into one; ask "
            "its own methods."
        )

    def work(self) -> float:
        """The multiply-adds of log Z."""
        total, states = self.unary.shape[-2], self._states
        spans, splits = total**2 / 2, total**3 / 6
        form, _ = kernel_form(self._flat_rules, self._parts_spans[:0], self.unary.shape[-1])
        if isinstance(form, Ranks):
            rank = form.left.shape[2]
            run = 1 if form.parent is None else states
            return self._batch * (splits * rank + spans * rank * (2 * states + run))
        return self._batch * (spans * states**3 + splits * states**2)

    @property
    def _states(self) -> int:
        """Of spans of two words and more."""
        return self.unary.shape[-1] - self.preterminals

    @cached_property
    def _batch(self) -> int:
        return math.prod(self.batch_shape)

    @cached_property
    def _flat_rules(self) -> Rules:
        return self.rules.flat(self.batch_shape)

    @cached_property
    def _parts_spans(self) -> Tensor:
        return self.unary.reshape(self._batch, *self.unary.shape[-3:])[..., : self._states]

    def _parts(self, *, plain_rules: bool = False) -> Parts:
        """The hypertree as the kernels take it; without rules, where those are not to be read."""
        unary = self.unary.reshape(self._batch, *self.unary.shape[-3:])
        spans = unary[..., : self._states]
        first = self._states if self.preterminals else 0
        leaves = unary.diagonal(dim1=1, dim2=2).mT[..., first:]
        rules = NoRules() if plain_rules else self._flat_rules
        form, spans = kernel_form(rules, spans, unary.shape[-1])
        return _alike(Parts(leaves, spans, form, self._flat_lengths(), self.preterminals > 0))

    def _root(self) -> Tensor:
        """(1 or B, C)."""
        if self.root is None:
            root = self.unary.new_zeros(1, self._states)
        elif self.root.ndim == 1:
            root = self.root.unsqueeze(0)
        else:
            root = self.root.expand(*self.batch_shape, -1).reshape(self._batch, -1)
        return pad(root, (0, self.preterminals), value=-math.inf)

    @cached_property
    def _best_parts(self) -> tuple[Parts, Tensor]:
        """The same for maxima, in doubles: of low rank is only what has a single one."""
        parts = self._parts()
        if isinstance(parts.rules, Ranks) and not isinstance(self.rules, NoRules):
            table = self.rules.table(self._states, self.unary.shape[-1])
            parts = replace(self, rules=DenseRules(table))._parts()
        return parts.to(torch.float64), self._root().double()

    @cached_property
    def _best_rows(self) -> list[Tensor]:
        parts, _ = self._best_parts
        with torch.no_grad():
            return plain.with_leaves(parts, plain.exact(parts, 0.0))

    def _descended(
        self, parts: Parts, rows: list[Tensor], root: Tensor, count: int, pick: Pick,
        temperature: float,
    ) -> Tensor:  # fmt: skip
        found = descend(parts, rows, root, count, pick, temperature)
        lost = (found < 0).flatten(1).all(1) & (parts.lengths.repeat(count) > 0)
        if bool(lost.any()):
            raise ImpossibleEvidenceError(
                "A hypertree has no samples and no mode: at least one item has no possible tree."
            )
        return found.reshape([count, *self.unary.shape[:-1]])

    def _expanded_rules(self, rules: Rules) -> "Hypertree":
        """One flat batch dim, the rules' own for each item."""
        batch = (self._batch,)
        flat = rules.flat(self.batch_shape)
        each = [part.expand(*batch, *part.shape[1:]) for part in flat.parts]
        unary = self.unary.reshape(*batch, *self.unary.shape[-3:])
        root = self.root
        if root is not None:
            root = root.expand(*self.batch_shape, -1).reshape(*batch, -1)
        lengths = self._flat_lengths()
        return replace(self, unary=unary, rules=flat.with_parts(each), root=root, lengths=lengths)

    def _flat_lengths(self) -> Tensor:
        if self.lengths is not None:
            return self.lengths.reshape(-1)
        return torch.full((self._batch,), self.unary.shape[-2], device=self.unary.device)

    def _shaped(self, values: Tensor) -> Tensor:
        return values.reshape([*self.batch_shape, *values.shape[1:]])


def _alike(parts: Parts) -> Parts:
    """Spans and rules of one floating type."""
    dtype = parts.spans.dtype
    for part in parts.rules.parts:
        dtype = torch.promote_types(dtype, part.dtype)
    same = all(part.dtype == dtype for part in parts.tensors)
    return parts if same else parts.to(dtype)


def _require_possible(log_z: Tensor) -> None:
    if not bool((log_z > -math.inf).all()):
        raise ImpossibleEvidenceError(
            "A hypertree has no best tree: at least one item has no possible one."
        )
