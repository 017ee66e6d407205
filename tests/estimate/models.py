"""Small models, and estimates of them."""

import torch

import rdpgraph as rg
from rdpgraph import Bilinear, Randomized
from rdpgraph.randomized import Local, Threshold


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


def mixed(*batch):
    """A tree with a variable of three states, an array of three of six, and a loop of one table."""
    a, xs = rg.Variable("a", ("u", "v", "w")), rg.VariableArray("x", (3,), 6)
    return rg.FactorGraph(
        [
            rg.FactorBlock((xs,), rg.Table(2 * draw(*batch, 3, 6, seed=1))),
            rg.FactorBlock((xs[:-1], xs[1:]), Bilinear(draw(6, 2, seed=2), draw(6, 2, seed=3))),
            rg.Factor((a, xs[0]), rg.Table(draw(3, 6, seed=4))),
            rg.Factor((xs[0], xs[2]), rg.Table(draw(6, 6, seed=5))),
        ]
    )


def estimate(model, proposal=None, selection=None, *, seed=0, **options):
    estimator = Randomized(proposal or Local(), selection or Threshold(3), **options)
    return rg.infer(model, estimator=estimator, generator=seeded(seed))


def kept_marginals(posterior):
    """(B, S) marginals of the states kept alone, each replicate in proportion to its Z."""
    solution = posterior.solution
    layout, weights = solution.restriction.layout, solution.replicates.weights
    each = solution.inner.variable_marginals().reshape(*weights.shape[:1], layout.batch, -1)
    each = each * weights.reshape(*each.shape[:2], 1)
    flat = each.new_zeros(layout.batch, layout.num_states)
    for places, values in zip(layout.places, each, strict=True):
        flat = flat.scatter_add(1, places, values)
    return flat
