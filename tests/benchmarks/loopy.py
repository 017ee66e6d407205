"""Loopy belief propagation on random grids beside PGMax and libDAI, and a million variables.

    python tests/benchmarks/loopy.py [--pgmax PYTHON] [--libdai PROGRAM] [--batches]

PYTHON is the interpreter of an environment with PGMax 0.6.1:

    python3.11 -m venv pgmax
    pgmax/bin/pip install --no-deps pgmax==0.6.1
    pgmax/bin/pip install jax==0.4.30 jaxlib==0.4.30 'numpy<2' 'scipy<1.14' numba cvxpy tqdm \\
        joblib typing_extensions

PROGRAM runs libDAI's BP: `PROGRAM MODEL.fg SEQMAX MAXITER TOL` prints a JSON object with "updates"
(calls of updateMessage), "num_directed_edges" (of factors of two variables), "num_edges_all",
"log_z" and "seconds". What is not given is left out of the tables.

One message is one directed edge update, all states. Random unary and pairwise log-tables, standard
normal times a scale, every factor its own; all in float32, flooding, no damping.
"""

import argparse
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time

import numpy as np

GRIDS = ((100, 2, 200), (60, 16, 50), (40, 64, 20))  # side, states, sweeps
RESIDUAL_GRIDS = ((20, 2), (50, 2), (20, 16))
SCALE = 0.5
BATCHES = (
    (20, 100, 2, 0.3), (20, 100, 5, 0.2), (200, 30, 5, 0.2), (2, 100, 16, 0.2), (4, 100, 16, 0.2),
    (8, 100, 16, 0.2),
)  # fmt: skip
"""Items, side, states, scale."""
WORDS, BITS = 50, 240
"""Words of a parity-check code, and their length, a multiple of 6."""
DECODED = ((0.03, 25), (0.06, 25), (0.06, 60), (0.06, 200))
"""Share of flipped bits, sweeps."""
MILLION = 1000
"""The side of the largest grid."""
LONGEST = 30.0
"""Seconds of a row of modes after which it is not timed again."""


def tables(side: int, states: int, seed: int, scale: float) -> list[np.ndarray]:
    """Unary, horizontal and vertical log-tables."""
    random = np.random.default_rng(seed)
    shapes = [(side, side, states), (side, side - 1, states, states)]
    shapes.append((side - 1, side, states, states))
    return [(random.standard_normal(shape) * scale).astype(np.float32) for shape in shapes]


def grid(parts: list[np.ndarray]):
    """The same as a factor graph, and its variables."""
    import torch

    import rdpgraph as rg

    unary, across, down = (rg.Table(torch.from_numpy(part)) for part in parts)
    side, states = parts[0].shape[0], parts[0].shape[2]
    x = rg.VariableArray("x", (side, side), states)
    blocks = [rg.FactorBlock((x,), unary), rg.FactorBlock((x[:, :-1], x[:, 1:]), across)]
    return rg.FactorGraph([*blocks, rg.FactorBlock((x[:-1], x[1:]), down)]), x


def ours(parts: list[np.ndarray], sweeps: int) -> tuple[float, np.ndarray]:
    """Seconds of the best of five runs (planning left out), and the beliefs."""
    import rdpgraph as rg

    graph, x = grid(parts)
    best, beliefs = float("inf"), np.zeros(0)
    for _ in range(5):
        posterior = rg.infer(graph, scheduler=rg.Loopy(sweeps=sweeps, tolerance=0.0))
        start = time.process_time()
        assert posterior.status.iterations == sweeps
        best = min(best, time.process_time() - start)
        beliefs = posterior.marginal(x).numpy()
    return best, beliefs


def child_pgmax(source: str, sweeps: int, target: str) -> None:
    """The same in PGMax, compilation left out; runs in its environment."""
    import jax
    from pgmax import fgraph, fgroup, infer, vgroup

    unary, across, down = np.load(source).values()
    side, states = unary.shape[0], unary.shape[2]
    x = vgroup.NDVarArray(num_states=states, shape=(side, side))
    graph = fgraph.FactorGraph(variable_groups=[x])
    cells = [(i, j) for i in range(side) for j in range(side)]
    for table, (below, right) in ((across, (0, 1)), (down, (1, 0))):
        pairs = [
            [x[i, j], x[i + below, j + right]]
            for i, j in cells
            if i + below < side and j + right < side
        ]
        graph.add_factors(
            fgroup.PairwiseFactorGroup(
                variables_for_factors=pairs,
                log_potential_matrix=table.reshape(-1, states, states),
            )
        )
    engine = infer.build_inferer(graph.bp_state, backend="bp")
    begin = engine.init(evidence_updates={x: unary})
    run = jax.jit(lambda arrays: engine.run(arrays, num_iters=sweeps, damping=0.0, temperature=1.0))
    jax.block_until_ready(run(begin).ftov_msgs)
    best = float("inf")
    for _ in range(5):
        start = time.process_time()
        arrays = run(begin)
        jax.block_until_ready(arrays.ftov_msgs)
        best = min(best, time.process_time() - start)
    logs = np.asarray(engine.get_beliefs(arrays)[x])
    values = np.exp(logs - logs.max(-1, keepdims=True))
    np.save(target, values / values.sum(-1, keepdims=True))
    print(json.dumps({"seconds": best}))


def speed(pgmax: str | None, folder: pathlib.Path) -> None:
    """Messages per second."""
    print("Flooding, million messages per second")
    print(f"{'grid':>12s} {'states':>7s} {'rdpgraph':>10s} {'PGMax':>8s} {'ratio':>7s}  differ by")
    for side, states, sweeps in GRIDS:
        parts = tables(side, states, 0, SCALE)
        seconds, beliefs = ours(parts, sweeps)
        messages = 4 * side * (side - 1) * sweeps / 1e6
        row = f"{side:>6d} x {side:<3d} {states:>7d} {messages / seconds:>10.2f}"
        if pgmax:
            source, target = folder / "tables.npz", folder / "beliefs.npy"
            np.savez(source, *parts)
            arguments = [pgmax, __file__, "--child-pgmax", str(source), str(sweeps), str(target)]
            done = subprocess.run(arguments, capture_output=True, text=True, check=True)
            theirs = json.loads(done.stdout.strip().splitlines()[-1])["seconds"]
            gap = np.abs(np.load(target) - beliefs).max()
            row += f" {messages / theirs:>8.2f} {theirs / seconds:>7.1f}  {gap:.1e}"
        print(row, flush=True)


def write_fg(path: pathlib.Path, parts: list[np.ndarray]) -> None:
    """libDAI's factor graph format; in a table the first variable runs fastest."""
    unary, across, down = (np.exp(part.astype(np.float64)) for part in parts)
    side, states = unary.shape[0], unary.shape[2]
    factors = [([i * side + j], unary[i, j]) for i in range(side) for j in range(side)]
    for i in range(side):
        for j in range(side):
            if j + 1 < side:
                factors.append(([i * side + j, i * side + j + 1], across[i, j]))
            if i + 1 < side:
                factors.append(([i * side + j, (i + 1) * side + j], down[i, j]))
    with path.open("w") as file:
        file.write(f"{len(factors)}\n")
        for scope, table in factors:
            values = table.flatten(order="F")
            names, sizes = " ".join(map(str, scope)), " ".join([str(states)] * len(scope))
            file.write(f"\n{len(scope)}\n{names}\n{sizes}\n{values.size}\n")
            file.write("".join(f"{k} {value:.17g}\n" for k, value in enumerate(values)))


def updates(libdai: str | None, folder: pathlib.Path) -> None:
    """Message updates until convergence by schedule, on tables of scale 1 in float64."""
    import torch

    import rdpgraph as rg

    schedules = {
        "flooding": rg.loopy.Flooding(),
        "sequential": rg.loopy.Sequential(),
        "residual": rg.loopy.Residual(),
    }
    print("\nMessage updates until convergence (tolerance 1e-6), in sweeps of all messages")
    names = " ".join(f"{name:>11s}" for name in schedules)
    print(f"{'grid':>12s} {'states':>7s} {names} {'SEQMAX':>8s} {'ratio':>6s}  log Z differ by")
    for side, states in RESIDUAL_GRIDS:
        for seed in range(3):
            parts = tables(side, states, seed, 1.0)
            graph = grid(parts)[0].to(torch.float64)
            edges = 4 * side * (side - 1)
            row, counts, log_z = f"{side:>6d} x {side:<3d} {states:>7d}", {}, 0.0
            for name, schedule in schedules.items():
                posterior = rg.infer(graph, scheduler=rg.Loopy(schedule=schedule, tolerance=1e-6))
                solution = posterior.solution
                counts[name] = solution.outcome.updates / edges  # pyright: ignore
                assert posterior.status.converged
                log_z = float(posterior.log_partition)
                row += f" {counts[name]:>11.1f}"
            if libdai:
                path = folder / "grid.fg"
                write_fg(path, parts)
                arguments = [libdai, str(path), "SEQMAX", "10000", "1e-6"]
                done = subprocess.run(arguments, capture_output=True, text=True, check=True)
                found = json.loads(done.stdout)
                # Its updates include those of unary factors, ours do not: take them off.
                sweeps = found["updates"] / found["num_edges_all"]
                gap = abs(found["log_z"] - log_z)
                row += f" {sweeps:>8.1f} {counts['residual'] / sweeps:>6.2f}  {gap:.1e}"
            print(row, flush=True)


def batches() -> None:
    """A batch of grids against a loop over them; CPU seconds, the least of three."""
    import torch

    import rdpgraph as rg

    print("\nFlooding to convergence and marginals: a batch against a loop over its items")
    print(
        f"{'batch':>6s} {'grid':>12s} {'states':>7s} {'batch, s':>9s} {'loop, s':>8s} {'ratio':>6s}"
    )
    for batch, side, states, scale in BATCHES:
        items = [tables(side, states, seed, scale) for seed in range(batch)]
        whole = [np.stack(column) for column in zip(*items, strict=True)]
        parts = [[torch.from_numpy(own) for own in item] for item in (whole, *items)]

        def run(part: list[torch.Tensor]) -> float:
            *_, rows, _, count = part[0].shape
            x = rg.VariableArray("x", (rows, rows), count)
            graph = rg.FactorGraph([
                rg.FactorBlock((x,), rg.Table(part[0])),
                rg.FactorBlock((x[:, :-1], x[:, 1:]), rg.Table(part[1])),
                rg.FactorBlock((x[:-1], x[1:]), rg.Table(part[2])),
            ])  # fmt: skip
            start = time.process_time()
            rg.infer(graph, scheduler=rg.Loopy()).marginal(x)
            return time.process_time() - start

        together, loop = float("inf"), float("inf")
        for _ in range(3):
            together = min(together, run(parts[0]))
            loop = min(loop, sum(run(part) for part in parts[1:]))
        row = f"{batch:>6d} {side:>6d} x {side:<3d} {states:>7d} {together:>9.3f} {loop:>8.3f}"
        print(f"{row} {together / loop:>6.2f}", flush=True)


def decoding() -> None:
    """Modes of noisy words of a parity-check code; CPU seconds, the least of three, or fewer."""
    import torch

    import rdpgraph as rg

    print(f"\nModes of {WORDS} words of {BITS} bits sent over a channel that flips bits")
    heads = f"{'flips':>6s} {'sweeps':>7s} {'max-marginals, s':>17s} {'mode, s':>8s} {'ratio':>6s}"
    print(f"{heads}  are words of the code")
    for flips, sweeps in DECODED:
        generator = torch.Generator().manual_seed(0)
        layers = [torch.randperm(BITS, generator=generator) for _ in range(3)]
        checks = torch.cat(layers).reshape(-1, 6)
        signs = 1.0 - 2.0 * (torch.rand(WORDS, BITS, generator=generator) < flips)
        odds = signs * np.log((1 - flips) / flips)
        bits = rg.VariableArray("bit", (BITS,), 2)
        slots = tuple(bits[checks[:, slot]] for slot in range(6))
        channel = rg.Table(torch.stack([odds / 2, -odds / 2], -1))
        graph = rg.FactorGraph([
            rg.FactorBlock((bits,), channel), rg.FactorBlock(slots, rg.Xor(6, parity=0))
        ])  # fmt: skip
        best, begin = [float("inf"), float("inf")], time.process_time()
        for turn in range(3):
            if turn and time.process_time() - begin > LONGEST:
                break
            for place, ask in enumerate(("max_marginals", "mode")):
                posterior = rg.infer(graph, scheduler=rg.Loopy(sweeps=sweeps, tolerance=1e-3))
                start = time.process_time()
                answer = getattr(posterior, ask)()
                best[place] = min(best[place], time.process_time() - start)
        words = int((graph.violations(answer) == 0).sum())
        row = f"{flips:>6.2f} {sweeps:>7d} {best[0]:>17.3f} {best[1]:>8.3f}"
        print(f"{row} {best[1] / best[0]:>6.2f}  {words:d} of {WORDS}", flush=True)


def child_million(side: int) -> None:
    """Messages of a square binary grid until they have converged; runs in a process of its own."""
    import torch

    import rdpgraph as rg

    _ = rg.infer, rg.Loopy  # imports are not counted
    start = time.process_time()
    x = rg.VariableArray("x", (side, side), 2)
    leaning = torch.randn(side, side, 2, generator=torch.Generator().manual_seed(0))
    agree = rg.Table(torch.tensor([[0.3, -0.3], [-0.3, 0.3]]))
    graph = rg.FactorGraph([
        rg.FactorBlock((x[:, :-1], x[:, 1:]), agree),
        rg.FactorBlock((x[:-1], x[1:]), agree),
        rg.FactorBlock((x,), rg.Table(leaning)),
    ])  # fmt: skip
    posterior = rg.infer(graph, scheduler=rg.Loopy())
    planned = time.process_time()
    assert posterior.status.converged
    posterior.marginal(x)
    row = {
        "declared and planned, CPU s": planned - start,
        "messages and marginals, CPU s": time.process_time() - planned,
        "sweeps": posterior.status.iterations,
        "peak GB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
    }
    print(", ".join(f"{name} {value:.2f}" for name, value in row.items()))


def main() -> None:
    """All tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pgmax", default=os.environ.get("PGMAX_PYTHON"))
    parser.add_argument("--libdai", default=os.environ.get("LIBDAI_BP"))
    parser.add_argument("--batches", action="store_true", help="batches and modes alone")
    options = parser.parse_args()
    if not options.batches:
        with tempfile.TemporaryDirectory() as name:
            speed(options.pgmax, pathlib.Path(name))
            updates(options.libdai, pathlib.Path(name))
    batches()
    decoding()
    if options.batches:
        return
    print(f"\nA {MILLION} x {MILLION} binary grid, one table", flush=True)
    subprocess.run([sys.executable, __file__, "--child-million", str(MILLION)], check=True)


if __name__ == "__main__":
    if "--child-pgmax" in sys.argv:
        child_pgmax(sys.argv[2], int(sys.argv[3]), sys.argv[4])
    elif "--child-million" in sys.argv:
        child_million(int(sys.argv[2]))
    else:
        main()
