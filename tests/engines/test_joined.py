"""Messages between clusters, against enumeration where they are exact and where they are not."""

import itertools
import math

import pytest
import torch

import rdpgraph as rg
from rdpgraph.testing import brute_force

DOUBLE = torch.float64


def unasked(*_):
    """No search is made."""
    raise AssertionError


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def randn(seed, *shape):
    return torch.randn(shape, generator=seeded(seed), dtype=DOUBLE)


def grid(rows, columns, states, scale, seed=0, batch=()):
    x = rg.VariableArray("x", (rows, columns), states)
    across = randn(seed, *batch, rows, columns - 1, states, states) * scale
    down = randn(seed + 1, rows - 1, columns, states, states) * scale
    unary = randn(seed + 2, rows, columns, states)
    return x, rg.FactorGraph(
        [
            rg.FactorBlock((x[:, :-1], x[:, 1:]), rg.Table(across)),
            rg.FactorBlock((x[:-1], x[1:]), rg.Table(down)),
            rg.FactorBlock((x,), rg.Table(unary)),
        ]
    )


def mixed(seed):
    """A loop of variables of 2 to 4 states, hard zeros, a factor of three, one of a constant."""
    v = [rg.Variable(f"v{i}", 2 + i % 3) for i in range(6)]
    factors = [rg.Factor((), rg.Table(randn(seed))), rg.Factor((v[1],), rg.Table(randn(seed, 3)))]
    for i in range(6):
        pair = (v[i], v[(i + 1) % 6])
        logs = randn(seed + i, pair[0].size, pair[1].size) * 2
        logs[0, 1] = -math.inf
        factors.append(rg.Factor(pair, rg.Table(logs)))
    factors.append(rg.Factor((v[4], v[0], v[2]), rg.Table(randn(seed + 9, 3, 2, 4))))
    return v, rg.FactorGraph(factors)


def close(got, expected, tolerance=1e-9):
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)


def holds(graph, posterior):
    truth = brute_force(graph)
    close(posterior.log_partition, truth.log_partition)
    close(posterior.entropy(), truth.entropy)
    for variable, marginal in posterior.marginals().items():
        members = [variable] if isinstance(variable, rg.Variable) else variable
        if isinstance(variable, rg.Variable):
            close(marginal, truth.joint((variable,)))
            continue
        flat = marginal.flatten(-1 - len(variable.shape), -2)
        for number in range(flat.shape[-2]):
            place = [int(i) for i in torch.unravel_index(torch.tensor(number), variable.shape)]
            close(flat[..., number, :], truth.joint((members[tuple(place)],)))
    for factor in graph.factors():
        if factor.variables:
            close(posterior.factor_marginal(factor.variables), truth.joint(factor.variables))


@pytest.mark.parametrize("seed", range(3))
def test_with_room_for_all_it_is_exact(seed):
    _, graph = mixed(seed)
    x, square = grid(3, 3, 2, 2.0, seed)
    rows = {x[0, 0]: [0, 1, -1], x[2, 1]: [-1, 1, 0]}
    v, some = mixed(seed + 20)
    for model in (graph, square, square.condition(rows), some.condition({v[3]: 1})):
        posterior = rg.infer(model, scheduler=rg.JoinGraph(memory=1e8))
        assert posterior.status.exact
        assert posterior.status.converged
        holds(model, posterior)
    _, batched = grid(2, 3, 3, 1.0, seed, batch=(2,))
    holds(batched, rg.infer(batched, scheduler=rg.JoinGraph(memory=1e8)))


def test_large_log_values_and_impossible_rows():
    x, graph = grid(3, 3, 2, 400.0)
    holds(graph, rg.infer(graph, scheduler=rg.JoinGraph(memory=1e8)))
    equal = torch.eye(2, dtype=DOUBLE).log()
    loop = rg.FactorGraph([
        rg.FactorBlock((x[0], x[1]), rg.Table(equal)),
        rg.FactorBlock((x[0, :-1], x[0, 1:]), rg.Table(equal)),
        rg.FactorBlock((x[1, :-1], x[1, 1:]), rg.Table(equal)),
    ])  # fmt: skip
    rows = loop.condition({x[0, 0]: [0, 0, 1], x[1, 2]: [0, 1, -1]})
    for memory in (1e8, 100):
        posterior = rg.infer(rows, scheduler=rg.JoinGraph(memory=memory))
        assert posterior.log_partition[1].item() == -math.inf
        assert not bool(posterior.marginal(x)[1].any())
        assert posterior.marginal(x[1, 1])[0].tolist() == [1.0, 0.0]
        assert posterior.marginal(x[1, 1])[2].tolist() == [0.0, 1.0]


def test_small_clusters_are_approximate_and_larger_ones_better():
    _, graph = grid(4, 4, 2, 0.8)
    truth = brute_force(graph)
    errors = []
    for memory in (1, 16 * 150, 1e8):
        posterior = rg.infer(graph, scheduler=rg.JoinGraph(memory=memory))
        assert posterior.status.converged
        errors.append(float((posterior.log_partition - truth.log_partition).abs()))
        assert posterior.status.exact == (memory == 1e8)
        assert bool(posterior.status.remedy) == (memory != 1e8)
        assert len(posterior.status.trace) == (posterior.status.iterations or 0)
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 1e-9


@pytest.mark.parametrize("memory", [1, 1e8])
def test_the_gradient_of_log_z_is_the_beliefs(memory):
    """Beliefs at a fixed point equal finite differences of the converged log Z."""
    x = rg.VariableArray("x", (3, 3), 2)
    table = (randn(3, 2, 2) * 0.7).requires_grad_()

    def log_z(logs):
        graph = rg.FactorGraph([
            rg.FactorBlock((x[:, :-1], x[:, 1:]), rg.Table(logs)),
            rg.FactorBlock((x[:-1], x[1:]), rg.Table(randn(4, 2, 3, 2, 2) * 0.7)),
        ])  # fmt: skip
        scheduler = rg.JoinGraph(memory=memory, tolerance=1e-13)
        return rg.infer(graph, scheduler=scheduler).log_partition

    (slope,) = torch.autograd.grad(log_z(table), table)
    for place in ((0, 0), (0, 1), (1, 0)):
        step = torch.zeros(2, 2, dtype=DOUBLE)
        step[place] = 1e-5
        flat = table.detach()
        numeric = (log_z(flat + step) - log_z(flat - step)) / 2e-5
        close(slope[place], numeric, 1e-6)


def test_modes_come_from_max_product():
    x, graph = grid(3, 3, 2, 0.5)
    posterior = rg.infer(graph, scheduler=rg.JoinGraph(memory=1))
    assert bool(graph.score({**posterior.mode()}) > -math.inf)
    assert posterior.mode_is_consistent().shape == ()
    assert posterior.max_marginals()[x].shape == (3, 3, 2)
    for ask in (lambda: posterior.sample(3), lambda: posterior.marginal_mode([x[0, 0]])):
        with pytest.raises(rg.errors.UnsupportedError, match="Contraction"):
            ask()


@pytest.mark.parametrize("options", [{"sweeps": 0}, {"tolerance": -1.0}, {"damping": 1.0}])
def test_settings_out_of_range(options):
    with pytest.raises(rg.errors.ModelError, match="JoinGraph needs"):
        rg.JoinGraph(**options)


@pytest.mark.long
def test_auto_goes_on_where_exact_does_not_fit():
    x, graph = grid(7, 7, 2, 0.5)
    exact = rg.infer(graph)
    assert exact.status.exact
    tight = rg.Auto(memory=1e3, seconds=2.0)
    assert rg.explain(graph, scheduler=tight).route == "join graph"
    assert "needs" in rg.explain(graph, scheduler=tight).why
    posterior = rg.infer(graph, scheduler=tight)
    assert not posterior.status.exact
    assert posterior.status.biased
    assert posterior.status_of("marginals").converged
    assert posterior.status_of("marginals").method in ("join graph", "loopy")
    close(posterior.marginal(x), exact.marginal(x), 0.1)
    with pytest.raises(rg.errors.BudgetError, match="does not fit"):
        rg.infer(graph, scheduler=rg.Contraction(memory=1e3))


@pytest.mark.long
def test_auto_does_not_plan_a_large_graph_with_cycles():
    x = rg.VariableArray("x", (300, 300), 2)
    agree = rg.Table(torch.tensor([[0.2, -0.2], [-0.2, 0.2]]))
    graph = rg.FactorGraph(
        [rg.FactorBlock((x[:, :-1], x[:, 1:]), agree), rg.FactorBlock((x[:-1], x[1:]), agree)]
    )
    plan = rg.explain(graph)
    assert plan.route == "loopy"
    posterior = rg.infer(graph.condition({x[0, 0]: 1}))
    assert posterior.status.converged
    assert not posterior.status.exact


@pytest.mark.long
def test_a_junction_tree_answers_everything_exactly():
    """Modes, max-marginals, gradients and wide ranges too."""
    for scale in (1.0, 30.0, 1000.0):
        for seed in range(5):
            x, graph = grid(3, 3, 2, scale, seed=seed)
            found, truth = (
                rg.infer(graph, scheduler=how) for how in (rg.JoinGraph(), rg.Contraction())
            )
            assert found.status.exact
            close(found.log_partition, truth.log_partition)
            close(found.marginal(x), truth.marginal(x))
            close(found.max_marginals()[x], truth.max_marginals()[x])
            close(graph.score(found.mode()), graph.score(truth.mode()))


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_what_is_possible_stays_so_however_far_apart_the_values(seed):
    """Messages grow around loops, far beyond the range of a float64 below the largest value."""
    _, graph = grid(4, 4, 2, 1000.0, seed=seed)
    allowed = {v: [0, 1] if (seed + number) % 3 else [1] for number, v in enumerate("abcdef")}
    v = {name: rg.Variable(name, 2) for name in allowed}
    factors = []
    for first, second in itertools.combinations(v, 2):
        logs = randn(seed + ord(first) * ord(second), 2, 2) * 1000
        logs[[s for s in (0, 1) if s not in allowed[first]]] = -math.inf
        logs[0, 0] = -math.inf if {first, second} <= {"a", "c", "e", "f"} else logs[0, 0]
        factors.append(rg.Factor((v[first], v[second]), rg.Table(logs)))
    hard = rg.FactorGraph(factors)
    for model in (graph, hard):
        possible = bool(rg.infer(model).log_partition > -math.inf)
        for sweeps in (1, 4, 30):
            posterior = rg.infer(model, scheduler=rg.JoinGraph(memory=1, sweeps=sweeps))
            assert not posterior.status.exact
            if possible:
                assert math.isfinite(posterior.log_partition)
                for values in posterior.marginals().values():
                    close(values.sum(-1), torch.ones(values.shape[:-1], dtype=DOUBLE))


def torus(logs):
    x = rg.VariableArray("x", (3, 3), 2)
    pairs = ((x[:, :-1], x[:, 1:]), (x[:-1], x[1:]), (x[:1], x[2:]))
    return x, rg.FactorGraph([rg.FactorBlock(pair, rg.Table(logs)) for pair in pairs])


@pytest.mark.long
def test_gradients_pass_the_messages_of_clusters():
    """Gradients of marginals and the entropy equal finite differences of the fixed point."""
    tight = rg.JoinGraph(memory=1, tolerance=1e-13, gradient=rg.loopy.Implicit(tolerance=1e-13))
    weights = (randn(5, 2, 2) * 0.6).requires_grad_()

    def answers(logs):
        x, graph = torus(logs)
        posterior = rg.infer(graph, scheduler=tight)
        assert not posterior.status.exact
        assert posterior.status.converged
        joint = posterior.factor_marginal((x[0, 1], x[1, 1]))
        return posterior.marginal(x)[1, 2, 0] + posterior.entropy() + joint[0, 1]

    (slope,) = torch.autograd.grad(answers(weights), weights)
    for place in ((0, 1), (1, 1)):
        step = torch.zeros(2, 2, dtype=DOUBLE)
        step[place] = 1e-5
        flat = weights.detach()
        close(slope[place], (answers(flat + step) - answers(flat - step)) / 2e-5, 1e-6)


@pytest.mark.long
@pytest.mark.parametrize(
    "options",
    [
        {"damping": 0.3},
        {"damping": rg.loopy.LogDamping(0.4)},
        {"schedule": rg.loopy.Residual(0.2)},
        {"schedule": rg.loopy.RandomSubsets(0.3)},
        {"schedule": rg.loopy.Flooding(), "damping": 0.5},
    ],
)
def test_every_schedule_and_damping_has_the_same_fixed_point(options):
    x, graph = torus(randn(8, 2, 1, 1, 2, 2) * 0.7)
    found, expected = (
        rg.infer(graph, scheduler=rg.JoinGraph(memory=1, tolerance=1e-9, **own))
        for own in (options, {})
    )
    assert found.status.converged
    assert expected.status.converged
    close(found.marginal(x), expected.marginal(x), 1e-7)
    close(found.log_partition, expected.log_partition, 1e-7)
