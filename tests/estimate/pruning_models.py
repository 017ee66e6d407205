"""Small models to prune at random."""

import torch

import rdpgraph as rg


def draw(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def bitext(p=4, q=4, *batch):
    return rg.Bitext.words(
        1.5 * draw(*batch, p, q), draw(*batch, p, seed=1), draw(*batch, q, seed=2), inverted=-0.5
    )


def hypertree(words=6, states=2, *batch):
    return rg.Hypertree(
        draw(*batch, words, words, states), rg.trees.DenseRules(draw(states, states, states))
    )


def chain(steps=5, states=3, *batch):
    return rg.Chain(draw(*batch, steps, states), draw(states, states, seed=1))


def mixed(p=3, q=4, *batch):
    return rg.MixedBitext.words(
        1.5 * draw(*batch, p, q), draw(*batch, p, seed=1), draw(*batch, q, seed=2)
    )


def segments(steps=5, states=3, *batch):
    return rg.SemiMarkov(draw(*batch, steps, 3, states), draw(states, states, seed=1))


def pruned(model, sweeps, seed=0, **options):
    estimator = rg.RandomizedPruning(sweeps, **options)
    return rg.infer(model, estimator=estimator, generator=seeded(seed))


def graph():
    """Two variables of two states."""
    x, y = rg.Variable("x", 2), rg.Variable("y", 2)
    return rg.FactorGraph(
        [rg.Factor((x, y), rg.Table(0.5 * draw(2, 2))), rg.Factor((y,), rg.Table(0.3 * draw(2)))]
    )
