"""How probable labels are, given the functions: all that training asks of a structure."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from rdpgraph.errors import UnsupportedError
from rdpgraph.gp import chains
from rdpgraph.structures.chain.factors import inside


@dataclass(frozen=True, eq=False)
class Labelling:
    """Sequences of labels, padded to one length.

    Attributes:
        states: (B, T) labels from 0; -1 beyond the lengths, and throughout where labels are asked
            for.
        lengths: (B,) from 1 to T.
        edges: for each sequence, (E, 2) the pairs of positions that influence each other; None
            for neighbours.
    """

    states: Tensor
    lengths: Tensor
    edges: tuple[Tensor, ...] | None = None

    def inside(self) -> Tensor:
        """(B, T) whether a position is within the length."""
        return inside(self.lengths, self.states.shape[1])


class Likelihood(ABC):
    """The probability of labels given scores of labels and of pairs of them.

    Training asks for `log_prob` alone, as a black box: one of your own is a subclass with it.
    Prediction asks for `marginals` and `sample`, which `ChainLikelihood` lends to those that train
    by a likelihood that is cheaper.
    """

    @abstractmethod
    def log_prob(self, labels: Labelling, unary: Tensor, pairwise: Tensor) -> Tensor:
        """(S, B) log-probabilities in nats of B sequences, given each of S samples of scores.

        Differentiable in the scores if gradients are `Reparameterised`; what stands beyond the
        lengths is not read.

        Args:
            labels: the sequences.
            unary: (S, B, T, V) a score of every label at every position.
            pairwise: (S, V, V) a score of every pair of labels, [from, to].
        """

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

    log Z costs O(S B T V^2) and is one batch of all samples and sequences (`gp.chains`).

    Galliani, Dezfouli, Bonilla and Quadrianto 2017, "Gray-box inference for structured Gaussian
    process models".
    """

    def log_prob(self, labels: Labelling, unary: Tensor, pairwise: Tensor) -> Tensor:
        """(S, B) nats."""
        scores = chains.score(unary, pairwise, labels.states, labels.lengths)
        return scores - chains.log_partition(unary, pairwise, labels.lengths)

    def marginals(self, labels: Labelling, unary: Tensor, pairwise: Tensor) -> Tensor:
        """(S, B, T, V) probabilities."""
        with torch.enable_grad():
            unary = unary.detach().requires_grad_()
            total = chains.log_partition(unary, pairwise.detach(), labels.lengths).sum()
            (found,) = torch.autograd.grad(total, unary)
        return found

    def sample(
        self, labels: Labelling, unary: Tensor, pairwise: Tensor, generator: torch.Generator | None
    ) -> Tensor:
        """(S, B, T) draws by `Chain`."""
        return chains.as_chain(unary, pairwise, labels.lengths).sample(1, generator)[0]


class PiecewisePseudoLikelihood(ChainLikelihood):
    """Linear chains by pieces of two neighbours, each of whose labels is predicted from the other.

    The sum over neighbours of log p(y | y', both unary scores) and log p(y' | y, ...): no sum over
    sequences, O(S B T V). Every piece counts its unary scores, as in section 2.2 of the source;
    so positions inside a sequence count twice, and those alone once. Not a lower bound of the
    likelihood. Predictions are those of the chain.

    Sutton and McCallum 2007, "Piecewise pseudolikelihood for efficient training of conditional
    random fields".
    """

    def log_prob(self, labels: Labelling, unary: Tensor, pairwise: Tensor) -> Tensor:
        """(S, B) nats, the log of the pseudo-likelihood."""
        states = labels.states.clamp(min=0)
        if states.shape[1] < 2:
            return _chosen(unary.log_softmax(-1), states).sum(-1)
        linked = labels.inside()[:, 1:]
        first, second = states[:, :-1], states[:, 1:]
        forward = unary[:, :, 1:] + pairwise[:, first]
        backward = unary[:, :, :-1] + pairwise.mT[:, second]
        terms = _chosen(forward.log_softmax(-1), second) + _chosen(backward.log_softmax(-1), first)
        total = torch.where(linked, terms, 0.0).sum(-1)
        alone = labels.lengths == 1
        if not bool(alone.any()):
            return total
        single = _chosen(unary[:, :, :1].log_softmax(-1), states[:, :1]).squeeze(-1)
        return torch.where(alone, single, total)


def _chosen(values: Tensor, states: Tensor) -> Tensor:
    """(S, B, T) of (S, B, T, V), the entries of states (B, T)."""
    index = states.unsqueeze(-1).expand(*values.shape[:-1], 1)
    return values.gather(-1, index).squeeze(-1)
