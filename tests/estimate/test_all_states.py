"""Marginals at all states, by messages from the states kept at the other sites.

Of four states of each site two are kept, each with a weight of two: the even or the odd ones. Where
each choice for all sites together is one replicate, replicates are all draws that there are, so
that their means are expectations, and unbiased estimates are exact.
"""

import math
from dataclasses import dataclass

import pytest
import torch

import rdpgraph as rg
from rdpgraph import Bilinear, Randomized
from rdpgraph.extend import Support
from rdpgraph.randomized import Local, Selection, Threshold, Top, TopSystematic, TopTail, Uniform
from tests.estimate.models import draw, estimate, kept_marginals, seeded


@dataclass(eq=False)
class Halves(Selection):
    """The even or the odd states of each site, by the digits of the number of calls.

    ``sites`` is the shape of the scores of an item without its states.
    """

    sites: tuple[int, ...]
    calls: int = 0

    def select(self, log_q, generator):
        if log_q.shape[-1] < 4:  # few enough to keep all
            return Top(log_q.shape[-1]).select(torch.zeros_like(log_q), generator)
        digits = torch.arange(math.prod(self.sites)).reshape(*self.sites, 1)
        states = ((self.calls >> digits) & 1) + 2 * torch.arange(log_q.shape[-1] // 2)
        states = states.expand(*log_q.shape[:-1], -1)
        self.calls += 1
        return Support(states, torch.full(states.shape, math.log(2.0), dtype=log_q.dtype))


def every_draw(model, sites):
    count = 2 ** math.prod(sites)
    return rg.infer(model, estimator=Randomized(Uniform(), Halves(sites), count, 0.0))


def close(one, other, atol=1e-9):
    assert torch.allclose(one, other, atol=atol), (one - other).abs().max()


def transition(kind, *batch, steps=4, states=4):
    if kind == "table":
        return draw(states, states, seed=1)
    if kind == "steps":
        return draw(*batch, steps - 1, states, states, seed=1)
    if kind == "embeddings":
        return Bilinear(draw(states, 2, seed=1), draw(states, 2, seed=2))
    if kind == "ranks":
        return rg.LowRank(draw(states, 2, seed=1), draw(states, 2, seed=2))
    if kind == "ranks of steps":
        sides = (draw(*batch, steps - 1, states, 2, seed=seed) for seed in (1, 2))
        return rg.LowRank(*sides)
    return rg.Banded(draw(states, 3, seed=1), (-1, 0, 1))


KINDS = ["table", "steps", "embeddings", "ranks", "ranks of steps", "banded"]


@pytest.mark.parametrize("lengths", [None, [4, 2], [1, 0]])
@pytest.mark.parametrize("kind", KINDS)
def test_over_all_draws_the_marginals_of_a_chain_are_exact(kind, lengths):
    lengths = None if lengths is None else torch.tensor(lengths)
    chain = rg.Chain(draw(2, 4, 4), transition(kind, 2), lengths=lengths)
    exact, mean = rg.infer(chain), every_draw(chain, (4,))
    close(mean.log_partition, exact.log_partition)
    close(mean.marginals(), exact.marginals())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "selection", [Threshold(3), TopTail(1, 3), TopSystematic(1, 2), Top(2)], ids=repr
)
def test_marginals_of_a_chain_are_those_with_all_states_put_at_a_site(kind, selection):
    chain = rg.Chain(draw(2, 4, 6), transition(kind, 2, states=6))
    posterior = estimate(chain, Local(), selection, replicates=3)
    support = posterior.supports
    shares = posterior.log_partitions.softmax(0).nan_to_num().reshape(3, 2, 1)  # no mass: zeros
    for site in range(4):
        states = torch.zeros(3, 2, 4, 6, dtype=torch.long)
        weights = torch.full((3, 2, 4, 6), -math.inf, dtype=torch.float64)
        states[..., : support.kept], weights[..., : support.kept] = (
            support.states,
            support.log_weights,
        )
        states[..., site, :], weights[..., site, :] = torch.arange(6), 0.0
        expected = chain.restrict(states, weights).marginals()[..., site, :]
        close(posterior.marginals()[:, site], (shares * expected).sum(0))


@pytest.mark.parametrize("kind", ["table", "embeddings"])
def test_long_state_lists_are_read_in_blocks(kind, monkeypatch):
    """The products of whole tables, and of the kept lines alone, give the same."""
    chain = rg.Chain(draw(3, 40), transition(kind, steps=3, states=40))
    whole = estimate(chain, Local(), Threshold(5), replicates=2).marginals()
    monkeypatch.setattr(rg._core.tuning, "LARGE_BLOCK", 1)
    monkeypatch.setattr(rg._core.tuning, "CACHE_BLOCK", 100)
    close(estimate(chain, Local(), Threshold(5), replicates=2).marginals(), whole)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["table", "embeddings", "steps"])
def test_scores_of_any_range_and_hard_zeros(dtype, kind):
    unary, pairs = 300 * draw(5, 12), 300 * draw(12, 12, seed=1)
    pairs[::3, ::2] = unary[2, 5:] = -math.inf
    if kind == "embeddings":
        link = Bilinear(20 * draw(12, 3, seed=1).to(dtype), draw(12, 3, seed=2).to(dtype))
    else:
        link = (pairs if kind == "table" else pairs.expand(4, 12, 12)).to(dtype).requires_grad_()
    unary = unary.to(dtype).requires_grad_()
    chain = rg.Chain(unary, link)
    found = estimate(chain, Local(), Top(8), replicates=1).marginals()
    support = estimate(chain, Local(), Top(8), replicates=1).supports
    states, weights = torch.arange(12).repeat(5, 1), torch.full((5, 12), -math.inf).to(dtype)
    weights = weights.scatter(-1, support.states[0], support.log_weights[0])
    for site in range(5):
        given = weights.clone()
        given[site] = 0.0
        expected = chain.restrict(states, given).marginals()[site]
        close(found[site], expected, atol=1e-4 if dtype == torch.float32 else 1e-9)
    (slope,) = torch.autograd.grad((found * draw(5, 12, seed=3).to(dtype)).sum(), unary)
    assert bool(slope.isfinite().all())


@pytest.mark.parametrize("kind", ["table", "embeddings", "ranks"])
def test_marginals_at_all_states_have_gradients(kind):
    unary = draw(3, 5).requires_grad_()
    parts = [draw(5, 5, seed=1)] if kind == "table" else [draw(5, 2, seed=1), draw(5, 2, seed=2)]
    make = {"table": lambda part: part, "embeddings": Bilinear, "ranks": rg.LowRank}[kind]

    def marginals(unary, *parts):
        chain = rg.Chain(unary, make(*parts))
        return estimate(chain, Uniform(), TopTail(0, 3), replicates=2).marginals()

    assert torch.autograd.gradcheck(
        marginals, (unary, *(part.requires_grad_() for part in parts)), fast_mode=True
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("narrow", ["unary", "transition"])
def test_potentials_of_two_types(kind, narrow):
    unary, link = draw(2, 4, 6), transition(kind, 2, states=6)
    exact = estimate(rg.Chain(unary, link), Local(), Threshold(3)).marginals()
    if narrow == "unary":
        unary = unary.float()
    elif isinstance(link, torch.Tensor):
        link = link.float()
    elif kind == "banded":
        link = rg.Banded(link.log_values.float(), link.offsets)
    elif kind == "embeddings":
        link = Bilinear(link.left.float(), link.right.float())
    else:
        link = rg.LowRank(link.log_left.float(), link.log_right.float())
    close(estimate(rg.Chain(unary, link), Local(), Threshold(3)).marginals().double(), exact, 1e-5)


EDGES = {
    "chain": [(0, 1), (1, 2)],
    "star": [(0, 1), (0, 2), (0, 3)],
    "tree": [(0, 1), (1, 2), (1, 3)],
    "two": [(0, 1), (2, 3)],
    "loop": [(0, 1), (1, 2), (2, 3), (3, 0)],
}


def graph_of(kind, *batch, tables=True, states=4):
    """A graph and its array of variables."""
    if kind == "triples":
        xs = rg.VariableArray("x", (5,), states)
        table = rg.Table(draw(2, states, states, states, seed=1))
        triples = rg.FactorBlock((xs[[0, 2]], xs[[1, 3]], xs[[2, 4]]), table)
        return rg.FactorGraph([rg.FactorBlock((xs,), rg.Table(draw(*batch, 5, states))), triples])
    edges = EDGES[kind]
    xs = rg.VariableArray("x", (1 + max(map(max, edges)),), states)
    near = rg.Table(draw(len(edges), states, states, seed=1))
    if not tables:
        near = Bilinear(draw(states, 2, seed=1), draw(states, 2, seed=2))
    first, second = (list(end) for end in zip(*edges, strict=True))
    unary = rg.Table(draw(*batch, *xs.shape, states))
    return rg.FactorGraph(
        [rg.FactorBlock((xs,), unary), rg.FactorBlock((xs[first], xs[second]), near)]
    )


@pytest.mark.parametrize("kind", [*EDGES, "triples"])
@pytest.mark.parametrize("batch", [(), (2,)])
@pytest.mark.parametrize("tables", [True, False])
def test_over_all_draws_the_marginals_of_graphs_are_exact(kind, batch, tables):
    graph = graph_of(kind, *batch, tables=tables)
    (xs,) = graph.variables
    exact, mean = rg.infer(graph), every_draw(graph, xs.shape)
    close(mean.log_partition, exact.log_partition)
    close(mean.marginal(xs), exact.marginal(xs))


def dense_variables():
    xs, ys, z = rg.VariableArray("x", (3,), 4), rg.VariableArray("y", (2,), 2), rg.Variable("z", 3)
    return rg.FactorGraph(
        [
            rg.FactorBlock((xs,), rg.Table(draw(3, 4))),
            rg.FactorBlock((xs[:-1], xs[1:]), rg.Table(draw(2, 4, 4, seed=1))),
            rg.FactorBlock((xs[:2], ys), rg.Table(draw(2, 4, 2, seed=2))),
            rg.Factor((z, xs[2]), rg.Table(draw(3, 4, seed=3))),
        ]
    )


@pytest.mark.parametrize("given", [{}, {"y": [0, -1]}, {"z": 1}, {"x": [-1, 2, -1]}])
def test_variables_of_few_states_and_evidence(given):
    """Variables of which all states are kept, and observed variables, beside the others."""
    graph = dense_variables().condition(given)
    exact, mean = rg.infer(graph), every_draw(graph, (3,))
    for entry, marginal in exact.marginals().items():
        close(mean.marginals()[entry], marginal)


@pytest.mark.parametrize("kind", ["star", "tree", "triples", "two"])
def test_one_step_more_is_nearer_than_the_states_kept(kind):
    graph = graph_of(kind, states=40)
    (xs,) = graph.variables
    exact = rg.infer(graph).marginal(xs)
    posterior = estimate(graph, Local(), Threshold(8), replicates=1)
    found = posterior.marginal(xs)
    assert bool((found > 0).all())
    close(found.sum(-1), torch.ones_like(found.sum(-1)))
    (support,) = posterior.solution.restriction.supports
    kept = posterior.solution.inner.variable_marginals().reshape(support.states.shape)
    few = torch.zeros(found.shape, dtype=found.dtype).scatter_add(-1, support.states[0], kept[0])
    assert float((found - exact).abs().sum()) < 0.5 * float((few - exact).abs().sum())


def test_one_step_more_in_a_loopy_graph_is_redrawn_without_a_draw():
    graph = graph_of("loop", states=12)
    (xs,) = graph.variables
    few = Randomized(Local(), Threshold(5))
    found = rg.infer(graph, rg.Loopy(), estimator=few, generator=seeded())
    again = rg.infer(graph, rg.Loopy(), estimator=rg.Redrawn(few, at=(1000,)), generator=seeded())
    close(found.marginal(xs), again.marginal(xs), atol=1e-6)


@pytest.mark.parametrize("batch", [(), (2,)])
@pytest.mark.parametrize(
    "pairs",
    [
        [(4, 0), (0, 6), (2, 3), (1, 5)],
        [(4, 0), (5, 0), (3, 2), (3, 1)],
        [(0, 6), (6, 5), (1, 5), (4, 1), (3, 4), (2, 3)],
    ],
    ids=["of different lengths", "of one length", "one"],
)
def test_graphs_of_chains_in_any_order_are_read_as_chains(batch, pairs):
    """The same as by messages over the graph, which take another way."""
    count = 1 + max(map(max, pairs))
    xs = rg.VariableArray("x", (count,), 9)
    first, second = (list(end) for end in zip(*pairs, strict=True))
    graph = rg.FactorGraph(
        [
            rg.FactorBlock((xs,), rg.Table(draw(*batch, count, 9))),
            rg.FactorBlock((xs[first], xs[second]), rg.Table(draw(len(pairs), 9, 9, seed=1))),
        ]
    )
    few = Randomized(Local(), TopSystematic(2, 2), replicates=2)
    found = rg.infer(graph, estimator=few, generator=seeded())
    again = rg.infer(graph, rg.Loopy(), estimator=few, generator=seeded())
    close(found.marginal(xs), again.marginal(xs), atol=1e-6)


def test_messages_that_do_not_converge_leave_the_states_kept():
    """A path with a branch, whose messages take as many sweeps as it is long."""
    xs = rg.VariableArray("x", (301,), 4)
    same, end = 6.0 * torch.eye(4, dtype=torch.float64), torch.zeros(301, 4, dtype=torch.float64)
    end[0, 0] = 5.0
    first, last = [*range(299), 150], [*range(1, 300), 300]
    graph = rg.FactorGraph(
        [
            rg.FactorBlock((xs,), rg.Table(end)),
            rg.FactorBlock((xs[first], xs[last]), rg.Table(same)),
        ]
    )
    posterior = estimate(graph, Uniform(), Top(3))
    close(posterior.marginal(xs).flatten(), kept_marginals(posterior)[0])


def test_replicates_without_a_possible_configuration_have_no_part():
    same = torch.full((6, 6), -math.inf, dtype=torch.float64).fill_diagonal_(0.0)
    chain = rg.Chain(torch.zeros(3, 6, dtype=torch.float64), same)
    for model in (chain, chain.factor_graph()):
        posterior = estimate(model, Local(), TopTail(0, 2), replicates=12)
        alive = posterior.log_partitions > -math.inf
        assert bool(alive.any())
        assert not bool(alive.all())
        found = posterior.marginals() if model is chain else posterior.marginal("site")
        close(found.sum(-1), torch.ones(3, dtype=torch.float64))


STRUCTURES = {
    "semi-Markov": (rg.SemiMarkov, (3, 2, 4), (4, 4)),
    "hypertree": (lambda u, p: rg.Hypertree(u, rg.trees.DenseRules(p)), (2, 2, 4), (4, 4, 4)),
    "low rank": (lambda u, p: rg.Hypertree(u, rg.trees.LowRankRules(*p)), (2, 2, 4), (3, 4, 2)),
    "projective": (lambda u, p: rg.ProjectiveDependencies(u + p.sum()), (3, 4), (1,)),
}


@pytest.mark.parametrize("kind", STRUCTURES)
@pytest.mark.parametrize("batch", [(), (2,)])
def test_over_all_draws_the_marginals_of_structures_are_exact(kind, batch):
    make, unary, other = STRUCTURES[kind]
    structure = make(draw(*batch, *unary), draw(*other, seed=1))
    mean = every_draw(structure, unary[:-1])
    close(mean.marginals(), rg.infer(structure).marginals())


@pytest.mark.parametrize("kind", ["hypertree", "semi-Markov"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_step_more_in_structures_is_nearer_and_has_gradients(kind, dtype):
    if kind == "hypertree":
        rules = draw(20, 20, 20, seed=1).to(dtype)
        unary = draw(3, 3, 20).to(dtype).requires_grad_()
        structure = rg.Hypertree(unary, rg.trees.DenseRules(rules))
    else:
        unary = draw(4, 2, 20).to(dtype).requires_grad_()
        structure = rg.SemiMarkov(unary, draw(20, 20, seed=1).to(dtype))
    exact = rg.infer(structure).marginals()
    posterior = estimate(structure, Local(), TopSystematic(3, 3))
    found, kept = posterior.marginals(), kept_marginals(posterior).reshape(exact.shape)
    # Of a span or a segment that is used as often, the states are those of all.
    close(found.sum(-1), kept.sum(-1), atol=1e-5)
    assert float((found - exact).abs().sum()) < 0.5 * float((kept - exact).abs().sum())
    (slope,) = torch.autograd.grad((found * draw(*exact.shape, seed=2).to(dtype)).sum(), unary)
    assert bool(slope.isfinite().all())
    assert bool((slope != 0).any())


def test_gradients_of_marginals_of_structures():
    unary, rules = draw(2, 2, 4).requires_grad_(), draw(4, 4, 4, seed=1).requires_grad_()

    def marginals(unary, rules):
        structure = rg.Hypertree(unary, rg.trees.DenseRules(rules))
        return estimate(structure, Uniform(), TopTail(0, 2), replicates=2).marginals()

    assert torch.autograd.gradcheck(marginals, (unary, rules), fast_mode=True)


def test_where_exact_inference_takes_no_longer_marginals_are_of_the_states_kept(monkeypatch):
    monkeypatch.setattr(rg._core.tuning, "LITTLE_WORK", 0.0)
    structure = rg.SemiMarkov(draw(4, 2, 8), draw(8, 8, seed=1))
    posterior = estimate(structure, Local(), TopSystematic(2, 2))
    close(posterior.marginals().flatten(), kept_marginals(posterior)[0])
