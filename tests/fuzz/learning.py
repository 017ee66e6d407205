"""Steps of EM of random networks, hidden Markov models and grammars, against enumeration."""

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch

import rdpgraph as rg
from rdpgraph.learn import EM, Probabilities
from tests.fuzz.compare import Array, close, holds

Uses = Iterable[tuple[str, tuple[int, ...]]]
"""Entries of tables, by name and place: the probability of a configuration is their product."""


def case(rng: np.random.Generator) -> int:
    """One model and its rows; how many rows."""
    if rng.random() < 0.25:
        return _dynamic(rng)
    if rng.random() < 0.25:
        return _driven(rng)
    make = [_network, _hidden, _grammar][int(rng.integers(3))]
    shapes, model, rows, configurations = make(rng)
    tables = {name: _table(rng, shape) for name, shape in shapes.items()}
    weights = rng.integers(1, 4, len(rows)).astype(float)
    counts = {name: np.zeros_like(own) for name, own in tables.items()}
    likelihood = 0.0
    for row, weight in zip(rows.tolist(), weights, strict=True):
        found = defaultdict(float)
        for uses in configurations(row):
            key = tuple(uses)
            found[key] += math.prod(float(tables[name][place]) for name, place in key)
        total = sum(found.values())
        if not total:
            return 0  # no configuration explains the row
        likelihood += weight * math.log(total)
        for key, p in found.items():
            for name, place in key:
                counts[name][place] += weight * p / total
    prior = float(rng.choice([0.0, 0.5]))
    with np.errstate(divide="ignore"):
        begun: Any = {
            name: Probabilities(torch.tensor(np.log(own)), prior=prior)
            for name, own in tables.items()
        }
    em = EM(model, begun, limit=4, tolerance=0.0, batch_size=int(rng.integers(1, 9)))
    if not all((counts[name] + prior * own).any() for name, own in tables.items()):
        try:
            em.fit(rows, weights)
        except rg.errors.ModelError as error:
            holds(f"{error} tells of lost mass", "lost all mass" in str(error))
            return len(rows)
        raise AssertionError("a table without mass was fitted")
    one = EM(model, begun, limit=1, batch_size=int(rng.integers(1, 9))).fit(rows, weights)
    log_prior = sum(prior * float(np.log(own[own > 0]).sum()) for own in tables.values())
    close("the log-likelihood", np.array(one.history[0]), np.array(likelihood + log_prior), 1e-8)
    for name, own in tables.items():
        pseudo = np.where(own > 0, counts[name] + prior, 0.0)
        sums = pseudo.sum(-1, keepdims=True)
        wanted = np.where(sums > 0, pseudo / np.where(sums > 0, sums, 1.0), own)
        close(f"a step of {name}", one.parameters[name].value(rows).exp(), wanted, 1e-8)
    history = em.fit(rows, weights).history
    rises = all(b >= a - 1e-8 * (1 + abs(a)) for a, b in itertools.pairwise(history))
    holds(f"the history {history} never falls", rises)
    return len(rows)


def _dynamic(rng: np.random.Generator) -> int:
    """Two slices, repeated: series against sums over all configurations, by loops."""
    names = [f"v{place}" for place in range(int(rng.integers(1, 4)))]
    sizes = {name: int(rng.integers(1, 4)) for name in names}
    pairs = list(itertools.product(names, names))
    within = [(a, b) for a, b in pairs if a < b and rng.random() < 0.5]
    between = [pair for pair in pairs if rng.random() < 0.4]
    before = {name: [a for a, b in between if b == name] for name in names}
    above = {name: [a for a, b in within if b == name] for name in names}
    lengths = [int(rng.integers(0, 4)) for _ in range(int(rng.integers(1, 4)))]
    while math.prod(sizes.values()) ** max(lengths) > 3000:
        lengths = [length - (length == max(lengths)) for length in lengths]
    if not sum(lengths):
        return 0

    def shape(name: str, *, first: bool) -> tuple[int, ...]:
        return tuple(sizes[n] for n in [*([] if first else before[name]), *above[name], name])

    tables = {name: _table(rng, shape(name, first=False)) for name in names}
    first = {name: _table(rng, shape(name, first=True)) for name in names if before[name]}
    hidden = {name for name in names if rng.random() < 0.3}
    seen = {
        name: [
            None if rng.random() < 0.3 else int(rng.integers(sizes[name]))
            for _ in range(sum(lengths))
        ]
        for name in names
        if name not in hidden or len(hidden) == len(names)
    }
    model = rg.learn.DynamicBayesianNetwork(
        within, between, states=sizes, tables=tables, first=first
    )
    began, total = 0, model.log_likelihood(seen, lengths).numpy()
    chances = np.full((sum(lengths), sum(sizes.values())), np.nan)
    best = np.full(len(lengths), -np.inf)
    alive = True
    for number, length in enumerate(lengths):
        grid = [list(itertools.product(*(range(sizes[name]) for name in names)))] * length
        mass, uses = 0.0, np.zeros((length, chances.shape[1]))
        for path in itertools.product(*grid):
            p = 1.0
            for step, states in enumerate(path):
                now = dict(zip(names, states, strict=True))
                then = dict(zip(names, path[step - 1], strict=True)) if step else {}
                for name in names:
                    table = tables[name] if step or not before[name] else first[name]
                    parents = [then[n] for n in (before[name] if step else ())]
                    parents += [now[n] for n in above[name]]
                    shown = seen[name][began + step] if name in seen else None
                    p *= float(table[(*parents, now[name])]) if shown in (None, now[name]) else 0.0
            mass, best[number] = mass + p, max(best[number], math.log(p) if p else -math.inf)
            for step, states in enumerate(path):
                offset = 0
                for name, state in zip(names, states, strict=True):
                    uses[step, offset + state] += p
                    offset += sizes[name]
        alive = alive and mass > 0
        wanted = np.array(math.log(mass) if mass else -math.inf)
        close("log-likelihood", np.array(total[number]), wanted, 1e-9)
        chances[began : began + length] = uses / mass if mass else np.nan
        began += length
    if alive:
        close("smoothing", model.smooth(seen, lengths)[names].to_numpy(), chances, 1e-9)
        decoded = model.decode(seen, lengths)
        codes = {name: decoded[name].cat.codes.tolist() for name in names}
        close("decoding", model.log_likelihood(codes, lengths), best, 1e-9)
    return len(lengths)


class _Scores(torch.nn.Module):
    """Scores that are linear in the last covariate, [from, to] or of each state."""

    def __init__(self, rng: np.random.Generator, *shape: int) -> None:
        super().__init__()
        self.slope = torch.nn.Parameter(torch.tensor(rng.normal(size=shape)))
        self.bias = torch.nn.Parameter(torch.tensor(rng.normal(size=shape)))

    def forward(self, covariates: torch.Tensor) -> torch.Tensor:
        each = covariates[:, -1].reshape(-1, *[1] * self.slope.ndim)
        return each * self.slope + self.bias


class _Numbers(_Scores):
    """Log-likelihoods (rows, states) of a number whose mean depends on the last covariate."""

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        observed, covariates = inputs
        return torch.distributions.Normal(super().forward(covariates), 1.0).log_prob(observed)


def _driven(rng: np.random.Generator) -> int:
    """A hidden Markov model driven by covariates: its series against sums over all paths."""
    states = int(rng.integers(1, 4))
    lengths = [int(rng.integers(0, 5)) for _ in range(int(rng.integers(1, 4)))]
    if not sum(lengths):
        return 0
    X = rng.normal(size=(sum(lengths), 3))
    X[rng.random(len(X)) < 0.2, 0] = np.nan
    # Elapsed times, of which some are the same and some are none.
    X[:, 1] = rng.choice([0.0, 0.5, float(rng.exponential())], len(X))
    if rng.random() < 0.5:
        square = (states, states)
        allowed = rng.random(square) < 0.7
        rates = rng.exponential(size=square) * allowed * (1 - np.eye(states))
        transition = rg.learn.Rates(states, allowed=torch.tensor(allowed)).double()
        with torch.no_grad():
            listed = rates[allowed & ~np.eye(states, dtype=bool)]
            transition.log_rates.copy_(torch.tensor(np.log(listed)))
        moves = rates - np.diag(rates.sum(1))
        tables = [_exponential(moves * float(time)) for time in X[:, 1]]
    else:
        transition = _Scores(rng, states, states)
        slope, bias = transition.slope.detach().numpy(), transition.bias.detach().numpy()
        scores = np.exp(X[:, -1, None, None] * slope + bias)
        tables = [*(scores / scores.sum(-1, keepdims=True))]
    numbers = _Numbers(rng, states)
    slope, bias = numbers.slope.detach().numpy(), numbers.bias.detach().numpy()
    means = X[:, -1:] * slope + bias
    shown = np.exp(-((X[:, :1] - means) ** 2) / 2) / math.sqrt(2 * math.pi)
    shown = np.where(np.isnan(X[:, :1]), 1.0, shown)
    start = _table(rng, (states,))
    with np.errstate(divide="ignore"):
        begun = torch.tensor(np.log(start))
    model = rg.learn.HMM(
        states, rg.learn.Driven(numbers), transition=transition, covariates=[1, 2], start=begun,
        limit=0,
    )  # fmt: skip
    total, began, chances = 0.0, 0, np.zeros((len(X), states))
    for length in lengths:
        mass, uses = 0.0, np.zeros((length, states))
        for path in itertools.product(range(states), repeat=length):
            p = 1.0
            for step, state in enumerate(path):
                row = began + step
                p *= start[state] if not step else tables[row][path[step - 1], state]
                p *= shown[row, state]
            mass += p
            for step, state in enumerate(path):
                uses[step, state] += p
        if not mass:
            return 0  # no path explains the series
        total += math.log(mass)
        chances[began : began + length] = uses / mass
        began += length
    model.fit(X, lengths)
    close("log-likelihood", np.array(model.score(X, lengths)), np.array(total), 1e-8)
    close("smoothing", model.predict_proba(X, lengths).numpy(), chances, 1e-8)
    history = model.set_params(limit=3, tolerance=0.0).fit(X, lengths).fit_.history
    rises = all(b >= a - 1e-8 * (1 + abs(a)) for a, b in itertools.pairwise(history))
    holds(f"the history {history} of a driven model never falls", rises)
    return len(lengths)


def _exponential(matrix: Array) -> Array:
    """The exponential of a small matrix of rates, by its series after halvings."""
    term = total = np.eye(len(matrix))
    for power in range(1, 20):
        term = term @ matrix / (64 * power)
        total = total + term
    for _ in range(6):
        total = total @ total
    return total


def _table(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Rows that sum to one, some entries zero."""
    table = rng.random(shape) ** 2 + 0.01
    zeros = rng.random(shape) < 0.15
    zeros[..., int(rng.integers(shape[-1]))] = False
    table = np.where(zeros, 0.0, table)
    return table / table.sum(-1, keepdims=True)


Made = tuple[dict[str, tuple[int, ...]], Callable[..., Any], Any, Callable[[Any], Iterator[Uses]]]


def _gaps(rng: np.random.Generator, most: list[int], count: int) -> torch.Tensor:
    rows = np.stack([rng.integers(0, size, count) for size in most], 1)
    return torch.tensor(np.where(rng.random(rows.shape) < 0.3, -1, rows))


def _network(rng: np.random.Generator) -> Made:
    """A few variables in order, each with some of those before it as parents."""
    count = int(rng.integers(1, 5))
    sizes = rng.integers(1, 4, count).tolist()
    variables = [rg.Variable(f"x{i}", size) for i, size in enumerate(sizes)]
    parents = [[j for j in range(i) if rng.random() < 0.5] for i in range(count)]
    scopes = [(*own, i) for i, own in enumerate(parents)]
    hidden = rng.random(count) < 0.2
    rows = _gaps(rng, sizes, int(rng.integers(1, 6)))
    rows[:, torch.tensor(hidden)] = -1

    def model(values: Any, rows: Any) -> rg.FactorGraph:
        factors = [
            rg.Factor([variables[i] for i in scope], rg.Table.from_logs(values[f"x{scope[-1]}"]))
            for scope in scopes
        ]
        return rg.FactorGraph(factors).condition(
            {variable: rows[:, i] for i, variable in enumerate(variables)}
        )

    def configurations(row: list[int]) -> Iterator[Uses]:
        options = [range(s) if x < 0 else [x] for s, x in zip(sizes, row, strict=True)]
        for states in itertools.product(*options):
            yield [(f"x{scope[-1]}", tuple(states[i] for i in scope)) for scope in scopes]

    return {f"x{s[-1]}": tuple(sizes[i] for i in s) for s in scopes}, model, rows, configurations


def _hidden(rng: np.random.Generator) -> Made:
    """A hidden Markov model of symbols."""
    states, steps, symbols = (int(rng.integers(1, 4)) for _ in range(3))
    rows = _gaps(rng, [symbols] * steps, int(rng.integers(1, 6)))

    def model(values: Any, rows: Any) -> rg.Chain:
        return rg.Chain.hmm(values["start"], values["next"], values["shown"], rows)

    def configurations(row: list[int]) -> Iterator[Uses]:
        for path in itertools.product(range(states), repeat=steps):
            moves = [("next", pair) for pair in itertools.pairwise(path)]
            shown = [("shown", (s, x)) for s, x in zip(path, row, strict=True) if x >= 0]
            yield [("start", path[:1]), *moves, *shown]

    shapes = {"start": (states,), "next": (states, states), "shown": (states, symbols)}
    return shapes, model, rows, configurations


def _grammar(rng: np.random.Generator) -> Made:
    """A grammar whose binary rules and words are apart; symbol 0 is the sentence."""
    symbols, words, length = (int(rng.integers(1, 4)) for _ in range(3))
    rows = _gaps(rng, [words] * length, int(rng.integers(1, 4)))

    def model(values: Any, rows: Any) -> rg.Hypertree:
        place, count = torch.arange(length), len(rows)
        unary = torch.zeros(count, length, length, symbols, dtype=torch.float64)
        unary[:, 0, -1, 1:] = -torch.inf
        lexical = torch.cat([values["words"].T, torch.zeros(1, symbols, dtype=torch.float64)])
        at = torch.arange(count)[:, None], place, place
        unary = unary.index_put(at, lexical[rows], accumulate=True)
        rules = rg.trees.DenseRules(values["rules"].unflatten(1, (symbols, symbols)))
        return rg.Hypertree(unary, rules)

    def trees(symbol: int, first: int, last: int, row: list[int]) -> Iterator[tuple[Any, ...]]:
        if first == last:
            yield (("words", (symbol, row[first])),) if row[first] >= 0 else ()
        for middle in range(first, last):
            for rule in range(symbols**2):
                left, right = divmod(rule, symbols)
                for one in trees(left, first, middle, row):
                    for other in trees(right, middle + 1, last, row):
                        yield ("rules", (symbol, rule)), *one, *other

    def configurations(row: list[int]) -> Iterator[Uses]:
        return trees(0, 0, length - 1, row)

    shapes = {"rules": (symbols, symbols**2), "words": (symbols, words)}
    return shapes, model, rows, configurations
