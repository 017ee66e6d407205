"""Measure how often errors, intervals and statuses of estimates of log Z hold exact answers.

python -m tests.fuzz.calibration [--models 300] [--seed 0] [--large] [--only Randomized]

Each row is of the answers of one estimate that say, or do not say, that they have converged: how
many there are, in which part of them log Z is within two and six standard errors and in the 95%
interval of `Replicates`, and in which part the error is +inf. With --large no model is solved whole
as a check of its estimate, as if all were too large for that.
"""

import argparse
import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from itertools import islice

import numpy as np
import torch

import rdpgraph as rg
from rdpgraph._core import tuning
from rdpgraph.errors import RdpgraphError
from rdpgraph.estimate import replicates
from rdpgraph.plan import clock

Model = rg.FactorGraph | rg.Chain
Rng = np.random.Generator
SLACK = 1e-6


def scores(rng: Rng, kind: str, scale: float, *shape: int) -> rg.Table:
    """Normal scores, heavy tails, hard zeros, or states that neighbours have in common."""
    values = scale * rng.normal(size=shape)
    if kind == "heavy":
        values = scale * rng.standard_cauchy(shape).clip(-50, 50)
    if kind == "zeros":
        values = np.where(rng.random(shape) < 0.4, -np.inf, values)
    if kind == "coupled" and len(set(shape)) == 1:
        apart = np.ones(shape, bool)
        apart[(np.arange(shape[0]),) * len(shape)] = False
        values = 0.1 * values / scale - 3.0 * scale * apart
    return rg.Table.from_logs(torch.from_numpy(values))


def model(rng: Rng, states: int) -> Model:
    """A chain, tree, ring, grid, or random triples."""
    shape = str(rng.choice(["chain", "tree", "ring", "grid", "triples"]))
    kind = str(rng.choice(["normal", "heavy", "zeros", "coupled"]))
    scale, own = float(rng.choice([0.5, 1.0, 2.0, 5.0])), float(rng.choice([0.1, 1.0]))
    states, count = int(rng.integers(2, states + 1)), int(rng.integers(4, 11))
    if shape == "chain":
        unary = torch.from_numpy(own * rng.normal(size=(count, 5 * states)))
        return rg.Chain(unary, scores(rng, kind, scale, 5 * states, 5 * states))
    places = np.arange(count)
    scopes: list[tuple[int, ...]] = [(int(rng.integers(i)), int(i)) for i in places[1:]]
    if shape == "ring":
        scopes = [(i, (i + 1) % count) for i in range(count)]
    if shape == "grid":
        count = 12
        scopes = [(i, i + 1) for i in range(12) if i % 4 < 3] + [(i, i + 4) for i in range(8)]
    if shape == "triples":
        states = min(states, 5)
        scopes = [tuple(rng.choice(count, 3, replace=False).tolist()) for _ in range(2 * count)]
    x = [rg.Variable(f"x{number}", states) for number in range(count)]
    factors = [rg.Factor([v], scores(rng, "normal", own, states)) for v in x]
    for scope in scopes:
        table = scores(rng, kind, scale, *(states,) * len(scope))
        factors.append(rg.Factor([x[v] for v in scope], table))
    return rg.FactorGraph(factors)


Ask = Callable[[Model, Rng, torch.Generator], rg.Posterior]


def kept(count: int) -> Ask:
    """Replicates on a few states of each variable, by any proposal and selection."""

    def ask(asked: Model, rng: Rng, generator: torch.Generator) -> rg.Posterior:
        states = asked.unary.shape[-1] if isinstance(asked, rg.Chain) else asked.variables[0].size
        keep = max(int(states * rng.choice([0.1, 0.3, 0.6])), 2)
        own = rg.randomized
        proposal = rng.choice([own.Uniform(), own.Local(), own.Landmark(4), own.Pilot()])
        selections = [own.TopTail(keep // 2, keep - keep // 2), own.Threshold(keep),
                      own.TopSystematic(keep // 2, keep - keep // 2)]  # fmt: skip
        chosen = rg.Randomized(proposal, rng.choice(selections), replicates=count)
        return rg.infer(asked, estimator=chosen, generator=generator)

    return ask


def scheduled(kind: type[rg.MiniBuckets | rg.Auto], seconds: float) -> Ask:
    """The answer of a scheduler with too little memory for exact inference, in counted seconds."""

    def ask(asked: Model, rng: Rng, generator: torch.Generator) -> rg.Posterior:
        graph = asked.factor_graph() if isinstance(asked, rg.Chain) else asked
        scheduler = kind(memory=float(10 ** rng.uniform(2.5, 4.5)), seconds=seconds)
        if isinstance(scheduler, rg.MiniBuckets):
            scheduler = replace(scheduler, generator=generator)
        with clock.counted(clock.Counter()):
            posterior = rg.infer(graph, scheduler=scheduler)
            _ = posterior.log_partition
        return posterior

    return ask


ESTIMATES: dict[str, Ask] = {
    **{f"Randomized, {count} replicates": kept(count) for count in (2, 4, 8, 16, 32)},
    **{
        f"MiniBuckets({seconds})": scheduled(rg.MiniBuckets, seconds)
        for seconds in (0.01, 0.1, 1.0)
    },
    **{f"Auto(seconds={seconds})": scheduled(rg.Auto, seconds) for seconds in (0.01, 0.1, 1.0)},
}


def outcome(posterior: rg.Posterior, exact: float) -> tuple[float, bool, bool]:
    """Standard errors between the answer and log Z; whether the interval and the bounds hold it."""
    slack = SLACK * (1.0 + abs(exact))
    low, high = posterior.replicates.interval(0.95)
    held = float(low) - slack <= exact <= float(high) + slack
    off, error = abs(float(posterior.log_partition) - exact), float(posterior.standard_error)
    far = 0.0 if off <= slack else off / error if error > 0.0 else math.inf
    return far if error < math.inf else math.nan, held, posterior.status.exact and off > slack


def main() -> None:
    """Print a table of all estimates."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, default=300)
    parser.add_argument("--states", type=int, default=20, help="of a variable, at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--only", default="", help="estimates whose names begin with this")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.large:
        tuning.LITTLE_WORK, wider = 0.0, replicates._wider
        replicates._wider = lambda *given: islice(wider(*given), 1, None)
    found, wrong = defaultdict[tuple[str, bool], list[tuple[float, bool]]](list), 0
    for seed in range(asked.seed, asked.seed + asked.models):
        rng = np.random.default_rng(seed)
        drawn = model(rng, asked.states)
        exact = float(rg.infer(drawn).log_partition)
        for name, ask in ESTIMATES.items():
            if exact == -math.inf or not name.startswith(asked.only):
                continue
            try:
                posterior = ask(drawn, rng, torch.Generator().manual_seed(seed))
                far, held, false = outcome(posterior, exact)
            except RdpgraphError:  # out of the budget
                continue
            wrong += false
            if not posterior.status.exact:
                found[name, posterior.status.converged].append((far, held))
    print(f"{wrong} answers called exact are not; in percent:")
    print("| estimate | converged | answers | 2 errors | 6 errors | interval | error not known |")
    print("|---|---|---|---|---|---|---|")
    for (name, sure), rows in sorted(
        found.items(), key=lambda row: list(ESTIMATES).index(row[0][0])
    ):
        far, held = np.array([row[0] for row in rows]), np.array([row[1] for row in rows])
        known = far[~np.isnan(far)]
        parts = [(known <= 2).mean(), (known <= 6).mean()] if len(known) else [math.nan] * 2
        parts += [held.mean(), np.isnan(far).mean()]
        cells = " | ".join("" if math.isnan(part) else f"{100 * part:.0f}" for part in parts)
        print(f"| {name} | {'yes' if sure else 'no'} | {len(rows)} | {cells} |")


if __name__ == "__main__":
    main()
