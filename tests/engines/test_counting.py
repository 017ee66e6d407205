"""Counts of models of clauses against enumeration, in a process that ends when it must."""

import itertools
import json
import math
import os
import random
import subprocess
import sys
from collections.abc import Callable
from typing import NoReturn

import pytest
import torch

import rdpgraph as rg
from rdpgraph.engines.counting import worker
from rdpgraph.engines.counting.counter import log_count
from rdpgraph.engines.counting.encoding import encoded
from rdpgraph.engines.counting.solution import CountedFirst, CountedSolution
from rdpgraph.errors import UnsupportedError
from rdpgraph.io.dimacs import parse_dimacs
from rdpgraph.plan.clock import Allowance
from rdpgraph.schedulers.scheduler import reduced
from tests.cases import first_short
from tests.logical import LOGICAL, count_between

pytest.importorskip("pyganak")


COUNTED = {**LOGICAL, "count": count_between(3, 9)}


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_graph(seed: int) -> rg.FactorGraph:
    """A small graph with hard zeros: clauses, soft tables and variables of several states."""
    rng, generator = random.Random(seed), seeded(seed)
    variables = [
        rg.Variable(f"x{i}", rng.choice([2, 2, 2, 3, 4])) for i in range(rng.randint(1, 7))
    ]
    factors: list[rg.Factor] = []
    for _ in range(rng.randint(1, 9)):
        scope = rng.sample(variables, min(len(variables), rng.randint(1, 3)))
        shape = [variable.size for variable in scope]
        values = torch.randn(shape, generator=generator, dtype=torch.float64)
        values = values * rng.choice([1.0, 1.0, 400.0])
        if rng.random() < 0.4:
            values = torch.zeros_like(values)
        if rng.random() < 0.6:
            gone = torch.rand(shape, generator=generator) < rng.choice([0.2, 0.5])
            values = values.masked_fill(gone, -math.inf)
        factors.append(rg.Factor(scope, rg.Table(values)))
    graph = rg.FactorGraph(factors)
    seen = {v: rng.randrange(v.size) for v in graph.variables if rng.random() < 0.15}
    return graph.condition(seen) if seen else graph


def enumerated(graph: rg.FactorGraph) -> torch.Tensor:
    """Log Z by the scores of all configurations."""
    every = torch.cartesian_prod(*[torch.arange(v.size) for v in graph.variables])
    return graph.score_states(every.reshape(-1, graph.num_variables)).logsumexp(0)


@pytest.mark.parametrize("seed", range(40))
def test_counts_are_sums_over_all_configurations(seed: int) -> None:
    graph = random_graph(seed)
    log_z = rg.infer(graph, scheduler=rg.Counting(memory=1e9)).log_partition
    torch.testing.assert_close(log_z, enumerated(graph), rtol=1e-12, atol=1e-12)


def test_each_item_of_a_batch_is_counted() -> None:
    x, y, z = (rg.Variable(name, 3) for name in "xyz")
    values = torch.randn(2, 3, 3, generator=seeded(), dtype=torch.float64)
    values[0, 0] = values[1, :, 2] = -math.inf
    graph = rg.FactorGraph(
        [rg.Factor((x, y), rg.Table(values)), rg.Factor((y, z), rg.Table(values))]
    )
    rows = graph.condition({x: [0, 1], z: [-1, 0]})
    counted = rg.infer(rows, scheduler=rg.Counting(memory=1e9)).log_partition
    torch.testing.assert_close(counted, rg.infer(rows, rg.Contraction()).log_partition)
    assert counted[0] == -math.inf


def test_an_item_that_evidence_alone_makes_impossible_has_no_marginals() -> None:
    x, y, z = (rg.Variable(name, 2) for name in "xyz")
    values = torch.tensor([[0.0, -math.inf], [1.0, 2.0]], dtype=torch.float64)
    graph = rg.FactorGraph([rg.Factor((x, y), rg.Table(values)), rg.Factor(z, rg.Table([1.0, 0]))])
    rows = graph.condition({x: [0, 1], y: [1, 1]})
    counted = rg.infer(rows, scheduler=rg.Counting(memory=1e9))
    exact = rg.infer(rows, rg.Contraction())
    with pytest.warns(UserWarning, match="No configuration"):
        found, expected = (
            [posterior.marginal(variable) for variable in (x, y, z)]
            for posterior in (counted, exact)
        )
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(counted.entropy(), exact.entropy())


def test_contradictions_that_no_state_shows_are_impossible() -> None:
    states = rg.VariableArray("x", (5,), 4)  # of five variables with four states two are equal
    differ = torch.zeros(4, 4).masked_fill(torch.eye(4, dtype=torch.bool), -math.inf)
    pairs = itertools.combinations(range(5), 2)
    graph = rg.FactorGraph([rg.Factor((states[i], states[j]), rg.Table(differ)) for i, j in pairs])
    settled = rg.Factor((rg.Variable("y", 2),), rg.Table(torch.tensor([0.0, -math.inf])))
    graph = rg.FactorGraph([*graph.factors(), settled])
    posterior = rg.infer(graph, scheduler=rg.Counting(memory=1e9))
    assert posterior.log_partition == -math.inf
    with pytest.warns(UserWarning, match="No configuration"):
        assert not any(marginal.any() for marginal in map(posterior.marginal, graph.variables))
    assert not any(posterior.factor_marginal(factor).any() for factor in graph.factors())


def test_weights_beyond_doubles_are_exact() -> None:
    bits = rg.VariableArray("x", (40,), 2)
    factors = [
        rg.Factor((a, b), rg.Table(torch.tensor([[-900.0, -math.inf], [-950.0, -901.0]]).double()))
        for a, b in itertools.pairwise(bits[i] for i in range(40))
    ]
    graph = rg.FactorGraph(factors)
    log_z = rg.infer(graph, scheduler=rg.Counting(memory=1e9)).log_partition
    torch.testing.assert_close(
        log_z, rg.infer(graph, rg.Contraction()).log_partition, rtol=1e-14, atol=0
    )


def stand_ins(low: float, seed: int) -> rg.FactorGraph:
    """Tables of which most scores stand for absence, and are possible where nothing else is."""
    generator, x = seeded(seed), [rg.Variable(f"x{i}", 2 + i % 2) for i in range(6)]
    factors: list[rg.Factor] = []
    for scope in (x[:3], x[1:4], x[2:5], x[3:], (x[0], x[5]), (x[2],)):
        shape = [v.size for v in scope]
        values = torch.randn(shape, generator=generator, dtype=torch.float64)
        gone = torch.rand(shape, generator=generator)
        values = values.masked_fill(gone < 0.6, low).masked_fill(gone < 0.1, -math.inf)
        factors.append(rg.Factor(scope, rg.Table(values)))
    return rg.FactorGraph(factors)


@pytest.mark.parametrize("low", [-2e4, -1e9, -1e17, -1e300])
def test_scores_that_stand_for_absence_leave_the_digits_of_others(low: float) -> None:
    for seed in range(2):
        graph = stand_ins(low, seed)
        posterior = rg.infer(graph, scheduler=rg.Counting(memory=1e9))
        torch.testing.assert_close(
            posterior.log_partition, enumerated(graph), rtol=1e-12, atol=1e-12
        )
        possible = bool(enumerated(graph) > 0.5 * low)
        expected = rg.infer(graph).marginals() if possible else {}
        for variable, shares in expected.items():
            torch.testing.assert_close(posterior.marginal(variable), shares, rtol=0, atol=1e-9)
        # The counter itself, without a circuit.
        encoding = encoded(reduced(graph, 1.0))
        try:
            log_z = log_count(encoding, "pyganak", seconds=60.0, memory=1e9)
        except rg.errors.BudgetError:
            assert not possible
        else:
            assert log_z == pytest.approx(float(enumerated(graph)), rel=1e-12, abs=1e-9)


def test_automata_are_counted_without_their_tables() -> None:
    bits = rg.VariableArray("x", (40,), 2)
    graph = rg.FactorGraph(
        [
            rg.Factor(bits, rg.Cardinality(40, at_least=3, at_most=4, dtype=torch.float64)),
            rg.Factor(bits, rg.Xor(40, dtype=torch.float64)),
            rg.Factor(bits[:30], rg.Or(30, dtype=torch.float64)),
        ]
    )
    log_z = rg.infer(graph, scheduler=rg.Counting(memory=1e9)).log_partition
    assert log_z.item() == pytest.approx(math.log(math.comb(40, 3) - math.comb(10, 3)), abs=1e-12)


@pytest.mark.parametrize("kind", COUNTED)
def test_every_logical_factor_is_met_by_as_many_configurations_as_it_says(kind: str) -> None:
    """Beside a second one of other slots, so that no formula answers."""
    one, bits = COUNTED[kind], rg.VariableArray("x", (22,), 2)
    factors = [
        rg.Factor(bits[:20], one.make(20, dtype=torch.float64)),
        rg.Factor(bits[18:], rg.Or(4, dtype=torch.float64)),
    ]
    expected = sum(
        math.comb(18, first) * math.comb(2, shared) * (4 if shared else 3)
        for first in range(19)
        for shared in range(3)
        if one.meets(first + shared, 20)
    )
    log_z = rg.infer(rg.FactorGraph(factors), scheduler=rg.Counting(memory=1e9)).log_partition
    assert log_z.item() == pytest.approx(math.log(expected), abs=1e-10)


def hard_clauses(count: int) -> rg.FactorGraph:
    """Random clauses of three of so many variables, whose count takes longer than anybody waits."""
    rng, bits = random.Random(0), rg.VariableArray("x", (count,), 2)
    factors: list[rg.Factor] = []
    for _ in range(int(1.8 * count)):
        values = torch.zeros(8, dtype=torch.float64)
        values[rng.randrange(8)] = -math.inf
        scope = [bits[i] for i in rng.sample(range(count), 3)]
        factors.append(rg.Factor(scope, rg.Table(values.reshape(2, 2, 2))))
    return rg.FactorGraph(factors)


def test_a_counter_that_does_not_end_is_ended() -> None:
    graph = hard_clauses(400)
    with pytest.raises(rg.errors.BudgetError, match=r"did not end in 0\.\d+ s; raise the time"):
        _ = rg.infer(graph, scheduler=rg.Counting(seconds=0.3, memory=1e9)).log_partition
    left = subprocess.run(["ps", "-eo", "ppid,args"], capture_output=True, text=True, check=True)
    mine = [line.split(None, 1) for line in left.stdout.splitlines()]
    assert not [args for parent, args in mine if parent == str(os.getpid()) and "worker.py" in args]


def test_auto_says_that_it_counts() -> None:
    plan = rg.explain(hard_clauses(300), scheduler=rg.Auto(seconds=2.0, memory=1e8))
    assert (
        "log Z alone is counted where possible, because 540 of 540 factors are pure constraints"
        in plan.why
    )


def test_marginal_modes_are_refused() -> None:
    graph = random_graph(3)
    with pytest.raises(rg.errors.UnsupportedError, match="no marginal modes"):
        rg.infer(graph, scheduler=rg.Counting(memory=1e9)).marginal_mode(graph.variables[:1])


def asked(graph: rg.FactorGraph, scheduler: rg.extend.Scheduler) -> list[torch.Tensor]:
    """Answers of a graph that some configuration of is possible."""
    posterior = rg.infer(graph, scheduler=scheduler)
    answers = [posterior.marginal(v) for v in graph.variables]
    answers += [posterior.factor_marginal(factor) for factor in graph.factors()]
    answers += [posterior.max_marginals()[v] for v in graph.variables]
    return [*answers, posterior.entropy(), graph.score(posterior.mode())]


@pytest.mark.parametrize(
    "seed",
    first_short((s for s in range(40) if enumerated(random_graph(s)) > -math.inf), 16),
)
def test_circuits_answer_as_contraction_does(seed: int) -> None:
    graph = random_graph(seed)
    circuits, exact = asked(graph, rg.Counting(memory=1e9)), asked(graph, rg.Contraction())
    for own, expected in zip(circuits, exact, strict=True):
        torch.testing.assert_close(own, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("question", ["marginals", "entropy", "max_marginals"])
def test_answers_without_a_gradient_refuse_one(question: str) -> None:
    a, b = rg.Variable("a", 3), rg.Variable("b", 2)
    table = torch.randn(3, 2, generator=seeded(), dtype=torch.float64, requires_grad=True)
    graph = rg.FactorGraph([rg.Factor((a, b), rg.Table(table)), rg.Factor((b,), rg.Or(1))])
    answers = getattr(rg.infer(graph, scheduler=rg.Counting()), question)()
    values = answers[a] if isinstance(answers, dict) else answers
    with pytest.raises(UnsupportedError, match=r"has a gradient of log Z only"):
        values.sum().backward()


def test_gradients_of_a_batch_are_those_of_contraction() -> None:
    x, y, z = (rg.Variable(name, 3) for name in "xyz")
    first = torch.randn(4, 3, 3, generator=seeded(), dtype=torch.float64)
    gone = torch.rand(4, 3, 3, generator=seeded(1)) < 0.3
    second = torch.randn(3, 3, generator=seeded(2), dtype=torch.float64)
    answers: list[tuple[torch.Tensor, ...]] = []
    for scheduler in (rg.Counting(memory=1e9), rg.Contraction()):
        a, b = first.clone().requires_grad_(), second.clone().requires_grad_()
        own = rg.Table(a.masked_fill(gone, -math.inf))
        graph = rg.FactorGraph([rg.Factor((x, y), own), rg.Factor((y, z), rg.Table(b))])
        rows = graph.condition({z: [0, 2, -1, 1], x: [-1, -1, 2, -1]})
        log_z = rg.infer(rows, scheduler=scheduler).log_partition
        answers.append((log_z, *torch.autograd.grad(log_z.sum(), (a, b))))
    for own, expected in zip(*answers, strict=True):
        torch.testing.assert_close(own, expected)


@pytest.mark.parametrize("question", ["marginals", "mode", "sample", "bounds"])
def test_the_gradient_of_log_z_is_there_after_answers_without(question: str) -> None:
    table = torch.randn(3, 2, generator=seeded(), dtype=torch.float64, requires_grad=True)
    a, b = rg.Variable("a", 3), rg.Variable("b", 2)
    graph = rg.FactorGraph([rg.Factor((a, b), rg.Table(table)), rg.Factor((b,), rg.Or(1))])
    posterior = rg.infer(graph.condition({a: [0, -1]}), scheduler=rg.Counting())
    with torch.no_grad():
        ask = getattr(posterior, question)
        ask(2) if question == "sample" else ask()
    (found,) = torch.autograd.grad(posterior.log_partition.sum(), table)
    fresh = rg.infer(graph.condition({a: [0, -1]}), scheduler=rg.Contraction())
    (expected,) = torch.autograd.grad(fresh.log_partition.sum(), table)
    torch.testing.assert_close(found, expected)


def test_second_derivatives_are_refused() -> None:
    def log_z(table: torch.Tensor) -> torch.Tensor:
        factor = rg.Factor((rg.Variable("x", 2), rg.Variable("y", 2)), rg.Table(table))
        return rg.infer(rg.FactorGraph([factor]), scheduler=rg.Counting()).log_partition

    with pytest.raises(UnsupportedError, match="differentiable once"):
        torch.autograd.functional.hessian(log_z, torch.zeros(2, 2, dtype=torch.float64))


def test_draws_have_the_marginals_of_the_circuit() -> None:
    posterior = rg.infer(random_graph(2), scheduler=rg.Counting(memory=1e9))
    draws = posterior.sample(600, generator=seeded())
    for variable, states in draws.items():
        marginal = posterior.marginal(variable)
        frequencies = torch.nn.functional.one_hot(states, len(marginal)).double().mean(0)
        torch.testing.assert_close(frequencies, marginal, rtol=0, atol=0.12)


def test_one_circuit_serves_all_weights_of_the_same_clauses() -> None:
    bits = rg.VariableArray("x", (6,), 2)
    hard = torch.tensor([[0.0, 0.0], [0.0, -math.inf]], dtype=torch.float64)
    solutions = []
    for seed in range(2):
        weights = torch.randn(6, 2, generator=seeded(seed), dtype=torch.float64)
        pairs = rg.FactorBlock((bits[1:], bits[:-1]), rg.Table(hard))
        graph = rg.FactorGraph([pairs, rg.FactorBlock((bits,), rg.Table(weights))])
        posterior = rg.infer(graph, scheduler=rg.Counting(memory=1e9))
        expected = rg.infer(graph, rg.Contraction()).marginal(bits)
        torch.testing.assert_close(posterior.marginal(bits), expected)
        solutions.append(posterior.solution)
    assert solutions[0].circuit is solutions[1].circuit


def test_circuits_that_do_not_fit_are_refused_in_time() -> None:
    posterior = rg.infer(hard_clauses(300), scheduler=rg.Counting(seconds=0.3, memory=1e8))
    with pytest.raises(rg.errors.BudgetError, match="No circuit of 300 literals and 540 clauses"):
        posterior.marginals()


def test_a_circuit_answers_first_where_it_is_compiled() -> None:
    graph = random_graph(3)
    exact = rg.infer(graph, scheduler=rg.Contraction())
    network = reduced(graph, 1.0)
    count = CountedSolution(network, 1e9, Allowance(5.0))

    def never(_: float) -> NoReturn:
        raise AssertionError

    posterior = CountedFirst(count, never, Allowance(5.0))
    torch.testing.assert_close(
        posterior.variable_marginals(), exact.solution.variable_marginals(), check_dtype=False
    )
    assert posterior.status().method == "counting"
    assert float(graph.score_states(posterior.mode())) == pytest.approx(
        float(graph.score_states(exact.solution.mode()))
    )


def test_components_of_other_variables_and_clauses_are_told_apart() -> None:
    # Variables and clauses of two components make the same list of numbers here.
    text = """p cnf 10 13
        -10 -9 8 0 -10 -1 3 0 -10 5 7 0 -10 6 8 0 -8 -3 1 0 -8 4 0 -7 1 4 0 -7 5 6 0
        -6 9 0 -5 -2 6 0 -5 -1 6 0 -4 -1 3 0 -2 8 9 0"""
    graph = parse_dimacs(text.encode(), source="clauses")
    posterior = rg.infer(graph, scheduler=rg.Counting(memory=1e9))
    _ = posterior.marginals()  # by a circuit
    exact = rg.infer(graph, scheduler=rg.Contraction()).log_partition
    torch.testing.assert_close(posterior.log_partition, exact)


@pytest.fixture
def by_d4(monkeypatch) -> Callable[..., CountedSolution]:
    """Solutions where there is no compiled library, and so no compiler of circuits."""
    monkeypatch.setattr("rdpgraph.native.library.available", lambda *_: False)

    def solution(graph: rg.FactorGraph, seconds: float = 60.0) -> CountedSolution:
        return CountedSolution(reduced(graph, 1.0), 1e9, Allowance(seconds), ("d4",))

    return solution


@pytest.mark.parametrize(
    "seed",
    first_short((s for s in range(6) if enumerated(random_graph(s)) > -math.inf), 3),
)
def test_circuits_that_leave_out_variables_answer_as_contraction_does(seed, by_d4) -> None:
    pytest.importorskip("py_d4")
    graph = random_graph(seed)
    counted, exact = by_d4(graph), rg.infer(graph, rg.Contraction()).solution
    for ask in ("log_partition", "variable_marginals", "max_marginals", "entropy"):
        ours, theirs = getattr(counted, ask)(), getattr(exact, ask)()
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9, check_dtype=False)
    best = [float(graph.score_states(one.mode())) for one in (counted, exact)]
    assert best[0] == pytest.approx(best[1])
    draws = counted.sample(200, seeded()).squeeze(1)
    assert bool((graph.score_states(draws) > -math.inf).all())
    sizes = [v.size for v in graph.variables]
    shares = [torch.bincount(draws[:, i], minlength=size) for i, size in enumerate(sizes)]
    expected = exact.variable_marginals().squeeze(0).float()
    torch.testing.assert_close(torch.cat(shares) / 200, expected, rtol=0, atol=0.15)


def test_d4_counts_models_without_weights() -> None:
    pytest.importorskip("py_d4")
    for graph in (hard_clauses(12), hard_clauses(3)):
        encoding = encoded(reduced(graph, 1.0))
        count = log_count(encoding, "d4", seconds=60.0, memory=1e9)
        exact = rg.infer(graph, scheduler=rg.Contraction()).log_partition
        assert count == pytest.approx(float(exact), abs=1e-9)


def test_a_count_goes_on_after_other_answers(by_d4) -> None:
    graph = hard_clauses(12)
    exact = rg.infer(graph, scheduler=rg.Contraction()).solution
    taken: list[float] = []

    def other(spent: float) -> CountedSolution:
        taken.append(spent)
        return by_d4(graph, seconds=20.0)

    late = CountedFirst(by_d4(graph, seconds=0.0), other, Allowance(20.0), kept=5.0)
    torch.testing.assert_close(late.log_partition(), exact.log_partition(), check_dtype=False)
    assert taken[0] >= 5.0
    assert late.status_of("log_partition").method == "counting"


def test_auto_answers_rows_by_one_circuit() -> None:
    bits, count = rg.VariableArray("x", (40,), 2), 40
    weights = torch.randn(count, 2, generator=seeded(), dtype=torch.float64)
    apart = rg.Table(torch.tensor([[0.0, 0.0], [0.0, -math.inf]], dtype=torch.float64))
    pairs = [rg.Factor((bits[i], bits[j]), apart) for i in range(count) for j in range(i)]
    graph = rg.FactorGraph([*pairs, rg.FactorBlock((bits,), rg.Table(weights))])
    rows = torch.randint(-1, 2, (50, count), generator=seeded(1))
    rows[rows.cumsum(1).clamp(min=0) > 1] = -1
    rows[0, :2], rows[1, :2] = 1, torch.tensor([0, 1])
    given = graph.condition({bits: rows})
    # Of at most one bit that is 1: no bit, or that of each column.
    ones = torch.cat([torch.zeros(1, count), torch.eye(count)]).bool()
    scores = torch.where(ones, weights[:, 1], weights[:, 0]).sum(1)
    fits = ((rows.unsqueeze(1) == -1) | (rows.unsqueeze(1) == ones)).all(2)
    expected = torch.where(fits, scores, -math.inf)
    auto = rg.Auto(seconds=20.0, memory=1e7)
    assert "one circuit for all rows" in rg.explain(given, scheduler=auto).why
    posterior = rg.infer(given, scheduler=auto)
    torch.testing.assert_close(posterior.log_partition, expected.logsumexp(1))
    assert posterior.status.method == "counting"
    with pytest.warns(UserWarning, match="No configuration"):
        marginals = posterior.marginal(bits)
    shares = expected.softmax(1).nan_to_num(0.0) @ ones.double()
    torch.testing.assert_close(marginals[..., 1], shares)


@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are those of Linux")
def test_a_counter_keeps_to_a_lower_limit_of_the_process():
    limits = "import resource; resource.setrlimit(resource.RLIMIT_DATA, (10**9, 10**9))"
    run = f"{limits}; import runpy; runpy.run_path({worker.__file__!r}, run_name='__main__')"
    parts = [(2, [[1, 2]], None, None)]
    request = json.dumps({"program": "pyganak", "memory": 2e9, "parts": parts})
    done = subprocess.run(
        [sys.executable, "-c", run], input=request, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == pytest.approx([math.log(3)])
