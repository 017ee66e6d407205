"""Modes by max-product, and temperatures between it and sum-product."""

import itertools

import pytest
import torch

import rdpgraph as rg
from rdpgraph.testing import brute_force
from tests.engines.loopy.helpers import (
    SCHEDULES,
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


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("batch", [(), (3,)])
def test_a_tree_with_many_ties_decodes_to_an_optimum(name, batch):
    """Scores are small whole numbers, so that many configurations are as good as each other."""
    for seed in range(4):
        drawn = random_tree(seed, batch=batch, zeros=0.1, evidence="hard", whole_numbers=True)
        truth = brute_force(drawn.graph)
        posterior = loopy(drawn.graph, name)
        best = posterior.max_marginals()
        for variable in drawn.graph.variables:
            if bool((truth.log_partition > -torch.inf).all()):
                same(best[variable], truth.max_marginal(variable))
        if bool((truth.log_partition == -torch.inf).any()):
            continue
        same(drawn.graph.score({**posterior.mode()}), truth.maximum)
        consistent = posterior.mode_is_consistent()
        assert consistent.shape == drawn.graph.batch_shape
        assert bool(consistent.all())


def test_a_tree_of_nothing_but_ties():
    """Every configuration that satisfies the constraints is a mode; any other is worth nothing."""
    x = [rg.Variable(f"x{i}", 2) for i in range(9)]
    odd = torch.zeros(2, 2, 2, dtype=torch.float64)
    for states in itertools.product((0, 1), repeat=3):
        if sum(states) % 2 == 0:
            odd[states] = -torch.inf
    scopes = [(0, 1, 2), (2, 3, 4), (4, 5, 6), (6, 7, 8)]
    graph = rg.FactorGraph([rg.Factor(tuple(x[i] for i in s), rg.Table(odd)) for s in scopes])
    for name in SCHEDULES:
        posterior = loopy(graph, name)
        assert float(graph.score({**posterior.mode()})) == 0.0
        assert bool(posterior.mode_is_consistent())
        again = loopy(graph, name).mode()
        for variable, state in posterior.mode().items():
            assert torch.equal(state, again[variable])


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("states", [2, 3])
def test_a_magnet_without_a_field_decodes_to_one_colour(name, states):
    """A tie between uniform pictures in every variable; neighbours must choose alike."""
    link = torch.eye(states, dtype=torch.float64)
    pixels = rg.VariableArray("pixel", (3, 4), states)
    graph = rg.FactorGraph(
        [
            rg.FactorBlock((pixels[:, :-1], pixels[:, 1:]), rg.Table(link)),
            rg.FactorBlock((pixels[:-1], pixels[1:]), rg.Table(link)),
        ]
    )
    reweighted = ((rg.loopy.TreeReweighted(), 0.5),) if name == "flooding" else ()
    for counting, damping in ((rg.loopy.Bethe(), 0.0), *reweighted):
        posterior = loopy(graph, name, counting=counting, damping=damping, sweeps=500)
        picture = posterior.mode()[pixels]
        assert len(picture.unique()) == 1
        assert bool(posterior.mode_is_consistent())
        same(graph.score({pixels: picture}), torch.tensor(17.0, dtype=torch.float64))


def test_ties_in_a_batch_are_broken_in_each_item():
    spin = torch.tensor([-1.0, 1.0], dtype=torch.float64)
    x = [rg.Variable(f"x{i}", 2) for i in range(5)]
    signs = torch.tensor([1.0, -1.0, 0.0], dtype=torch.float64)
    link = signs.reshape(3, 1, 1) * torch.outer(spin, spin)
    graph = rg.FactorGraph([rg.Factor(pair, rg.Table(link)) for pair in itertools.pairwise(x)])
    posterior = loopy(graph)
    states = torch.stack([posterior.mode()[v] for v in x])
    same(graph.score({**posterior.mode()}), brute_force(graph).maximum)
    assert len(states[:, 0].unique()) == 1
    assert bool((states[1:, 1] != states[:-1, 1]).all())
    assert posterior.mode_is_consistent().tolist() == [True] * 3


@pytest.mark.long
def test_a_consistent_mode_under_tree_reweighting_is_optimal():
    """Enumeration agrees with certified modes of 200 grids (Wainwright et al. 2005)."""
    generator = seeded(0)

    def uniform(*shape):
        return 2 * torch.rand(shape, generator=generator, dtype=torch.float64) - 1

    _, graph = ising(uniform(200, 3, 2), uniform(200, 2, 3), uniform(200, 3, 3))
    posterior = loopy(
        graph, counting=rg.loopy.TreeReweighted(), damping=0.3, tolerance=1e-9, sweeps=500
    )
    truth = brute_force(graph)
    score = graph.score({**posterior.mode()})
    consistent = posterior.mode_is_consistent()
    assert float(consistent.double().mean()) > 0.3
    same(score[consistent], truth.maximum[consistent])
    assert bool((score <= truth.maximum + 1e-9).all())
    # Its value bounds the best score above, and is that score where the mode is consistent.
    maximal = loopy(
        graph, counting=rg.loopy.TreeReweighted(), damping=0.3, tolerance=1e-9, sweeps=500,
        temperature=0.0,
    )  # fmt: skip
    done = maximal.solution.outcome.converged
    gap = maximal.log_partition - truth.maximum
    assert float(gap[done].min()) > -1e-6
    same(maximal.log_partition[consistent], truth.maximum[consistent], 1e-6)


@pytest.mark.long
def test_consistency_under_bethe_may_be_wrong_but_never_above_the_optimum():
    _, graph = random_grid(0, 3, 3, 3, coupling=2.0, batch=(20,))
    posterior = loopy(graph, damping=0.5, sweeps=300)
    truth = brute_force(graph)
    score = graph.score({**posterior.mode()})
    assert bool((score <= truth.maximum + 1e-9).all())
    consistent = posterior.mode_is_consistent()
    assert float((score >= truth.maximum - 1e-9)[consistent].double().mean()) > 0.8


def test_a_frustrated_loop_still_gives_a_configuration():
    """Three pairwise unequal binary variables: no configuration pleases every factor."""
    x = [rg.Variable(f"x{i}", 2) for i in range(3)]
    unequal = torch.eye(2, dtype=torch.float64) * -1.0
    graph = rg.FactorGraph([rg.Factor((x[i], x[(i + 1) % 3]), rg.Table(unequal)) for i in range(3)])
    for counting in (rg.loopy.Bethe(), rg.loopy.TreeReweighted()):
        for name in SCHEDULES:
            posterior = loopy(graph, name, counting=counting, sweeps=200)
            assert not bool(posterior.mode_is_consistent())
            mode = posterior.mode()
            assert set(mode) == set(x)
            assert all(int(state) in (0, 1) for state in mode.values())
            assert float(graph.score({**mode})) == -1.0  # of 0, 0, 1 and the like: the optimum


@pytest.mark.long
def test_modes_on_mixed_loopy_graphs_are_configurations():
    graph = mixed(mixed_tables(0, batch=(5,))).condition({"x1": [0, -1, 2, 1, -1]})
    posterior = loopy(graph, damping=0.5, sweeps=300)
    score = graph.score({**posterior.mode()})
    assert bool(score.isfinite().all())
    truth = brute_force(graph)
    assert bool((score <= truth.maximum + 1e-9).all())
    consistent = posterior.mode_is_consistent()
    assert consistent.shape == (5,)


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("temperature", [0.5, 0.1, 2.0, 0.0])
def test_temperatures_on_trees(name, temperature):
    """t log sum exp(score / t), and the marginals of p to the power 1 / t."""
    for seed in range(2):
        drawn = random_tree(seed, zeros=0.1, evidence="rows")
        truth = brute_force(drawn.graph)
        posterior = loopy(drawn.graph, name, temperature=temperature)
        if not temperature:
            same(posterior.log_partition, truth.maximum)
            continue
        hot = (truth.scores / temperature).logsumexp(0) * temperature
        same(posterior.log_partition, hot.reshape(posterior.log_partition.shape))
        tempered = type(truth)(truth.graph, truth.configurations, truth.scores / temperature)
        for variable in drawn.graph.variables:
            same(posterior.marginal(variable), tempered.joint((variable,)))
        for factor in drawn.factors:
            if factor.variables:
                same(posterior.factor_marginal(factor), tempered.joint(factor.variables))


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_the_entropy_at_a_temperature_is_that_of_the_tempered_distribution(temperature):
    drawn = random_tree(1)
    truth = brute_force(drawn.graph)
    tempered = type(truth)(truth.graph, truth.configurations, truth.scores / temperature)
    posterior = loopy(drawn.graph, temperature=temperature)
    same(posterior.entropy(), tempered.entropy)


def test_the_status_at_another_temperature_is_not_exact():
    """The computed log Z at another temperature is not the model's."""
    drawn = random_tree(1)
    for temperature in (0.0, 0.5):
        assert not loopy(drawn.graph, temperature=temperature).status.exact


def test_marginals_at_temperature_zero_share_alike_among_the_best():
    x, y = rg.Variable("x", 3), rg.Variable("y", 2)
    values = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.5, 0.0]], dtype=torch.float64)
    graph = rg.FactorGraph([rg.Factor((x, y), rg.Table(values))])
    posterior = loopy(graph, temperature=0.0)
    assert posterior.marginal(x).tolist() == [0.5, 0.5, 0.0]
    assert posterior.marginal(y).tolist() == [0.5, 0.5]


def test_low_temperatures_approach_max_product():
    across, down, unary = grid_tables(0, 3, 3, 2, 0.3)
    spin = randn(0, 3, 3)
    pixels, graph = ising(across[..., 0, 0], down[..., 0, 0], spin + unary[..., 0] * 0)
    cold = loopy(graph, temperature=0.01)
    coldest = loopy(graph, temperature=0.0)
    same(cold.log_partition, coldest.log_partition, 0.1)
    assert torch.equal(cold.marginal(pixels).argmax(-1), cold.mode()[pixels])
