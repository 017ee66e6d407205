"""Numbers at the ends of their range: hard zeros, strong evidence, single precision."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

import rdpgraph as rg
from rdpgraph.testing import brute_force
from tests.engines.loopy.helpers import (
    SCHEDULES,
    grid,
    grid_tables,
    ising,
    loopy,
    mixed,
    mixed_tables,
    randn,
    random_grid,
    random_tree,
    same,
    seeded,
)


def in_type(drawn, dtype):
    """The same graph in another floating type."""
    factors = [
        rg.Factor(f.variables, rg.Table(f.potential.log_values.to(dtype))) for f in drawn.factors
    ]
    graph = rg.FactorGraph(factors, variables=drawn.graph.variables)
    return rg.FactorGraph.from_blocks(graph.domain, graph.blocks, drawn.graph.observed)


@pytest.mark.long
@settings(max_examples=15)
@given(
    seed=st.integers(0, 10**6),
    scale=st.sampled_from([100.0, 300.0]),
    zeros=st.sampled_from([0.0, 0.2]),
    evidence=st.sampled_from(["none", "rows"]),
    name=st.sampled_from(SCHEDULES),
)
def test_single_precision_far_beyond_the_range_of_exp(seed, scale, zeros, evidence, name):
    drawn = random_tree(seed, scale=scale, zeros=zeros, evidence=evidence)
    single = in_type(drawn, torch.float32)
    truth = brute_force(in_type(drawn, torch.float32))
    truth.scores.data = brute_force(drawn.graph).scores.data
    posterior = loopy(single, name, tolerance=1e-6, damping=0.0)
    assert posterior.status.converged
    assert posterior.log_partition.dtype == torch.float32
    same(posterior.log_partition.double(), truth.log_partition, 1e-5)
    for variable in single.variables:
        # Scores of 1000 are known to 1e-4 in single precision, and so are probabilities.
        same(posterior.marginal(variable).double(), truth.joint((variable,)), 5e-3)
    if bool((truth.log_partition > -math.inf).all()):
        same(drawn.graph.score({**posterior.mode()}), truth.maximum, 1e-5)


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("size", [2, 3])
def test_what_cannot_be_seen_in_one_message_is_waited_for(name, size):
    """Far evidence moves every message from e^-30 to e^-15, and the last variable by far more."""
    count = 10
    x = rg.VariableArray("x", (count,), size)
    link = torch.full((size, size), -200.0, dtype=torch.float64).fill_diagonal_(0.0)
    unary = torch.zeros(count, size, dtype=torch.float64)
    unary[5, 0], unary[0, 0], unary[-1, 0] = 30.0, -15.0, -14.0
    chain = rg.FactorGraph(
        [rg.FactorBlock((x[:-1], x[1:]), rg.Table(link)), rg.FactorBlock((x,), rg.Table(unary))]
    )
    posterior = loopy(chain, name, tolerance=1e-5)
    truth = brute_force(chain)
    assert posterior.status.converged
    assert posterior.status.exact
    same(posterior.marginal(x[-1]), truth.joint((x[-1],)), 1e-4)
    same(posterior.marginal(x[0]), truth.joint((x[0],)), 1e-4)


@pytest.mark.long
def test_messages_at_a_small_counting_number_are_waited_for():
    """Large messages whose exponentials say little; beliefs are settled at convergence."""
    _, graph = random_grid(0, 3, 3, coupling=0.2)
    posterior = loopy(graph, counting=rg.loopy.Fractional(0.03), tolerance=1e-6, sweeps=2000)
    assert posterior.status.converged
    equations, messages = posterior.solution.equations, posterior.solution.outcome.messages
    before, after = (
        equations.normalised_beliefs(m) for m in (messages, equations.update(messages))
    )
    for one, other in zip(before, after, strict=True):
        same(one, other, 1e-4)


@pytest.mark.long
@pytest.mark.cover(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("temperature", [1.0, 0.5, 0.0])
@pytest.mark.parametrize("scale", [1.0, 200.0])
def test_hard_zeros_on_loops_make_no_nan(dtype, temperature, scale):
    """Tables of all kinds, shared by the batch or not; log Z, beliefs and gradients."""
    binary = grid_tables(0, 3, 4, 2, scale, (3,))
    ternary = grid_tables(3, 3, 4, 3, scale)
    several = mixed_tables(6, scale, (2,))
    for make, tables in (
        (lambda *t: grid(*t)[1], binary),
        (lambda *t: grid(*t)[1], ternary),
        (lambda *t: mixed(t), several),
    ):
        leaves = []
        for number, table in enumerate(tables):
            gone = torch.rand(table.shape, generator=seeded(number)) < 0.05
            leaves.append(table.masked_fill(gone, -math.inf).to(dtype).requires_grad_())
        graph = make(*leaves)
        for damping in (0.3, rg.loopy.ProbabilityDamping(0.3)):
            posterior = loopy(
                graph, temperature=temperature, damping=damping, sweeps=12, tolerance=1e-4
            )
            assert not bool(posterior.log_partition.isnan().any())
            alive = posterior.log_partition.detach() > -math.inf
            total = torch.where(alive, posterior.log_partition, 0.0).sum()
            for entry, marginal in posterior.marginals().items():
                sums = marginal.sum(-1)
                assert bool(marginal.isfinite().all())
                expected = alive.reshape(*alive.shape, *(1,) * len(entry.shape)).to(sums)
                same(sums, expected.expand_as(sums), 1e-4)
                total = total + (marginal * randn(0, marginal.shape[-1]).to(dtype)).sum()
            if not temperature:
                continue
            assert bool(posterior.entropy().isfinite().all())
            total = total + posterior.entropy().sum()
            slopes = torch.autograd.grad(total, leaves, allow_unused=True, materialize_grads=True)
            for slope, leaf in zip(slopes, leaves, strict=True):
                assert not bool(slope.isnan().any())
                assert bool((slope[leaf == -math.inf] == 0).all())


def loop_of_equals(values):
    """A loop of three equal variables with soft unaries: at most one solution for each state."""
    x = [rg.Variable(f"x{i}", 2) for i in range(3)]
    equal = rg.Table(torch.eye(2, dtype=torch.float64).log())
    factors = [rg.Factor((x[i], x[(i + 1) % 3]), equal) for i in range(3)]
    return x, rg.FactorGraph([*factors, rg.Factor((x[0],), rg.Table(values))])


@pytest.mark.parametrize("damping", [0.0, 0.5])
def test_a_loop_of_hard_constraints_converges_when_its_beliefs_have(damping):
    """One nat of evidence, counted again in every round, drives the other state's log down."""
    x, graph = loop_of_equals(torch.tensor([1.0, 0.0], dtype=torch.float64))
    posterior = rg.infer(graph, scheduler=rg.Loopy(damping=damping))
    assert posterior.status.converged
    same(posterior.marginal(x[1]), torch.tensor([1.0, 0.0], dtype=torch.float64), 1e-4)


@pytest.mark.parametrize("name", SCHEDULES)
def test_impossible_evidence_is_minus_infinity_and_zero_marginals(name):
    x, graph = loop_of_equals(randn(0, 2))
    graph = graph.condition({x[0]: 0, x[1]: 1})
    posterior = loopy(graph, name)
    assert posterior.log_partition.item() == -math.inf
    assert posterior.marginal(x[2]).tolist() == [0.0, 0.0]
    assert posterior.factor_marginal((x[1], x[2])).tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert posterior.entropy().item() == 0.0
    assert posterior.max_marginals()[x[2]].tolist() == [-math.inf, -math.inf]
    assert posterior.status.converged
    with pytest.raises(rg.errors.ImpossibleEvidenceError):
        posterior.mode()


@pytest.mark.parametrize("name", SCHEDULES)
def test_one_impossible_row_of_a_batch_leaves_the_others_alone(name):
    x, graph = loop_of_equals(randn(0, 3, 2) * 100)
    graph = graph.condition({x[1]: [0, -1, 1], x[2]: [1, -1, 1]})
    posterior, truth = loopy(graph, name), brute_force(graph)
    assert posterior.log_partition[0].item() == -math.inf
    assert posterior.log_partition[1:].isfinite().all()
    for variable in x:
        assert posterior.marginal(variable)[0].tolist() == [0.0, 0.0]
        same(posterior.marginal(variable)[2], truth.joint((variable,))[2])
        best = posterior.max_marginals()[variable]
        assert best[0].tolist() == [-math.inf, -math.inf]
        same(best[2], truth.max_marginal(variable)[2])
    assert not bool(posterior.factor_marginal((x[0], x[1]))[0].any())
    entropy = posterior.entropy()
    assert entropy[0].item() == 0.0
    same(entropy[2], torch.zeros((), dtype=torch.float64))
    assert posterior.status.converged


def test_an_impossible_row_of_a_tree_has_minus_infinity_for_max_marginals():
    a, b = rg.Variable("a", 2), rg.Variable("b", 2)
    same_state = torch.eye(2, dtype=torch.float64).log()
    graph = rg.FactorGraph([rg.Factor((a, b), rg.Table(same_state))])
    graph = graph.condition({a: [0, 0, -1], b: [1, -1, -1]})
    best, truth = loopy(graph).max_marginals(), brute_force(graph)
    for variable in (a, b):
        same(best[variable], truth.max_marginal(variable))


# The log-odds path of binary pairwise models against the general one.


def test_log_odds_from_a_start():
    tables = grid_tables(0, 5, 5, 2, 0.8)
    _, graph = grid(*tables)
    posterior = loopy(graph)
    again = loopy(graph, start=posterior)
    assert again.status.iterations == 1
    same(again.log_partition, posterior.log_partition, 1e-10)
    swapped = loopy(graph, "sequential", start=posterior)
    assert swapped.status.iterations <= 2


def test_strong_ferromagnets_in_log_odds():
    """Couplings of 10 in single precision: beliefs near 0 and 1, no infinity."""
    strong = torch.full((4, 3), 10.0), torch.full((3, 4), 10.0)
    pixels, graph = ising(*(j.double() for j in strong), randn(0, 4, 4) * 0.1)
    posterior = loopy(graph, sweeps=50)
    marginals = posterior.marginal(pixels)
    assert bool(marginals.isfinite().all())
    assert bool(posterior.log_partition.isfinite())
    same(marginals.sum(-1), torch.ones(4, 4, dtype=torch.float64))


@pytest.mark.long
@pytest.mark.cover(1)
@pytest.mark.parametrize("scale", [20.0, 100.0, 1000.0])
@pytest.mark.parametrize(
    "options",
    [{}, {"schedule": rg.loopy.Residual()}, {"schedule": rg.loopy.Sequential()}, {"damping": 0.5}],
    ids=["flooding", "residual", "sequential", "damped"],
)
@pytest.mark.parametrize("hard", [False, True])
def test_trees_of_any_range_are_exact(scale, options, hard):
    """Changes far below the best state are waited for, with and without hard zeros."""
    generator = torch.Generator().manual_seed(int(scale))
    for _ in range(6):
        xs = [rg.Variable(f"x{i}", 2) for i in range(6)]
        factors = []
        for child in range(1, 6):
            parent = int(torch.randint(child, (1,), generator=generator))
            logs = scale * torch.randn(2, 2, generator=generator, dtype=torch.float64)
            if hard and child == 3:
                logs[0, 0] = -math.inf
            factors.append(rg.Factor((xs[parent], xs[child]), rg.Table(logs)))
        graph = rg.FactorGraph(factors)
        found = rg.infer(graph, scheduler=rg.Loopy(**options))
        truth = rg.infer(graph, scheduler=rg.Contraction())
        assert found.status.exact
        for x in xs:
            torch.testing.assert_close(found.marginal(x), truth.marginal(x), rtol=0, atol=1e-3)
            most = found.max_marginals()[x], truth.max_marginals()[x]
            torch.testing.assert_close(*most, rtol=1e-4, atol=1e-4 * scale)


@pytest.mark.long
def test_tables_are_looked_through_once_for_hard_zeros_and_once_for_their_extent():
    """The tables of a batch lie outside of the processor's cache, those of its items may not."""
    across, down, unary = grid_tables(0, 4, 4, 3, 0.5, (6,))
    assert across.numel() == down.numel()
    passes: list[str] = []

    class Counted(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            name = func.overloadpacket.__name__
            if name in ("amin", "aminmax") and args[0].numel() == across.numel():
                passes.append(name)
            return func(*args, **(kwargs or {}))

    graph = grid(across, down, unary)[1]
    with Counted():
        loopy(graph).marginals()
    assert sorted(passes) == ["amin", "amin", "aminmax", "aminmax"]


class OfSums(rg.LowRank):
    """Low-rank log-values without messages that maximise, which would form the whole matrix."""

    def select(self, block, rows, arity):
        chosen = super().select(block, rows, arity)
        return OfSums(chosen.log_left, chosen.log_right)

    def messages(self, incoming, *, temperature=1.0):
        assert temperature == 1.0
        return super().messages(incoming, temperature=temperature)


@pytest.mark.parametrize("scale", [1.0, 3000.0])
def test_states_are_struck_by_sums_which_cost_low_rank_factors_less(scale):
    x = [rg.Variable(f"x{i}", 7) for i in range(4)]
    factors = []
    for i in range(3):
        left, right = (scale * randn(2 * i + side, 7, 3) for side in range(2))
        left[i], right[i + 1, :2] = -math.inf, -math.inf
        factors.append(rg.Factor((x[i], x[i + 1]), OfSums(left, right)))
    graph = rg.FactorGraph(factors).condition({x[0]: 5})
    truth, posterior = brute_force(graph), rg.infer(graph, scheduler=rg.Loopy())
    same(posterior.log_partition, truth.log_partition, 1e-9)
    for variable in x:
        same(posterior.marginal(variable), truth.joint((variable,)), 1e-9)


@pytest.mark.parametrize("wide", [False, True], ids=["tables", "automaton"])
def test_floors_of_messages_do_not_enter_log_z(wide):
    """Clauses of two literals, on which messages that have not converged contradict each other."""
    generator, signs = torch.Generator().manual_seed(28), []
    variables = list(rg.VariableArray("x", (8,), 2))
    for _ in range(14):
        pair = torch.randperm(8, generator=generator)[:2].tolist()
        table = torch.zeros(2, 2, dtype=torch.float64)
        table[tuple(torch.randint(2, (2,), generator=generator).tolist())] = -math.inf
        signs.append(rg.Factor([variables[number] for number in pair], rg.Table.from_logs(table)))
    if wide:  # a factor without a table, between 0 and 1 nats
        step, accept = torch.tensor([[0, 1], [1, 0]]), torch.tensor([0.0, 1.0]).double()
        signs.append(rg.Factor(variables, rg.Automaton(step, accept, 8)))
    graph = rg.FactorGraph(signs)
    assert float(rg.infer(graph, scheduler=rg.Contraction()).log_partition) > 0
    found = rg.infer(graph, scheduler=rg.Loopy(sweeps=60, damping=0.0))
    assert not found.status.converged
    assert float(found.log_partition) >= 0.0  # the score of every assignment that is possible


def test_log_z_with_potentials_of_some_batch_dims():
    """Items of a batch as one by one, of which a factor without a table has one dim."""
    variables = list(rg.VariableArray("x", (8,), 2))
    generator = torch.Generator().manual_seed(0)
    logs = torch.randn(2, 3, 2, generator=generator, dtype=torch.float64)
    accept = torch.randn(2, 1, 2, generator=generator, dtype=torch.float64)
    step = torch.tensor([[0, 1], [1, 0]])

    def log_z(logs, accept):
        factors = [rg.Factor((variables[0],), rg.Table.from_logs(logs))]
        factors.append(rg.Factor(variables, rg.Automaton(step, accept, 8)))
        return rg.infer(rg.FactorGraph(factors), scheduler=rg.Loopy()).log_partition

    each = [log_z(logs[i, j], accept[i, 0]) for i in range(2) for j in range(3)]
    same(log_z(logs, accept), torch.stack(each).reshape(2, 3), 1e-9)


def test_messages_are_the_same_where_gradients_could_be_asked_for():
    """Sweeps that have not converged, of potentials that need no gradient."""
    variables = list(rg.VariableArray("x", (8,), 2))
    generator = torch.Generator().manual_seed(0)
    pairs = [(variables[i], variables[(i + 1) % 8]) for i in range(8)]
    tables = [rg.Table.from_logs(torch.randn(2, 2, generator=generator)) for _ in pairs]
    factors = list(map(rg.Factor, pairs, tables))
    step, accept = torch.tensor([[0, 1], [1, 0]]), torch.tensor([0.0, 1.0])
    graph = rg.FactorGraph([*factors, rg.Factor(variables, rg.Automaton(step, accept, 8))])
    few = rg.Loopy(sweeps=2, tolerance=0.0, damping=0.3)
    found = rg.infer(graph, scheduler=few).marginal(variables[0])
    with torch.no_grad():
        same(found, rg.infer(graph, scheduler=few).marginal(variables[0]), 1e-6)


@pytest.mark.parametrize("height", [30.0, 1000.0])
@pytest.mark.parametrize("scheduler", [rg.JoinGraph(2), rg.Loopy(tolerance=1e-12)], ids=str)
def test_scores_that_move_from_one_factor_to_another_change_nothing(scheduler, height):
    """Although all products of the tables and messages by themselves would underflow."""
    tables, heights = 0.5 * randn(0, 4, 2, 2), torch.tensor([0.0, -height]).double()
    moved = torch.stack([tables[0] + heights, tables[1] - heights.unsqueeze(1), *tables[2:]])
    x, order = rg.VariableArray("x", (4,), 2), torch.arange(4)
    plain, other = (
        rg.infer(
            rg.FactorGraph([rg.FactorBlock((x[order], x[(order + 1) % 4]), rg.Table(each))]),
            scheduler,
        )
        for each in (tables, moved)
    )
    same(other.log_partition, plain.log_partition)
    same(other.marginal(x), plain.marginal(x))
    same(other.entropy(), plain.entropy())
