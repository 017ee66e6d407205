"""Plots of the page on structured Gaussian processes: error against time, and calibration.

    python examples/paper/gp/plots.py [--task segmentation] [--large] [--output build/gp] [--small]

Calibration is read from the file that `table1.py` writes; error against time is measured here, on
the first fold, in CPU seconds of training without those of looking. With --large, figure 1 of the
paper instead: test likelihood and error against time of the larger base NP, on two divisions.
"""

import argparse
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import torch
from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter
from table1 import BINS, DATA, measured, results, tagger
from tasks import TASKS, Sequences, folds, large

from rdpgraph.answers import Progress
from rdpgraph.gp import StructuredGP

TITLES = {"crf": "linear CRF", "reparameterised": "GP, reparameterised"}


def calibration(lines: list[dict[str, Any]], axes: plt.Axes) -> None:
    """Share of labels that are right, by the probability that they were given."""
    axes.plot([0, 1], [0, 1], color="0.8", zorder=0)
    for column, title in TITLES.items():
        found = [one for one in lines if one["column"] == column]
        if not found:
            continue
        count, right, sure = (
            torch.tensor([one[name] for one in found]).sum(0)
            for name in ("count", "right", "confidence")
        )
        some = count >= 20
        off = float((right - sure).abs().sum() / count.sum())
        axes.plot(sure[some] / count[some], right[some] / count[some], "o-",
                  label=f"{title}, off by {100 * off:.1f}% on average")  # fmt: skip
        print(f"{title:24} {100 * off:.2f}% between confidence and accuracy, {BINS} bins")
    axes.set(xlabel="probability of the predicted label", ylabel="part that is right")
    axes.legend()


def watched(
    made: StructuredGP, train: Sequences, test: Sequences, *, every: int = 5
) -> list[tuple[float, float, float]]:
    """Seconds of training, and the error in per cent and the log loss of a label after them."""
    looking, points = 0.0, []
    begun = time.process_time()

    def watch(step: Progress) -> None:
        nonlocal looking
        now = time.process_time()
        if step.number % every == 0 or step.number == 1:
            found = measured(made.predict_marginals(test.features), test.labels)
            points.append((now - begun - looking, found["error"], found["log_loss"]))
        looking += time.process_time() - now

    made.training = replace(made.training, progress=watch)
    made.fit(train.features, train.labels, generator=torch.Generator().manual_seed(0))
    return points


def against_time(task: str, axes: plt.Axes, *, small: bool) -> None:
    """The error on the test sequences while training goes on."""
    train, test = folds(task, DATA)[0]
    if small:
        train, test = train[:4], test[:4]
    for column in ("reparameterised", "batch", "stochastic"):
        made = tagger(column, TASKS[task].labels, points=20 if small else 500, small=small)
        points = watched(made, train, test)
        seconds, errors, _ = zip(*points, strict=True)
        axes.plot(seconds, errors, label=column)
        print(f"{column:24} {points[-1][1]:.2f}% after {points[-1][0]:.0f} s")
    axes.set(xlabel="seconds of CPU", ylabel="error, per cent", xscale="log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(FormatStrFormatter("%g"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.legend()


def figure1(likelihood: plt.Axes, error: plt.Axes, *, small: bool) -> None:
    """Test likelihood and error of the larger base NP while training goes on in small steps."""
    for fold, (train, test) in enumerate(large(DATA)[: 1 if small else 2]):
        if small:
            train, test = train[:4], test[:4]
        for column, style in (("stochastic", "-"), ("piecewise", "--")):
            made = tagger(column, TASKS["basenp"].labels, points=20 if small else 500, small=small)
            seconds, errors, losses = zip(*watched(made, train, test, every=15), strict=True)
            for axes, values in ((likelihood, losses), (error, errors)):
                axes.plot(seconds, values, style, color=f"C{fold}", label=f"{column}, {fold + 1}")
            print(f"{column:12} {fold + 1}: {errors[-1]:.2f}%, {losses[-1]:.4f} nats a label, "
                  f"{seconds[-1]:.0f} s", flush=True)  # fmt: skip
    for axes, what in ((likelihood, "-log p of a test label, nats"), (error, "error, per cent")):
        axes.set(xlabel="seconds of CPU, with choosing points", ylabel=what, yscale="log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(FormatStrFormatter("%g"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    error.legend()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", default="segmentation", choices=list(TASKS))
    parser.add_argument("--large", action="store_true", help="figure 1 of the paper")
    parser.add_argument("--output", type=Path, default=Path("build/gp"))
    parser.add_argument("--small", action="store_true")
    chosen = parser.parse_args()
    chosen.output.mkdir(parents=True, exist_ok=True)
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    if chosen.large:
        figure1(left, right, small=chosen.small)
    else:
        against_time(chosen.task, left, small=chosen.small)
        calibration(results(chosen.output / "table1.jsonl"), right)
    figure.savefig(chosen.output / ("gp_large.png" if chosen.large else "gp.png"), dpi=110)
