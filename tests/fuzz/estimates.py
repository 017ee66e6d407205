"""Estimates that call themselves converged, on models made to mislead them, beside exact answers.

What is told must be within ten of its standard errors. Where weights have long tails chance alone
goes beyond them now and then: a fault is a model that two estimates in turn are wrong of.
"""

from collections.abc import Callable

import numpy as np
import torch

import rdpgraph as rg
from rdpgraph.plan import clock
from rdpgraph.pruning import masks_of, sweeps_of
from tests.fuzz.compare import Mismatch, Skipped

Model = rg.extend.Structure | rg.FactorGraph
BEYOND = 10.0
ROUNDING = 1e-6


def case(rng: np.random.Generator) -> int:
    """One model and one estimate of it."""
    kind = str(rng.choice(list(MODELS)))
    model = MODELS[kind](rng)
    few = isinstance(model, rg.FactorGraph) or (isinstance(model, rg.Chain) and rng.random() < 0.5)
    estimate = grown if kind == "dense" else weighed if few else pruned
    for again in (False, True):
        sure, error, told, name = estimate(model, rng)
        wrong = error.abs() > BEYOND * told + ROUNDING
        if not sure:
            raise Skipped("said not to have converged")
        if not bool(wrong.any()):
            break
        if again:
            place = int((error.abs() - BEYOND * told).argmax())
            off, bar = float(error.reshape(-1)[place]), float(told.reshape(-1)[place])
            raise Mismatch(f"off by {off:.3g}, told +- {bar:.3g}: {name}")
    return 1


def pruned(model: Model, rng: np.random.Generator) -> tuple[bool, torch.Tensor, torch.Tensor, str]:
    """Answers of randomized pruning: whether it is sure, their errors, and standard errors."""
    estimator = rg.RandomizedPruning(int(rng.choice([50, 100])), chains=int(rng.choice([4, 8])))
    masks = masks_of(model, rg.infer)
    none = torch.zeros(1, *masks.questions, dtype=torch.bool)
    exact = masks.masked(none, none).expected().answers[0]
    posterior = rg.infer(model, estimator=estimator, generator=_seeded(rng))
    found = sweeps_of(posterior)
    name = f"{type(model).__name__} by {estimator.sweeps} sweeps of {estimator.chains} chains"
    return posterior.status.converged, found.answers - exact, found.standard_error, name


def weighed(model: Model, rng: np.random.Generator) -> tuple[bool, torch.Tensor, torch.Tensor, str]:
    """log Z on a few states of each site: whether it is sure, its error, its standard error."""
    replicates = int(rng.choice([8, 16]))
    estimator = ESTIMATORS[int(rng.integers(len(ESTIMATORS)))](int(rng.integers(2, 5)), replicates)
    posterior = rg.infer(model, estimator=estimator, generator=_seeded(rng))
    error = posterior.log_partition - rg.infer(model).log_partition
    if posterior.status.exact:
        raise Skipped("all states kept")
    told = posterior.status.standard_error
    return posterior.status.converged, error, torch.tensor(told), str(estimator)


def grown(model: Model, rng: np.random.Generator) -> tuple[bool, torch.Tensor, torch.Tensor, str]:
    """log Z by populations on mini-buckets: whether it is sure, its error, its standard error."""
    memory = float(10 ** rng.uniform(4, 5))
    scheduler = rg.MiniBuckets(seconds=2.0, memory=memory, generator=_seeded(rng))
    assert isinstance(model, rg.FactorGraph)
    with clock.counted(clock.Counter()):  # seconds of work, so that a case depends on its number
        posterior = rg.infer(model, scheduler=scheduler)
        log_z = posterior.log_partition
    error = log_z - rg.infer(model, rg.Contraction()).log_partition
    if posterior.status.exact:
        raise Skipped("all configurations kept")
    told = posterior.status.standard_error
    return posterior.status.converged, error, torch.tensor(told), f"memory of {memory:.0f} bytes"


def _seeded(rng: np.random.Generator) -> torch.Generator:
    return torch.Generator().manual_seed(int(rng.integers(2**31)))


def _normal(rng: np.random.Generator, scale: float, *shape: int) -> torch.Tensor:
    return torch.from_numpy(scale * rng.normal(size=shape))


def sticky(rng: np.random.Generator) -> rg.Chain:
    """A chain that seldom leaves a state: as many modes as there are states."""
    steps, states = int(rng.integers(3, 9)), int(np.exp(rng.uniform(np.log(2), np.log(400))))
    depth = np.inf if rng.random() < 0.2 else rng.uniform(2, 60)
    leave = torch.full((states, states), -depth, dtype=torch.float64).fill_diagonal_(0.0)
    return rg.Chain(_normal(rng, float(rng.choice([0.1, 1.0])), steps, states), leave)


def crossed(rng: np.random.Generator) -> rg.Bitext:
    """Two sentences whose words are aligned in order or in reverse, as likely, or by chance."""
    words, depth = int(rng.integers(2, 5)), rng.uniform(1, 10)
    ways = torch.eye(words, dtype=torch.float64)
    scores = depth * torch.maximum(ways, ways.flip(0)) if rng.random() < 0.5 else 0.0
    scores = scores + _normal(rng, float(rng.choice([0.3, 1.5, 5.0])), words, words)
    ends = (_normal(rng, 1.0, words) for _ in range(2))
    return rg.Bitext.words(scores, *ends, inverted=-float(rng.choice([0.0, 0.5, 3.0])))


def ring(rng: np.random.Generator) -> rg.FactorGraph:
    """A cycle with a chord, and scores that differ by much."""
    count, states = int(rng.integers(4, 7)), int(np.exp(rng.uniform(np.log(4), np.log(80))))
    scale = float(np.exp(rng.uniform(0, np.log(10))))
    x = [rg.Variable(f"x{number}", states) for number in range(count)]
    pairs = [(x[i], x[(i + 1) % count]) for i in range(count)] + [(x[0], x[2])]
    return rg.FactorGraph(
        [rg.Factor(p, rg.Table(_normal(rng, scale, states, states))) for p in pairs]
    )


def dense(rng: np.random.Generator) -> rg.FactorGraph:
    """Random triples, twice as many as variables, and scores that differ by much."""
    count, scale = int(rng.integers(9, 14)), float(np.exp(rng.uniform(np.log(2), np.log(100))))
    x = [rg.Variable(f"x{number}", 3) for number in range(count)]
    triples = [rng.choice(count, 3, replace=False) for _ in range(2 * count)]
    return rg.FactorGraph(
        [rg.Factor([x[v] for v in scope], rg.Table(_normal(rng, scale, 3, 3, 3)))
         for scope in triples]
    )  # fmt: skip


MODELS: dict[str, Callable[[np.random.Generator], Model]] = {
    "sticky": sticky, "crossed": crossed, "ring": ring, "dense": dense,
}  # fmt: skip
ESTIMATORS: list[Callable[[int, int], rg.Randomized]] = [
    lambda keep, count: rg.Randomized.default(keep=keep, replicates=count),
    lambda keep, count: rg.Randomized.piloted(keep=keep, replicates=count),
    lambda keep, count: rg.Randomized(
        rg.randomized.Uniform(), rg.randomized.Threshold(keep), replicates=count
    ),
    lambda keep, count: rg.Randomized(
        rg.randomized.Local(), rg.randomized.TopTail(keep // 2, keep - keep // 2), replicates=count
    ),
]
