"""Random weighted clauses: a circuit of this library beside pysdd, and its count beside pyganak.

    python tests/benchmarks/counting.py --seconds 20 --seeds 10
    python tests/benchmarks/counting.py --equivalences
    python tests/benchmarks/counting.py --agreement 200

For each size and ratio of clauses to variables the first prints how many of the models each way
answers within the seconds; of those that it answers the median seconds, the median memory beyond
that of the imports, and the size of circuits. Each answer is by a process of its own, with 2 GB
(d4 reserves as much again, and does not use it); "count" has the memory of another process besides
where the library compiles no circuit soon. Then the time of rows of evidence by one circuit, beside
a count each.

The second compiles clauses with pairs of equivalent literals among them, and the same with such
literals merged (strongly connected components of the clauses of two literals), and prints the sizes
of both circuits.

The third asks so many models of 50 to 300 variables for log Z by `Counting` and by pyganak alone,
and prints how many each answers in the seconds, how many ours answers by a circuit, and the largest
difference.
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
QUICK = ((50, 2.0), (75, 3.5), (100, 4.0), (150, 0.55), (200, 0.45), (300, 0.35))
SEEDS = 3
NAMES = ("circuit", "pysdd", "count", "pyganak")
ROWS = 1000
LIMIT = 2 * 10**9
RESERVED = 2 * 10**9
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
    size, posterior = 0, None
    if what in ("circuit", "count"):
        import rdpgraph as rg
        from rdpgraph.io.dimacs import parse_dimacs

        scheduler = rg.Counting(seconds=seconds, memory=LIMIT)
        # The first model loads what is imported when it is needed.
        for few in ([[1, 2, 3]], clauses):
            graph = parse_dimacs(text_of(variables, few).encode(), source="random")
            posterior = rg.infer(graph, scheduler=scheduler)
            if few is not clauses:
                posterior.marginals()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
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
        assert posterior is not None
        begin = time.perf_counter()
        if what == "circuit":
            posterior.marginals()
            size = vars(posterior.solution)["circuit"].size
        log_z = float(posterior.log_partition)
    seconds = time.perf_counter() - begin
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return {"log_z": log_z, "seconds": seconds, "size": size, "MB": used / 1e3}


def asked(
    what: str, variables: int, ratio: float, seed: int, seconds: float
) -> dict[str, float] | None:
    """The answer of a child; None where it does not end in time."""
    arguments = [what, str(variables), str(ratio), str(seed), str(seconds)]
    try:
        done = subprocess.run(
            [sys.executable, __file__, CHILD, *arguments], capture_output=True, text=True,
            timeout=seconds + 30, check=False,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (LIMIT + RESERVED,) * 2),
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
        _ = rg.infer(model, scheduler=counting).log_partition
        times.append(time.perf_counter() - begin)
    print(f"{count} rows: {times[0]:.2f} s with compiling, {times[1]:.2f} s again; a count alone ",
          end="")  # fmt: skip
    one = asked("pyganak", variables, ratio, 0, 60.0)
    if one is None:
        print("not in a minute")
    else:
        ratio = count * one["seconds"] / times[1]
        print(f"{one['seconds']:.3f} s, {count} of them {ratio:.0f} times as long")


def merged(clauses: list[list[int]]) -> list[list[int]]:
    """The clauses with a literal in place of all that are equivalent to it by clauses of two."""
    import networkx

    while True:
        graph = networkx.DiGraph()
        for one, other in (clause for clause in clauses if len(clause) == 2):
            graph.add_edges_from([(-one, other), (-other, one)])
        parts = networkx.strongly_connected_components(graph)
        moved = {x: min(part, key=abs) for part in parts for x in part if x != min(part, key=abs)}
        if not moved:
            return clauses
        rows = {tuple(sorted({moved.get(x, x) for x in clause})) for clause in clauses}
        clauses = [[*row] for row in rows if not any(-x in row for x in row)]


def equivalences(seconds: float) -> None:
    """Sizes of circuits with equivalent literals, and with these merged."""
    from rdpgraph.engines.counting.circuit import circuit_of

    ratios: list[float] = []
    for seed in range(42):
        rng = random.Random(seed)
        variables = rng.randint(40, 60)
        clauses = clauses_of(variables, rng.uniform(1.3, 2.0), seed)
        for _ in range(variables // 8):
            one, other = rng.sample(range(1, variables + 1), 2)
            clauses += [[-one, other], [one, -other]]
        sizes = []
        for every in (clauses, merged(clauses)):
            rows_of = [tuple(sorted(clause)) for clause in every]
            sizes.append(circuit_of(rows_of, variables, 0, seconds, LIMIT).size)
        ratios.append(sizes[1] / sizes[0])
        print(f"{variables} variables: {sizes[0]:,} nodes, merged {sizes[1]:,}")
    spread = min(ratios), statistics.median(ratios), max(ratios)
    print("merged over as given, least, median, most:", *(f"{ratio:.2f}" for ratio in spread))


def agreement(count: int, seconds: float) -> None:
    """Log Z of random models by `Counting`, and by pyganak alone in a process of its own."""
    import rdpgraph as rg
    from rdpgraph.io.dimacs import parse_dimacs

    ours, theirs, both, circuits, worst = 0, 0, 0, 0, 0.0
    for seed in range(count):
        variables, ratio = QUICK[seed % len(QUICK)]
        text = text_of(variables, clauses_of(variables, ratio, seed))
        graph = parse_dimacs(text.encode(), source="random")
        posterior = rg.infer(graph, scheduler=rg.Counting(seconds=seconds, memory=LIMIT))
        try:
            log_z = float(posterior.log_partition)
        except rg.errors.BudgetError:
            log_z = None
        peer = asked("pyganak", variables, ratio, seed, seconds)
        ours, theirs = ours + (log_z is not None), theirs + (peer is not None)
        circuits += "circuit" in vars(posterior.solution)
        if log_z is not None and peer is not None:
            both, worst = both + 1, max(worst, abs(log_z - peer["log_z"]))
        print(f"{seed + 1} models: counted {ours}, by pyganak {theirs}, by both {both}, "
              f"circuits {circuits}, largest difference {worst:.2g} nats", flush=True)  # fmt: skip


def main() -> None:
    """Compare all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--equivalences", action="store_true")
    parser.add_argument("--agreement", type=int, default=0)
    options = parser.parse_args()
    if options.agreement:
        agreement(options.agreement, options.seconds)
        return
    if options.equivalences:
        equivalences(options.seconds)
        return
    print("| variables x ratio | " + " | ".join(NAMES) + " |")
    print("|---" * (1 + len(NAMES)) + "|")
    for variables, ratio in SIZES:
        table = {
            name: [asked(name, variables, ratio, s, options.seconds) for s in range(options.seeds)]
            for name in NAMES
        }
        cells: list[str] = []
        for rows_of in table.values():
            known = [row for row in rows_of if row is not None]
            cell = f"{len(known)}/{len(rows_of)}"
            if known:
                keys = "seconds", "MB", "size"
                middle = [statistics.median([row[key] for row in known]) for key in keys]
                cell += f", {middle[0]:.2f} s, {middle[1]:.0f} MB"
                cell += f", {middle[2]:,.0f} nodes" if middle[2] else ""
            cells.append(cell)
        for every in zip(*table.values(), strict=True):
            values = [row["log_z"] for row in every if row is not None]
            assert not values or max(values) - min(values) < 1e-7, values  # pyganak's digits
        print(f"| {variables} x {ratio:g} | " + " | ".join(cells) + " |", flush=True)
    rows(ROWS)


if __name__ == "__main__":
    if CHILD in sys.argv:
        what, variables, ratio, seed, seconds = sys.argv[2:]
        print(json.dumps(answer(what, int(variables), float(ratio), int(seed), float(seconds))))
    else:
        main()
