"""A small model for every route that answers take."""

import contextlib
import math
from dataclasses import dataclass

import torch

import rdpgraph as rg
from tests.questions import QUESTIONS, seeded


def fixed(*shape, seed=0):
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


def ring(w):
    """A ring with evidence, a triple and a state that hard zeros rule out."""
    a, b, c, d = (rg.Variable(name, 3) for name in "abcd")
    hard = torch.zeros(3, 3, dtype=torch.float64)
    hard[2] = -torch.inf
    factors = [((a, b), w[:9].reshape(3, 3)), ((b, c), w[9:18].reshape(3, 3)), ((c, a), hard)]
    factors.append(((a, b, d), w[18:45].reshape(3, 3, 3)))
    return rg.FactorGraph([rg.Factor(scope, rg.Table(t)) for scope, t in factors])


def small_grid(w):
    return grid(w, 3)


def grid(w, size=4):
    x = rg.VariableArray("x", (size, size), 2)
    across, down = rg.Table(w[:4].reshape(2, 2)), rg.Table(w[4:8].reshape(2, 2))
    return rg.FactorGraph(
        [
            rg.FactorBlock((x[:, :-1], x[:, 1:]), across),
            rg.FactorBlock((x[:-1], x[1:]), down),
            rg.FactorBlock((x,), rg.Table(w[: 2 * size * size].reshape(size, size, 2))),
        ]
    )


def tree(w):
    x = rg.VariableArray("x", (5,), 3)
    unary = rg.FactorBlock((x,), rg.Table(w[:15].reshape(5, 3)))
    return rg.FactorGraph([unary, rg.FactorBlock((x[:1], x[1:]), rg.Table(w[20:29].reshape(3, 3)))])


def chain_of_factors(w):
    return rg.Chain(w[:12].reshape(4, 3), w[20:29].reshape(3, 3)).factor_graph()


def logical(w):
    x = rg.VariableArray("x", (6,), 2)
    pairs = rg.FactorBlock((x[:-1], x[1:]), rg.Table(w[:4].reshape(2, 2)))
    unary = rg.FactorBlock((x,), rg.Table(w[4:16].reshape(6, 2)))
    three = rg.Cardinality(6, at_least=2, at_most=4)
    return rg.FactorGraph([unary, pairs, rg.Factor(tuple(x[i] for i in range(6)), three)])


def embedded(w):
    x = rg.VariableArray("x", (4,), 5)
    unary = rg.FactorBlock((x,), rg.Table(w[:20].reshape(4, 5)))
    around = ([x[0], x[1], x[2], x[3]], [x[1], x[2], x[3], x[0]])
    pair = rg.Bilinear(w[20:30].reshape(5, 2), w[30:40].reshape(5, 2))
    return rg.FactorGraph([unary, rg.FactorBlock(around, pair)])


def low_rank(w):
    x = rg.VariableArray("x", (3,), 5)
    pair = rg.LowRank(w[20:30].reshape(5, 2), w[30:40].reshape(5, 2))
    unary = rg.FactorBlock((x,), rg.Table(w[:15].reshape(3, 5)))
    return rg.FactorGraph([unary, rg.FactorBlock((x[:-1], x[1:]), pair)])


def evidence(w):
    rows = torch.tensor([0, -1, 2])
    return ring(w).condition({"a": torch.tensor([0, 1, 1]), "d": rows})


def chain(w):
    return rg.Chain(w[:12].reshape(4, 3), w[20:29].reshape(3, 3))


def low_rank_chain(w):
    pair = rg.LowRank(w[20:26].reshape(3, 2), w[26:32].reshape(3, 2))
    return rg.Chain(w[:12].reshape(4, 3), pair)


def embedded_chain(w):
    pair = rg.Bilinear(w[20:26].reshape(3, 2), w[26:32].reshape(3, 2))
    return rg.Chain(w[:12].reshape(4, 3), pair)


def semi_markov(w):
    return rg.SemiMarkov(w[:12].reshape(2, 2, 3), w[20:29].reshape(3, 3))


def hypertree(w):
    return rg.Hypertree(w[:27].reshape(3, 3, 3), rg.trees.DenseRules(w[27:54].reshape(3, 3, 3)))


def projective(w):
    return rg.ProjectiveDependencies(w[:12].reshape(3, 4))


def non_projective(w):
    return rg.NonProjectiveDependencies(w[:12].reshape(3, 4))


def derivations(w):
    heads = torch.tensor([0, 1, 2, 2])
    tails = torch.tensor([[-1, -1], [-1, -1], [0, 1], [1, 1]])
    return rg.Derivations(w[:4], heads, tails, nodes=3)


@dataclass(frozen=True)
class Twice(rg.randomized.Selection):
    """Every state twice, at half its weight, in an order of chance."""

    def select(self, log_q, generator):
        order = torch.rand(log_q.shape, generator=generator).argsort(-1)
        states = torch.cat([order, order.flip(-1)], -1)
        weights = torch.where(log_q > -torch.inf, math.log(0.5), -torch.inf).to(log_q)
        return rg.extend.Support(states, weights.gather(-1, states))


def randomized():
    return {"estimator": rg.Randomized.default(keep=3, replicates=2)}


def piloted():
    return {"estimator": rg.Randomized.piloted(keep=2, replicates=2)}


def by_ranks():
    return {"estimator": rg.LowRankFactors()}


def by_features():
    return {"estimator": rg.LowRankFactors(features=6)}


def redrawn():
    estimator = rg.Randomized(rg.randomized.Local(), rg.randomized.Top(3), replicates=2)
    return {"estimator": rg.Redrawn(estimator, at=(2, 4)), "scheduler": rg.Loopy()}


def at_random():
    return {"scheduler": rg.Loopy(schedule=rg.loopy.RandomSubsets(0.5, seeded(2)))}


def by(scheduler):
    return lambda: {"scheduler": scheduler}


ROUTES = {
    "buckets": (ring, dict),
    "contraction": (ring, by(rg.Contraction(memory=1e6))),
    "contraction with rows of evidence": (evidence, dict),
    "contraction of logical factors": (logical, dict),
    "forest": (tree, by(rg.Contraction())),
    "slices": (small_grid, by(rg.Contraction(memory=1200))),
    "join graph": (grid, by(rg.JoinGraph(memory=800, seconds=5))),
    "portfolio": (grid, by(rg.Auto(memory=600, seconds=30))),
    "loopy": (grid, by(rg.Loopy(damping=0.3, sweeps=50))),
    "loopy with rows of evidence": (evidence, by(rg.Loopy(sweeps=50))),
    "loopy, unrolled": (grid, by(rg.Loopy(sweeps=5, gradient=rg.loopy.Unrolled()))),
    "loopy in turn": (grid, by(rg.Loopy(schedule=rg.loopy.Sequential(), sweeps=50))),
    "loopy by residuals": (tree, by(rg.Loopy(schedule=rg.loopy.Residual()))),
    "loopy at random": (grid, at_random),
    "loopy, reweighted": (grid, by(rg.Loopy(counting=rg.loopy.TreeReweighted(), sweeps=50))),
    "loopy of logical factors": (logical, by(rg.Loopy(damping=0.3, sweeps=50))),
    "loopy, redrawn": (embedded, redrawn),
    "recognised chain": (chain_of_factors, dict),
    "chain": (chain, dict),
    "chain of low rank": (low_rank_chain, dict),
    "semi-Markov": (semi_markov, dict),
    "hypertree": (hypertree, dict),
    "projective": (projective, dict),
    "non-projective": (non_projective, dict),
    "derivations": (derivations, dict),
    "randomized graph": (embedded, randomized),
    "randomized ring": (evidence, piloted),
    "randomized loopy": (embedded, lambda: {**randomized(), "scheduler": rg.Loopy(sweeps=50)}),
    "randomized recognised chain": (chain_of_factors, piloted),
    "randomized chain": (chain, piloted),
    "randomized chain of low rank": (low_rank_chain, piloted),
    "randomized semi-Markov": (semi_markov, piloted),
    "randomized hypertree": (hypertree, piloted),
    "low-rank graph": (low_rank, by_ranks),
    "random features": (embedded, by_features),
    "random features of a chain": (embedded_chain, by_features),
}


def weights():
    return (0.5 * fixed(128, seed=5)).requires_grad_()


def declared(route, w):
    return ROUTES[route][0](w)


def inferred(route, model):
    return rg.infer(model, generator=seeded(7), **ROUTES[route][1]())


def posterior(route, w):
    return inferred(route, declared(route, w))


def total(answer):
    """A scalar of one answer, whatever it holds."""
    if isinstance(answer, rg.Segmentation):
        answer = answer.labels
    parts = [part.double() for part in (answer.values() if isinstance(answer, dict) else [answer])]
    place = [torch.arange(1.0, part.numel() + 1).cos().reshape(part.shape) for part in parts]
    finite = [torch.where(part.abs() < torch.inf, part, 0.0) for part in parts]
    return sum((part * at).sum() for part, at in zip(finite, place, strict=True))


def answered(p):
    """Every answer that the route has."""
    found = {}
    for name, ask in QUESTIONS.items():
        with contextlib.suppress(rg.errors.UnsupportedError):
            found[name] = total(ask(p)).detach()
    return found
