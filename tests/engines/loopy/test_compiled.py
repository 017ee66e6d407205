"""Compiled sweeps pass the messages that torch passes, on any graph, schedule and dtype."""

import math
import random
from dataclasses import dataclass

import pytest
import torch

import rdpgraph as rg
from tests.engines.loopy.helpers import SCHEDULES, assert_same_run, loopy, same, seeded
from tests.logical import LOGICAL, count_between


@dataclass(frozen=True, eq=False)
class Reference(rg.Automaton):
    """The same potential as a user's own kind, whose messages torch passes."""

    def select(self, block, rows, arity):
        chosen = super().select(block, rows, arity)
        return Reference(chosen.transitions, chosen.log_accept, chosen.arity)


def logical(chance, arity):
    kind = chance.choice([*LOGICAL, "count"])
    if kind == "count":
        least = chance.randint(0, arity - 1)
        return count_between(least, least + 1).make(arity)
    if kind == "and":  # of all but the last, which says whether they are
        rows = [[2, 1], [4, 1], [3, 2], [3, 3], [4, 4]]
        no = -math.inf
        return rg.Automaton(rows, torch.tensor([no, 0.0, no, 0.0, no]), arity)
    return LOGICAL[kind].make(arity)


def automaton(chance, generator, states, arity, rows):
    """A random automaton over slots of some states, some of whose ends are hard zeros."""
    count = chance.randint(2, 4)
    transitions = torch.randint(count, (count, states), generator=generator)
    lead = (rows,) if rows else ()
    accept = torch.randn(*lead, count, generator=generator, dtype=torch.float64)
    accept[..., -1] = torch.where(accept[..., -1] > 0, accept[..., -1], -math.inf)
    return rg.Automaton(transitions, accept, arity)


def drawn(seed, *, rows=0, evidence=False, dtype=torch.float64, far=1.0):
    """The same random graph of logical factors, automata, and tables twice: ours, and a user's."""
    chance, generator = random.Random(seed), seeded(seed)
    sizes = [2] * 8 + [3] * 4
    variables = [rg.Variable(f"v{i}", size) for i, size in enumerate(sizes)]
    factors = [
        rg.Factor((v,), rg.Table(far * torch.randn(v.size, generator=generator, dtype=dtype)))
        for v in variables[1:]
    ]
    for _ in range(3):
        scope = tuple(chance.sample(variables[:8], chance.randint(5, 7)))
        factors.append(rg.Factor(scope, logical(chance, len(scope))))
    scope = tuple(chance.sample(variables[8:], 3))
    factors.append(
        rg.Factor(scope, automaton(chance, generator, 3, 3, rows * (chance.random() < 0.5)))
    )
    for _ in range(4):
        scope = tuple(chance.sample(variables, chance.randint(2, 3)))
        lead = [rows] if rows and chance.random() < 0.5 else []
        shape = [*lead, *(v.size for v in scope)]
        values = far * torch.randn(shape, generator=generator, dtype=dtype)
        gone = torch.rand(shape, generator=generator) < 0.1
        factors.append(rg.Factor(scope, rg.Table(values.masked_fill(gone, -math.inf))))
    given = {}
    if evidence:
        seen = chance.sample(variables, 3)
        given = {v: torch.randint(-1, v.size, (rows or 3,), generator=generator) for v in seen}
        first = seen[0]
        given[first] = given[first].clamp(min=0)  # observed in all rows, in states of their own
    both = []
    for kind in (rg.Automaton, Reference):
        parts = []
        for factor in factors:
            p = factor.potential
            if isinstance(p, rg.Automaton):
                p = kind(p.transitions, p.log_accept.to(dtype), p.arity)
            parts.append(rg.Factor(factor.variables, p))
        graph = rg.FactorGraph(parts)
        both.append(graph.condition(given) if given else graph)
    return variables, both


@pytest.mark.filterwarnings("ignore:No configuration is possible")
def assert_alike(seed, *, tolerance=1e-9, name="flooding", draw=None, **options):
    variables, graphs = drawn(seed, **(draw or {}))
    options = {"sweeps": 6, "tolerance": 0.0} | options
    ours, theirs = (loopy(graph, name, **options) for graph in graphs)
    pairs, best = ((v, v) for v in variables), options.get("temperature") == 0.0
    assert_same_run(ours, theirs, pairs, tolerance=tolerance, best=best)


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("seed", range(2))
def test_sums_of_every_schedule(name, seed):
    assert_alike(seed, name=name)


@pytest.mark.parametrize("name", ["flooding", "sequential"])
@pytest.mark.parametrize("seed", range(3, 5))
def test_maxima(name, seed):
    assert_alike(seed, name=name, temperature=0.0)


@pytest.mark.parametrize(
    "options",
    [
        {"damping": 0.3},
        {"damping": rg.loopy.ProbabilityDamping(0.4)},
        {"counting": rg.loopy.Fractional(0.6)},
        {"counting": rg.loopy.TreeReweighted(), "damping": 0.2},
        pytest.param(
            {"temperature": 0.4, "counting": rg.loopy.Fractional(1.7)}, marks=pytest.mark.long
        ),
        {"temperature": 0.0, "counting": rg.loopy.Fractional(0.6), "damping": 0.5},
    ],
)
def test_dampings_temperatures_and_counting_numbers(options):
    assert_alike(6, **options)
    assert_alike(8, name="ordered", **options)


@pytest.mark.parametrize(
    ("name", "temperature"),
    [
        ("flooding", 0.0),
        pytest.param("residual", 1.0, marks=pytest.mark.long),
        pytest.param("random", 0.0, marks=pytest.mark.long),
        ("flooding", 1.0),
    ],
)
def test_rows_whose_evidence_and_tables_rule_out_other_states(name, temperature):
    for seed in range(10, 12):
        draw = {"rows": 3, "evidence": seed % 2 == 0}
        assert_alike(seed, name=name, draw=draw, temperature=temperature)


def test_log_values_far_beyond_the_range_of_exponentials():
    """Sums are exact where every product underflows: they are taken in logs there."""
    assert_alike(20, draw={"far": 3e3})
    assert_alike(21, draw={"far": 3e3, "rows": 3, "evidence": True})


def test_single_precision():
    for seed in range(30, 32):
        for temperature in (0.0, 1.0):
            draw = {"dtype": torch.float32}
            assert_alike(seed, draw=draw, temperature=temperature, tolerance=2e-4)


def blocks_of_pairs(*, dtype, rows=0, observed=0):
    """Blocks of more factors than a vector has lanes, over binary variables; ours, and a user's."""
    generator, count = seeded(40), 45
    x = rg.VariableArray("x", (60,), 2)
    lead = (rows,) if rows else ()
    unary = torch.randn(*lead, 60, 2, generator=generator, dtype=dtype)
    no = -math.inf
    shared = torch.tensor([[[0.0, no], [0.0, no]], [[0.0, no], [no, 0.0]]], dtype=dtype)
    scopes = [torch.stack([torch.randperm(60, generator=generator)[:5] for _ in range(count)])]
    scopes += [
        torch.arange(count).unsqueeze(1) + torch.tensor(each) for each in ((0, 5, 9), (1, 3))
    ]
    graphs = []
    for kind in (rg.Automaton, Reference):
        one = rg.AtMostOne(5, dtype=dtype)
        each = torch.randn(count, 2, 2, generator=seeded(41), dtype=dtype)
        potentials = [kind(one.transitions, one.log_accept, 5), rg.Table(shared), rg.Table(each)]
        blocks = [rg.FactorBlock((x,), rg.Table(unary))]
        for at, potential in zip(scopes, potentials, strict=True):
            blocks.append(rg.FactorBlock(tuple(x[part] for part in at.T), potential))
        graph = rg.FactorGraph(blocks)
        if observed:
            graph = graph.condition(
                {x[: 2 * observed : 2]: torch.zeros(observed, dtype=torch.long)}
            )
        graphs.append(graph)
    return x, graphs


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("given", [{}, {"rows": 3}, {"observed": 7}])
def test_maxima_of_binary_variables_are_held_as_log_odds(dtype, given):
    x, graphs = blocks_of_pairs(dtype=dtype, **given)
    for options in ({}, {"damping": 0.3}, {"damping": rg.loopy.ProbabilityDamping(0.4)}):
        settings = {"sweeps": 12, "tolerance": 0.0, "temperature": 0.0} | options
        ours, theirs = (loopy(graph, **settings) for graph in graphs)
        tolerance = 1e-9 if dtype == torch.float64 else 1e-3
        assert_same_run(ours, theirs, [(x, x)], tolerance=tolerance, best=True)


def test_long_constraints_whose_running_totals_leave_the_range():
    """A count of 600 slots, each of which is all but decided."""
    x = rg.VariableArray("x", (600,), 2)
    logs = torch.zeros(600, 2, dtype=torch.float64)
    logs[:, 1] = torch.linspace(-900.0, 2.0, 600, dtype=torch.float64)
    potential = rg.ExactlyOne(600, dtype=torch.float64)
    graph = rg.FactorGraph([rg.FactorBlock((x,), rg.Table(logs)), rg.Factor(tuple(x), potential)])
    posterior = rg.infer(graph, rg.Loopy())
    same(posterior.log_partition, logs[:, 1].logsumexp(0), 1e-10)
    same(posterior.marginal(x)[:, 1], logs[:, 1].softmax(0), 1e-10)


def test_rows_are_what_each_is_by_itself_whenever_they_end():
    _, (graph, _) = drawn(2, rows=5)
    whole = loopy(graph, tolerance=1e-10, damping=0.4, sweeps=300)
    again = rg.infer(graph, rg.Loopy(tolerance=1e-10, damping=0.4, sweeps=300, seconds=1e6))
    same(whole.log_partition, again.log_partition, 1e-12)  # one sweep a call, and many
    assert whole.status.trace == again.status.trace


def test_threads_change_nothing():
    """Threads share the factors of one item, or have items of their own."""
    before = torch.get_num_threads()
    x = rg.VariableArray("x", (96, 96), 2)
    logs = torch.randn(96, 96, 2, generator=seeded(0), dtype=torch.float64)
    one = rg.ExactlyOne(96, dtype=torch.float64)
    sides = [tuple(x[:, j] for j in range(96)), tuple(x[i] for i in range(96))]
    blocks = [rg.FactorBlock(side, one) for side in sides]
    graph = rg.FactorGraph([rg.FactorBlock((x,), rg.Table(logs)), *blocks])
    _, (rows, _) = drawn(0, rows=400)
    answers = []
    for threads in (1, 2):
        posteriors = loopy(graph, sweeps=4), loopy(rows, sweeps=4)
        torch.set_num_threads(threads)
        try:
            answers.append([(p.log_partition, p.status.trace) for p in posteriors])
        finally:
            torch.set_num_threads(before)
    for (log_z, trace), (other, again) in zip(*answers, strict=True):
        same(log_z, other, 1e-12)
        assert trace == again


@pytest.mark.parametrize("damping", [0.0, 0.4, 0.7])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_damping_of_binary_graphs_of_logical_factors(damping, dtype):
    """Where all variables are binary and no table has a hard zero, pairs of values are stored."""
    places, generator = rg.VariableArray("x", (16, 16), 2), seeded(0)
    worth = rg.Table(torch.randn(16, 16, 2, generator=generator, dtype=dtype))
    one = rg.ExactlyOne(16)
    runs = []
    for kind in (rg.Automaton, Reference):
        row = kind(one.transitions, one.log_accept.to(dtype), 16)
        lines = [tuple(places[:, j] for j in range(16)), tuple(places[i] for i in range(16))]
        blocks = [rg.FactorBlock((places,), worth), *(rg.FactorBlock(line, row) for line in lines)]
        runs.append(loopy(rg.FactorGraph(blocks), damping=damping, sweeps=6, tolerance=0.0))
    tolerance = 1e-9 if dtype == torch.float64 else 1e-4
    same(runs[0].marginal(places), runs[1].marginal(places), tolerance)
    assert runs[0].status.trace == pytest.approx(runs[1].status.trace, rel=1e2 * tolerance)
