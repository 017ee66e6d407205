"""Modes and marginals of graphs with logical factors, beside PGMax.

    python tests/benchmarks/logical.py [--pgmax PYTHON] [--only NAME]

PYTHON is the interpreter of an environment with PGMax 0.6.1 (`loopy.py` says how to make it). PGMax
runs max-product for 200 sweeps, damped by 0.5, as in its examples; compilation is left out. Seconds
are CPU seconds, without the declaration of the graph; "again" is `Auto` asked a second time, of a
graph whose plan is known. Logical factors are counted where they are
violated; the score is that of all other factors.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float32]
Group: TypeAlias = tuple[str, NDArray[np.int64], Array | None]
"""Kind, (factors, slots) variables (a child is the last), and (factors, 2, 2) tables of "pair"."""
Model: TypeAlias = tuple[Array, list[Group]]
"""(variables, 2) log-values of binary variables, and groups of factors."""
SWEEPS, DAMPING = 200, 0.5


def deconvolution(random: np.random.Generator, images: int = 10, side: int = 12) -> Model:
    """Images as disjunctions of features at places, perturbed (an example of PGMax)."""
    features, size = 4, 3
    places = side - size + 1
    true = random.random((features, size, size)) < 0.5
    at = random.random((images, features, places, places)) < 0.02
    shown = np.zeros((images, side, side), bool)
    for i, f, r, c in zip(*at.nonzero(), strict=True):
        shown[i, r : r + size, c : c + size] |= true[f]
    w = np.arange(true.size).reshape(true.shape)
    s = w.size + np.arange(at.size).reshape(at.shape)
    x = w.size + s.size + np.arange(shown.size).reshape(shown.shape)
    count, ands = w.size + s.size + x.size, list[tuple[int, int, int]]()
    causes: dict[int, list[int]] = {int(pixel): [] for pixel in x.flat}
    for i, f, r, c in np.ndindex(at.shape):
        for a, b in np.ndindex(size, size):
            ands.append((s[i, f, r, c], w[f, a, b], count))
            causes[int(x[i, r + a, c + b])].append(count)
            count += 1
    unary = np.zeros((count, 2))
    unary[w, 1], unary[s, 1] = np.log(0.25 / 0.75), np.log(1e-75)
    unary[: w.size + s.size] += random.gumbel(size=(w.size + s.size, 2))
    unary[x, 0] = np.where(shown, -1, 1) * -np.log(1e-100)
    groups: list[Group] = [("and", np.array(ands), None)]
    for length in sorted({len(own) for own in causes.values()}):
        ors = [(*own, pixel) for pixel, own in causes.items() if len(own) == length]
        groups.append(("or", np.array(ors), None))
    return unary.astype(np.float32), groups


def factorisation(random: np.random.Generator, side: int = 20, rank: int = 3) -> Model:
    """A binary matrix as a disjunction of products, flipped in places."""
    left, right = random.random((side, rank)) < 0.3, random.random((rank, side)) < 0.3
    seen = (left.astype(int) @ right.astype(int) > 0) ^ (random.random((side, side)) < 0.02)
    u = np.arange(side * rank).reshape(side, rank)
    v = u.size + np.arange(side * rank).reshape(rank, side)
    x = 2 * u.size + np.arange(seen.size).reshape(seen.shape)
    first = 2 * u.size + x.size
    parts = first + np.arange(side * side * rank).reshape(side, side, rank)
    ands = [(u[i, k], v[k, j], parts[i, j, k]) for i, j, k in np.ndindex(parts.shape)]
    ors = [(*parts[i, j], x[i, j]) for i, j in np.ndindex(x.shape)]
    unary = np.zeros((first + parts.size, 2))
    unary[: 2 * u.size] = random.gumbel(size=(2 * u.size, 2))
    unary[x, 1] = np.where(seen, 1, -1) * np.log(0.98 / 0.02)
    return unary.astype(np.float32), [("and", np.array(ands), None), ("or", np.array(ors), None)]


def assignment(random: np.random.Generator, side: int = 40) -> Model:
    """One place of each row and each column, of the largest sum."""
    x = np.arange(side * side).reshape(side, side)
    unary = np.stack([np.zeros(side * side), random.standard_normal(side * side)], 1)
    return unary.astype(np.float32), [("one", np.concatenate([x, x.T]), None)]


def sudoku(random: np.random.Generator, order: int = 3, given: float = 0.4) -> Model:
    """Clues of a Sudoku; whether a cell has a digit is a variable."""
    side = order * order
    cell = np.arange(side)
    digits = (order * (cell[:, None] % order) + cell[:, None] // order + cell) % side
    rows = random.permutation(order)[:, None] * order + random.permuted(
        np.tile(np.arange(order), (order, 1)), axis=1
    )
    digits = random.permutation(side)[digits][rows.flatten()]
    x = np.arange(side**3).reshape(side, side, side)
    boxes = x.reshape(order, order, order, order, side).transpose(0, 2, 4, 1, 3)
    parts = x, x.transpose(0, 2, 1), x.transpose(1, 2, 0), boxes
    scopes = np.concatenate([part.reshape(-1, side) for part in parts])
    unary = random.gumbel(size=(side**3, 2)) * 0.01
    known = np.nonzero(random.random((side, side)) < given)
    unary[x[known], 0] = 30.0
    unary[x[(*known, digits[known])]] = (0.0, 30.0)
    return unary.astype(np.float32), [("one", scopes, None)]


def parity(random: np.random.Generator, bits: int = 240, flips: float = 0.04) -> Model:
    """A noisy word of a parity-check code: each bit in three checks of six bits."""
    checks = np.concatenate([random.permutation(bits).reshape(-1, 6) for _ in range(3)])
    signs = np.where(random.random(bits) < flips, 1.0, -1.0)
    unary = np.stack([np.zeros(bits), signs * np.log((1 - flips) / flips)], 1)
    return unary.astype(np.float32), [("even", checks, None)]


def ising(random: np.random.Generator, side: int = 50) -> Model:
    """PGMax's example: a torus, attractive."""
    x = np.arange(side * side).reshape(side, side)
    ends = np.roll(x, -1, 0), np.roll(x, -1, 1)
    scopes = np.concatenate([np.stack([x, other], -1).reshape(-1, 2) for other in ends])
    tables = np.tile(0.8 * np.array([[1.0, -1.0], [-1.0, 1.0]]), (len(scopes), 1, 1))
    unary = random.gumbel(size=(side * side, 2))
    return unary.astype(np.float32), [("pair", scopes, tables.astype(np.float32))]


def rbm(random: np.random.Generator, side: int = 60) -> Model:
    """A restricted Boltzmann machine of random weights, perturbed."""
    ends = np.indices((side, side)).reshape(2, -1).T + np.array([0, side])
    tables = np.zeros((len(ends), 2, 2))
    tables[:, 1, 1] = random.standard_normal(len(ends)) * 0.5
    unary = random.gumbel(size=(2 * side, 2))
    return unary.astype(np.float32), [("pair", ends, tables.astype(np.float32))]


MODELS: dict[str, Callable[[np.random.Generator], Model]] = {
    "deconvolution": deconvolution, "factorisation": factorisation, "assignment": assignment,
    "sudoku": sudoku, "parity": parity, "ising": ising, "rbm": rbm,
}  # fmt: skip


def judged(model: Model, states: NDArray[np.int64]) -> tuple[int, float]:
    """Number of violated logical factors, and the score of all others."""
    unary, groups = model
    score, violated = float(unary[np.arange(len(unary)), states].astype(np.float64).sum()), 0
    for kind, scopes, tables in groups:
        on = states[scopes]
        if tables is not None:
            score += float(tables[np.arange(len(on)), on[:, 0], on[:, 1]].astype(np.float64).sum())
        elif kind == "one":
            violated += int((on.sum(1) != 1).sum())
        elif kind == "even":
            violated += int((on.sum(1) % 2).sum())
        else:
            joined = on[:, :-1].any(1) if kind == "or" else on[:, :-1].all(1)
            violated += int((joined != on[:, -1]).sum())
    return violated, score


def declared(model: Model):
    """The same as a factor graph, and its variables."""
    import torch

    import rdpgraph as rg

    unary, groups = model
    no = -torch.inf
    rows = {
        "or": [[1, 2], [1, 4], [2, 3], [3, 3], [4, 4]],
        "and": [[2, 1], [4, 1], [3, 2], [3, 3], [4, 4]],
    }
    x = rg.VariableArray("x", (len(unary),), 2)
    blocks = [rg.FactorBlock((x,), rg.Table(torch.from_numpy(unary)))]
    for kind, scopes, tables in groups:
        count, places = scopes.shape[1], torch.from_numpy(scopes)
        if kind in rows:  # the child first
            places = places.roll(1, 1)
            potential = rg.Automaton(rows[kind], [no, 0.0, no, 0.0, no], arity=count)
        elif tables is not None:
            potential = rg.Table(torch.from_numpy(tables))
        else:
            potential = rg.ExactlyOne(count) if kind == "one" else rg.Xor(count, parity=0)
        slots = tuple(x[places[:, slot]] for slot in range(count))
        blocks.append(rg.FactorBlock(slots, potential))
    return rg.FactorGraph(blocks), x


def ours(model: Model, scheduler) -> tuple[float, NDArray[np.int64]]:
    """CPU seconds of a mode, and the mode."""
    import rdpgraph as rg

    graph, x = declared(model)
    start = time.process_time()
    posterior = rg.infer(graph, scheduler=scheduler)
    states = posterior.mode()[x].numpy()
    return time.process_time() - start, states


def summed(model: Model, scheduler) -> str:
    """CPU seconds of marginals, and how the messages ended."""
    import rdpgraph as rg

    graph, x = declared(model)
    start = time.process_time()
    posterior = rg.infer(graph, scheduler=scheduler)
    posterior.marginal(x)
    spent, status = time.process_time() - start, posterior.status
    return f"{spent:>8.2f} s, {status.iterations} sweeps, converged {status.converged}"


def child_pgmax(source: str, target: str) -> None:
    """Max-product in PGMax, compilation left out; runs in its environment."""
    import jax
    from pgmax import fgraph, fgroup, infer, vgroup

    stored = np.load(source)
    unary = stored["unary"]
    x = vgroup.NDVarArray(num_states=2, shape=(len(unary),))
    graph = fgraph.FactorGraph(variable_groups=[x])
    for name in stored.files:
        kind, _, number = name.partition("_")
        if number != "scopes":
            continue
        kind = kind.rstrip("0123456789")
        scopes = [[x[int(v)] for v in scope] for scope in stored[name]]
        count = len(scopes[0])
        if kind == "pair":
            tables = stored[name.replace("scopes", "tables")]
            group = fgroup.PairwiseFactorGroup(scopes, log_potential_matrix=tables)
        elif kind == "or":
            group = fgroup.ORFactorGroup(scopes)
        elif kind == "and":
            group = fgroup.ANDFactorGroup(scopes)
        else:
            every = np.eye(count, dtype=int)
            if kind == "even":
                every = np.indices((2,) * count).reshape(count, -1).T
                every = every[every.sum(1) % 2 == 0]
            group = fgroup.EnumFactorGroup(scopes, every, np.zeros(len(every)))
        graph.add_factors(group)
    engine = infer.build_inferer(graph.bp_state, backend="bp")
    begin = engine.init(evidence_updates={x: unary})
    run = jax.jit(
        lambda arrays: engine.run(arrays, num_iters=SWEEPS, damping=DAMPING, temperature=0.0)
    )
    jax.block_until_ready(run(begin).ftov_msgs)
    start = time.process_time()
    arrays = run(begin)
    jax.block_until_ready(arrays.ftov_msgs)
    states = infer.decode_map_states(engine.get_beliefs(arrays))[x]
    spent = time.process_time() - start
    np.save(target, np.asarray(states))
    print(json.dumps({"seconds": spent}))


def theirs(pgmax: str, model: Model, folder: pathlib.Path) -> tuple[float, NDArray[np.int64]]:
    """CPU seconds and states of PGMax."""
    source, target = folder / "model.npz", folder / "states.npy"
    arrays: dict[str, NDArray] = {"unary": model[0]}
    for number, (kind, scopes, tables) in enumerate(model[1]):
        arrays[f"{kind}{number}_scopes"] = scopes
        if tables is not None:
            arrays[f"{kind}{number}_tables"] = tables
    np.savez(source, **arrays)  # pyright: ignore
    arguments = [pgmax, __file__, "--child-pgmax", str(source), str(target)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.strip().splitlines()[-1])["seconds"], np.load(target)


def main() -> None:
    """All models."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pgmax", default=os.environ.get("PGMAX_PYTHON"))
    parser.add_argument("--only", choices=list(MODELS))
    parser.add_argument("--seeds", type=int, default=1)
    options = parser.parse_args()
    import rdpgraph as rg

    for name, make in MODELS.items():
        for seed in range(options.seeds) if options.only in {None, name} else ():
            model = make(np.random.default_rng(seed))
            print(f"\n{name}, seed {seed}: {len(model[0]):,} variables", flush=True)
            found = {"Loopy()": ours(model, rg.Loopy()), "Auto()": ours(model, rg.Auto())}
            found["again"] = ours(model, rg.Auto())  # with the plan of the first time
            if options.pgmax:
                with tempfile.TemporaryDirectory() as folder:
                    found["PGMax"] = theirs(options.pgmax, model, pathlib.Path(folder))
            for key, (seconds, states) in found.items():
                violated, score = judged(model, states)
                print(f"{key:>10s} {seconds:>8.2f} s  violated {violated:>4d}  score {score:.2f}")
            print("  marginals by Loopy():", summed(model, rg.Loopy()), flush=True)


if __name__ == "__main__":
    if "--child-pgmax" in sys.argv:
        child_pgmax(*sys.argv[2:])
    else:
        main()
