"""The squared error of log Z against the states kept, and against the time it takes.

    python examples/paper/curves.py [--small] [--states 2000 10000] [--output FOLDER]

Draws ``curves.png``: for each number of states, the truncation to the likeliest states, the paper's
setting, and this library's with and without a pilot; the vertical line is the exact recursion, its
table of transitions at hand. Times are of whole runs, from the potentials to log Z.
"""

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from measure import (
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

CURVES: tuple[tuple[str, Make, str], ...] = (
    ("Top", top, "#9aa5ae"),
    ("the paper's", paper, "#c8553d"),
    ("default", default, "#5b9bd5"),
    ("with pilot", piloted, "#1d4e79"),
)
SHARES = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3)


def draw(axes: tuple[Axes, Axes], states: int, seeds: int, repeats: int) -> None:
    several = [(one, *truth_of(one)) for one in cases("dense", states, seeds)]
    exact = mean([spent for _, _, spent in several])
    print(f"\n{states:,} states, dense, {seeds} seeds, {repeats} runs; exact: {exact:.0f} ms")
    sizes = sorted({kept(share, states) for share in SHARES})
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
        axes[0].loglog(sizes, errors, "o-", color=color, label=name)
        axes[1].loglog(times, errors, "o-", color=color, label=name)
    axes[1].axvline(exact, color="#3b4752", linestyle="--", label="exact")
    axes[0].set(title=f"{states:,} states", xlabel="states kept", ylabel="squared error (nats²)")
    axes[1].set(title=f"{states:,} states", xlabel="milliseconds", ylabel="squared error (nats²)")
    axes[1].legend()


if __name__ == "__main__":
    chosen = arguments("Squared error against states kept and against time.")
    figure, grid = plt.subplots(
        len(chosen.states), 2, figsize=(10, 4 * len(chosen.states)), squeeze=False
    )
    for line, states in zip(grid, chosen.states, strict=True):
        draw((line[0], line[1]), states, chosen.seeds, chosen.repeats)
    figure.tight_layout()
    figure.savefig(chosen.output / "curves.png", dpi=120)
    print(f"\nThe picture is {chosen.output / 'curves.png'}")
