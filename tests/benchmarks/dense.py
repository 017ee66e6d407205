"""Errors of estimates of `MiniBuckets` that call themselves converged, on dense triples.

    python tests/benchmarks/dense.py --count 3000 --seed 2000000

Models of 16 to 30 variables of three states and 1.3 to 2 times as many random triples, scores
spread by 5 to 100 nats, with memory for tables of 1e4 to 1e5 bytes, so that few are exact. Log Z is
known from contraction; models that it has no memory for are left out. Seconds are those of the
process, whatever else the machine does.
"""

import argparse
import math
import statistics
import time
from unittest.mock import patch

import numpy as np
import torch

import rdpgraph as rg
from rdpgraph.errors import BudgetError
from rdpgraph.plan import clock

BEYOND = 5.0
"""Standard errors that an answer which is called converged may be off by."""
APART = 0.1
"""Nats: of the answers that are off, how many are by more is told."""


def model(seed: int) -> tuple[rg.FactorGraph, float]:
    """Dense triples, and bytes that they are answered with."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(16, 31))
    factors = int(rng.integers(int(1.3 * count), 2 * count + 1))
    scale, memory = (
        math.exp(rng.uniform(math.log(low), math.log(high))) for low, high in ((5, 100), (1e4, 1e5))
    )
    x = [rg.Variable(f"x{number}", 3) for number in range(count)]
    triples: list[rg.Factor] = []
    for _ in range(factors):
        scope = rng.choice(count, 3, replace=False)
        table = rg.Table(torch.tensor(rng.normal(0, scale, (3, 3, 3))))
        triples.append(rg.Factor(tuple(x[number] for number in scope), table))
    return rg.FactorGraph(triples), memory


def main() -> None:
    """A line for each wrong answer, then the shares."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=2_000_000)
    parser.add_argument("--seconds", type=float, default=1.5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with patch.object(clock, "now", time.process_time):
        shares(options)


def shares(options: argparse.Namespace) -> None:
    """Shares of answers that are right."""
    inexact = wrong = apart = 0
    errors: list[float] = []
    for seed in range(options.seed, options.seed + options.count):
        try:
            exact = float(rg.infer(model(seed)[0], scheduler=rg.Contraction(1.2e9)).log_partition)
        except BudgetError:
            continue
        graph, memory = model(seed)
        posterior = rg.infer(graph, scheduler=rg.MiniBuckets(options.seconds, memory))
        try:
            off, status = float(posterior.log_partition) - exact, posterior.status
        except BudgetError as error:
            print(f"seed {seed}: {error}", flush=True)
            continue
        inexact += not status.exact
        if status.exact or not status.converged or status.standard_error is None:
            continue
        errors.append(status.standard_error)
        if abs(off) > BEYOND * status.standard_error:
            wrong, apart = wrong + 1, apart + (abs(off) > APART)
            print(f"seed {seed}: off by {off:.3g} +- {status.standard_error:.3g}", flush=True)
    print(
        f"{inexact} models answered by estimates, {len(errors)} converged; of these off by more "
        f"than {BEYOND:g} standard errors: {wrong}, and by {APART:g} nats: {apart}; median "
        f"standard error {statistics.median(errors or [math.nan]):.2g}"
    )


if __name__ == "__main__":
    main()
