"""Log Z of what does not fit: by evidence, within bounds, and never a bound under another name."""

import itertools
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import rdpgraph as rg
from rdpgraph import Status
from rdpgraph._core import tuning
from rdpgraph.engines.minibuckets.best_known import BestKnown
from rdpgraph.engines.minibuckets.estimate import Estimate
from rdpgraph.engines.portfolio import FirstConverged
from rdpgraph.engines.reduction.network import reduce_graph
from rdpgraph.engines.solution import Approximation
from rdpgraph.errors import BudgetError
from rdpgraph.plan import clock
from rdpgraph.plan.clock import Allowance
from rdpgraph.testing import brute_force

DOUBLE = torch.float64
UPPER = Status(exact=False, bound="upper", residual=1e-6)
SETTLED = Status(exact=False, residual=1e-6)
RESTLESS = Status(exact=False, converged=False, residual=0.1)


class Said(Approximation):
    """A solution that is a number and its status."""

    def __init__(self, log_z: float, status: Status) -> None:
        self.log_z, self.worth = log_z, status

    def status(self) -> Status:
        return self.worth

    def log_partition(self) -> torch.Tensor:
        return torch.tensor([self.log_z], dtype=DOUBLE)

    def _none(self, *_: object) -> torch.Tensor:
        raise AssertionError

    variable_marginals = factor_marginals = expected_score = max_marginals = mode = _none


Said.__abstractmethods__ = frozenset()


class Drawn(Said):
    """Estimates with an error and bounds."""

    def __init__(self, log_z: float, error: float, lower: float, upper: float) -> None:
        super().__init__(log_z, Status(exact=False, biased=True, standard_error=error))
        one = Estimate(lower, upper, log_z, error, 8.0, (log_z,), None, 10**6)  # pyright: ignore
        self.estimates = (one,)

    def bounds(self) -> tuple[torch.Tensor, torch.Tensor]:
        one = self.estimates[0]
        return torch.tensor([one.lower]).double(), torch.tensor([one.upper]).double()

    def log_estimates(self) -> torch.Tensor:
        return self.log_partition()


def messages(*every: Said) -> FirstConverged:
    attempts = tuple(lambda _, one=one: one for one in every)
    said = FirstConverged(attempts, attempts[0], None, Allowance(10.0))  # pyright: ignore
    infinite = torch.tensor([math.inf], dtype=DOUBLE)
    vars(said)["bounds_by_mode"] = -infinite, infinite  # these have no mode
    return said


def best_known(drawn: Drawn, *every: Said, exactly=None) -> BestKnown:
    said = messages(*every)
    return BestKnown(said, lambda _: drawn, said.allowance, exactly)  # pyright: ignore


def test_sweeps_that_did_not_settle_are_nearer_than_a_bound():
    said = messages(Said(861.0, RESTLESS), Said(1075.0, UPPER))
    assert said.chosen.log_z == 1075.0
    assert said.plain.log_z == 861.0
    calm = messages(Said(3.0, RESTLESS), Said(4.0, replace(RESTLESS, residual=1e-3)))
    assert calm.plain.log_z == 4.0
    assert messages(Said(3.0, SETTLED), Said(9.0, UPPER)).plain.log_z == 3.0


@pytest.mark.parametrize(("spent", "first"), [(1.0, 4.0), (6.0, 3.0)])
def test_plain_messages_come_first_where_there_is_time_for_both(spent, first):
    said, plain = Said(3.0, RESTLESS), Said(4.0, replace(RESTLESS, residual=1.0))
    network = SimpleNamespace(possible=None)
    every = FirstConverged(
        (lambda _: said,),
        lambda _: said,
        network,  # pyright: ignore
        Allowance(10.0, spent),
        lambda _: plain,
        first=0.5,
    )
    assert every.tried[0].log_z == first
    assert every.chosen is said


@pytest.mark.parametrize(
    ("drawn", "said", "expected"),
    [
        (Drawn(5.0, 0.01, 0.0, 9.0), Said(6.0, SETTLED), 5.0),  # the error is known and small
        (Drawn(5.0, 0.3, 0.0, 9.0), Said(6.0, SETTLED), 5.0),
        (Drawn(5.0, 2.0, 0.0, 9.0), Said(6.0, SETTLED), 6.0),  # the error is known to be large
        (Drawn(5.0, 2.0, 0.0, 9.0), Said(6.0, RESTLESS), 6.0),
        (Drawn(5.0, 2.0, 0.0, 5.5), Said(6.0, SETTLED), 5.0),  # above a bound
        (Drawn(5.0, 2.0, 4.0, 9.0), Said(3.5, SETTLED), 5.0),  # below one
        (Drawn(5.0, 0.01, 5.5, 9.0), Said(6.0, SETTLED), 6.0),  # below a configuration's score
        (Drawn(5.0, 0.01, 5.5, 9.0), Said(5.2, SETTLED), 5.5),  # as the messages are
        (Drawn(9.0, 2.0, 0.0, 20.0), Said(1.0, SETTLED), 9.0),  # unbiased draws are seldom so high
        (Drawn(5.0, 2.0, 0.0, 9.0), Said(6.0, UPPER), 5.0),
    ],
)
def test_log_z_is_the_one_whose_error_is_known_or_else_what_contradicts_nothing(
    drawn, said, expected
):
    known = best_known(drawn, said)
    assert float(known.log_partition()) == expected
    assert known.status_of("log_partition").bound == ""
    lower, upper = known.bounds()
    assert float(lower) <= expected <= float(upper)


def test_exact_log_z_comes_first_and_is_given_up_when_it_takes_too_long():
    exact = Said(7.0, Status())
    known = best_known(Drawn(5.0, 0.01, 0.0, 9.0), Said(6.0, SETTLED), exactly=lambda _: exact)
    assert float(known.log_partition()) == 7.0
    assert known.status_of("log_partition").exact
    assert float(known.bounds()[0]) == float(known.bounds()[1]) == 7.0

    def late(_: float) -> Said:
        raise BudgetError("late")

    known = best_known(Drawn(5.0, 0.01, 0.0, 9.0), Said(6.0, SETTLED), exactly=late)
    assert float(known.log_partition()) == 5.0
    assert not known.status_of("log_partition").exact


def test_exact_log_z_is_tried_where_it_may_fit():
    x, same = rg.VariableArray("x", (6, 20), 8), rg.Table(torch.eye(8))
    graph = rg.FactorGraph(
        [rg.FactorBlock((x[1:], x[:-1]), same), rg.FactorBlock((x[:, 1:], x[:, :-1]), same)]
    )
    with clock.counted(clock.Counter()):
        whole = rg.explain(graph, scheduler=rg.Auto(seconds=1e3, memory=4e9))
        plan = rg.explain(graph, scheduler=rg.Auto(seconds=whole.seconds / 1.5, memory=4e9))
    assert whole.route == "contraction" != plan.route
    assert "log Z alone is exact" in plan.why


class Means(Drawn):
    """Estimates that have marginals of three binary variables, with their errors."""

    def __init__(self, error: float, marginals: torch.Tensor, errors: float) -> None:
        super().__init__(5.0, error, 0.0, 9.0)
        x = [rg.Variable(name, 2) for name in "abc"]
        self.network = reduce_graph(rg.FactorGraph([], variables=x))
        self.own, self.errors = marginals, errors

    def variable_marginals(self) -> torch.Tensor:
        return self.own

    def marginal_errors(self) -> torch.Tensor:
        return torch.full_like(self.own, self.errors)


class Beliefs(Said):
    """Messages that say a half of everything."""

    def variable_marginals(self) -> torch.Tensor:
        return torch.full((1, 6), 0.5, dtype=DOUBLE)


Means.__abstractmethods__ = Beliefs.__abstractmethods__ = frozenset()


def told(known: BestKnown, *asked: str) -> Status:
    """The status after some questions."""
    for name in asked:
        getattr(known, name)()
    return known.status()


ORDERS = [(), ("log_partition",), ("variable_marginals", "log_partition")]


@pytest.mark.parametrize("asked", ORDERS)
def test_a_status_is_that_of_log_z_and_marginals_whatever_was_asked(asked):
    own = torch.full((1, 6), 0.5, dtype=DOUBLE)
    status = told(best_known(Means(0.01, own, 0.01), Beliefs(6.0, RESTLESS)), *asked)
    assert not status.exact
    assert not status.converged  # messages have not, and log Z has
    assert status.standard_error == 0.01


@pytest.mark.parametrize("asked", ORDERS)
def test_a_status_says_what_each_answer_is_by(asked):
    own, loopy = torch.full((1, 6), 0.5, dtype=DOUBLE), replace(RESTLESS, method="loopy")
    drawn = Means(0.01, own, 0.01)
    drawn.worth = replace(drawn.worth, method="populations")
    known = best_known(drawn, Beliefs(6.0, loopy))
    assert told(known, *asked).method == "log Z by populations; marginals by loopy"
    assert known.status_of("log_partition").method == "populations"
    assert known.status_of("variable_marginals").method == "loopy"
    exact = best_known(drawn, Beliefs(6.0, loopy), exactly=lambda _: Said(7.0, Status()))
    status = told(exact, *asked)
    assert status.method == "log Z by contraction; marginals by loopy"
    assert not status.exact  # marginals are not


@pytest.mark.parametrize(
    ("error", "errors", "expected"),
    [
        (0.01, 0.01, [0.9, 0.1, 0.5, 0.5, 0.5, 0.5]),  # the first variable is contradicted
        (0.01, 0.3, [0.5] * 6),
        (0.01, 0.0, [0.9, 0.1, 0.52, 0.48, 0.5, 0.5]),
        (0.3, 0.01, [0.5] * 6),  # log Z is not precise
        (2.0, 0.01, [0.5] * 6),
    ],
)
def test_marginals_are_those_of_messages_unless_precise_estimates_contradict_them(
    error, errors, expected
):
    own = torch.tensor([[0.9, 0.1, 0.52, 0.48, 0.5, 0.5]], dtype=DOUBLE)
    known = best_known(Means(error, own, errors), Beliefs(4.0, SETTLED))
    torch.testing.assert_close(known.variable_marginals()[0], torch.tensor(expected).double())
    late = best_known(Means(error, own, errors), Beliefs(4.0, SETTLED))
    late.messages.for_sums.spent = 0.9 * late.allowance.seconds  # no time for estimates
    torch.testing.assert_close(late.variable_marginals(), late.messages.variable_marginals())


@pytest.mark.long
def test_auto_s_marginals_are_better_than_those_of_messages(monkeypatch):
    monkeypatch.setattr(tuning, "MEMBER_VARIABLE", 0.5)
    looks = itertools.count()
    monkeypatch.setattr(clock, "now", lambda: 1e-3 * next(looks))  # as much on any machine
    graph = dense()
    exact = rg.infer(graph, scheduler=rg.Contraction()).marginal("x")
    monkeypatch.setattr(tuning, "MEMBER_STEP", 0.1)
    posterior = rg.infer(graph, scheduler=rg.Auto(memory=8000.0, seconds=7.0))
    assert posterior.plan.route != "contraction"
    messages = posterior.solution.messages.variable_marginals().reshape(15, 2)
    ours, theirs = (float((p - exact).abs().max()) for p in (posterior.marginal("x"), messages))
    assert ours < 0.5 * theirs


def dense(*, trained: bool = False) -> rg.FactorGraph:
    """Fifteen variables, each with each: the exact tables have 32,768 entries."""
    x = rg.VariableArray("x", (15,), 2)
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(105, 2, 2, generator=generator, dtype=DOUBLE).requires_grad_(trained)
    pairs = torch.combinations(torch.arange(15)).T.tolist()
    scopes = tuple(tuple(x[int(i)] for i in side) for side in pairs)
    factors = [
        rg.Factor([a, b], rg.Table(table[n])) for n, (a, b) in enumerate(zip(*scopes, strict=True))
    ]
    return rg.FactorGraph(factors)


@pytest.mark.long
def test_auto_estimates_log_z_where_exact_inference_does_not_fit(monkeypatch):
    monkeypatch.setattr(tuning, "MEMBER_VARIABLE", 0.5)
    graph = dense()
    truth = brute_force(graph).log_partition.item()
    posterior = rg.infer(graph, scheduler=rg.Auto(memory=4000.0))
    assert posterior.plan.route != "contraction"
    assert posterior.plan.why.endswith("; log Z alone is estimated by populations")
    log_z = float(posterior.log_partition)
    error = posterior.status.standard_error
    assert error is not None
    assert abs(log_z - truth) <= 4 * error + 1e-6
    lower, upper = posterior.bounds()
    assert float(lower) - 1e-9 <= truth <= float(upper) + 1e-9
    assert -math.inf < float(lower)
    assert float(upper) < math.inf


def test_what_is_trained_is_answered_by_messages_alike_with_and_without_gradients():
    posterior = rg.infer(dense(trained=True), scheduler=rg.Auto(memory=4000.0, seconds=1.0))
    assert "log Z alone" not in posterior.plan.why
    log_z = posterior.log_partition
    log_z.backward()
    with torch.no_grad():
        torch.testing.assert_close(posterior.log_partition, log_z.detach())
