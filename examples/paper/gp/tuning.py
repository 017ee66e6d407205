"""Settings that move the error of structured Gaussian processes, on sequences outside the folds.

    python examples/paper/gp/tuning.py [japanesene] [--divisions 2] [--rows 0 1 2] [--small]

As many sequences for training as in the folds, 150 others to test, in random divisions. Each row is
a change of the prior, of the inducing points, of the steps or of the optimiser. In per cent, the
error, and how often a label other than the first is predicted and is there; and the bound in nats.
"""

import argparse
import time
from dataclasses import replace
from functools import partial

import torch
from tasks import TASKS, Sequences, everything, listed

from rdpgraph.gp import SAGA, Linear, StructuredGP, Training

ADAM = Training(steps=60)
BY_GROUPS = Training(steps=150, sequences=10, optimiser=partial(torch.optim.Adam, lr=0.05))
DESCENT = Training(steps=400, sequences=10, optimiser=partial(SAGA, lr=0.01))
CONSTANT = Training(steps=400, sequences=10, optimiser=partial(SAGA, lr=0.01), decay=False)
OUTSIDE = ("japanesene", "chunking", "basenp")  # all of segmentation is in the folds
Setting = tuple[str, float, float, int, Training]
SETTINGS: tuple[Setting, ...] = (
    # title, variance of weights, standard deviation of scores of pairs, points, training
    ("as in the paper", 1.0, 1.0, 500, ADAM),
    ("300 steps", 1.0, 1.0, 500, Training(steps=300)),
    ("pairs free", 1.0, 3.0, 500, ADAM),
    ("weights and pairs free", 3.0, 10.0, 500, ADAM),
    ("and all points", 3.0, 10.0, 1500, ADAM),
    ("more so", 10.0, 10.0, 1500, ADAM),
    ("more so, by groups", 10.0, 10.0, 1500, BY_GROUPS),
    ("SAGA", 1.0, 1.0, 500, DESCENT),
    ("SAGA, constant rate", 1.0, 1.0, 500, CONSTANT),
)


def divided(name: str, count: int) -> list[tuple[Sequences, Sequences]]:
    """Training and test sequences that no fold has, in random divisions."""
    known, size = everything(name), TASKS[name].training
    outside = sorted(set(range(len(known))) - set().union(*listed(name)))
    parts: list[tuple[Sequences, Sequences]] = []
    for seed in range(count):
        order = torch.randperm(len(outside), generator=torch.Generator().manual_seed(seed))
        places = [outside[place] for place in order.tolist()]
        parts.append((known.taken(places[:size]), known.taken(places[size : size + 150])))
    return parts


def row(
    name: str, setting: Setting, data: list[tuple[Sequences, Sequences]], *, small: bool
) -> str:
    """The figures of a setting, averages over divisions."""
    title, variance, scale, points, training = setting
    begun = time.process_time()
    totals = torch.zeros(4, dtype=torch.float64)
    for train, test in data:
        made = StructuredGP(
            range(TASKS[name].labels),
            Linear(variance),
            pairwise_scale=scale,
            inducing=20 if small else points,
            training=replace(training, steps=2) if small else training,
        )
        made.fit(train.features, train.labels, generator=torch.Generator().manual_seed(0))
        marginals = made.predict_marginals(test.features)
        guess = torch.cat(marginals).argmax(-1)
        truth = torch.tensor([label for one in test.labels for label in one])
        bound = made.elbo(train.features, train.labels, generator=torch.Generator().manual_seed(1))
        rates = [float((one != 0).double().mean()) for one in (guess - truth, guess, truth)]
        totals += torch.tensor([*(100 * rate for rate in rates), bound])
    error, predicted, there, bound = (totals / len(data)).tolist()
    spent = time.process_time() - begun
    return (f"{title:24} error {error:5.2f}  labels but the first {predicted:5.2f} predicted, "
            f"{there:.2f} there  bound {bound:6.0f}  {spent:.0f} s of CPU")  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", nargs="?", default="japanesene", choices=OUTSIDE)
    parser.add_argument("--divisions", type=int, default=2)
    parser.add_argument("--rows", type=int, nargs="+", default=list(range(len(SETTINGS))))
    parser.add_argument("--small", action="store_true")
    chosen = parser.parse_args()
    data = divided(chosen.task, chosen.divisions)
    if chosen.small:
        data = [(train[:4], test[:4]) for train, test in data]
    for number in chosen.rows:
        print(row(chosen.task, SETTINGS[number], data, small=chosen.small), flush=True)
