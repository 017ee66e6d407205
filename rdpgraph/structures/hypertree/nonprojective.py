"""Dependency trees of any kind."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rdpgraph.model.soundness import require_possible
from rdpgraph.structures.draws import Pick, checked_count, drawn, largest
from rdpgraph.structures.hypertree import arborescence, edmonds, elimination, tree_lists
from rdpgraph.structures.hypertree.arborescence import faint_arcs
from rdpgraph.structures.hypertree.dependencies import Dependencies


@dataclass(frozen=True, eq=False, init=False)
class NonProjectiveDependencies(Dependencies):
    """Dependency trees of any kind: log Z is the log-determinant of a Laplacian.

    The matrix-tree theorem (Koo et al. 2007; Smith and Smith 2007). Words are eliminated one by
    one without any subtraction, in log-space (the GTH form of Gaussian elimination), so that
    scores of any range keep their precision, and hard zeros are exact. O(n^3).

    The k best trees of a few short sentences are found in lists, in Python: O(k n^4) at most.

    Example:
        >>> trees = NonProjectiveDependencies(torch.zeros(3, 4), multiroot=True)
        >>> trees.log_partition().exp().round()  # Cayley: (n + 1)^(n - 1)
        tensor(16.)
    """

    def log_partition(self) -> Tensor:
        """(*batch,) log Z in nats; twice differentiable."""
        unary, lengths = self._strong_parts()
        log_z = arborescence.log_partition(unary, lengths, multiroot=self.multiroot)
        return log_z.reshape(self.batch_shape)

    def marginals(self) -> Tensor:
        """(*batch, n, n + 1) probabilities of the arcs: the gradient of log Z, not below 0."""
        return super().marginals().clamp(min=0.0)

    def mode(self) -> Tensor:
        """(*batch, n) the heads of one most probable tree; -1 beyond the length.

        Of all items at once, O(n^3).

        Raises:
            ImpossibleEvidenceError: an item has no possible tree.
        """
        return self._descended(1, 0.0, largest)[0]

    def max_marginals(self) -> Tensor:
        """(*batch, n, n + 1) the score of the best tree with each arc; -inf where none has it.

        Not differentiable. Of all arcs at once, O(n^3).
        """
        unary, lengths = self._parts()
        strong, _ = self._strong_parts()
        scores = elimination.max_marginals(unary, lengths, multiroot=self.multiroot)
        if bool((strong != unary).any()):
            among = elimination.max_marginals(
                unary, lengths, multiroot=self.multiroot, others=strong
            )
            scores = torch.where(among > -math.inf, among, scores)
        return scores.reshape(self.unary.shape)

    def sample(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """(count, *batch, n) the heads of independent exact draws; -1 beyond the length.

        O(n^3) for each item, and O(n^2 log n) for each draw.

        Raises:
            ImpossibleEvidenceError: an item has no possible tree.
        """
        return self._descended(checked_count(count, self.states_shape), 1.0, drawn(generator))

    def _k_best(self, unary: Tensor, lengths: Tensor, k: int) -> Tensor:
        ways = edmonds if edmonds.quicker(*unary.shape[:2]) else tree_lists
        return ways.k_best(unary, lengths, k, multiroot=self.multiroot)

    def _strong_parts(self) -> tuple[Tensor, Tensor]:
        """The potentials and lengths, with arcs at -inf that add nothing to a sum."""
        unary, lengths = self._parts()
        faint = None if self.multiroot else faint_arcs(unary, lengths)
        return unary if faint is None else unary.masked_fill(faint, -math.inf), lengths

    def _descended(self, count: int, temperature: float, pick: Pick) -> Tensor:
        unary, lengths = self._strong_parts()
        eliminated = elimination.eliminated(
            unary, lengths, multiroot=self.multiroot, temperature=temperature
        )
        lacking = f"{type(self).__name__} has no samples and no mode"
        require_possible(lacking, eliminated.possible.reshape(self.batch_shape))
        return self._shaped(eliminated.descend(count, pick), (count,), lengths)
