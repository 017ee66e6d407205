"""Figure 4 of the paper: times, ratios and bias by the product of the lengths, and bias by time."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib.pyplot as plt
from shown import COLORS, Point, draw_curves, mean, show, show_curves

BINS = (20, 35, 50, 65, 80, 95, 110, 130, 200, 300, 400, 500)


@dataclass(frozen=True)
class Record:
    """Results for one sentence or one sentence pair.

    Attributes:
        size: the product of the lengths, or the length.
        exact: seconds of the full recursion.
        sweeps: the sweeps, seconds, bias and operations of randomized pruning, at several stops.
        masks: by name of what has one mask, the settings, seconds, bias and operations.
        work: operations of the full recursion; 0: not counted, nor those of the others.
    """

    size: int
    exact: float
    sweeps: list[Any]
    masks: dict[str, list[Any]]
    work: float = 0.0


@dataclass(frozen=True)
class Bin:
    """The mean of the pairs whose product of lengths is in a range.

    Attributes:
        least: of the sizes.
        most: of the sizes.
        many: how many.
        exact: seconds.
        sweep: seconds of one sweep of one chain.
        first: bias after the first stop.
        half: bias at the last stop in half of the exact time.
        many: sweeps until there.
        saved: operations of the full recursion over those of a sweep of one chain, in the median;
            0: not counted.
    """

    least: int
    most: int
    pairs: int
    exact: float
    sweep: float
    first: float
    half: float
    many: float
    saved: float


def kept(store: Path, count: int, made: Callable[[int], Record]) -> list[Record]:
    """The first so many records, those of a store among them; the others are made and kept."""
    store.parent.mkdir(parents=True, exist_ok=True)
    lines = store.read_text().splitlines() if store.exists() else []
    found = [Record(*json.loads(line)) for line in lines[:count]]
    with store.open("a", encoding="utf-8") as file:
        for number in range(len(found), count):
            own = made(number)
            found.append(own)
            file.write(json.dumps([own.size, own.exact, own.sweeps, own.masks, own.work]) + "\n")
            file.flush()
    return found


def binned(records: list[Record], bins: Sequence[int]) -> list[Bin]:
    """One sweep is what the first and the last stop differ in, of all chains at once."""
    found: list[Bin] = []
    for low, high in pairwise((0, *bins)):
        chosen = [own for own in records if low < own.size <= high]
        if not chosen:
            continue
        within = [
            ([stop for stop in own.sweeps if stop[1] <= own.exact / 2] or own.sweeps[:1])[-1]
            for own in chosen
        ]
        sweeps = [
            (own.sweeps[-1][1] - own.sweeps[0][1]) / (own.sweeps[-1][0] - own.sweeps[0][0])
            for own in chosen
        ]
        found.append(
            Bin(
                low + 1, high, len(chosen), mean([own.exact for own in chosen]), mean(sweeps),
                mean([own.sweeps[0][2] for own in chosen]), mean([stop[2] for stop in within]),
                mean([float(stop[0]) for stop in within]), saved_by(chosen),
            )
        )  # fmt: skip
    return found


def saved_by(records: list[Record]) -> float:
    """The median of the full recursion's operations over those of a sweep; 0: not counted."""
    if not all(own.work for own in records):
        return 0.0
    return median(own.work / (own.sweeps[-1][3] / own.sweeps[-1][0]) for own in records)


def by_work(records: list[Record]) -> dict[str, list[Point]]:
    """The mean share of the full recursion's operations, and bias, of each setting."""
    shares = [
        replace(
            own, sweeps=[[p[0], p[3] / own.work, p[2]] for p in own.sweeps],
            masks={
                name: [[p[0], p[3] / own.work, p[2]] for p in points]
                for name, points in own.masks.items()
            },
        )
        for own in records
    ]  # fmt: skip
    return curves_of(shares)


def curves_of(records: list[Record]) -> dict[str, list[Point]]:
    """Mean seconds and bias of each setting."""
    several = {"randomized pruning": [own.sweeps for own in records]}
    for name in records[0].masks:
        several[name] = [own.masks[name] for own in records]
    return {
        name: [
            (str(setting[0][0]), mean([p[1] for p in setting]), mean([p[2] for p in setting]))
            for setting in zip(*points, strict=True)
        ]
        for name, points in several.items()
    }


def report(
    records: list[Record], picture: Path, *, chains: int, bins: Sequence[int] = BINS,
    over: str = "product of lengths",
) -> None:  # fmt: skip
    """Print the tables and draw the picture."""
    ranges, curves = binned(records, bins), curves_of(records)
    exact = mean([own.exact for own in records])
    heads = ["from, to", "many", "exact ms", "sweep ms", "ratio", "first", "at half", "sweeps"]
    counted = all(own.work for own in records)
    heads += ["ratio of operations"] if counted else []
    rows = [
        [
            f"{own.least}-{own.most}", str(own.pairs), f"{1e3 * own.exact:.1f}",
            f"{1e3 * own.sweep:.2f}", f"{own.exact / own.sweep:.0f}", f"{own.first:.3f}",
            f"{own.half:.4f}", f"{own.many:.0f}", *([f"{own.saved:.0f}"] if counted else []),
        ]
        for own in ranges
    ]  # fmt: skip
    show(f"a, b, c: by the {over}; {chains} chains at once", heads, rows)
    show_curves(f"d: mean bias of {len(records)} against time", exact, curves)
    if counted:
        rows = [
            [name, setting, f"{share:.3g}", f"{bias:.2g}"]
            for name, points in by_work(records).items()
            for setting, share, bias in points
        ]
        show("d: the same against operations over those of the full recursion",
             ["", "setting", "operations", "bias"], rows)  # fmt: skip
    figure, ((a, b), (c, d)) = plt.subplots(2, 2, figsize=(10, 7.5))
    x = [own.most for own in ranges]
    blue, red = COLORS[:2]
    a.semilogy(x, [1e3 * own.exact for own in ranges], "o-", color=red, label="full recursion")
    a.semilogy(x, [1e3 * own.sweep for own in ranges], "o-", color=blue, label="one sweep")
    a.set(title="(a) time", xlabel=over, ylabel="milliseconds")
    a.legend()
    b.plot(x, [own.exact / own.sweep for own in ranges], "o-", color=blue)
    b.set(title="(b) full recursion by sweep", xlabel=over, ylabel="ratio")
    b.set_ylim(bottom=0)
    c.semilogy(x, [own.first for own in ranges], "o-", color=COLORS[2], label=f"{chains} sweeps")
    c.semilogy(x, [own.half for own in ranges], "o-", color=blue, label="half of the exact time")
    c.set(title="(c) bias", xlabel=over, ylabel="squared distance")
    c.legend()
    draw_curves(d, exact, curves, "squared distance", "(d) bias against time")
    figure.tight_layout()
    figure.savefig(picture, dpi=90)
    plt.close(figure)
    print(f"\n{picture}")
