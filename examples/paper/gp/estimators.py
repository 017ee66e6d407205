"""What estimates of the gradient cost, and how far they scatter.

    python examples/paper/gp/estimators.py [japanesene] [--small]

First the relative deviation of gradients, |standard deviation| / |mean| over all variational means
and scales of ten sequences, at the start of training and after some steps of it. Then the CPU time
of a step by the exact likelihood and by the piecewise pseudo-likelihood.
"""

import argparse
import time

import torch
from table1 import DATA
from tasks import TASKS, Sequences, folds

from rdpgraph.gp import (
    ChainLikelihood,
    Functions,
    GradientEstimator,
    Labelling,
    Likelihood,
    Linear,
    PiecewisePseudoLikelihood,
    Reparameterised,
    ScoreFunction,
    StructuredGP,
    Training,
)


class Recorded(GradientEstimator):
    """The first group of sequences that is asked for."""

    found: tuple[Labelling, Functions]

    def expected(
        self,
        likelihood: Likelihood,
        labels: Labelling,
        functions: Functions,
        generator: torch.Generator | None = None,
    ) -> torch.Tensor:
        self.found = (labels, functions)
        return functions.posterior.means.sum() * torch.zeros(len(labels.lengths))


def trained(name: str, data: Sequences, steps: int, points: int) -> tuple[Labelling, Functions]:
    """Ten sequences, and the functions at their positions after some steps."""
    made = StructuredGP(range(TASKS[name].labels), Linear(), inducing=points,
                        training=Training(steps=steps))  # fmt: skip
    made.fit(data.features, data.labels, generator=torch.Generator().manual_seed(0))
    made.estimator = recorded = Recorded()
    made.elbo(data.features[:10], data.labels[:10])
    return recorded.found


def gradient(
    estimator: GradientEstimator, likelihood: Likelihood, labels: Labelling, functions: Functions,
    seed: int,
) -> torch.Tensor:  # fmt: skip
    generator = torch.Generator().manual_seed(seed)
    total = estimator.expected(likelihood, labels, functions, generator).sum()
    parameters = [functions.posterior.means, *functions.posterior.covariance.parameters()]
    return torch.cat([one.flatten() for one in torch.autograd.grad(total, parameters)])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", nargs="?", default="japanesene", choices=list(TASKS))
    parser.add_argument("--small", action="store_true")
    chosen = parser.parse_args()
    train, _ = folds(chosen.task, DATA)[0]
    samples, repeats, points = (20, 2, 20) if chosen.small else (1000, 4, 500)
    estimators = {
        "score function": ScoreFunction(samples, control=0.0),
        "score function, control variate": ScoreFunction(samples),
        "reparameterised, 8 samples": Reparameterised(8),
    }
    for steps in (1, 3 if chosen.small else 60):
        labels, functions = trained(chosen.task, train, steps, points)
        print(f"\n{chosen.task}, after {steps} steps, {samples} samples, {repeats} repeats")
        for title, estimator in estimators.items():
            begun = time.process_time()
            found = torch.stack([
                gradient(estimator, ChainLikelihood(), labels, functions, seed)
                for seed in range(repeats)
            ])  # fmt: skip
            spent = (time.process_time() - begun) / repeats
            relative = float(found.std(0).norm() / found.mean(0).norm())
            print(f"{title:32} {100 * relative:8.0f}%   {spent:.3f} s of CPU")
    print()
    likelihoods = (ChainLikelihood(), PiecewisePseudoLikelihood())
    unary, pairwise = functions.drawn(samples, dtype=torch.float32, generator=None)
    for likelihood in likelihoods:
        alone: list[float] = []
        whole: list[float] = []
        for seed in range(repeats):
            begun = time.process_time()
            with torch.no_grad():
                likelihood.log_prob(labels, unary, pairwise)
            alone.append(time.process_time() - begun)
            begun = time.process_time()
            gradient(
                estimators["score function, control variate"], likelihood, labels, functions, seed
            )
            whole.append(time.process_time() - begun)
        name = type(likelihood).__name__
        print(f"{name:32} {min(alone):.3f} s of CPU, a step {min(whole):.3f}")
