"""Randomized pruning of a chain of many states, beside beam sampling, `Randomized` and exact sums.

    python examples/paper/pruning/chain.py [--states 5000] [--steps 30] [--output FOLDER] [--small]

Prints, and draws as ``chain.png``, the squared error of all marginals against the seconds of one
processor, with the table of transitions at hand. Every state of every step may be selected: with
two thirds selected, a sweep fixes two thirds of the steps and leaves a third of the states of the
others.
"""

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import torch
from beam import BeamSampler
from shown import mask_curves, save_curves, show_curves, timed
from torch import Tensor

import rdpgraph as rg

STOPS = (1, 2, 4, 8)
SHARES = (1 / 2, 2 / 3)
BEAMS = 4
KEPT = (0.02, 0.05, 0.1, 0.2)


def chain_of(states: int, steps: int, seed: int) -> rg.Chain:
    """States near each other in 16 dims follow each other, and are seen with noise."""
    generator = torch.Generator().manual_seed(seed)
    embeddings = torch.randn(states, 16, generator=generator) / 4
    observed = torch.randn(steps, 16, generator=generator)
    return rg.Chain(observed @ embeddings.T, embeddings @ embeddings.T)


def main() -> None:
    asked = argparse.ArgumentParser(description="Randomized pruning of a chain.")
    asked.add_argument("--states", type=int, default=5000)
    asked.add_argument("--steps", type=int, default=30)
    asked.add_argument("--small", action="store_true")
    asked.add_argument("--output", type=Path, default=Path("build/pruning"))
    given = asked.parse_args()
    torch.set_num_threads(1)
    states = 200 if given.small else given.states
    chain = chain_of(states, given.steps, 0)
    chain_of(50, 3, 0).marginals()  # what is loaded once
    exact, seconds = timed(chain.marginals)

    def error(marginals: Tensor) -> float:
        return float((marginals - exact).square().sum())

    def run(estimator: Any, generator: torch.Generator) -> tuple[Any, float]:
        posterior = rg.infer(chain, estimator=estimator, generator=generator)
        return posterior, error(posterior.marginals())

    curves, _ = mask_curves(SHARES, STOPS[:2] if given.small else STOPS, run)
    generator, total, path = torch.Generator().manual_seed(0), 0.0, chain.unary.argmax(1)
    sampler, spent = timed(lambda: BeamSampler(chain.unary, chain.transition.exp()))
    for number in range(1, BEAMS + 1):
        (marginals, path), more = timed(partial(sampler.sweep, path, generator))
        spent, total = spent + more, total + marginals
        curves.setdefault("beam sampling", []).append((f"{number}", spent, error(total / number)))
    for keep in KEPT:
        estimator = rg.Randomized.default(keep=keep, replicates=8)
        (_, off), spent = timed(partial(run, estimator, torch.Generator().manual_seed(0)))
        curves.setdefault("Randomized", []).append((f"{keep:.0%}", spent, off))
    title = f"chain of {given.steps} steps, {states:,} states"
    show_curves(title, seconds, curves)
    save_curves(given.output, "chain", seconds, curves, "squared error of all marginals", title)


if __name__ == "__main__":
    main()
