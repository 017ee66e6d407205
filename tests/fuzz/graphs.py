"""Random factor graphs by every route that is exact, against enumeration."""

import math
import warnings
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import rdpgraph as rg
from tests.fuzz import compare
from tests.fuzz.compare import Array, close, holds
from tests.fuzz.drawn import Drawn, draw

MESSAGES = ("loopy", "tight", "join")


def case(rng: np.random.Generator) -> int:
    """One topology and its batch of models; how many these are."""
    drawn = draw(rng)
    graph = drawn.graph(rng, drawn.potentials())
    holds(
        f"batch_shape is {graph.batch_shape}, not {drawn.batch}", graph.batch_shape == drawn.batch
    )
    scores = drawn.scores()
    name, posterior = _route(rng, graph)
    truth = Truth(drawn, scores, name, graph.dtype)
    try:
        truth.check(rng, graph, posterior)
    except rg.errors.BudgetError:  # of a question that a budget of some bytes has no room for
        if name != "tight":
            raise
        raise compare.Skipped("tight: refused") from None
    if rng.random() < 0.3:
        _gradient(rng, drawn, graph, scores)
    if rng.random() < 0.3:
        _searched(graph, truth)
    if rng.random() < 0.3:
        _as_tables(rng, drawn, graph)
    _warned(rng)
    return math.prod(drawn.batch)


def _route(rng: np.random.Generator, graph: rg.FactorGraph) -> tuple[str, rg.Posterior]:
    generator = torch.Generator().manual_seed(int(rng.integers(2**31)))
    kind = str(rng.choice(
        ["auto", "contraction", "counting", "tight", "join", "loopy", "kept", "low rank"],
        p=[0.25, 0.2, 0.1, 0.1, 0.1, 0.1, 0.1, 0.05],
    ))  # fmt: skip
    scheduler: rg.extend.Scheduler | None = None
    estimator: rg.extend.Estimator | None = None
    if kind == "contraction":
        scheduler = rg.Contraction()
    elif kind == "counting":
        scheduler = rg.Counting(memory=1e9)
    elif kind == "tight":
        scheduler = rg.Auto(memory=float(10 ** rng.uniform(2, 6)), seconds=0.5)
    elif kind == "join":
        scheduler = rg.JoinGraph()
    elif kind == "loopy":
        scheduler = rg.Loopy(tolerance=1e-10)
    elif kind == "kept":
        estimator = rg.Randomized(
            rg.randomized.Uniform(), rg.randomized.Top(1.0), replicates=int(rng.integers(1, 3))
        )
    elif kind == "low rank":
        estimator = rg.LowRankFactors(features=None) if not _bilinear(graph) else None
    found = rg.infer(graph, estimator=estimator, scheduler=scheduler, generator=generator)
    assert isinstance(found, rg.Posterior)
    return kind, found


def _bilinear(graph: rg.FactorGraph) -> bool:
    return any(isinstance(block.potential, rg.Bilinear) for block in graph.blocks)


class Truth:
    """Answers by enumeration, and comparisons of a posterior with them."""

    def __init__(self, drawn: Drawn, scores: Array, route: str, dtype: torch.dtype) -> None:
        self.drawn, self.scores, self.route = drawn, scores, route
        self.log_z = compare.log_sum(scores)
        self.p = compare.probabilities(scores)
        self.tolerance = 1e-9 if dtype == torch.float64 else 2e-5
        if route in MESSAGES:  # up to the tolerance at which messages count as converged
            self.tolerance = 2e-3 if route == "tight" else max(self.tolerance, 1e-6)
        self.possible = bool((self.log_z > -np.inf).all())

    def close(self, what: str, got: Any, wanted: Array, *, cancelled: bool = True) -> None:
        """Agreement relative to the scores, of which log-values are sums."""
        size = self.drawn.spread if cancelled else 0.0
        close(f"{what} by {self.route}", got, wanted, self.tolerance, size)

    def check(
        self, rng: np.random.Generator, graph: rg.FactorGraph, posterior: rg.Posterior
    ) -> None:
        """log Z and marginals always, the other questions now and then."""
        if self.route in MESSAGES and not posterior.status.exact:
            if not (self.route == "loopy" and self.is_forest and posterior.status.converged):
                raise compare.Skipped(f"{self.route}: not exact")
        elif self.route not in MESSAGES:
            holds(f"status.exact by {self.route}", posterior.status.exact)
        self.close("log_partition", posterior.log_partition, self.log_z)
        self.marginals(posterior)
        questions = [self.joints, self.best, self.entropy, self.samples, self.assignments]
        if self.route in ("auto", "contraction"):
            questions.append(self.marginal_mode)
        for question in questions:
            if rng.random() < 0.4:
                question(rng, graph, posterior)

    @property
    def is_forest(self) -> bool:
        """True if messages between single factors are exact."""
        parent = list(range(len(self.drawn.sizes)))

        def root(number: int) -> int:
            while parent[number] != number:
                number = parent[number]
            return number

        for holder in self.drawn.holders:
            for scope in holder.scopes:
                roots = {root(number) for number in scope}
                if len(roots) < len(scope):
                    return False
                for number in roots:
                    parent[number] = max(roots)
        return True

    def flat(self, answers: dict[Any, torch.Tensor], *, states: bool) -> list[Any]:
        """Per variable, by number, what an answer by entry says."""
        found: list[Any] = []
        for entry, values in answers.items():
            count, dims = math.prod(entry.shape), len(entry.shape)
            tail = values.shape[values.ndim - states :]
            lead = values.shape[: values.ndim - dims - states]
            split = values.reshape(*lead, count, *tail)
            found += list(split.unbind(len(lead)))
        return found

    def of_states(self, values: Array, number: int, fold: Any, empty: float) -> Array:
        """(*batch, states): something of all configurations with each state of a variable."""
        columns = [
            fold(values[..., self.drawn.configurations[:, number] == state], -1)
            for state in range(self.drawn.sizes[number])
        ]
        return np.stack(columns, -1) if columns else np.full((*values.shape[:-1], 0), empty)

    def marginals(self, posterior: rg.Posterior) -> None:
        """Marginals of every variable."""
        answers = posterior.marginals()
        holds("marginals() has every entry", tuple(answers) == self.drawn.entries)
        for number, got in enumerate(self.flat(answers, states=True)):
            wanted = self.of_states(self.p, number, np.sum, 0.0)
            self.close(f"the marginal of variable {number}", got, wanted)

    def joints(self, rng: np.random.Generator, _: Any, posterior: rg.Posterior) -> None:
        """Joints of some variables of a factor, in another order."""
        if not self.drawn.holders:
            return
        holder = self.drawn.holders[int(rng.integers(len(self.drawn.holders)))]
        scope = holder.scopes[int(rng.integers(len(holder.scopes)))]
        asked = (
            [int(n) for n in rng.permutation(scope)[: int(rng.integers(1, len(scope) + 1))]]
            if scope
            else []
        )
        if not asked:
            return
        got = posterior.factor_marginal([self.drawn.variables[number] for number in asked])
        sizes = [self.drawn.sizes[number] for number in asked]
        place = np.zeros(len(self.drawn.configurations), dtype=np.int64)
        for number, size in zip(asked, sizes, strict=True):
            place = place * size + self.drawn.configurations[:, number]
        cells = [self.p[..., place == cell].sum(-1) for cell in range(math.prod(sizes))]
        wanted = np.stack(cells, -1).reshape(*self.drawn.batch, *sizes)
        self.close(f"the joint of {asked}", got, wanted)

    def best(self, _: Any, __: Any, posterior: rg.Posterior) -> None:
        """Max-marginals, and the score of the mode."""
        if self.route in MESSAGES:
            return
        for number, got in enumerate(self.flat(posterior.max_marginals(), states=True)):
            wanted = self.of_states(self.scores, number, np.max, -np.inf)
            self.close(f"the max-marginal of variable {number}", got, wanted)
        if not self.possible:
            compare.named(posterior.mode, torch.as_tensor(self.log_z))
            return
        states = self.flat(posterior.mode(), states=False)
        self.close("the score of the mode", self.score_of(states), self.scores.max(-1))

    def entropy(self, _: Any, __: Any, posterior: rg.Posterior) -> None:
        """Entropy in nats."""
        self.close("entropy", posterior.entropy(), compare.entropy(self.scores))

    def samples(self, rng: np.random.Generator, _: Any, posterior: rg.Posterior) -> None:
        """Possible ones only."""
        if self.route in MESSAGES:
            return
        generator = torch.Generator().manual_seed(int(rng.integers(2**31)))
        if not self.possible:
            draw = lambda: posterior.sample(3, generator=generator)  # noqa: E731
            compare.named(draw, torch.as_tensor(self.log_z))
            return
        states = self.flat(posterior.sample(3, generator=generator), states=False)
        for number in range(3):
            scores = self.score_of([part[number] for part in states])
            holds("samples are possible", (scores > -np.inf).all())

    def assignments(self, rng: np.random.Generator, graph: rg.FactorGraph, _: Any) -> None:
        """The score of configurations."""
        picked = rng.integers(len(self.drawn.configurations), size=(2, *self.drawn.batch))
        chosen = self.drawn.configurations[picked]
        given: dict[Any, torch.Tensor] = {}
        start = 0
        for entry in self.drawn.entries:
            part = chosen[..., start : start + math.prod(entry.shape)]
            start += math.prod(entry.shape)
            given[entry] = torch.tensor(part.reshape(2, *self.drawn.batch, *entry.shape))
        if not given:
            return
        wanted = np.take_along_axis(
            np.broadcast_to(self.scores, (2, *self.scores.shape)), picked[..., None], -1
        )[..., 0]
        self.close("score", graph.score(given), wanted)

    def marginal_mode(self, rng: np.random.Generator, _: Any, posterior: rg.Posterior) -> None:
        """The most probable states of some variables, the others summed out."""
        count = len(self.drawn.sizes)
        if not count:
            return
        if not self.possible:
            ask = lambda: posterior.marginal_mode(self.drawn.variables[:1])  # noqa: E731
            compare.named(ask, torch.as_tensor(self.log_z))
            return
        asked = sorted(int(n) for n in rng.permutation(count)[: int(rng.integers(1, count + 1))])
        found = posterior.marginal_mode([self.drawn.variables[number] for number in asked])
        place = np.zeros(len(self.drawn.configurations), dtype=np.int64)
        code: Any = np.zeros(self.drawn.batch, dtype=np.int64)
        for number, states in zip(asked, found.values(), strict=True):
            place = place * self.drawn.sizes[number] + self.drawn.configurations[:, number]
            code = code * self.drawn.sizes[number] + states.numpy()
        cells = math.prod(self.drawn.sizes[number] for number in asked)
        masses = [compare.log_sum(self.scores[..., place == cell]) for cell in range(cells)]
        summed = np.stack(masses, -1)
        got = np.take_along_axis(summed, np.asarray(code)[..., None], -1)[..., 0]
        self.close(f"the mass of the marginal mode of {asked}", got, summed.max(-1))

    def score_of(self, states: list[torch.Tensor]) -> Array:
        """(*batch,) of one state per variable."""
        place: NDArray[np.int64] = np.zeros(self.drawn.batch, dtype=np.int64)
        for size, own in zip(self.drawn.sizes, states, strict=True):
            holds("states lie in range", bool(((own >= 0) & (own < size)).all()))
            place = place * size + own.numpy()
        return np.take_along_axis(self.scores, np.asarray(place)[..., None], -1)[..., 0]


def _gradient(rng: np.random.Generator, drawn: Drawn, graph: rg.FactorGraph, scores: Array) -> None:
    """Gradient of weighted log Z and marginals in all parameters, along a random direction."""
    alive = np.isfinite(compare.log_sum(scores))
    if drawn.how.dtype != torch.float64 or drawn.how.spread > 3 or not alive.any():
        return
    tensors = [piece.tensors(track=True) for piece in drawn.pieces]
    leaves = [tensor for own in tensors for tensor in own.values()]
    if not leaves or not drawn.sizes:
        return
    tracked = drawn.graph(np.random.default_rng(0), drawn.potentials(tensors))
    posterior = rg.infer(tracked)
    assert isinstance(posterior, rg.Posterior)
    number = int(rng.integers(len(drawn.sizes)))
    weights = rng.normal(size=(*drawn.batch, drawn.sizes[number]))
    of_z = np.where(alive, rng.normal(size=drawn.batch), 0.0)

    def value(step: float, directions: list[dict[str, Array]]) -> float:
        moved = tuple(p.moved(own, step) for p, own in zip(drawn.pieces, directions, strict=True))
        other = drawn.scores(moved)
        log_z = np.where(alive, compare.log_sum(other), 0.0)
        p = compare.probabilities(other)
        total = float((of_z * log_z).sum())
        for state in range(drawn.sizes[number]):
            chosen = p[..., drawn.configurations[:, number] == state].sum(-1)
            total += float((weights[..., state] * chosen).sum())
        return total

    log_z = torch.where(torch.tensor(alive), posterior.log_partition, 0.0)
    marginal = posterior.marginal(drawn.variables[number])
    loss = (torch.tensor(of_z) * log_z).sum() + (torch.tensor(weights) * marginal).sum()
    if not loss.requires_grad:
        holds("a gradient where a factor is in reach", not drawn.holders)
        return
    found = torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)
    holds("no NaN in gradients", not any(bool(g.isnan().any()) for g in found))
    directions = [
        {
            n: np.where(np.isfinite(v), rng.normal(size=v.shape), 0.0)
            for n, v in p.parameters.items()
        }
        for p in drawn.pieces
    ]
    along = [own for part in directions for own in part.values()]
    with np.errstate(invalid="ignore"):
        got = sum(float((g.numpy() * d).sum()) for g, d in zip(found, along, strict=True))
        step = 1e-5
        wanted = (value(step, directions) - value(-step, directions)) / (2 * step)
    scale = sum(float(np.abs(g.numpy() * d).sum()) for g, d in zip(found, along, strict=True))
    close("the gradient", np.array(got), np.array(wanted), 1e-4, scale + math.prod(drawn.batch))


def _searched(graph: rg.FactorGraph, truth: Truth) -> None:
    """Modes by search: no better than the best, as good where they are called optimal."""
    posterior = rg.infer(graph, scheduler=rg.Search(seconds=0.2))
    try:
        mode = posterior.mode() if truth.possible else None
    except rg.errors.BudgetError:  # in so few seconds it has found none
        return
    if mode is None:
        for ask in (posterior.mode, posterior.mode_is_optimal, posterior.mode_bound):
            with suppress(rg.errors.BudgetError, rg.errors.ImpossibleEvidenceError):
                ask()
                raise compare.Mismatch("an answer of a search where an item is impossible")
        return
    score = truth.score_of(truth.flat(mode, states=False))
    best, proved = truth.scores.max(-1), posterior.mode_is_optimal().numpy()
    holds("the mode of a search is possible", (score > -np.inf).all())
    slack = truth.tolerance * (1 + truth.drawn.spread)
    holds("a mode that is called optimal is", (score >= best - slack)[proved].all())
    bound = posterior.mode_bound().double().numpy()
    holds("the bound of a search is above the mode", (bound >= best - slack).all())


def _as_tables(rng: np.random.Generator, drawn: Drawn, graph: rg.FactorGraph) -> None:
    """Messages of factors of any kind, after some sweeps, are those of their tables.

    With evidence only once they have converged: a table loses the variables observed, and with one
    variable left its message is there from the first sweep.
    """
    tables = [rg.Table.from_logs(torch.tensor(p.values(), dtype=p.dtype)) for p in drawn.pieces]
    dense = drawn.graph(np.random.default_rng(0), tables)
    messages = rg.Loopy(sweeps=int(rng.integers(1, 20)), tolerance=0.0, damping=0.3)
    tolerance = 1e-6 if graph.dtype == torch.float64 else 1e-2
    if drawn.observed is not None:
        messages, tolerance = rg.Loopy(tolerance=1e-9, damping=0.3), max(tolerance, 1e-5)
    found, wanted = (rg.infer(each, scheduler=messages) for each in (graph, dense))
    if drawn.observed is not None and not (found.status.converged and wanted.status.converged):
        return
    for own, other in zip(found.marginals().values(), wanted.marginals().values(), strict=True):
        close("a marginal by messages", own, other.double().numpy(), tolerance)


def _warned(rng: np.random.Generator) -> None:
    """Require a warning of logs that look like probabilities, and of nothing else."""
    values = rng.random(rng.integers(2, 4, size=int(rng.integers(1, 4)))) + 0.01
    values /= values.sum(int(rng.integers(values.ndim)), keepdims=True)
    shift = float(rng.choice([0.0, 0.05, -2.0]))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        rg.Table.from_logs(values)
        rg.Table.from_probabilities(values)
        rg.Table(np.log(values))
        holds("logs are no cause for a warning", not told)
        rg.Table(values + shift)
    holds(f"a warning of probabilities moved by {shift}", bool(told) == (shift == 0.0))
