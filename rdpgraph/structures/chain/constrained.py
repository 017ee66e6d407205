"""Hidden Markov models of words that an automaton accepts, by exact look-ahead."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph._core.cache import cached_property
from rdpgraph._core.numbers import is_whole
from rdpgraph._core.types import ArrayLike
from rdpgraph.errors import BudgetError, EvidenceError, ImpossibleEvidenceError, ModelError
from rdpgraph.interface.structure import summary
from rdpgraph.logspace.logmatrix import LogMatrix, log_products, soft_scatter, soft_sum
from rdpgraph.model.potentials.automaton import Automaton
from rdpgraph.model.potentials.lowrank import LowRank
from rdpgraph.model.potentials.operators import PairOperator
from rdpgraph.model.potentials.table import as_states, settle
from rdpgraph.structures.chain.constructors import hmm_unary


@dataclass(frozen=True, eq=False)
class LookAhead:
    """Log-probabilities of words and of acceptance to come, from states that are known.

    Attributes:
        transition: (N, N) log-probabilities, of low rank, or an operator.
        emission: (N, V) log-probabilities, or of low rank.
        automaton: over V words.
        dtype: of all numbers.
    """

    transition: Tensor | LowRank | PairOperator
    emission: Tensor | LowRank
    automaton: Automaton
    dtype: torch.dtype

    def seen(self, states: Tensor, words: Tensor) -> tuple[Tensor, Tensor]:
        """(B, N) the next hidden states after a word each, and (B,) the words' log-probabilities.

        Args:
            states: (B, N) log-probabilities of the hidden states that emit the words.
            words: (B,).
        """
        states = states + self._masses(self._shares[words])
        total = soft_sum(states, 1)
        states = states - torch.where(total > -math.inf, total, 0.0).unsqueeze(1)
        for factor in self._onward:
            states = _sums(factor, states)
        return states, total

    def joint(self, states: Tensor, place: Tensor, left: Tensor) -> Tensor:
        """(2, B, V) log-probabilities of the next word, with acceptance and without it.

        Args:
            states: (B, N) log-probabilities of the next hidden state.
            place: (B,) states of the automaton.
            left: (B,) how many words are to come, that one included.
        """
        degrees = self._graph.counts[place] * (left > 0)
        many, words = 1 + int(degrees.max()) if len(degrees) else 1, len(self._shares)
        width = tuning.per_block(many * states.shape[1] + 2 * words, tuning.LARGE_BLOCK)
        split = (part.split(width) for part in (states, place, left, degrees))
        parts = [self._joined(*part) for part in zip(*split, strict=True)]
        return torch.cat(parts, 1) if parts else states.new_zeros(2, 0, words)

    def _joined(self, states: Tensor, place: Tensor, left: Tensor, degrees: Tensor) -> Tensor:
        """`joint` of few sequences: a row for each of their next automaton states."""
        graph, batch = self._graph, len(degrees)
        rows = int(degrees.sum())
        item = torch.arange(batch, device=degrees.device).repeat_interleave(degrees)
        number = torch.arange(rows, device=degrees.device)
        after = graph.after[graph.first[place[item]] + number - (degrees.cumsum(0) - degrees)[item]]
        pairs = (left[item] - 1) * len(graph.counts) + after
        unique, inverse = pairs.unique(return_inverse=True)
        ahead = self._ahead(unique // len(graph.counts), unique % len(graph.counts))
        mixed = self._mixed(torch.cat([ahead[inverse] + states[item], states]))
        # One row more, of what is impossible: that is where dead words look.
        mixed = torch.cat([mixed, mixed.new_full((1, mixed.shape[1]), -math.inf)])
        where = number.new_full((batch, len(graph.counts)), rows + batch)
        where[item, after] = number
        plain = rows + torch.arange(batch, device=number.device).unsqueeze(1)
        where = where.gather(1, graph.table[place])
        where = torch.stack([where, plain.expand_as(where)])  # (2, B, C)
        both = states.new_empty(2, batch, len(self._shares))
        for kind, (words, matrix) in self._large.items():
            both[..., words] = matrix.times(mixed[where[..., kind]])
        words, kinds, shares = self._small
        step = tuning.per_block(2 * shares.numel(), tuning.LARGE_BLOCK)
        for part in torch.arange(batch, device=words.device).split(step):
            values = soft_sum(mixed[where[:, part][..., kinds]] + shares, 3)
            both[:, part.unsqueeze(1), words] = values
        return both

    def _ahead(self, left: Tensor, place: Tensor) -> Tensor:
        """(R, N) log-probabilities of acceptance, so many words later, from pairs of states."""
        ends = self.automaton.log_accept.detach().to(self.dtype)[place].unsqueeze(1)
        values = self._over_states(self._messages[left, place])
        return torch.where((left > 0).unsqueeze(1), values, ends)

    @cached_property
    def _messages(self) -> Tensor:
        """(T, Q, r or N) log-probabilities of acceptance after so many words, that of 0 aside."""
        graph = self._graph
        ends = self.automaton.log_accept.detach().to(self.dtype)
        message = ends.unsqueeze(1).expand(-1, self.transition.shape[0])
        weights = self._masses(graph.masses(self._shares))
        made = [torch.zeros_like(_sums(self._backward[0], message))]  # of no word: not asked
        for _ in range(self.automaton.arity - 1):
            sums = message.new_full(message.shape, -math.inf)
            for place, (sets, after) in enumerate(graph.edges):
                if len(sets):
                    sums[place] = soft_sum(weights[sets] + message[after], 0)
            made.append(_sums(self._backward[0], sums))
            message = self._over_states(made[-1])
        return torch.stack(made)

    def _over_states(self, kept: Tensor) -> Tensor:
        """Stored messages over the states before a step."""
        return _sums(self._backward[1], kept) if len(self._backward) > 1 else kept

    def _masses(self, shares: Tensor) -> Tensor:
        """(R, N) log-probabilities in each state of rows of shares, (R, k)."""
        return shares if self._emitting is None else self._emitting[0].times(shares)

    def _mixed(self, states: Tensor) -> Tensor:
        """(R, k) rows over states as rows over shares."""
        return states if self._emitting is None else self._emitting[1].times(states)

    @cached_property
    def _onward(self) -> "list[LogMatrix | PairOperator]":
        """What takes rows over the states before a step to those after; two products by ranks."""
        given = self.transition
        if isinstance(given, PairOperator):
            return [given.replaced([part.detach().to(self.dtype) for part in given.tensors])]
        sides = (given.log_left, given.log_right.mT) if isinstance(given, LowRank) else (given,)
        return [LogMatrix.of(side.detach().to(self.dtype).mT) for side in sides]

    @cached_property
    def _backward(self) -> "list[LogMatrix | PairOperator]":
        """What takes rows over the states after a step to those before it."""
        return [
            each.turned() if isinstance(each, PairOperator) else LogMatrix.of(each.logs.mT)
            for each in self._onward[::-1]
        ]

    @cached_property
    def _emitting(self) -> tuple[LogMatrix, LogMatrix] | None:
        """Products from the ranks of the emission to states, and back; None without ranks."""
        if isinstance(self.emission, Tensor):
            return None
        left = self.emission.log_left.detach().to(self.dtype)
        return LogMatrix.of(left), LogMatrix.of(left.mT)

    @cached_property
    def _shares(self) -> Tensor:
        """(V, k) log-values of each word in the ranks of the emission, or in the states."""
        given = self.emission
        right = given.log_right if isinstance(given, LowRank) else given.mT
        return right.detach().to(self.dtype)

    @cached_property
    def _graph(self) -> "_Graph":
        return _Graph.of(self.automaton)

    @cached_property
    def _large(self) -> dict[int, tuple[Tensor, LogMatrix]]:
        """Words of large classes, with their shares."""
        kinds = self._graph.kinds
        large = (kinds.bincount() >= tuning.CLASS_WORDS).nonzero().flatten().tolist()
        each = ((kind, (kinds == kind).nonzero().flatten()) for kind in large)
        return {kind: (words, LogMatrix.of(self._shares[words])) for kind, words in each}

    @cached_property
    def _small(self) -> tuple[Tensor, Tensor, Tensor]:
        """All other words, their classes, and their shares."""
        kinds = self._graph.kinds
        words = (kinds.bincount()[kinds] < tuning.CLASS_WORDS).nonzero().flatten()
        return words, kinds[words], self._shares[words]


def _sums(factor: "LogMatrix | PairOperator", rows: Tensor) -> Tensor:
    """(B, n) log-sums of rows (B, k) by a matrix (n, k)."""
    return factor.sums(rows) if isinstance(factor, PairOperator) else factor.times(rows)


@dataclass(frozen=True, eq=False)
class _Graph:
    """An automaton whose words are in classes, and without the arcs that lead to no acceptance.

    Attributes:
        kinds: (V,) the class of each word.
        table: (Q, C) the next state by each class.
        counts: (Q,) how many different next states there are.
        first: (Q,) the place of the first of them in ``after``.
        after: (E,) the next states of all.
        edges: for each state the sets of classes that lead on, by number, and the next states.
        sets: of classes, (C,) booleans each.
    """

    kinds: Tensor
    table: Tensor
    counts: Tensor
    first: Tensor
    after: Tensor
    edges: list[tuple[Tensor, Tensor]]
    sets: Tensor

    @classmethod
    def of(cls, automaton: Automaton) -> "_Graph":
        columns, kinds = automaton.transitions.unique(dim=1, return_inverse=True)
        alive = automaton.log_accept.detach() > -math.inf
        while bool((more := alive[columns].any(1) & ~alive).any()):
            alive = alive | more
        numbers: dict[tuple[bool, ...], int] = {}
        edges: list[tuple[Tensor, Tensor]] = []
        for row in columns:
            after = row[alive[row]].unique()
            sets = [tuple((row == place).tolist()) for place in after]
            chosen = [numbers.setdefault(each, len(numbers)) for each in sets]
            edges.append((torch.tensor(chosen, dtype=torch.long, device=row.device), after))
        counts = torch.tensor([len(after) for _, after in edges], device=kinds.device)
        after = torch.cat([after for _, after in edges])
        sets = torch.tensor(list(numbers), dtype=torch.bool, device=kinds.device)
        sets = sets.reshape(len(numbers), columns.shape[1])  # where nothing is accepted too
        return cls(kinds, columns, counts, counts.cumsum(0) - counts, after, edges, sets)

    def masses(self, shares: Tensor) -> Tensor:
        """(sets, k) sums of the shares (V, k) of the words in each set."""
        each = soft_scatter(shares, self.kinds, self.table.shape[1])
        zeros = torch.where(self.sets, 0.0, -math.inf).to(shares)
        return log_products(zeros, each.mT)


class Prefix(NamedTuple):
    """Words so far of some sequences, (B,), as all that the next ones depend on.

    Attributes:
        states: (B, N) log-probabilities of the next hidden state, given the words.
        place: (B,) states of the automaton.
        left: (B,) how many words are to come.
        score: (B,) log-probabilities of the words (nats), the prompt's aside.
    """

    states: Tensor
    place: Tensor
    left: Tensor
    score: Tensor

    def of(self, items: Tensor | slice) -> "Prefix":
        """Select sequences, in any order."""
        return Prefix(*(part[items] for part in self))


@dataclass(frozen=True, eq=False)
class ConstrainedHMM:
    """A hidden Markov model of sequences of words, given that an automaton accepts them.

    All answers are exact: `log_words` of the next word, `log_met` of the constraint after each next
    word (which guides a language model, see `processor`), `sample` and `best`. Sequences have the
    `arity` of the automaton as their length; log-values that it ends with, other than 0 and -inf,
    weight the sequences.

    Words on which all states of the automaton agree are a class, and the look-ahead takes sums over
    classes only. Ahead of all words, with E pairs of neighbouring automaton states, each of T steps
    costs O(N (Q r + E)), once, and keeps Q r numbers (Q N without ranks). A word then costs O(N r S
    + N k S + V k), for emissions of rank k and S next automaton states. No gradients.

    Args:
        start: (N,) log-probabilities of the first hidden state.
        transition: (N, N) log-probabilities, [from, to], or those of a `LowRank`, `Banded` or
            `Monarch`.
        emission: (N, V) log-probabilities of the words in each state, or a `LowRank` of them.
        automaton: over V words, such as `Pattern.automaton(length)`.

    Raises:
        ModelError: rows that do not sum to one, or shapes that do not fit.

    Source: Zhang et al. 2023 (arXiv:2304.07438); Zhang et al. 2024 (arXiv:2406.13892).

    Example:
        >>> import rdpgraph as rg
        >>> start, follows = torch.tensor([0.5, 0.5]), torch.tensor([[0.9, 0.1], [0.2, 0.8]])
        >>> shows = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6]])
        >>> ending = rg.nn.Pattern.parse(".* c", ["a", "b", "c"]).automaton(4)
        >>> model = ConstrainedHMM(start.log(), follows.log(), shows.log(), ending)
        >>> model.log_partition().exp()  # the probability that the fourth word is c
        tensor(0.2952)
        >>> model.sample(3, torch.Generator().manual_seed(0))[:, 3]
        tensor([2, 2, 2])
    """

    start: Tensor
    transition: Tensor | LowRank | PairOperator
    emission: Tensor | LowRank
    automaton: Automaton

    if TYPE_CHECKING:  # what the fields are made of

        def __init__(
            self, start: ArrayLike, transition: ArrayLike | LowRank | PairOperator,
            emission: ArrayLike | LowRank, automaton: Automaton,
        ) -> None: ...  # fmt: skip

    def __repr__(self) -> str:
        return summary(self)

    def __post_init__(self) -> None:
        settle(self, "start", "transition", "emission")
        nothing = torch.zeros(0, dtype=torch.long)
        hmm_unary(self.start, self.transition, self.emission, nothing, stationary=True)
        given, words = self.automaton, tuple(self.emission.shape)[1]
        if not isinstance(cast(object, given), Automaton) or given.log_accept.ndim != 1:
            raise ModelError(
                "ConstrainedHMM needs one Automaton, as Pattern.automaton(length); got "
                f"{type(given).__name__}."
            )
        if given.transitions.shape[1] != words:
            raise ModelError(
                f"ConstrainedHMM of {words} words needs an automaton over them; got one over "
                f"{given.transitions.shape[1]}."
            )

    @property
    def words(self) -> int:
        """V, the number of words."""
        return self.emission.shape[1]

    @torch.no_grad()
    def begin(self, count: int = 1, *, prompt: Tensor | None = None) -> Prefix:
        """Sequences of no word yet.

        Args:
            count: how many, alike.
            prompt: (P,), or (B, P) in place of a count: words that come before, which the hidden
                states have seen and the automaton has not.

        Raises:
            EvidenceError: a word that is out of range.
        """
        prompt = torch.zeros(0).long() if prompt is None else prompt
        seen = self._checked(as_states("ConstrainedHMM's prompt", prompt))
        seen = seen.expand(count, -1) if seen.ndim < 2 else seen
        states = self.start.detach().to(self._ahead.dtype).expand(len(seen), -1)
        for word in seen.mT:
            states, _ = self._ahead.seen(states, word)
        place = seen.new_zeros(len(seen))
        return Prefix(states, place, place + self.automaton.arity, states.new_zeros(len(seen)))

    @torch.no_grad()
    def advance(self, prefix: Prefix, words: Tensor) -> Prefix:
        """The sequences with one more word each, (B,).

        Raises:
            EvidenceError: a word that is out of range, or one more than the automaton reads.
        """
        words = self._checked(as_states("ConstrainedHMM's words", words))
        if bool((prefix.left < 1).any()):
            raise EvidenceError(
                f"ConstrainedHMM has {self.automaton.arity} words, and this prefix has all of "
                "them; got one more."
            )
        states, chance = self._ahead.seen(prefix.states, words)
        place = self.automaton.transitions[prefix.place, words]
        return Prefix(states, place, prefix.left - 1, prefix.score + chance)

    @torch.no_grad()
    def log_partition(self, prompt: Tensor | None = None) -> Tensor:
        """(B,), or () of one, log of the probability that the automaton accepts (nats).

        Args:
            prompt: as for `begin`.
        """
        values = soft_sum(self._joint(self.begin(prompt=prompt)), 1)
        return values[0] if prompt is None or prompt.ndim < 2 else values

    @torch.no_grad()
    def log_words(self, prefix: Prefix) -> Tensor:
        """(B, V) log-probabilities of the next word, given those so far and the constraint.

        -inf throughout where no sequence goes on.
        """
        joint = self._joint(prefix)
        total = soft_sum(joint, 1).unsqueeze(1)
        return torch.where(total > -math.inf, joint - total, -math.inf)

    @torch.no_grad()
    def log_met(self, prefix: Prefix) -> Tensor:
        """(B, V) log-probabilities of the constraint, given the words so far and each next one."""
        joint, plain = self._ahead.joint(prefix.states, prefix.place, prefix.left)
        return torch.where(joint > -math.inf, joint - plain, -math.inf)

    @torch.no_grad()
    def sample(
        self, count: int, generator: torch.Generator | None = None, *, prompt: Tensor | None = None
    ) -> Tensor:
        """(count, T) independent exact draws of the words.

        Args:
            count: how many.
            generator: the randomness.
            prompt: (P,) as for `begin`.

        Raises:
            ImpossibleEvidenceError: no sequence is accepted.
        """
        drawn: list[Tensor] = []
        start = self.begin(prompt=prompt)
        self._require(start)
        width = tuning.per_block(self.words + len(self.start), tuning.LARGE_BLOCK)
        for rows in torch.zeros(count, dtype=torch.long).split(width):
            prefix, words = start.of(rows.to(start.place.device)), list[Tensor]()
            for _ in range(self.automaton.arity):
                chances = self.log_words(prefix).exp()
                words.append(chances.multinomial(1, generator=generator).squeeze(1))
                prefix = self.advance(prefix, words[-1])
            drawn.append(torch.stack(words, 1))
        return torch.cat(drawn) if drawn else start.place.new_zeros(0, self.automaton.arity)

    @torch.no_grad()
    def best(
        self, k: int, *, width: int = 1024, prompt: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The k most probable sequences of words, all hidden states summed out, best first.

        Beam search, with the width doubled until no prefix that was dropped has more probability,
        summed over its continuations, than the k-th sequence.

        Args:
            k: how many.
            width: of the widest beam.
            prompt: (P,) as for `begin`.

        Returns:
            Words (k or fewer, T), and their log-probabilities given the constraint (nats).

        Raises:
            ImpossibleEvidenceError: no sequence is accepted.
            BudgetError: the widest beam may have dropped a better sequence.
        """
        if not is_whole(k, 1):
            raise ModelError(f"best needs a number of sequences, at least 1; got {k!r:.80}.")
        start = self.begin(prompt=prompt)
        total, tried = self._require(start), 2 * k
        while tried <= max(width, 2 * k):
            prefix, words, lost = start, start.place.new_zeros(1, 0), -math.inf
            for _ in range(self.automaton.arity):
                masses = (prefix.score.unsqueeze(1) + self._joint(prefix)).flatten()
                kept = masses.topk(min(tried + 1, len(masses)))
                lost = max(lost, float(kept.values[tried])) if len(kept.values) > tried else lost
                # What is impossible is no beginning.
                cells = kept.indices[:tried][kept.values[:tried] > -math.inf]
                item, word = cells // self.words, cells % self.words
                words = torch.cat([words[item], word.unsqueeze(1)], 1)
                prefix = self.advance(prefix.of(item), word)
            values = prefix.score + self.automaton.log_accept.detach()[prefix.place]
            values, order = values.sort(descending=True, stable=True)
            if lost <= (float(values[k - 1]) if len(values) >= k else -math.inf):
                return words[order[:k]], values[:k] - total
            tried *= 2
        raise BudgetError(
            f"best cannot prove the {k} most probable sequences with beams of up to {width} "
            "prefixes; give a larger width, or take the best of many samples."
        )

    def processor(self, prompt: int = 0) -> Callable[[Tensor, Tensor], Tensor]:
        """A function that guides a language model: it adds `log_met` to the scores of next words.

        It is called as a ``LogitsProcessor`` of transformers is, with the words so far (B, n), the
        prompt included, and scores (B, V or more); the answer has the scores of words that make
        the constraint impossible at -inf. A row that has all its words is left as it is; one whose
        words so far break the constraint has -inf throughout. Sequences that go on from those of
        the last call, in any order, as beams do, take one step.

        The function raises `ImpossibleEvidenceError` where no words after the prompt of a row meet
        the constraint.

        Args:
            prompt: how many of the words are the prompt, as for `begin`.
        """
        known: dict[tuple[int, ...], int] = {}
        last = self.begin(0)

        @torch.no_grad()
        def steered(input_ids: Tensor, scores: Tensor) -> Tensor:
            nonlocal known, last
            ids = input_ids.to(self.start.device)
            rows = [tuple(row) for row in ids.tolist()]
            if ids.shape[1] > prompt and all(row[:-1] in known for row in rows):
                items = torch.tensor([known[row[:-1]] for row in rows], device=ids.device)
                prefix = self._onward(last.of(items), ids[:, -1:])
            else:
                prefix = self._onward(self.begin(prompt=ids[:, :prompt]), ids[:, prompt:])
            known, last = {row: number for number, row in enumerate(rows)}, prefix
            met, over = self.log_met(prefix), prefix.left == 0
            lost = ~over & (met == -math.inf).all(1)
            if bool(lost.any()):  # by these words, or had they no chance from the beginning?
                self._require(self.begin(prompt=ids[lost, :prompt]))
            beyond = met.new_full((len(rows), scores.shape[1] - self.words), -math.inf)
            met = torch.cat([met, beyond], 1).to(scores)
            return torch.where(over.unsqueeze(1), scores, scores + met)

        return steered

    def _onward(self, prefix: Prefix, words: Tensor) -> Prefix:
        """`advance` by words (B, n), of which those beyond the end change nothing."""
        for word in words.mT:
            more = self.advance(prefix._replace(left=prefix.left.clamp(min=1)), word)
            prefix = more._replace(left=(prefix.left - 1).clamp(min=0))
        return prefix

    def _require(self, prefix: Prefix) -> Tensor:
        """() log Z of the first of some sequences that have not begun; raises if any is -inf."""
        total = soft_sum(self._joint(prefix), 1)
        if bool((total == -math.inf).any()):
            raise ImpossibleEvidenceError(
                f"The automaton accepts no sequence of {self.automaton.arity} words that the "
                "hidden Markov model allows: give another length, or look for words it lacks."
            )
        return total

    def _checked(self, words: Tensor) -> Tensor:
        wrong = words[(words < 0) | (words >= self.words)]
        if len(wrong):
            raise EvidenceError(
                f"ConstrainedHMM of {self.words} words got {int(wrong[0])}; use 0 to "
                f"{self.words - 1}."
            )
        return words.long().to(self.start.device)

    def _joint(self, prefix: Prefix) -> Tensor:
        return self._ahead.joint(prefix.states, prefix.place, prefix.left)[0]

    @cached_property
    def _ahead(self) -> LookAhead:
        dtype = torch.promote_types(self.start.dtype, self.transition.dtype)
        dtype = torch.promote_types(dtype, self.emission.dtype)
        return LookAhead(self.transition, self.emission, self.automaton, dtype)
