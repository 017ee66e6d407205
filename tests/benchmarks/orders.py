"""Squared errors of log Z by the order in which a systematic sample passes through the states.

    python tests/benchmarks/orders.py [--runs 40] [--models chain tree ...] [--lattices]

Every run keeps the same number of states by the same scores, half of them the likeliest; only the
order differs in which the sample passes through the rest:

- own: that of the states' numbers.
- falling: of the scores.
- ours: `TopSystematic`, which takes one of these two by the scores' steps.
- landmark: of the ratio of the `Landmark` messages to the scores, which shows where scores err.
- pilot: the same with a `Pilot`'s messages.
- curve: Hilbert's curve through the scores and the `Landmark` messages.
- embedding: Hilbert's curve through the scores and the states' main direction.

Models: chains of the paper's experiments (`examples/paper`); chains, trees and grids by random
embeddings; chains and grids whose states are levels of a quantity; hypertrees with rules of low
rank. Errors are in nats^2, against exact inference.

With ``--lattices``: sixteen replicates in groups, whose uniform numbers for each site are equal
steps apart, paired at random between sites. Beside the error are the variance of the mean that the
groups show, and the half-width of a 95% interval by them in units of the first row's.
"""

import argparse
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

import rdpgraph as rg
from rdpgraph.extend import Support
from rdpgraph.randomized import Landmark, LocalGlobal, Mixture, Pilot, SoftmaxGlobal, Uniform

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "paper"))

STATES, PAPER, STEPS, DIM, SIDE, WORDS = 1000, 2000, 10, 16, 3, 6
SHARES = (0.02, 0.1)
REPLICATES = 16


@dataclass(frozen=True)
class Case:
    """A model.

    Attributes:
        model: the model.
        exact: its log Z.
        direction: (states,) where each state lies along the main direction of the embeddings.
    """

    model: rg.FactorGraph | rg.Chain | rg.Hypertree
    exact: Tensor
    direction: Tensor


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def main_direction(embeddings: Tensor) -> Tensor:
    centred = embeddings - embeddings.mean(0)
    return torch.linalg.svd(centred, full_matrices=False)[0][:, 0]


def chain() -> Case:
    from potentials import case, tabulated

    one = case("dense", states=PAPER, seed=0)
    assert isinstance(one.chain.transition, rg.Bilinear)
    direction = main_direction(one.chain.transition.left)
    return Case(one.chain, tabulated(one.chain).log_partition(), direction)


def embedded(edges: list[tuple[int, int]], states: int) -> Case:
    """A graph of pairs by random embeddings."""
    xs = rg.VariableArray("x", (1 + max(max(edge) for edge in edges),), states)
    near = 0.3 * draw(states, DIM)
    first, second = (list(end) for end in zip(*edges, strict=True))
    graph = rg.FactorGraph(
        [
            rg.FactorBlock((xs,), rg.Table(draw(*xs.shape, states, seed=1))),
            rg.FactorBlock((xs[first], xs[second]), rg.Bilinear(near, near)),
        ]
    )
    return Case(graph, rg.infer(graph).log_partition, main_direction(near))


def levels(edges: list[tuple[int, int]], states: int) -> Case:
    """A graph whose states are levels of a quantity; neighbours have near levels."""
    xs = rg.VariableArray("x", (1 + max(max(edge) for edge in edges),), states)
    place = torch.linspace(0, 1, states)
    seen = torch.rand(*xs.shape, 1, generator=torch.Generator().manual_seed(0))
    first, second = (list(end) for end in zip(*edges, strict=True))
    graph = rg.FactorGraph(
        [
            rg.FactorBlock((xs,), rg.Table(-20 * (place - seen) ** 2)),
            rg.FactorBlock(
                (xs[first], xs[second]), rg.Table(-30 * (place.unsqueeze(1) - place) ** 2)
            ),
        ]
    )
    return Case(graph, rg.infer(graph).log_partition, place)


def hypertree() -> Case:
    rules = rg.trees.LowRankRules(*(draw(STATES, 8, seed=seed) for seed in range(3)))
    tree = rg.Hypertree(2 * draw(WORDS, WORDS, STATES, seed=3), rules)
    return Case(tree, tree.log_partition(), torch.arange(STATES).float())


def line(count: int) -> list[tuple[int, int]]:
    return [(n, n + 1) for n in range(count - 1)]


def grid(side: int) -> list[tuple[int, int]]:
    across = [(side * i + j, side * i + j + 1) for i in range(side) for j in range(side - 1)]
    return across + [(n, n + side) for n in range(side * (side - 1))]


MODELS: dict[str, Callable[[], Case]] = {
    "chain": chain,
    "embedded chain": lambda: embedded(line(STEPS), STATES),
    "embedded tree": lambda: embedded([((n - 1) // 2, n) for n in range(1, 2 * STEPS)], STATES),
    "embedded grid": lambda: embedded(grid(SIDE), STATES // 10),
    "level chain": lambda: levels(line(STEPS), STATES),
    "level grid": lambda: levels(grid(SIDE), STATES // 10),
    "hypertree": hypertree,
}


def rank(values: Tensor) -> Tensor:
    return values.argsort(-1).argsort(-1)


def hilbert(one: Tensor, other: Tensor) -> Tensor:
    """The place of each state on Hilbert's curve through the ranks of two keys."""
    side, place = 256, torch.zeros(one.shape, dtype=torch.long)
    x, y = (rank(key) * side // key.shape[-1] for key in torch.broadcast_tensors(one, other))
    step = side // 2
    while step:
        right, up = (x & step) > 0, (y & step) > 0
        place += step * step * ((3 * right.long()) ^ up.long())
        x, y = (torch.where(~up & right, side - 1 - part, part) for part in (x, y))
        x, y = torch.where(up, x, y), torch.where(up, y, x)
        step //= 2
    return place


@dataclass(eq=False)
class Along(rg.randomized.Selection):
    """`TopSystematic` with half of the states for certain, and the rest in the order of a key.

    Attributes:
        keep: number of states.
        key: (rows, N) of every row, or None for its own order; of a function of the scores.
        uniforms: (rows,) in place of random ones.
    """

    keep: int
    key: Callable[[Tensor], Tensor] | None = None
    uniforms: Tensor | None = None

    def select(self, log_q: Tensor, generator: torch.Generator | None) -> Support:
        # A row without a possible state, as of spans that end before they begin, may be any.
        none = log_q.amax(-1, keepdim=True) == -math.inf
        scores = torch.where(none, 0.0, log_q.double())
        top = self.keep // 2
        sure = scores.topk(top).indices
        rest = scores.scatter(-1, sure, -math.inf)
        own = torch.arange(scores.shape[-1]).expand(scores.shape)
        along = own if self.key is None else self.key(scores).expand(scores.shape).argsort(-1)
        chances = _chances(rest, self.keep - top).gather(-1, along)
        uniforms = self.uniforms
        if uniforms is None:
            shape = (*scores.shape[:-1], 1)
            uniforms = torch.rand(shape, generator=generator, dtype=torch.float64)
        targets = uniforms.reshape(*scores.shape[:-1], 1) + torch.arange(self.keep - top)
        places = torch.searchsorted(chances.cumsum(-1), targets, right=True)
        places = places.clamp(max=scores.shape[-1] - 1)
        weights = -chances.gather(-1, places).log()
        states = torch.cat([sure, along.gather(-1, places)], -1)
        return Support(states, torch.cat([torch.zeros_like(weights[..., :1]).expand(
            *weights.shape[:-1], top), weights], -1).to(log_q))  # fmt: skip


def _chances(log_q: Tensor, count: int) -> Tensor:
    """Probabilities ``min(1, c q)`` that sum to ``count``."""
    q = log_q.softmax(-1)
    chances = count * q
    while bool((chances > 1 + 1e-12).any()):
        sure = chances >= 1
        rest = torch.where(sure, 0.0, q)
        share = (count - sure.sum(-1, keepdim=True)) / rest.sum(-1, keepdim=True)
        chances = torch.where(sure, 1.0, share * rest)
    return chances


def scores_of(model: object, proposal: rg.randomized.Proposal, seed: int) -> Tensor:
    """The scores of a proposal for the only group of sites of a model."""
    seen: list[Tensor] = []

    class Seen(rg.randomized.Selection):
        def select(self, log_q: Tensor, generator: torch.Generator | None) -> Support:
            seen.append(log_q.double())
            return rg.randomized.Top(1).select(log_q, generator)

    generator = torch.Generator().manual_seed(seed)
    rg.infer(model, estimator=rg.Randomized(proposal, Seen(), defensive=0.0), generator=generator)  # pyright: ignore
    return seen[-1]  # a pilot chooses states of its own before


@dataclass(frozen=True)
class Given(rg.randomized.Proposal):
    """Scores that are known."""

    scores: Tensor

    def log_scores(self, sites: rg.extend.Sites) -> Tensor:
        return self.scores.to(sites.unary)


def run_orders(case: Case, keep: int, runs: int) -> None:
    errors: dict[str, list[float]] = {}
    for seed in range(runs):
        near = scores_of(case.model, Landmark(), seed)
        prior = scores_of(case.model, LocalGlobal(SoftmaxGlobal()), seed)
        first = rg.randomized.TopSystematic(min(keep, 64) // 2, min(keep, 64) // 2)
        pilot = scores_of(case.model, Pilot(selection=first), seed)
        base = Mixture((Given(near), Given(prior), Uniform()), (0.45, 0.45, 0.1))
        led = Mixture((Given(pilot), Uniform()), (0.9, 0.1))
        for name, proposal in (("default", base), ("with a pilot", led)):
            scores = scores_of(case.model, proposal, seed)
            keys = {
                "own": None, "falling": torch.neg, "landmark": lambda q, m=near: q - m,
                "pilot": lambda q, m=pilot: q - m, "curve": lambda q, m=near: hilbert(q, m),
                "embedding": lambda q: hilbert(q, case.direction),
            }  # fmt: skip
            chosen = {order: Along(keep, key) for order, key in keys.items()}
            chosen["ours"] = rg.randomized.TopSystematic(keep // 2, keep - keep // 2)
            for order, selection in chosen.items():
                estimator = rg.Randomized(Given(scores), selection, defensive=0.0)
                generator = torch.Generator().manual_seed(seed)
                found = rg.infer(case.model, estimator=estimator, generator=generator)
                error = float(found.log_partition - case.exact) ** 2
                errors.setdefault(f"{name}, {order}", []).append(error)
    for name, values in errors.items():
        print(f"  {keep:5d} kept, {name:24s}{sum(values) / len(values):10.2e}", flush=True)


def shifted(groups: int, sites: int, generator: torch.Generator) -> Tensor:
    """(replicates, sites) uniforms: in a group those of a site are equal steps apart."""
    each = REPLICATES // groups
    first = torch.rand(groups, 1, sites, generator=generator, dtype=torch.float64)
    steps = torch.rand(groups, each, sites, generator=generator).argsort(1).double() / each
    return ((first + steps) % 1.0).flatten(0, 1)


def run_lattices(case: Case, keep: int, runs: int) -> None:
    wide = 0.0
    for each in (1, 2, 4, 8, 16):
        groups, found = REPLICATES // each, list[tuple[float, float]]()
        for seed in range(runs):
            scores = scores_of(case.model, rg.Randomized.default(keep=2).proposal, seed)
            numbers = shifted(
                groups, scores.shape[:-1].numel(), torch.Generator().manual_seed(seed)
            )
            logs: list[Tensor] = []
            for uniforms in numbers:
                selection = Along(keep, torch.neg, uniforms)
                estimator = rg.Randomized(Given(scores), selection, defensive=0.1)
                logs.append(rg.infer(case.model, estimator=estimator).log_partition - case.exact)
            means = torch.stack(logs).double().exp().reshape(groups, each).mean(1)
            shown = float(means.var() / groups) if groups > 1 else math.nan
            found.append((float(means.mean().log()) ** 2, shown))
        error, shown = (sum(part) / runs for part in zip(*found, strict=True))
        # Two-sided 95% points of Student's t with 15, 7, 3 and 1 degrees of freedom.
        point = {16: 2.131, 8: 2.365, 4: 3.182, 2: 12.706}.get(groups, math.nan)
        wide = wide or point * math.sqrt(shown)
        print(
            f"  {keep:5d} kept, groups of {each:2d}: {error:10.2e} shown {shown:10.2e} "
            f"half-width {point * math.sqrt(shown) / wide:6.2f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--lattices", action="store_true")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    for name in chosen.models:
        case = MODELS[name]()
        print(name)
        states = int(case.direction.shape[0])
        for share in SHARES:
            keep = max(4, round(share * states))
            (run_lattices if chosen.lattices else run_orders)(case, keep, chosen.runs)


if __name__ == "__main__":
    main()
