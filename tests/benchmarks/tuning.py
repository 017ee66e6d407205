"""The sizes and rates of `rdpgraph/_core/tuning.py`, measured on this machine beside what it says.

    python tests/benchmarks/tuning.py [--elements N] [--repeats N]

For blocks: nanoseconds an element of sums in logs that are formed some rows at a time, by elements
of a block, with few columns (a step of messages) and many; the block that is named should be near
the least. For thresholds: microseconds of both methods at the size that is named, which should be
alike. For rates: the seconds that they predict for all marginals of grids, beside those taken.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial

import torch

import rdpgraph as rg
from rdpgraph._core import tuning
from rdpgraph.model.potentials.table import looked_up
from rdpgraph.model.restriction import grouped_rows
from rdpgraph.structures.draws import drawn

EXPONENTS = range(12, 27, 2)


def seconds(call: Callable[[], object], repeats: int) -> float:
    """The least CPU time of a call."""
    times: list[float] = []
    for _ in range(repeats):
        begun = time.process_time()
        call()
        times.append(time.process_time() - begun)
    return min(times)


def in_blocks(left: torch.Tensor, right: torch.Tensor, block: int) -> torch.Tensor:
    """Sums in logs over pairs of rows, as many at a time as fit a block."""
    width = tuning.per_block(len(right), block)
    return torch.cat([(part.unsqueeze(1) + right).logsumexp(1) for part in left.split(width)])


def blocks(elements: int, repeats: int) -> None:
    """A line for each number of columns: nanoseconds an element by size of a block."""
    for columns in (16, 512):
        left, right = torch.randn(elements // columns), torch.randn(columns)
        call = partial(in_blocks, left, right)
        taken = {e: seconds(partial(call, 2**e), repeats) for e in EXPONENTS}
        shown = [f"2^{e} {1e9 * each / elements:.2f}" for e, each in taken.items()]
        print(f"{columns} columns, ns an element: {', '.join(shown)}")
    for name in ("CORE_BLOCK", "CACHE_BLOCK", "BLOCK", "LARGE_BLOCK"):
        print(f"{name} is 2^{getattr(tuning, name).bit_length() - 1}")


def repeated(call: Callable[[], object]) -> None:
    """A hundred calls."""
    for _ in range(100):
        call()


def thresholds(repeats: int) -> None:
    """A line for each threshold: both methods at that size."""
    table, keys = torch.randn(1000, 1000), tuning.EVIDENCE_KEYS
    index = [torch.arange(tuning.INDEXED // 64).unsqueeze(1), torch.arange(64)]
    variables = [rg.Variable(f"x{n}", 3) for n in range(2 * keys)]
    graph = rg.FactorGraph([rg.Factor((x,), rg.Table(torch.zeros(3))) for x in variables])
    sizes = torch.randint(2, 4, (tuning.GROUPED_FACTORS, 2))
    logs = torch.randn(1000, tuning.NOISY_ALTERNATIVES)
    for name, call in {
        "INDEXED": partial(looked_up, table, index),
        "EVIDENCE_KEYS": partial(graph.condition, dict.fromkeys(variables[:keys], 1)),
        "GROUPED_FACTORS": partial(grouped_rows, sizes),
        "NOISY_ALTERNATIVES": partial(drawn(None), logs),
    }.items():
        named, taken = getattr(tuning, name), list[float]()
        for value in (0, 2**62):
            setattr(tuning, name, value)
            taken.append(seconds(partial(repeated, call), repeats) * 1e4)
        setattr(tuning, name, named)
        print(f"{name} is {named}: {taken[1]:.0f} us as for less, {taken[0]:.0f} us as for more")


def grid(side: int, states: int) -> rg.FactorGraph:
    """Random pairwise tables on a square."""
    generator = torch.Generator().manual_seed(0)
    x = [[rg.Variable(f"x{i}_{j}", states) for j in range(side)] for i in range(side)]
    pairs = [(x[i][j], x[i][j + 1]) for i in range(side) for j in range(side - 1)]
    pairs += [(x[i][j], x[i + 1][j]) for i in range(side - 1) for j in range(side)]
    tables = torch.randn(len(pairs), states, states, generator=generator)
    return rg.FactorGraph(
        [rg.Factor(pair, rg.Table(t)) for pair, t in zip(pairs, tables, strict=True)]
    )


def marginals(graph: rg.FactorGraph, scheduler: rg.extend.Scheduler) -> object:
    """All marginals, with nothing but the plan remembered."""
    return rg.infer(graph, scheduler=scheduler).marginals()


def rates(side: int, repeats: int) -> None:
    """A line for each route: the seconds that the rates predict, and those that answers take."""
    exactly, joined = rg.Contraction(), rg.JoinGraph(memory=1e5)
    for name, scheduler, size, states in (
        ("contraction", exactly, side // 2, 2),
        ("contraction", exactly, side, 2),
        ("contraction", exactly, side // 2, 4),
        ("join graph", joined, side, 2),
        ("join graph", joined, side, 4),
    ):
        graph = grid(size, states)
        plan = rg.explain(graph, scheduler=scheduler)
        taken = seconds(partial(marginals, graph, scheduler), repeats)
        print(
            f"{name}, {size} x {size} of {states} states: {plan.flops:.2g} multiply-adds, "
            f"{plan.seconds:.2g} s predicted, {taken:.2g} s measured"
        )
    for name in ("OPERATIONS_PER_SECOND", "CLUSTER_ENTRIES_PER_SECOND", "SECONDS_PER_GROUP"):
        print(f"{name} is {getattr(tuning, name):.2g}")


def main() -> None:
    """Blocks, thresholds, then rates."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--elements", type=int, default=2**26)
    parser.add_argument("--side", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with torch.no_grad():
        blocks(options.elements, options.repeats)
        thresholds(options.repeats)
        rates(options.side, options.repeats)


if __name__ == "__main__":
    main()
