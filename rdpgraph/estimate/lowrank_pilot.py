"""A proposal from the exact answer of a low-rank model."""

from dataclasses import dataclass, field

from rdpgraph.errors import ModelError
from rdpgraph.estimate.lowrank import LowRankFactors
from rdpgraph.estimate.proposals import LocalGlobal, Proposal, Scores, SoftmaxGlobal, mixed
from rdpgraph.estimate.setting import Setting


@dataclass(frozen=True)
class LowRankPilot(Proposal):
    """The marginals of the model with random features instead of `Bilinear` potentials.

    Messages of the low-rank model look ahead and back over all states, in O(T N r) for a chain,
    where other proposals see a site and its neighbours alone. States drawn by them have weights
    that keep Z unbiased, however poor the features are: those are one map for all factors, and
    their error costs variance. As good as the features: with a predicted relative error
    (`RandomFeatures.predicted_error`) below 1 it comes close to the exact marginals, and above
    that it may be worse than the base alone.
    `LowRank` potentials are used as they are, and the marginals are then exact.

    Args:
        features: for each `Bilinear` factor; None where there is none.
        base: mixed in, for states that the features miss.
        share: the part of the low-rank marginals in the mixture.

    Raises:
        ModelError: a share outside (0, 1).
    """

    features: int | None = None
    base: Proposal = field(default_factory=lambda: LocalGlobal(SoftmaxGlobal()))
    share: float = 0.5

    def __post_init__(self) -> None:
        if not 0.0 < self.share < 1.0:
            raise ModelError(f"LowRankPilot needs a share between 0 and 1; got {self.share}.")

    def scores_of(self, setting: Setting) -> Scores:
        """The mixture of the marginals found and the base."""
        rewrite, solve = LowRankFactors(self.features, shared=True), setting.solve
        low = rewrite.prepare(setting.model, solve=solve, generator=setting.generator).model
        marginals = tuple(part.detach().log() for part in setting.marginals(solve(low)))
        return mixed((marginals, self.base.scores_of(setting)), (self.share, 1.0 - self.share))
