"""Compiled sweeps pass the messages that torch passes, on any graph, schedule and dtype."""

import itertools
import math
import random
from dataclasses import dataclass
from functools import partial

import pytest
import torch

import rdpgraph as rg
from rdpgraph.engines.loopy import traceback
from rdpgraph.engines.loopy.compiled import compiled_messages
from rdpgraph.engines.loopy.log_odds import CompiledOdds, LogOdds
from rdpgraph.engines.loopy.orders import orders, peeled
from tests.engines.loopy.helpers import SCHEDULES, loopy, same, seeded
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
    same(ours.log_partition, theirs.log_partition, tolerance)
    for v in variables:
        if options.get("temperature") == 0.0:  # rounding decides between states that tie
            same(ours.max_marginals()[v], theirs.max_marginals()[v], tolerance)
        else:
            same(ours.marginal(v), theirs.marginal(v), tolerance)
    # Rounding decides after which sweep nothing changes any more.
    traces = zip(ours.status.trace, theirs.status.trace, strict=False)
    for one, other in traces:
        assert one == pytest.approx(other, rel=1e3 * tolerance, abs=1e3 * tolerance)


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
    for seed in range(6, 8):
        assert_alike(seed, **options)
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
    for seed in range(20, 22):
        assert_alike(seed, draw={"far": 3e3})
        assert_alike(seed, draw={"far": 3e3, "rows": 3, "evidence": True})


def test_single_precision():
    for seed in range(30, 32):
        for temperature in (0.0, 1.0):
            draw = {"dtype": torch.float32}
            assert_alike(seed, draw=draw, temperature=temperature, tolerance=2e-4)


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


def decoding_cases():
    """Equations for maxima, their messages after a few sweeps, and a generator."""
    cases = [
        (0, {}, {}),
        (1, {"rows": 3, "evidence": True}, {}),
        (2, {"evidence": True}, {}),
        (3, {}, {"counting": rg.loopy.Fractional(0.6)}),
        (4, {"far": 50.0}, {}),
        (5, {"rows": 2, "dtype": torch.float32}, {}),
    ]
    for seed, draw, options in cases:
        _, (graph, _) = drawn(seed, **draw)
        solution = loopy(graph, sweeps=4, **options).solution.maximal
        yield solution.equations, solution.outcome.messages, seeded(seed)


def test_layers_in_which_to_decide_are_those_of_torch():
    for equations, _, _ in decoding_cases():
        outwards, colours, peeling, counts = compiled_messages(equations).layers(peels=True)
        expected = *orders(equations.edges), peeled(equations.edges)
        for layers, count, order in zip(
            (outwards, colours, peeling), counts, expected, strict=True
        ):
            assert torch.equal(layers, order.numbers)
            assert count == len(order.layers)


def test_configurations_are_scored_and_decided_as_by_torch():
    for equations, messages, generator in decoding_cases():
        compiled = compiled_messages(equations)
        shape = equations.batch, len(equations.edges.home)
        states = torch.zeros(shape, dtype=torch.long)
        for c in equations.edges.classes:
            drawn_states = torch.randint(c.size, (shape[0], len(c.variables)), generator=generator)
            states[:, c.variables] = drawn_states
        same(compiled.scores(states), traceback.scores(equations, states), 1e-5)
        some = torch.rand(shape, generator=generator) < 0.5
        for order, free in itertools.product(
            orders(equations.edges), (some, torch.ones_like(some))
        ):
            ours = compiled.traced(compiled.flat(messages), states, free, order.numbers)
            theirs = traceback.traced(equations, messages, states, free, order, math.inf)
            assert torch.equal(ours, theirs)


def test_compiled_ascent_ends_where_no_variable_gains():
    for equations, _, _ in decoding_cases():
        compiled = compiled_messages(equations)
        *_, colours = orders(equations.edges)
        states = torch.zeros(equations.batch, len(equations.edges.home), dtype=torch.long)
        before = compiled.scores(states)
        for _ in range(10):
            passes = torch.ones(equations.batch, dtype=torch.long)
            states = compiled.ascended(states, colours.numbers, passes)
            after = compiled.scores(states)
            lost = (after[:, 0] == before[:, 0]) & (after[:, 1] < before[:, 1] - 1e-4)
            assert not (lost | (after[:, 0] < before[:, 0])).any()
            before = after
        for c in equations.edges.classes:
            for variable, state in itertools.product(c.variables.tolist(), range(c.size)):
                other = states.clone()
                other[:, variable] = state
                assert not traceback.better(compiled.scores(other) - 1e-4, before).any()


def binary_pairs(seed, *, batch=(), shared=False, dtype=torch.float64):
    """A grid of binary variables, some pairs the other way round, and one variable alone."""
    generator = seeded(seed)
    x = rg.VariableArray("x", (5, 6), 2)
    drawn = partial(torch.randn, generator=generator, dtype=dtype)
    lead = (*batch, 1, 1) if shared else (*batch, 5, 5)
    return rg.FactorGraph(
        [
            rg.FactorBlock((x,), rg.Table(drawn(*batch, 5, 6, 2))),
            rg.FactorBlock((x[:, 1:], x[:, :-1]), rg.Table(drawn(*lead, 2, 2))),
            rg.FactorBlock((x[:3, :5], x[1:4, :5]), rg.Table(drawn(2, 2))),
        ]
    )


@pytest.mark.parametrize("form", [CompiledOdds, LogOdds])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    "draw",
    [{}, {"shared": True}, {"batch": (3,)}, {"batch": (2,), "shared": True},
     {"dtype": torch.float32, "batch": (40,)}],
)  # fmt: skip
def test_log_odds_are_the_messages_of_the_equations(form, temperature, draw):
    solution = loopy(binary_pairs(0, **draw), temperature=temperature).solution
    equations = solution.equations
    if not form.applies(equations):
        assert form is LogOdds
        assert temperature == 0.0
        return
    messages = equations.flat_messages()
    odds = form(equations, messages)
    for keep in (0.0, 0.0, 0.3, 0.0):
        new = equations.update(messages)
        mixed = tuple(
            (1 - keep) * one + keep * other for one, other in zip(new, messages, strict=True)
        )
        largest = odds.step(keep)
        changes = [equations.change(one, other) for one, other in zip(new, messages, strict=True)]
        expected = torch.cat([part.flatten(1) for part in changes], 1).amax(1)
        assert bool((largest >= expected - 1e-5).all())
        assert bool((largest <= 2 * expected + 1e-5).all())
        # A mean of log-odds is that of logs up to a constant.
        mixed = tuple(part - part.amax(1, keepdim=True) for part in mixed)
        for ours, theirs in zip(odds.messages(), mixed, strict=True):
            assert torch.allclose(ours[:, 1] - ours[:, 0], theirs[:, 1] - theirs[:, 0], atol=1e-4)
            assert not ours.amax(1).any()
        messages = odds.messages()


def test_log_odds_beyond_the_range_of_exponentials_are_left_to_others():
    x = rg.VariableArray("x", (3,), 2)
    far = rg.Table(torch.tensor([[400.0, -400.0], [-400.0, 400.0]]))
    never = rg.Table(torch.tensor([[0.0, -torch.inf], [1.0, 2.0]]))
    for table, temperature, fits in ((far, 1.0, False), (far, 0.0, True), (never, 0.0, False)):
        graph = rg.FactorGraph([rg.FactorBlock((x[1:], x[:-1]), table)])
        equations = loopy(graph, temperature=temperature).solution.equations
        assert CompiledOdds.applies(equations) == fits
