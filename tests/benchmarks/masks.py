"""Savings by a mask: `Hypertree.masked`, whose charts are dense, beside the lists of its masks.

    python tests/benchmarks/masks.py [--small]

A hypertree of T words and N states, with the spans alone whose probability is above a threshold:
milliseconds of one processor, the best of seven runs, of log Z and of all expectations; and the
ratio of the dense ones to those on lists.
"""

import argparse
from collections.abc import Callable
from time import process_time

import torch

import rdpgraph as rg
from rdpgraph.pruning import masks_of

SIZES = ((20, 8), (40, 8), (60, 8), (40, 30))
THRESHOLDS = (0.02, 0.1, 0.3)


def best(run: Callable[[], object]) -> float:
    times: list[float] = []
    for _ in range(7):
        start = process_time()
        run()
        times.append(process_time() - start)
    return 1e3 * min(times)


def compare(words: int, states: int, threshold: float) -> None:
    generator = torch.Generator().manual_seed(0)
    rules = rg.trees.DenseRules(torch.randn(states, states, states, generator=generator))
    model = rg.Hypertree(torch.randn(words, words, states, generator=generator), rules)
    allowed = model.span_marginals() > threshold
    allowed |= torch.eye(words, dtype=torch.bool)
    allowed[0, -1] = True
    masks, none = masks_of(model, rg.infer), torch.zeros(1, words, words, dtype=torch.bool)
    dense = model.masked(allowed)

    def listed():
        return masks.masked(none, ~allowed.unsqueeze(0))

    assert torch.allclose(listed().log_partition[0].float(), dense.log_partition(), rtol=1e-4)
    found = [
        best(dense.log_partition), best(lambda: listed().log_partition),
        best(dense.marginals), best(lambda: listed().expected()),
    ]  # fmt: skip
    ratios = found[0] / found[1], found[2] / found[3]
    row = [words, states, int(allowed.triu().sum()), *(f"{own:.1f}" for own in (*found, *ratios))]
    print("  ".join(f"{cell:>9}" for cell in row), flush=True)


def main() -> None:
    asked = argparse.ArgumentParser(description="What a mask saves.")
    asked.add_argument("--small", action="store_true")
    torch.set_num_threads(1)
    sizes = ((10, 3),) if asked.parse_args().small else SIZES
    heads = ["words", "states", "spans", "log Z", "listed", "marginals", "listed", "ratio", "ratio"]
    print("  ".join(f"{head:>9}" for head in heads))
    for words, states in sizes:
        for threshold in THRESHOLDS:
            compare(words, states, threshold)


if __name__ == "__main__":
    main()
