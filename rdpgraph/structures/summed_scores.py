"""Structures whose scores are sums of entries of their unary potentials, and no others."""

import math
from typing import Any, Self

import torch
from torch import Tensor

from rdpgraph.errors import ModelError
from rdpgraph.interface.sites import Sites
from rdpgraph.interface.structure import Structure
from rdpgraph.logspace.gradients import by_autograd, expectations
from rdpgraph.model.restriction import Support, check_support
from rdpgraph.structures.draws import perturbed


class ForbidsStates(Structure):
    """A structure that is restricted to some states of its sites by forbidding the others."""

    def restrict(self, states: Tensor, log_weights: Tensor) -> Self:
        """The model on some states of each site, with weights, as estimators solve it.

        Other states are forbidden, and repeats are summed, at the cost of all states. Z is linear
        in the weights of each site's states, so unbiased if they are.

        Args:
            states: (*replicates, *batch, *sites, K).
            log_weights: of that shape; added to the unary potentials.

        Raises:
            ModelError: shapes that do not fit, or a state out of range.
        """
        check_support(type(self).__name__, self.unary, states, log_weights)
        few = Support(states, log_weights).over(self.unary.shape[-1])
        return self.with_unary(self.unary + few.log_weights)

    def sites(self) -> Sites:
        """The sites; all states of each cost as much as one, and no factor joins them."""
        unary = self._site_potentials().detach()
        none = torch.zeros_like(unary[(*[slice(1)] * unary.ndim,)])
        return Sites(unary, restrict=self.restrict, means=lambda _count, _draws: none, every=True)

    def _site_potentials(self) -> Tensor:
        """(*batch, *sites, states) the potentials, -inf for states that no configuration has."""
        return self.unary


class SummedScores(ForbidsStates):
    """A structure that scores a configuration by the potentials of its sites' states alone."""

    @by_autograd
    def entropy(self) -> Tensor:
        """(*batch,) nats: log Z less the expected score; 0 where nothing is possible."""
        log_z, chances = self._expected()
        alive = log_z.detach() > -math.inf
        nats = torch.where(alive, log_z, 0.0) - _mean_score(self, chances, log_z.ndim)
        return torch.where(alive, nats, 0.0)

    @by_autograd
    def cross_entropy(self, other: Self) -> Tensor:
        """(*batch,) nats: the expectation under this model of minus the other's log-probability.

        +inf, without gradient, where the other forbids what is possible here; 0 where nothing is.

        Raises:
            ModelError: the two differ in more than their potentials.
        """
        self._require_alike(other)
        log_p, chances = self._expected()
        possible, there = log_p.detach() > -math.inf, self.unary.detach() > -math.inf
        compared, barred = possible, there & (other.unary == -math.inf)
        if bool(barred.any()):
            # The largest number of such entries in one configuration.
            counts = torch.where(there, barred.to(self.unary), -math.inf)
            most = self.with_unary(counts).max_marginals()
            assert most is not None
            compared = possible & ~(most > 0).flatten(log_p.ndim).any(-1)
        log_z = torch.where(compared, other.log_partition(), 0.0)
        nats = log_z - _mean_score(other, chances, log_z.ndim)
        return torch.where(possible, torch.where(compared, nats, math.inf), 0.0)

    @by_autograd
    def kl_divergence(self, other: Self) -> Tensor:
        """(*batch,) the divergence of the other from this: `cross_entropy` less `entropy`."""
        return self.cross_entropy(other) - self.entropy()

    def _require_alike(self, other: Any) -> None:
        """Require a model that this one can be compared with."""
        if type(other) is not type(self) or other.unary.shape != self.unary.shape:
            shape = f" of {tuple(other.unary.shape)}" if isinstance(other, Structure) else ""
            raise ModelError(
                f"{type(self).__name__} can be compared only with another of its kind and shape, "
                f"{tuple(self.unary.shape)}; got {type(other).__name__}{shape}."
            )

    def rsample(
        self, count: int, *, temperature: float, generator: torch.Generator | None = None
    ) -> Tensor:
        """(count, *batch, *sites, states) relaxed draws, differentiable: a stochastic softmax.

        Marginals at a temperature of the model with Gumbel noise on every state (Paulus et al.
        2020, arXiv:2006.08063). As the temperature falls to 0 they become the best configuration of
        the noisy model, which is not an exact draw.

        Raises:
            ModelError: a temperature that is not above 0.
        """
        noisy = perturbed(self.unary, count, temperature, generator)
        return self.with_unary(noisy / temperature).marginals()

    def _expected(self) -> tuple[Tensor, Tensor]:
        """(*batch,) log Z, and its gradient, zero for impossible items."""
        log_z, (chances,) = expectations(
            lambda unary: self.with_unary(unary).log_partition(), [self.unary],
            tracked=self.unary.requires_grad,
        )  # fmt: skip
        return log_z, chances


def _mean_score(model: Structure, chances: Tensor, lead: int) -> Tensor:
    """(*batch,) the expected score; impossible entries count as zero."""
    values = torch.where(model.unary > -math.inf, model.unary, 0.0)
    return (values * chances).flatten(lead).sum(-1)
