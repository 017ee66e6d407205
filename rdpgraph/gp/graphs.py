"""Labels of a graph: skip chains, grids, whatever the edges say."""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import pad

from rdpgraph.gp.likelihoods import Labelling, Likelihood
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
    neighbours are tied, as in a chain. Samples of the scores are one batch of one graph, and so of
    one plan; sequences are solved one after another.

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
        found: list[Tensor] = []
        for item, graph in self._graphs(labels, unary, pairwise):
            own = labels.states[item, : int(labels.lengths[item])]
            found.append(graph.score({_LABEL: own}) - self._solved(graph).log_partition)
        return torch.stack(found, 1)

    def marginals(self, labels: Labelling, unary: Tensor, pairwise: Tensor) -> Tensor:
        """(S, B, T, V) probabilities."""
        longest = unary.shape[2]
        found = [
            pad(marginal, (0, 0, 0, longest - marginal.shape[1]))
            for _, graph in self._graphs(labels, unary, pairwise)
            for marginal in [self._solved(graph).marginal(_LABEL)]
        ]
        return torch.stack(found, 1)

    def sample(
        self, labels: Labelling, unary: Tensor, pairwise: Tensor, generator: torch.Generator | None
    ) -> Tensor:
        """(S, B, T) draws, where graphs are solved exactly."""
        longest = unary.shape[2]
        found: list[Tensor] = []
        for _, graph in self._graphs(labels, unary, pairwise):
            drawn = self._solved(graph).sample(1, generator)[_LABEL][0]
            found.append(pad(drawn, (0, longest - drawn.shape[1]), value=-1))
        return torch.stack(found, 1)

    def _solved(self, graph: FactorGraph) -> Posterior:
        return infer(graph, scheduler=self.scheduler)

    def _graphs(
        self, labels: Labelling, unary: Tensor, pairwise: Tensor
    ) -> Iterator[tuple[int, FactorGraph]]:
        """The graph of each sequence, a batch of samples."""
        states = unary.shape[-1]
        for item, length in enumerate(labels.lengths.tolist()):
            array = VariableArray(_LABEL, (length,), states)
            blocks = [FactorBlock((array,), Table(unary[:, item, :length]))]
            if labels.edges is None:
                sources, targets = torch.arange(length - 1), torch.arange(1, length)
            else:
                sources, targets = labels.edges[item].unbind(1)
            if len(sources):
                table = Table(pairwise.unsqueeze(1))
                blocks.append(
                    FactorBlock((array[sources.tolist()], array[targets.tolist()]), table)
                )
            yield item, FactorGraph(blocks)
