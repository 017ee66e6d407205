"""Cost and variance of estimates of the gradient.

    python examples/paper/gp/estimators.py [japanesene] [--small]

First the relative deviation of gradients, |standard deviation| / |mean| over all variational means
and scales of ten sequences, at the start of training and after some steps of it. Then the CPU time
of a step by the exact likelihood and by the piecewise pseudo-likelihood, and of log Z by the
recursion of the room and by `Chain`.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial

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
    chains,
)

Given = tuple[Labelling, Functions]


class Recorded(GradientEstimator):
    """The first group of sequences that is asked for."""

    recorded: Given

    def expected(
        self,
        likelihood: Likelihood,
        labels: Labelling,
        functions: Functions,
        generator: torch.Generator | None = None,
    ) -> torch.Tensor:
        self.recorded = (labels, functions)
        return functions.posterior.means.sum() * torch.zeros(len(labels.lengths))


def trained(name: str, data: Sequences, steps: int, points: int) -> Given:
    """Ten sequences, and the functions at their positions after some steps."""
    made = StructuredGP(range(TASKS[name].labels), Linear(), inducing=points,
                        training=Training(steps=steps))  # fmt: skip
    made.fit(data.features, data.labels, generator=torch.Generator().manual_seed(0))
    made.estimator = recorder = Recorded()
    made.elbo(data.features[:10], data.labels[:10])
    return recorder.recorded


def gradient(
    estimator: GradientEstimator, likelihood: Likelihood, labels: Labelling, functions: Functions,
    seed: int,
) -> torch.Tensor:  # fmt: skip
    generator = torch.Generator().manual_seed(seed)
    total = estimator.expected(likelihood, labels, functions, generator).sum()
    parameters = [functions.posterior.means, *functions.posterior.covariance.parameters()]
    return torch.cat([one.flatten() for one in torch.autograd.grad(total, parameters)])


def scattered(
    title: str, estimator: GradientEstimator, likelihood: Likelihood, given: Given, repeats: int
) -> None:
    """Print the relative deviation of gradients, and what one costs."""
    begun = time.process_time()
    gradients = torch.stack(
        [gradient(estimator, likelihood, *given, seed) for seed in range(repeats)]
    )
    spent = (time.process_time() - begun) / repeats
    relative = float(gradients.std(0).norm() / gradients.mean(0).norm())
    print(f"{title:40} {100 * relative:6.0f}%   {spent:.3f} s of CPU")


def least(repeats: int, *calls: Callable[[], object]) -> list[float]:
    """Milliseconds of CPU, the least of some repeats in turn."""
    spent: list[list[float]] = [[] for _ in calls]
    for _ in range(repeats):
        for place, call in enumerate(calls):
            begun = time.process_time()
            call()
            spent[place].append(1e3 * (time.process_time() - begun))
    return [min(one) for one in spent]


def speeds(controlled: ScoreFunction, given: Given, repeats: int) -> None:
    """Print what steps cost by two likelihoods, and log Z by two recursions."""
    for title, estimator in (
        ("score function", controlled),
        ("reparameterised", Reparameterised()),
    ):
        exact, piecewise = least(
            repeats,
            partial(gradient, estimator, ChainLikelihood(), *given, 0),
            partial(gradient, estimator, PiecewisePseudoLikelihood(), *given, 0),
        )
        print(f"step, {title:34} {exact:7.1f} ms exact, {piecewise:.1f} piecewise, "
              f"ratio {exact / piecewise:.1f}")  # fmt: skip
    labels, functions = given
    with torch.no_grad():
        unary, pairwise = functions.drawn(controlled.samples // 5, dtype=torch.float32)
    scores = unary, pairwise, labels.lengths
    own, library = least(
        repeats,
        lambda: chains.log_partition(*scores),
        lambda: chains.as_chain(*scores).log_partition(),
    )
    print(f"log Z of {len(unary)} samples {own:20.1f} ms, {library:.1f} by Chain, "
          f"ratio {library / own:.1f}")  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", nargs="?", default="japanesene", choices=list(TASKS))
    parser.add_argument("--small", action="store_true")
    chosen = parser.parse_args()
    train, _ = folds(chosen.task, DATA)[0]
    samples, repeats, points = (20, 2, 20) if chosen.small else (1000, 4, 500)
    controlled = ScoreFunction(samples)
    exact, piecewise = ChainLikelihood(), PiecewisePseudoLikelihood()
    rows = (
        ("score function", ScoreFunction(samples, control=0.0), exact),
        ("score function, control variate", controlled, exact),
        ("reparameterised, 8 samples", Reparameterised(8), exact),
        ("piecewise, score function, control", controlled, piecewise),
    )
    for steps in (1, 3 if chosen.small else 60):
        given = trained(chosen.task, train, steps, points)
        print(f"\n{chosen.task}, after {steps} steps, {samples} samples, {repeats} repeats")
        for row in rows:
            scattered(*row, given, repeats)
    print()
    speeds(controlled, given, repeats)
