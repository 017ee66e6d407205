"""Modes by large neighbourhoods, against enumeration."""

import itertools
import math
from functools import partial
from random import Random

import numpy as np
import pytest
import torch

import rdpgraph as rg
from rdpgraph._core import effort, tuning
from rdpgraph.engines.configurations import best_of, scored
from rdpgraph.engines.elimination import conditioned_order, eliminate
from rdpgraph.engines.elimination_bounds import ceilings
from rdpgraph.engines.reduction.network import reduce_graph
from rdpgraph.engines.reduction.tables import tables_of
from rdpgraph.engines.search import neighbourhoods, starts
from rdpgraph.engines.search import solution as search_solution
from rdpgraph.engines.search.neighbourhoods import NeighbourhoodSearch, SearchOutcome
from rdpgraph.engines.search.starts import SearchLimits, best_estimated
from rdpgraph.errors import BudgetError, ImpossibleEvidenceError, UnsupportedError
from rdpgraph.plan import clock
from rdpgraph.testing import brute_force
from tests.cases import first_short

DOUBLE = torch.float64
SIZES = (2, 3, 2, 4, 2, 3)


def random_graph(seed: int, *, zeros: float = 0.0, batch: tuple[int, ...] = ()) -> rg.FactorGraph:
    """Six variables, pairs and triples of them at random; one configuration is always possible."""
    rng, generator = Random(seed), torch.Generator().manual_seed(seed)
    variables = [rg.Variable(f"x{i}", size) for i, size in enumerate(SIZES)]
    truth = [rng.randrange(size) for size in SIZES]
    factors = []
    for arity in (1, 1, 2, 2, 2, 2, 2, 3, 3):
        places = rng.sample(range(len(SIZES)), arity)
        values = torch.randn(*batch, *(SIZES[i] for i in places), generator=generator, dtype=DOUBLE)
        struck = torch.rand(values.shape, generator=generator) < zeros
        struck[(..., *(truth[i] for i in places))] = False
        table = rg.Table(values.masked_fill(struck, -math.inf))
        factors.append(rg.Factor([variables[i] for i in places], table))
    return rg.FactorGraph(factors, variables=variables)


def scores(graph: rg.FactorGraph) -> dict[tuple[int, ...], float]:
    """The score of every configuration."""
    every = list(itertools.product(*(range(v.size) for v in graph.variables)))
    columns = torch.tensor(every).T
    values = graph.score(dict(zip(graph.variables, columns, strict=True)))
    return dict(zip(every, values.tolist(), strict=True))


@pytest.mark.parametrize("seed", range(12))
def test_what_is_not_fixed_is_solved_exactly(seed):
    graph = random_graph(seed, zeros=0.3 * (seed % 2))
    network = reduce_graph(graph)
    tables, rng = tables_of(network, 0), Random(seed)
    every = scores(graph)
    left = [
        network.states_left(network.numbers[[a]], size)[0].tolist()
        for a, size in enumerate(network.sizes)
    ]
    settled = network.settled[0].tolist()

    def full(states) -> tuple[int, ...]:
        whole = list(settled)
        for a, number in enumerate(network.numbers.tolist()):
            whole[number] = left[a][int(states[a])]
        return tuple(whole)

    for cells in (4, 8, 24, 1000):
        part = [a for a in range(len(network.sizes)) if rng.random() < 0.9]
        order = conditioned_order(tables.graph, part, rng=rng, cells=cells)
        assert order is not None
        solved = {step[0] for step in order.steps}
        assert solved | set(order.fixed) == set(part)
        assert not solved & set(order.fixed)
        for step in order.steps:
            assert math.prod(network.sizes[v] for v in step) <= cells
        start = np.array([rng.randrange(size) for size in network.sizes])
        states, value = eliminate(tables, order, start)
        assert value == pytest.approx(tables.score(states), rel=1e-12)
        others = [a for a in range(len(network.sizes)) if a not in solved]
        assert (states[others] == start[others]).all()
        rivals = (
            np.array(rival)
            for rival in itertools.product(*map(range, network.sizes))
            if all(rival[a] == start[a] for a in others)
        )
        assert value == pytest.approx(max(map(tables.score, rivals)), rel=1e-12)
        true = every[full(states)]
        assert tables.is_possible(value) == (true > -math.inf)
        if true > -math.inf:
            assert value + float(network.constant[0]) == pytest.approx(true, rel=1e-9)


def test_fewer_violated_factors_are_better_whatever_the_values():
    x, y = rg.Variable("x", 2), rg.Variable("y", 2)
    never = -math.inf
    graph = rg.FactorGraph([
        rg.Factor([x, y], rg.Table(torch.tensor([[1e6, never], [never, -1e6]], dtype=DOUBLE))),
        rg.Factor([x], rg.Table(torch.tensor([0.0, -1e6], dtype=DOUBLE))),
        rg.Factor([x, y], rg.Table(torch.tensor([[never, 5.0], [1.0, 0.0]], dtype=DOUBLE))),
    ])  # fmt: skip
    posterior = rg.infer(graph, scheduler=rg.Search(seconds=1.0))
    assert {v.name: int(s) for v, s in posterior.mode().items()} == {"x": 1, "y": 1}


@pytest.mark.parametrize("seed", first_short(range(10), 5))
def test_a_search_with_small_tables_is_possible_and_one_with_large_ones_is_optimal(
    seed,
):
    graph = random_graph(seed, zeros=0.4)
    best = max(scores(graph).values())
    proved = rg.infer(graph, scheduler=rg.Search(seconds=5.0))
    assert float(graph.score({**proved.mode()})) == pytest.approx(best)
    assert bool(proved.mode_is_consistent())
    assert proved.status.exact
    network = reduce_graph(graph)
    tables = tables_of(network, 0)
    search = NeighbourhoodSearch(tables, Random(seed), most=4)
    start = np.zeros(len(network.sizes), np.int64)
    outcome = search.run(start, seconds=0.2)
    assert outcome is not None
    assert outcome.score >= tables.score(start)
    assert outcome.score == pytest.approx(tables.score(outcome.states))
    assert outcome.score + float(network.constant[0]) <= best + 1e-9


@pytest.mark.parametrize("seed", range(8))
def test_marginal_modes(seed):
    graph = random_graph(seed, zeros=0.3 * (seed % 2))
    names = Random(seed).sample([v.name for v in graph.variables], 3)
    exact = rg.infer(graph, scheduler=rg.Contraction()).marginal_mode(names)
    found = rg.infer(graph, scheduler=rg.Search(seconds=5.0)).marginal_mode(names)
    assert bool(found.optimal)
    assert bool(exact.optimal)

    def mass(states) -> float:
        given = {name: int(states[name]) for name in names}
        return brute_force(graph.condition(given)).log_partition.item()

    assert mass(found) == pytest.approx(mass(exact))


def drawn(rng: Random, sizes) -> np.ndarray:
    return np.array([rng.randrange(size) for size in sizes])


@pytest.fixture(params=["compiled", "NumPy"])
def kernel(request, monkeypatch):
    """Compiled moves, and those where there is no library."""
    if request.param == "NumPy":
        monkeypatch.setattr("rdpgraph.native.library.available", lambda *_: False)


def searches(seed):
    """Searches of a random network, over all variables and with two of them summed."""
    network = reduce_graph(random_graph(seed, zeros=0.2 * (seed % 2)))
    rng = Random(seed)
    for summed in (frozenset(), frozenset(rng.sample(range(len(network.sizes)), 2))):
        tables = tables_of(network, 0, summed)
        yield network, rng, NeighbourhoodSearch(tables, rng, summed=summed)


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("seed", range(6))
def test_moves_are_the_best_given_what_is_fixed(seed):
    for network, rng, search in searches(seed):
        summed, count = search.summed, len(network.sizes)
        for cells in (4, 6, 12, 24, 48):
            order = search.moves.part(range(count), rng=rng, cells=cells)
            if order is None:
                assert summed
                continue
            start = drawn(rng, network.sizes)
            states, value = search.moves.solved(order, start)
            assert summed.isdisjoint(order.fixed)
            assert order.count + len(order.fixed) == count
            assert (states[list(order.fixed)] == start[list(order.fixed)]).all()
            free = [a for a in range(count) if a not in summed and a not in order.fixed]
            rivals = []
            for chosen in itertools.product(*(range(network.sizes[a]) for a in free)):
                rival = start.copy()
                rival[free] = chosen
                rivals.append(search.value(rival))
            assert value == pytest.approx(max(rivals), rel=1e-9)
            assert search.value(states) == pytest.approx(value, rel=1e-9)


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("summed", [(), (0,), (1, 2)])
def test_factors_with_one_free_variable_are_added_once(summed):
    """Parallel pairs and unaries around one variable, whose neighbours keep their states."""
    generator = torch.Generator().manual_seed(0)
    x = [rg.Variable(f"x{i}", size) for i, size in enumerate((3, 2, 2, 2, 3))]
    factors = [rg.Factor((v,), rg.Table(torch.randn(v.size, generator=generator))) for v in x]
    for other in x[1:] * 2:
        table = torch.randn(3, other.size, generator=generator)
        factors.append(rg.Factor((x[0], other), rg.Table(table)))
    network = reduce_graph(rg.FactorGraph(factors))
    summed = frozenset(summed)
    search = NeighbourhoodSearch(tables_of(network, 0, summed), Random(0), summed=summed)
    free = sorted({0, *summed})
    start = np.zeros(5, np.int64)
    states, value = search.moves.solved(search.moves.part(free, rng=Random(0), cells=1e3), start)
    moved = [a for a in free if a not in summed]
    rivals = []
    for chosen in itertools.product(*(range(network.sizes[a]) for a in moved)):
        rival = start.copy()
        rival[moved] = chosen
        rivals.append(search.value(rival))
    assert value == pytest.approx(max(rivals), rel=1e-6)
    assert search.value(states) == pytest.approx(value, rel=1e-6)


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("seed", range(6))
def test_joined_configurations_are_the_best_mixtures(seed):
    for network, rng, search in searches(seed):
        one, other = drawn(rng, network.sizes), drawn(rng, network.sizes)
        value = search.value(one)
        joined = search.joined(SearchOutcome(one, value, False, 1, 0.0), other)
        mixtures = [
            search.value(np.where(chosen, one, other))
            for chosen in itertools.product((False, True), repeat=len(network.sizes))
        ]
        assert joined.score == pytest.approx(search.value(joined.states), rel=1e-9)
        assert joined.score >= max(mixtures) - 1e-9 * abs(value)


@pytest.mark.long
@pytest.mark.parametrize("deadline", [math.inf, -math.inf])
def test_values_of_marginal_configurations_are_their_log_masses(deadline):
    graph = random_graph(3, zeros=0.2)
    network = reduce_graph(graph)
    kept = set(range(0, len(network.sizes), 2))
    summed = frozenset(range(len(network.sizes))) - kept
    tables = tables_of(network, 0, summed)
    search = NeighbourhoodSearch(tables, Random(0), summed=summed, deadline=deadline)
    for states in itertools.product(*(range(size) for size in network.sizes)):
        value = search.value(np.array(states))
        given = {
            graph.variables[int(network.numbers[a])].name: int(
                network.states_left(network.numbers[[a]], network.sizes[a])[0, states[a]]
            )
            for a in kept
        }
        mass = brute_force(graph.condition(given)).log_partition.item()
        assert tables.is_possible(value) == (mass > -math.inf)
        if mass > -math.inf:
            assert value + float(network.constant[0]) == pytest.approx(mass, rel=1e-9)


@pytest.mark.long
def test_a_batch_is_its_items():
    graph = random_graph(5, zeros=0.2, batch=(3,))
    posterior = rg.infer(graph, scheduler=rg.Search(seconds=5.0))
    exact = rg.infer(graph, scheduler=rg.Contraction()).mode()
    torch.testing.assert_close(graph.score({**posterior.mode()}), graph.score({**exact}))
    assert posterior.mode_is_consistent().tolist() == [True] * 3


def test_potentials_that_are_decomposed():
    bits = rg.VariableArray("b", (8,), 2)
    generator = torch.Generator().manual_seed(0)
    graph = rg.FactorGraph([
        rg.FactorBlock((bits,), rg.Table(torch.randn(8, 2, generator=generator, dtype=DOUBLE))),
        rg.Factor(list(bits), rg.Xor(8)),
        rg.Factor(list(bits[:5]), rg.Cardinality(5, at_least=2, at_most=3)),
    ])  # fmt: skip
    found = rg.infer(graph, scheduler=rg.Search(seconds=5.0)).mode()
    exact = rg.infer(graph, scheduler=rg.Contraction()).mode()
    torch.testing.assert_close(graph.score({**found}), graph.score({**exact}))


def colouring(colours: int) -> rg.FactorGraph:
    """Four vertices, every two of them of different colours."""
    x = [rg.Variable(f"x{i}", colours) for i in range(4)]
    differ = rg.Table(torch.zeros(colours, colours).fill_diagonal_(-math.inf))
    return rg.FactorGraph([rg.Factor(pair, differ) for pair in itertools.combinations(x, 2)])


def test_what_is_impossible_is_never_an_answer(monkeypatch):
    found = rg.infer(colouring(4), scheduler=rg.Search(seconds=5.0)).mode()
    assert len({int(state) for state in found.values()}) == 4
    with pytest.raises(ImpossibleEvidenceError, match="There is no mode"):
        rg.infer(colouring(3), scheduler=rg.Search(seconds=5.0)).mode()
    times = itertools.count()
    monkeypatch.setattr(clock, "now", lambda: float(next(times)))  # no move is begun
    with pytest.raises(BudgetError, match=r"No possible configuration.* raise the time"):
        rg.infer(colouring(4), scheduler=rg.Search(seconds=1.0)).mode()


def coloured(seed: int) -> rg.FactorGraph:
    """Forty variables of three colours, eighty pairs that differ, preferences at random."""
    rng, generator = Random(seed), torch.Generator().manual_seed(seed)
    x = [rg.Variable(f"x{i}", 3) for i in range(40)]
    truth = [rng.randrange(3) for _ in x]
    pairs = [p for p in itertools.combinations(range(40), 2) if truth[p[0]] != truth[p[1]]]
    differ = rg.Table(torch.zeros(3, 3, dtype=DOUBLE).fill_diagonal_(-math.inf))
    likes = [rg.Table(torch.randn(3, generator=generator, dtype=DOUBLE)) for _ in x]
    factors = [rg.Factor([x[a], x[b]], differ) for a, b in rng.sample(pairs, 80)]
    fields = [rg.Factor([v], table) for v, table in zip(x, likes, strict=True)]
    return rg.FactorGraph(factors + fields)


@pytest.mark.long
@pytest.mark.parametrize(
    "scheduler", [rg.Loopy(sweeps=100), rg.JoinGraph(memory=3e4)], ids=["loopy", "join"]
)
def test_modes_of_messages_are_made_possible(scheduler):
    repaired = 0
    for seed in (0, 17):
        graph = coloured(seed)
        posterior = rg.infer(graph, scheduler=scheduler)
        read = graph.score_states(posterior.solution.mode()[0])
        answer = graph.score({**posterior.mode()})
        assert bool(answer > -math.inf)
        if bool(read > -math.inf):
            assert float(answer) == float(read)  # left as it is
        repaired += bool(read == -math.inf)
    assert repaired


@pytest.mark.long
def test_items_whose_modes_are_possible_stay_as_they_are():
    graph = coloured(0)
    batch = graph.condition({"x0": torch.tensor([-1, 0, 1])})
    posterior = rg.infer(batch, scheduler=rg.Loopy(sweeps=50))
    read = batch.score_states(posterior.solution.mode())
    answer = batch.score({**posterior.mode()})
    assert bool((answer > -math.inf).all())
    torch.testing.assert_close(answer[read > -math.inf], read[read > -math.inf])


def test_messages_about_what_is_impossible_end_with_an_error():
    for scheduler in (rg.Loopy(sweeps=20), rg.Loopy(sweeps=20, seconds=2.0)):
        posterior = rg.infer(colouring(3), scheduler=scheduler)
        with pytest.raises((ImpossibleEvidenceError, BudgetError), match=r"mode|possible"):
            posterior.mode()


def test_sums_that_do_not_fit_are_estimated(monkeypatch):
    monkeypatch.setattr(tuning, "MEMBER_VARIABLE", 0.005)
    for seed in range(3):
        graph = random_graph(seed, zeros=0.2)
        found = rg.infer(graph, scheduler=rg.Search(3.0, memory=64.0)).marginal_mode(["x0"])
        exact = rg.infer(graph).marginal_mode(["x0"])
        assert {**found} == {**exact}
        assert float(found.score) <= float(exact.score) + 1e-9 <= float(found.bound) + 2e-9
        assert bool(found.optimal) == (float(found.bound - found.score) < 1e-6)


def test_sums_that_there_is_no_time_to_estimate_are_at_least_a_product_in_them(monkeypatch):
    asked = []
    monkeypatch.setattr(starts, "estimated", lambda *every: asked.append(every))
    times = itertools.count()
    monkeypatch.setattr(clock, "now", lambda: 0.1 * next(times))
    for seed in range(3):
        graph = random_graph(seed)
        found = rg.infer(graph, scheduler=rg.Search(2.0, memory=64.0)).marginal_mode(["x0", "x3"])
        masses = rg.infer(graph.condition({**found})).log_partition
        assert -math.inf < float(found.score) <= float(masses) + 1e-9
    assert not asked


@pytest.mark.parametrize("seconds", [0.0, 0.02, 1.0])
@pytest.mark.parametrize("seed", range(4))
def test_whatever_the_time_a_sum_that_does_not_fit_is_at_least_what_is_said(seed, seconds):
    graph = random_graph(seed, zeros=0.3 if seed % 2 else 0.0)
    network = reduce_graph(graph)
    summed = frozenset(range(2, len(network.sizes)))
    masses, tables = log_masses(network, summed), tables_of(network, 0, zeros=True)
    start = np.zeros(len(network.sizes), np.int64)
    best = best_estimated(network, 0, summed, start, SearchLimits(seconds, memory=1e6))
    if best is None:
        assert tables.score(start) == -math.inf
        return
    states, value = best
    mass = masses[tuple(states[v] for v in range(len(states)) if v not in summed)]
    assert tables.score(start) - 1e-9 <= value <= mass + 1e-9
    assert value > -math.inf


def valueless(self, states, *, deadline=math.inf):
    """No sum fits."""
    return None if self.summed else self.tables.score(states)


def test_what_is_too_large_to_draw_has_a_mode_of_all_variables(monkeypatch):
    monkeypatch.setattr(tuning, "SECONDS_PER_FACTOR", 100.0)
    monkeypatch.setattr(starts, "_drawn", None)
    monkeypatch.setattr(neighbourhoods.NeighbourhoodSearch, "value", valueless)
    for seed in range(3):
        graph = random_graph(seed, zeros=0.2)
        found = rg.infer(graph, scheduler=rg.Search(1.0)).marginal_mode(["x0", "x3"])
        best = rg.infer(graph).mode()
        assert float(found.score) == pytest.approx(float(graph.score({**best})))
        assert {**found} == {v: best[v] for v in found}


@pytest.mark.parametrize("seed", first_short(range(4), 1))
def test_a_bound_that_a_score_meets_proves_it(seed, monkeypatch):
    monkeypatch.setattr(effort, "MOVE_CELLS", 8)
    graph = random_graph(seed, zeros=0.3 * (seed % 2))
    network = reduce_graph(graph)
    monkeypatch.setattr(
        search_solution, "NeighbourhoodSearch", partial(NeighbourhoodSearch, most=8)
    )
    posterior = rg.infer(graph, scheduler=rg.Search(1.0, memory=1e6))
    best = brute_force(graph).maximum.item()
    found = float(graph.score({**posterior.mode()}))
    bound = posterior.mode_bound()
    assert float(bound) == pytest.approx(best, abs=1e-6)  # its tables are as large as they need
    assert bool(posterior.mode_is_optimal()) == (found > best - 1e-6)
    assert posterior.status.exact == (found > best - 1e-6)
    tight = ceilings(network, frozenset(), seconds=9.0, memory=1e6, scores=torch.tensor([best]))
    assert float(tight) == pytest.approx(best, abs=1e-6)


@pytest.mark.parametrize("seed", range(6))
def test_marginal_modes_come_with_their_mass_and_what_none_exceeds(seed):
    graph = random_graph(seed, zeros=0.3 * (seed % 2))
    names = Random(seed).sample([v.name for v in graph.variables], 3)
    for scheduler in (rg.Contraction(), rg.Auto(), rg.Search(seconds=1.0)):
        found = rg.infer(graph, scheduler=scheduler).marginal_mode(names)
        given = graph.condition({name: int(found[name]) for name in names})
        mass = brute_force(given).log_partition.item()
        assert float(found.score) == pytest.approx(mass, abs=1e-6)
        assert float(found.bound) == pytest.approx(mass, abs=1e-6)
        assert bool(found.optimal)


SCHEDULERS = (
    rg.Contraction(),
    rg.Auto(memory=300.0, seconds=1.0),
    rg.Search(seconds=1.0, memory=300.0),
    rg.Loopy(damping=0.3),
    rg.Loopy(damping=0.3, counting=rg.loopy.TreeReweighted(), sweeps=200),
    rg.JoinGraph(memory=200.0),
)


@pytest.mark.long
@pytest.mark.parametrize("scheduler", SCHEDULERS, ids=lambda one: type(one).__name__)
def test_what_is_called_optimal_is(scheduler, monkeypatch):
    """Modes called optimal are, and none is better than its bound."""
    looks = itertools.count()
    monkeypatch.setattr(clock, "now", lambda: 1e-3 * next(looks))  # as many moves on any machine
    for seed in range(2):
        graph = random_graph(seed, zeros=0.3 * (seed % 2))
        best = brute_force(graph).maximum.item()
        posterior = rg.infer(graph, scheduler=scheduler)
        found = float(graph.score({**posterior.mode()}))
        assert found <= best + 1e-9 <= float(posterior.mode_bound()) + 2e-6
        if bool(posterior.mode_is_optimal()):
            assert found == pytest.approx(best, abs=1e-6)
        if isinstance(scheduler, rg.Auto | rg.Search):
            assert found > -math.inf


@pytest.mark.long
def test_parts_about_a_variable_are_solved_with_their_sums():
    """A marginal mode of a long chain with branches, of which each move sees a part."""
    generator = torch.Generator().manual_seed(0)
    x, y = rg.VariableArray("x", (150,), 2), rg.VariableArray("y", (150,), 3)

    def drawn(*shape: int) -> rg.Table:
        return rg.Table(2 * torch.randn(shape, generator=generator, dtype=DOUBLE))

    graph = rg.FactorGraph([
        rg.FactorBlock((x[:-1], x[1:]), drawn(149, 2, 2)),
        rg.FactorBlock((x, y), drawn(150, 2, 3)),
        rg.FactorBlock((y[:-1], x[1:]), drawn(149, 3, 2)),
    ])  # fmt: skip
    network = reduce_graph(graph)
    summed = frozenset(range(150, 300))
    tables = tables_of(network, 0, summed)
    search = NeighbourhoodSearch(tables, Random(0), summed=summed)
    for _ in range(5):
        part = search._near(20)
        inside = summed.intersection(part)
        assert {v for v in summed for u in tables.graph.adjacency[v] if u in inside} <= inside
        around = set().union(*(tables.graph.adjacency[v] for v in part if v not in summed))
        assert around & summed <= inside
    exact = rg.infer(graph, scheduler=rg.Contraction()).marginal_mode([x])
    found = rg.infer(graph, scheduler=rg.Search(5.0, memory=1e6)).marginal_mode([x])
    masses = [rg.infer(graph.condition({x: one[x]})).log_partition for one in (exact, found)]
    torch.testing.assert_close(*masses)


@pytest.mark.parametrize("seed", first_short(range(8), 2))
def test_no_score_exceeds_its_bound(seed):
    graph = random_graph(seed, zeros=0.3 * (seed % 2))
    best = brute_force(graph).maximum
    exact = rg.infer(graph)
    torch.testing.assert_close(exact.mode_bound(), best.reshape(()))
    searched = rg.infer(graph, scheduler=rg.Search(seconds=0.5, memory=300.0))
    assert float(graph.score({**searched.mode()})) <= float(searched.mode_bound()) + 1e-9
    network = reduce_graph(graph)
    constant = float(network.constant[0])
    for memory in (1.0, 1e3, 1e6):
        found = ceilings(network, frozenset(), seconds=0.05, memory=memory)
        assert float(found[0]) >= float(best) - 1e-9
    assert float(found[0]) == pytest.approx(float(best))
    summed = frozenset(range(0, len(network.sizes), 2))
    every = log_masses(network, summed)
    for memory in (1.0, 1e3, 1e6):
        found = ceilings(network, summed, seconds=0.05, memory=memory)
        assert float(found[0]) - constant >= every.max() - 1e-9
    assert float(found[0]) - constant == pytest.approx(every.max())


def test_an_impossible_item_has_no_bound_by_mini_buckets():
    """Where these have no time they say nothing of the others, and said NaN of this one."""
    x, own = rg.VariableArray("x", (6,), 2), torch.zeros(2, 2, dtype=DOUBLE)
    own[1, 0] = -math.inf
    graph = rg.FactorGraph([
        rg.Factor((x[0],), rg.Table(own)),
        rg.FactorBlock((x[:-2], x[1:-1], x[2:]), rg.Table(torch.ones(2, 2, 2, dtype=DOUBLE))),
    ]).condition({x[0]: 0})  # fmt: skip
    with rg.interruptible() as stop:
        stop.asked = True
        bounds = ceilings(reduce_graph(graph), frozenset(), seconds=1.0, memory=1e6)
    assert bounds.tolist() == [math.inf, -math.inf]


def log_masses(network, summed) -> np.ndarray:
    """The log-sums over some variables, for each configuration of the others."""
    tables = tables_of(network, 0, zeros=True)
    total = np.zeros(tables.sizes)
    for stack in tables.stacks:
        for scope, values in zip(stack.scopes.tolist(), stack.values, strict=True):
            shape = [size if v in scope else 1 for v, size in enumerate(tables.sizes)]
            total = total + values.reshape(shape)
    return np.logaddexp.reduce(total, axis=tuple(sorted(summed))) if summed else total


def test_other_questions_and_numbers_out_of_range_are_refused():
    posterior = rg.infer(random_graph(0), scheduler=rg.Search(seconds=1.0))
    with pytest.raises(UnsupportedError, match="modes and marginal modes only"):
        posterior.marginals()
    with pytest.raises(rg.errors.ModelError, match="seconds as a finite number above 0"):
        rg.Search(seconds=0.0)


def test_one_generator_gives_one_answer():
    graph = random_graph(7)

    def drawn(seed: int) -> list[int]:
        generator = torch.Generator().manual_seed(seed)
        scheduler = rg.Search(seconds=2.0, generator=generator)
        return [int(s) for s in rg.infer(graph, scheduler=scheduler).mode().values()]

    assert drawn(0) == drawn(0)


@pytest.mark.long
def test_auto_searches_where_exact_inference_does_not_fit(monkeypatch):
    side = 7
    x = rg.VariableArray("x", (side, side), 2)
    generator = torch.Generator().manual_seed(1)

    def drawn(*shape: int) -> rg.Table:
        return rg.Table(3 * torch.randn(shape, generator=generator, dtype=DOUBLE))

    graph = rg.FactorGraph([
        rg.FactorBlock((x[:, :-1], x[:, 1:]), drawn(side, side - 1, 2, 2)),
        rg.FactorBlock((x[:-1], x[1:]), drawn(side - 1, side, 2, 2)),
    ])  # fmt: skip
    exact = rg.infer(graph, scheduler=rg.Contraction())
    looks = itertools.count()
    monkeypatch.setattr(clock, "now", lambda: 1e-3 * next(looks))  # as many moves on any machine
    tight = rg.infer(graph, scheduler=rg.Auto(memory=1500.0, seconds=4.0))
    assert tight.plan.route != "contraction"
    best = float(graph.score({**exact.mode()}))
    assert float(graph.score({**tight.mode()})) == pytest.approx(best)
    corner = ["x[0, 0]", "x[3, 3]", "x[6, 6]"]
    wanted = exact.marginal_mode(corner)
    again = rg.infer(graph, scheduler=rg.Auto(memory=1500.0, seconds=4.0))
    assert {**again.marginal_mode(corner)} == {**wanted}
    many = [f"x[{i}, {j}]" for i in range(side) for j in range(side) if (i + j) % 2]
    best, found = (one.marginal_mode(many) for one in (exact, tight))
    assert found.optimal is not None
    given = [graph.condition({name: int(one[name]) for name in many}) for one in (best, found)]
    masses = [rg.infer(one).log_partition for one in given]
    torch.testing.assert_close(*masses)
    assert len(wanted) == 3


def test_a_search_has_half_of_the_time_where_messages_with_hard_zeros_never_settle():
    """A search repairs what messages violate; they took nearly all of the time."""
    rng, count, states = np.random.default_rng(0), 60, 4
    x = [rg.Variable(f"x{number}", states) for number in range(count)]
    known, factors = rng.integers(0, states, count), list[rg.Factor]()
    for _ in range(2 * count):
        scope = rng.choice(count, 3, replace=False)
        values = 3.0 * rng.normal(size=(states,) * 3)
        values[rng.random(values.shape) < 0.3] = -math.inf
        values[tuple(known[scope])] = values[np.isfinite(values)].min()
        factors.append(rg.Factor([x[v] for v in scope], rg.Table(torch.from_numpy(values))))
    graph, counter, moved = rg.FactorGraph(factors), clock.Counter(), list[float]()

    def seen(step: object) -> None:
        if isinstance(step, neighbourhoods.Move):
            moved.append(counter.seconds)

    with clock.counted(counter):
        auto = rg.Auto(seconds=0.5, memory=1e5, progress=seen)
        mode = rg.infer(graph, scheduler=auto).mode()
    assert moved[0] < 0.25
    assert graph.score(mode) > graph.score(dict(zip(x, known.tolist(), strict=True)))


def pigeons(count):
    """So many pigeons, each in one of too few holes, of which each holds one: impossible."""
    x = rg.VariableArray("x", (count, count - 1), 2)
    return rg.FactorGraph(
        [
            rg.FactorBlock((x,), rg.Table(torch.zeros(2))),
            rg.FactorBlock(tuple(x[:, i] for i in range(count - 1)), rg.ExactlyOne(count - 1)),
            rg.FactorBlock(tuple(x[i] for i in range(count)), rg.AtMostOne(count)),
        ]
    )


def test_a_repair_ends_where_it_gains_nothing():
    """After a quarter of its time, which operations count; a move may end a little later."""
    graph, counter = pigeons(10), clock.Counter()
    states = torch.zeros(1, graph.num_variables, dtype=torch.long)
    with clock.counted(counter):
        found = search_solution.possible_modes(graph, states, 2.0)
    assert not found.found.any()
    assert not found.optimal.any()
    assert counter.seconds < 0.6 * 2.0


def test_a_configuration_in_a_state_that_was_dropped_has_probability_zero():
    """Hard zeros drop the middle state of x; every configuration is scored as the graph says."""
    x, y = rg.Variable("x", 3), rg.Variable("y", 2)
    own = rg.Table(torch.tensor([1.0, -math.inf, 2.0]))
    pair = rg.Table(torch.tensor([[0.5, 3.0], [4.0, 5.0], [-math.inf, 6.0]]))
    graph = rg.FactorGraph([rg.Factor((x,), own), rg.Factor((x, y), pair)])
    network = reduce_graph(graph)
    for states in itertools.product(range(3), range(2)):
        found = scored(network, torch.tensor([states]))
        assert float(found.scores) == float(graph.score(dict(zip((x, y), states, strict=True))))


def test_scores_need_no_states_of_auxiliary_variables():
    x = rg.VariableArray("x", (20,), 2)
    lean = torch.randn(20, 2, generator=torch.Generator().manual_seed(0))
    three = rg.Cardinality(20, at_least=3, at_most=3)
    graph = rg.FactorGraph(
        [rg.FactorBlock((x,), rg.Table(lean)), rg.Factor(tuple(x[i] for i in range(20)), three)]
    )
    network = reduce_graph(graph)
    assert len(network.sizes) > len(network.numbers)
    three_on = torch.arange(20) < 3
    four_on = torch.arange(20) < 4
    best = best_of(network, [four_on.long()[None], three_on.long()[None]])
    assert best.states.sum() == 3
    expected = torch.where(three_on, lean[:, 1], lean[:, 0]).double().sum()
    assert float(best.scores) == pytest.approx(float(expected))
