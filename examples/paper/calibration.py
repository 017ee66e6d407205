"""Calibration of the error bars of log Z.

    python examples/paper/calibration.py [--quick] [--states 2000] [--repeats 1000]

Of many runs of 16 replicates each, the share whose interval, 1.645 standard errors to either side,
covers the exact log Z: 90% if all were well. The mean of 16 skewed draws is a little skewed itself,
and its standard error is known from these 16 only; both make the share a little lower, the first
the more so the larger the error is.
"""

import torch
from measure import arguments, cases, kept, mean, row, truth_of

import rdpgraph as rg

REPLICATES = 16
WIDTH = 1.645


def coverage(one: rg.Chain, truth: float, keep: int, runs: int) -> tuple[float, float]:
    """The share of intervals that hold the truth, and the mean standard error."""
    estimator = rg.Randomized.default(keep=keep, replicates=REPLICATES)
    generator = torch.Generator().manual_seed(2)
    held, errors = 0, list[float]()
    for _ in range(runs):
        posterior = rg.infer(one, estimator=estimator, generator=generator)
        assert isinstance(posterior, rg.StructuredPosterior)
        error = float(posterior.standard_error)
        held += abs(float(posterior.log_partition) - truth) <= WIDTH * error
        errors.append(error)
    return held / runs, mean(errors)


if __name__ == "__main__":
    chosen = arguments("Coverage of the error bars.")
    runs = 40 if chosen.quick else max(chosen.repeats, 1000)
    for states in chosen.states:
        print(f"\n{states:,} states, {runs} runs of {REPLICATES} replicates")
        row("", ["covered", "standard error"])
        for share in (0.01, 0.05, 0.1):
            (one,) = cases("dense", states, 1)
            found, error = coverage(one.chain, truth_of(one)[0], kept(share, states), runs)
            row(f"{share:.0%} kept", [f"{found:.1%}", f"{error:.2g}"])
