"""Dependency trees without crossing arcs."""

from dataclasses import dataclass

import torch
from torch import Tensor

from rdpgraph.structures.draws import Pick, checked_count, drawn, largest
from rdpgraph.structures.hypertree.arcs import ProjectiveArcs
from rdpgraph.structures.hypertree.dependencies import Dependencies
from rdpgraph.structures.tape.best import best
from rdpgraph.structures.tape.descend import descend
from rdpgraph.structures.tape.up import up


@dataclass(frozen=True, eq=False, init=False)
class ProjectiveDependencies(Dependencies):
    """Dependency trees without crossing arcs: every subtree is a span. Eisner 1996.

    O(n^3) time, over all spans of a width at once; O(n^3) numbers are kept for the gradient. With
    ``multiroot`` False, the default, one word has the root as its head.

    Example:
        >>> trees = ProjectiveDependencies(torch.zeros(3, 4), multiroot=True)
        >>> trees.log_partition().exp().round()
        tensor(12.)
    """

    def log_partition(self) -> Tensor:
        """(*batch,) log Z in nats; twice differentiable."""
        return self._recursion(self.unary).log_partition()

    def mode(self) -> Tensor:
        """(*batch, n) the heads of one most probable tree; -1 beyond the length.

        Raises:
            ImpossibleEvidenceError: an item has no possible tree.
        """
        return self._descended(1, 0.0, largest)[0]

    def sample(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """(count, *batch, n) the heads of independent exact draws; -1 beyond the length.

        Raises:
            ImpossibleEvidenceError: an item has no possible tree.
        """
        return self._descended(checked_count(count), 1.0, drawn(generator))

    def max_marginals(self) -> Tensor:
        """(*batch, n, n + 1) the score of the best tree with each arc; -inf where none has it.

        Not differentiable. O(n^3).
        """
        return self._recursion(self.unary.detach()).max_marginals()

    @torch.no_grad()
    def _k_best(self, unary: Tensor, lengths: Tensor, k: int) -> Tensor:
        tape = self._recursion(self.unary).to_tape(double=True)
        heads, _ = best(tape, up(tape, 0.0), k)
        return heads.reshape(k, *unary.shape[:2])

    def _recursion(self, unary: Tensor) -> ProjectiveArcs:
        return ProjectiveArcs(unary, self.multiroot, self.lengths)

    @torch.no_grad()
    def _descended(self, count: int, temperature: float, pick: Pick) -> Tensor:
        tape = self._recursion(self.unary).to_tape(double=True)
        drawn = descend(tape, up(tape, temperature), count, pick, name=type(self).__name__)
        return drawn.states(tape, count)

    def _is_tree(self, heads: Tensor, inside: Tensor) -> Tensor:
        word = torch.arange(1, heads.shape[2] + 1, device=heads.device)
        low, high = torch.minimum(heads, word), torch.maximum(heads, word)
        first, second = (low.unsqueeze(3), high.unsqueeze(3)), (low.unsqueeze(2), high.unsqueeze(2))
        crossing = (first[0] < second[0]) & (second[0] < first[1]) & (first[1] < second[1])
        both = inside.unsqueeze(2) & inside.unsqueeze(1)
        return super()._is_tree(heads, inside) & ~(crossing & both).flatten(2).any(2)
