import sys
from math import prod
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rdpgraph._core import effort
from rdpgraph.errors import BudgetError
from rdpgraph.plan import clock
from rdpgraph.plan.orders import elimination_order
from rdpgraph.plan.plan import cost
from rdpgraph.plan.planner import choose_slices, sliced_tree
from rdpgraph.plan.tree import Topology, tree_from_order
from rdpgraph.plan.tree_search import search

from .problems import brute_force, check, forest, grid, product_of_roots, tables, topologies


def found(topology, seconds=0.05, **options):
    defaults = {"deadline": clock.now() + seconds, "memory_elements": 1e9}
    tree = search(topology, **{**defaults, **options})
    check(tree)
    return tree


@settings(max_examples=30)
@given(topologies(max_variables=8, max_tensors=14))
def test_the_tree_found_gives_the_brute_force_sum(topology):
    tree = found(topology)
    leaves = tables(topology)
    assert product_of_roots(tree, leaves) == pytest.approx(brute_force(topology, leaves))


@settings(max_examples=30)
@given(topologies(max_variables=8, max_tensors=14), st.data())
def test_last_variables_are_eliminated_after_all_others(topology, data):
    last = data.draw(st.frozensets(st.integers(0, topology.num_variables - 1), min_size=1))
    tree = found(topology, last=last)
    of_tensor: dict[int, int] = {}
    late_in: list[set[int]] = []
    for number, tensors in enumerate(topology.components()):
        of_tensor.update(dict.fromkeys(tensors, number))
        late_in.append({v for t in tensors for v in topology.scopes[t]} & last)
    late: set[int] = set()
    for i, (left, right, scope) in enumerate(tree.steps):
        union = set(tree.scopes[left]) | (set(tree.scopes[right]) if right >= 0 else set())
        number = of_tensor[topology.num_tensors + i] = of_tensor[left]
        gone = union.difference(scope)
        assert len(gone) <= 1 or not late_in[number]
        if gone & last:
            late.add(number)
        elif gone:
            assert number not in late
    leaves = tables(topology)
    assert product_of_roots(tree, leaves) == pytest.approx(brute_force(topology, leaves))


def test_alike_components_are_solved_alike_and_run_together():
    one = grid(4, 4)
    copies = 50
    scopes = tuple(
        tuple(v + 16 * copy for v in scope) for copy in range(copies) for scope in one.scopes
    )
    many = found(Topology(scopes, one.sizes * copies))
    single = found(one)
    assert len(many.roots) == copies
    per_copy = len(many.steps) // copies
    assert {
        tuple(len(step.scope) for step in many.steps[c * per_copy : (c + 1) * per_copy])
        for c in range(copies)
    } == {tuple(len(step.scope) for step in many.steps[:per_copy])}
    assert cost(many).groups <= 2 * cost(single).groups
    leaves = tables(one)
    value = brute_force(one, leaves)
    assert product_of_roots(many, leaves * copies) == pytest.approx(value**copies)


def test_the_search_is_never_more_expensive_than_min_fill():
    for seed in range(5):
        rng = Random(seed)
        scopes = tuple(tuple(rng.sample(range(40), 2)) for _ in range(70))
        topology = Topology(scopes, tuple(rng.randint(2, 4) for _ in range(40)))
        plain = cost(tree_from_order(topology, elimination_order(topology)))
        assert cost(found(topology)).seconds <= 1.05 * plain.seconds


@pytest.mark.parametrize("last", [frozenset(), frozenset(range(0, 30, 5))])
def test_a_longer_search_finds_cheaper_trees(last):
    """By annealing, or by other orders where some variables come last."""
    rng = Random(1)
    topology = Topology(
        tuple(tuple(rng.sample(range(30), 2)) for _ in range(90)),
        tuple(rng.randint(2, 5) for _ in range(30)),
    )
    prices = []
    for seconds in (0.0, 2.0):
        with clock.counted(clock.Counter()):
            prices.append(cost(found(topology, seconds, last=last)).seconds)
    assert prices[1] < 0.9 * prices[0]


def test_a_search_without_randomness_left_repeats_itself():
    topology = forest(3)
    assert found(topology).steps == found(topology, seed=1).steps
    small = grid(3, 3)  # predicted to run faster than the greedy orders take: nothing random
    assert found(small, seconds=0.0).steps == found(small, seconds=0.0, seed=1).steps


def test_what_runs_quickly_is_planned_without_chance():
    """So that it is planned alike on every machine."""
    rng = Random(1)
    topology = Topology(
        tuple(tuple(rng.sample(range(36), 2)) for _ in range(90)),
        tuple(rng.randint(2, 4) for _ in range(36)),
    )
    with clock.counted(clock.Counter()):
        one, other = (found(topology, seconds=10.0, seed=seed) for seed in (0, 1))
    assert cost(one).seconds < effort.EASY_SECONDS
    assert one.steps == other.steps


def test_a_hopeless_model_is_given_up_quickly():
    both = [(a, b) for a in range(100) for b in range(100, 200)]
    with pytest.raises(BudgetError, match="200 variables"):
        found(Topology(tuple(both), (2,) * 200), seconds=10.0)


def test_little_memory_prefers_what_stores_less():
    topology = grid(7, 7, states=3)
    free = cost(found(topology, seconds=0.5))
    tight = cost(found(topology, seconds=0.5, memory_elements=free.stored / 4))
    assert tight.stored < free.stored


@pytest.mark.parametrize("share", [0.9, 0.3, 0.2])
def test_slices_fit(share):
    tree = tree_from_order(grid(5, 5), elimination_order(grid(5, 5)))
    whole = cost(tree)
    elements = share * whole.stored
    slices = choose_slices(tree, elements=elements)
    assert len(slices) == len(set(slices)) >= 1
    one = cost(sliced_tree(tree, slices))
    assert one.stored <= elements
    assert one.flops * 2 ** len(slices) >= whole.flops


def test_no_slices_when_it_fits():
    tree = tree_from_order(grid(3, 3), range(9))
    assert choose_slices(tree, elements=cost(tree).stored) == ()


def test_slices_add_up_to_the_whole():
    topology = grid(3, 4, states=3)
    tree = tree_from_order(topology, elimination_order(topology))
    slices = choose_slices(tree, elements=cost(tree).stored / 5)
    leaves = tables(topology)
    part = sliced_tree(tree, slices)
    total = 0.0
    for number in range(3 ** len(slices)):
        state = {v: number // 3**i % 3 for i, v in enumerate(slices)}
        cut = []
        for table, scope in zip(leaves, topology.scopes, strict=True):
            index = tuple(
                slice(state[v], state[v] + 1) if v in state else slice(None) for v in scope
            )
            cut.append(table[index])
        total += product_of_roots(part, cut)
    assert prod(topology.sizes[v] for v in slices) > 1
    assert total == pytest.approx(brute_force(topology, leaves))


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_a_large_component_is_given_up_by_the_deadline_and_not_long_after(share, hands):
    """The clock moves by a microsecond with each call, so that work is alike on every machine."""

    def tick(*_):
        hands.time += 1e-6

    def spent(seconds):
        began, before = hands.time, sys.getprofile()
        sys.setprofile(tick)
        try:
            with pytest.raises(BudgetError, match=f"{rows**2} variables.*time than there is"):
                search(grid(rows, rows), deadline=hands.time + seconds, memory_elements=1e9)
        finally:
            sys.setprofile(before)
        return hands.time - began

    rows = 90
    look = len(grid(rows, rows).scopes) * 1e-6  # at every factor once
    allowed = share * 10.0 * look
    assert spent(allowed) <= allowed + 7.0 * look  # it was 30 looks in any case
