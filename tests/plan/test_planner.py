import resource
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import rdpgraph as rg
from rdpgraph._core import tuning
from rdpgraph.plan.plan import PASSES, Budget, Recent, cost
from rdpgraph.plan.planner import make_plan, sliced_tree
from rdpgraph.plan.tree import Topology

from .problems import forest, grid

ROOMY = Budget(1e9, 60.0)


def plan_of(topology, budget=ROOMY, **options):
    return make_plan(topology, budget=budget, element_bytes=4, **options)


def test_the_second_plan_of_a_shape_is_the_first():
    first = plan_of(grid(4, 4))
    assert plan_of(grid(4, 4)) is first
    assert plan_of(grid(4, 4), batch=2) is not first
    assert plan_of(grid(4, 5)) is not first
    assert plan_of(grid(4, 4), last=frozenset([0])) is not first
    assert plan_of(grid(4, 4), Budget(1e9, 1.0)) is not first


CHANGES = {
    "topology": {"topology": grid(3, 5, states=3)},
    "memory": {"budget": Budget(2e4, 60.0)},
    "measured memory": {"budget": Budget(1e9, 60.0, measured=True)},
    "seconds": {"budget": Budget(1e9, 1e-9)},
    "bytes of a number": {"element_bytes": 8},
    "items": {"batch": 50},
    "variables at the end": {"last": frozenset([0, 11])},
    "states dropped": {"dropped_states": 3},
    "variables that are sliced": {"sliceable": 0, "budget": Budget(2e3, 60.0)},
    "an optimizer": {"optimize": "greedy"},
    "bytes of tables": {"tables_bytes": 1e6},
    "bytes of the answer": {"answer_bytes": 1e6},
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_plan_is_that_of_its_own_arguments(change):
    """Whatever was planned before: a part that the cache's key lacks would give another's plan."""
    given = {"topology": grid(4, 4), "budget": ROOMY, "element_bytes": 4}
    if change == "variables that are sliced":
        given["budget"] = CHANGES[change]["budget"]
    first = make_plan(**given)
    second = make_plan(**(given | CHANGES[change]))
    assert second is not first
    assert make_plan(**(given | CHANGES[change])) is second
    assert make_plan(**given) is first


def test_the_values_asked_for_last_are_kept():
    recent = Recent[int](3)
    for number in range(6):
        assert recent.put(number, number) == number
        assert recent.get(3) == (None if number < 3 else 3)
    assert [recent.get(number) for number in range(6)] == [None, None, None, 3, 4, 5]


def test_threads_share_plans():
    shapes = [Topology(((0, 1), (1, 2)), (2, 2, size)) for size in range(2, 160)]
    with ThreadPoolExecutor(4) as pool:
        plans = list(pool.map(plan_of, shapes))
    assert [plan.num_variables for plan in plans] == [3] * len(shapes)
    assert plan_of(shapes[-1]) is plan_of(shapes[-1])


def test_routes():
    assert plan_of(forest(0)).route == "forest"
    assert plan_of(grid(4, 4)).route == "contraction"
    assert plan_of(grid(4, 4)).fits


def test_a_plan_counts_the_batch():
    assert plan_of(grid(4, 4), batch=7).stored_bytes >= 3 * plan_of(grid(4, 4)).stored_bytes


def test_too_little_memory_is_sliced():
    topology = grid(7, 7, states=4)
    whole = plan_of(topology)
    budget = Budget(whole.stored_bytes / 8, 2.0)
    plan = plan_of(topology, budget)
    assert plan.fits
    assert plan.num_slices == 4 ** len(plan.slices)
    assert plan.stored_bytes <= budget.memory_bytes or plan.num_slices > 1
    assert plan.seconds <= budget.seconds


@pytest.mark.parametrize("seconds", [1e-3, 3e-2, 1.0, 60.0])
@pytest.mark.parametrize("part", [0.02, 0.2, 0.6, 2.0])
def test_what_fits_keeps_to_both_limits(part, seconds):
    """Slices that fit the memory may be too many for the time."""
    topology = grid(5, 6, states=3)
    whole = plan_of(topology)
    budget = Budget(part * whole.stored_bytes, seconds)
    plan = plan_of(topology, budget)
    one = cost(sliced_tree(plan.tree, plan.slices))
    if plan.fits:
        assert tuning.BOTH_WAYS * 4 * one.stored <= budget.memory_bytes
        assert plan.num_slices == 3 ** len(plan.slices)
        assert plan.seconds == pytest.approx(PASSES * one.seconds * plan.num_slices)
        assert plan.seconds <= seconds
        if plan.slices:
            more = (tuning.BOTH_WAYS - tuning.UPWARDS_BYTES) * 4 * one.stored
            assert plan.stored_bytes - plan.peak_bytes == pytest.approx(more)
    else:
        assert not plan.slices
        assert whole.stored_bytes > budget.memory_bytes or whole.seconds > seconds


def test_what_does_not_fit_says_so_and_what_to_do():
    tight = plan_of(grid(8, 8, states=6), Budget(1e4, 0.5))
    assert not tight.fits
    assert "memory" in tight.remedy
    both = tuple((a, b) for a in range(80) for b in range(80, 160))
    hopeless = plan_of(Topology(both, (2,) * 160))
    assert not hopeless.fits
    assert hopeless.tree is None
    assert "approximate" in hopeless.remedy
    assert "inf" in str(hopeless)


def test_a_plan_prints():
    text = str(plan_of(grid(4, 4), dropped_states=3))
    for word in ("contraction", "width", "flop", "memory", "3 states"):
        assert word in text
    assert "tree" not in repr(plan_of(grid(4, 4)))


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.02, "20 ms"), (90.0, "90.0 s"), (6000.0, "100 minutes"), (36000.0, "10 hours")],
)
def test_times_are_in_readable_units(seconds, shown):
    plan = rg.explain(rg.FactorGraph([], [rg.Variable("x", 2)]))
    assert shown in str(replace(plan, seconds=seconds))


@pytest.mark.parametrize("left", [1e7, 3e8])
def test_memory_is_the_least_that_anything_leaves(left, monkeypatch):
    """A limit on addresses (``ulimit -v``) counts those that are taken already."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    monkeypatch.setattr(resource, "getrlimit", lambda _: (used + left, used + left))
    found = Budget.of_machine().memory_bytes
    assert found == pytest.approx(tuning.AVAILABLE_SHARE * left, abs=0.1 * left)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (2 * used + 1e18, 2 * used + 1e18))
    assert Budget.of_machine().memory_bytes < 1e15  # the machine has less


def test_a_budget_of_this_machine():
    assert 1e6 < Budget.of_machine().memory_bytes < 1e15
    assert Budget.of_machine().seconds == 60.0


PLANNING = """
import sys
sys.modules["rdpgraph"] = type(sys)("rdpgraph")  # without the rooms that do import torch
sys.modules["rdpgraph"].__path__ = [sys.argv[1]]
from rdpgraph.plan.plan import Budget
from rdpgraph.plan.planner import make_plan
from rdpgraph.plan.tree import Topology
triangle = Topology(((0, 1), (1, 2), (0, 2)), (2, 2, 2))
make_plan(triangle, budget=Budget(1e9), element_bytes=4)
heavy = {"torch", "cotengra", "opt_einsum", "networkx"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
"""


def test_planning_imports_no_tensors():
    place = Path(rg.__file__).parent
    subprocess.run([sys.executable, "-c", PLANNING, str(place)], check=True)


@pytest.mark.parametrize(("states", "helps"), [(4, True), (32, False), (100, False)])
def test_no_budget_is_to_be_raised_where_nobody_would_wait(states, helps):
    x = rg.VariableArray("x", (10, 10), states)
    near = rg.Table(torch.zeros(states, states))
    graph = rg.FactorGraph([
        rg.FactorBlock((x[1:], x[:-1]), near), rg.FactorBlock((x[:, 1:], x[:, :-1]), near)
    ])  # fmt: skip
    for memory, seconds in ((1e6, 1e-3), (1e300, 1e-3)):
        plan = rg.explain(graph, scheduler=rg.Contraction(memory, seconds))
        assert not plan.fits
        assert ("raise" in plan.remedy) == helps
        assert plan.remedy.endswith("condition on more evidence, or use an approximate method")
