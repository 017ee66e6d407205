"""Modes of large grids with their bounds, by `Auto` and by messages in as much time and more.

    python tests/benchmarks/modes.py [--sides 60 80] [--seconds 2 5] [--messages 2 5 10]

Four kinds of grids: spin glasses and Potts glasses, whose couplings have random signs; noisy images
of two and of five labels, whose neighbours attract. All seconds are CPU seconds of one thread,
clocks of budgets included, so that other work on the machine does not count. "tree" are
tree-reweighted messages of `Loopy`. A gap is that between bound and score, relative to the score.
"""

import argparse
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

import rdpgraph as rg
from rdpgraph.plan import clock

SIDES = (60, 80, 100, 140, 200)


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
    return float(graph.score({**states}).double())


def by_messages(graph: rg.FactorGraph, seconds: float, *, tree: bool) -> float:
    """The score of the mode by plain or by tree-reweighted messages."""
    counting = rg.loopy.TreeReweighted() if tree else rg.loopy.Bethe()
    damping = 0.3 if tree else None
    scheduler = rg.Loopy(counting=counting, damping=damping, seconds=seconds)
    return score_of(graph, rg.infer(graph, scheduler=scheduler).mode())


def row(kind: str, side: int, seconds: Sequence[float], messages: Sequence[float]) -> str:
    """The scores of one grid, as a row of a table."""
    graph = KINDS[kind](side, torch.Generator().manual_seed(side))
    cells = [f"{kind} {side}"]
    for tree in (False, True):
        cells += [f"{by_messages(graph, given, tree=tree):,.1f}" for given in messages]
    for given in seconds:
        begin = time.process_time()
        posterior = rg.infer(graph, scheduler=rg.Auto(seconds=given))
        score = score_of(graph, posterior.mode())
        spent = time.process_time() - begin
        bound, optimal = float(posterior.mode_bound()), bool(posterior.mode_is_optimal())
        gap = "proved" if optimal else f"{100 * (bound - score) / abs(score):.2f}%"
        cells.append(f"{score:,.1f}, {gap}, {spent:.1f} s")
    return " | ".join(cells)


def main() -> None:
    """All grids."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sides", type=int, nargs="+", default=SIDES)
    parser.add_argument("--seconds", type=float, nargs="+", default=(2.0, 5.0))
    parser.add_argument("--messages", type=float, nargs="+", default=(2.0, 5.0, 10.0))
    options = parser.parse_args()
    plain = [f"plain {given:g} s" for given in options.messages]
    tree = [f"tree {given:g} s" for given in options.messages]
    auto = [f"Auto {given:g} s" for given in options.seconds]
    print(" | ".join(["grid", *plain, *tree, *auto]))
    for kind in KINDS:
        for side in options.sides:
            print(row(kind, side, options.seconds, options.messages), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    before, clock.perf_counter = clock.perf_counter, time.process_time
    try:
        main()
    finally:
        clock.perf_counter = before
