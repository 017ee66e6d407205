"""Matchings: milliseconds of CPU time for tracks and detections, and for two large files.

    OMP_NUM_THREADS=1 python tests/benchmarks/matching.py --rows 100000

Tracks and detections lie in squares, gated at four standard deviations. The files have one true
pair for nine records of ten, and 0.4 random ones for each.
"""

import argparse
import math
import time
from collections.abc import Callable

import numpy as np
import torch

import rdpgraph as rg

SQUARES = (20.0, 16.0, 14.0, 12.0)
TRACKS, NOISE = 100, 0.3


def tracks(size: float, seed: int = 1) -> torch.Tensor:
    """Log-odds of tracks and detections in a square."""
    generator = torch.Generator().manual_seed(seed)
    places = torch.rand(TRACKS, 2, generator=generator, dtype=torch.float64) * size
    moved = places + NOISE * torch.randn(TRACKS, 2, generator=generator, dtype=torch.float64)
    seen = torch.rand(TRACKS, generator=generator) < 0.9
    ghosts = torch.rand(TRACKS // 5, 2, generator=generator, dtype=torch.float64) * size
    detections = torch.cat([moved[seen], ghosts])
    apart = ((places.unsqueeze(1) - detections) ** 2).sum(-1) / NOISE**2
    density = -apart / 2 - math.log(2 * math.pi * NOISE**2)
    odds = density + math.log(9.0) - math.log(len(ghosts) / size**2)
    return torch.where(apart < 16, odds, -math.inf)


def files(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Pairs (P, 2) of the records of two files, and their log-odds."""
    draws = np.random.default_rng(0)
    true = np.arange(rows)[draws.random(rows) < 0.9]
    others = draws.integers(0, rows, (int(0.4 * rows), 2))
    pairs = np.unique(np.concatenate([np.stack([true, true], 1), others]), axis=0)
    same = pairs[:, 0] == pairs[:, 1]
    return pairs, np.where(same, draws.normal(3, 2, len(pairs)), draws.normal(-2, 2, len(pairs)))


def spent(ask: Callable[[], object]) -> str:
    """Milliseconds of CPU time."""
    start = time.process_time()
    ask()
    return f"{1e3 * (time.process_time() - start):,.0f}"


def measured(name: str, make: Callable[[], rg.Matching]) -> None:
    model = make()
    times = [spent(lambda: make().log_partition())]  # planned anew
    cost = model.cost()
    times += [spent(ask) for ask in (model.log_partition, model.marginals, model.mode)]
    print(f"| {name} | {cost.components:,} | {cost.open} | {' | '.join(times)} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    given = parser.parse_args()
    torch.set_num_threads(1)
    rg.Matching(torch.zeros(2, 2)).marginals()  # what torch does at first
    print(
        "| | components | open | log Z | again | marginals | mode |\n|---|---|---|---|---|---|---|"
    )
    for size in SQUARES:
        odds = tracks(size)
        measured(
            "{} tracks, {} detections".format(*odds.shape), lambda odds=odds: rg.Matching(odds)
        )
    pairs, odds = files(given.rows)
    measured(
        f"2 files of {given.rows:,} records, {len(pairs):,} pairs",
        lambda: rg.Matching(odds, pairs=pairs, shape=(given.rows, given.rows)),
    )
