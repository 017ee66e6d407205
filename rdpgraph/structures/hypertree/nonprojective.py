"""Dependency trees of any kind."""

from dataclasses import dataclass

import torch
from torch import Tensor

from rdpgraph.model.gradients import by_autograd
from rdpgraph.structures.draws import checked_count, drawn
from rdpgraph.structures.hypertree import arborescence, edmonds
from rdpgraph.structures.hypertree.dependencies import Dependencies


@dataclass(frozen=True, eq=False, init=False)
class NonProjectiveDependencies(Dependencies):
    """Dependency trees of any kind: log Z is the log-determinant of a Laplacian.

    The matrix-tree theorem (Koo et al. 2007; Smith and Smith 2007). Words are eliminated one by
    one without any subtraction, in log-space (the GTH form of Gaussian elimination), so that
    scores of any range keep their precision, and hard zeros are exact. O(n^3).

    Example:
        >>> trees = NonProjectiveDependencies(torch.zeros(3, 4), multiroot=True)
        >>> trees.log_partition().exp().round()  # Cayley: (n + 1)^(n - 1)
        tensor(16.)
    """

    def log_partition(self) -> Tensor:
        """(*batch,) log Z in nats; twice differentiable."""
        unary, lengths = self._parts()
        found = arborescence.log_partition(unary, lengths, multiroot=self.multiroot)
        return found.reshape(self.batch_shape)

    def marginals(self) -> Tensor:
        """(*batch, n, n + 1) probabilities of the arcs: the gradient of log Z, not below 0."""
        return super().marginals().clamp(min=0.0)

    def mode(self) -> Tensor:
        """(*batch, n) the heads of one most probable tree; -1 beyond the length.

        By the algorithm of Chu and Liu, and Edmonds, item by item.

        Raises:
            ImpossibleEvidenceError: an item has no possible tree.
        """
        unary, lengths = self._parts()
        with torch.no_grad():
            self._require_possible(self.log_partition())
        return self._shaped(edmonds.best(unary, lengths, multiroot=self.multiroot), (), lengths)

    def max_marginals(self) -> Tensor:
        """(*batch, n, n + 1) the score of the best tree with each arc; -inf where none has it.

        Not differentiable. One best tree for each arc, O(n^5), item by item.
        """
        unary, lengths = self._parts()
        found = edmonds.max_marginals(unary, lengths, multiroot=self.multiroot)
        return found.reshape(self.unary.shape)

    def _k_best(self, unary: Tensor, lengths: Tensor, k: int) -> Tensor:
        return edmonds.k_best(unary, lengths, k, multiroot=self.multiroot)

    @by_autograd
    def sample(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """(count, *batch, n) the heads of independent exact draws; -1 beyond the length.

        Word by word, each from its marginal given the heads before it: n times the cost of
        `marginals` for each draw.

        Raises:
            ImpossibleEvidenceError: an item has no possible tree.
        """
        unary, lengths = self._parts()
        with torch.no_grad():
            self._require_possible(self.log_partition())
        heads = arborescence.draw(
            unary, lengths, checked_count(count), drawn(generator), self.multiroot
        )
        return self._shaped(heads, (count,), lengths)
