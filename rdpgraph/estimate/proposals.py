"""Proposals that read the potentials of a site and of its neighbours."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rdpgraph._numbers import is_whole
from rdpgraph.errors import ModelError
from rdpgraph.estimate.proposal import Mixture, Proposal, Scores
from rdpgraph.estimate.setting import Setting
from rdpgraph.model.sites import Sites


@dataclass(frozen=True)
class Uniform(Proposal):
    """The same score for every state that a site's own potential allows."""

    def log_scores(self, sites: Sites) -> Tensor:
        """Zeros, and -inf where the unary log-potential is."""
        return torch.where(sites.unary > -math.inf, 0.0, -math.inf).to(sites.unary)


@dataclass(frozen=True)
class Local(Proposal):
    """The softmax of a site's own log-potential, an emission for instance."""

    def log_scores(self, sites: Sites) -> Tensor:
        """The unary log-potentials."""
        return sites.unary


@dataclass(frozen=True)
class Global(Proposal):
    """Proportional to the L1 norm of a state's embedding: large norms make large inner products.

    The second term of Fu, Cunningham and Lapata 2022, eq. 34, as it is printed. `SoftmaxGlobal`
    is what their released code computes. A state has the mean over its `Bilinear` factors; where
    a model has no embeddings, the mean factor value over a few random states of the neighbours
    stands in.

    Args:
        landmarks: how many, in that case.
    """

    landmarks: int = 16

    def log_scores(self, sites: Sites) -> Tensor:
        """The log of the norm, or of the mean factor value where there are no embeddings."""
        norms = sites.norms()
        if norms is None:
            return sites.mean_values(self.landmarks)
        bare = (norms == 0).all(-1, keepdim=True)
        return torch.where(bare, 0.0, norms.log())


@dataclass(frozen=True)
class SoftmaxGlobal(Proposal):
    """The softmax of the L1 norm of a state's embedding, as the authors' code has it.

    Fu, Cunningham and Lapata 2022; `Global` is the formula of their paper. Without embeddings
    the two are the same.

    Args:
        landmarks: as for `Global`.
    """

    landmarks: int = 16

    def log_scores(self, sites: Sites) -> Tensor:
        """The norm, or the log of the mean factor value where there are no embeddings."""
        norms = sites.norms()
        return sites.mean_values(self.landmarks) if norms is None else norms


def LocalGlobal(prior: Proposal | None = None) -> Mixture:
    """Half of `Local`, half of a global prior: Fu, Cunningham and Lapata 2022, eq. 34.

    With `Global` the formula as printed, where phi is the exponential of the emission score; with
    `SoftmaxGlobal` what the released code computes.

    Args:
        prior: the global half; default `Global()`.
    """
    return Mixture((Local(), Global() if prior is None else prior), (0.5, 0.5))


@dataclass(frozen=True)
class Landmark(Proposal):
    """A site's own potential times its factors' mean values over random states of the neighbours.

    O(count N) evaluations per factor, whatever the potentials.

    Args:
        count: how many random states.
    """

    count: int = 8

    def __post_init__(self) -> None:
        if not is_whole(self.count, 1):
            raise ModelError(f"Landmark needs a count of states >= 1; got {self.count!r:.80}.")

    def log_scores(self, sites: Sites) -> Tensor:
        """The unary log-potentials plus the logs of the mean factor values."""
        return sites.unary + sites.mean_values(self.count)


def broad() -> Proposal:
    """Half `Landmark`, half `LocalGlobal(SoftmaxGlobal())`: one is near where the other errs."""
    return Mixture((Landmark(), LocalGlobal(SoftmaxGlobal())), (0.5, 0.5))


@dataclass(frozen=True)
class Oracle(Proposal):
    """The marginals of the whole model, for tests and for plots of the least error.

    Costs the inference that an estimator is there to avoid.
    """

    def scores_of(self, setting: Setting) -> Scores:
        """The logs of the marginals, which are computed here."""
        marginals = setting.marginals(setting.solve(setting.model))
        return tuple(torch.where(m > 0, m.clamp(min=0.0).log(), -math.inf) for m in marginals)
