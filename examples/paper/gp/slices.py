"""Elliptical slice sampling of a structured Gaussian process: the paper's GP-ESS.

The state of the chain is a vector of standard normal numbers, of which scores are linear
functions: values at the inducing points, noise at the positions, and scores of pairs of labels. A
step draws an ellipse through the state and a point of the prior, and shrinks an interval of angles
until the likelihood is above a random level. There is no step size. Murray, Adams and MacKay 2010,
arXiv:1001.0175; Bratières, Quadrianto and Ghahramani 2015, "GPstruct".
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from tasks import Sequences
from torch import Tensor

from rdpgraph.gp import (
    ChainLikelihood,
    Functions,
    GradientEstimator,
    Labelling,
    Likelihood,
    Linear,
    StructuredGP,
    Training,
)

Given = tuple[Labelling, Functions]
State = list[Tensor]


class Recorder(GradientEstimator):
    """Keeps the groups of sequences that it is asked for, with the functions at their positions."""

    samples, dtype = 1, torch.float64

    def __init__(self) -> None:
        self.groups: list[Given] = []

    def expected(
        self,
        likelihood: Likelihood,
        labels: Labelling,
        functions: Functions,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        self.groups.append((labels, functions))
        return 0.0 * functions.posterior.means.sum().expand(len(labels.lengths))


@dataclass
class SliceTagger:
    """Draws of functions given labelled sequences, and predictions that average over them.

    Args:
        labels: how many there are.
        spread: prior variance of the weight of a feature, and standard deviation of the score of a
            pair of labels.
        points: inducing points.
        sweeps: steps of the chain; the first half of them is left out.
        kept: draws that predictions average over.

    Attributes:
        draws: the values at the inducing points (V, M) and the scores of pairs (V, V) of each.
        log_likelihoods: of the labels of training in each step, nats.
    """

    labels: int
    spread: float = 1.0
    points: int = 500
    sweeps: int = 2000
    kept: int = 100
    draws: list[tuple[Tensor, Tensor]] = field(init=False, default_factory=list)
    log_likelihoods: list[float] = field(init=False, default_factory=list)

    @torch.no_grad()
    def fit(self, data: Sequences, generator: torch.Generator) -> "SliceTagger":
        # The tagger knows the functions at positions given those at its inducing points; what one
        # step of its training finds is not used.
        self._tagger = StructuredGP(
            range(self.labels), Linear(self.spread), pairwise_scale=self.spread,
            inducing=self.points, training=Training(steps=1),
        )  # fmt: skip
        with torch.enable_grad():
            self._tagger.fit(data.features, data.labels, generator=generator)
        groups = self._groups(data)
        width = groups[0][1].given[0].rows.shape[-1]
        sizes = [given.given[0].rows.shape[:2] for _, given in groups]

        def drawn() -> State:
            shapes = ((self.labels, width), (self.labels,) * 2, *((*s, self.labels) for s in sizes))
            return [
                torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes
            ]

        def log_likelihood(state: State) -> float:
            values, pairs, *noise = state
            return sum(
                self._log_prob(group, values, pairs, own)
                for group, own in zip(groups, noise, strict=True)
            )

        state = drawn()
        level = log_likelihood(state)
        every = max(1, self.sweeps // 2 // self.kept)
        for sweep in range(self.sweeps):
            state, level = sliced(state, drawn(), level, log_likelihood, generator)
            self.log_likelihoods.append(level)
            if sweep >= self.sweeps // 2 and sweep % every == 0:
                self.draws.append((state[0], state[1]))
        return self

    @torch.no_grad()
    def predict_marginals(self, features: list[Tensor]) -> list[Tensor]:
        """Probabilities (positions, labels) for each sequence, averaged over the draws."""
        generator, found = torch.Generator().manual_seed(0), list[Tensor]()
        values, pairs = (torch.stack(part) for part in zip(*self.draws, strict=True))
        for one in features:
            [group] = self._groups(Sequences([one], [[0] * len(one)]))
            shape = (len(values), 1, len(one), self.labels)
            noise = torch.randn(shape, generator=generator, dtype=torch.float64)
            unary = self._unary(group[1], values, noise)
            found.append(
                ChainLikelihood().marginals(group[0], unary, self.spread * pairs).mean(0)[0]
            )
        return found

    def _groups(self, data: Sequences) -> list[Given]:
        recorder = self._tagger.estimator = Recorder()
        self._tagger.elbo(data.features, data.labels)
        return recorder.groups

    def _log_prob(self, group: Given, values: Tensor, pairs: Tensor, noise: Tensor) -> float:
        unary = self._unary(group[1], values.unsqueeze(0), noise.unsqueeze(0))
        pairwise = self.spread * pairs.unsqueeze(0)
        return float(ChainLikelihood().log_prob(group[0], unary, pairwise).sum())

    def _unary(self, functions: Functions, values: Tensor, noise: Tensor) -> Tensor:
        """(S, B, T, V) scores of values (S, V, M) at the points and noise (S, B, T, V)."""
        (given,) = functions.given
        smooth = torch.einsum("btm,svm->sbtv", given.rows, values)
        return smooth + torch.einsum("btu,sbuv->sbtv", given.root, noise)


def sliced(
    state: State, other: State, level: float, log_likelihood: Callable[[State], float],
    generator: torch.Generator,
) -> tuple[State, float]:  # fmt: skip
    """The next state on the ellipse through a state and a draw of the prior, with its level."""
    least = level + math.log(float(torch.rand((), generator=generator)))
    angle = 2 * math.pi * float(torch.rand((), generator=generator))
    low, high = angle - 2 * math.pi, angle
    while True:
        cosine, sine = math.cos(angle), math.sin(angle)
        moved = [cosine * one + sine * two for one, two in zip(state, other, strict=True)]
        if (found := log_likelihood(moved)) > least:
            return moved, found
        # The interval shrinks to the present state, which is above the level.
        low, high = (angle, high) if angle < 0 else (low, angle)
        angle = low + (high - low) * float(torch.rand((), generator=generator))
