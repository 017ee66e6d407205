"""Sequences of labels, and their likelihoods given scores."""

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from rdpgraph._core.arguments import typed
from rdpgraph.errors import ModelError, UnsupportedError
from rdpgraph.gp import chains
from rdpgraph.infer import infer
from rdpgraph.logspace.gradients import by_autograd
from rdpgraph.logspace.logmatrix import soft_sum
from rdpgraph.model.factor import FactorBlock
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.potentials.table import Table
from rdpgraph.model.variable import VariableArray
from rdpgraph.query.posterior import Posterior
from rdpgraph.schedulers.scheduler import Scheduler
from rdpgraph.structures.chain.parts import inside


@dataclass(frozen=True, eq=False)
class Labelling:
    """Sequences of labels, padded to one length.

    Attributes:
        states: (B, T) labels from 0; -1 beyond the lengths, and throughout in predictions.
        lengths: (B,) from 1 to T.
        edges: for each sequence, (E, 2) the pairs of positions that influence each other; None
            for neighbours.
    """

    states: Tensor
    lengths: Tensor
    edges: tuple[Tensor, ...] | None = None

    def inside(self) -> Tensor:
        """(B, T) True for positions within the length."""
        return inside(self.lengths, self.states.shape[1])


@dataclass(frozen=True, eq=False)
class Pieces:
    """Short, possibly overlapping parts of sequences.

    Attributes:
        labels: the labels of the P pieces, padded to W positions, and their lengths.
        sequences: (P,) the number of the sequence that a piece is from.
        positions: (P, W) the positions in that sequence; beyond the length of a piece any position
            of the sequence.
    """

    labels: Labelling
    sequences: Tensor
    positions: Tensor

    @classmethod
    def neighbours(cls, labels: Labelling) -> "Pieces":
        """Pairs of neighbouring positions, or of those with an edge; others are pieces alone.

        Raises:
            ModelError: an edge from a position to itself.
        """
        if labels.edges is not None:
            return cls._tied(labels, labels.edges)
        states, lengths = labels.states, labels.lengths
        steps = torch.arange(states.shape[1], device=states.device)
        # A position begins a piece if another one follows, or if it is alone.
        begins = steps < (lengths - 1).clamp(min=1).unsqueeze(1)
        sequences, first = begins.nonzero().unbind(1)
        positions = torch.stack([first, (first + 1).clamp(max=states.shape[1] - 1)], 1)
        return cls._of(labels, sequences, positions, lengths[sequences].clamp(max=2))

    @classmethod
    def _tied(cls, labels: Labelling, edges: Sequence[Tensor]) -> "Pieces":
        """Pairs of positions with an edge, once for each, and positions without any."""
        device = labels.states.device
        counts = torch.tensor([len(pairs) for pairs in edges], device=device)
        rows = torch.arange(len(edges), device=device).repeat_interleave(counts)
        pairs = torch.cat([pairs.reshape(-1, 2).to(device) for pairs in edges])
        loops = pairs[pairs[:, 0] == pairs[:, 1]]
        if len(loops):
            raise ModelError(
                "An edge must tie two different positions; got one from position "
                f"{int(loops[0, 0])} to itself."
            )
        alone = labels.inside()
        alone[rows.unsqueeze(1), pairs] = False
        others, place = alone.nonzero().unbind(1)
        sizes = torch.cat([torch.full_like(rows, 2), torch.ones_like(others)])
        positions = torch.cat([pairs, place.unsqueeze(1).expand(-1, 2)])
        return cls._of(labels, torch.cat([rows, others]), positions, sizes)

    @classmethod
    def _of(
        cls, labels: Labelling, sequences: Tensor, positions: Tensor, sizes: Tensor
    ) -> "Pieces":  # fmt: skip
        states = labels.states
        chosen = states[sequences.unsqueeze(1), positions]
        chosen = torch.where(inside(sizes, 2), chosen, -1)
        return cls(Labelling(chosen, sizes), sequences, positions)

    def totals(self, values: Tensor, sequences: int) -> Tensor:
        """(sequences,) sums of values (P,) over the pieces of each."""
        return values.new_zeros(sequences).index_add(0, self.sequences, values)


class Likelihood(ABC):
    """The probability of labels given scores of labels and of pairs of them.

    Training calls `log_prob` alone, as a black box; subclasses implement it. Prediction calls
    `marginals` and `sample`.
    """

    @abstractmethod
    def log_prob(self, labels: Labelling, unary: Tensor, pairwise: Tensor) -> Tensor:
        """(S, B) log-probabilities in nats of B sequences, given each of S samples of scores.

        Differentiable in the scores if gradients are `Reparameterised`; entries beyond the
        lengths are ignored.

        Args:
            labels: the sequences.
            unary: (S, B, T, V) a score of every label at every position.
            pairwise: (S, V, V) a score of every pair of labels, [from, to].
        """

    def pieces(self, labels: Labelling) -> Pieces | None:
        """Pieces whose log-probabilities add up to those of their sequences, or None (default).

        Gradients by the score function are then those of each piece: less noisy, and cheaper.
        """
        return None

    def marginals(self, labels: Labelling, unary: Tensor, pairwise: Tensor) -> Tensor:
        """(S, B, T, V) probabilities of labels, zero beyond the lengths.

        Raises:
            UnsupportedError: the likelihood is for training alone.
        """
        raise UnsupportedError(f"{type(self).__name__} has no marginals; give it the method.")

    def sample(
        self, labels: Labelling, unary: Tensor, pairwise: Tensor, generator: torch.Generator | None
    ) -> Tensor:
        """(S, B, T) one draw of the labels given each sample of scores; -1 beyond the lengths.

        Raises:
            UnsupportedError: the likelihood is for training alone.
        """
        raise UnsupportedError(f"{type(self).__name__} has no samples; give it the method.")


class ChainLikelihood(Likelihood):
    """Linear chains, exactly: equation 1 of the paper.

    log Z costs O(S B T V^2), for all samples and sequences in one batch. Edges are refused:
    `GraphLikelihood` and `PiecewisePseudoLikelihood` take them.

    Galliani, Dezfouli, Bonilla and Quadrianto 2017, "Gray-box inference for structured Gaussian
    process models".
    """

    def log_prob(self, labels: Labelling, unary: Tensor, pairwise: Tensor) -> Tensor:
        _require_neighbours(labels)
        scores = chains.score(unary, pairwise, labels.states, labels.lengths)
        return chains.log_ratio(scores, chains.log_partition(unary, pairwise, labels.lengths))

    @by_autograd
    def marginals(self, labels: Labelling, unary: Tensor, pairwise: Tensor) -> Tensor:
        _require_neighbours(labels)
        with torch.enable_grad():
            unary = unary.detach().requires_grad_()
            total = chains.log_partition(unary, pairwise.detach(), labels.lengths).sum()
            (marginals,) = torch.autograd.grad(total, unary)
        return marginals

    def sample(
        self, labels: Labelling, unary: Tensor, pairwise: Tensor, generator: torch.Generator | None
    ) -> Tensor:
        """(S, B, T) draws by `Chain`."""
        _require_neighbours(labels)
        return chains.as_chain(unary, pairwise, labels.lengths).sample(1, generator)[0]


def _require_neighbours(labels: Labelling) -> None:
    if labels.edges is not None:
        raise UnsupportedError(
            "ChainLikelihood ties neighbours alone, and was given edges; use GraphLikelihood() or "
            "PiecewisePseudoLikelihood() as the likelihood."
        )


_LABEL = "label"


class GraphLikelihood(Likelihood):
    """A factor graph for each sequence: unary scores, and the pairwise ones on all its edges.

    Edges are given to `StructuredGP.fit` and to predictions, as pairs of positions; by default each
    position is joined to the next, as in a chain. Samples, and sequences whose edges are among
    those of a longer one, are solved as one batch of one graph, at the cost of the longest for
    each.

    With the default scheduler, log Z is exact where the graph is narrow enough, and otherwise that
    of message passing: then what is maximised is no bound of the evidence.

    Args:
        scheduler: how graphs are solved; ``rdpgraph.Contraction()`` for exactly or not at all,
            ``rdpgraph.Loopy()`` for message passing.
    """

    @typed()
    def __init__(self, scheduler: Scheduler | None = None) -> None:
        self.scheduler = scheduler

    def log_prob(self, labels: Labelling, unary: Tensor, pairwise: Tensor) -> Tensor:
        states, within = labels.states.clamp(min=0), labels.inside()
        unaries = torch.where(within, chains.chosen(unary, states), 0.0).sum(-1)

        def of_edges(batch: _GraphBatch, solved: Posterior) -> Tensor:
            ends = states[batch.rows.unsqueeze(1), batch.edges.T.unsqueeze(1)]
            pairs = chains.pair_scores(pairwise, ends[0], ends[1], batch.there)
            return chains.log_ratio(unaries[:, batch.rows] + pairs, solved.log_partition)

        return self._answers(labels, unary, pairwise, of_edges)

    def marginals(self, labels: Labelling, unary: Tensor, pairwise: Tensor) -> Tensor:

        def of_labels(batch: _GraphBatch, solved: Posterior) -> Tensor:
            return pad(solved.marginal(_LABEL), (0, 0, 0, unary.shape[2] - batch.inside.shape[1]))

        probabilities = self._answers(labels, unary, pairwise, of_labels)
        return torch.where(labels.inside().unsqueeze(-1), probabilities, 0.0)

    def sample(
        self, labels: Labelling, unary: Tensor, pairwise: Tensor, generator: torch.Generator | None
    ) -> Tensor:
        """(S, B, T) draws, where graphs are solved exactly."""

        def of_labels(batch: _GraphBatch, solved: Posterior) -> Tensor:
            return pad(
                solved.sample(1, generator)[_LABEL][0], (0, unary.shape[2] - batch.inside.shape[1])
            )

        drawn = self._answers(labels, unary, pairwise, of_labels)
        return torch.where(labels.inside(), drawn, -1)

    def _answers(
        self,
        labels: Labelling,
        unary: Tensor,
        pairwise: Tensor,
        of: Callable[["_GraphBatch", Posterior], Tensor],
    ) -> Tensor:
        """(S, B, ...) the answers by `of` for each batch and its solution."""
        batches = _batches(labels)
        if not batches:
            raise ModelError("GraphLikelihood needs at least one sequence; got none.")
        parts = [
            of(batch, infer(batch.graph(unary, pairwise), scheduler=self.scheduler))
            for batch in batches
        ]
        return torch.cat(parts, 1)[:, torch.cat([batch.rows for batch in batches]).argsort()]


class PiecewisePseudoLikelihood(Likelihood):
    """Pairs of tied positions, each label predicted from the other.

    The sum over neighbours, or over edges where these are given, of log p(y | y', both unary
    scores) and log p(y' | y, ...), without a recursion. Every piece counts its unary scores, as in
    section 2.2 of the source; so positions inside a sequence count twice, and those without
    neighbours or edges once. Not a lower bound of the likelihood. Predictions are those of
    `ChainLikelihood`, or of `GraphLikelihood` where edges are given.

    Sutton and McCallum 2007, "Piecewise pseudolikelihood for efficient training of conditional
    random fields".

    Args:
        scheduler: how graphs of edges are solved in predictions, as for `GraphLikelihood`; training
            solves none, and chains do not need it.
    """

    @typed()
    def __init__(self, scheduler: Scheduler | None = None) -> None:
        self.scheduler = scheduler

    def pieces(self, labels: Labelling) -> Pieces:
        return Pieces.neighbours(labels)

    def log_prob(self, labels: Labelling, unary: Tensor, pairwise: Tensor) -> Tensor:
        """(S, B) nats, the log of the pseudo-likelihood."""
        if labels.edges is not None:
            return self._of_edges(labels, unary, pairwise)
        states = labels.states.clamp(min=0)
        alone = _log_chances(unary[:, :, 0], states[:, 0])
        total = torch.where(labels.lengths == 1, alone, 0.0)
        if states.shape[1] < 2:
            return total
        terms = _of_pairs(
            unary[:, :, :-1], unary[:, :, 1:], pairwise, states[:, :-1], states[:, 1:]
        )
        return total + torch.where(labels.inside()[:, 1:], terms, 0.0).sum(-1)

    def _of_edges(self, labels: Labelling, unary: Tensor, pairwise: Tensor) -> Tensor:
        """`log_prob` by the pieces of a labelling with edges."""
        pieces, (samples, batch, steps, _) = self.pieces(labels), unary.shape
        places = pieces.sequences.unsqueeze(1) * steps + pieces.positions
        # Each end of each piece: (S, P, V).
        one, other = (unary.flatten(1, 2).index_select(1, end) for end in places.unbind(1))
        before, after = pieces.labels.states.clamp(min=0).unbind(1)
        pairs = _of_pairs(one, other, pairwise, before, after)
        terms = torch.where(pieces.labels.lengths == 2, pairs, _log_chances(one, before))
        return unary.new_zeros(samples, batch).index_add(1, pieces.sequences, terms)

    def marginals(self, labels: Labelling, unary: Tensor, pairwise: Tensor) -> Tensor:
        return self._whole(labels).marginals(labels, unary, pairwise)

    def sample(
        self, labels: Labelling, unary: Tensor, pairwise: Tensor, generator: torch.Generator | None
    ) -> Tensor:
        """(S, B, T) draws by the chain, or the graph of the edges."""
        return self._whole(labels).sample(labels, unary, pairwise, generator)

    def _whole(self, labels: Labelling) -> Likelihood:
        """Return the likelihood of whole sequences, of a chain or of the graph of the edges."""
        return ChainLikelihood() if labels.edges is None else GraphLikelihood(self.scheduler)


def _of_pairs(
    one: Tensor, other: Tensor, pairwise: Tensor, before: Tensor, after: Tensor
) -> Tensor:  # fmt: skip
    """(S, ...) log p(after | before) + log p(before | after), with scores (S, ..., V) of both."""
    forward = other + pairwise[:, before]
    backward = one + pairwise.mT[:, after]
    return _log_chances(forward, after) + _log_chances(backward, before)


def _log_chances(scores: Tensor, states: Tensor) -> Tensor:
    """(S, ...) log-probabilities of states (...) by scores (S, ..., V); -inf where impossible."""
    index = states.expand(scores.shape[:-1]).unsqueeze(-1)
    return chains.log_ratio(scores.gather(-1, index).squeeze(-1), soft_sum(scores, -1))


@dataclass(frozen=True, eq=False)
class _GraphBatch:
    """Sequences that are solved as one graph.

    Attributes:
        rows: (n,) their numbers.
        inside: (n, T) True within the length.
        edges: (E, 2) of the graph.
        there: (n, E) True where a sequence has the edge.
    """

    rows: Tensor
    inside: Tensor
    edges: Tensor
    there: Tensor

    def graph(self, unary: Tensor, pairwise: Tensor) -> FactorGraph:
        """A graph of batch shape (S, n); positions beyond the length are free, and sum to 1."""
        length = self.inside.shape[1]
        array = VariableArray(_LABEL, (length,), unary.shape[-1])
        free = -math.log(unary.shape[-1])
        scores = torch.where(self.inside.unsqueeze(-1), unary[:, self.rows, :length], free)
        blocks = [FactorBlock((array,), Table.from_logs(scores))]
        if len(self.edges):
            table = pairwise[:, None, None]
            if not bool(self.there.all()):
                table = torch.where(self.there[..., None, None], table, 0.0)
            ends = tuple(array[end] for end in self.edges.T.tolist())
            blocks.append(FactorBlock(ends, Table.from_logs(table)))
        return FactorGraph(blocks)


def _batches(labels: Labelling) -> list[_GraphBatch]:
    """Batches of sequences whose edges are among those of the first one."""
    device, lengths = labels.states.device, labels.lengths.tolist()
    each = [_edges(labels, row, length) for row, length in enumerate(lengths)]
    members: list[list[int]] = []
    for row in sorted(range(len(each)), key=lambda row: (-lengths[row], -each[row].total())):
        for rows in members:
            if each[row] <= each[rows[0]]:
                rows.append(row)
                break
        else:
            members.append([row])
    batches: list[_GraphBatch] = []
    for rows in members:
        edges = sorted(each[rows[0]].elements())
        # A repeated edge is matched by its count.
        nth = [edges[:place].count(edge) for place, edge in enumerate(edges)]
        there = [[each[row][edge] > n for edge, n in zip(edges, nth, strict=True)] for row in rows]
        batches.append(
            _GraphBatch(
                torch.tensor(rows, device=device),
                labels.inside()[rows, : lengths[rows[0]]],
                torch.tensor(edges, dtype=torch.long, device=device).reshape(-1, 2),
                torch.tensor(there, dtype=torch.bool, device=device).reshape(len(rows), -1),
            )
        )
    return batches


def _edges(labels: Labelling, row: int, length: int) -> Counter[tuple[int, int]]:
    """The multiplicity of each tied pair of positions of a sequence."""
    if labels.edges is None:
        return Counter((step, step + 1) for step in range(length - 1))
    return Counter((one, other) for one, other in labels.edges[row].tolist())
