"""Decoding: ties are broken together in a batch, within the sweeps that the messages took."""

import itertools
import math
from dataclasses import replace

import pytest
import torch

import rdpgraph as rg
from rdpgraph._core import tuning
from rdpgraph.engines.loopy import decoding, traceback
from rdpgraph.engines.loopy.compiled import compiled_messages
from rdpgraph.engines.loopy.orders import orders, peeled
from rdpgraph.engines.loopy.propagation import propagate
from rdpgraph.plan import clock
from rdpgraph.testing import brute_force
from tests.cases import first_short
from tests.engines.loopy.helpers import (
    grid,
    grid_tables,
    loopy,
    mixed,
    mixed_tables,
    randn,
    random_tree,
    same,
    seeded,
)
from tests.engines.loopy.test_compiled import drawn


@pytest.mark.long
def test_modes_of_a_batch_are_those_of_its_items():
    """Grids of small whole numbers, with ties, hard zeros and items that never converge."""
    across, down, unary = (
        table.round() for table in grid_tables(0, 4, 4, 3, (0.0, 0.5, 1.0, 2.0), (4,))
    )
    across = across.masked_fill(across > 3.0, -torch.inf)
    pixels, together = grid(across, down, unary.round())
    for name in ("flooding", "sequential"):
        posterior = loopy(together, name, sweeps=40)
        for item in range(4):
            tables = (across[item], down[item], unary[item].round())
            alone = loopy(grid(*tables)[1], name, sweeps=40)
            assert torch.equal(posterior.mode()[pixels][item], alone.mode()[pixels])
            assert bool(posterior.mode_is_consistent()[item] == alone.mode_is_consistent())


def swept(monkeypatch):
    """The sweeps of every fixing of variables, as they are made."""
    found = []

    def counted(equations, start, limits):
        outcome = propagate(equations, start, limits)
        found.append(outcome.sweeps)
        return outcome

    monkeypatch.setattr(decoding, "propagate", counted)
    return found


def repelling(batch, count=7):
    """Variables that all want to differ from each other: nothing is consistent."""
    x = [rg.Variable(f"x{i}", 2) for i in range(count)]
    repel = rg.Table(torch.eye(2, dtype=torch.float64) * -1.5)
    pairs = [rg.Factor(pair, repel) for pair in itertools.combinations(x, 2)]
    lean = torch.zeros(batch, 2, dtype=torch.float64)
    lean[:, 0] = torch.linspace(0.0, 0.5, batch, dtype=torch.float64)
    return rg.FactorGraph([*pairs, *(rg.Factor((v,), rg.Table(lean)) for v in x[:3])])


def test_ties_of_settled_messages_are_traced_back_without_a_sweep(monkeypatch):
    """A batch of magnets without a field: every pixel ties in every item."""
    sweeps = swept(monkeypatch)
    link = torch.eye(2, dtype=torch.float64)
    zeros = torch.zeros(12, 3, 4, 2, dtype=torch.float64)
    pixels, graph = grid(link.expand(3, 3, 2, 2), link.expand(2, 4, 2, 2), zeros)
    picture = loopy(graph).mode()[pixels]
    assert bool((picture == picture[:, :1, :1]).all())
    assert not sweeps


@pytest.mark.parametrize("little", [0.0, 8e6])
def test_a_mode_takes_no_more_sweeps_than_the_messages_did(little, monkeypatch):
    monkeypatch.setattr(tuning, "LITTLE_WORK", little)
    sweeps = swept(monkeypatch)
    posterior = loopy(repelling(5), sweeps=300)
    outcome = posterior.solution.maximal.outcome
    assert bool(posterior.graph.score({**posterior.mode()}).isfinite().all())
    allowed = max(int(outcome.sweeps.max()), little / 1e5)
    assert sum(int(own.max()) for own in sweeps) <= allowed


def test_messages_that_swing_are_read_when_they_have_settled(monkeypatch):
    """Strong couplings of random sign: undamped messages swing, and damped ones say more."""
    taken, gained = swept(monkeypatch), 0.0
    for seed in range(3):
        agree = torch.eye(2, dtype=torch.float64)
        across, down = randn(seed, 9, 8, 1, 1) * agree, randn(seed + 9, 8, 9, 1, 1) * agree
        _, graph = grid(across, down, 0.3 * randn(seed + 18, 9, 9, 2))
        posterior = loopy(graph, sweeps=40)
        solution = posterior.solution.maximal
        assert not bool(solution.outcome.converged.any())
        raw = solution.equations.best_states(solution.equations.beliefs(
            solution.outcome.messages
        ))  # fmt: skip
        plain = float(traceback.scores(solution.equations, raw)[0, 1])
        found = float(traceback.scores(solution.equations, posterior.solution.decoded.states)[0, 1])
        assert found >= plain
        gained += found - plain
    assert gained > 0
    assert sum(int(own.max()) for own in taken) <= 3 * 40


def test_orders_of_one_shape_are_found_once():
    made = [loopy(mixed(mixed_tables(seed, 1.0, (2,)))).solution.edges for seed in range(2)]
    first = orders(made[0])
    assert orders(made[1]) is first
    other = loopy(repelling(1, count=5)).solution.edges
    assert orders(other) is not first


def test_a_search_ends_with_the_time(monkeypatch):
    """No time gives the first best state of every variable, and the status says so."""
    link = torch.eye(2, dtype=torch.float64)
    zeros = torch.zeros(3, 4, 2, dtype=torch.float64)
    _, graph = grid(link.expand(3, 3, 2, 2), link.expand(2, 4, 2, 2), zeros)
    solution = loopy(graph).solution.maximal
    monkeypatch.setattr(decoding.clock, "now", itertools.count().__next__)
    limits = replace(solution.limits, seconds=0.5)
    found = decoding.decode(solution.equations, solution.outcome, limits)
    assert found.states.tolist() == [[0] * 12]
    assert found.cut


def test_the_status_says_that_a_search_was_cut():
    """That of the mode: the status of log Z and marginals is the same as before."""
    posterior = loopy(repelling(2), sweeps=30)
    before = posterior.status
    found = posterior.solution.decoded
    assert not found.cut
    assert "ended the search" not in posterior.status_of("mode").remedy
    posterior.solution.__dict__["decoded"] = replace(found, cut=True)
    assert "ended the search for a mode" in posterior.status_of("mode").remedy
    assert posterior.status == before


@pytest.mark.parametrize("seed", range(3))
def test_coordinate_ascent_never_loses_and_ends_where_no_variable_gains(seed):
    tables = [table.round() for table in mixed_tables(seed, 1.5, (6,))]
    solution = loopy(mixed(tables), sweeps=5).solution.maximal
    equations, sizes = solution.equations, solution.network.sizes
    _, colours = orders(equations.edges)
    states = torch.zeros(6, 5, dtype=torch.long)
    before = traceback.scores(equations, states)
    for _ in range(20):
        again = traceback.ascended(equations, states, colours, torch.ones(6).long(), float("inf"))
        after = traceback.scores(equations, again)
        assert bool((after >= before - 1e-9).all())
        states, before = again, after
    for variable in range(5):
        for state in range(sizes[variable]):
            other = states.clone()
            other[:, variable] = state
            assert bool((traceback.scores(equations, other) <= before + 1e-9).all())


@pytest.mark.parametrize("seed", range(4))
def test_scores_are_those_of_the_model_up_to_a_constant(seed):
    drawn = random_tree(seed, batch=(3,))
    posterior = loopy(drawn.graph)
    solution = posterior.solution.maximal
    zeros, found = traceback.scores(solution.equations, solution.decoded.states).unbind(1)
    assert not zeros.any()
    same(found + solution.network.constant, drawn.graph.score({**posterior.mode()}))


def test_fewer_hard_zeros_come_before_a_higher_score():
    x = rg.VariableArray("x", (3,), 2)
    apart = torch.tensor([[-torch.inf, 1e9], [0.0, -torch.inf]], dtype=torch.float64)
    graph = rg.FactorGraph([rg.FactorBlock((x[:-1], x[1:]), rg.Table(apart))])
    equations = loopy(graph).solution.maximal.equations
    few, many = (
        traceback.scores(equations, torch.tensor([states])) for states in ([0, 1, 1], [0, 0, 0])
    )
    assert few.tolist() == [[-1.0, 1e9]]
    assert many.tolist() == [[-2.0, 0.0]]
    none = traceback.scores(equations, torch.tensor([[0, 1, 0]]))
    ranked = [none - torch.tensor([[0.0, 2e9]]), few, many]
    for place, one in enumerate(ranked):
        for other in ranked[place + 1 :]:
            assert bool(traceback.better(one, other))
            assert not bool(traceback.better(other, one))


def test_colourings_are_found():
    """Uniform messages leave the work to a greedy colouring, then to walks over plateaus."""
    generator = torch.Generator().manual_seed(0)
    x = rg.VariableArray("x", (24,), 4)
    ends = torch.stack([torch.randperm(24, generator=generator)[:2] for _ in range(50)])
    table = torch.zeros(4, 4, dtype=torch.float64).fill_diagonal_(-torch.inf)
    graph = rg.FactorGraph([rg.FactorBlock((x[ends[:, 0]], x[ends[:, 1]]), rg.Table(table))])
    assert float(graph.score({**loopy(graph).mode()})) == 0.0


@pytest.mark.parametrize("dense", [False, True])
def test_layers_share_no_factor_and_cover_everything(dense):
    graph = repelling(1) if dense else mixed(mixed_tables(0))
    edges = loopy(graph, sweeps=1).solution.edges
    for order in orders(edges):
        left, right = edges.pairs
        assert bool((order.numbers[left] != order.numbers[right]).all())
        assert sorted(order.numbers.unique().tolist()) == list(range(len(order.layers)))
        reached = sum(
            len(port[3]) for own in order.layers for a in own.arrivals for port in a.ports
        )
        assert reached == edges.count


def assert_traced_one_by_one(equations, messages, free, order):
    """Free variables are decided as in each item alone; others are held."""
    states = torch.zeros(free.shape, dtype=torch.long)
    found = traceback.traced(equations, messages, states, free, order, float("inf"))
    assert torch.equal(found[~free], states[~free])
    for item in range(equations.batch):
        rows = torch.tensor([item])
        alone = traceback.traced(
            equations.items(rows), [part[rows] for part in messages], states[:1], free[rows],
            order, float("inf"),
        )  # fmt: skip
        assert torch.equal(alone[0], found[item])


@pytest.mark.parametrize("seed", range(12))
def test_pairs_are_traced_item_by_item(seed):
    """Shared tables or not, either way round, batched or not, hard zeros, some variables held."""
    generator = torch.Generator().manual_seed(seed)
    size, batch = 2 + seed % 3, (3,) if seed % 2 else ()
    x = rg.VariableArray("x", (9,), size)
    ends = torch.stack([torch.randperm(9, generator=generator)[:2] for _ in range(12)])
    lead = (*batch, 12) if seed % 4 else ()
    drawn = randn(seed, *lead, size, size)
    if seed % 3 == 0:
        drawn = drawn.masked_fill(torch.rand(drawn.shape, generator=generator) < 0.3, -torch.inf)
    back = rg.FactorBlock((x[ends[:4, 1]], x[ends[:4, 0]]), rg.Table(randn(seed, 4, size, size)))
    alone = rg.FactorBlock((x,), rg.Table(randn(seed + 1, *batch, 9, size)))
    forth = rg.FactorBlock((x[ends[:, 0]], x[ends[:, 1]]), rg.Table(drawn))
    solution = loopy(rg.FactorGraph([forth, back, alone]), sweeps=3).solution.maximal
    equations, messages = solution.equations, solution.outcome.messages
    order = orders(equations.edges)[0]
    states = torch.zeros(equations.batch, len(equations.edges.home), dtype=torch.long)
    for free in (states == 0, torch.rand(states.shape, generator=generator) < 0.5):
        assert_traced_one_by_one(equations, messages, free, order)
    none = traceback.traced(equations, messages, states, states == 0, order, 0.0)
    assert torch.equal(none, states) or not equations.edges.count


@pytest.mark.long
@pytest.mark.parametrize("seed", range(12))
def test_larger_tables_are_traced_item_by_item(seed):
    """Two and three variables of several sizes, shared or not, hard zeros, some variables held."""
    generator = torch.Generator().manual_seed(seed)
    size, other, batch = 2 + seed % 2, 2 + seed % 3, (3,) if seed % 2 else ()
    x, y = rg.VariableArray("x", (9,), size), rg.VariableArray("y", (3,), other)
    ends = torch.stack([torch.randperm(9, generator=generator)[:3] for _ in range(7)])
    drawn = randn(seed, *((*batch, 7) if seed % 4 else ()), size, size, size)
    if seed % 3 == 0:
        drawn = drawn.masked_fill(torch.rand(drawn.shape, generator=generator) < 0.3, -torch.inf)
    blocks = [
        rg.FactorBlock((x[ends[:, 0]], x[ends[:, 1]], x[ends[:, 2]]), rg.Table(drawn)),
        rg.FactorBlock((x[:3], y), rg.Table(randn(seed, 3, size, other))),
        rg.FactorBlock((x,), rg.Table(randn(seed + 1, *batch, 9, size))),
    ]
    solution = loopy(rg.FactorGraph(blocks), sweeps=3).solution.maximal
    equations, messages = solution.equations, solution.outcome.messages
    states = torch.zeros(equations.batch, len(equations.edges.home), dtype=torch.long)
    passes = torch.arange(1, equations.batch + 1)
    for order in (*orders(equations.edges), peeled(equations.edges)):
        for free in (states == 0, torch.rand(states.shape, generator=generator) < 0.5):
            assert_traced_one_by_one(equations, messages, free, order)
        climbed = traceback.ascended(equations, states, order, passes, float("inf"))
        for item in range(equations.batch):
            part = equations.items(torch.tensor([item]))
            alone = traceback.ascended(
                part, states[:1], order, passes[item : item + 1], float("inf")
            )
            assert torch.equal(climbed[item], alone[0])


@pytest.mark.parametrize("seed", first_short(range(8), 4))
def test_long_rings_are_traced_item_by_item(seed):
    """Rings with chords, cut open, with hard zeros, batched, some variables held."""
    generator = torch.Generator().manual_seed(seed)
    size, batch, count = 2 + seed % 2, (3,) if seed % 2 else (), 40
    x = rg.VariableArray("x", (count,), size)
    ends = torch.stack([torch.arange(count), (torch.arange(count) + 1) % count], 1)
    chord = torch.tensor([[3, 17]])
    ends = (ends, torch.cat([ends, chord]), ends[1:], ends)[seed % 4]
    drawn = randn(seed, *batch, len(ends), size, size)
    if seed % 4 == 3:
        drawn = drawn.masked_fill(torch.rand(drawn.shape, generator=generator) < 0.1, -torch.inf)
    pairs = rg.FactorBlock((x[ends[:, 0]], x[ends[:, 1]]), rg.Table(drawn))
    alone = rg.FactorBlock((x,), rg.Table(randn(seed + 1, *batch, count, size)))
    solution = loopy(rg.FactorGraph([pairs, alone]), sweeps=4).solution.maximal
    equations, messages = solution.equations, solution.outcome.messages
    order = orders(equations.edges)[0]
    states = torch.zeros(equations.batch, len(equations.edges.home), dtype=torch.long)
    for free in (states == 0, torch.rand(states.shape, generator=generator) < 0.6):
        assert_traced_one_by_one(equations, messages, free, order)


def test_checks_that_can_be_peeled_off_are_all_satisfied():
    """Each check has a variable that is decided last, also where others are decided in between."""
    generator = torch.Generator().manual_seed(0)
    checks = torch.stack([torch.randperm(40, generator=generator)[:3] for _ in range(20)])
    bits = rg.VariableArray("bit", (40,), 2)
    parity = rg.FactorBlock(tuple(bits[checks[:, slot]] for slot in range(3)), rg.Xor(3))
    posterior = loopy(rg.FactorGraph([parity]))
    assert bool((posterior.mode()[bits][checks].sum(1) % 2 == 1).all())
    assert bool(posterior.mode_is_consistent())


def test_the_first_of_the_best_states_is_found():
    for size in (1, 2, 5, 30):
        logs = randn(size, 50, size).round()
        logs[0] = 0.0
        graph = rg.FactorGraph(
            [rg.FactorBlock((rg.VariableArray("x", (50,), size),), rg.Table.from_logs(logs))]
        )
        mode = rg.infer(graph, rg.Loopy()).mode()["x"]
        assert torch.equal(mode, torch.from_numpy(logs.numpy().argmax(1)))


def test_parity_checks_with_erasures_are_decoded():
    """Bits that were erased tie; the words found satisfy every check."""
    generator = torch.Generator().manual_seed(0)
    layers = [torch.randperm(60, generator=generator) for _ in range(3)]
    checks = torch.cat(layers).reshape(-1, 6)
    bits = rg.VariableArray("bit", (60,), 2)
    lost = torch.rand(8, 60, generator=generator) < 0.4
    odds = torch.where(lost, 0.0, 8.0).double()
    graph = rg.FactorGraph([
        rg.FactorBlock((bits,), rg.Table(torch.stack([odds / 2, -odds / 2], -1))),
        rg.FactorBlock(
            tuple(bits[checks[:, slot]] for slot in range(6)),
            rg.Xor(6, parity=0, dtype=torch.float64),
        ),
    ])  # fmt: skip
    score = graph.score({**loopy(graph).mode()})
    same(score, odds.sum(1) / 2)


def test_modes_of_small_frustrated_grids_are_the_best_most_of_the_time():
    """Signs at random, and no field: messages say nothing, and no configuration is consistent."""
    across, down, unary = grid_tables(0, 3, 4, 2, 1.0, (20,))
    spin = torch.tensor([-1.0, 1.0], dtype=torch.float64)
    pair = torch.outer(spin, spin)
    tables = (part[..., :1, :1].sign() * pair for part in (across, down))
    _, graph = grid(*tables, torch.zeros_like(unary))
    found, truth = graph.score({**loopy(graph).mode()}), brute_force(graph).maximum
    assert bool((found <= truth + 1e-9).all())
    assert float((found >= truth - 1e-9).double().mean()) > 0.8


def test_a_mode_after_one_of_a_model_with_other_variables_without_factors():
    equal = torch.zeros(2, 2, dtype=torch.float64)
    for count in (3, 2, 4):
        variables = [rg.Variable(f"v{number}", 2) for number in range(count)]
        graph = rg.FactorGraph([rg.Factor(variables[:2], rg.Table.from_logs(equal))], variables)
        mode = rg.infer(graph, scheduler=rg.Loopy()).mode()
        assert set(mode) == set(variables)


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


def test_chains_of_changes_gain_until_no_variable_gains_alone():
    for equations, messages, _ in decoding_cases():
        compiled = compiled_messages(equations)
        best = equations.best_states(equations.beliefs(messages))
        assert torch.equal(compiled.best_states(compiled.flat(messages)), best)
        for states in (best, torch.zeros_like(best)):
            before = compiled.scores(states)
            found, _ = compiled.chained(states, math.inf)
            after = compiled.scores(found)
            assert torch.equal(found, states) or bool(traceback.better(after, before).any())
            assert not traceback.better(before, after + 1e-6).any()
            assert torch.equal(compiled.chained(states, 0)[0], states)  # there is no time
            for c in equations.edges.classes:
                for variable, state in itertools.product(c.variables.tolist(), range(c.size)):
                    other = found.clone()
                    other[:, variable] = state
                    assert not traceback.better(compiled.scores(other) - 1e-6, after).any()


def products(seed, batch=(), item=None, side=8, rank=3):
    """A noisy binary matrix as a disjunction of products: parents, children, the graph."""
    generator = seeded(seed)
    u, v = rg.VariableArray("u", (side, rank), 2), rg.VariableArray("v", (rank, side), 2)
    x, part = (
        rg.VariableArray(n, s, 2) for n, s in (("x", (side,) * 2), ("p", (side, side, rank)))
    )
    no = -math.inf
    both = torch.tensor([[[0.0, no], [0.0, no]], [[0.0, no], [no, 0.0]]])
    rows = [[1, 2], [1, 4], [2, 3], [3, 3], [4, 4]]  # the first is the disjunction of the others
    some = rg.Automaton(rows, torch.tensor([no, 0.0, no, 0.0, no]), rank + 1)
    axes = map(torch.arange, (side, rank, side))
    i, k, j = (at.flatten() for at in torch.meshgrid(*axes, indexing="ij"))
    tables = [3.0 * torch.randn(*batch, *each.shape, 2, generator=generator) for each in (u, v, x)]
    tables = tables if item is None else [table[item] for table in tables]
    blocks = [
        rg.FactorBlock((each,), rg.Table(table))
        for each, table in zip((u, v, x), tables, strict=True)
    ]
    blocks.append(rg.FactorBlock((u[i, k], v[k, j], part[i, j, k]), rg.Table(both)))
    blocks.append(rg.FactorBlock((x, *(part[:, :, k] for k in range(rank))), some))
    return (u, v, x, part), rg.FactorGraph(blocks)


def follow(u, v):
    """The mode's parents with the children that they determine."""
    part = u.unsqueeze(-2) & v.transpose(-1, -2).unsqueeze(-3)
    return part.any(-1).long(), part


def test_modes_of_products_violate_nothing_and_no_parent_gains_with_its_children():
    for seed in range(4):
        (u, v, x, part), graph = products(seed)
        posterior = rg.infer(graph, rg.Loopy(sweeps=30))
        states = posterior.solution.mode()  # before any repair
        assert bool(graph.score_states(states).isfinite().all())
        mode = posterior.mode()
        for parent, (row, column) in itertools.product(
            (u, v), itertools.product(range(8), range(8))
        ):
            if row >= parent.shape[0] or column >= parent.shape[1]:
                continue
            other = {u: mode[u].clone(), v: mode[v].clone()}
            other[parent][row, column] ^= 1
            other[x], other[part] = follow(other[u], other[v])
            assert float(graph.score(other)) <= float(graph.score(mode)) + 1e-3


def test_modes_of_products_of_a_batch_are_those_of_its_items():
    arrays, graph = products(9, (3,))
    together = rg.infer(graph, rg.Loopy(sweeps=30)).mode()
    for item in range(3):
        _, graph = products(9, (3,), item)
        alone = rg.infer(graph, rg.Loopy(sweeps=30)).mode()
        for array in arrays:
            assert torch.equal(together[array][item], alone[array])


def exact_covers(seed):
    """Thirty binary variables, and factors of which each allows one of five of them."""
    generator = seeded(seed)
    x = rg.VariableArray("x", (30,), 2)
    scopes = torch.stack([torch.randperm(30, generator=generator)[:5] for _ in range(12)])
    one = rg.FactorBlock(tuple(x[scopes[:, slot]] for slot in range(5)), rg.ExactlyOne(5))
    lean = rg.FactorBlock((x,), rg.Table(torch.randn(30, 2, generator=generator)))
    return x, rg.FactorGraph([lean, one])


def test_modes_are_repaired_alike_on_every_machine(monkeypatch):
    """Without a limit operations are counted, so that a slow clock ends no search early."""
    repaired = 0
    for seed in (1, 3, 4):
        x, graph = exact_covers(seed)
        scheduler = rg.Loopy(sweeps=30)
        posterior = rg.infer(graph, scheduler=scheduler)
        repaired += int(graph.score_states(posterior.solution.mode()).isneginf())
        expected = posterior.mode()[x]
        with monkeypatch.context() as patch:
            patch.setattr(clock, "perf_counter", itertools.count(0, 100).__next__)
            found = rg.infer(graph, scheduler=scheduler).mode()
        assert int(graph.violations(found)) == 0
        assert torch.equal(found[x], expected)
    assert repaired
