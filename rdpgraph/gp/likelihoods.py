"""How probable labels are, given the functions: all that training asks of a structure."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from rdpgraph.errors import UnsupportedError
from rdpgraph.gp import chains
from rdpgraph.gp.labelling import Labelling, Pieces


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

    def pieces(self, labels: Labelling) -> Pieces | None:
        """Pieces whose log-probabilities add up to those of their sequences, if there are such.

        Then gradients by the score function are those of each piece: they scatter less, and cost
        less. None, the default, where the likelihood looks at sequences as wholes.
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
            (marginals,) = torch.autograd.grad(total, unary)
        return marginals

    def sample(
        self, labels: Labelling, unary: Tensor, pairwise: Tensor, generator: torch.Generator | None
    ) -> Tensor:
        """(S, B, T) draws by `Chain`."""
        return chains.as_chain(unary, pairwise, labels.lengths).sample(1, generator)[0]


class PiecewisePseudoLikelihood(ChainLikelihood):
    """Linear chains by pieces of two neighbours, each of whose labels is predicted from the other.

    The sum over neighbours of log p(y | y', both unary scores) and log p(y' | y, ...): no recursion
    over positions, but two products of matrices. Every piece counts its unary scores, as in
    section 2.2 of the source; so positions inside a sequence count twice, and those alone once. Not
    a lower bound of the likelihood. Predictions are those of the chain.

    Sutton and McCallum 2007, "Piecewise pseudolikelihood for efficient training of conditional
    random fields".
    """

    def pieces(self, labels: Labelling) -> Pieces:
        """Neighbours, two by two."""
        return Pieces.neighbours(labels)

    def log_prob(self, labels: Labelling, unary: Tensor, pairwise: Tensor) -> Tensor:
        """(S, B) nats, the log of the pseudo-likelihood."""
        states, within = labels.states.clamp(min=0), labels.inside()
        own = chains.chosen(unary, states)
        linked = within[:, 1:]
        alone = (labels.lengths == 1).to(own.dtype)
        total = alone * (own[..., 0] - unary[:, :, 0].logsumexp(-1))
        if states.shape[1] < 2:
            return total
        sums = chains.log_sums(unary, pairwise, states)
        terms = torch.where(linked, own[..., 1:] + own[..., :-1] - sums, 0.0).sum(-1)
        pairs = chains.pair_scores(pairwise, states[:, :-1], states[:, 1:], linked)
        return total + terms + 2 * pairs
