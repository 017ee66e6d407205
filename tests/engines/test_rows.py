"""Rows of evidence, each by itself: equal to enumeration, to all rows at once, and in budgets."""

import math
from dataclasses import replace

import pytest
import torch

import rdpgraph as rg
from rdpgraph.testing import brute_force

SCOPES = ((0, 1, 2), (2, 3), (3, 4), (4, 0), (3,))
WHOLE = rg.Contraction(optimize="greedy")  # all rows at once


def tables(seed, scale=1.0, zeros=0.0):
    """Log-tables over five variables of two to four states."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for scope in SCOPES:
        values = torch.randn([2 + v % 3 for v in scope], generator=generator, dtype=torch.float64)
        gone = torch.rand(values.shape, generator=generator) < zeros
        made.append((scale * values).masked_fill(gone, -math.inf))
    return made


def graph_of(values):
    variables = [rg.Variable(f"v{i}", 2 + i % 3) for i in range(6)]  # the last one has no factor
    factors = [
        rg.Factor([variables[v] for v in scope], rg.Table.from_logs(table))
        for scope, table in zip(SCOPES, values, strict=True)
    ]
    return rg.FactorGraph(factors, variables)


def evidence(graph, count, seed=0):
    """Rows of states, of which about a half are missing; one row has all, and one has none."""
    generator = torch.Generator().manual_seed(seed)
    columns = [torch.randint(v.size, (count,), generator=generator) for v in graph.variables]
    rows = torch.stack(columns, 1)
    rows = rows.masked_fill(torch.rand(rows.shape, generator=generator) < 0.5, -1)
    rows[0], rows[1] = -1, 1
    return graph.condition(dict(zip(graph.variables, rows.T, strict=True)))


@pytest.mark.parametrize(("scale", "zeros"), [(1.0, 0.0), (1.0, 0.2), (400.0, 0.2), (3000.0, 0.0)])
def test_rows_are_those_of_enumeration(scale, zeros):
    for seed in range(4):
        graph = evidence(graph_of(tables(seed, scale, zeros)), 12, seed)
        posterior, truth = rg.infer(graph), brute_force(graph)
        if bool((truth.log_partition > -math.inf).any()):
            assert "by itself" in posterior.plan.why
        marginals = posterior.marginals()
        torch.testing.assert_close(posterior.log_partition, truth.log_partition)
        torch.testing.assert_close(posterior.entropy(), truth.entropy)
        for variable in graph.variables:
            torch.testing.assert_close(marginals[variable], truth.joint((variable,)))
        for scope in SCOPES:
            own = tuple(graph.variables[v] for v in scope)
            torch.testing.assert_close(posterior.factor_marginal(own), truth.joint(own))
        pair = graph.variables[0], graph.variables[3]
        torch.testing.assert_close(torch.as_tensor(posterior.joint(pair)), truth.joint(pair))
        if not zeros:
            torch.testing.assert_close(graph.score(posterior.mode()), truth.maximum)


def test_a_constant_of_minus_infinity_forbids_every_row():
    values = [table.requires_grad_() for table in tables(0)]
    graph = graph_of(values)
    nothing = rg.Factor((), rg.Table(torch.tensor(-math.inf, dtype=torch.float64)))
    graph = evidence(rg.FactorGraph([*graph.factors(), nothing], graph.variables), 12)
    posterior = rg.infer(graph)
    assert bool((posterior.log_partition == -math.inf).all())
    assert not any(bool(each.any()) for each in posterior.marginals().values())
    gradients = torch.autograd.grad(posterior.log_partition.sum(), values)
    assert not any(bool(each.any()) for each in gradients)


@pytest.mark.parametrize("first", ["status", "log_partition", "marginals"])
def test_rows_that_lack_too_much_are_solved_with_all_others(first, small_blocks):
    values = [table.requires_grad_() for table in tables(5, zeros=0.2)]
    graph = evidence(graph_of(values), 9)
    posterior, truth = rg.infer(graph), brute_force(graph)
    assert "by itself" in posterior.plan.why
    small_blocks(4)
    if first == "marginals":
        with torch.no_grad():
            posterior.marginals()
    else:
        getattr(posterior, first)
    torch.testing.assert_close(posterior.log_partition, truth.log_partition)
    torch.testing.assert_close(posterior.entropy(), truth.entropy)
    torch.testing.assert_close(posterior.marginal("v0"), truth.joint((graph.variables[0],)))
    assert posterior.status.exact


def test_gradients_are_those_of_all_rows_at_once():
    values = [table.requires_grad_() for table in tables(3, zeros=0.2)]
    graph = evidence(graph_of(values), 9)
    weights = torch.arange(9.0, dtype=torch.float64)
    found = []
    for scheduler in (None, WHOLE):
        log_z = rg.infer(graph, scheduler).log_partition
        total = (torch.where(log_z > -math.inf, log_z, 0.0) * weights).sum()
        first = torch.autograd.grad(total, values, create_graph=True)
        squares = sum((part**2).sum() for part in first)
        found.append((*first, *torch.autograd.grad(squares, values)))
    for own, other in zip(*found, strict=True):
        torch.testing.assert_close(own, other)
        assert not bool(own.isnan().any())


def test_entries_far_below_others_of_their_table_count():
    x, y, z = (rg.Variable(name, 2) for name in "xyz")
    low = torch.tensor([0.0, -600.0], dtype=torch.float64)
    graph = rg.FactorGraph([
        rg.Factor(x, rg.Table.from_logs(low)),
        rg.Factor((x, y), rg.Table.from_logs(torch.stack([low, low.flip(0) - 1]))),
        rg.Factor((x, z), rg.Table.from_logs(torch.stack([low - math.inf, 2 * low]))),
    ])  # fmt: skip
    graph = graph.condition({y: torch.tensor([-1, 0, 1]), z: torch.tensor([1, -1, -1])})
    posterior, truth = rg.infer(graph), brute_force(graph)
    torch.testing.assert_close(posterior.log_partition, truth.log_partition)
    torch.testing.assert_close(posterior.marginal(x), truth.joint((x,)))


def test_work_is_that_of_variables_that_rows_lack():
    pixels = rg.VariableArray("pixel", (16, 16), 2)
    generator = torch.Generator().manual_seed(0)
    pair = rg.Table(torch.randn(2, 2, generator=generator))
    grid = rg.FactorGraph(
        [
            rg.FactorBlock((pixels[1:], pixels[:-1]), pair),
            rg.FactorBlock((pixels[:, 1:], pixels[:, :-1]), pair),
        ]
    )
    states = torch.randint(2, (6, 16, 16), generator=generator)
    states = states.masked_fill(torch.rand(states.shape, generator=generator) < 0.5, -1)
    graph = grid.condition({pixels: states})
    small = rg.Contraction(memory=1e6)
    assert rg.explain(graph, small).fits
    assert not rg.explain(graph, replace(small, optimize="greedy")).fits
    posterior = rg.infer(graph, small)
    for row, one in enumerate(states[:2]):
        alone = rg.infer(grid.condition({pixels: one}))
        torch.testing.assert_close(posterior.log_partition[row], alone.log_partition)
        torch.testing.assert_close(posterior.marginal(pixels)[row], alone.marginal(pixels))


def test_rows_in_float32_and_of_two_batch_dims():
    graph = graph_of([table.float() for table in tables(5)])
    rows = torch.tensor([[0, -1, 1], [-1, 1, 0]])
    graph = graph.condition({"v0": rows, "v3": rows.flip(1)})
    posterior, truth = rg.infer(graph), brute_force(graph)
    assert posterior.log_partition.dtype == torch.float32
    torch.testing.assert_close(posterior.log_partition, truth.log_partition)
    torch.testing.assert_close(posterior.marginal("v2"), truth.joint(("v2",)))


def grid_with_gaps(*, tracked):
    """Rows of a grid, each exact by itself, and not together: every variable is lacking in some."""
    pixels = rg.VariableArray("pixel", (6, 6), 3)
    generator = torch.Generator().manual_seed(0)
    tables = [
        (2 * torch.randn(3, 3, generator=generator, dtype=torch.float64)).requires_grad_(tracked)
        for _ in range(2)
    ]
    grid = rg.FactorGraph([
        rg.FactorBlock((pixels[1:], pixels[:-1]), rg.Table(tables[0])),
        rg.FactorBlock((pixels[:, 1:], pixels[:, :-1]), rg.Table(tables[1])),
    ])  # fmt: skip
    states = torch.randint(3, (5, 6, 6), generator=generator)
    states = states.masked_fill(torch.rand(states.shape, generator=generator) < 0.5, -1)
    return pixels, grid, states, tables


def gradients(value, tables):
    weights = torch.arange(1.0, value.numel() + 1, dtype=value.dtype).reshape(value.shape)
    return torch.autograd.grad((weights * value).sum(), tables, retain_graph=True)


@pytest.mark.parametrize("tracked", [False, pytest.param(True, marks=pytest.mark.long)])
def test_every_question_goes_row_by_row(tracked):
    pixels, grid, states, tables = grid_with_gaps(tracked=tracked)
    graph = grid.condition({pixels: states})
    scheduler = rg.Auto(memory=30_000)
    posterior = rg.infer(graph, scheduler)
    assert "by itself" in posterior.plan.why
    assert not rg.explain(graph, replace(WHOLE, memory=30_000)).fits
    alone = [rg.infer(grid.condition({pixels: row}), scheduler) for row in states]
    pair, some = ["pixel[2, 2]", "pixel[5, 5]"], [pixels[2:4, 2:4]]
    for ask in (
        lambda p: p.log_partition, lambda p: p.marginal(pixels), lambda p: p.entropy(),
        lambda p: p.max_marginals()[pixels], lambda p: p.mode_bound(), lambda p: p.bounds().upper,
        lambda p: torch.as_tensor(p.joint(pair)), lambda p: p.marginal_mode(some).score,
    ):  # fmt: skip
        torch.testing.assert_close(ask(posterior), torch.stack([ask(one) for one in alone]))
    wanted = torch.stack([grid.score(one.mode()) for one in alone])
    torch.testing.assert_close(graph.score(posterior.mode()), wanted)
    draws = posterior.sample(4, generator=torch.Generator().manual_seed(0))[pixels]
    assert bool(((draws == states) | (states == -1)).all())
    assert bool(posterior.marginal_mode(some).optimal.all())
    assert bool(posterior.mode_is_optimal().all())
    for name in ("log_partition", "marginals", "entropy", "max_marginals", "mode", "sample"):
        assert posterior.status_of(name).exact
    assert posterior.status.exact
    for ask in (
        lambda p: p.log_partition, lambda p: p.entropy(), lambda p: p.marginal(pixels)
    ) if tracked else ():  # fmt: skip
        wanted = gradients(torch.stack([ask(one) for one in alone]), tables)
        for own, other in zip(gradients(ask(posterior), tables), wanted, strict=True):
            torch.testing.assert_close(own, other)


def test_second_derivatives_go_row_by_row():
    pixels, grid, states, tables = grid_with_gaps(tracked=True)

    def squares(log_z):
        first = torch.autograd.grad(log_z.sum(), tables, create_graph=True)
        return torch.autograd.grad(sum((part**2).sum() for part in first), tables)

    posterior = rg.infer(grid.condition({pixels: states}), rg.Auto(memory=30_000))
    alone = [rg.infer(grid.condition({pixels: row})).log_partition for row in states]
    pairs = zip(squares(posterior.log_partition), squares(torch.stack(alone)), strict=True)
    for own, other in pairs:
        torch.testing.assert_close(own, other)


@pytest.mark.parametrize(("scale", "zeros"), [(1.0, 0.2), (300.0, 0.0), (400.0, 0.3)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_rows_that_lack_the_same_are_answered_as_each_alone(scale, zeros, dtype):
    """Side by side in blocks, the last of which is not full; some are solved in logarithms."""
    values = [table.to(dtype).requires_grad_() for table in tables(11, scale, zeros)]
    graph, generator = graph_of(values), torch.Generator().manual_seed(2)
    seen = torch.stack([torch.randint(v.size, (29,), generator=generator) for v in graph.variables])
    seen[:, :2], seen[1, 2:], seen[3, 2:], seen[5, 20:] = -1, -1, -1, -1
    rows = graph.condition(dict(zip(graph.variables, seen, strict=True)))
    posterior = rg.infer(rows)
    assert "by itself" in posterior.plan.why
    alone = [graph.condition(dict(zip(graph.variables, row, strict=True))) for row in seen.T]
    each = [rg.infer(one, scheduler=WHOLE) for one in alone]
    log_z = torch.stack([one.log_partition for one in each])
    near = {"rtol": 1e-9, "atol": 1e-9} if dtype == torch.float64 else {"rtol": 1e-4, "atol": 1e-4}
    torch.testing.assert_close(posterior.log_partition, log_z, **near)
    marginals = posterior.marginals()
    for variable in graph.variables:
        wanted = torch.stack([one.marginal(variable) for one in each])
        torch.testing.assert_close(marginals[variable], wanted, **near)
    for scope in SCOPES:
        own = tuple(graph.variables[v] for v in scope)
        wanted = torch.stack([one.factor_marginal(own) for one in each])
        torch.testing.assert_close(posterior.factor_marginal(own), wanted, **near)
    weights = torch.arange(29.0).to(dtype)
    found = []
    for values_of in (posterior.log_partition, log_z):
        total = (torch.where(values_of > -math.inf, values_of, 0.0) * weights).sum()
        found.append(torch.autograd.grad(total, values, retain_graph=True))
    torch.testing.assert_close(*found, **near)
