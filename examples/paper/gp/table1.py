"""Table 1 of Galliani, Dezfouli, Bonilla and Quadrianto 2017: error rates of taggers, five folds.

    python examples/paper/gp/table1.py segmentation japanesene chunking basenp [--seconds 1800]

Columns: `crf`, a linear CRF whose penalty is chosen by cross-validation; `batch`, `stochastic` and
`piecewise`, Gaussian processes by the score function with its control variate, which see all
sequences in a step, a group of them, and a group by the piecewise pseudo-likelihood;
`reparameterised`, all sequences; and if they are asked for `saga`, as `stochastic` by SAGA, at the
rate of three with the highest bound, `learned`, as `batch` with hyperparameters that move in one of
ten steps, `uncontrolled`, as `batch` without the control variate, and `slice`, the same model by
elliptical slice sampling, without a variational posterior. How far functions spread at
first is chosen for each fold by cross-validation in its training sequences (`spread`), as the CRF's
penalty is, and is the same for all columns. Each fold that ends is a line of the file of results,
and is not run again; no fold is begun after --seconds. With `--large`, base NP with 500 sequences
of training.
"""

import argparse
import json
import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from baseline import LinearCRF, cross_validated, errors, parts
from slices import SliceTagger
from tasks import DATA, TASKS, Sequences, folds, large, mean_and_deviation
from torch import Tensor

from rdpgraph.errors import ModelError
from rdpgraph.gp import (
    SAGA,
    ChainLikelihood,
    Linear,
    PiecewisePseudoLikelihood,
    Reparameterised,
    ScoreFunction,
    StructuredGP,
    Training,
)

Marginals = Callable[[list[Tensor]], list[Tensor]]
COLUMNS = (
    "crf", "reparameterised", "batch", "stochastic", "piecewise", "saga", "learned", "uncontrolled",
    "slice",
)  # fmt: skip
USUAL = COLUMNS[:5]
SPREADS = (1.0, 3.0, 10.0)
RATES = (0.01, 0.003, 0.001)
PRINTED = {
    "crf": 1,
    "slice": 2,
    "batch": 3,
    "learned": 3,
    "stochastic": 4,
    "saga": 4,
    "piecewise": 5,
}
BINS = 10


def tagger(
    column: str, labels: int, *, points: int, small: bool, spread: float = 1.0, rate: float = 0.0
) -> StructuredGP:
    """The Gaussian process of a column.

    Args:
        column: of the table.
        labels: how many there are.
        points: inducing points.
        small: a few steps and samples.
        spread: prior variance of the weight of a feature, and standard deviation of the score of a
            pair of labels.
        rate: of `saga`.
    """
    steps, optimiser = {
        "stochastic": (150, partial(torch.optim.Adam, lr=0.05)),
        "piecewise": (150, partial(torch.optim.Adam, lr=0.05)),
        "saga": (400, partial(SAGA, lr=rate)),
    }.get(column, (60, partial(torch.optim.Adam, lr=0.1)))
    training = Training(
        steps=3 if small else steps,
        optimiser=optimiser,
        sequences=10 if column in ("stochastic", "piecewise", "saga") else None,
        kernel_every=10 if column == "learned" else 0,
    )
    control = 0.0 if column == "uncontrolled" else 0.2
    scores = ScoreFunction(samples=20 if small else 200, control=control)
    return StructuredGP(
        range(labels),
        Linear(spread),
        pairwise_scale=spread,
        inducing=points,
        likelihood=PiecewisePseudoLikelihood() if column == "piecewise" else ChainLikelihood(),
        estimator=Reparameterised() if column == "reparameterised" else scores,
        training=training,
    )


def fitted(
    column: str, labels: int, data: Sequences, fold: int, *, sweeps: int, **options: Any
) -> Marginals:
    """Train one column, and return the function that predicts; ``sweeps`` are those of `slice`."""
    if column == "crf":
        field = LinearCRF(labels, 1.0, 5).fit(data) if options["small"] else (
            cross_validated(labels, data)[0]
        )  # fmt: skip
        return lambda features: field.predict_marginals(
            Sequences(features, [[0] * len(one) for one in features])
        )
    if column == "slice":
        sampler = SliceTagger(labels, options["spread"], options["points"], sweeps=sweeps)
        return sampler.fit(data, torch.Generator().manual_seed(fold)).predict_marginals
    if column == "saga":
        options["rate"] = chosen_rate(labels, data, fold, **options)
    made = tagger(column, labels, **options)
    made.fit(data.features, data.labels, generator=torch.Generator().manual_seed(fold))
    return made.predict_marginals


def chosen_rate(labels: int, data: Sequences, fold: int, **options: Any) -> float:
    """The one with the highest bound after a quarter of the steps."""

    def bound(rate: float) -> float:
        made = tagger("saga", labels, rate=rate, **options)
        made.training = replace(made.training, steps=(made.training.steps + 3) // 4)
        try:
            made.fit(data.features, data.labels, generator=torch.Generator().manual_seed(fold))
        except ModelError:  # diverged
            return -math.inf
        last = made.bounds_[-len(data.labels) // 10 :]
        return sum(last) / len(last)

    return max(RATES, key=bound)


def chosen_spread(labels: int, data: Sequences, *, points: int, small: bool) -> float:
    """The one with the fewest errors on held-out parts of training, reparameterised."""

    def wrong(spread: float, kept: Sequences, held: Sequences) -> int:
        made = tagger("reparameterised", labels, points=points, small=small, spread=spread)
        made.fit(kept.features, kept.labels, generator=torch.Generator().manual_seed(0))
        return errors(made.predict_marginals(held.features), held.labels)

    divided = list(parts(data))
    return min(SPREADS, key=lambda one: sum(wrong(one, *both) for both in divided))


def measured(marginals: list[Tensor], labels: list[list[int]]) -> dict[str, Any]:
    """The error rate, the log loss, and how often labels of each confidence are right."""
    flat = torch.cat(marginals).double()
    truth = torch.tensor([label for one in labels for label in one])
    confidence, guess = flat.max(-1)
    right = (guess == truth).double()
    bins = (confidence * BINS).long().clamp(max=BINS - 1)
    zeros = torch.zeros(BINS, dtype=torch.float64)
    return {
        "error": 100 * (1 - float(right.mean())),
        "log_loss": -float(flat.gather(1, truth.unsqueeze(1)).log().clamp(min=-50).mean()),
        "count": zeros.index_add(0, bins, torch.ones_like(right)).tolist(),
        "right": zeros.index_add(0, bins, right).tolist(),
        "confidence": zeros.index_add(0, bins, confidence).tolist(),
    }


def results(path: Path) -> list[dict[str, Any]]:
    """The lines of the file of results."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def run(task: str, columns: list[str], path: Path, chosen: argparse.Namespace) -> None:
    """The folds of a task that are not done yet."""
    name = "basenp" if task == "basenp-large" else task
    done = {(one["task"], one["column"], one["fold"]): one for one in results(path)}
    divided = large(chosen.data) if task == "basenp-large" else folds(name, chosen.data)
    if chosen.small:
        divided = [(one[:4], other[:4]) for one, other in divided[:1]]
    options = {"points": 20 if chosen.small else chosen.points, "small": chosen.small}
    labels = TASKS[name].labels
    spreads = [] if columns == ["crf"] or chosen.spread is not None else ["spread"]
    for fold, (train, test) in enumerate(divided[: chosen.folds]):
        for column in spreads + columns:
            if (task, column, fold) in done or time.monotonic() - chosen.begun > chosen.seconds:
                continue
            cpu = time.process_time()
            if column == "spread":
                line = {"value": chosen_spread(labels, train, **options)}
                spent = time.process_time() - cpu
            else:
                spread = done[task, "spread", fold]["value"] if spreads else chosen.spread
                sweeps = 20 if chosen.small else chosen.sweeps
                predict = fitted(
                    column, labels, train, fold, sweeps=sweeps, **options, spread=spread
                )
                spent = time.process_time() - cpu
                line = measured(predict(test.features), test.labels)
            line = {"task": task, "column": column, "fold": fold, "cpu": spent, **line}
            done[task, column, fold] = line
            with path.open("a") as file:
                file.write(json.dumps(line) + "\n")


def show(task: str, path: Path) -> None:
    """The table of a task: ours, then the paper's."""
    print(f"\n{task}: error rate in per cent, mean (standard deviation) over folds")
    every = [one for one in results(path) if one["task"] == task]
    for column in COLUMNS:
        lines = [one for one in every if one["column"] == column]
        if not lines:
            continue
        average, deviation = mean_and_deviation([one["error"] for one in lines])
        loss, _ = mean_and_deviation([one["log_loss"] for one in lines])
        seconds, _ = mean_and_deviation([one["cpu"] for one in lines])
        theirs = "-"
        if task in TASKS and column in PRINTED:
            theirs = TASKS[task].printed[PRINTED[column]]
        print(f"{column:16} {average:6.2f} ({deviation:.2f})  paper {theirs:13} "
              f"log loss {loss:.3f}  {len(lines)} folds, {seconds:.0f} s of CPU each")  # fmt: skip
    spreads = [one for one in every if one["column"] == "spread"]
    choosing, total = (sum(one["cpu"] for one in both) for both in (spreads, every))
    print(f"spreads {[one['value'] for one in spreads]}, {choosing:.0f} s of CPU to choose them; "
          f"{total:.0f} s in all")  # fmt: skip


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", nargs="*", default=list(TASKS))
    parser.add_argument("--columns", nargs="+", default=list(USUAL), choices=COLUMNS)
    parser.add_argument("--folds", type=int, default=5, help="the first so many")
    parser.add_argument("--points", type=int, default=1000, help="inducing points")
    parser.add_argument("--spread", type=float, help="the same for all folds; default: chosen")
    parser.add_argument("--sweeps", type=int, default=2000, help="steps of slice sampling")
    parser.add_argument("--seconds", type=float, default=1800.0)
    parser.add_argument("--output", type=Path, default=Path("build/gp"))
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--large", action="store_true", help="base NP with 500 sequences")
    parser.add_argument("--small", action="store_true", help="a few sequences and steps of each")
    return parser.parse_args()


if __name__ == "__main__":
    chosen = arguments()
    chosen.begun = time.monotonic()
    chosen.output.mkdir(parents=True, exist_ok=True)
    path = chosen.output / "table1.jsonl"
    for task in ["basenp-large"] if chosen.large else chosen.tasks:
        run(task, chosen.columns, path, chosen)
        show(task, path)
