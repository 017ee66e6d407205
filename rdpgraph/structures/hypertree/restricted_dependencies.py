"""Dependency trees on a few heads of each word, weighted: what estimators solve."""

import math
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from rdpgraph.model.semiring import soft_sum
from rdpgraph.model.structure import Structure
from rdpgraph.model.support import gathered
from rdpgraph.structures.draws import Pick, drawn, largest
from rdpgraph.structures.hypertree.moments import entropy_of
from rdpgraph.structures.relaxation import perturbed


@dataclass(frozen=True, eq=False)
class RestrictedDependencies(Structure):
    """Dependency trees whose words have K kept heads each, numbered 0..K-1.

    Z is linear in the weights of each word's heads, so that it is unbiased if they are. The heads
    that are not kept are forbidden: this costs what the original does. Made by
    `Dependencies.restrict`.

    Args:
        unary: (*lead, n, K) log-potentials (nats) of the kept heads, weights included.
        states: (*lead, n, K) which heads of the original they are; repeats are separate.
        original: the trees, by their heads; its batch dims are the last ones of lead.
        lengths: (*lead,); default: all n.
    """

    states: Tensor
    original: Structure
    lengths: Tensor | None = field(default=None, kw_only=True)

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Replicates and batch dims."""
        return tuple(self.unary.shape[:-2])

    def log_partition(self) -> Tensor:
        """(*lead,) log Z in nats."""
        return self._wide(1.0).log_partition()

    def entropy(self) -> Tensor:
        """(*lead,) log Z less the expected score, weights included; 0 where nothing is possible."""
        return entropy_of(self)

    def max_marginals(self) -> Tensor:
        """(*lead, n, K) the score of the best tree with each entry, -inf where there is none.

        Not differentiable.
        """
        wide = self._wide(0.0)
        scores = _answered(wide.max_marginals()).gather(-1, self.states)
        behind = self.unary.detach() - wide.unary.detach().gather(-1, self.states)
        return torch.where(scores > -math.inf, scores + behind, -math.inf)

    def mode(self) -> Tensor:
        """(*lead, n) numbers of kept heads of a best tree, -1 beyond the length.

        Raises:
            ImpossibleEvidenceError: an item has no possible tree.
        """
        return self._numbers(_answered(self._wide(0.0).mode()).unsqueeze(0), largest)[0]

    def sample(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """(count, *lead, n) exact draws, as `mode` gives its tree.

        Raises:
            ImpossibleEvidenceError: an item has no possible tree.
        """
        heads = _answered(self._wide(1.0).sample(count, generator))
        return self._numbers(heads, drawn(generator))

    def rsample(
        self, count: int, *, temperature: float, generator: torch.Generator | None = None
    ) -> Tensor:
        """(count, *lead, n, K) relaxed one-hot entries, as `Dependencies.rsample`.

        Raises:
            ModelError: a temperature that is not above 0.
        """
        unary, lengths = perturbed(
            self.unary, self.lengths, count=count, temperature=temperature, generator=generator
        )
        states = self.states.expand(unary.shape)
        return replace(self, unary=unary, states=states, lengths=lengths).marginals()

    def work(self) -> float:
        """The terms of log Z."""
        return math.prod(self.batch_shape) * float(self.unary.shape[-2] + 1) ** 3

    def _wide(self, temperature: float) -> Structure:
        """The trees over all heads; those that are not kept are forbidden."""
        heads = torch.arange(self.unary.shape[-2] + 1, device=self.unary.device)
        same = self.states.unsqueeze(-1) == heads
        unary = soft_sum(torch.where(same, self.unary.unsqueeze(-1), -math.inf), -2, temperature)
        return replace(self.original, unary=unary, lengths=self.lengths)

    def _numbers(self, heads: Tensor, pick: Pick) -> Tensor:
        """(count, *lead, n) entries with these heads, of several one by its weight."""
        logs = torch.where(self.states == heads.unsqueeze(-1), self.unary.detach(), -math.inf)
        inside = heads >= 0
        logs = torch.where(inside.unsqueeze(-1), logs, 0.0)
        chosen = pick(logs.double().reshape(-1, logs.shape[-1])).reshape(heads.shape)
        return torch.where(inside, chosen, -1)


def _answered(answer: Tensor | None) -> Tensor:
    """What these trees answer themselves."""
    assert answer is not None
    return answer


def restrict_dependencies(
    trees: Structure, lengths: Tensor | None, states: Tensor, log_weights: Tensor
) -> RestrictedDependencies:
    """What `Dependencies.restrict` gives.

    Raises:
        ModelError: shapes that do not fit, or a head out of range.
    """
    kept = gathered(type(trees).__name__, trees.unary, states, log_weights, sites=1)
    lengths = None if lengths is None else lengths.expand(states.shape[:-2])
    return RestrictedDependencies(kept, states, trees, lengths=lengths)
