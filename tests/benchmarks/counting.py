"""Random weighted clauses: a circuit of this library beside pysdd, and its count beside pyganak.

    python tests/benchmarks/counting.py --seconds 20

Prints for each size and ratio of clauses to variables how many of the models each answers within
the seconds, the median seconds of those that all answer, and the size of circuits. Each answer is
by a process of its own, with 2 GB. Then the time of rows of evidence by one circuit, beside a count
each.
"""

import argparse
import json
import math
import random
import resource
import statistics
import subprocess
import sys
import time

SIZES = ((50, 1.0), (50, 2.0), (50, 3.0), (100, 3.5), (200, 0.6), (300, 0.5))
SEEDS = 3
ROWS = 1000
LIMIT = 2 * 10**9
CHILD = "--child"


def clauses_of(variables: int, ratio: float, seed: int) -> list[list[int]]:
    """Clauses of three literals over different variables."""
    rng = random.Random(seed)
    every = range(1, variables + 1)
    return [
        [rng.choice([1, -1]) * x for x in rng.sample(every, 3)]
        for _ in range(int(ratio * variables))
    ]


def weight(literal: int) -> float:
    """A weight from a tenth to nine tenths; those of x and -x sum to one."""
    share = 0.1 + 0.8 * (abs(literal) * 7 % 11) / 10
    return share if literal > 0 else 1 - share


def text_of(variables: int, clauses: list[list[int]]) -> str:
    """The same as a DIMACS file."""
    lines = [f"p cnf {variables} {len(clauses)}"]
    lines += [
        f"c p weight {s * x} {weight(s * x)!r} 0" for x in range(1, variables + 1) for s in (1, -1)
    ]
    return "\n".join([*lines, *(" ".join(map(str, [*clause, 0])) for clause in clauses)])


def answer(what: str, variables: int, ratio: float, seed: int, seconds: float) -> dict[str, float]:
    """Log Z, the seconds, and the size of a circuit; in a process of its own."""
    clauses = clauses_of(variables, ratio, seed)
    size = 0
    if what == "pysdd":
        from pysdd.sdd import SddManager, Vtree

        begin = time.perf_counter()
        manager = SddManager.from_vtree(Vtree(variables, vtree_type="balanced"))
        manager.auto_gc_and_minimize_on()
        root = manager.true()
        for clause in clauses:
            part = manager.false()
            for literal in clause:
                part = part | manager.literal(literal)
            root = root & part
            root.ref()
        counter = root.wmc(log_mode=True)
        for x in range(1, variables + 1):
            for literal in (x, -x):
                counter.set_literal_weight(manager.literal(literal), math.log(weight(literal)))
        log_z, size = counter.propagate(), root.size()
    elif what == "pyganak":
        from pyganak import WeightedCounter

        begin = time.perf_counter()
        counter = WeightedCounter()
        counter.new_vars(variables)
        counter.add_clauses(clauses)
        for x in range(1, variables + 1):
            for literal in (x, -x):
                counter.set_lit_weight(literal, weight(literal))
        log_z = math.log(counter.count())
    else:
        import rdpgraph as rg
        from rdpgraph.io.dimacs import parse_dimacs

        graph = parse_dimacs(text_of(variables, clauses).encode(), source="random")
        begin = time.perf_counter()
        posterior = rg.infer(graph, scheduler=rg.Counting(seconds=seconds, memory=LIMIT))
        if what == "circuit":
            posterior.marginals()
            size = posterior.solution.circuit.size
        log_z = float(posterior.log_partition)
    return {"log_z": log_z, "seconds": time.perf_counter() - begin, "size": size}


def asked(
    what: str, variables: int, ratio: float, seed: int, seconds: float
) -> dict[str, float] | None:
    """The answer of a child; None where it does not end in time."""
    arguments = [what, str(variables), str(ratio), str(seed), str(seconds)]
    try:
        done = subprocess.run(
            [sys.executable, __file__, CHILD, *arguments], capture_output=True, text=True,
            timeout=seconds + 6, check=False,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (LIMIT, LIMIT)),
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return None
    if done.returncode:
        return None
    row = json.loads(done.stdout.strip().splitlines()[-1])
    return row if row["seconds"] <= seconds else None


def rows(count: int) -> None:
    """Rows of evidence by one circuit, beside a count of one row."""
    import torch

    import rdpgraph as rg
    from rdpgraph.io.dimacs import parse_dimacs

    variables, ratio = SIZES[0]
    text = text_of(variables, clauses_of(variables, ratio, 0))
    graph = parse_dimacs(text.encode(), source="random")
    states = torch.randint(-1, 2, (3, count), generator=torch.Generator().manual_seed(0))
    evidence = dict(zip(graph.variables[:3], states, strict=True))
    counting = rg.Counting(memory=LIMIT)
    times: list[float] = []
    for model in (graph.condition(evidence), graph.condition(evidence), graph):
        begin = time.perf_counter()
        log_z = rg.infer(model, scheduler=counting).log_partition
        times.append(time.perf_counter() - begin)
    print(f"{count} rows: {times[0]:.2f} s with compiling, {times[1]:.2f} s again; a count alone ",
          end="")  # fmt: skip
    one = asked("pyganak", variables, ratio, 0, 60.0)
    print("not in a minute" if one is None else f"{one['seconds']:.3f} s", f"(log Z {log_z:.3f})")


def main() -> None:
    """Compare all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args()
    names = ("circuit", "pysdd", "count", "pyganak")
    for variables, ratio in SIZES:
        table = {
            name: [asked(name, variables, ratio, seed, options.seconds) for seed in range(SEEDS)]
            for name in names
        }
        cells: list[str] = []
        for name in names:
            known = [row for row in table[name] if row is not None]
            median = statistics.median([row["seconds"] for row in known]) if known else math.nan
            size = statistics.median([row["size"] for row in known]) if known else math.nan
            cells.append(f"{name} {len(known)}/{SEEDS} {median:.2f} s size {size:.0f}")
        for every in zip(*table.values(), strict=True):
            values = [row["log_z"] for row in every if row is not None]
            assert not values or max(values) - min(values) < 1e-9, values
        print(f"{variables} x {ratio:g}: " + "; ".join(cells), flush=True)
    rows(ROWS)


if __name__ == "__main__":
    if CHILD in sys.argv:
        what, variables, ratio, seed, seconds = sys.argv[2:]
        print(json.dumps(answer(what, int(variables), float(ratio), int(seed), float(seconds))))
    else:
        main()
