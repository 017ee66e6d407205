"""Chains: linear-chain models, hidden Markov models and conditional random fields."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph._core.types import ArrayLike
from rdpgraph.errors import ModelError
from rdpgraph.interface.sites import Sites
from rdpgraph.interface.structure import Match, Structure
from rdpgraph.logspace.gradients import by_autograd, possible_alone
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.potentials.lowrank import LowRank
from rdpgraph.model.potentials.operators import PairOperator
from rdpgraph.model.potentials.potential import Potential
from rdpgraph.model.potentials.sharded import Sharded, as_potential
from rdpgraph.model.potentials.table import Table, as_states, settle
from rdpgraph.model.restriction import gathered
from rdpgraph.structures.chain import decode, kept, moments, paths, recursion, rules
from rdpgraph.structures.chain.constructors import (
    checked_lengths,
    checked_sequences,
    checked_transition,
    checked_unary,
    crf_unary,
    hmm_unary,
    require_alike,
    require_path,
)
from rdpgraph.structures.chain.parts import (
    AnyChain,
    ChainTensors,
    Parts,
    between,
    flat_lengths,
    table_of,
)
from rdpgraph.structures.chain.recognition import chain_graph, neighbours_of, recognised
from rdpgraph.structures.draws import (
    KBestConfigurations,
    checked_best,
    checked_count,
    require_generator,
)

KBest = KBestConfigurations
"""What `Chain.k_best` gives: sequences are configurations."""

if TYPE_CHECKING:
    from rdpgraph.interface.masks import Masks


@dataclass(frozen=True, eq=False)
class Chain(Structure):
    """Sequences of states: p(x) is proportional to exp(sum_t u_t(x_t) + sum_t f_t(x_t, x_t+1)).

    A linear-chain conditional random field; with log-probabilities, a hidden Markov model given
    its observations (`Chain.hmm`). Marginals are by forward-backward (smoothing), `filtered` by the
    forward algorithm, `mode` by Viterbi's, and `k_best` is a list of the N best (N-best, list
    Viterbi); expected transitions are `edge_counts`. An item of length L has L states; its log Z is
    0 if L is 0. Beyond the length, marginals are zero and states -1. A chain without a possible
    sequence has log Z -inf, and marginals, gradients and entropy zero. Scores of the first and the
    last state are added to the unary potentials, as by `Chain.crf(..., start=, end=)`.

    Every answer but states is differentiable in the potentials. log Z costs O(T N^2) in matrix
    products, and O(T N) memory for its gradient; with a shared transition nothing of size T N^2 is
    made, except for `edge_marginals`.

    Args:
        unary: (*batch, T, N) log-potentials (nats); -inf is a hard zero.
        transition: (N, N), shared by all steps, or (*batch, T - 1, N, N) for each, [from, to];
            batch dims that are absent or 1 broadcast. A `Potential` of such a shape is written
            out where the recursion needs a table; `restrict` and `score` evaluate it on the
            states they are given. With a `LowRank` of rank r, log Z and its gradient, marginals,
            filtered states and samples cost O(T N r) without a table; entropy and maxima form the
            N^2 values, in blocks. `Banded` and `Monarch` transitions need no table for any of them.
            A `Banded` one may have the leading dims (*batch, T - 1): a diagonal plus one rank for
            each step costs O(T N). Of a DTensor each process has some rows or columns: log Z, its
            gradients, marginals and scores then take N^2 / R numbers on each of R processes.
        lengths: (*batch,) integers in 0..T; default: all T.

    Values that look like probabilities are warned of once, as in a `Table`; `Chain.hmm` and
    ``.log()`` are for these.

    Raises:
        ModelError: shapes that do not fit, NaN or +inf, a length out of range.

    Example:
        >>> weather = Chain(torch.zeros(3, 2), torch.tensor([[0.0, -1.0], [-1.0, 0.0]]))
        >>> weather.marginals()
        tensor([[0.5000, 0.5000],
                [0.5000, 0.5000],
                [0.5000, 0.5000]])
        >>> weather.mode()
        tensor([0, 0, 0])
    """

    transition: Tensor | Potential = field(metadata={"dims": 3})
    lengths: Tensor | None = field(default=None, kw_only=True, metadata={"dims": 0})

    if TYPE_CHECKING:  # arguments become tensors

        def __init__(
            self, unary: ArrayLike, transition: ArrayLike | Potential, *,
            lengths: ArrayLike | None = None,
        ) -> None: ...  # fmt: skip

    def __post_init__(self) -> None:
        object.__setattr__(self, "transition", as_potential(self.transition))
        settle(self, "unary", "transition")
        checked_unary(self.unary)
        checked_transition(self.transition, self.unary)
        if self.lengths is not None:
            object.__setattr__(self, "lengths", checked_lengths(self.lengths, self.unary))

    @classmethod
    def hmm(
        cls,
        start: Tensor,
        transition: Tensor | LowRank | PairOperator,
        emission: Tensor | LowRank,
        observations: Tensor | None = None,
        *,
        lengths: Tensor | Sequence[int] | None = None,
    ) -> Self:
        """The hidden states of a hidden Markov model, given observations.

        log Z is the log-likelihood of the observations, `marginals` are the smoothed states,
        `filtered` those given the past alone, `mode` is the Viterbi path.

        Args:
            start: (N,) log-probabilities of the first state.
            transition: (N, N) log-probabilities, [from, to], or (*batch, T - 1, N, N) for each
                step; or `LowRank.normalised` ones, or those of `Banded` or `Monarch`.
            emission: (N, symbols) log-probabilities of the symbols in each state, likewise; or,
                without observations, (*batch, T, N) log-likelihoods under any density.
                `LowRankHMM` is a model of the symbols, for many sequences.
            observations: (*batch, T) symbols; -1, or masked, where one is missing.
            lengths: (*batch,) of the sequences; default: all T.

        Raises:
            ModelError: rows that do not sum to one, or shapes that do not fit.
            EvidenceError: a symbol out of range.

        Source: Rabiner 1989, "A tutorial on hidden Markov models", section III.

        Example:
            >>> start, transition = torch.tensor([0.6, 0.4]), torch.tensor([[0.7, 0.3], [0.4, 0.6]])
            >>> emission = torch.tensor([[0.1, 0.4, 0.5], [0.6, 0.3, 0.1]])
            >>> seen = torch.tensor([0, 1, 2])
            >>> hmm = Chain.hmm(start.log(), transition.log(), emission.log(), seen)
            >>> hmm.log_partition().exp()  # the probability of 0, 1, 2
            tensor(0.0336)
            >>> hmm.mode()
            tensor([1, 0, 0])
        """
        unary = hmm_unary(start, transition, emission, observations, lengths)
        return cls(unary, transition, lengths=lengths)

    @classmethod
    def crf(
        cls,
        emissions: Tensor,
        transition: Tensor | Potential,
        *,
        start: Tensor | None = None,
        end: Tensor | None = None,
        lengths: Tensor | Sequence[int] | None = None,
    ) -> Self:
        """A linear-chain conditional random field over tags.

        Its negative log-likelihood, to train with, is ``-crf.log_prob(tags)``.

        Args:
            emissions: (*batch, T, N) scores of the tags at each position.
            transition: as for `Chain`: scores of a tag after another.
            start: (N,) or (*batch, N) scores of the first tag.
            end: (N,) or (*batch, N) scores of the last tag, that at the length.
            lengths: (*batch,) of the sentences; default: all T.

        Raises:
            ModelError: shapes that do not fit.

        Source: Lafferty, McCallum and Pereira 2001, "Conditional random fields".
        """
        unary, sizes = crf_unary(emissions, start, end, lengths)
        return cls(unary, transition, lengths=sizes)

    @property
    def batch_shape(self) -> tuple[int, ...]:
        return tuple(self.unary.shape[:-2])

    def log_partition(self) -> Tensor:
        if isinstance(self.transition, Sharded):
            shards = self.transition.values
            log_z = rules.log_partition_in_parts(self.unary, shards, self.lengths)
            return possible_alone(log_z)
        return self._shaped(possible_alone(recursion.log_partition(self._given())))

    def score(self, states: Tensor) -> Tensor:
        """(*lead, *batch) the summed log-potentials (nats) of sequences, unnormalised; O(T) each.

        Args:
            states: (*lead, *batch, T) state indices, ignored beyond the length.

        Raises:
            EvidenceError: a state out of range, or a shape that does not fit.
        """
        states = as_states("A chain's sequences", states)
        lengths = self._flat_lengths()
        flat = checked_sequences(states, self.unary, lengths)
        known, link = flat.clamp(min=0), self.transition
        if isinstance(link, Tensor):
            link = self._parts().transition
        else:  # a potential is evaluated at states with the dims of the batch
            known = known.reshape(states.shape)
        links = between(link, known[..., :-1], known[..., 1:])
        links = links.reshape(*flat.shape[:2], links.shape[-1])
        unary = self.unary.reshape(len(lengths), *self.unary.shape[-2:])
        return paths.score(unary, lengths, links, flat).reshape(states.shape[:-1])

    @by_autograd
    def edge_marginals(self) -> Tensor:
        """(*batch, T - 1, N, N) joint probabilities of neighbours."""
        return self._shaped(moments.edge_marginals(self._parts()))

    @by_autograd
    def edge_counts(self) -> Tensor:
        """(*batch, N, N) the expected number of steps with each pair of states, [from, to].

        These are the expected transitions of the E step of Baum-Welch.

        O(N^2) memory for each item, or O(T N^2) where each step has a transition of its own.
        """
        return self._shaped(moments.edge_marginals(self._parts(), summed=True))

    def entropy(self) -> Tensor:
        """(*batch,) nats; 0 where there is no possible sequence. All derivatives exist."""
        return self._shaped(moments.entropy(self._given()))

    def entropy_over(self, log_base: Tensor) -> Tensor:
        """(*batch,) the entropy relative to a base measure, nats, in one pass."""
        return self._shaped(moments.entropy(self._given(), log_base))

    def cross_entropy(self, other: "Chain") -> Tensor:
        """(*batch,) the expectation under this chain of minus the other's log-probability.

        Nats. +inf, with no gradient, where the other forbids what this chain allows; 0 where this
        one allows nothing. Differentiable in both, as `entropy`, at a few times the cost of
        `log_partition`.

        Raises:
            ModelError: the chains differ in shape or in lengths.
        """
        return self._compared(other, divergence=False)

    def kl_divergence(self, other: "Chain") -> Tensor:
        """(*batch,) the divergence of the other from this chain: cross-entropy less entropy."""
        return self._compared(other, divergence=True)

    def _compared(self, other: "Chain", *, divergence: bool) -> Tensor:
        if not isinstance(other, Chain):
            raise ModelError(
                f"A chain can be compared with another chain only; got {type(other).__name__}."
            )
        given, compared = self._given(), other._given()
        if not moments.alike(given, compared):
            given, theirs = self._parts(), other._parts()
            tensors = theirs.unary.to(given.unary), theirs.transition.to(given.unary)
            compared = Parts(*tensors, theirs.lengths)
        require_alike((self.unary, given.lengths), (other.unary, compared.lengths))
        return self._shaped(moments.cross_entropy(given, compared, divergence=divergence))

    def max_marginals(self) -> Tensor:
        """(*batch, T, N) the largest score of a sequence with each state; -inf beyond a length."""
        return self._shaped(decode.max_marginals(self._given(best=True)))

    def mode(self) -> Tensor:
        """(*batch, T) one most probable sequence, by Viterbi's algorithm; O(T N^2).

        A maximum over states is not a sum over ranks: the N^2 values of low rank are written out,
        or, beyond 2^28 of them, formed in blocks at every step, in O(T N^2 r).

        Raises:
            ImpossibleEvidenceError: an item has no possible sequence.
        """
        states = decode.best_states(self._given(best=True))
        require_path(states.unsqueeze(0), self._flat_lengths(), "mode", self.batch_shape)
        return self._shaped(states)

    def k_best(self, k: int) -> KBest:
        """The k most probable sequences of each item, best first.

        O(T (N^2 + N k)) on a CPU, and O(T (N^2 + N k) k) elsewhere. Of ranks whose table is
        large, and of bands beside low rank, among the states that max-marginals leave.

        Raises:
            ModelError: k below 1.
        """
        k = checked_best("Chain", k, self.states_shape)
        states, scores = decode.k_best(self._given(best=True), k)
        shape = k, *self.unary.shape[:-1]
        return KBest(states.reshape(shape), scores.reshape(shape[:-1]))

    def sample(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        require_generator(generator)
        drawn = paths.draw(self._given(), checked_count(count, self.states_shape), generator)
        require_path(drawn[:1], self._flat_lengths(), "samples", self.batch_shape)
        return drawn.reshape([count, *self.unary.shape[:-1]])

    def rsample(
        self, count: int, *, temperature: float, generator: torch.Generator | None = None
    ) -> Tensor:
        """(count, *batch, T, N) relaxed one-hot sequences, differentiable in the potentials.

        Gumbel-softmax at each step of backward ancestral sampling; the argmaxes are exact draws.
        Zeros beyond the length. `straight_through` makes them one-hot.

        Args:
            count: the number of draws.
            temperature: above 0; towards 0 they become one-hot.
            generator: the randomness.

        Source: Fu, Cunningham and Lapata 2022 (arXiv:2112.03638v3), algorithm 4. On a few states
        of each step, the printed algorithm leaves out their weights; `restrict` adds them to the
        potentials, so that draws follow the weighted distribution.
        """
        count = checked_count(count, self.unary.shape)
        drawn = paths.relaxed(self._given(), count, temperature, generator)
        return drawn.reshape([count, *self.unary.shape])

    def filtered(self) -> Tensor:
        """(*batch, T, N) the probabilities of each state given the potentials up to its step.

        For a hidden Markov model, given the observations so far: filtering, where `marginals` are
        smoothing. Zero beyond the length, and after
        the point from which no sequence is possible.
        """
        return self._shaped(recursion.probabilities(recursion.forward(self._given())))

    def masks(self) -> "Masks":
        """The questions of masks: whether each step is in each state."""
        from rdpgraph.structures.chain.masks import ChainMasks  # few prune chains

        return ChainMasks(self, self.transition, self.lengths)

    def restrict(self, states: Tensor, log_weights: Tensor) -> "Chain":
        """The chain on some states of each step, with weights, as randomized estimators solve it.

        The transition is evaluated on those states alone: time and memory are O(T K^2), or
        O(T K r) for a `LowRank` one of rank r up to K / 2, which stays one.

        Args:
            states: (*replicates, *batch, T, K) state indices; repeats stay separate.
            log_weights: of that shape; added to the unary potentials.

        Returns:
            A chain of batch (*replicates, *batch) over K states; gradients reach the potentials.

        Raises:
            ModelError: shapes that do not fit, or a state out of range.
        """
        few, given = gathered("Chain", self.unary, states, log_weights, sites=1), self.transition
        potential = given if isinstance(given, Potential) else Table.checked(given)
        ends = states[..., :-1, :], states[..., 1:, :]
        if isinstance(potential, LowRank) and 2 * potential.rank <= states.shape[-1]:
            transition = potential.rows(*ends)
        else:
            transition = potential.evaluate(ends)
        lengths = None if self.lengths is None else self.lengths.expand(states.shape[:-2])
        return Chain(few, transition, lengths=lengths)

    def sites(self) -> Sites:
        """The steps; proposals read the transition between all of them, whatever the lengths."""
        links = partial(neighbours_of, self.transition, self.unary)
        return Sites(
            self.unary, restrict=self.restrict, links=links, masses=self._log_masses,
            marginals=self._marginals_given,
        )  # fmt: skip

    def _log_masses(self, states: Tensor, log_weights: Tensor) -> Tensor:
        """(*replicates, *batch, T, N) by messages between the kept states; O(T N K)."""
        few = self.restrict(states, log_weights)
        return kept.log_masses(self.unary, self.transition, states, few._parts())

    def _marginals_given(self, states: Tensor, log_weights: Tensor) -> Tensor:
        """(*replicates, *batch, T, N) the probabilities in proportion to these masses."""
        return recursion.probabilities(self._log_masses(states, log_weights))

    def factor_graph(self) -> FactorGraph:
        """The chain as a graph over ``site``, (T,); sites beyond the length are in state 0."""
        return chain_graph(self.unary, self.transition, self.lengths)

    @classmethod
    def recognise(cls, graph: FactorGraph) -> Match | None:
        """A chain, or many, of which the longest has three variables or more.

        All variables have equally many states; every factor is over one variable or two neighbours,
        in either order, any number of them. Linear in the factors.
        """
        chains = recognised(graph)
        if chains is None:
            return None
        chain = cls(chains.unary, chains.transition, lengths=chains.lengths)
        return Match(chain, chains.numbers)

    def work(self) -> float:
        """The multiply-adds of log Z: N^2 for each step, or 2 N r with a transition of rank r."""
        states, low = self.unary.shape[-1], self.transition
        width = 2 * low.rank if isinstance(low, LowRank) else states
        width = low.work if isinstance(low, PairOperator) else width
        return float((self._flat_lengths() - 1).clamp(min=0).sum()) * states * width

    def _parts(self) -> ChainTensors:
        return Parts.of(self.unary, table_of(self.transition), self._flat_lengths())

    def _given(self, *, best: bool = False) -> AnyChain:
        """The tensors, with ranks and operators as they are.

        Those that have no maxima without a table are one for the ``best``, unless it is large.
        """
        link = self.transition
        if not isinstance(link, LowRank | PairOperator):
            return self._parts()
        tabulated = best and not (isinstance(link, PairOperator) and link.maximises)
        if tabulated and math.prod(link.shape) <= tuning.MOST_TABULATED:
            return self._parts()
        return Parts.of(self.unary, link, self._flat_lengths())

    def _flat_lengths(self) -> Tensor:
        return flat_lengths(self.lengths, self.unary.shape[:-1], self.unary)

    def _shaped(self, values: Tensor) -> Tensor:
        batch = self.unary.shape[:-2]
        return values if len(batch) == 1 else values.reshape([*batch, *values.shape[1:]])
