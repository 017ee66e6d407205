"""Checks of proposals and selections: states chosen so that Z is unbiased."""

import itertools
import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from rdpgraph._core.arguments import typed
from rdpgraph._core.numbers import ROUNDING
from rdpgraph._core.types import broadcasts
from rdpgraph.estimate.estimator import Setting
from rdpgraph.estimate.proposals import Proposal, Scores
from rdpgraph.estimate.randomized import Randomized
from rdpgraph.estimate.selections import Inversion, Selection, Threshold, Top
from rdpgraph.infer import infer
from rdpgraph.interface.sites import Sites
from rdpgraph.interface.structure import Structure
from rdpgraph.model.factor import Factor, FactorBlock
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.potentials.lowrank import Bilinear
from rdpgraph.model.potentials.table import Table
from rdpgraph.model.restriction import Support
from rdpgraph.model.variable import VariableArray
from rdpgraph.structures.chain.model import Chain
from rdpgraph.testing.enumeration import agree, agree_on_average, close, seeded

LAST = 1.0 - 2.0**-53
"""Largest number of a uniform draw."""


def outcomes(selection: Inversion, log_q: Tensor) -> list[tuple[float, Support]]:
    """[(probability, support)] over all uniform numbers that decide what is kept of one row.

    Number j affects only entries decided by it and later ones, monotonically, so that bisection
    finds all points at which the outcome changes.
    """
    count = selection.num_uniforms(log_q.shape[-1])
    listed: list[tuple[float, Support]] = []

    def chosen(numbers: list[float]) -> Support:
        rest = [0.5] * (count - len(numbers))
        return selection.choose(log_q, torch.tensor([*numbers, *rest], dtype=torch.float64))

    def key(numbers: list[float]) -> tuple[float, ...]:
        support = chosen(numbers)
        return (*support.states.tolist(), *support.log_weights.tolist())

    def changes(
        before: list[float], low: float, high: float, first: tuple[float, ...],
        last: tuple[float, ...],
    ) -> list[float]:  # fmt: skip
        if first == last:
            return []
        middle = (low + high) / 2
        if middle in (low, high):
            return [high]
        between = key([*before, middle])
        return changes(before, low, middle, first, between) + changes(
            before, middle, high, between, last
        )

    def walk(before: list[float], probability: float) -> None:
        if len(before) == count:
            listed.append((probability, chosen(before)))
            return
        points = changes(before, 0.0, LAST, key([*before, 0.0]), key([*before, LAST]))
        for low, high in itertools.pairwise([0.0, *points, 1.0]):
            walk([*before, (low + high) / 2], probability * (high - low))

    walk([], 1.0)
    merged: dict[tuple[tuple[int, float], ...], tuple[float, Support]] = {}
    for chance, support in listed:
        # The order of entries does not matter.
        alike = tuple(
            sorted(zip(support.states.tolist(), support.log_weights.tolist(), strict=True))
        )
        before, _ = merged.get(alike, (0.0, support))
        merged[alike] = (before + chance, support)
    return list(merged.values())


@dataclass(eq=False)
class Recorder(Selection):
    """A selection that keeps the best state, and records the scores of an estimate in `seen`.

    A run that a proposal makes for itself, as `Pilot`, asks by `select`, and is not recorded.
    """

    seen: list[Tensor] = field(default_factory=list[Tensor])

    def select(self, log_q: Tensor, generator: torch.Generator | None) -> Support:
        return Top(1).select(log_q, generator)

    def select_each(self, log_q: Tensor, count: int, generator: torch.Generator | None) -> Support:
        self.seen.append(log_q)
        return super().select_each(log_q, count, generator)


@dataclass(eq=False)
class Script(Selection):
    """A selection that gives replicates supports in order; see `Recorder` for other runs."""

    supports: list[Support]

    def select(self, log_q: Tensor, generator: torch.Generator | None) -> Support:
        return Top(1).select(log_q, generator)

    def select_each(self, log_q: Tensor, count: int, generator: torch.Generator | None) -> Support:
        given, self.supports = self.supports[:count], self.supports[count:]
        return Support.joined([one.map(lambda part: part.unsqueeze(0)) for one in given], 0)


def expectation(
    model: FactorGraph | Structure,
    proposal: Proposal,
    selection: Inversion,
    *,
    defensive: float = 0.1,
) -> tuple[Tensor, int]:
    """Log E[Z^] over the joint outcomes, each run as a replicate, and their number."""
    recorder = Recorder()
    estimator = Randomized(proposal, recorder, defensive=defensive)
    infer(model, estimator=estimator, generator=seeded(3))
    (log_q,) = recorder.seen
    # All joint outcomes of the sites, each of which becomes a replicate with its probability.
    rows = [outcomes(selection, row) for row in log_q.flatten(0, -2)]
    joint = list(itertools.product(*rows))

    def stacked(row: tuple[tuple[float, Support], ...], part: str) -> Tensor:
        parts = [getattr(support, part) for _, support in row]
        return torch.stack(parts).reshape(*log_q.shape[:-1], -1)

    supports = [Support(stacked(row, "states"), stacked(row, "log_weights")) for row in joint]
    chances = torch.tensor(
        [math.prod(chance for chance, _ in row) for row in joint], dtype=torch.float64
    )
    estimator = Randomized(proposal, Script(supports), replicates=len(joint), defensive=defensive)
    posterior: Any = infer(model, estimator=estimator, generator=seeded(3))
    agree(posterior.log_partitions.shape == (len(joint),), "each replicate has an estimate of Z")
    return (chances.log() + posterior.log_partitions).logsumexp(0), len(joint)


_MOST_UNIFORMS = 2  # that are enumerated on a grid
_DRAWS = 1 << 16  # of those with more


@typed(states="[1, inf)")
def check_selection(selection: Selection, *, states: int = 6) -> None:
    """Check a selection: valid states, and weights that are one on average.

    States of -inf are never kept, a generator of one seed gives one choice, and every state's
    expected weight, zero where it is not kept, is one, for each row of scores independently of the
    others. An `Inversion` of one or two numbers is enumerated exactly; any other selection draws
    65,536 times. A selection whose `bound` is ``"lower"`` must instead keep no state twice, and
    none with a weight above one.

    Args:
        selection: keeps fewer than ``states``, or else there is little to check.
        states: of the rows of scores.

    Raises:
        AssertionError: a property that does not hold.

    Example:
        >>> from rdpgraph.randomized import TopTail
        >>> check_selection(TopTail(1, 2))
    """
    name = type(selection).__name__
    rows = _score_rows(states)
    # Form, and that a seed decides all.
    chosen = selection.select(rows, seeded(1))
    again = selection.select(rows, seeded(1))
    agree(chosen.states.shape[:-1] == rows.shape[:-1], f"{name} keeps states for every row")
    agree(chosen.states.dtype == torch.long, f"the states of {name} are int64")
    agree(
        chosen.log_weights.dtype == rows.dtype, f"the log-weights of {name} have the scores' type"
    )
    same = torch.equal(chosen.states, again.states)
    same = same and torch.equal(chosen.log_weights, again.log_weights)
    agree(same, f"{name} chooses the same with a generator of the same seed")
    # Hard zeros: with fewer and fewer possible states, none at the end.
    for possible in range(states + 1):
        hard = rows.clone()
        hard[..., possible:] = -math.inf
        _check_support(name, selection.select(hard, seeded(2)), hard)
    narrow = selection.select(rows.float(), seeded(1))
    agree(narrow.log_weights.dtype == torch.float32, f"{name} of float32 scores weighs in float32")
    # A lower bound weighs no state above one.
    if selection.bound == "lower":
        worth = torch.zeros(*chosen.states.shape[:-1], states, dtype=torch.float64)
        worth = worth.scatter_add(-1, chosen.states, _weights(chosen))
        agree(bool((worth <= 1.0 + ROUNDING).all()), f"{name} keeps no state of weight above one")
        return
    # Otherwise expected weights are one: exactly, over all outcomes of the uniform numbers, or by
    # many draws.
    if isinstance(selection, Inversion):
        _check_rows(name, selection, rows)
        if selection.num_uniforms(states) <= _MOST_UNIFORMS:
            for row in (*rows, torch.where(rows[0] == rows[0].amax(), -math.inf, rows[0])):
                worth = torch.zeros_like(row)
                for chance, support in outcomes(selection, row):
                    worth = worth.index_add(0, support.states, chance * _weights(support))
                what = f"the expected weight of each state kept by {name}"
                close(worth, (row > -math.inf).to(row), what)
            return
    for row in rows:
        _check_means(name, selection, row)


@typed()
def check_proposal(proposal: Proposal) -> None:
    """Check a proposal on small models of each kind: scores that keep Z unbiased.

    Scores are numbers below +inf in the shape of the sites, without gradient; no state that has a
    probability has -inf; where the scores do not depend on the generator, the items of a batch have
    those that each has alone; and the expectation of Z, over all draws from the scores, is Z.

    Args:
        proposal: one that works on graphs and on structures.

    Raises:
        AssertionError: a property that does not hold.

    Example:
        >>> from rdpgraph.randomized import Local
        >>> check_proposal(Local())
    """
    name = type(proposal).__name__
    for what, model in _models().items():
        # Scores of every model: no gradient, and no possible state left out.
        seen = _scores(proposal, model)
        marginals = _marginals(model)
        for _, scores in seen:
            agree(not scores.requires_grad, f"the scores of {name} have no gradient ({what})")
            missed = (scores == -math.inf) & (marginals > 0)
            agree(not bool(missed.any()), f"{name} gives each possible state a score ({what})")
    # A batch against its items, where another seed gives the same scores.
    graph = _loop(2)
    again = _scores(proposal, graph, seed=1)
    both = zip(_scores(proposal, graph), again, strict=True)
    if all(torch.equal(one, other) for (_, one), (_, other) in both):
        for item in range(2):
            alone = _scores(proposal, _loop(2, item=item))
            for (_, of_batch), (sites, scores) in zip(again, alone, strict=True):
                expected = of_batch.expand(2, *sites.unary.shape)[item]
                got = scores.expand(sites.unary.shape)
                close(got, expected, f"{name}'s scores of one batch item")
    for what in ("loop", "chain"):
        model = _models()[what]
        estimate = expectation(model, proposal, Threshold(2), defensive=0.0)[0]
        close(estimate, infer(model).log_partition, f"the expectation of Z with {name} ({what})")


@dataclass(frozen=True)
class _Spy(Proposal):
    """A wrapper of a proposal that checks and records its scores."""

    inner: Proposal
    seen: list[tuple[Sites, Tensor]]

    def scores_of(self, setting: Setting) -> Scores:
        every, name = self.inner.scores_of(setting), type(self.inner).__name__
        for sites, scores in zip(setting.groups, every, strict=True):
            shape, unary = tuple(scores.shape), tuple(sites.unary.shape)
            agree(broadcasts(shape, unary), f"{name}'s scores {shape} broadcast to {unary}")
            agree(bool((scores < math.inf).all()), f"{name}'s scores are below +inf and not NaN")
            self.seen.append((sites, scores))
        return every


def _scores(
    proposal: Proposal, model: FactorGraph | Structure, *, seed: int = 0
) -> list[tuple[Sites, Tensor]]:
    spy = _Spy(proposal, [])
    estimator = Randomized(spy, Threshold(2), defensive=0.0)
    infer(model, estimator=estimator, generator=seeded(seed))
    return spy.seen


def _score_rows(states: int) -> Tensor:
    """(rows, states): flat, mild and steep."""
    mild = torch.randn(2, states, generator=seeded(0), dtype=torch.float64)
    return torch.stack([torch.zeros(states, dtype=torch.float64), mild[0], 3 * mild[1] - 20])


def _weights(support: Support) -> Tensor:
    return support.log_weights.double().exp()


def _check_support(name: str, support: Support, log_q: Tensor) -> None:
    states, weights = support.states, support.log_weights
    agree(bool((weights < math.inf).all()), f"the log-weights of {name} are below +inf, not NaN")
    inside = (states >= 0) & (states < log_q.shape[-1])
    agree(bool(inside.all()), f"the states kept by {name} are those of the variable")
    alive = weights > -math.inf
    scores = log_q.gather(-1, states)
    agree(not bool((alive & (scores == -math.inf)).any()), f"{name} keeps no state of score -inf")
    some = (log_q > -math.inf).any(-1)
    agree(torch.equal(alive.any(-1), some), f"{name} keeps a state where one is possible")


def _check_rows(name: str, selection: Inversion, rows: Tensor) -> None:
    shape = (len(rows), selection.num_uniforms(rows.shape[-1]))
    numbers = torch.rand(shape, generator=seeded(0), dtype=torch.float64)
    together = selection.choose(rows, numbers)
    for row, alone in enumerate(map(selection.choose, rows, numbers)):
        agree(torch.equal(alone.states, together.states[row]), f"{name} chooses each row by itself")
        expected = together.log_weights[row]
        close(alone.log_weights, expected, f"{name}'s log-weights of a row by itself")


def _check_means(name: str, selection: Selection, row: Tensor) -> None:
    """Check the mean weight of each state, and of pairs of states of two rows chosen together."""
    chosen = selection.select(row.expand(_DRAWS, 2, -1), seeded(0))
    worth = torch.zeros(_DRAWS, 2, len(row), dtype=torch.float64)
    worth = worth.scatter_add(-1, chosen.states, _weights(chosen))
    pairs = worth[:, 0, :, None] * worth[:, 1, None, :]
    for values, what in (
        (worth.flatten(0, 1), f"the mean weight of each state kept by {name} is one"),
        (pairs.flatten(1), f"{name} chooses the states of two rows independently"),
    ):
        agree_on_average(values, what)


def _models() -> dict[str, FactorGraph | Structure]:
    """Return small models of every kind, whose variables have four states each."""
    xs = VariableArray("x", (3,), 4)
    near = Bilinear(_drawn(4, 2, seed=1), _drawn(4, 2, seed=2))
    embedded = [FactorBlock((xs,), Table(2 * _drawn(3, 4))), FactorBlock((xs[:-1], xs[1:]), near)]
    hard = torch.tensor([0.0, -math.inf, 0.0, 0.0], dtype=torch.float64)
    return {
        "loop": _loop(),
        "batch": _loop(2),
        "embeddings": FactorGraph(embedded),
        "hard zeros": _loop().with_factors(Factor((xs[1],), Table(hard))),
        "chain": Chain(2 * _drawn(3, 4), _drawn(4, 4, seed=1)),
    }


def _loop(*batch: int, item: int | None = None) -> FactorGraph:
    """Three variables in a ring; the unary tables may have batch dims, or be one item of them."""
    xs = VariableArray("x", (3,), 4)
    unary = 2 * _drawn(*batch, 3, 4)
    alone = FactorBlock((xs,), Table(unary if item is None else unary[item]))
    joined = FactorBlock((xs, xs[[1, 2, 0]]), Table(_drawn(3, 4, 4, seed=1)))
    return FactorGraph([alone, joined])


def _marginals(model: FactorGraph | Structure) -> Tensor:
    """(*batch, sites, states), exact."""
    answer: Any = infer(model)
    if isinstance(model, FactorGraph):
        return answer.marginal(model.variables[0])
    return answer.marginals()


def _drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)
