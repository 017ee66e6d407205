"""Schedules, damping, batches, restarts and limits of message passing."""

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import rdpgraph as rg
from rdpgraph.plan import clock
from rdpgraph.testing import brute_force
from tests.engines.loopy.helpers import (
    SCHEDULES,
    grid,
    grid_tables,
    loopy,
    message_odds,
    mixed,
    mixed_tables,
    randn,
    random_grid,
    same,
    schedule,
    seeded,
)


class EvenThenOdd(rg.loopy.Schedule):
    """A schedule of five lines, as a user may write."""

    def sweep(self, edges, residuals, number):
        every = torch.arange(edges.count)
        yield every[number % 2 :: 2]
        yield every[1 - number % 2 :: 2]


class Greedy(rg.loopy.Schedule):
    """Half of the messages, those that change most; forgets to say that it looks."""

    def sweep(self, edges, residuals, number):
        yield residuals().topk(edges.count // 2).indices


class HonestGreedy(Greedy):
    """A greedy schedule that declares itself greedy."""

    @property
    def looks_at_residuals(self):
        return True


def answers(posterior):
    return [posterior.log_partition, *posterior.marginals().values(), *message_odds(posterior)]


def agree(first, second, tolerance):
    for one, other in zip(answers(first), answers(second), strict=True):
        same(one, other, tolerance)


@pytest.mark.long
@pytest.mark.cover(1)
@pytest.mark.parametrize("damping", [0.0, 0.3, rg.loopy.ProbabilityDamping(0.3)], ids=str)
@pytest.mark.parametrize("name", SCHEDULES)
def test_all_schedules_reach_the_same_fixed_point(name, damping):
    _, graph = random_grid(0, 6, 6, coupling=0.3)
    reference = loopy(graph)
    other = loopy(graph, name, damping=damping)
    assert reference.status.converged
    assert other.status.converged
    assert not other.status.exact
    agree(other, reference, 1e-8)


@pytest.mark.long
@pytest.mark.parametrize("own", [EvenThenOdd(), HonestGreedy()], ids=["blind", "looking"])
def test_a_schedule_of_ones_own(own):
    for graph in (random_grid(0, 4, 4, 3, coupling=0.3)[1], mixed(mixed_tables(0))):
        mine = rg.infer(graph, scheduler=rg.Loopy(schedule=own, tolerance=1e-12))
        assert mine.status.converged
        agree(mine, loopy(graph), 1e-8)


def test_a_schedule_that_looks_must_say_so():
    _, graph = random_grid(0, 3, 3)
    posterior = rg.infer(graph, scheduler=rg.Loopy(schedule=Greedy()))
    with pytest.raises(rg.errors.ModelError, match="looks_at_residuals"):
        posterior.log_partition  # noqa: B018


@pytest.mark.parametrize(
    ("sweep", "words"),
    [
        (lambda edges, residuals: [residuals.argsort()], r"residuals\(\) gives \(E,\)"),
        (lambda edges, residuals: [(residuals > 0).nonzero()], r"residuals\(\) gives"),
        (lambda edges, residuals: [torch.topk(residuals, 2)], r"residuals\(\) gives"),
        (lambda edges, residuals: [residuals[:2]], r"residuals\(\) gives"),
        (lambda edges, residuals: None, "returned None"),
        (lambda edges, residuals: torch.arange(edges.count), "one after the other"),
        (lambda edges, residuals: [torch.arange(4).reshape(2, 2)], r"\(n,\) int64"),
    ],
)
def test_a_schedule_that_does_not_fit_is_told_what_would(sweep, words):
    class Mistaken(rg.loopy.Schedule):
        looks_at_residuals = True

        def sweep(self, edges, residuals, number):
            return sweep(edges, residuals)

    _, graph = random_grid(0, 3, 3)
    with pytest.raises(rg.errors.ModelError, match=words) as caught:
        rg.infer(graph, rg.Loopy(schedule=Mistaken())).log_partition  # noqa: B018
    assert "\n" not in str(caught.value)


def test_what_loopy_refuses():
    _, graph = random_grid(0, 3, 3)
    for make in (rg.loopy.Residual, rg.loopy.RandomSubsets):
        for share in (0.0, -0.1, 1.1):
            with pytest.raises(rg.errors.ModelError, match=r"share as a number in \(0, 1\]"):
                make(share)
    for damping in (1.0, -0.1, rg.loopy.LogDamping):
        with pytest.raises((rg.errors.ModelError, TypeError)):
            rg.Loopy(damping=damping)
    for make in (rg.loopy.LogDamping, rg.loopy.ProbabilityDamping):
        with pytest.raises(rg.errors.ModelError, match=r"share as a number in \[0, 1\)"):
            make(1.0)
    for options in ({"sweeps": 0}, {"tolerance": -1.0}, {"temperature": -1.0}):
        with pytest.raises(rg.errors.ModelError, match=r"number of at least [01]"):
            rg.Loopy(**options)
    with pytest.raises(rg.errors.ModelError, match="needs a posterior that Loopy gave"):
        rg.Loopy(start=rg.infer(graph))
    short = rg.infer(graph, scheduler=rg.Loopy(schedule=rg.loopy.Sequential(torch.arange(4))))
    with pytest.raises(rg.errors.ModelError, match=r"\(9,\) of the graph's variables; got \(4,\)"):
        short.log_partition  # noqa: B018


class Watched:
    """A progress callback that keeps what it sees."""

    def __init__(self):
        self.seen = []

    def __call__(self, sweep):
        self.seen.append(sweep)

    @property
    def updates(self):
        return self.seen[-1].updates


@pytest.mark.long
def test_residuals_need_fewer_updates_than_flooding():
    _, graph = random_grid(3, 8, 8, coupling=1.0)
    counted = []
    for own in (rg.loopy.Flooding(), rg.loopy.Residual(0.1), rg.loopy.Residual()):
        watched = Watched()
        scheduler = rg.Loopy(schedule=own, tolerance=1e-8, progress=watched)
        assert rg.infer(graph, scheduler=scheduler).status.converged
        counted.append(watched.updates)
    assert max(counted[1:]) < counted[0]


def naive_sweep(posterior, steps):
    """One sweep of messages into sets of variables, straight from the equations."""
    equations = posterior.solution.equations
    messages = equations.flat_messages()
    for variables in steps:
        new = equations.update(messages)
        at = equations.edges.variable
        chosen = torch.isin(at, torch.tensor(variables))
        parts = []
        for c, fresh, old in zip(equations.edges.classes, new, messages, strict=True):
            here = chosen[c.first : c.first + c.count]
            parts.append(torch.where(here, fresh, old))
        messages = tuple(parts)
    return messages


@pytest.mark.parametrize(
    ("order", "steps"),
    [
        ([0, 1, 2, 3], [[0], [1], [2], [3]]),
        ([3, 2, 1, 0], [[3], [2], [1], [0]]),
        ([7, -2, 7, 9], [[1], [0, 2], [3]]),
        ([0, 1, 1, 2], [[0], [1, 2], [3]]),
        ([0.5, 0.25, 2.0, 1.0], [[1], [0], [3], [2]]),
    ],
)
def test_an_order_is_kept_to(order, steps):
    """Variables of one place are updated together, those of a later place from newer messages."""
    x = rg.VariableArray("x", (4,), 3)
    pairs = [rg.FactorBlock((x[:-1], x[1:]), rg.Table(randn(0, 3, 3, 3)))]
    ends = [rg.Factor((x[3], x[0]), rg.Table(randn(1, 3, 3)))]
    graph = rg.FactorGraph([*pairs, *ends, rg.FactorBlock((x,), rg.Table(randn(2, 4, 3)))])
    one = rg.Loopy(schedule=rg.loopy.Sequential(torch.tensor(order)), sweeps=1)
    posterior = rg.infer(graph, scheduler=one)
    for got, expected in zip(
        posterior.solution.outcome.messages, naive_sweep(posterior, steps), strict=True
    ):
        same(got, expected, 1e-12)


def test_forwards_and_backwards_in_order_solve_a_chain_in_one_pass_each():
    count = 30
    x = rg.VariableArray("x", (count,), 3)
    graph = rg.FactorGraph(
        [
            rg.FactorBlock((x[:-1], x[1:]), rg.Table(randn(0, count - 1, 3, 3) * 2)),
            rg.FactorBlock((x,), rg.Table(randn(1, count, 3))),
        ]
    )
    in_order = rg.Loopy(schedule=rg.loopy.Sequential(torch.arange(count)), tolerance=1e-12)
    posterior = rg.infer(graph, scheduler=in_order)
    assert posterior.status.converged
    assert posterior.status.iterations <= 3  # the third finds no change
    same(posterior.log_partition, rg.infer(graph).log_partition)


COUPLINGS = (0.0005, 0.1, 0.8, 1.2)


@pytest.mark.long
@pytest.mark.cover(1)
@pytest.mark.parametrize("states", [2, 3])
@pytest.mark.parametrize("name", SCHEDULES)
def test_a_batch_is_its_items(name, states):
    """Items that converge in very different times; a finished one changes no more."""
    tables = grid_tables(0, 4, 4, states, COUPLINGS, (4,))
    pixels, together = grid(*tables)
    batch = loopy(together, name, tolerance=1e-9)
    sweeps = []
    for item in range(4):
        _, alone = grid(*(table[item] for table in tables))
        single = loopy(alone, name, tolerance=1e-9)
        assert single.status.converged
        sweeps.append(single.status.iterations)
        same(batch.log_partition[item], single.log_partition, 1e-12)
        same(batch.marginal(pixels)[item], single.marginal(pixels), 1e-12)
        same(batch.entropy()[item], single.entropy(), 1e-12)
        for ours, own in zip(message_odds(batch), message_odds(single), strict=True):
            same(ours[item], own[0], 1e-12)
    assert max(sweeps) > 2 * min(sweeps)
    assert batch.status.converged
    assert batch.status.iterations == max(sweeps)


@pytest.mark.long
@pytest.mark.parametrize("name", SCHEDULES)
def test_a_batch_of_mixed_factors_and_of_evidence_is_its_items(name):
    tables = mixed_tables(0, batch=(3,))
    batch = mixed(tables).condition({"x1": [0, -1, 2], "x3": [-1, 1, 0]})
    together = loopy(batch, name, damping=0.1)
    for item, (first, second) in enumerate([(0, -1), (-1, 1), (2, 0)]):
        alone = mixed([table[item] for table in tables])
        given = {"x1": torch.tensor(first), "x3": torch.tensor(second)}  # -1 is no state alone
        single = loopy(alone.condition(given), name, damping=0.1)
        same(together.log_partition[item], single.log_partition, 1e-9)
        for variable, marginal in single.marginals().items():
            same(together.marginal(variable)[item], marginal, 1e-9)


def test_a_batch_of_which_some_items_do_not_converge():
    tables = grid_tables(0, 3, 3, 2, (0.1, 3.0), (2,))
    _, together = grid(*tables)
    batch = loopy(together, sweeps=15, tolerance=1e-9)
    _, quick = grid(*(table[0] for table in tables))
    assert not batch.status.converged
    assert batch.solution.outcome.converged.tolist() == [True, False]
    same(batch.log_partition[0], loopy(quick, tolerance=1e-9).log_partition, 1e-12)


@pytest.mark.long
@pytest.mark.parametrize("name", SCHEDULES)
def test_a_restart_on_the_same_model_has_nothing_to_do(name):
    for graph in (random_grid(1, 5, 5, coupling=0.5)[1], mixed(mixed_tables(1))):
        cold = loopy(graph, name, tolerance=1e-9)
        again = loopy(graph, name, tolerance=1e-8, start=cold)
        assert cold.status.iterations > 3
        assert again.status.converged
        assert again.status.iterations <= 2
        agree(again, cold, 1e-7)


@pytest.mark.long
@pytest.mark.parametrize("name", SCHEDULES)
def test_a_restart_on_changed_evidence_is_quicker_than_a_cold_start(name):
    across, down, unary = grid_tables(2, 6, 6, 2, 0.6)
    _, graph = grid(across, down, unary)
    before = loopy(graph, name, tolerance=1e-9)
    changed = unary.clone()
    changed[3, 3, 0] += 1e-3
    _, after = grid(across, down, changed)
    cold = loopy(after, name, tolerance=1e-9)
    warm = loopy(after, name, tolerance=1e-9, start=before)
    assert warm.status.converged
    assert warm.status.iterations < cold.status.iterations
    agree(warm, cold, 1e-7)


def test_a_restart_where_the_evidence_settles_other_variables():
    pixels, graph = random_grid(4, 5, 5, 3, coupling=0.5)
    first = graph.condition({pixels[0, 0]: 1, pixels[2, 3]: 0})
    second = graph.condition({pixels[0, 0]: 2, pixels[4, 4]: 2})
    before = loopy(first, tolerance=1e-9)
    for other in (second, graph, first):
        cold = loopy(other, tolerance=1e-9)
        warm = loopy(other, tolerance=1e-9, start=before)
        assert warm.status.converged
        assert warm.status.iterations <= cold.status.iterations
        agree(warm, cold, 1e-7)


@pytest.mark.long
def test_a_restart_where_states_are_dropped():
    """A hard zero leaves other states of some variables; their messages start again."""
    pixels, graph = random_grid(4, 4, 4, 3, coupling=0.4)
    barred = torch.tensor([0.0, -torch.inf, 0.0], dtype=torch.float64)
    smaller = graph.with_factors(rg.Factor((pixels[1, 1],), rg.Table(barred)))
    other = graph.with_factors(rg.Factor((pixels[1, 1],), rg.Table(barred.roll(1))))
    known = {one: loopy(one) for one in (graph, smaller, other)}
    for one, before in known.items():
        for two, cold in known.items():
            warm = loopy(two, start=before)
            assert warm.status.converged, (one, two)
            agree(warm, cold, 1e-8)


@pytest.mark.long
def test_a_restart_of_other_schedules_counting_and_batches():
    tables = grid_tables(5, 4, 4, 2, (0.2, 0.4, 0.6), (3,))
    _, batch = grid(*tables)
    _, single = grid(*(table[1] for table in tables))
    cold = loopy(batch)
    warm = loopy(batch, "residual", start=loopy(single, tolerance=1e-9))
    agree(warm, cold, 1e-8)
    _, pair = grid(*(table[:2] for table in tables))
    agree(loopy(pair, start=cold), loopy(pair), 1e-8)  # batches differ: from the beginning
    reweighted = loopy(batch, counting=rg.loopy.TreeReweighted(), damping=0.3)
    agree(loopy(batch, start=reweighted), cold, 1e-8)


def cycle_of_equals(evidence):
    """Four variables in a ring, each equal to the next, and a soft unary."""
    x = [rg.Variable(f"x{i}", 2) for i in range(4)]
    equal = rg.Table(torch.eye(2, dtype=torch.float64).log())
    graph = rg.FactorGraph(
        [
            *(rg.Factor((x[i], x[(i + 1) % 4]), equal) for i in range(4)),
            rg.Factor((x[1],), rg.Table(randn(0, 2, 2) * 100)),
        ]
    )
    return graph.condition({x[0]: evidence}) if evidence else graph


@pytest.mark.parametrize("before", [[0, -1], [-1, 1]])
@pytest.mark.parametrize("after", [[1, -1], None])
def test_a_restart_forgets_the_hard_zeros_of_the_evidence_before(before, after):
    """Zeros of a loop would keep each other alive forever."""
    cold = loopy(cycle_of_equals(after))
    warm = loopy(cycle_of_equals(after), start=loopy(cycle_of_equals(before)))
    for one, other in zip(answers(warm)[:5], answers(cold)[:5], strict=True):
        same(one, other)


def test_a_limit_of_time_that_is_not_met_changes_nothing():
    """Items in turn share the seconds that are left, of which there are enough."""
    graph = random_grid(0, 4, 4, 3, batch=(3,))[1]
    for name in ("flooding", "residual"):
        plain, limited = (loopy(graph, name, seconds=seconds) for seconds in (None, 1e4))
        assert limited.status.converged
        assert limited.status.iterations == plain.status.iterations
        same(limited.log_partition, plain.log_partition)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_a_mean_of_messages_is_that_of_their_values(share):
    new = torch.tensor([0.0, -1.0, -1000.0, 0.0, -math.inf, 0.0], dtype=torch.float64)
    old = torch.tensor([-1.0, 0.0, 0.0, -1000.0, 0.0, -math.inf], dtype=torch.float64)
    mixed = rg.loopy.ProbabilityDamping(share).mix(new, old)
    expected = ((1 - share) * new.exp() + share * old.exp()).log()
    expected[2] = math.log(share) if share else -1000.0
    expected[4] = -math.inf
    same(mixed, expected)


def test_a_restart_goes_on_with_the_messages_of_every_logical_factor():
    x, unary = rg.VariableArray("x", (14,), 2), randn(0, 14, 2)
    slots = [tuple(x[i] for i in part) for part in (range(8), range(6, 14), range(3, 11))]
    kinds = (rg.Or(8), rg.Cardinality(8, at_most=4), rg.Xor(8))
    factors = [rg.Factor(part, kind) for part, kind in zip(slots, kinds, strict=True)]
    graph = rg.FactorGraph([rg.FactorBlock((x,), rg.Table(unary)), *factors])
    cold = loopy(graph, tolerance=1e-9)
    warm = loopy(graph, tolerance=1e-7, start=cold)
    assert cold.status.iterations > 3
    assert warm.status.iterations <= 2
    same(warm.marginal(x), cold.marginal(x))


def test_progress_ends_the_sweeps_of_all_items():
    graph, seen = random_grid(0, 4, 4, 3, batch=(3,))[1], Watched()
    status = loopy(graph, "residual", tolerance=1e-7, progress=seen).status
    assert status.converged
    assert [sweep.number for sweep in seen.seen] == list(range(1, len(seen.seen) + 1))

    def stop(sweep):
        if sweep.number == 2:
            raise StopIteration

    status = loopy(graph, "residual", tolerance=1e-7, progress=stop).status
    assert (status.converged, status.iterations) == (False, 2)


@pytest.mark.long
def test_progress_is_called_once_a_sweep():
    for graph in (random_grid(0, 4, 4)[1], random_grid(0, 4, 4, 3, batch=(2,))[1]):
        for name in SCHEDULES:
            watched = Watched()
            posterior = loopy(graph, name, tolerance=1e-7, progress=watched)
            assert not watched.seen  # nothing runs before a question
            status = posterior.status
            posterior.marginals()
            posterior.entropy()
            seen = watched.seen
            assert status.converged
            if name == "residual" and graph.batch_shape:
                continue  # items one after the other
            assert tuple(sweep.residual for sweep in seen) == status.trace
            assert [sweep.number for sweep in seen] == list(range(1, status.iterations + 1))
            assert status.residual == status.trace[-1] <= 1e-7 < min(status.trace[:-1])
            spent = [sweep.seconds for sweep in seen]
            assert spent == sorted(spent)
            edges = posterior.solution.edges.count
            assert seen[0].updates >= edges
            if name != "residual":
                assert [s.updates for s in seen] == [edges * s.number for s in seen]


def test_limits_of_sweeps_and_of_time_say_what_to_do():
    _, graph = random_grid(0, 5, 5, coupling=0.8)
    few = loopy(graph, sweeps=2)
    assert not few.status.converged
    assert not few.status.exact
    assert few.status.biased
    assert few.status.iterations == 2
    assert few.status.residual > 1e-12
    for word in ("sweeps", "damp", "schedule"):
        assert word in few.status.remedy
    short = loopy(graph, seconds=0.0)
    assert not short.status.converged
    assert short.status.iterations == 1
    enough = loopy(graph, seconds=60.0)
    assert enough.status.converged
    assert "Contraction()" in enough.status.remedy


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_tolerance_of_zero_waits_for_no_change_at_all(name):
    x = rg.VariableArray("x", (5,), 3)
    block = rg.FactorBlock((x[:-1], x[1:]), rg.Table(randn(0, 4, 3, 3)))
    chain = rg.FactorGraph([block, rg.FactorBlock((x,), rg.Table(randn(1, 5, 3)))])
    posterior = loopy(chain, name, tolerance=0.0, sweeps=100)
    assert posterior.status.converged
    assert posterior.status.residual == 0.0
    same(posterior.log_partition, brute_force(chain).log_partition)


def test_damping_converges_where_plain_messages_swing():
    """A complete graph of repulsive pairs: flooding oscillates between two states forever."""
    x = [rg.Variable(f"x{i}", 2) for i in range(6)]
    repel = rg.Table(torch.eye(2, dtype=torch.float64) * -1.5)
    pull = rg.Table(torch.tensor([0.3, 0.0], dtype=torch.float64))
    factors = [rg.Factor((a, b), repel) for i, a in enumerate(x) for b in x[:i]]
    graph = rg.FactorGraph([*factors, *(rg.Factor((v,), pull) for v in x)])
    assert not loopy(graph, sweeps=300).status.converged
    for damping in (0.5, rg.loopy.ProbabilityDamping(0.5)):
        posterior = loopy(graph, damping=damping)
        assert posterior.status.converged
        for variable in x[1:]:  # all alike
            same(posterior.marginal(variable), posterior.marginal(x[0]))


@pytest.mark.long
def test_random_sets_are_those_of_the_generator():
    _, graph = random_grid(0, 4, 4, coupling=0.6)

    def trace(seed):
        own = rg.loopy.RandomSubsets(0.25, seeded(seed))
        return rg.infer(graph, scheduler=rg.Loopy(schedule=own)).status.trace

    assert trace(0) == trace(0)
    assert trace(0) != trace(1)


@pytest.mark.long
def test_one_schedule_object_serves_many_models():
    own = rg.loopy.Sequential()
    for seed in range(3):
        _, graph = random_grid(seed, 3 + seed, 4, coupling=0.3)
        scheduler = rg.Loopy(schedule=own, tolerance=1e-12)
        agree(rg.infer(graph, scheduler=scheduler), loopy(graph), 1e-8)


def test_what_loopy_does_not_answer():
    pixels, graph = random_grid(0, 3, 3)
    posterior = loopy(graph)
    with pytest.raises(rg.errors.UnsupportedError, match="no joint distribution"):
        posterior.sample(2)
    with pytest.raises(rg.errors.UnsupportedError, match="Contraction"):
        posterior.marginal_mode([pixels[0, 0]])


def test_schedule_names_cover_every_schedule_of_the_package():
    kinds = {type(schedule(name, 3)) for name in SCHEDULES}
    assert kinds == {
        rg.loopy.Flooding,
        rg.loopy.Sequential,
        rg.loopy.Residual,
        rg.loopy.RandomSubsets,
    }


class Half(rg.loopy.Schedule):
    """Never says every other message."""

    def sweep(self, edges, residuals, number):
        yield torch.arange(0, edges.count, 2)


class Given(rg.loopy.Schedule):
    def __init__(self, *chosen):
        self.chosen = chosen

    def sweep(self, edges, residuals, number):
        yield from self.chosen


def test_messages_that_a_schedule_leaves_out_have_not_converged():
    graph = random_grid(0, 1, 5, coupling=1.0)[1]
    posterior = rg.infer(graph, scheduler=rg.Loopy(schedule=Half(), sweeps=20))
    assert not posterior.status.converged
    assert not posterior.status.exact
    everything = rg.infer(graph, scheduler=rg.Loopy(schedule=Given(None)))
    assert everything.status.exact


@pytest.mark.parametrize(
    "chosen", [(), (torch.zeros(0, dtype=torch.long),), ([0, 1],), (torch.tensor([99]),)]
)
def test_what_is_no_choice_of_messages_is_refused(chosen):
    graph = random_grid(0, 1, 5, coupling=1.0)[1]
    with pytest.raises(rg.errors.ModelError, match=r"sweep (must )?yield"):
        rg.infer(graph, scheduler=rg.Loopy(schedule=Given(*chosen))).log_partition  # noqa: B018


@pytest.mark.long
@pytest.mark.cover(1)
@pytest.mark.parametrize("cached", [1.0, 4e4])
@pytest.mark.parametrize("name", SCHEDULES)
def test_a_batch_swept_in_shares_is_the_batch_swept_whole(name, cached, small_blocks):
    """However many items are swept at a time, the answers, residuals and sweeps are the same."""
    _, graph = grid(*grid_tables(0, 4, 4, 2, COUPLINGS, (4,)))
    whole = loopy(graph, name, tolerance=1e-9)
    whole.marginals()
    small_blocks(int(cached / 16))
    parts = loopy(graph, name, tolerance=1e-9)
    agree(parts, whole, 1e-12)
    assert parts.status.iterations == whole.status.iterations
    same(torch.tensor(parts.status.trace), torch.tensor(whole.status.trace), 1e-9)
    assert parts.solution.outcome.updates == whole.solution.outcome.updates


@pytest.mark.parametrize("scale", [1.0, 300.0, 2000.0])
@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("counting", [rg.loopy.Bethe(), rg.loopy.TreeReweighted()], ids=str)
def test_whether_products_may_underflow_is_read_off_the_tables(scale, temperature, counting):
    """Ranges count for each factor alone: small tables beside large ones lose nothing."""
    x = rg.VariableArray("x", (4,), 3)
    for shift in (0.0, 5000.0):
        tables = scale * torch.rand(2, 3, 3, 3, generator=seeded(0), dtype=torch.float64)
        tables = tables + shift * torch.arange(3).reshape(3, 1, 1)
        graph = rg.FactorGraph([rg.FactorBlock((x[:-1], x[1:]), rg.Table(tables))])
        scheduler = rg.Loopy(temperature=temperature, counting=counting)
        (kernel,) = rg.infer(graph, scheduler=scheduler).solution.equations.kernels
        logs = kernel.logs.flatten(1, -2)
        spread = (logs.amax(1) - logs.amin(1)).amax()
        assert kernel.bounded == (float(spread) < -math.log(kernel._least))


class Counted(TorchDispatchMode):
    """Counts the numbers that are made, in memory that no argument of an operation has."""

    made = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        given = [part for part in tree_leaves((args, kwargs)) if isinstance(part, torch.Tensor)]
        before = {part.untyped_storage().data_ptr() for part in given}
        found = function(*args, **(kwargs or {}))
        if isinstance(found, torch.Tensor) and found.untyped_storage().data_ptr() not in before:
            self.made += found.numel()
        return found


@pytest.mark.parametrize(("size", "records"), [(2, False), (3, False), (3, True)])
def test_items_that_have_converged_are_swept_no_more(size, records):
    """One slow item among many quick ones: the sweeps after these are of the slow one alone."""
    sweeps, made, seconds = [], [], []
    for couplings in ((1.0, *(0.0005,) * 15), (1.0,) * 16):
        tables = grid_tables(0, 4, 4, size, couplings, (16,))
        _, graph = grid(*(table.requires_grad_(records) for table in tables))
        counter = clock.Counter()
        with Counted() as counted, clock.counted(counter):
            posterior = loopy(graph, tolerance=1e-9, gradient=rg.loopy.Unrolled())
            sweeps.append(posterior.status.iterations)
        made.append(counted.made / sweeps[-1])
        seconds.append(counter.seconds / sweeps[-1])
    assert sweeps[0] > 10
    assert seconds[0] < seconds[1] / 2
    assert not records or made[0] < made[1] / 2  # compiled code makes no tensors


def test_large_tables_of_rows_are_laid_out_once():
    """Beside the form in which compiled code multiplies them, no copies of tables are made."""
    tables = [table.float() for table in grid_tables(0, 24, 24, 16, 0.2, (2,))]
    _, graph = grid(*tables)
    posterior = loopy(graph, sweeps=1)
    with Counted() as counted:
        posterior.log_partition  # noqa: B018
    assert counted.made < 2.0 * sum(table.numel() for table in tables)


def test_the_width_of_a_plan_is_of_the_largest_table_of_messages():
    """In bits: the logarithm of the number of entries, of what evidence leaves."""
    sizes = (2, 3, 5, 7)
    a, b, c, d = (rg.Variable(name, size) for name, size in zip("abcd", sizes, strict=True))
    scopes = [(a, b), (b, c), (c, d), (d, a), (a, b, c)]
    graph = rg.FactorGraph(
        [
            rg.Factor(scope, rg.Table(torch.zeros([sizes["abcd".index(v.name)] for v in scope])))
            for scope in scopes
        ]
    )
    for evidence, largest in (({}, 5 * 7), ({"d": 0}, 2 * 3 * 5), ({"d": 0, "c": 0}, 2 * 3)):
        plan = rg.explain(graph.condition(evidence), scheduler=rg.Loopy())
        assert plan.width == pytest.approx(math.log2(largest))
