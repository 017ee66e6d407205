"""Estimators of log Z on the chain of the paper's Table 2, at equal time.

    python examples/paper/shootout.py [--quick] [--states 2000 10000] [--seeds 5] [--repeats 20]

Every estimator gets the size that fits a time for one run: exact takes what it takes, and the
others double their number of states, or of features, until a run takes longer than the budget. The
mean squared error is of log Z, over all seeds and repeats. A look-ahead or a surrogate is drawn
again in every run, and its time is part of the run's. "norm" is the root mean square |x + y| of the
embeddings for pairs of large value, which random features stand and fall with. The transition is
that of the paper, and then a fifth of it, whose norm random features can serve.
"""

import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from measure import Embedded, arguments, cases, mean, row, truth_of
from potentials import KINDS, Case

import rdpgraph as rg

Run = Callable[[Case, int, torch.Generator], float]
SCALES = (1.0, 0.2)


@dataclass(frozen=True)
class Contender:
    """An estimator of a size.

    Attributes:
        name: as it is printed.
        run: one estimate of log Z with a number of states kept, or of features.
        smallest: where doubling begins.
        share: the largest size, as a share of the number of states; above 1 for features.
        chance: whether two runs differ.
    """

    name: str
    run: Run
    smallest: int = 16
    share: float = 1.0
    chance: bool = True


def randomized(estimator: Callable[[Case, int], rg.Randomized]) -> Run:
    def run(one: Case, size: int, generator: torch.Generator) -> float:
        made = estimator(one, size)
        return float(rg.infer(one.chain, estimator=made, generator=generator).log_partition)

    return run


def top(one: Case, keep: int) -> rg.Randomized:
    return rg.Randomized(
        rg.randomized.LocalGlobal(Embedded(one.norms)), rg.randomized.Top(keep), defensive=0.0
    )


def features(one: Case, size: int, generator: torch.Generator) -> float:
    estimator = rg.LowRankFactors(size)
    return float(rg.infer(one.chain, estimator=estimator, generator=generator).log_partition)


def looking_ahead(_: Case, keep: int) -> rg.Randomized:
    return rg.Randomized(rg.randomized.LowRankPilot(features=64), rg.randomized.Threshold(keep))


def with_surrogate(one: Case, keep: int, generator: torch.Generator) -> float:
    low = rg.LowRankFactors(64, shared=True)
    surrogate = low.prepare(one.chain, solve=rg.infer, generator=generator).model
    found = rg.controlled(
        one.chain, surrogate, estimator=rg.Randomized.default(keep=keep), solve=rg.infer,
        generator=generator,
    )  # fmt: skip
    BELOW.append(float(found.sign) <= 0)
    return float(found.log_partition)


BELOW: list[bool] = []  # whether each estimate with a surrogate was positive
CONTENDERS = (
    Contender("top", randomized(top), chance=False),
    Contender("randomized", randomized(lambda _, keep: rg.Randomized.default(keep=keep))),
    Contender("randomized, pilot", randomized(lambda _, k: rg.Randomized.piloted(keep=k))),
    Contender("random features", features, share=4.0),
    Contender("randomized, low-rank pilot", randomized(looking_ahead)),
    Contender("randomized, control variate", with_surrogate),
)


def scaled(one: Case, by: float) -> Case:
    """The case with its transition multiplied."""
    pairs = one.chain.transition
    assert isinstance(pairs, rg.Bilinear)
    chain = rg.Chain(one.chain.unary, rg.Bilinear(by * pairs.left, pairs.right))
    return replace(one, chain=chain, name=f"{one.name}, transition x {by}")


def timed(contender: Contender, one: Case, size: int) -> float:
    """Milliseconds of a run, the better of two after the first."""
    generator = torch.Generator().manual_seed(0)
    times: list[float] = []
    for _ in range(3):
        start = time.perf_counter()
        contender.run(one, size, generator)
        times.append((time.perf_counter() - start) * 1e3)
    return min(times[1:])


def fitted(contender: Contender, one: Case, budget: float) -> tuple[int, float]:
    """The largest size, by doubling, that keeps to a budget in milliseconds; and its time."""
    states = one.chain.unary.shape[-1]
    size, spent = contender.smallest, timed(contender, one, contender.smallest)
    while 2 * size <= contender.share * states:
        longer = timed(contender, one, 2 * size)
        if longer > budget:
            break
        size, spent = 2 * size, longer
    return size, spent


def shoot(kind: str, every: list[Case], repeats: int, budgets: list[float]) -> None:
    """Print the table of one kind of potentials."""
    truths, spent = zip(*(truth_of(one) for one in every), strict=True)
    row(f"{kind}: exact", [f"{mean(spent):.0f} ms", "0"])
    for budget in budgets:
        for contender in CONTENDERS:
            size, own = fitted(contender, every[0], budget)
            generator, errors = torch.Generator().manual_seed(1), list[float]()
            BELOW.clear()
            for one, truth in zip(every, truths, strict=True):
                for _ in range(repeats if contender.chance else 1):
                    errors.append((contender.run(one, size, generator) - truth) ** 2)
            told = [f"{own:.0f} ms of {budget:.0f}", f"{mean(errors):.3g}", f"size {size:,}"]
            if BELOW:
                told.append(f"{mean(BELOW):.0%} below zero")
            row("  " + contender.name, told)


def norm_of(one: Case) -> float:
    pairs = one.chain.transition
    assert isinstance(pairs, rg.Bilinear)
    features = rg.RandomFeatures(pairs.left.shape[-1], 1024)
    return features.predicted_error(pairs.left, pairs.right).heavy_norm


def main() -> None:
    chosen = arguments(__doc__.splitlines()[0])
    warnings.filterwarnings("ignore", "Random features are useless")
    repeats = min(chosen.repeats, 20)
    budgets = [20.0] if chosen.quick else [20.0, 100.0]
    kinds = chosen.kinds[:1] if chosen.quick else [k for k in KINDS if k in chosen.kinds]
    for states in chosen.states:
        for scale in SCALES:
            for kind in kinds:
                every = [scaled(one, scale) for one in cases(kind, states, chosen.seeds)]
                norm, useful = norm_of(every[0]), math.log1p(1024) ** 0.5
                print(
                    f"\n{states} states, transition x {scale}: norm {norm:.2f}, and 1,024 random "
                    f"features are of use up to {useful:.2f}"
                )
                row("", ["time of a run", "MSE of log Z", "states or features"])
                shoot(kind, every, repeats, budgets)


if __name__ == "__main__":
    main()
