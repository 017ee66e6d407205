"""Gradients through loopy belief propagation, against differences and against each other."""

import math
import warnings

import pytest
import torch

import rdpgraph as rg
from tests.engines.loopy.helpers import (
    differences,
    grid,
    grid_tables,
    loopy,
    mixed,
    mixed_shapes,
    mixed_tables,
    randn,
    random_tree,
    same,
    seeded,
)

THROUGH_MESSAGES = (rg.loopy.Implicit(iterations=200, tolerance=1e-11), rg.loopy.Unrolled())
ALL = (rg.loopy.FromBeliefs(), *THROUGH_MESSAGES)


def kind(gradient):
    return type(gradient).__name__


def grid_model(*tables):
    return grid(*tables)[1]


def mixed_model(*tables):
    return mixed(tables)


def grid_case():
    return grid_model, grid_tables(0, 3, 3, 3, 0.4)


def mixed_case():
    return mixed_model, mixed_tables(0, 0.5)


CASES = pytest.mark.parametrize("case", [grid_case, mixed_case])
ON_GRIDS = (
    {},
    {"damping": 0.3},
    {"damping": rg.loopy.ProbabilityDamping(0.2)},
    {"counting": rg.loopy.TreeReweighted(), "damping": 0.1},
    {"counting": rg.loopy.Fractional(0.7), "damping": 0.1},
    {"temperature": 0.7},
    {"name": "sequential"},
    {"name": "random"},
)
ON_MIXED = (
    {},
    {"temperature": 0.7, "damping": 0.1},
    {"name": "sequential"},
)
BOTH = pytest.mark.parametrize(
    ("case", "options"),
    [(grid_case, options) for options in ON_GRIDS]
    + [(mixed_case, options) for options in ON_MIXED],
    ids=lambda value: getattr(value, "__name__", str(value)),
)


def gradients(make, tables, ask, gradient, **options):
    leaves = [table.clone().requires_grad_() for table in tables]
    posterior = loopy(make(*leaves), gradient=gradient, **{"tolerance": 1e-13} | options)
    assert posterior.status.converged
    return torch.autograd.grad(ask(posterior).sum(), leaves)


def log_z(posterior):
    return posterior.log_partition


def some_function(posterior):
    """Random linear in all marginals."""
    marginals = list(posterior.marginals().values())
    total = torch.zeros((), dtype=torch.float64)
    for number, marginal in enumerate(marginals):
        batch = len(posterior.graph.batch_shape)
        weight = randn(100 + number, *marginal.shape[batch:])
        total = total + (marginal * weight).flatten(batch).sum(-1)
    return total


def entropy(posterior):
    return posterior.entropy()


def pair(posterior):
    """One entry of a factor's belief."""
    for block in posterior.graph.blocks:
        if block.arity > 1:
            names = [posterior.graph.domain.variable(n) for n in block.scopes[0].tolist()]
            belief = posterior.factor_marginal(names)
            return belief.flatten(len(posterior.graph.batch_shape))[..., 1]
    raise AssertionError


def agree(found, expected, tolerance=1e-6):
    for one, other in zip(found, expected, strict=True):
        same(one.reshape(-1), other.reshape(-1), tolerance)


def log_z_and_marginals(posterior):
    return log_z(posterior) + some_function(posterior)


@pytest.mark.long
@BOTH
def test_gradients_are_those_of_differences(case, options):
    """Gradients of log Z and marginals; of log Z alone, of which beliefs are the gradient too."""
    make, tables = case()
    expected = differences(make, tables, log_z_and_marginals, **options)
    for gradient in THROUGH_MESSAGES:
        agree(gradients(make, tables, log_z_and_marginals, gradient, **options), expected)
    alone, beliefs = (gradients(make, tables, log_z, own, **options) for own in ALL[:2])
    agree(alone, beliefs)


@pytest.mark.cover(2)
@CASES
@pytest.mark.parametrize("ask", [entropy, pair])
@pytest.mark.parametrize("counting", [rg.loopy.Bethe(), rg.loopy.Fractional(0.8)], ids=str)
def test_the_gradients_of_entropy_and_of_joints(case, ask, counting):
    make, tables = case()
    options = {"counting": counting, "damping": 0.1}
    expected = differences(make, tables, ask, **options)
    for gradient in THROUGH_MESSAGES:
        agree(gradients(make, tables, ask, gradient, **options), expected)


@pytest.mark.long
def test_residual_schedules_have_the_same_gradients():
    make, tables = mixed_case()
    expected = gradients(make, tables, log_z_and_marginals, THROUGH_MESSAGES[0])
    for gradient in THROUGH_MESSAGES:
        found = gradients(make, tables, log_z_and_marginals, gradient, name="residual")
        agree(found, expected)


@pytest.mark.parametrize("gradient", ALL, ids=kind)
def test_the_gradient_of_log_z_is_the_beliefs(gradient):
    make, tables = mixed_case()
    leaves = [table.clone().requires_grad_() for table in tables]
    graph = make(*leaves)
    posterior = loopy(graph, gradient=gradient)
    found = torch.autograd.grad(posterior.log_partition, leaves)
    for scope, slope in zip(mixed_shapes(), found, strict=True):
        same(slope, posterior.factor_marginal(scope), 1e-8)


@pytest.mark.long
@pytest.mark.cover(1)
@pytest.mark.parametrize("gradient", ALL, ids=kind)
@pytest.mark.parametrize("zeros", [0.0, 0.3])
def test_on_trees_gradients_are_those_of_the_exact_engine(gradient, zeros):
    asks = (
        [log_z] if isinstance(gradient, rg.loopy.FromBeliefs) else [log_z, some_function, entropy]
    )
    for seed in range(4):
        drawn = random_tree(seed, batch=(2,), zeros=zeros, evidence="rows")

        def solved(scheduler, drawn=drawn):
            leaves = [f.potential.log_values.clone().requires_grad_() for f in drawn.factors]
            factors = [
                rg.Factor(f.variables, rg.Table(leaf))
                for f, leaf in zip(drawn.factors, leaves, strict=True)
            ]
            graph = rg.FactorGraph(factors, variables=drawn.graph.variables)
            seen = rg.FactorGraph.from_blocks(graph.domain, graph.blocks, drawn.graph.observed)
            return leaves, rg.infer(seen, scheduler=scheduler)

        for ask in asks:
            found = []
            for scheduler in (
                rg.Loopy(gradient=gradient, tolerance=1e-12),
                rg.Contraction(),
            ):
                leaves, posterior = solved(scheduler)
                value = ask(posterior)
                alive = posterior.log_partition.detach() > -math.inf
                total = torch.where(alive, value, 0.0).sum()
                if not total.requires_grad:
                    found.append([torch.zeros_like(leaf) for leaf in leaves])
                    continue
                found.append(
                    torch.autograd.grad(total, leaves, allow_unused=True, materialize_grads=True)
                )
            for one in found[0]:
                assert not bool(one.isnan().any())
            agree(*found)


@pytest.mark.long
@pytest.mark.parametrize("gradient", ALL, ids=kind)
def test_probabilities_of_zero_make_no_nan(gradient):
    """Hard zeros in tables of a loop, some in one batch item only."""
    generator = seeded(0)
    shapes = [(2, 2), (2, 3), (3, 2), (2, 3, 2)]
    a, b, c = rg.Variable("a", 2), rg.Variable("b", 2), rg.Variable("c", 3)
    scopes = [(a, b), (b, c), (c, a), (a, c, b)]
    leaves = []
    for batch in ((), (2,), (), (2,)):
        shape = (*batch, *shapes[len(leaves)])
        values = torch.rand(shape, generator=generator, dtype=torch.float64)
        values[torch.rand(shape, generator=generator) < 0.2] = 0.0
        leaves.append(values.requires_grad_())
    pairs = zip(scopes, leaves, strict=True)
    graph = rg.FactorGraph([rg.Factor(s, rg.Table.from_probabilities(v)) for s, v in pairs])
    posterior = loopy(graph, gradient=gradient, damping=0.3, sweeps=300)
    assert posterior.status.converged
    for ask in (log_z, some_function, entropy):
        value = ask(posterior)
        assert bool(value.isfinite().all())
        if isinstance(gradient, rg.loopy.FromBeliefs) and ask is not log_z:
            continue
        found = torch.autograd.grad(value.sum(), leaves, retain_graph=True)
        for slope, leaf in zip(found, leaves, strict=True):
            assert bool(slope.isfinite().all())
            assert bool((slope[leaf == 0] == 0).all())


@pytest.mark.long
@pytest.mark.cover(1)
@CASES
@pytest.mark.parametrize("gradient", ALL, ids=kind)
def test_gradients_of_a_batch_are_those_of_its_items(case, gradient):
    make, tables = case()
    other = [table.flip(0) * 0.7 for table in tables]
    stacked = [torch.stack(both) for both in zip(tables, other, strict=True)]
    asks = [log_z] if isinstance(gradient, rg.loopy.FromBeliefs) else [log_z, some_function]
    for ask in asks:
        together = gradients(make, stacked, ask, gradient)
        for item, own in enumerate((tables, other)):
            alone = gradients(make, own, ask, gradient)
            agree([slope[item] for slope in together], alone, 1e-8)


def test_a_shared_table_gets_the_sum_over_batch_and_factors():
    across, down, unary = grid_tables(1, 3, 3, 2, 0.4, (3,))
    shared = across[0, 0, 0].clone().requires_grad_()
    every = shared.detach().expand(3, 3, 2, 2, 2).clone().requires_grad_()
    for gradient in THROUGH_MESSAGES:
        for ask in (log_z, some_function):
            one = torch.autograd.grad(
                ask(loopy(grid_model(shared, down, unary), gradient=gradient)).sum(), shared
            )[0]
            many = torch.autograd.grad(
                ask(loopy(grid_model(every, down, unary), gradient=gradient)).sum(), every
            )[0]
            same(one, many.sum((0, 1, 2)), 1e-8)


@pytest.mark.long
def test_unrolled_gradients_are_those_of_what_was_computed():
    """After three sweeps, nowhere near a fixed point."""
    make, tables = mixed_case()
    options = {"sweeps": 3, "damping": 0.25}

    def value(*given):
        return loopy(make(*given), gradient=rg.loopy.Unrolled(), **options).log_partition

    leaves = [table.clone().requires_grad_() for table in tables]
    assert torch.autograd.gradcheck(value, leaves, fast_mode=True)


def test_unrolled_gradients_have_gradients():
    x = [rg.Variable(f"x{i}", 2) for i in range(3)]

    def value(tables):
        pairs = zip(x, [*x[1:], x[0]], tables, strict=True)
        graph = rg.FactorGraph([rg.Factor((a, b), rg.Table(t)) for a, b, t in pairs])
        return loopy(graph, gradient=rg.loopy.Unrolled(), sweeps=6, tolerance=0.0).log_partition

    leaf = (randn(0, 3, 2, 2) * 0.5).requires_grad_()
    assert torch.autograd.gradgradcheck(value, leaf, fast_mode=True)


def test_implicit_says_where_its_solve_stopped_early():
    make, tables = grid_case()
    with pytest.warns(UserWarning, match=r"relative residual .* after 2 iterations"):
        gradients(make, tables, some_function, rg.loopy.Implicit(iterations=2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gradients(make, tables, some_function, rg.loopy.Implicit())


def test_no_gradient_no_record():
    make, tables = grid_case()
    with torch.no_grad():
        leaves = [table.clone().requires_grad_() for table in tables]
        for gradient in ALL:
            posterior = loopy(make(*leaves), gradient=gradient)
            assert not posterior.log_partition.requires_grad
            assert not any(m.requires_grad for m in posterior.solution.outcome.messages)


@pytest.mark.long
@pytest.mark.parametrize("gradient", ALL, ids=kind)
def test_a_status_asked_without_gradients_takes_none_from_the_answers(gradient):
    make, tables = mixed_case()
    ask = log_z if isinstance(gradient, rg.loopy.FromBeliefs) else some_function
    expected = gradients(make, tables, ask, gradient)
    leaves = [table.clone().requires_grad_() for table in tables]
    posterior = loopy(make(*leaves), gradient=gradient, tolerance=1e-13)
    with torch.no_grad():
        assert posterior.status.converged
    agree(torch.autograd.grad(ask(posterior), leaves), expected, 1e-8)


def test_a_start_is_a_constant():
    make, tables = mixed_case()
    for gradient in THROUGH_MESSAGES[:1]:
        expected = gradients(make, tables, some_function, gradient)
        leaves = [table.clone().requires_grad_() for table in tables]
        first = loopy(make(*leaves), gradient=gradient, tolerance=1e-13)
        again = loopy(make(*leaves), gradient=gradient, tolerance=1e-13, start=first)
        agree(torch.autograd.grad(some_function(again), leaves), expected)


@pytest.mark.long
def test_a_gradient_in_unaries_alone():
    """The tables need none; the fast binary path must not lose the unaries' either."""
    for states in (2, 3):
        across, down, unary = grid_tables(2, 3, 3, states, 0.5)

        def make(own, across=across, down=down):
            return grid_model(across, down, own)

        for ask in (log_z, some_function):
            expected = differences(make, [unary], ask)
            for gradient in ALL if ask is log_z else THROUGH_MESSAGES:
                agree(gradients(make, [unary], ask, gradient), expected)


def test_gradients_in_single_precision():
    make, tables = grid_case()
    exact = gradients(make, tables, some_function, THROUGH_MESSAGES[0])
    single = [table.float().requires_grad_() for table in tables]
    for gradient in (rg.loopy.Implicit(), rg.loopy.Unrolled()):
        posterior = loopy(make(*single), gradient=gradient, tolerance=1e-6)
        found = torch.autograd.grad(some_function(posterior), single)
        agree([slope.double() for slope in found], exact, 1e-4)
