"""Budgets that count: what is predicted is no less than what is taken, and clocks are looked at."""

import math
import tracemalloc
from random import Random

import numpy as np
import pytest
import torch

import rdpgraph as rg
from rdpgraph._core import effort
from rdpgraph.engines.elimination import conditioned_order
from rdpgraph.engines.elimination_bounds import (
    bounded,
    ceilings,
    pass_cells,
    pass_seconds,
    tight_order,
)
from rdpgraph.engines.reduction.network import reduce_graph
from rdpgraph.engines.reduction.tables import tables_of
from rdpgraph.engines.search.neighbourhoods import NeighbourhoodSearch
from rdpgraph.errors import BudgetError
from rdpgraph.plan import clock

DOUBLE = torch.float64


@pytest.fixture
def ticking(monkeypatch):
    """Puts a clock that a look moves on in place of the machine's."""

    def start(tick: float) -> list[float]:
        times = [0.0]

        def now() -> float:
            times[0] += tick
            return times[0]

        monkeypatch.setattr(clock, "now", now)
        return times

    return start


def pairs(count: int, factors: int, seed: int = 0, scale: float = 1.0) -> rg.FactorGraph:
    """Random pairs of binary variables."""
    generator, x = torch.Generator().manual_seed(seed), rg.VariableArray("x", (count,), 2)
    first = torch.randint(count, (factors,), generator=generator)
    second = (first + 1 + torch.randint(count - 1, (factors,), generator=generator)) % count
    values = scale * torch.randn(factors, 2, 2, generator=generator, dtype=DOUBLE)
    return rg.FactorGraph([rg.FactorBlock((x[first], x[second]), rg.Table(values))])


def peak(work) -> int:
    """The most bytes that a function held at a time."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_tables_with_one_scope_are_added_up_whatever_their_order():
    generator = torch.Generator().manual_seed(0)
    x = [rg.Variable(f"x{i}", 2 + i % 2) for i in range(4)]
    scopes = [(0, 1), (1, 0), (2, 3, 0), (0, 2, 3), (3,), (3,), (0, 1), (2, 1)]
    values = [
        torch.randn([x[i].size for i in s], generator=generator, dtype=DOUBLE) for s in scopes
    ]
    values[1][0, 0] = -math.inf
    graph = rg.FactorGraph([
        rg.Factor(tuple(x[i] for i in scope), rg.Table(own))
        for scope, own in zip(scopes, values, strict=True)
    ])  # fmt: skip
    tables = tables_of(reduce_graph(graph), 0, zeros=True)
    found = [tuple(scope) for stack in tables.stacks for scope in stack.scopes.tolist()]
    assert sorted(found) == sorted({tuple(sorted(scope)) for scope in scopes})
    assert [set(near) for near in tables.graph.adjacency] == [{1, 2, 3}, {0, 2}, {0, 1, 3}, {0, 2}]
    for states in np.ndindex(*(v.size for v in x)):
        expected = sum(
            own[tuple(states[i] for i in s)] for s, own in zip(scopes, values, strict=True)
        )
        assert tables.score(np.array(states)) == pytest.approx(float(expected))


def test_a_pass_ends_at_its_deadline(ticking):
    tables = tables_of(reduce_graph(pairs(40, 80)), 0, zeros=True)
    order = tight_order(tables, cells=16, seconds=0.0, rng=Random(0))
    times = ticking(1.0)
    with pytest.raises(BudgetError, match="Bounds of 40 variables"):
        bounded(tables, order, cells=16, deadline=10.0)
    assert times[0] <= 11.0
    late = tight_order(tables, cells=16, seconds=5.0, rng=Random(0))
    assert sorted(late) == sorted(order)
    assert times[0] <= 40.0


def test_a_bound_that_takes_too_long_is_infinite(ticking):
    network = reduce_graph(pairs(40, 80))
    assert bool(ceilings(network, set(), seconds=60.0, memory=1e9).isfinite().all())
    assert float(ceilings(network, set(), seconds=1e-5, memory=1e9)) == math.inf  # as predicted
    times = ticking(0.5)
    assert float(ceilings(network, set(), seconds=1.0, memory=1e9)) == math.inf  # as measured
    assert times[0] <= 15.0


def test_bounds_of_more_factors_than_there_is_time_for_are_refused():
    graph = pairs(40, 80)
    assert pass_seconds(reduce_graph(graph)) < 1.0
    with pytest.raises(BudgetError, match=r"for 40 variables and [0-9]+ factors, and has 0.001 s"):
        rg.infer(graph, scheduler=rg.MiniBuckets(seconds=1e-3))


def test_a_pass_takes_no_more_memory_than_predicted(monkeypatch):
    monkeypatch.setattr("rdpgraph._core.tuning.SMALL_BYTES", 0.0)
    tables = tables_of(reduce_graph(pairs(300, 600)), 0, zeros=True)
    order, memory = tight_order(tables, cells=16, seconds=0.0, rng=Random(0)), 4e6
    cells = pass_cells(tables, memory)
    assert peak(lambda: bounded(tables, order, cells=cells)) <= memory
    with pytest.raises(BudgetError, match="Bounds of 300 variables would take"):
        pass_cells(tables, 1e5)


def test_sums_of_a_search_fit_the_memory_or_are_not_made():
    count = 14
    x, generator = rg.VariableArray("x", (count + 1,), 2), torch.Generator().manual_seed(0)
    first, second = torch.triu_indices(count, count, 1)
    ends = torch.cat([first, torch.tensor([0])]), torch.cat([second, torch.tensor([count])])
    values = torch.randn(len(ends[0]), 2, 2, generator=generator, dtype=DOUBLE)
    graph = rg.FactorGraph([rg.FactorBlock((x[ends[0]], x[ends[1]]), rg.Table(values))])
    summed, states = frozenset(range(count)), np.zeros(count + 1, np.int64)
    tables = tables_of(reduce_graph(graph), 0, summed)
    exact = float(rg.infer(graph.condition({"x[14]": 0})).log_partition)

    def found(memory: float, seconds: float = math.inf) -> float | None:
        search = NeighbourhoodSearch(
            tables, Random(0), memory=memory, most=4, summed=summed, seconds=seconds
        )
        return search.value(states)

    ample = 28 * 2**count
    assert found(ample) == pytest.approx(exact)
    assert peak(lambda: found(ample)) <= 1.1 * ample
    assert found(20 * 2**count) is None
    assert found(ample, seconds=1e-4) is None


def test_a_search_counts_what_it_makes_ready(ticking):
    times = ticking(0.0)
    graph = pairs(40, 80)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rdpgraph.native.library.available", lambda *_: False)
        posterior = rg.infer(graph, scheduler=rg.Search(seconds=20.0))
    assert posterior.plan.route == "search"

    def slow(*args, **options):
        times[0] += 5.0
        return conditioned_order(*args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(effort, "MOVE_CELLS", 4)
        patch.setattr("rdpgraph.engines.moves.conditioned_order", slow)
        patch.setattr("rdpgraph.native.library.available", lambda *_: False)
        posterior.mode()
    assert times[0] <= 25.0
