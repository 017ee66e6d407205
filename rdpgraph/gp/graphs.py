"""Labels of a graph: skip chains, grids, whatever the edges say."""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from rdpgraph.gp import chains
from rdpgraph.gp.labelling import Labelling
from rdpgraph.gp.likelihoods import Likelihood
from rdpgraph.infer import infer
from rdpgraph.model.factor import FactorBlock
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.table import Table
from rdpgraph.model.variable import VariableArray
from rdpgraph.query.posterior import Posterior
from rdpgraph.schedulers import Scheduler

_LABEL = "label"


class GraphLikelihood(Likelihood):
    """A factor graph for each sequence: unary scores, and the pairwise ones on all its edges.

    Edges are given to `StructuredGP.fit` and to predictions, as pairs of positions; without them
    neighbours are tied, as in a chain. Samples, and sequences whose edges are among those of a
    longer one, are one batch of one graph: sequences of one kind need one solution, whose cost is
    that of the longest for each of them.

    With the default scheduler, log Z is exact where the graph is narrow enough, and otherwise that
    of message passing: then what is maximised is no bound of the evidence.

    Args:
        scheduler: how graphs are solved; ``rdpgraph.Contraction()`` for exactly or not at all,
            ``rdpgraph.Loopy()`` for message passing.
    """

    def __init__(self, scheduler: Scheduler | None = None) -> None:
        self.scheduler = scheduler

    def log_prob(self, labels: Labelling, unary: Tensor, pairwise: Tensor) -> Tensor:
        """(S, B) nats."""
        states, within = labels.states.clamp(min=0), labels.inside()
        own = torch.where(within, chains.chosen(unary, states), 0.0).sum(-1)

        def of_edges(batch: _Batch, solved: Posterior) -> Tensor:
            ends = states[batch.rows.unsqueeze(1), batch.edges.T.unsqueeze(1)]
            pairs = chains.pair_scores(pairwise, ends[0], ends[1], batch.there)
            return pairs - solved.log_partition

        return own + self._answers(labels, unary, pairwise, of_edges)

    def marginals(self, labels: Labelling, unary: Tensor, pairwise: Tensor) -> Tensor:
        """(S, B, T, V) probabilities."""

        def of_labels(batch: _Batch, solved: Posterior) -> Tensor:
            return pad(solved.marginal(_LABEL), (0, 0, 0, unary.shape[2] - batch.length))

        probabilities = self._answers(labels, unary, pairwise, of_labels)
        return torch.where(labels.inside().unsqueeze(-1), probabilities, 0.0)

    def sample(
        self, labels: Labelling, unary: Tensor, pairwise: Tensor, generator: torch.Generator | None
    ) -> Tensor:
        """(S, B, T) draws, where graphs are solved exactly."""

        def of_labels(batch: _Batch, solved: Posterior) -> Tensor:
            return pad(solved.sample(1, generator)[_LABEL][0], (0, unary.shape[2] - batch.length))

        drawn = self._answers(labels, unary, pairwise, of_labels)
        return torch.where(labels.inside(), drawn, -1)

    def _answers(
        self,
        labels: Labelling,
        unary: Tensor,
        pairwise: Tensor,
        of: Callable[["_Batch", Posterior], Tensor],
    ) -> Tensor:
        """(S, B, ...) what `of` makes of each batch and its solution."""
        batches = _batches(labels)
        parts = [
            of(batch, infer(batch.graph(unary, pairwise), scheduler=self.scheduler))
            for batch in batches
        ]
        return torch.cat(parts, 1)[:, torch.cat([batch.rows for batch in batches]).argsort()]


@dataclass(frozen=True, eq=False)
class _Batch:
    """Sequences that are solved as one graph.

    Attributes:
        rows: (n,) which ones.
        inside: (n, T) whether a position is within the length.
        edges: (E, 2) of the graph.
        there: (n, E) whether a sequence has the edge.
    """

    rows: Tensor
    inside: Tensor
    edges: Tensor
    there: Tensor

    @property
    def length(self) -> int:
        """T, the number of positions of the longest sequence."""
        return self.inside.shape[1]

    def graph(self, unary: Tensor, pairwise: Tensor) -> FactorGraph:
        """A batch (S, n). Positions that are not there are free, and sum to 1."""
        array = VariableArray(_LABEL, (self.length,), unary.shape[-1])
        free = -math.log(unary.shape[-1])
        own = torch.where(self.inside.unsqueeze(-1), unary[:, self.rows, : self.length], free)
        blocks = [FactorBlock((array,), Table.from_logs(own))]
        if len(self.edges):
            table = pairwise[:, None, None]
            if not bool(self.there.all()):
                table = torch.where(self.there[..., None, None], table, 0.0)
            ends = tuple(array[end] for end in self.edges.T.tolist())
            blocks.append(FactorBlock(ends, Table.from_logs(table)))
        return FactorGraph(blocks)


def _batches(labels: Labelling) -> list[_Batch]:
    """Sequences with those whose edges are among theirs: no graph is wider than the widest."""
    device, lengths = labels.states.device, labels.lengths.tolist()
    own = [_edges(labels, row, length) for row, length in enumerate(lengths)]
    members: list[list[int]] = []
    for row in sorted(range(len(own)), key=lambda row: (-lengths[row], -own[row].total())):
        for rows in members:
            if own[row] <= own[rows[0]]:
                rows.append(row)
                break
        else:
            members.append([row])
    batches: list[_Batch] = []
    for rows in members:
        edges = sorted(own[rows[0]].elements())
        # An edge that is there n times is the first n of its like.
        nth = [edges[:place].count(edge) for place, edge in enumerate(edges)]
        there = [[own[row][edge] > n for edge, n in zip(edges, nth, strict=True)] for row in rows]
        batches.append(
            _Batch(
                torch.tensor(rows, device=device),
                labels.inside()[rows, : lengths[rows[0]]],
                torch.tensor(edges, dtype=torch.long, device=device).reshape(-1, 2),
                torch.tensor(there, dtype=torch.bool, device=device).reshape(len(rows), -1),
            )
        )
    return batches


def _edges(labels: Labelling, row: int, length: int) -> Counter[tuple[int, int]]:
    """How often each pair of positions of a sequence is tied."""
    if labels.edges is None:
        return Counter((step, step + 1) for step in range(length - 1))
    return Counter((one, other) for one, other in labels.edges[row].tolist())
