"""Modes of large grids with their bounds, by `Auto` and by messages in as much time and more.

    python tests/benchmarks/modes.py [--kinds image] [--sides 60 80] [--seconds 2] [--messages 10]
                                     [--pgmax PYTHON]

Four kinds of grids: spin glasses and Potts glasses, whose couplings have random signs; noisy images
of two and of five labels, whose neighbours attract. All seconds are CPU seconds, clocks of budgets
included, so that other work on the machine does not count. "plain" and "tree" are messages of
`Loopy`, "TRW-S" are sequential tree-reweighted sweeps by themselves, and PYTHON is the interpreter
of an environment with PGMax 0.6.1 (`loopy.py` says how to make it), whose max-product is damped by
0.5; the best of its configurations counts, one after every 20 sweeps, compilation left out.

Each row ends with the difference between `Auto` and the best of the others, relative to that
("lead"; not below zero is what is asked), and with the gap between bound and score, relative to the
score, or "proved".
"""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

SIDES = (60, 80, 100, 140, 200)
SWEEPS = 20
"""Of PGMax, between two looks at its configuration."""


def child_pgmax(source: str, target: str, seconds: str) -> None:
    """The best configuration of max-product in PGMax; runs in its environment."""
    import jax
    from pgmax import fgraph, fgroup, infer, vgroup

    unary, across, down = np.load(source).values()
    side, states = unary.shape[0], unary.shape[2]
    x = vgroup.NDVarArray(num_states=states, shape=(side, side))
    graph = fgraph.FactorGraph(variable_groups=[x])
    for tables, (below, right) in ((across, (0, 1)), (down, (1, 0))):
        pairs = [
            [x[i, j], x[i + below, j + right]]
            for i in range(side - below)
            for j in range(side - right)
        ]
        tables = np.broadcast_to(tables, (side - below, side - right, states, states))
        tables = tables.reshape(-1, states, states)
        group = fgroup.PairwiseFactorGroup(pairs, log_potential_matrix=tables)
        graph.add_factors(group)
    engine = infer.build_inferer(graph.bp_state, backend="bp")
    arrays = engine.init(evidence_updates={x: unary})
    run = jax.jit(lambda a: engine.run(a, num_iters=SWEEPS, damping=0.5, temperature=0.0))
    jax.block_until_ready(run(arrays).ftov_msgs)
    best, chosen, rows = -np.inf, np.zeros((side, side), int), np.arange(side)[:, None]
    columns, start = np.arange(side), time.process_time()
    while time.process_time() - start < float(seconds):
        arrays = run(arrays)
        found = np.asarray(infer.decode_map_states(engine.get_beliefs(arrays))[x])
        ends = (found[:, :-1], found[:, 1:]), (found[:-1], found[1:])
        score = float(unary[rows, columns, found].astype(float).sum())
        for tables, (one, two) in zip((across, down), ends, strict=True):
            tables = np.broadcast_to(tables, (*one.shape, states, states))
            score += float(tables[rows[: len(one)], np.arange(one.shape[1]), one, two].sum())
        if score > best:
            best, chosen = score, found
    np.save(target, chosen)


if "--child-pgmax" in sys.argv:  # in an environment that has none of what follows
    child_pgmax(*sys.argv[2:])
    sys.exit()

import torch  # noqa: E402
from torch import Tensor  # noqa: E402

import rdpgraph as rg  # noqa: E402
from rdpgraph._core import effort  # noqa: E402
from rdpgraph.engines.reduction.network import reduce_graph  # noqa: E402
from rdpgraph.engines.reduction.tables import full_states  # noqa: E402
from rdpgraph.engines.trws.pairs import pairwise_of  # noqa: E402
from rdpgraph.engines.trws.sweeps import swept  # noqa: E402
from rdpgraph.plan import clock  # noqa: E402


def grid(unary: Tensor, across: Tensor, down: Tensor) -> rg.FactorGraph:
    """Pairs of neighbours in an image (side, side, labels)."""
    x = rg.VariableArray("x", tuple(unary.shape[:2]), unary.shape[2])
    return rg.FactorGraph([
        rg.FactorBlock((x,), rg.Table.from_logs(unary)),
        rg.FactorBlock((x[:, :-1], x[:, 1:]), rg.Table.from_logs(across)),
        rg.FactorBlock((x[:-1], x[1:]), rg.Table.from_logs(down)),
    ])  # fmt: skip


def glass(side: int, labels: int, random: torch.Generator) -> rg.FactorGraph:
    """Couplings from a normal distribution, and weak fields."""
    same = torch.eye(labels)
    unary = 0.1 * torch.randn(side, side, labels, generator=random)
    across, down = (
        2.0 * torch.randn(*shape, 1, 1, generator=random) * same
        for shape in ((side, side - 1), (side - 1, side))
    )
    return grid(unary, across, down)


def image(side: int, labels: int, random: torch.Generator) -> rg.FactorGraph:
    """Discs before one another, seen with noise."""
    places = torch.arange(side)
    true = torch.zeros(side, side, dtype=torch.long)
    for _ in range(12):
        centre = torch.rand(2, generator=random) * side
        radius = (0.05 + 0.15 * float(torch.rand((), generator=random))) * side
        label = int(torch.randint(labels, (), generator=random))
        squares = (places[:, None] - centre[0]) ** 2 + (places - centre[1]) ** 2
        true[squares < radius**2] = label
    seen = torch.nn.functional.one_hot(true, labels) + torch.randn(
        side, side, labels, generator=random
    )
    ties = 1.2 * torch.eye(labels)
    return grid(seen, ties, ties)


KINDS: dict[str, Callable[[int, torch.Generator], rg.FactorGraph]] = {
    "spin glass": lambda side, random: glass(side, 2, random),
    "Potts glass": lambda side, random: glass(side, 4, random),
    "image": lambda side, random: image(side, 2, random),
    "labels": lambda side, random: image(side, 5, random),
}


def score_of(graph: rg.FactorGraph, states: rg.answers.Assignment) -> float:
    """The score of a mode in float64."""
    return float(graph.to(torch.float64).score({**states}))


def by_sweeps(graph: rg.FactorGraph, seconds: float) -> float:
    """The score of the best configuration of tree-reweighted sweeps without a cut or a search."""
    network, usual = reduce_graph(graph), effort.CUT
    effort.CUT = 0.0
    try:
        model = pairwise_of(network, 0, 0.0)
        found = swept(model, 0.0, seconds=seconds)
    finally:
        effort.CUT = usual
    states = full_states(network, torch.from_numpy(found.states).reshape(1, 1, -1))
    return float(graph.to(torch.float64).score_states(states[0, 0]))


def by_pgmax(python: str, graph: rg.FactorGraph, seconds: float) -> float:
    """The score of the mode by PGMax."""
    tables = [block.potential.log_values.numpy() for block in graph.blocks]
    with tempfile.TemporaryDirectory() as folder:
        source, target = pathlib.Path(folder, "model.npz"), pathlib.Path(folder, "states.npy")
        np.savez(source, *tables)
        command = [python, __file__, "--child-pgmax", str(source), str(target), str(seconds)]
        subprocess.run(command, check=True, capture_output=True)
        states: NDArray[np.int64] = np.load(target).astype(np.int64)
    return float(graph.to(torch.float64).score_states(torch.from_numpy(states).reshape(-1)))


def by_messages(graph: rg.FactorGraph, seconds: float, *, tree: bool) -> float:
    """The score of the mode by plain or by tree-reweighted messages."""
    counting = rg.loopy.TreeReweighted() if tree else rg.loopy.Bethe()
    damping = 0.3 if tree else None
    scheduler = rg.Loopy(counting=counting, damping=damping, seconds=seconds)
    return score_of(graph, rg.infer(graph, scheduler=scheduler).mode())


Ask: TypeAlias = Callable[[rg.FactorGraph, float], float]


def others(pgmax: str | None) -> dict[str, Ask]:
    """What `Auto` is compared with, by name: the score of a graph's mode after some seconds."""
    every: dict[str, Ask] = {
        "plain": partial(by_messages, tree=False), "tree": partial(by_messages, tree=True),
        "TRW-S": by_sweeps,
    }  # fmt: skip
    if pgmax:
        every["PGMax"] = partial(by_pgmax, pgmax)
    return every


def row(
    kind: str, side: int, seconds: Sequence[float], messages: Sequence[float], every: Sequence[Ask]
) -> str:
    """The scores of one grid, as a row of a table."""
    graph = KINDS[kind](side, torch.Generator().manual_seed(side))
    theirs = [ask(graph, given) for ask in every for given in messages]
    cells = [f"{kind} {side}", *(f"{score:,.1f}" for score in theirs)]
    for given in seconds:
        begin = time.process_time()
        posterior = rg.infer(graph, scheduler=rg.Auto(seconds=given))
        score = score_of(graph, posterior.mode())
        spent = time.process_time() - begin
        bound, optimal = float(posterior.mode_bound()), bool(posterior.mode_is_optimal())
        gap = "proved" if optimal else f"{100 * (bound - score) / abs(score):.4f}%"
        lead = 100 * (score - max(theirs)) / abs(max(theirs))
        cells += [f"{score:,.1f}", f"{spent:.1f}", f"{lead:+.4f}%", gap]
    return " | ".join(cells)


def main() -> None:
    """All grids."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sides", type=int, nargs="+", default=SIDES)
    parser.add_argument("--seconds", type=float, nargs="+", default=(2.0,))
    parser.add_argument("--messages", type=float, nargs="+", default=(10.0,))
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=tuple(KINDS))
    parser.add_argument("--pgmax", default=os.environ.get("PGMAX_PYTHON"))
    options = parser.parse_args()
    every = others(options.pgmax)
    titles = [f"{name} {given:g} s" for name in every for given in options.messages]
    for given in options.seconds:
        titles += [f"Auto {given:g} s", "CPU s", "lead", "gap"]
    print(" | ".join(["grid", *titles]))
    for kind in options.kinds:
        for side in options.sides:
            asked = list(every.values())
            print(row(kind, side, options.seconds, options.messages, asked), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    before, clock.perf_counter = clock.perf_counter, time.process_time
    try:
        main()
    finally:
        clock.perf_counter = before
