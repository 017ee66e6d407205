"""The randomized estimator at scale: seconds and peak memory; and its cost beside exact inference.

    python tests/benchmarks/randomized.py [--threads 2] [--no-million] [--only-beside]

Each case runs in a process of its own. Seconds are of one run from the embeddings to the gradient,
the second of two where it takes less than ten seconds; memory is the largest resident set of the
process, torch itself included, and beside it what the process held before the run. Potentials are
by embeddings; no table of all pairs of states is made, forwards or backwards.

- million: 1,000,000 states, 50 steps, embeddings of 64 numbers, 1,000 states kept: log Z and its
  gradient in the embeddings, by the default, and with a pilot.
- batch: 10,000 states, 100 steps, 8 items, 100 states kept: log Z and its gradient.

Then, on one thread, the default beside exact inference, for chains with a table of all pairs:
processor seconds of log Z, of log Z with its gradient in both potentials, and of marginals, the
smallest of several runs, each as a share of the exact one's; the Python calls of the first of these
within the package; and the mean total variation distance from the exact marginals.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType


@dataclass(frozen=True)
class Setting:
    """One case.

    Attributes:
        name: what it is called.
        states: N.
        steps: T.
        batch: items; 0 for no batch dim.
        dim: of the embeddings.
        keep: states kept.
        pilot: whether the default, or the same with a pilot.
    """

    name: str
    states: int
    steps: int
    batch: int
    dim: int
    keep: int
    pilot: bool


SETTINGS = (
    Setting("batch, default", 10_000, 100, 8, 64, 100, pilot=False),
    Setting("batch, with pilot", 10_000, 100, 8, 64, 100, pilot=True),
    Setting("million, default", 1_000_000, 50, 0, 64, 1000, pilot=False),
    Setting("million, with pilot", 1_000_000, 50, 0, 64, 1000, pilot=True),
)


@dataclass(frozen=True)
class Beside:
    """An estimate beside exact inference.

    Attributes:
        states: N.
        steps: T.
        keep: states kept.
        replicates: of the estimate.
        runs: of which the quickest is taken.
    """

    states: int
    steps: int
    keep: int
    replicates: int
    runs: int = 20


BESIDE = (
    *(Beside(2000, steps, 100, count) for steps in (10, 100) for count in (1, 8)),
    Beside(1000, 20, 50, 1),
    Beside(10_000, 20, 100, 1, runs=2),
)


def calls(ask: Callable[[], object]) -> int:
    """Python calls within the package."""
    import rdpgraph

    package, number = str(Path(rdpgraph.__file__).parent), 0

    def count(frame: FrameType, event: str, _: object) -> None:
        nonlocal number
        number += event == "call" and frame.f_code.co_filename.startswith(package)

    sys.setprofile(count)
    try:
        ask()
    finally:
        sys.setprofile(None)
    return number


def beside(setting: Beside) -> None:
    """Print a row: an estimate's seconds, their shares of exact ones, and calls."""
    import torch

    import rdpgraph as rg

    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    shapes = (setting.steps, setting.states), (setting.states, setting.states)
    parts = [torch.randn(*shape, generator=generator).requires_grad_() for shape in shapes]
    estimator = rg.Randomized.default(keep=setting.keep, replicates=setting.replicates)

    def value(**options: object) -> torch.Tensor:
        return rg.infer(rg.Chain(*parts), **options).log_partition

    def gradients(ask: Callable[[], torch.Tensor]) -> object:
        return torch.autograd.grad(ask(), parts)

    estimate = partial(value, estimator=estimator, generator=generator)

    def marginals(**options: object) -> torch.Tensor:
        with torch.no_grad():
            return rg.infer(rg.Chain(*parts), **options).marginals()

    read = partial(marginals, estimator=estimator, generator=generator)
    asked = estimate, value, lambda: gradients(estimate), lambda: gradients(value), read, marginals
    seconds: list[float] = []
    for ask in asked:
        taken: list[float] = []
        for _ in range(setting.runs):
            start = time.process_time()
            ask()
            taken.append(time.process_time() - start)
        seconds.append(min(taken))

    pairs = zip(seconds[::2], seconds[1::2], strict=True)
    shown = "".join(f"{few:10.4f}{few / exact:7.2f}" for few, exact in pairs)
    distance = 0.5 * (read() - marginals()).abs().sum(-1).mean()
    print(
        f"{setting.states:7d}{setting.steps:6d}{setting.replicates:12d}{shown}"
        f"{distance:10.3f}{calls(estimate):7d}",
        flush=True,
    )


def resident() -> float:
    """The largest resident set so far, GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def run(number: int, threads: int) -> None:
    import torch

    import rdpgraph as rg

    torch.set_num_threads(threads)
    setting = SETTINGS[number]
    generator = torch.Generator().manual_seed(0)
    embeddings = torch.randn(setting.states, setting.dim, generator=generator)
    embeddings = (embeddings * 0.8 / setting.dim**0.25).requires_grad_()
    batch = (setting.batch,) if setting.batch else ()
    observed = torch.randn(*batch, setting.steps, setting.dim, generator=generator)
    observed = observed * 2.0 / setting.dim**0.25
    make = rg.Randomized.piloted if setting.pilot else rg.Randomized.default
    estimator = make(keep=setting.keep)

    def once() -> float:
        start = time.perf_counter()
        chain = rg.Chain(observed @ embeddings.mT, rg.Bilinear(embeddings, embeddings))
        posterior = rg.infer(chain, estimator=estimator, generator=generator)
        value = posterior.log_partition
        (gradient,) = torch.autograd.grad(value.sum(), embeddings)
        spent = time.perf_counter() - start
        assert bool(value.isfinite().all())
        assert bool(gradient.isfinite().all())
        return spent

    before, spent = resident(), once()
    spent = once() if spent < 10 else spent
    print(json.dumps({"seconds": spent, "before": before, "peak": resident()}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--no-million", action="store_true")
    parser.add_argument("--only-beside", action="store_true")
    parser.add_argument("--run", type=int, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.run is not None:
        run(chosen.run, chosen.threads)
        return
    print(f"{'case':20s}{'seconds':>10s}{'peak GB':>10s}{'before GB':>11s}")
    for number, setting in enumerate(SETTINGS):
        if chosen.only_beside or (chosen.no_million and setting.states >= 1_000_000):
            continue
        command = [sys.executable, __file__, "--run", str(number), "--threads", str(chosen.threads)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found = json.loads(done.stdout.splitlines()[-1])
        print(
            f"{setting.name:20s}{found['seconds']:10.2f}{found['peak']:10.2f}"
            f"{found['before']:11.2f}",
            flush=True,
        )
    answers = "".join(f"{name:>10s}{'share':>7s}" for name in ("log Z", "gradient", "marginals"))
    print(
        f"\n{'states':>7s}{'steps':>6s}{'replicates':>12s}{answers}{'distance':>10s}{'calls':>7s}"
    )
    for setting in BESIDE:
        beside(setting)


if __name__ == "__main__":
    main()
