"""Bounds of log Z and of modes by every route, with too little time, against enumeration."""

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

import rdpgraph as rg
from rdpgraph.plan import clock
from rdpgraph.testing import brute_force
from tests.fuzz import compare
from tests.fuzz.compare import approximate_seconds, holds
from tests.logical import LOGICAL, count_between

Rng = np.random.Generator


def case(rng: Rng) -> int:
    """One model by a route whose budget is too small, or one with very low scores."""
    if rng.random() < 0.3:
        return of_low_scores(rng)
    with approximate_seconds(0.1):
        return of_any_model(rng)


def of_low_scores(rng: Rng) -> int:
    """A model in which scores of -1e9 to -1e300 stand for absence beside ordinary ones.

    It lies between the bounds of mini-buckets, near their estimate, below that of messages.
    """
    count, states, arity = (int(rng.integers(*ends)) for ends in ((4, 9), (2, 4), (2, 4)))
    low = -(10.0 ** float(rng.choice([9, 10, 12, 17, 30, 100, 300])))
    spread, share = 10 ** rng.uniform(-1, 2), rng.uniform(0, 0.4)
    variables = [rg.Variable(f"x{number}", states) for number in range(count)]
    scopes = [rng.permutation(count)[:arity] for _ in range(int(rng.integers(count, 3 * count)))]
    scopes += [np.array([number]) for number in range(count)]
    scores, factors = np.zeros((states,) * count), list[rg.Factor]()
    for scope in map(np.sort, scopes):
        shape = (states,) * len(scope)
        values = rng.normal(size=shape) * spread
        values = np.where(rng.random(shape) < share, low, values)
        scores += values.reshape([states if v in scope else 1 for v in range(count)])
        table = rg.Table(torch.from_numpy(values))
        factors.append(rg.Factor([variables[v] for v in scope], table))
    graph, log_z = rg.FactorGraph(factors), float(compare.log_sum(scores.reshape(1, -1))[0])
    slack = 1e-6 * (1 + abs(log_z))
    small = rg.MiniBuckets(memory=float(10 ** rng.uniform(2, 4)), seconds=0.01)
    posterior = rg.infer(graph, scheduler=small)
    bounds = posterior.bounds()
    holds(f"a lower bound {bounds.lower} of {log_z}", float(bounds.lower) <= log_z + slack)
    holds(f"an upper bound {bounds.upper} of {log_z}", float(bounds.upper) >= log_z - slack)
    if posterior.status.converged:
        reach = max(0.5, 10 * float(posterior.standard_error)) + slack
        off = abs(float(posterior.log_partition) - log_z)
        holds(f"an estimate {posterior.log_partition} of {log_z}", off < reach)
    counted = float(rg.infer(graph, scheduler=rg.Counting(seconds=20.0)).log_partition)
    holds(f"a count {counted} of {log_z}", abs(counted - log_z) < slack)
    messages = rg.Loopy(counting=rg.loopy.TreeReweighted(), sweeps=50, damping=0.3)
    found = rg.infer(graph, scheduler=messages)
    if found.status.bound == "upper":
        above = float(found.log_partition) >= log_z - 1e-2 * (1 + abs(log_z))
        holds(f"an upper bound {found.log_partition} of {log_z}", above)
    return 1


# Bounds of every route.


def _logs(rng: Rng, how: dict[str, float], *shape: int) -> np.ndarray:
    """Log-values of one scale, rounded to few values at times, so that there are ties."""
    values = how["scale"] * np.asarray(rng.normal(size=shape)) + how["shift"] * rng.normal()
    if how["ties"]:
        values = how["scale"] * np.where(values > 0, 1.0, -1.0)
    if how["zeros"]:
        values = np.where(rng.random(shape) < how["zeros"], -np.inf, values)
    return np.asarray(values)


def model(rng: Rng) -> rg.FactorGraph:
    """A grid, pairs, triples or logical factors, at times with batches, evidence and zeros."""
    kind = str(rng.choice(["grid", "pairs", "triples", "logical", "mixed"]))
    how = {
        "scale": float(rng.choice([0.1, 1.0, 3.0, 30.0, 1e5])),
        "shift": float(rng.choice([0.0, 0.0, 10.0, 1e6])),
        "ties": float(rng.random() < 0.2),
        "zeros": float(rng.choice([0.0, 0.0, 0.1, 0.3])),
    }
    dtype = torch.float32 if rng.random() < 0.3 else torch.float64
    batch = [(), (), (1,), (3,), (2, 2)][int(rng.integers(5))]

    def table(*shape: int, soft: bool = False, rows: int = 0) -> rg.Table:
        lead = batch if rng.random() < 0.5 else ()
        own = {**how, "zeros": 0.0} if soft else how
        lead += (1,) * rows if lead else ()
        return rg.Table.from_logs(torch.from_numpy(_logs(rng, own, *lead, *shape)).to(dtype))

    factors: list[Any] = []
    if kind == "grid":
        rows, columns, states = int(rng.integers(2, 4)), int(rng.integers(2, 5)), 2
        x = rg.VariableArray("x", (rows, columns), states)
        singles = [x[i, j] for i in range(rows) for j in range(columns)]
        factors.append(rg.FactorBlock((x,), table(rows, columns, states, soft=True)))
        factors.append(rg.FactorBlock((x[1:], x[:-1]), table(rows - 1, columns, states, states)))
        factors.append(rg.FactorBlock((x[:, 1:], x[:, :-1]), table(states, states, rows=2)))
    else:
        count, most = int(rng.integers(3, 8)), 3 if kind == "mixed" else 2
        if kind == "logical":
            sizes = [2] * count
        else:
            sizes = rng.integers(1 if kind == "mixed" else 2, most + 2, count).tolist()
        singles = [rg.Variable(f"v{n}", int(size)) for n, size in enumerate(sizes)]
        arities = {"pairs": [1, 2, 2, 2], "triples": [1, 3], "logical": [1, 2]}.get(
            kind, [0, 1, 2, 2, 3, 4]
        )
        for _ in range(int(rng.integers(1, 3 * count))):
            scope = [singles[n] for n in rng.permutation(count)[: int(rng.choice(arities))]]
            shape = tuple(one.size for one in scope)
            factors.append(rg.Factor(scope, table(*shape, soft=len(scope) < 2)))
    binary = [one for one in singles if one.size == 2]
    if kind == "logical" or (rng.random() < 0.2 and len(binary) > 1):
        for _ in range(int(rng.integers(1, 4))):
            arity = int(rng.integers(2, len(binary) + 1))
            scope = [binary[n] for n in rng.permutation(len(binary))[:arity]]
            kinds = [*LOGICAL.values(), count_between(int(rng.integers(0, arity)))]
            made = kinds[int(rng.integers(len(kinds)))].make(arity, dtype=dtype)
            factors.append(rg.Factor(scope, made))
    graph = rg.FactorGraph(factors, variables=[] if kind == "grid" else singles)
    if rng.random() < 0.3:
        lead = graph.batch_shape or ((3,) if rng.random() < 0.5 else ())
        seen = {
            one: torch.from_numpy(
                np.where(rng.random((*lead,)) < 0.5, -1, rng.integers(one.size, size=lead))
            )
            for one in singles
            if rng.random() < 0.3
        }
        graph = graph.condition(seen) if seen else graph
    return graph


def scheduler(rng: Rng) -> Any:
    """A scheduler whose budget is too small for exact inference of most models."""
    memory, seconds = float(10 ** rng.uniform(1.5, 3)), float(10 ** rng.uniform(-5, -1))
    damping = [None, 0.0, 0.5][int(rng.integers(3))]
    counting = [rg.loopy.Bethe(), rg.loopy.TreeReweighted()][int(rng.integers(2))]
    sweeps, temperature = int(rng.choice([1, 5, 100])), float(rng.choice([1.0, 1.0, 0.5, 0.0]))
    kinds: list[tuple[float, Callable[[], Any]]] = [
        (0.25, lambda: rg.Auto(memory=memory)),
        (0.3, lambda: rg.Auto(memory=memory, seconds=seconds)),
        (0.15, lambda: rg.Loopy(
            sweeps=sweeps, damping=damping, counting=counting, temperature=temperature,
            seconds=seconds if rng.random() < 0.5 else None,
        )),
        (0.05, lambda: rg.JoinGraph(memory=memory, seconds=seconds)),
        (0.15, lambda: rg.Search(seconds=seconds, memory=memory)),
        (0.1, lambda: rg.MiniBuckets(seconds=seconds, memory=memory, draws=50)),
    ]  # fmt: skip
    return kinds[int(rng.choice(len(kinds), p=[share for share, _ in kinds]))][1]()


def of_any_model(rng: Rng) -> int:
    """Bounds are finite and hold, and what is called optimal or exact is."""
    graph, by = model(rng), scheduler(rng)
    truth = brute_force(graph.to(torch.float64))
    best, log_z = truth.maximum.double(), truth.log_partition.double()
    if isinstance(by, rg.Loopy) and by.temperature != 1.0:
        t, scores = by.temperature, truth.scores
        log_z = t * (scores / t).logsumexp(0).reshape(best.shape) if t else best
    finite = torch.where(truth.scores.isfinite(), truth.scores, 0.0).abs()
    # Sums of the enumeration itself, of scores that may cancel in them.
    size = float(finite.max()) + 1.0 if finite.numel() else 1.0
    size = max(size, _magnitude(graph))
    asked = ["bounds", "mode_bound", "log_partition", "mode_is_optimal", "status"]
    rng.shuffle(asked)
    with warnings.catch_warnings(action="ignore"), clock.counted(clock.Counter()):
        try:
            posterior = rg.infer(graph, scheduler=by)
        except rg.errors.BudgetError:
            raise compare.Skipped("no time for a plan") from None
        said = f"{by} [{posterior.plan.route}]"
        for name in asked:
            try:
                _checked(name, graph, posterior, (best, log_z), size, said)
            except rg.errors.ImpossibleEvidenceError:
                holds(f"{name} by {said} says that nothing is possible of {best}",
                      bool((best == -math.inf).any()))  # fmt: skip
            except (rg.errors.BudgetError, rg.errors.UnsupportedError):
                continue
    return math.prod(graph.batch_shape)


def _magnitude(graph: rg.FactorGraph) -> float:
    """The sum of the largest magnitudes of all factors, which rounding is relative to."""
    total = 1.0
    for factor in graph.factors():
        table = getattr(factor.potential, "log_values", torch.zeros(()))
        finite = table[table.isfinite()].double()
        total += float(finite.abs().max()) if finite.numel() else 0.0
    return total


def _checked(
    name: str, graph: rg.FactorGraph, posterior: rg.Posterior, truth: tuple[Tensor, Tensor],
    size: float, said: str,
) -> None:  # fmt: skip
    """Compare an answer with the best score and log Z; ``size`` is what rounding is relative to."""
    best, log_z = truth
    certain = 1e-12 * size
    rounding = (2e-5 if graph.dtype == torch.float32 else 1e-6) * size
    if name == "bounds":
        lower, upper = posterior.bounds()
        known = f"bounds {lower.tolist()}, {upper.tolist()} of {log_z.tolist()} by {said}"
        slack = torch.where(lower < upper, certain, rounding)
        holds(known, bool(((lower <= log_z + slack) & (upper >= log_z - slack)).all()))
        holds(f"no finite upper end: {known}", bool((upper < math.inf).all()))
        holds(f"NaN: {known}", not bool((lower.isnan() | upper.isnan()).any()))
        soft = not bool((torch.as_tensor(brute_force(graph).scores) == -math.inf).any())
        holds(f"no finite lower end: {known}", bool((lower > -math.inf).all()) or not soft)
    elif name == "mode_bound":
        bound = posterior.mode_bound()
        known = f"a bound {bound.tolist()} of {best.tolist()} by {said}"
        # An exact mode's score bounds all others up to the rounding of the model's type.
        slack = rounding if posterior.status_of("mode").exact else certain
        holds(known, bool((bound >= best - slack).all()))
        holds(f"not finite: {known}", bool((bound < math.inf).all()))
    elif name == "mode_is_optimal":
        proved = posterior.mode_is_optimal()
        score = graph.to(torch.float64).score(posterior.mode()).double()
        known = f"a mode {score.tolist()} proved {proved.tolist()} of {best.tolist()} by {said}"
        # Sums in float64 prove up to their own rounding, those of float32 up to theirs.
        tight = rounding if graph.dtype == torch.float32 else 2e-9 * best.abs() + 1e-11 * size
        holds(known, bool((~proved | (score >= best - tight)).all()))
        bound = posterior.mode_bound()
        met = bool((~proved | (bound <= score + 2 * rounding)).all())
        holds(f"{known}, bound {bound.tolist()}", met)
    elif name == "log_partition":
        value = posterior.log_partition.double()
        kind, exact = posterior.status.bound, posterior.status_of("log_partition").exact
        known = f"log Z {value.tolist()} ({kind}, {exact}) of {log_z.tolist()} by {said}"
        near = (value - log_z).abs() <= rounding
        holds(known, not exact or bool((near | (value == log_z)).all()))
    else:
        exact = posterior.status.exact
        value = posterior.log_partition.double()
        near = ((value - log_z).abs() <= rounding) | (value == log_z)
        holds(f"status exact of {value.tolist()}, {log_z.tolist()} by {said}",
              not exact or bool(near.all()))  # fmt: skip
