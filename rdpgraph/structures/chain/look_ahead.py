"""Look-ahead of hidden Markov models over automata of words: the mass of accepted endings."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph._core.cache import cached_property
from rdpgraph.logspace.logmatrix import LogMatrix, log_products, soft_scatter, soft_sum
from rdpgraph.model.potentials.automaton import Automaton
from rdpgraph.model.potentials.lowrank import LowRank
from rdpgraph.model.potentials.operators import PairOperator


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
