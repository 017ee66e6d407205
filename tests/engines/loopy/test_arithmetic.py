"""Arithmetic of messages: contractions, log-odds and GMRES, which no public answer shows alone."""

import math
from functools import partial

import pytest
import torch

import rdpgraph as rg
from rdpgraph.engines.loopy.arithmetic import log_sum, maximum, product, rescaled
from rdpgraph.engines.loopy.log_odds import CompiledOdds, LogOdds
from rdpgraph.engines.loopy.propagation import gmres
from rdpgraph.testing import brute_force
from tests.engines.loopy.helpers import (
    grid,
    grid_tables,
    loopy,
    message_odds,
    mixed,
    mixed_tables,
    randn,
    random_grid,
    same,
    seeded,
)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("own_batch", [1, 3])
@pytest.mark.parametrize("factors", [1, 4])
@pytest.mark.parametrize("columns", [1, 2, 6])
def test_the_contraction_and_its_first_and_second_derivative(batch, own_batch, factors, columns):
    table = torch.rand(own_batch, 3, columns, factors, generator=seeded(0), dtype=torch.float64)
    vector = torch.rand(batch, columns, 4, generator=seeded(1), dtype=torch.float64)
    expected = torch.einsum(
        "bijf,bjf->bif",
        table.expand(max(batch, own_batch), -1, -1, 4),
        vector.expand(max(batch, own_batch), -1, -1),
    )
    same(product(table, vector), expected, 1e-12)
    table.requires_grad_()
    vector.requires_grad_()
    same(product(table, vector), expected, 1e-12)
    assert torch.autograd.gradcheck(product, (table, vector), fast_mode=True)
    assert torch.autograd.gradgradcheck(product, (table, vector), fast_mode=True)


def test_the_contraction_is_computed_alike_on_both_sides_of_its_size_limits():
    """Large operands go column by column."""
    table = torch.rand(2, 8, 8, 1200, generator=seeded(0), dtype=torch.float64)
    vector = torch.rand(2, 8, 1200, generator=seeded(1), dtype=torch.float64)
    same(product(table, vector), torch.einsum("bijf,bjf->bif", table, vector), 1e-12)
    leaf = table.clone().requires_grad_()
    (slope,) = torch.autograd.grad(product(leaf, vector).sum(), leaf)
    same(slope, vector.unsqueeze(1).expand_as(table), 1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1, 5, 40])
def test_gmres_solves_what_a_direct_solve_does(dtype, size):
    matrix = torch.randn(size, size, generator=seeded(0), dtype=torch.float64) / (2 * size**0.5)
    matrix = (matrix + torch.eye(size)).to(dtype)
    right = torch.randn(size, generator=seeded(1), dtype=torch.float64).to(dtype)
    exact = torch.linalg.solve(matrix.double(), right.double())
    tolerance = 1e-12 if dtype == torch.float64 else 1e-6
    found, residual = gmres(lambda v: matrix @ v, right, 60, tolerance)
    assert found.dtype == dtype
    assert residual <= 10 * tolerance
    same(found.double(), exact, 1e-9 if dtype == torch.float64 else 1e-4)


def test_gmres_of_few_iterations_minimises_the_residual():
    matrix = torch.randn(12, 12, generator=seeded(2), dtype=torch.float64) / 4
    matrix = matrix + torch.eye(12, dtype=torch.float64)
    right = torch.randn(12, generator=seeded(3), dtype=torch.float64)
    basis = torch.stack([torch.linalg.matrix_power(matrix, n) @ right for n in range(5)], 1)
    best = torch.linalg.lstsq(matrix @ basis, right).solution
    least = (matrix @ basis @ best - right).norm() / right.norm()
    found, residual = gmres(lambda v: matrix @ v, right, 5, 0.0)
    same(torch.tensor(residual, dtype=torch.float64), least, 1e-8)
    same((matrix @ found - right).norm() / right.norm(), least, 1e-8)
    zero, none = gmres(lambda v: matrix @ v, torch.zeros_like(right), 5, 1e-6)
    assert none == 0.0
    assert not bool(zero.any())


def test_gmres_ends_at_its_deadline(ticking):
    ticking()
    matrix = torch.randn(40, 40, generator=seeded(4), dtype=torch.float64)
    seen = []

    def operator(vector):
        seen.append(vector)
        return matrix @ vector

    right = torch.randn(40, generator=seeded(5), dtype=torch.float64)
    found, residual = gmres(operator, right, 40, 0.0, deadline=5.5)
    assert len(seen) == 7
    left = (matrix @ found - right).norm() / right.norm()
    same(left, torch.tensor(residual, dtype=torch.float64), 1e-8)


def fast_and_general(tables, damping, dtype=torch.float64, **options):
    """The same model by `LogOdds` (Flooding), and by the general path (all messages as one set)."""
    tables = [table.to(dtype) for table in tables]
    _, graph = grid(*tables)
    fast = loopy(graph, damping=damping, **options)
    every = rg.Loopy(
        schedule=rg.loopy.RandomSubsets(1.0, seeded(0)),
        damping=damping,
        **{"tolerance": 1e-12, "sweeps": 5000} | options,
    )
    general = rg.infer(graph, scheduler=every)
    assert LogOdds.applies(fast.solution.equations)
    return fast, general


@pytest.mark.parametrize("damping", [0.0, 0.3, 0.8])
@pytest.mark.parametrize("coupling", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("shared", [True, False])
def test_log_odds_are_the_general_path(damping, coupling, shared):
    across, down, unary = grid_tables(0, 5, 6, 2, coupling)
    if shared:
        across, down = across[0, 0], down[0, 0]
    options = {"sweeps": 40, "tolerance": 1e-9}
    fast, general = fast_and_general((across, down, unary), damping, **options)
    for one, other in zip(message_odds(fast), message_odds(general), strict=True):
        same(one, other, 1e-9)
    same(fast.log_partition, general.log_partition, 1e-9)
    assert len(fast.status.trace) == len(general.status.trace)
    ours, theirs = torch.tensor(fast.status.trace), torch.tensor(general.status.trace)
    settled = theirs < 0.01  # on a state
    same(ours[settled], theirs[settled], 1e-9)
    below = theirs < 1
    assert bool((ours[below] >= theirs[below] - 1e-9).all())
    assert bool((ours[below] <= 2 * theirs[below] + 1e-9).all())
    assert fast.status.converged == general.status.converged


@pytest.mark.parametrize("keep", [0.0, 0.3])
def test_a_step_of_log_odds_is_an_update_of_the_field(keep):
    for seed in range(3):
        equations = loopy(random_grid(seed, 4, 5, coupling=1.0)[1]).solution.equations
        start = tuple(
            rescaled(randn(seed, *m.shape), vanishing=False)[0] for m in equations.flat_messages()
        )
        odds = LogOdds(equations, start)
        for before, after in zip(start, odds.messages(), strict=True):
            same(before, after, 1e-12)
        odds.step(keep)
        plain = equations.update(start)
        (mixed_one,) = (
            (1 - keep) * new + keep * old for new, old in zip(plain, start, strict=True)
        )
        same(odds.messages()[0], mixed_one - mixed_one.amax(1, keepdim=True), 1e-12)


def test_log_odds_on_variables_of_every_degree():
    """A star, with a lonely variable and a double edge; then batches take the general path."""
    hub = rg.Variable("hub", 2)
    leaves = [rg.Variable(f"leaf{i}", 2) for i in range(11)]
    alone = rg.Variable("alone", 2)
    tables = randn(0, 12, 2, 2)
    factors = [
        rg.Factor((hub, leaf) if i % 2 else (leaf, hub), rg.Table(tables[i]))
        for i, leaf in enumerate([*leaves, leaves[3]])
    ]
    graph = rg.FactorGraph(
        [*factors, rg.Factor((alone,), rg.Table(randn(1, 2)))], variables=[alone, hub, *leaves]
    )
    fast = loopy(graph)
    assert LogOdds.applies(fast.solution.equations)
    general = rg.infer(
        graph, scheduler=rg.Loopy(schedule=rg.loopy.RandomSubsets(1.0), tolerance=1e-12)
    )
    truth = brute_force(graph)
    for variable in graph.variables:
        same(fast.marginal(variable), general.marginal(variable), 1e-10)
    same(fast.marginal(alone), truth.joint((alone,)))
    wider = graph.with_factors(rg.Factor((hub,), rg.Table(randn(2, 3, 2))))
    batch = loopy(wider)
    assert batch.status.converged
    same(batch.log_partition, loopy(wider, "sequential").log_partition)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1.0, 5.0, 20.0, 100.0, 1000.0])
def test_log_odds_are_used_only_within_their_range(dtype, scale):
    """Strong couplings and fields either fit the type, or go the general way; both are right."""
    chain = rg.VariableArray("x", (12,), 2)
    link, unary = randn(0, 11, 2, 2) * scale, randn(1, 12, 2) * scale
    graph = rg.FactorGraph(
        [
            rg.FactorBlock((chain[:-1], chain[1:]), rg.Table(link.to(dtype))),
            rg.FactorBlock((chain,), rg.Table(unary.to(dtype))),
        ]
    )
    exact = rg.FactorGraph(
        [
            rg.FactorBlock((chain[:-1], chain[1:]), rg.Table(link.to(dtype).double())),
            rg.FactorBlock((chain,), rg.Table(unary.to(dtype).double())),
        ]
    )
    truth = brute_force(exact)
    posterior = loopy(graph, tolerance=1e-7)
    if scale == 1.0:
        assert LogOdds.applies(posterior.solution.equations)
    if scale == 1000.0:
        assert not LogOdds.applies(posterior.solution.equations)
    tolerance = 1e-3 if dtype == torch.float32 else 1e-8
    same(posterior.log_partition.double(), truth.log_partition, tolerance)
    marginals = posterior.marginal(chain).double()
    assert bool(marginals.isfinite().all())
    for place in range(12):
        same(marginals[place], truth.joint((chain[place],)), tolerance)


def test_log_odds_do_not_take_what_is_not_theirs():
    _, plain = random_grid(0, 3, 3)
    assert LogOdds.applies(loopy(plain).solution.equations)
    others = [
        loopy(random_grid(0, 3, 3, 3)[1]),
        loopy(mixed(mixed_tables(0))),
        loopy(plain, temperature=0.5),
        loopy(plain, counting=rg.loopy.TreeReweighted()),
    ]
    for posterior in others:
        assert not LogOdds.applies(posterior.solution.equations)
    across, down, unary = grid_tables(0, 3, 3, 2, 1.0)
    across[0, 0, 0, 1] = -math.inf
    _, zeros = grid(across, down, unary)
    posterior = loopy(zeros)
    assert not LogOdds.applies(posterior.solution.equations)
    general = rg.Loopy(schedule=rg.loopy.RandomSubsets(1.0), tolerance=1e-12)
    same(posterior.log_partition, rg.infer(zeros, scheduler=general).log_partition, 1e-9)


def dead(shape, seed, share=0.3):
    values = randn(seed, *shape) * 300
    gone = torch.rand(shape, generator=seeded(seed + 50)) < share
    return values.masked_fill(gone, -math.inf)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("own_batch", [1, 3])
@pytest.mark.parametrize("factors", [1, 4])
@pytest.mark.parametrize("columns", [1, 2, 7])
def test_contractions_in_logs(batch, own_batch, factors, columns):
    table, vector = dead((own_batch, 3, columns, factors), 0), dead((batch, columns, 4), 1)
    table[0, 0] = -math.inf  # a row where nothing is possible
    logs = table + vector.unsqueeze(1)
    same(maximum(table, vector), logs.amax(2), 0.0)
    same(log_sum(table, vector), logs.logsumexp(2), 1e-12)


def test_contractions_in_logs_in_pieces():
    table, vector = dead((1, 64, 40, 120), 0), dead((1, 40, 120), 1)
    logs = table + vector.unsqueeze(1)
    same(maximum(table, vector), logs.amax(2), 0.0)
    same(log_sum(table, vector), logs.logsumexp(2), 1e-12)


def test_the_gradient_of_contractions_in_logs_has_no_nan():
    table, vector = dead((2, 3, 4, 5), 0, 0.5), dead((2, 4, 5), 1, 0.5)
    table[0, 0] = -math.inf
    table.requires_grad_()
    vector.requires_grad_()
    found = log_sum(table, vector)
    finite = found > -math.inf
    for slope in torch.autograd.grad(found[finite].sum(), (table, vector)):
        assert bool(slope.isfinite().all())
    leaves = [randn(2, 2, 3, 4, 5).requires_grad_(), randn(3, 2, 4, 5).requires_grad_()]
    assert torch.autograd.gradcheck(log_sum, leaves, fast_mode=True)


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
