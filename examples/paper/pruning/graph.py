"""Randomized pruning of a graph with cycles, beside `Randomized` and the exact recursion.

    python examples/paper/pruning/graph.py [--size 8] [--states 8] [--output FOLDER] [--small]

The graph is a grid whose neighbours attract or repel each other at random. Prints, and draws as
``graph.png``, the squared error of all marginals against the seconds of one processor. What a sweep
selects of a variable observes it, so that the cycles through it are cut.
"""

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import torch
from shown import mask_curves, save_curves, show_curves, timed

import rdpgraph as rg
from rdpgraph.pruning import sweeps_of

STOPS = (1, 4, 16, 64)
SHARES = (1 / 6, 1 / 3, 2 / 3)
KEPT = (0.25, 0.5, 0.75)


def grid_of(size: int, states: int, seed: int) -> rg.FactorGraph:
    generator = torch.Generator().manual_seed(seed)
    pixels = rg.VariableArray("pixel", (size, size), states)

    def table(*shape: int) -> rg.Table:
        return rg.Table(torch.randn(*shape, generator=generator, dtype=torch.float64))

    return rg.FactorGraph(
        [
            rg.FactorBlock((pixels,), table(size, size, states)),
            rg.FactorBlock((pixels[:, :-1], pixels[:, 1:]), table(size, size - 1, states, states)),
            rg.FactorBlock((pixels[:-1], pixels[1:]), table(size - 1, size, states, states)),
        ]
    )


def main() -> None:
    asked = argparse.ArgumentParser(description="Randomized pruning of a graph with cycles.")
    asked.add_argument("--size", type=int, default=8)
    asked.add_argument("--states", type=int, default=8)
    asked.add_argument("--small", action="store_true")
    asked.add_argument("--output", type=Path, default=Path("build/pruning"))
    given = asked.parse_args()
    torch.set_num_threads(1)
    graph = grid_of(3 if given.small else given.size, given.states, 0)
    rg.infer(grid_of(2, 2, 0)).marginal("pixel")  # what is loaded once
    exact, seconds = timed(lambda: rg.infer(graph).marginal("pixel"))

    def run(estimator: Any, generator: torch.Generator):
        posterior = rg.infer(graph, estimator=estimator, generator=generator)
        return posterior, float((posterior.marginal("pixel") - exact).square().sum())

    curves, posterior = mask_curves(SHARES, STOPS[:2] if given.small else STOPS, run)
    print(f"{sweeps_of(posterior).run.sweeps} sweeps at most")
    for keep in KEPT:
        estimator = rg.Randomized.default(keep=keep, replicates=8)
        generator = torch.Generator().manual_seed(0)
        (_, error), spent = timed(partial(run, estimator, generator))
        curves.setdefault("Randomized", []).append((f"{keep:.0%}", spent, error))
    title = f"grid of {given.size} x {given.size} variables, {given.states} states"
    show_curves(title, seconds, curves)
    save_curves(given.output, "graph", seconds, curves, "squared error", title)


if __name__ == "__main__":
    main()
