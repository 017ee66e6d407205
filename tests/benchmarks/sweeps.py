"""Sweeps over kept configurations with a sampled tail, by what else is known of the rest.

Populations of `MiniBuckets` are such sweeps, whose members are weighted by a bound on the rest.
With tables of one cell it is that of each factor by itself: members are kept by hardly more
than their own weight. Log Z and its spread over 6 sweeps, on dense sharp models and on files.

    OMP_NUM_THREADS=1 python tests/benchmarks/sweeps.py --models 3 --files rus_20_40_0_2.uai
"""

import argparse
from random import Random

import numpy as np
import torch

import rdpgraph as rg
from rdpgraph.engines.elimination import log_sum
from rdpgraph.engines.elimination_bounds import bounded
from rdpgraph.engines.minibuckets.estimate import tight_order
from rdpgraph.engines.minibuckets.population import grown
from rdpgraph.engines.reduction.network import reduce_graph
from rdpgraph.engines.reduction.tables import tables_of

RUNS = 6


def dense(seed: int, count: int) -> rg.FactorGraph:
    """Spins of which every two are coupled, by standard normal numbers."""
    generator = torch.Generator().manual_seed(seed)
    x = rg.VariableArray("x", (count,), 2)
    first, second = torch.triu_indices(count, count, 1)
    w = torch.randn(len(first), generator=generator, dtype=torch.float64)
    pairs = torch.stack([torch.stack([w, -w], -1), torch.stack([-w, w], -1)], -2)
    field = torch.randn(count, 2, generator=generator, dtype=torch.float64)
    blocks = [((x[first], x[second]), pairs), ((x,), field)]
    return rg.FactorGraph([rg.FactorBlock(scope, rg.Table(table)) for scope, table in blocks])


def measured(name: str, graph: rg.FactorGraph, members: int) -> None:
    tables = tables_of(reduce_graph(graph), 0, zeros=True)
    order = tight_order(tables, cells=1e5, seconds=1.0, rng=Random(0))
    parts: list[str] = []
    for cells in (1.0, 1e3, 1e5):
        passed = bounded(tables, order, cells=cells)
        runs = [grown(passed, members, np.random.default_rng(seed)) for seed in range(RUNS)]
        logs = np.array([run.log_partition for run in runs if run is not None])
        mean = float(log_sum(logs, 0)) - np.log(len(logs))
        spread = logs.std() if np.isfinite(logs).all() else np.inf
        parts.append(f"{cells:g} cells: {mean:.2f}, {spread:.2f}")
    print(f"{name}: {'; '.join(parts)}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, default=3)
    parser.add_argument("--variables", type=int, default=40)
    parser.add_argument("--members", type=int, default=1000)
    parser.add_argument("--files", nargs="*", default=[])
    given = parser.parse_args()
    torch.set_num_threads(1)
    for seed in range(given.models):
        measured(f"dense {seed}", dense(seed, given.variables), given.members)
    for file in given.files:
        measured(file, rg.read(file), given.members)
