"""Loopy belief propagation over few states of each variable, beside that over all of them.

    python tests/benchmarks/randomized_grid.py [--size 10] [--states 500] [--runs 3] [--threads 1]

A grid whose variables take values on a line: potentials of one variable are a few bumps, those of
neighbours prefer near values.

- one table: all pairs of neighbours share one table of 500 x 500, which makes all-state messages
  one matrix product.
- a table each: every pair has a table of its own.
- embeddings: every pair is the inner product of two embeddings, of 16 numbers for each state.

Error is the total variation between the marginals of a variable and those of all-state messages,
the mean over variables, and the largest. States are drawn by the default's proposal and
`Threshold`, for the potentials are smooth; redrawn: again after sweeps 5 and 10. All run until
messages change by less than 0.001; one thread; means of the runs.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

import rdpgraph as rg


def model(kind: str, size: int, states: int) -> tuple[rg.VariableArray, rg.FactorGraph]:
    generator = torch.Generator().manual_seed(0)
    sites = rg.VariableArray("site", (size, size), states)
    place = torch.linspace(0, 1, states)

    def bumps(*shape: int) -> Tensor:
        centre = torch.rand(*shape, 3, 1, generator=generator)
        height = 1 + 2 * torch.rand(*shape, 3, 1, generator=generator)
        return (height * (-(((place - centre) / 0.1) ** 2)).exp()).sum(-2)

    def pairs(*shape: int) -> rg.extend.Potential:
        if kind == "embeddings":
            centres = torch.linspace(0, 1, 16)
            near = 1.0 * (-(((place.unsqueeze(1) - centres) / 0.12) ** 2)).exp()
            return rg.Bilinear(near, near)
        near = (-((place.unsqueeze(1) - place) ** 2) / 0.09).exp()
        if kind == "one table":
            return rg.Table(4 * near)
        strength = 3.5 + torch.rand(*shape, 1, 1, generator=generator)
        return rg.Table(strength * near)

    return sites, rg.FactorGraph(
        [
            rg.FactorBlock((sites,), rg.Table(bumps(size, size))),
            rg.FactorBlock((sites[:, :-1], sites[:, 1:]), pairs(size, size - 1)),
            rg.FactorBlock((sites[:-1], sites[1:]), pairs(size - 1, size)),
        ]
    )


def timed(run: Callable[[], rg.Posterior], sites: rg.VariableArray) -> tuple[float, Tensor, int]:
    start = time.perf_counter()
    posterior = run()
    marginal = posterior.marginal(sites)
    return time.perf_counter() - start, marginal, posterior.status.iterations or 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=10)
    parser.add_argument("--states", type=int, default=500)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    print(f"{chosen.size} x {chosen.size} grid, {chosen.states} states, {chosen.runs} runs")
    print(f"{'':34s}{'seconds':>9s}{'sweeps':>8s}{'error':>9s}{'largest':>9s}")
    for kind in ("one table", "a table each", "embeddings"):
        sites, graph = model(kind, chosen.size, chosen.states)

        def whole(graph: rg.FactorGraph = graph) -> rg.Posterior:
            return rg.infer(graph, scheduler=rg.Loopy(tolerance=1e-3))

        seconds, truth, sweeps = timed(whole, sites)
        print(f"{kind + ', all states':34s}{seconds:9.2f}{sweeps:8d}", flush=True)
        for share in (0.02, 0.05, 0.1):
            for name, at, replicates in (
                ("drawn once", (), 1),
                ("redrawn", (5, 10), 1),
                ("redrawn, 4 replicates", (5, 10), 4),
            ):
                found: list[tuple[float, float, float, float]] = []
                for seed in range(chosen.runs):
                    estimator = replace(
                        rg.Randomized.default(keep=share, replicates=replicates),
                        selection=rg.randomized.Threshold(share),
                    )
                    generator = torch.Generator().manual_seed(seed)
                    few = partial(
                        rg.infer,
                        graph,
                        estimator=rg.Redrawn(estimator, at=at),
                        scheduler=rg.Loopy(tolerance=1e-3, sweeps=200),
                        generator=generator,
                    )

                    seconds, marginal, sweeps = timed(few, sites)
                    error = (marginal - truth).abs().sum(-1) / 2
                    found.append((seconds, sweeps, float(error.mean()), float(error.max())))
                seconds, many, mean, worst = torch.tensor(found).mean(0).tolist()
                label = f"  {100 * share:.0f}%, {name}"
                print(f"{label:34s}{seconds:9.2f}{many:8.0f}{mean:9.4f}{worst:9.3f}", flush=True)


if __name__ == "__main__":
    main()
