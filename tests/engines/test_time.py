"""Runs under a clock that the test moves: every engine ends at its time, and says so."""

import math
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch

import rdpgraph as rg
from rdpgraph._core import effort
from rdpgraph.engines.configurations import Searched
from rdpgraph.engines.portfolio import ExactFirst, FirstConverged
from rdpgraph.engines.reduction.network import reduce_graph
from rdpgraph.engines.search.sought import Sought
from rdpgraph.errors import BudgetError
from rdpgraph.plan import clock
from rdpgraph.plan.clock import Allowance, Watch
from rdpgraph.testing import brute_force

DOUBLE = torch.float64


class Ticking:
    """A clock that a look moves on."""

    def __init__(self, tick: float) -> None:
        self.time, self.tick = 0.0, tick

    def __call__(self) -> float:
        self.time += self.tick
        return self.time


@pytest.fixture
def watch(monkeypatch):
    """Puts a clock that stands still, until its tick is set, in place of the machine's."""
    found = Ticking(0.0)
    monkeypatch.setattr(clock, "now", found)
    return found


def frustrated(seed: int = 0, side: int = 4, strength: float = 3.0) -> rg.FactorGraph:
    """A grid on which messages take long to converge, or never do."""
    x = rg.VariableArray("x", (side, side), 2)
    generator = torch.Generator().manual_seed(seed)

    def drawn(*shape: int) -> rg.Table:
        return rg.Table(torch.randn(shape, generator=generator, dtype=DOUBLE) * strength)

    return rg.FactorGraph([
        rg.FactorBlock((x[:, :-1], x[:, 1:]), drawn(side, side - 1, 2, 2)),
        rg.FactorBlock((x[:-1], x[1:]), drawn(side - 1, side, 2, 2)),
    ])  # fmt: skip


def test_a_sweep_that_would_end_too_late_is_not_begun(watch):
    starts = []

    def seen(sweep):
        starts.append(watch.time)
        watch.time += 1.0  # the next sweep takes as long

    loopy = rg.Loopy(sweeps=1000, tolerance=0.0, seconds=5.0, progress=seen)
    posterior = rg.infer(frustrated(), scheduler=loopy)
    assert not posterior.status.converged
    assert len(starts) >= 3
    assert starts[-1] <= 5.0


def test_a_sweep_in_many_parts_ends_among_them(watch):
    loopy = rg.Loopy(schedule=rg.loopy.Sequential(), tolerance=1e9, seconds=3.0)
    posterior = rg.infer(frustrated(side=6), scheduler=loopy)
    watch.tick = 1.0
    assert not posterior.status.converged
    assert posterior.status.iterations == 1
    assert watch.time <= 12.0
    watch.tick = 0.0
    assert rg.infer(frustrated(side=6), scheduler=loopy).status.converged


@pytest.mark.parametrize("vanishing", [False, True])
def test_a_sweep_by_residuals_ends_among_its_parts(vanishing, watch):
    graph = frustrated(side=6)
    if vanishing:  # hard zeros take another way
        corners = graph["x[0, 0]"], graph["x[5, 5]"]
        table = rg.Table(torch.tensor([[0.0, -math.inf], [0.0, 0.0]], dtype=DOUBLE))
        graph = graph.with_factors(rg.Factor(corners, table))
    loopy = rg.Loopy(schedule=rg.loopy.Residual(share=0.01), tolerance=1e-9, seconds=6.0)
    posterior = rg.infer(graph, scheduler=loopy)
    watch.tick = 1.0
    assert not posterior.status.converged
    assert watch.time <= 12.0


def test_all_answers_of_messages_share_the_seconds(watch):
    def seen(sweep):
        watch.time += 0.05

    loopy = rg.Loopy(sweeps=10_000, tolerance=0.0, seconds=4.0, progress=seen)
    posterior = rg.infer(frustrated(), scheduler=loopy)
    posterior.mode()
    assert watch.time <= 4.0
    assert math.isfinite(float(posterior.log_partition))
    posterior.marginals()
    posterior.max_marginals()
    assert watch.time <= 1.2 * 4.0


@pytest.mark.long
def test_messages_between_clusters_leave_time_to_read_the_answers_off(watch):
    scheduler = rg.JoinGraph(memory=1, seconds=10.0, tolerance=0.0)
    posterior = rg.infer(frustrated(side=6), scheduler=scheduler)
    assert posterior.plan.route == "join graph"
    watch.tick = 0.01
    posterior.marginals()
    assert not posterior.status.converged
    assert watch.time <= 10.0


def test_modes_and_sums_of_clusters_share_the_seconds(watch):
    scheduler = rg.JoinGraph(memory=1, seconds=10.0, tolerance=0.0)
    posterior = rg.infer(frustrated(side=6), scheduler=scheduler)
    allowance = posterior.solution.allowance
    watch.tick = 0.01
    posterior.mode()
    taken = allowance.spent
    assert 0.0 < taken <= watch.time
    allowance.spent = 9.5
    begin = watch.time
    posterior.marginals()
    assert not posterior.status.converged
    assert watch.time - begin <= 2.0


@pytest.mark.parametrize("kind", [rg.JoinGraph, rg.Loopy])
def test_planning_is_taken_off_the_seconds(kind, watch):
    watch.tick = 0.001
    scheduler = kind(seconds=100.0, memory=1e5)
    plan, run = scheduler.plan(frustrated(side=12))
    assert plan.route == {rg.JoinGraph: "join graph", rg.Loopy: "loopy"}[kind]
    planned = watch.time
    assert 0.0 < run().allowance.spent <= planned


def test_tries_end_when_the_time_does(watch):
    graph, begun = frustrated(), []

    def attempt(left: float):
        begun.append(left)
        watch.time += 4.0
        return rg.Loopy(sweeps=1, tolerance=0.0).plan(graph)[1]()

    tried = FirstConverged((attempt,) * 5, attempt, reduce_graph(graph), Allowance(10.0))
    assert not tried.status().converged
    assert len(begun) == 3
    assert begun == sorted(begun, reverse=True)


def test_a_search_goes_on_from_the_mode_that_messages_say(watch):
    graph, begun = frustrated(seed=3), []

    def messages(left: float):
        begun.append(left)
        watch.time += 2.0
        return rg.Loopy(sweeps=2, tolerance=0.0).plan(graph)[1]()

    class Seeker:
        network, bounding = reduce_graph(graph), SimpleNamespace(is_pairwise=False)

        def sought(self, numbers, start, seconds):
            begun.append(seconds)
            said = messages(0.0).mode()
            torch.testing.assert_close(start, said)
            return Searched(1 - start, torch.zeros(1, dtype=DOUBLE), torch.tensor([False]))

    allowance, network = Allowance(10.0), reduce_graph(graph)
    sums = FirstConverged((messages,), messages, network, allowance)
    together = Sought(sums, Seeker(), allowance)  # pyright: ignore
    mode = together.mode()
    torch.testing.assert_close(mode, 1 - messages(0.0).mode())
    assert not bool(together.mode_is_consistent().any())
    assert begun[0] < 10.0
    assert begun[1] <= 8.0 * effort.MODES


@pytest.mark.long
def test_slices_that_take_too_long_are_told_after_the_first_few(watch):
    graph = frustrated(side=5)
    whole = rg.explain(graph, scheduler=rg.Contraction())
    scheduler = rg.Contraction(memory=whole.stored_bytes / 2, seconds=50.0)
    posterior = rg.infer(graph, scheduler=scheduler)
    assert posterior.plan.num_slices > 1
    solved, solution = [], posterior.solution

    def slow(number: int):
        solved.append(number)
        watch.time += 40.0
        return solution.solve(number)

    with pytest.raises(BudgetError, match="slices would take about"):
        replace(solution, solve=slow).log_partition()
    assert len(solved) == 1
    other = rg.infer(graph, scheduler=scheduler).log_partition
    torch.testing.assert_close(other, rg.infer(graph).log_partition)


def test_a_pass_that_takes_longer_than_predicted_is_ended(watch):
    graph = frustrated()
    solution = rg.Contraction(seconds=10.0).solve(graph)
    watch.tick = 1.0
    with pytest.raises(BudgetError, match="longer than predicted"):
        solution.log_partition()
    watch.tick = 0.0
    found = solution.log_partition()
    torch.testing.assert_close(found, brute_force(graph).log_partition.reshape(1))
    Watch().look()


@pytest.mark.parametrize(("whole", "ends"), [(5.5, True), (7.0, True), (9.5, False)])
def test_log_z_that_is_nearly_done_is_not_given_up(watch, whole, ends):
    """A pass that is foreseen to end leaves no time for others, whose answers are worse."""
    x = [rg.Variable(f"x{number}", 5) for number in range(21)]
    random = torch.Generator().manual_seed(0)
    pairs = [torch.randn(5, 5, generator=random, dtype=DOUBLE) for _ in x[1:]]
    scopes = zip(pairwise(x), pairs, strict=True)
    graph = rg.FactorGraph([rg.Factor(two, rg.Table(values)) for two, values in scopes])
    solution = rg.Contraction(seconds=10.0).plan(graph)[1]()
    watch.tick = whole / len(pairs)  # one look before each of the products, which are alike
    if not ends:
        with pytest.raises(BudgetError, match="longer than predicted"):
            solution.log_partition()
        return
    expected = torch.zeros(5, dtype=DOUBLE)
    for values in pairs:
        expected = (expected.unsqueeze(1) + values).logsumexp(0)
    torch.testing.assert_close(solution.log_partition(), expected.logsumexp(0).reshape(1))


def test_a_pass_goes_on_while_its_end_is_near(watch):
    pace = Watch(10.0)
    watch.time = 9.0
    pace.look(lambda: 0.9)
    pace.look(lambda: 0.5)  # predictions are rough
    with pytest.raises(BudgetError, match="would take 45 s"):
        pace.look(lambda: 0.2)
    watch.time = 2.0
    pace.look(lambda: 0.0)
    watch.time = 10.5
    with pytest.raises(BudgetError):
        pace.look(lambda: 0.99)
    passed = rg.Contraction(seconds=10.0).plan(frustrated())[1]()
    shares = passed._sums.program.shares
    assert shares[0] == 0.0
    assert shares[-1] == 1.0
    assert list(shares) == sorted(shares)


def test_after_an_exact_answer_that_takes_too_long_approximate_ones_follow(watch):
    graph = frustrated(strength=0.3)
    loopy = rg.Loopy().plan(graph)[1]
    spent = []

    def otherwise(seconds: float):
        spent.append(seconds)
        return loopy()

    def late(first: str):
        exact = rg.Contraction(seconds=10.0).plan(graph)[1]()
        both = ExactFirst(exact, otherwise)
        watch.tick = 1.0
        answer = getattr(both, first)()
        watch.tick = 0.0
        return both, answer

    both, answer = late("log_partition")
    torch.testing.assert_close(answer, loopy().log_partition())
    assert not both.status().exact
    both, status = late("status")  # asked for first, it is told of an answer
    assert not status.exact
    torch.testing.assert_close(both.log_partition(), loopy().log_partition())
    assert len(spent) == 2
    assert min(spent) > 1.0
    sure = ExactFirst(rg.Contraction(seconds=10.0).plan(graph)[1](), otherwise)
    assert sure.status().exact
    torch.testing.assert_close(sure.log_partition()[0], brute_force(graph).log_partition)
    watch.tick = 5.0  # the status has computed them, as it is about marginals too
    own = brute_force(graph).joint((graph.variables[0][0, 0],))
    torch.testing.assert_close(sure.variable_marginals()[0, : len(own)], own)


def test_models_that_do_not_fit_the_memory_are_refused_by_name():
    huge = [rg.Variable(f"v{i}", 2**20) for i in range(40)]
    graph = rg.FactorGraph([rg.Factor((), rg.Table(torch.tensor(0.0)))], variables=huge)
    for scheduler in (rg.Loopy(memory=5e7), rg.Auto(memory=5e7, seconds=1e-2)):
        with pytest.raises(BudgetError, match="of memory, and the budget is 50"):
            rg.infer(graph, scheduler=scheduler)
    posterior = rg.infer(graph, scheduler=rg.Contraction(memory=5e7))
    assert float(posterior.log_partition) == pytest.approx(40 * 20 * math.log(2), rel=1e-5)
    with pytest.raises(BudgetError, match="Marginals would take 168 MB, and 50 MB is the budget"):
        posterior.marginals()


def test_the_first_that_converged_answers():
    x, generator = rg.VariableArray("x", (4, 4), 2), torch.Generator().manual_seed(7)
    couplings = 2.5 * torch.randn(2, 3, 4, 2, 2, generator=generator, dtype=DOUBLE)
    across = rg.FactorBlock((x[:, :-1], x[:, 1:]), rg.Table(couplings[0].transpose(0, 1)))
    down = rg.FactorBlock((x[:-1], x[1:]), rg.Table(couplings[1]))
    graph = rg.FactorGraph([across, down])
    never = rg.Loopy(sweeps=1, tolerance=0.0).plan(graph)[1]
    first = rg.Loopy(sweeps=20, tolerance=10.0).plan(graph)[1]
    unused = []

    def third(seconds):
        unused.append(seconds)
        return first()

    left = []

    def second(seconds):
        left.append(seconds)
        return first()

    attempts = (lambda _: never(), second, third)
    chosen = FirstConverged(attempts, attempts[0], None, Allowance(1000.0))
    assert chosen.status().converged
    assert chosen.status().iterations == 1
    assert not unused
    assert 0 < left[0] < 1000
    attempts = (lambda _: never(), lambda _: never())
    last = FirstConverged(attempts, attempts[0], None, Allowance(1.0))
    assert not last.status().converged


def test_many_labels_have_sweeps_before_a_search_within_their_time():
    # Truncated distances of many labels: to lay out the tables for a search takes longer.
    side, labels, seconds = 40, 24, 0.2
    generator, states = torch.Generator().manual_seed(0), torch.arange(labels)
    x, seen = rg.VariableArray("x", (side, side), labels), torch.arange(side) // 8
    noise = 2.0 * torch.randn(side, side, generator=generator, dtype=DOUBLE)
    fields = -0.5 * ((2.0 * (seen + seen[:, None]) + noise).unsqueeze(-1) - states).abs()
    ties = rg.Table.from_logs(-(states - states[:, None]).abs().clamp(max=3).double())
    graph = rg.FactorGraph([
        rg.FactorBlock((x,), rg.Table.from_logs(fields.clamp(min=-2.5))),
        rg.FactorBlock((x[1:], x[:-1]), ties), rg.FactorBlock((x[:, 1:], x[:, :-1]), ties),
    ])  # fmt: skip
    with clock.counted(clock.Counter()):
        begin, posterior = clock.now(), rg.infer(graph, scheduler=rg.Auto(seconds=seconds))
        score, spent = float(graph.score({**posterior.mode()})), clock.now() - begin
    assert spent <= 2.5 * seconds
    bound = float(posterior.mode_bound())
    assert 0.0 <= bound - score <= 0.01 * abs(bound)
