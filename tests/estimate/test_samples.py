"""Distribution of samples on a few states: all configurations, and every draw of states."""

import itertools
import math

import pytest
import torch

import rdpgraph as rg
from rdpgraph import Randomized
from tests.estimate.enumeration import Script, outcomes


def draw(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def chain(*batch):
    unary = draw(3, 4).expand(*batch, 3, 4)
    return rg.Chain(unary, rg.Bilinear(draw(4, 2, seed=1), draw(4, 2, seed=2)))


SELECTIONS = [
    rg.randomized.TopTail(1, 2),
    rg.randomized.TopTail(0, 2),
    rg.randomized.TopSystematic(1, 1),
    rg.randomized.Threshold(2),
]


def joint_outcomes(selection):
    """[(probability, support of all three sites)] for scores that are the unary potentials."""
    rows = [outcomes(selection, row) for row in chain().unary]
    return [
        (
            math.prod(chance for chance, _ in row),
            rg.extend.Support(
                torch.stack([support.states for _, support in row]),
                torch.stack([support.log_weights for _, support in row]),
            ),
        )
        for row in itertools.product(*rows)
    ]


def law(support, scores):
    """(4, 4, 4) the unnormalised distribution that one choice of states stands for."""
    worth = torch.zeros(3, 4, dtype=torch.float64)
    worth.scatter_add_(1, support.states, support.log_weights.double().exp())
    first, second, third = worth
    return scores.exp() * first[:, None, None] * second[:, None] * third


def all_scores():
    graph = chain().factor_graph()
    grid = torch.cartesian_prod(*[torch.arange(4)] * 3)
    return graph.score({graph.variables[0]: grid}).reshape(4, 4, 4)


@pytest.mark.long
@pytest.mark.parametrize("selection", SELECTIONS, ids=repr)
def test_over_all_draws_every_configuration_has_its_own_mass(selection):
    """E[Z^ p^(x)] = exp(score(x)), Z^ as the library has it, for each of the configurations."""
    scores, choices = all_scores(), joint_outcomes(selection)
    supports = [support for _, support in choices]
    estimator = Randomized(rg.randomized.Local(), Script(supports.copy()), replicates=len(supports))
    model = chain()
    model.unary.requires_grad_()
    posterior = rg.infer(model, estimator=estimator)
    mass = torch.zeros(4, 4, 4, dtype=torch.float64)
    for (chance, support), log_z in zip(choices, posterior.log_partitions, strict=True):
        own = law(support, scores)
        mass += chance * log_z.exp() * own / own.sum()
    assert torch.allclose(mass, scores.exp(), rtol=1e-12, atol=0.0)
    # All of them together: the gradient holds the marginals of the mean, weighted by Z^.
    total = sum(law(support, scores) for support in supports)
    (kept,) = torch.autograd.grad(posterior.log_partition, model.unary)
    for site in range(3):
        others = [dim for dim in range(3) if dim != site]
        assert torch.allclose(kept[site], total.sum(others) / total.sum())


@pytest.mark.long
@pytest.mark.cover(1)
@pytest.mark.parametrize("selection", SELECTIONS, ids=repr)
@pytest.mark.parametrize("which", [0, -1])
def test_hard_and_relaxed_samples_follow_the_weighted_distribution(selection, which):
    _, support = joint_outcomes(selection)[which]
    expected = law(support, all_scores()).flatten()
    expected = expected / expected.sum()
    count = 20_000
    wide = rg.extend.Support(
        support.states.expand(count, 3, -1), support.log_weights.expand(count, 3, -1)
    )
    estimator = Randomized(rg.randomized.Local(), Script([wide]))
    posterior = rg.infer(chain(count), estimator=estimator)
    generator = torch.Generator().manual_seed(1)
    hard = posterior.sample(1, generator=generator)[0]
    # The relaxed draw's largest entry is an exact sample, whatever the temperature.
    cold = posterior.rsample(temperature=0.01, generator=generator).argmax(-1)
    place = torch.tensor([16, 4, 1])
    for states in (hard, cold):
        found = torch.bincount((states * place).sum(-1), minlength=64) / count
        assert bool((found[expected == 0] == 0).all())
        slack = 5 * (expected * (1 - expected) / count).sqrt()
        assert bool(((found - expected).abs() <= slack + 1e-9).all())


def test_impossible_replicates_beside_an_array_that_is_observed():
    """Two variables that must agree: replicates that keep no common state have no samples."""
    seen, pair = rg.VariableArray("seen", (3,), 2), rg.VariableArray("pair", (2,), 4)
    same = torch.full((4, 4), -math.inf, dtype=torch.float64).fill_diagonal_(0.0)
    flat = torch.zeros(2, 4, dtype=torch.float64)
    graph = rg.FactorGraph(
        [
            rg.FactorBlock((pair[:1], pair[1:]), rg.Table(same)),
            rg.FactorBlock((seen[:2], pair), rg.Table(flat)),
            rg.FactorBlock((seen,), rg.Table(flat[0, :2])),
        ]
    )
    rows = torch.tensor([[0, 1, 0], [1, 1, 0]])
    estimator = rg.Randomized(rg.randomized.Uniform(), rg.randomized.TopTail(0, 2), replicates=6)
    posterior = rg.infer(
        graph.condition({seen: rows}),
        estimator=estimator,
        generator=torch.Generator().manual_seed(0),
    )
    possible = posterior.log_partitions > -math.inf
    assert bool(possible.any(0).all())
    assert not bool(possible.all())
    for drawn in (posterior.sample(20, torch.Generator().manual_seed(1)), posterior.mode()):
        assert torch.equal(drawn[seen], rows.expand_as(drawn[seen]))
        assert torch.equal(drawn[pair][..., 0], drawn[pair][..., 1])
