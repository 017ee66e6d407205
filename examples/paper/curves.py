"""The squared error of log Z against the time it takes, for a hundred to a hundred thousand states.

    python examples/paper/curves.py [--quick] [--states 100 1000 10000 100000] [--output FOLDER]

Draws ``curves.png``, a panel for each number of states N: the truncation to the likeliest states,
the paper's setting, and this library's with and without a pilot, each for several numbers of kept
states. The vertical line is the time of the exact recursion, with its N x N table at hand up to
16,000 states; beyond, a few columns of the table are made at a time from the states' embeddings.
Times are of whole runs, from the potentials to log Z.
"""

import math
import time

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from measure import (
    STORE,
    Make,
    arguments,
    cases,
    default,
    kept,
    mean,
    paper,
    piloted,
    repeated,
    row,
    top,
    truth_of,
)
from potentials import Case

import rdpgraph as rg

CURVES: tuple[tuple[str, Make, str], ...] = (
    ("Top", top, "#9aa5ae"),
    ("the paper's", paper, "#c8553d"),
    ("default", default, "#5b9bd5"),
    ("with pilot", piloted, "#1d4e79"),
)
SHARES = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3)
MOST_KEPT, MOST_TABULATED, COLUMNS = 5000, 16_000, 500


def exact_of(one: Case) -> tuple[float, float]:
    """Log Z and the milliseconds it took; without the table where that is too large."""
    if one.chain.unary.shape[-1] <= MOST_TABULATED:
        return truth_of(one)

    def answer() -> list[float]:
        start = time.perf_counter()
        value = by_columns(one)
        return [value, (time.perf_counter() - start) * 1e3]

    value, spent = STORE.found(f"{one.name}, exact by columns", answer)
    return value, spent


def by_columns(one: Case) -> float:
    """Log Z by the recursion, with a few columns of the table at a time."""
    pairs = one.chain.transition
    assert isinstance(pairs, rg.Bilinear)
    ahead, *later = one.chain.unary
    for unary in later:
        parts = list[torch.Tensor]()
        for some in pairs.right.split(COLUMNS):
            scores = (pairs.left @ some.mT).add_(ahead[:, None])
            peak = scores.amax(0)
            parts.append(scores.sub_(peak).exp_().sum(0).log_().add_(peak))
        ahead = torch.cat(parts) + unary
    return float(ahead.logsumexp(0))


def draw(axes: Axes, states: int, seeds: int, repeats: int) -> None:
    """The panel of one number of states; its numbers are printed."""
    several = [(one, *exact_of(one)) for one in cases("dense", states, seeds)]
    exact = mean([spent for _, _, spent in several])
    print(f"\n{states:,} states, dense, {seeds} seeds, {repeats} runs; exact: {exact:,.0f} ms")
    sizes = sorted({min(kept(share, states), MOST_KEPT) for share in SHARES})
    row("squared error, ms", [f"{size} kept" for size in sizes])
    for name, make, color in CURVES:
        errors: list[float] = []
        times: list[float] = []
        for size in sizes:
            found = [
                repeated(one, truth, make(one, size), repeats, name=f"{name} {size}")
                for one, truth, _ in several
            ]
            errors.append(mean([f.mse for f in found]))
            times.append(mean([f.milliseconds for f in found]))
        row(name, [f"{error:.2g}, {ms:.0f} ms" for error, ms in zip(errors, times, strict=True)])
        axes.loglog(times, errors, "o-", color=color, markersize=4, label=name)
    axes.axvline(exact, color="#3b4752", linestyle="--", label="exact")
    axes.set(title=f"{states:,} states", xlabel="milliseconds", ylabel="squared error (nats²)")


if __name__ == "__main__":
    chosen = arguments("Squared error against time.", states=(100, 1000, 10_000, 100_000))
    rg.Chain(torch.zeros(3, 2), torch.zeros(2, 2)).log_partition()  # loads the compiled code
    rows = math.ceil(len(chosen.states) / 2)
    columns = min(2, len(chosen.states))
    figure, grid = plt.subplots(
        rows, columns, figsize=(5 * columns, 3.6 * rows), squeeze=False, sharey=True
    )
    for axes, states in zip(grid.flat, chosen.states, strict=False):
        draw(axes, states, chosen.seeds, chosen.repeats)
    grid.flat[0].legend()
    for axes in [*grid.flat][len(chosen.states) :]:
        axes.set_axis_off()
    figure.tight_layout()
    figure.savefig(chosen.output / "curves.png", dpi=120)
    print(f"\nThe picture is {chosen.output / 'curves.png'}")
