"""Tables and pictures of error against time, and seconds of one processor."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from time import process_time
from typing import Any, TypeVar

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes

import rdpgraph as rg
from rdpgraph.pruning import Alternating

Made = TypeVar("Made")
Point = tuple[str, float, float]
"""A setting, its seconds and its error."""

COLORS = ("#1d4e79", "#c8553d", "#5b9bd5", "#9aa5ae", "#7a9e5f")


def timed(make: Callable[[], Made]) -> tuple[Made, float]:
    """The result of a function, and its seconds."""
    start = process_time()
    made = make()
    return made, process_time() - start


def mask_curves(
    shares: Sequence[float],
    stops: Sequence[int],
    run: Callable[[Any, torch.Generator], tuple[Any, float]],
) -> tuple[dict[str, list[Point]], Any]:
    """Error after each sweep, for each share of questions selected; and the last posterior.

    Args:
        shares: of the questions.
        stops: numbers of sweeps, rising.
        run: gives the posterior and the error of an estimator.
    """
    curves: dict[str, list[Point]] = {}
    posterior = None
    for share in shares:
        posterior, spent, done = None, 0.0, 0
        generator = torch.Generator().manual_seed(0)
        for stop in stops:
            estimator = rg.RandomizedPruning(
                stop - done, warm_up=0, selected=Alternating(share=share), resume=posterior
            )
            (posterior, error), more = timed(partial(run, estimator, generator))
            spent, done = spent + more, stop
            curves.setdefault(f"masks, {share:.0%} selected", []).append((f"{stop}", spent, error))
    return curves, posterior


def mean(values: list[float]) -> float:
    """0 of none."""
    return sum(values) / max(len(values), 1)


def show(title: str, heads: list[str], rows: list[list[str]]) -> None:
    """Print a table."""
    print(f"\n{title}")
    for row in [heads, *rows]:
        print("  ".join(f"{cell:>11}" for cell in row), flush=True)


def show_curves(title: str, exact: float, curves: dict[str, list[Point]]) -> None:
    """Print the curves of error against time."""
    rows = [["exact", "", f"{1e3 * exact:.1f}", "0"]]
    rows += [
        [name, setting, f"{1e3 * seconds:.1f}", f"{error:.3g}"]
        for name, points in curves.items()
        for setting, seconds, error in points
    ]
    show(title, ["", "setting", "ms", "error"], rows)


def draw_curves(
    axes: Axes, exact: float, curves: dict[str, list[Point]], error: str, title: str
) -> None:
    """Error against time; what has no error stands on the lower edge."""
    seen = [point[2] for points in curves.values() for point in points if point[2] > 1e-12]
    least = min(seen, default=1.0) / 3
    for color, (name, points) in zip(COLORS, curves.items(), strict=False):
        ordered = sorted(points, key=lambda point: point[1])
        times = [1e3 * point[1] for point in ordered]
        errors = [max(point[2], least) for point in ordered]
        axes.loglog(times, errors, "o-", color=color, label=name, markersize=4)
    axes.axvline(1e3 * exact, color="#3b4752", linestyle="--", label="exact")
    axes.set(title=title, xlabel="milliseconds", ylabel=error)
    axes.legend(fontsize=8)


def save_curves(
    folder: Path, name: str, exact: float, curves: dict[str, list[Point]], error: str, title: str
) -> None:
    """One picture of one panel, in a folder."""
    figure, axes = plt.subplots(figsize=(6, 4))
    draw_curves(axes, exact, curves, error, title)
    figure.tight_layout()
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / f"{name}.png", dpi=100)
    plt.close(figure)
    print(f"\n{folder / name}.png")
