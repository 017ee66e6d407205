"""Hidden Markov models of series: beside hmmlearn without covariates, beside dynamax with them.

    pip install hmmlearn==0.3.3 dynamax==1.0.3
    OMP_NUM_THREADS=1 python tests/benchmarks/covariates.py --steps 20000

Where both can fit, EM starts from the same tables and takes as many steps. Where transitions depend
on covariates neither of them can.
"""

import argparse
import importlib.util
import time
from typing import Any

import numpy as np
import torch

from rdpgraph import learn

STATES = 3


class Lines(torch.nn.Module):
    """A line of the first covariate in each state, with normal noise of deviation 1."""

    def __init__(self, slopes: torch.Tensor, biases: torch.Tensor) -> None:
        super().__init__()
        self.slope, self.bias = torch.nn.Parameter(slopes), torch.nn.Parameter(biases)

    def law(self, covariates: torch.Tensor) -> torch.distributions.Normal:
        return torch.distributions.Normal(covariates[:, :1] * self.slope + self.bias, 1.0)

    def forward(self, observed: torch.Tensor, covariates: torch.Tensor) -> torch.Tensor:
        return self.law(covariates).log_prob(observed)

    def sample(
        self, states: torch.Tensor, covariates: torch.Tensor, generator: torch.Generator
    ) -> torch.Tensor:
        means = self.law(covariates).mean.gather(1, states.unsqueeze(1))
        return means + torch.randn(means.shape, generator=generator, dtype=means.dtype)


class Softmax(torch.nn.Module):
    """Scores of transitions: a line of the second covariate for each pair of states."""

    def __init__(self, slopes: torch.Tensor, biases: torch.Tensor) -> None:
        super().__init__()
        self.slope, self.bias = torch.nn.Parameter(slopes), torch.nn.Parameter(biases)

    def forward(self, covariates: torch.Tensor) -> torch.Tensor:
        return covariates[:, 1, None, None] * self.slope + self.bias


def used(begun: float) -> str:
    """CPU seconds since then."""
    return f"{time.process_time() - begun:.2f}"


def beside_hmmlearn(
    X: torch.Tensor, lengths: list[int], start: Any, table: Any, means: Any
) -> None:
    """Ten steps of EM of a Gaussian model without covariates."""
    emission = learn.Gaussian("diagonal", means, torch.ones(STATES, 1))
    options = {"start": start.log(), "transition": table.log(), "limit": 10, "tolerance": 0.0}
    begun = time.process_time()
    own = learn.HMM(STATES, emission, **options).fit(X, lengths)
    print(f"HMM, ten steps: {used(begun)} s, log-likelihood {own.fit_.log_likelihood:.6f}")
    if importlib.util.find_spec("hmmlearn") is None:
        return
    from hmmlearn.hmm import GaussianHMM

    other = GaussianHMM(
        STATES, "diag", n_iter=10, tol=-np.inf, init_params="", min_covar=0.0, covars_prior=0.0,
        covars_weight=0.0, means_weight=0.0,
    )  # fmt: skip
    other.startprob_, other.transmat_ = start.numpy(), table.numpy()
    other.means_, other.covars_ = means.numpy(), np.ones((STATES, 1))
    begun = time.process_time()
    other.fit(X.numpy(), lengths)
    seconds, score = used(begun), other.score(X.numpy(), lengths)
    print(f"hmmlearn, ten steps: {seconds} s, log-likelihood {score:.6f}")


def beside_dynamax(X: torch.Tensor, start: Any, table: Any, lines: Lines) -> None:
    """The log-likelihood of regressions with hidden states, whose parameters are given."""
    model = learn.HMM(
        STATES, learn.Driven(lines), start=start.log(), transition=table.log(), covariates=[1, 2]
    )
    print(f"HMM with driven emissions: log-likelihood {model.score(X):.6f}")
    if importlib.util.find_spec("dynamax") is None:
        return
    import jax
    import jax.numpy as jnp
    from dynamax.hidden_markov_model import LinearRegressionHMM

    jax.config.update("jax_enable_x64", True)
    other: Any = LinearRegressionHMM(num_states=STATES, input_dim=1, emission_dim=1)
    given, _ = other.initialize(
        initial_probs=jnp.array(start.numpy()), transition_matrix=jnp.array(table.numpy()),
        emission_weights=jnp.array(lines.slope.detach().double().numpy()[:, None, None]),
        emission_biases=jnp.array(lines.bias.detach().double().numpy()[:, None]),
        emission_covariances=jnp.ones((STATES, 1, 1)), key=jax.random.PRNGKey(0),
    )  # fmt: skip
    inputs = jnp.array(X[:, 1:2].numpy())
    score = float(other.marginal_log_prob(given, jnp.array(X[:, :1].numpy()), inputs=inputs))
    print(f"dynamax: log-likelihood {score:.6f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--limit", type=int, default=30)
    options = parser.parse_args()
    generator = torch.Generator().manual_seed(0)
    start = torch.full((STATES,), 1 / STATES, dtype=torch.float64)
    stay = torch.eye(STATES, dtype=torch.float64)
    lines = Lines(torch.tensor([-2.0, 0.0, 2.0]), torch.tensor([0.0, 3.0, 0.0]))
    moves = Softmax(1.5 * torch.randn(STATES, STATES, generator=generator), 2 * stay.float())
    truth = learn.HMM(
        STATES, learn.Driven(lines), start=start.log(), transition=moves, covariates=[1, 2]
    )
    covariates = torch.randn(options.steps, 2, generator=generator, dtype=torch.float64)
    shown, _ = truth.sample(options.steps, generator, covariates=covariates)
    X = torch.cat([shown, covariates], 1)
    half, quarter = options.steps // 2, options.steps // 4
    lengths = [quarter, half - quarter]
    seen, left = X[:half], X[half:]

    table = (stay * 0.7 + 0.1) / (stay * 0.7 + 0.1).sum(1, keepdim=True)
    means = torch.linspace(-2, 3, STATES, dtype=torch.float64).unsqueeze(1)
    beside_hmmlearn(seen[:, :1].contiguous(), lengths, start, table, means)
    beside_dynamax(seen, start, table, lines)

    def begun_lines() -> Lines:
        return Lines(torch.tensor([-1.0, 0.0, 1.0]), torch.tensor([0.0, 1.0, 0.0]))

    normal = learn.Gaussian("diagonal", means, torch.ones(STATES, 1))
    flat = Softmax(torch.zeros(STATES, STATES), stay.float())
    models = {
        "no covariates": (learn.HMM(STATES, normal), [0]),
        "driven emissions": (
            learn.HMM(STATES, learn.Driven(begun_lines()), covariates=[1, 2]), [0, 1, 2],
        ),
        "driven emissions and transitions": (
            learn.HMM(STATES, learn.Driven(begun_lines()), transition=flat, covariates=[1, 2]),
            [0, 1, 2],
        ),
    }  # fmt: skip
    print("| model | steps of EM | CPU seconds | nats a step, of steps left out |")
    print("|---|---|---|---|")
    for name, (model, columns) in models.items():
        model.set_params(limit=options.limit)
        begun = time.process_time()
        model.fit(seen[:, columns], lengths)
        score = model.score(left[:, columns]) / len(left)
        print(f"| {name} | {model.fit_.steps} | {used(begun)} | {score:.4f} |")
    print(f"| the truth | | | {truth.score(left) / len(left):.4f} |")


if __name__ == "__main__":
    main()
