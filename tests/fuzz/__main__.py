"""Run random cases for some seconds, or so many of them; print what does not agree, with its seed.

python -m tests.fuzz --seconds 60               all kinds in turn, from a seed of today's clock
python -m tests.fuzz --only graphs --models 1000000 --seed 0
python -m tests.fuzz --only graphs --seed 4711 --cases 1        one case again
"""

import argparse
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable

import numpy as np
import torch

from tests.fuzz import (
    bounds,
    chains,
    doors,
    estimates,
    files,
    graphs,
    learning,
    orders,
    parities,
    peers,
    recognised,
    structures,
    trees,
)
from tests.fuzz.compare import Skipped

KINDS: dict[str, Callable[[np.random.Generator], int]] = {
    "graphs": graphs.case,
    "bounds": bounds.case,
    "chains": chains.case,
    "trees": trees.case,
    "parities": parities.case,
    "learning": learning.case,
    "structures": structures.case,
    "recognised": recognised.case,
    "estimates": estimates.case,
    "files": files.case,
    "doors": doors.case,
    "orders": orders.case,
    "peers": peers.case,
}


def main() -> int:
    """Exit code 1 if any case failed."""
    asked = _arguments()
    kinds = asked.only or list(KINDS)
    if "peers" in kinds and peers.missing():
        print(f"peers: skipped, {peers.missing()}", flush=True)
        kinds.remove("peers")
    # Of the clock, and printed: another part of the space at each run.
    seed = time.time_ns() // 1_000_000_000 if asked.seed is None else asked.seed
    print(f"seed {seed}: {', '.join(kinds)}", flush=True)
    torch.set_num_threads(1)
    warnings.simplefilter("error", RuntimeWarning)
    cases, models, skips, failures = Counter[str](), Counter[str](), Counter[str](), 0
    begin = told = time.monotonic()
    number = 0
    while failures < asked.failures and kinds:
        spent = time.monotonic() - begin
        if asked.cases is not None and number >= asked.cases:
            break
        if asked.models is not None and models.total() >= asked.models:
            break
        if asked.cases is None and asked.models is None and spent >= asked.seconds:
            break
        kind = kinds[number % len(kinds)]
        case = seed + number
        number += 1
        try:
            models[kind] += KINDS[kind](generator_of(kind, case))
            cases[kind] += 1
        except Skipped as reason:
            skips[f"{kind}: {reason}"] += 1
        except Exception as error:
            failures += 1
            again = f"python -m tests.fuzz --only {kind} --seed {case} --cases 1"
            print(f"\nFAILED  {again}\n  {type(error).__name__}: {error}", flush=True)
            if asked.cases == 1:
                traceback.print_exc()
        if time.monotonic() - told > 60:
            told = time.monotonic()
            _tell(cases, models, skips, failures, told - begin)
    _tell(cases, models, skips, failures, time.monotonic() - begin)
    return 1 if failures else 0


def generator_of(kind: str, case: int) -> np.random.Generator:
    """The randomness of one case: of its kind and its number, and of nothing before it."""
    return np.random.default_rng([case, *kind.encode()])


def _tell(
    cases: Counter[str], models: Counter[str], skips: Counter[str], failures: int, spent: float
) -> None:
    said = ", ".join(f"{kind} {cases[kind]:,} of {models[kind]:,} models" for kind in cases)
    print(
        f"{spent:,.0f} s: {cases.total():,} cases, {models.total():,} models, {failures} failed; "
        f"{said or 'nothing ran'}",
        flush=True,
    )
    for reason, count in skips.most_common():
        print(f"    skipped {count:,} of {reason}", flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--cases", type=int, help="so many cases, whatever their time")
    parser.add_argument("--models", type=int, help="so many models, whatever their time")
    parser.add_argument("--seed", type=int, help="of the first case; default: the clock")
    parser.add_argument("--failures", type=int, default=20, help="end after so many")
    parser.add_argument("--only", action="append", choices=KINDS, help="may be repeated")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
