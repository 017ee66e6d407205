"""Low-rank chains and grammars at scale: seconds, peak memory, and how they grow.

    python tests/benchmarks/lowrank.py [--threads 2] [--only chain|grammar]

Each case runs in a process of its own. Seconds are of one value and gradient in all potentials,
float32, the best of the runs after the first; memory is the largest resident set of the process,
and beside it what the process held before the first run: torch and the potentials.

- chain: 8 items of 100 steps, a transition of rank 64, from 12,500 states to 100,000, and the
  exponent of the time fitted to them, and beside them chains whose transition is a table.
- grammar: 4 sentences of 20 words, N nonterminals and as many preterminals, with rules as a table,
  factorised for each parent at 16 ranks, and of rank 64 for all.
"""

import argparse
import json
import math
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

BATCH, STEPS, RANK = 8, 100, 64
SENTENCES, WORDS, PARENT_RANK = 4, 20, 16


@dataclass(frozen=True)
class Case:
    """One case.

    Attributes:
        kind: "chain" or "grammar".
        form: of the transition or the rules.
        states: N.
    """

    kind: str
    form: str
    states: int


CASES = (
    *(Case("chain", "low rank", states) for states in (12_500, 25_000, 50_000, 100_000)),
    *(Case("chain", "table", states) for states in (1563, 3125, 6250)),
    *(
        Case("grammar", form, states)
        for states in (16, 32, 64, 128)
        for form in ("table", "factorised", "low rank")
    ),
)


def resident() -> float:
    """The largest resident set so far, GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def problem(case: Case) -> tuple[Callable, list]:
    """A function from leaves to log Z, and the leaves."""
    import torch

    import rdpgraph as rg

    generator = torch.Generator().manual_seed(0)

    def leaf(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).requires_grad_()

    count = case.states
    if case.kind == "chain":
        if case.form == "table":
            leaves = [leaf(BATCH, STEPS, count), leaf(count, count)]
            return lambda unary, table: rg.Chain(unary, table).log_partition(), leaves
        leaves = [leaf(BATCH, STEPS, count), leaf(count, RANK), leaf(count, RANK)]
        return lambda unary, *sides: rg.Chain(unary, rg.LowRank(*sides)).log_partition(), leaves
    forms = {
        "table": (rg.trees.DenseRules, [(count, 2 * count, 2 * count)]),
        "factorised": (rg.trees.FactorisedRules, [(count, 2 * count, PARENT_RANK)] * 2),
        "low rank": (rg.trees.LowRankRules, [(count, RANK), *[(2 * count, RANK)] * 2]),
    }
    make, shapes = forms[case.form]
    root, terms = leaf(SENTENCES, count), leaf(SENTENCES, WORDS, count)
    leaves = [root, terms, *(leaf(*shape) for shape in shapes)]

    def log_z(root: torch.Tensor, terms: torch.Tensor, *parts: torch.Tensor) -> torch.Tensor:
        return rg.Hypertree.pcfg(root, make(*parts), terms).log_partition()

    return log_z, leaves


def run(case: Case, threads: int) -> None:
    import torch

    torch.set_num_threads(threads)
    log_z, leaves = problem(case)
    before, times = resident(), list[float]()
    while len(times) < 3 or (sum(times) < 2 and len(times) < 20):
        start = time.perf_counter()
        value = log_z(*leaves)
        gradients = torch.autograd.grad(value.sum(), leaves)
        times.append(time.perf_counter() - start)
        assert all(bool(part.isfinite().all()) for part in (value, *gradients))
        del value, gradients
        if sum(times) > 30:
            break
    best = min(times[1:] or times)
    print(json.dumps({"first": times[0], "seconds": best, "before": before, "peak": resident()}))


def exponent(sizes: list[int], times: list[float]) -> float:
    """The slope of log time against log size, by least squares."""
    x, y = [math.log(size) for size in sizes], [math.log(value) for value in times]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    above = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return above / sum((a - mean_x) ** 2 for a in x)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", choices=["chain", "grammar"])
    parser.add_argument("--run", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.run is not None:
        run(Case(**json.loads(chosen.run)), chosen.threads)
        return
    print(
        f"{'case':10s}{'form':12s}{'states':>9s}{'first s':>10s}{'seconds':>10s}"
        f"{'peak GB':>10s}{'before GB':>11s}"
    )
    times: dict[tuple[str, str], dict[int, float]] = {}
    for case in CASES:
        if chosen.only not in (None, case.kind):
            continue
        told = json.dumps(asdict(case))
        command = [sys.executable, __file__, "--run", told, "--threads", str(chosen.threads)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found = json.loads(done.stdout.splitlines()[-1])
        times.setdefault((case.kind, case.form), {})[case.states] = found["seconds"]
        print(
            f"{case.kind:10s}{case.form:12s}{case.states:9,d}{found['first']:10.2f}"
            f"{found['seconds']:10.3f}{found['peak']:10.2f}{found['before']:11.2f}",
            flush=True,
        )
    for (kind, form), own in times.items():
        print(f"{kind}, {form}: time grows as states^{exponent([*own], [*own.values()]):.2f}")


if __name__ == "__main__":
    main()
