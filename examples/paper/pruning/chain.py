"""Randomized pruning of a chain of many states, beside `Randomized` and the exact recursion.

    python examples/paper/pruning/chain.py [--states 5000] [--steps 30] [--small]

Prints the squared error of all marginals against the seconds of one processor, with the table of
transitions at hand. Every state of every step may be selected: with two thirds selected, a sweep
fixes two thirds of the steps and leaves a third of the states of the others.
"""

import argparse
from time import process_time

import torch
from torch import Tensor

import rdpgraph as rg
from rdpgraph.pruning import Alternating

STOPS = (1, 2, 4, 8, 16)
KEPT = (0.02, 0.05, 0.1, 0.2)


def chain_of(states: int, steps: int, seed: int) -> rg.Chain:
    """States near each other in 16 dims follow each other, and are seen with noise."""
    generator = torch.Generator().manual_seed(seed)
    embeddings = torch.randn(states, 16, generator=generator) / 4
    observed = torch.randn(steps, 16, generator=generator)
    return rg.Chain(observed @ embeddings.T, embeddings @ embeddings.T)


def show(name: str, setting: str, seconds: float, marginals: Tensor, exact: Tensor) -> None:
    error = float((marginals - exact).square().sum())
    print(f"{name:>12} {setting:>8} {1e3 * seconds:>10.0f} ms {error:>12.4g}")


def main() -> None:
    asked = argparse.ArgumentParser(description="Randomized pruning of a chain.")
    asked.add_argument("--states", type=int, default=5000)
    asked.add_argument("--steps", type=int, default=30)
    asked.add_argument("--small", action="store_true")
    given = asked.parse_args()
    torch.set_num_threads(1)
    chain = chain_of(200 if given.small else given.states, given.steps, 0)
    chain_of(50, 3, 0).marginals()  # what is loaded once
    start = process_time()
    exact = chain.marginals()
    show("exact", "", process_time() - start, exact, exact)
    for share in (0.5, 2 / 3):
        posterior, spent, done = None, 0.0, 0
        generator = torch.Generator().manual_seed(0)
        for stop in STOPS[:2] if given.small else STOPS:
            estimator = rg.RandomizedPruning(
                stop - done, warm_up=0, selected=Alternating(share=share), resume=posterior
            )
            start = process_time()
            posterior = rg.infer(chain, estimator=estimator, generator=generator)
            spent, done = spent + process_time() - start, stop
            show(f"masks {share:.2f}", str(stop), spent, posterior.marginals(), exact)
    for keep in KEPT:
        start = process_time()
        estimator = rg.Randomized.default(keep=keep, replicates=8)
        posterior = rg.infer(chain, estimator=estimator, generator=torch.Generator().manual_seed(0))
        found = posterior.marginals()
        show("randomized", f"{keep:.0%}", process_time() - start, found, exact)


if __name__ == "__main__":
    main()
