"""Pairs of questions in both orders: an answer and its status do not depend on those before.

Models are of every kind that takes a route of its own, under budgets that fit some questions and
not others. Time is counted in operations, so that a case depends on its number alone. What a status
calls exact is compared with enumeration, and rows of evidence with each row alone.
"""

import math
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

import rdpgraph as rg
from rdpgraph.plan import clock
from rdpgraph.testing import BruteForce, brute_force
from tests.fuzz import structures
from tests.fuzz.compare import Skipped, approximate_seconds, holds
from tests.fuzz.recognised import KINDS as STRUCTURES
from tests.fuzz.recognised import shuffled
from tests.logical import LOGICAL, count_between
from tests.questions import NUMBERS, QUESTIONS

MOST = 20_000
"""Configurations times batch items."""
PAIRS = 10
"""Pairs of questions of each model, each in both orders."""

Rng = np.random.Generator
Ask = Callable[[rg.Posterior], Any]


def case(rng: Rng) -> int:
    """One model: some pairs of questions in both orders, and what statuses claim."""
    with approximate_seconds(0.2):
        return _case(rng)


def _case(rng: Rng) -> int:
    kind = str(rng.choice(list(MODELS)))
    graph, estimator = MODELS[kind](rng)
    if 0 in graph.batch_shape or not graph.num_variables:
        raise Skipped("no items or no variables")
    if math.prod(graph.domain.sizes.tolist()) * math.prod(graph.batch_shape) > MOST:
        raise Skipped("too many configurations")
    asked = Asked(graph, scheduler_of(rng, graph), estimator, int(rng.integers(2**31)))
    questions = asked.questions(rng)
    names = list(questions)
    asked.alone(lambda posterior: posterior.plan.seconds)  # plans are cached: none takes time again
    fresh: dict[str, Answer] = {}
    told: list[str] = []
    for _ in range(PAIRS):
        first, second = (str(name) for name in rng.choice(names, 2, replace=False))
        for one, other in ((first, second), (second, first)):
            if other not in fresh:
                fresh[other] = asked.alone(questions[other])
            told += asked.differing(questions, one, other, fresh[other])
    holds(f"{kind} by {asked.scheduler}, {estimator}: {'; '.join(told[:4])}", not told)
    if estimator is None or isinstance(estimator, rg.LowRankFactors):
        Claims(asked, brute_force(graph)).check(rng)
    return math.prod(graph.batch_shape)


# What is asked.


@dataclass(frozen=True)
class Answer:
    """The tensors of an answer; or the error that came in its place."""

    parts: tuple[Tensor, ...] = ()
    said: tuple[Any, ...] = ()

    def differs(self, other: "Answer", tolerance: float) -> str:
        """Say how much two answers differ; nothing where they do not."""
        if self.said != other.said:
            return f"{self.said} and not {other.said}"
        for got, wanted in zip(self.parts, other.parts, strict=True):
            if got.shape != wanted.shape:
                return f"shape {tuple(got.shape)} and not {tuple(wanted.shape)}"
            got, wanted = got.double(), wanted.double()
            same = (got == wanted) | ((got - wanted).abs() <= tolerance * (1 + wanted.abs()))
            if not bool((same | (got.isnan() & wanted.isnan())).all()):
                return f"off by {float((got - wanted).abs()[~same].max()):.3g}"
        return ""


@dataclass(frozen=True)
class Asked:
    """A graph, how it is solved, and questions about it."""

    graph: rg.FactorGraph
    scheduler: rg.extend.Scheduler | None
    estimator: rg.extend.Estimator | None
    seed: int

    @property
    def tolerance(self) -> float:
        """Relative, of one answer computed in two ways."""
        return 1e-6 if self.graph.dtype == torch.float64 else 1e-3

    def posterior(self, graph: rg.FactorGraph | None = None) -> rg.Posterior:
        """A fresh posterior."""
        generator = torch.Generator().manual_seed(self.seed)
        asked = self.graph if graph is None else graph
        found = rg.infer(asked, self.scheduler, estimator=self.estimator, generator=generator)
        assert isinstance(found, rg.Posterior)
        return found

    def alone(self, ask: Ask) -> Answer:
        """The answer of a fresh posterior."""
        with clock.counted(clock.Counter()):
            return answer_of(ask, self.posterior)

    def differing(
        self, questions: dict[str, Ask], first: str, second: str, fresh: Answer
    ) -> list[str]:
        """Say how the second answer differs from a fresh posterior's."""
        with clock.counted(clock.Counter()):
            try:
                posterior = self.posterior()
            except rg.errors.RdpgraphError:
                return []
            answer_of(questions[first], lambda: posterior)
            told = answer_of(questions[second], lambda: posterior).differs(fresh, self.tolerance)
        return [f"{second} after {first}: {told}"] if told else []

    def questions(self, rng: Rng) -> dict[str, Ask]:
        """Every question, by name."""
        graph = self.graph
        every = list(graph.variables)
        numbers = [int(n) for n in rng.permutation(graph.num_variables)]
        singles = [graph.domain.variable(n) for n in numbers]
        some = [singles[: int(rng.integers(1, len(singles) + 1))] for _ in range(3)]
        factors = [f for f in graph.factors() if f.variables]
        factor = factors[int(rng.integers(len(factors)))] if factors else None
        seed, temperature = int(rng.integers(2**31)), float(rng.uniform(0.2, 2.0))

        def drawn() -> torch.Generator:
            return torch.Generator().manual_seed(seed)

        asked: dict[str, Ask] = {
            "status": lambda p: p.status,
            **QUESTIONS,
            "bounds": lambda p: p.bounds(),
            "bounds at 90%": lambda p: p.bounds(confidence=0.9),
            "standard_error": lambda p: p.standard_error,
            "marginal": lambda p: p.marginal(every[-1]),
            "joint": lambda p: p.joint(singles[:2]),
            "mode_bound": lambda p: p.mode_bound(),
            "mode_is_optimal": lambda p: p.mode_is_optimal(),
            "mode_is_consistent": lambda p: p.mode_is_consistent(),
            "sample": lambda p: p.sample(3, generator=drawn()),
            "rsample": lambda p: p.rsample(temperature=temperature, generator=drawn()),
            **{
                f"status of {name}": lambda p, name=name: p.status_of(name)
                for name in ("log_partition", "marginals", "entropy", "max_marginals", "mode")
            },
            **{
                f"marginal_mode of {len(part)}": lambda p, part=part: p.marginal_mode(part)
                for part in some
            },
            **{
                f"{name} without gradients": lambda p, ask=ask: without_gradients(ask, p)
                for name, ask in NUMBERS.items()
                if name != "max_marginals"
            },
        }  # fmt: skip
        if factor is not None:
            asked["factor_marginal"] = lambda p: p.factor_marginal(factor.variables)
        leaves = [part for part in _tables(graph) if part.requires_grad]
        for name in ("log_partition", "marginal", "entropy") if leaves else ():
            asked[f"gradient of {name}"] = lambda p, name=name: _gradient(asked[name](p), leaves)
        return asked


def answer_of(ask: Ask, posterior: Callable[[], rg.Posterior]) -> Answer:
    """The answer to a question, or the error."""
    with warnings.catch_warnings(action="ignore"):
        try:
            found = ask(posterior())
        except rg.errors.RdpgraphError as error:
            return Answer(said=(type(error).__name__, str(error)))
    if isinstance(found, rg.Status):
        numbers = {k: v for k, v in asdict(found).items() if isinstance(v, float)}
        words = {k: v for k, v in asdict(found).items() if k not in numbers and k != "trace"}
        values = [torch.tensor(value) for value in (*numbers.values(), *found.trace)]
        return Answer(tuple(values), (*words.items(), *numbers))
    if isinstance(found, dict):
        more = (getattr(found, name, None) for name in ("score", "bound", "optimal"))
        parts = (*found.values(), *more)
        return Answer(tuple(part.detach() for part in parts if part is not None))
    if isinstance(found, tuple):
        return Answer(tuple(part.detach() for part in found))
    return Answer((torch.as_tensor(found).detach(),))


def without_gradients(ask: Ask, posterior: rg.Posterior) -> Any:
    """An answer that records no gradients."""
    with torch.no_grad():
        return ask(posterior)


def _tables(graph: rg.FactorGraph) -> list[Tensor]:
    return [
        block.potential.log_values
        for block in graph.blocks
        if isinstance(block.potential, rg.Table)
    ]


def _gradient(value: Tensor, leaves: list[Tensor]) -> tuple[Tensor, ...]:
    """Gradients of a sum with weights, where the values are finite."""
    if not value.requires_grad:
        return ()
    weights = torch.arange(1.0, value.numel() + 1, dtype=value.dtype).reshape(value.shape)
    total = torch.where(value.detach().isfinite(), value, 0.0) * weights
    return torch.autograd.grad(total.sum(), leaves, allow_unused=True, materialize_grads=True,
                               retain_graph=True)  # fmt: skip


# What is claimed.


@dataclass(frozen=True)
class Claims:
    """Answers of fresh posteriors whose statuses are compared with enumeration."""

    asked: Asked
    truth: BruteForce

    def check(self, rng: Rng) -> None:
        """Whatever is called exact, optimal or a bound is that."""
        checks = [self.sums, self.maxima, self.modes, self.marginal_modes, self.rows]
        with warnings.catch_warnings(action="ignore"):
            for check in checks:
                with clock.counted(clock.Counter()):
                    try:
                        check(rng, self.asked.posterior())
                    except rg.errors.RdpgraphError as error:
                        if isinstance(error, rg.errors.ModelError):
                            raise

    def _near(self, what: str, got: Tensor, wanted: Tensor) -> None:
        tolerance = 10 * self.asked.tolerance
        told = Answer((got.detach(),)).differs(Answer((wanted,)), tolerance)
        holds(f"{what} by {self.asked.scheduler} is exact, as it says: {told}", not told)

    def sums(self, rng: Rng, posterior: rg.Posterior) -> None:
        """log Z and its bounds, marginals, joints and the entropy."""
        truth, graph = self.truth, self.asked.graph
        lower, upper = (end.double() for end in posterior.bounds())
        log_z = truth.log_partition.double()
        slack = 10 * self.asked.tolerance * (1 + log_z.abs())
        inside = (lower <= log_z + slack) & (log_z <= upper + slack) | (log_z == -math.inf)
        holds(f"bounds {lower}, {upper} of {log_z}", bool(inside.all()))
        if posterior.status_of("log_partition").exact:
            self._near("log Z", posterior.log_partition, truth.log_partition)
        exact = posterior.status.exact
        if exact:
            self._near("log Z", posterior.log_partition, truth.log_partition)
        if exact or posterior.status_of("marginals").exact:
            for number in range(graph.num_variables):
                one = graph.domain.variable(number)
                self._near("a marginal", posterior.marginal(one), truth.joint((one,)))
        if posterior.status_of("entropy").exact:
            self._near("the entropy", posterior.entropy(), truth.entropy)
        factors = [f for f in graph.factors() if f.variables]
        if factors and posterior.status_of("factor_marginal").exact:
            own = factors[int(rng.integers(len(factors)))].variables
            self._near("a joint", posterior.factor_marginal(own), truth.joint(tuple(own)))

    def maxima(self, _: Rng, posterior: rg.Posterior) -> None:
        """Max-marginals."""
        values, graph = posterior.max_marginals(), self.asked.graph
        if posterior.status_of("max_marginals").exact:
            for number in range(graph.num_variables):
                one = graph.domain.variable(number)
                self._near("a max-marginal", values[one], self.truth.max_marginal(one))

    def modes(self, _: Rng, posterior: rg.Posterior) -> None:
        """The mode, where it is proved, and its bound."""
        mode, best = posterior.mode(), self.truth.maximum.double()
        score = self.asked.graph.score(mode).detach().double()
        proved, bound = posterior.mode_is_optimal(), posterior.mode_bound()
        slack = 10 * self.asked.tolerance * (1 + best.abs())
        holds(f"a mode {score} proved of {best}", bool((~proved | (score >= best - slack)).all()))
        holds(f"a bound {bound} of {best}", bool((bound >= best - slack).all()))
        exact = posterior.status_of("mode").exact
        holds("a mode is exact where it is proved", exact == bool(proved.all()))

    def marginal_modes(self, rng: Rng, posterior: rg.Posterior) -> None:
        """A marginal mode, its mass and its bound."""
        graph, lead = self.asked.graph, self.asked.graph.batch_shape
        count = int(rng.integers(1, graph.num_variables + 1))
        chosen = [graph.domain.variable(int(n)) for n in rng.permutation(graph.num_variables)]
        some = tuple(chosen[:count])
        found = posterior.marginal_mode(list(some))
        masses = self.truth.log_joint(some).double().reshape(*lead, -1)
        sizes = [one.size for one in some]
        place = torch.zeros(lead, dtype=torch.long)
        for one, size in zip(some, sizes, strict=True):
            place = place * size + found[one]
        mass, best = masses.gather(-1, place.unsqueeze(-1))[..., 0], masses.amax(-1)
        slack = 10 * self.asked.tolerance * (1 + best.abs())
        assert found.score is not None
        assert found.bound is not None
        assert found.optimal is not None
        holds(f"a score {found.score} of {mass}", bool((found.score <= mass + slack).all()))
        holds(f"a bound {found.bound} of {best}", bool((found.bound >= best - slack).all()))
        optimal = ~found.optimal | (mass >= best - slack)
        holds(f"a marginal mode of mass {mass} proved of {best}", bool(optimal.all()))

    def rows(self, rng: Rng, posterior: rg.Posterior) -> None:
        """Rows that are solved by themselves, or as one structure, are those of each alone."""
        graph, route = self.asked.graph, posterior.plan.route
        apart = "by itself" in posterior.plan.why or route == "structure"
        tables = not any(block.batch_shape for block in graph.blocks)
        if graph.observed is None or not graph.batch_shape or not (apart and tables):
            return
        observed = graph.observed.reshape(-1, graph.num_variables)
        numbers = rng.permutation(graph.num_variables)[: int(rng.integers(1, 4))]
        some = [graph.domain.variable(int(n)) for n in numbers]
        questions: dict[str, Ask] = {
            **{name: ask for name, ask in NUMBERS.items() if name != "log_partition"},
            "mode": lambda p: p.mode_bound(),
        }
        for row, states in enumerate(observed):
            one = rg.FactorGraph.from_blocks(graph.domain, graph.blocks, states)
            alone = self.asked.posterior(one)
            for name, ask in questions.items():
                if alone.status_of(name).exact:
                    holds(f"{name} of rows are exact as each is", posterior.status_of(name).exact)
                    self._row(f"{name} of row {row}", ask(posterior), ask(alone), row)
            own = alone.marginal_mode(some)
            if own.optimal is not None and bool(own.optimal):
                found = posterior.marginal_mode(some)
                assert found.optimal is not None
                holds("marginal modes of rows are as each is", bool(found.optimal.reshape(-1)[row]))
                self._row(f"the marginal mode of row {row}", found.score, own.score, row)

    def _row(self, what: str, every: Any, own: Any, row: int) -> None:
        """Compare a row of a batch's answer with that of the row alone."""
        pairs = [(every[key], own[key]) for key in every] if isinstance(every, dict) else [
            (every, own)
        ]  # fmt: skip
        lead = len(self.asked.graph.batch_shape)
        for got, wanted in pairs:
            self._near(what, got.flatten(0, lead - 1)[row], wanted.detach())


# Models.


def _values(rng: Rng, *shape: int, tracked: bool = False) -> Tensor:
    """Log-values; some are hard zeros now and then."""
    scale = float(rng.choice([0.5, 1.0, 3.0]))
    values = scale * rng.normal(size=shape)
    if rng.random() < 0.2:
        values = np.where(rng.random(shape) < 0.25, -np.inf, values)
    return torch.from_numpy(values).requires_grad_(tracked)


def _graph(rng: Rng) -> rg.FactorGraph:
    """Random pairs and triples, in cycles or not, or a ladder with leaves."""
    tracked = bool(rng.random() < 0.4)
    if rng.random() < 0.4:
        rungs, states = int(rng.integers(2, 5)), 2
        x, y = rg.VariableArray("x", (2, rungs), states), rg.VariableArray("y", (rungs,), states)
        blocks = [
            rg.FactorBlock(pair, rg.Table.from_logs(_values(rng, *lead, 2, 2, tracked=tracked)))
            for pair, lead in (
                ((x[:, :-1], x[:, 1:]), (2, rungs - 1)), ((x[0], x[1]), (rungs,)),
                ((x[0], y), (rungs,)),
            )
        ]  # fmt: skip
        return rg.FactorGraph(blocks)
    count = int(rng.integers(3, 8))
    variables = [rg.Variable(f"v{n}", int(rng.integers(2, 5))) for n in range(count)]
    factors = list[rg.Factor]()
    for _ in range(int(rng.integers(count - 1, 2 * count))):
        arity = min(int(rng.choice([1, 2, 2, 3])), count)
        scope = [variables[n] for n in rng.permutation(count)[:arity]]
        values = _values(rng, *(v.size for v in scope), tracked=tracked)
        factors.append(rg.Factor(scope, rg.Table.from_logs(values)))
    return rg.FactorGraph(factors, variables=variables)


def _observed(rng: Rng, graph: rg.FactorGraph, lead: tuple[int, ...]) -> rg.FactorGraph:
    """The graph with rows of evidence, which lack different variables, or the same."""
    share, alike = float(rng.choice([0.2, 0.5, 0.8])), rng.random() < 0.3
    given: dict[Any, Tensor] = {}
    for variable in graph.variables:
        shape = (*lead, *variable.shape)
        lacking = rng.random(shape) < share
        if alike:
            lacking = np.broadcast_to(rng.random(variable.shape) < share, shape)
        states = np.where(lacking, -1, rng.integers(variable.size, size=shape))
        given[variable] = torch.from_numpy(np.ascontiguousarray(states))
    return graph.condition(given)


Model = tuple[rg.FactorGraph, rg.extend.Estimator | None]


def graphs(rng: Rng) -> Model:
    """One graph, at times with evidence."""
    graph = _graph(rng)
    return (_observed(rng, graph, ()) if rng.random() < 0.3 else graph), None


def rows(rng: Rng) -> Model:
    """Rows of evidence on one graph."""
    lead = [(1,), (2,), (4,), (7,), (2, 2)][int(rng.integers(5))]
    return _observed(rng, _graph(rng), lead), None


def recognised(rng: Rng) -> Model:
    """A structure written as factors, at times with evidence."""
    structure = STRUCTURES[int(rng.integers(len(STRUCTURES)))](structures._Draws.of(rng))
    try:
        graph = structure.factor_graph()
    except rg.errors.RdpgraphError as error:
        raise Skipped(f"no graph: {type(error).__name__}") from None
    if 0 in graph.batch_shape or not graph.num_variables:
        raise Skipped("no items or no variables")
    graph = shuffled(graph, rng)
    lead = graph.batch_shape or ((3,) if rng.random() < 0.5 else ())
    return (_observed(rng, graph, lead) if rng.random() < 0.5 else graph), None


def logical(rng: Rng) -> Model:
    """Binary variables under logical factors."""
    count = int(rng.integers(4, 9))
    x = rg.VariableArray("x", (count,), 2)
    factors: list[Any] = [rg.FactorBlock((x,), rg.Table.from_logs(_values(rng, count, 2)))]
    for _ in range(int(rng.integers(1, 4))):
        arity = int(rng.integers(2, count + 1))
        scope = [x[int(n)] for n in rng.permutation(count)[:arity]]
        least = int(rng.integers(0, arity))
        kinds = [*LOGICAL.values(), count_between(least)]
        factors.append(rg.Factor(scope, kinds[int(rng.integers(len(kinds)))].make(arity)))
    for _ in range(int(rng.integers(0, 4))):
        pair = [x[int(n)] for n in rng.permutation(count)[:2]]
        factors.append(rg.Factor(pair, rg.Table.from_logs(_values(rng, 2, 2))))
    graph = rg.FactorGraph(factors)
    lead = [(), (), (3,)][int(rng.integers(3))]
    return (_observed(rng, graph, lead) if lead or rng.random() < 0.3 else graph), None


def low_rank(rng: Rng) -> Model:
    """A ring of low-rank factors, summed over their ranks by the default or by an estimator."""
    count, states, rank = 3, int(rng.integers(3, 12)), int(rng.integers(1, 3))
    x = rg.VariableArray("x", (count,), states)
    sides = torch.from_numpy(rng.normal(size=(count, 2, states, rank)))
    pairs = [rg.Factor((x[i], x[(i + 1) % count]), rg.LowRank(*sides[i])) for i in range(count)]
    own = rg.Factor((x[0],), rg.Table.from_logs(_values(rng, states)))
    return rg.FactorGraph([*pairs, own]), [None, rg.LowRankFactors()][int(rng.integers(2))]


def estimated(rng: Rng) -> Model:
    """A graph on a few states of each variable."""
    graph = _graph(rng)
    graph = _observed(rng, graph, (2,)) if rng.random() < 0.3 else graph
    own, keep = rg.randomized, int(rng.integers(1, 4))
    proposal = rng.choice([own.Uniform(), own.Local(), own.LocalGlobal()])
    selection = (
        own.TopTail(keep, 1) if rng.random() < 0.5 else own.Top(float(rng.choice([0.5, 1.0])))
    )
    replicates = int(rng.choice([1, 2, 4]))
    return graph, rg.Randomized(proposal, selection, replicates=replicates)


MODELS: dict[str, Callable[[Rng], Model]] = {
    "graphs": graphs, "rows": rows, "recognised": recognised, "logical": logical,
    "low rank": low_rank, "estimated": estimated,
}  # fmt: skip


def scheduler_of(rng: Rng, graph: rg.FactorGraph) -> rg.extend.Scheduler | None:
    """A scheduler, most often one whose budget fits some questions alone."""
    try:
        with clock.counted(clock.Counter()):
            plan = rg.explain(graph, rg.Contraction(memory=1e9))
            needed = 2.0 * (plan.stored_bytes - plan.peak_bytes)  # beside the tables, in both
    except rg.errors.RdpgraphError as error:
        raise Skipped(f"no plan: {type(error).__name__}") from None
    memory = max(needed * float(np.exp(rng.uniform(np.log(0.3), np.log(20)))), 64.0)
    messages = rg.Loopy(
        sweeps=int(rng.choice([3, 50, 300])),
        damping=[None, 0.0, 0.5][int(rng.integers(3))],
        counting=[rg.loopy.Bethe(), rg.loopy.TreeReweighted()][int(rng.integers(2))],
        schedule=[
            rg.loopy.Flooding(), rg.loopy.Sequential(),
            rg.loopy.RandomSubsets(0.5, torch.Generator().manual_seed(0)),
        ][int(rng.integers(3))],
    )  # fmt: skip
    kinds: list[tuple[float, Callable[[], rg.extend.Scheduler | None]]] = [
        (0.45, lambda: rg.Auto(memory=memory)),
        (0.2, lambda: rg.Auto(memory=memory, seconds=float(10 ** rng.uniform(-3, 0)))),
        (0.1, lambda: rg.Contraction(memory=memory)),
        (0.1, lambda: messages),
        (0.05, lambda: rg.JoinGraph(memory=memory)),
        (0.03, lambda: rg.Search(seconds=0.2, memory=memory)),
        (0.04, lambda: rg.MiniBuckets(seconds=0.2, memory=memory)),
        (0.03, lambda: rg.Counting(memory=1e9)),
    ]
    chosen = rng.choice(len(kinds), p=[share for share, _ in kinds])
    return kinds[int(chosen)][1]()
