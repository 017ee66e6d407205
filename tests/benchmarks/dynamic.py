"""Dynamic Bayesian networks: seconds and answers beside pgmpy's, and of long series.

    pip install pgmpy==1.1.2
    OMP_NUM_THREADS=1 python tests/benchmarks/dynamic.py --steps 10000

A machine: wear and load are hidden and go on from step to step; heat depends on both, and two
sensors show heat and wear with errors.
"""

import argparse
import importlib.util
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from rdpgraph import learn

WITHIN = [
    ("wear", "heat"), ("load", "heat"), ("heat", "thermometer"), ("wear", "vibration"),
]  # fmt: skip
BETWEEN = [("wear", "wear"), ("load", "load"), ("heat", "wear")]
SIZES = {"wear": 3, "load": 2, "heat": 3, "thermometer": 3, "vibration": 2}


def rows(*shape: int, seed: int) -> torch.Tensor:
    """Random probabilities (*parents, states)."""
    generator = torch.Generator().manual_seed(seed)
    table = torch.rand(*shape, generator=generator, dtype=torch.float64) + 0.05
    return table / table.sum(-1, keepdim=True)


def network() -> learn.DynamicBayesianNetwork:
    """The machine, with tables."""
    tables = {
        "wear": rows(3, 3, 3, seed=1), "load": rows(2, 2, seed=2), "heat": rows(3, 2, 3, seed=3),
        "thermometer": rows(3, 3, seed=4), "vibration": rows(3, 2, seed=5),
    }  # fmt: skip
    first = {"wear": rows(3, seed=6), "load": rows(2, seed=7)}
    return learn.DynamicBayesianNetwork(WITHIN, BETWEEN, states=SIZES, tables=tables, first=first)


def by_pgmpy(model: learn.DynamicBayesianNetwork) -> Any:
    """The same network, ready to be asked."""
    from pgmpy.factors.discrete import TabularCPD
    from pgmpy.inference import DBNInference
    from pgmpy.models import DynamicBayesianNetwork

    edges = [((a, 0), (b, 0)) for a, b in WITHIN] + [((a, 0), (b, 1)) for a, b in BETWEEN]
    other = DynamicBayesianNetwork(edges)
    parents = {name: [(a, 1) for a, b in WITHIN if b == name] for name in SIZES}
    earlier = {name: [(a, 0) for a, b in BETWEEN if b == name] for name in SIZES}

    def table(name: str, values: torch.Tensor, step: int, above: list[tuple[str, int]]) -> Any:
        flat = values.reshape(-1, values.shape[-1]).T.numpy()
        sizes = [SIZES[parent] for parent, _ in above]
        return TabularCPD((name, step), SIZES[name], flat, evidence=above, evidence_card=sizes)

    for name in SIZES:
        within = [(parent, 0) for parent, _ in parents[name]]
        begun = model.first.get(name, model.tables[name])
        other.add_cpds(table(name, begun, 0, within))
        later = [*earlier[name], *parents[name]]
        other.add_cpds(table(name, model.tables[name], 1, later))
    other.initialize_initial_state()
    return DBNInference(other)


def seconds(ask: Callable[[], object]) -> str:
    """CPU seconds of a call."""
    begun = time.process_time()
    ask()
    return f"{time.process_time() - begun:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--limit", type=int, default=20)
    options = parser.parse_args()
    model, generator = network(), torch.Generator().manual_seed(0)
    drawn = model.sample(options.steps, generator)[["thermometer", "vibration"]]
    names = ", ".join(model.interface)
    print(f"interface: {names}")
    print("| steps | filter | smooth | most probable states | pgmpy: smooth one step |")
    print("|---|---|---|---|---|")
    other = None
    if importlib.util.find_spec("pgmpy") is not None:
        warnings.filterwarnings("ignore")
        other = by_pgmpy(model)
    for steps in dict.fromkeys(min(options.steps, count) for count in (20, 100, options.steps)):
        data = drawn.iloc[:steps]
        asked = (model.filter, model.smooth, model.decode)
        cells = [seconds(lambda ask=ask, data=data: ask(data)) for ask in asked]
        beside = ""
        if other is not None and steps <= 100:
            seen = {(n, t): int(data[n].iloc[t]) for n in data.columns for t in range(steps)}
            found = {}

            def ask(seen: Any = seen, found: Any = found) -> None:
                found.update(other.backward_inference([("wear", 0)], seen))

            beside = seconds(ask)
            off = np.abs(found["wear", 0].values - model.smooth(data)["wear"].iloc[0]).max()
            beside += f" (off by {off:.1e})"
        print(f"| {steps:,} | {' | '.join(cells)} | {beside} |")
    fitted = learn.DynamicBayesianNetwork(
        WITHIN, BETWEEN, states={n: SIZES[n] for n in ("wear", "load", "heat")}, prior=1.0,
        limit=options.limit,
    )  # fmt: skip
    used = seconds(lambda: fitted.fit(drawn))
    print(f"{fitted.fit_.steps} steps of EM of three hidden variables: {used} s")
    print(f"log-likelihood {fitted.score(drawn):.2f}, of the truth {model.score(drawn):.2f}")


if __name__ == "__main__":
    main()
