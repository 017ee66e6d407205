"""Loopy messages over few states of each variable, drawn again as the beliefs form."""

import math

import pytest
import torch

import rdpgraph as rg
from rdpgraph import Randomized
from rdpgraph.randomized import Local, Top
from tests.routes import Twice


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


def mixed(*batch):
    """A loop with a triple, embeddings, hard zeros, evidence and a variable of two states."""
    xs, ys = rg.VariableArray("x", (4,), 5), rg.VariableArray("y", (2,), 4)
    a, seen = rg.Variable("a", 2), rg.Variable("seen", 5)
    hard = draw(5, 4, seed=4)
    hard[0, 1:] = -math.inf
    graph = rg.FactorGraph(
        [
            rg.FactorBlock((xs,), rg.Table(draw(*batch, 4, 5, seed=1))),
            rg.FactorBlock(
                (xs[:-1], xs[1:]), rg.Bilinear(draw(5, 2, seed=2) / 2, draw(5, 2, seed=3) / 2)
            ),
            rg.FactorBlock((xs[:2], ys), rg.Table(hard)),
            rg.Factor((xs[0], ys[1], a), rg.Table(0.5 * draw(5, 4, 2, seed=5))),
            rg.Factor((xs[3], xs[0]), rg.Table(0.5 * draw(5, 5, seed=6))),
            rg.Factor((xs[2], seen), rg.Table(draw(5, 5, seed=7))),
            rg.Factor((seen, a), rg.Table(draw(5, 2, seed=8))),
        ]
    )
    return graph.condition({seen: 3})


def loopy(selection, *, at=(2, 4), replicates=1, seed=0, proposal=None, **options):
    estimator = rg.Randomized(proposal or rg.randomized.Local(), selection, replicates=replicates)
    return {
        "estimator": rg.Redrawn(estimator, at=at),
        "scheduler": rg.Loopy(tolerance=1e-12, **options),
        "generator": seeded(seed),
    }


@pytest.mark.parametrize("batch", [(), (3,)])
@pytest.mark.parametrize("at", [(), (1,), (2, 5)])
def test_states_that_add_up_to_all_states_give_the_messages_of_all(batch, at):
    graph = mixed(*batch)
    whole = rg.infer(graph, scheduler=rg.Loopy(tolerance=1e-12))
    found = rg.infer(graph, **loopy(Twice(), at=at, replicates=2))
    assert found.status.converged
    assert torch.allclose(found.log_partition, whole.log_partition)
    assert torch.allclose(found.entropy(), whole.entropy())
    for entry, marginal in whole.marginals().items():
        assert torch.allclose(found.marginal(entry), marginal, atol=1e-9)
    xs = graph.variables[0]
    pair = (xs[3], xs[0])
    assert torch.allclose(found.factor_marginal(pair), whole.factor_marginal(pair), atol=1e-9)


def test_the_sweeps_go_on_where_they_were():
    graph = mixed()
    once = rg.infer(graph, **loopy(Twice(), at=())).status.iterations
    again = rg.infer(graph, **loopy(Twice(), at=(500, 600))).status.iterations
    # The interpolated messages have converged: a sweep or two to see it.
    assert once < again <= once + 4


@pytest.mark.parametrize("tables", [False, True])
def test_beliefs_are_those_with_the_state_put_among_those_kept(tables):
    """Compare on a tree, where messages are exact."""
    xs, states = rg.VariableArray("x", (4,), 7), 7
    other = rg.Bilinear(draw(7, 2, seed=2), draw(7, 2, seed=3))
    potential = rg.Table(other.table(2)) if tables else other
    graph = rg.FactorGraph(
        [
            rg.FactorBlock((xs,), rg.Table(draw(4, states))),
            rg.FactorBlock((xs[:2], xs[1:3]), potential),
            rg.Factor((xs[1], xs[3]), potential),
        ]
    )
    posterior = rg.infer(graph, **loopy(rg.randomized.TopTail(1, 2), at=(), replicates=1))
    (support,) = posterior.solution.inner.restriction.supports
    kept, log_weights = support.states[0], support.log_weights[0].double()
    assert kept.shape == (4, 3)
    for site in range(4):
        unary = torch.full((4, states), -math.inf, dtype=torch.float64)
        for place in range(4):
            own = kept[place]
            unary[place] = unary[place].scatter_reduce(0, own, log_weights[place], "amax")
        # Draws of a state twice add up.
        for place in range(4):
            weight = torch.zeros(states, dtype=torch.float64)
            weight.index_add_(0, kept[place], log_weights[place].exp())
            unary[place] = weight.log()
        unary[site] = 0.0
        weighted = graph.with_factors(rg.FactorBlock((xs,), rg.Table(unary)))
        expected = rg.infer(weighted).marginal(xs)[site]
        assert torch.allclose(posterior.marginal(xs)[site], expected)


@pytest.mark.long
@pytest.mark.parametrize(
    "selection",
    [
        rg.randomized.Top(1),
        rg.randomized.Top(3),
        rg.randomized.TopTail(1, 2),
        rg.randomized.TopSystematic(1, 1),
        rg.randomized.Threshold(2),
    ],
    ids=repr,
)
def test_any_selection_answers_about_all_states(selection):
    graph = mixed(2)
    found = rg.infer(graph, **loopy(selection, replicates=3, sweeps=100))
    assert not found.status.exact
    assert found.status.biased
    for entry, marginal in found.marginals().items():
        assert marginal.shape == (2, *entry.shape, entry.size)
        assert torch.allclose(marginal.sum(-1), torch.ones(2, *entry.shape).double())
    assert torch.allclose(found.marginal("seen")[..., 3], torch.ones(2).double())
    again = rg.infer(graph, **loopy(selection, replicates=3, sweeps=100))
    assert torch.equal(found.log_partition, again.log_partition)
    assert bool((graph.score(found.mode()) > -math.inf).all())


def test_nothing_in_common():
    """Sites that must agree, and states kept that do not: no answer, and no NaN."""
    xs = rg.VariableArray("x", (3,), 6)
    same = torch.full((6, 6), -math.inf, dtype=torch.float64).fill_diagonal_(0.0)
    edges = rg.FactorBlock((xs, xs[[1, 2, 0]]), rg.Table(same))
    graph = rg.FactorGraph([edges, rg.FactorBlock((xs,), rg.Table(draw(3, 6)))])
    for seed in range(4):
        few = loopy(
            rg.randomized.TopTail(0, 2), seed=seed, sweeps=20, proposal=rg.randomized.Uniform()
        )
        found = rg.infer(graph, **few)
        assert not bool(found.marginal(xs).isnan().any())
        assert not bool(found.log_partition.isnan())


def smooth(size=4, states=60):
    xs = rg.VariableArray("x", (size, size), states)
    place = torch.linspace(0, 1, states, dtype=torch.float64)
    centre = torch.rand(size, size, 2, 1, generator=seeded(), dtype=torch.float64)
    unary = 2 * (-(((place - centre) / 0.15) ** 2)).exp().sum(2)
    pair = -3 * (1 - (-(((place.unsqueeze(1) - place) / 0.3) ** 2)).exp())
    return xs, rg.FactorGraph(
        [
            rg.FactorBlock((xs,), rg.Table(unary)),
            rg.FactorBlock((xs[:, :-1], xs[:, 1:]), rg.Table(pair)),
            rg.FactorBlock((xs[:-1], xs[1:]), rg.Table(pair)),
        ]
    )


@pytest.mark.long
def test_beliefs_choose_better_states_and_more_states_are_better():
    xs, graph = smooth()
    whole = rg.infer(graph, scheduler=rg.Loopy()).marginal(xs)

    def error(keep, at):
        total = 0.0
        for seed in range(4):
            estimator = rg.Randomized(
                rg.randomized.Local(), rg.randomized.TopSystematic(keep // 2, keep // 2)
            )
            found = rg.infer(
                graph,
                estimator=rg.Redrawn(estimator, at=at),
                scheduler=rg.Loopy(sweeps=60, tolerance=1e-4),
                generator=seeded(seed),
            )
            total += float((found.marginal(xs) - whole).abs().sum(-1).mean()) / 2
        return total / 4

    assert error(6, (5, 10)) < 0.8 * error(6, ())
    assert error(20, (5, 10)) < 0.5 * error(6, (5, 10))


def test_gradients_pass_the_beliefs():
    unary = draw(3, 5).requires_grad_()
    xs = rg.VariableArray("x", (3,), 5)
    table = rg.Table(0.3 * draw(5, 5, seed=1))

    def answers(unary):
        graph = rg.FactorGraph(
            [
                rg.FactorBlock((xs,), rg.Table(unary)),
                rg.FactorBlock((xs, xs[[1, 2, 0]]), table),
            ]
        )
        few = loopy(rg.randomized.TopTail(0, 3), at=(), proposal=rg.randomized.Uniform())
        posterior = rg.infer(graph, **few)
        return posterior.log_partition, posterior.marginal(xs)

    assert torch.autograd.gradcheck(answers, (unary,), fast_mode=True)


FEW = rg.Redrawn(rg.Randomized(rg.randomized.Local(), rg.randomized.Top(2)))


def asked(model, **options):
    return rg.infer(model, estimator=FEW, scheduler=rg.Loopy(**options))


def test_a_pilot_sends_messages_too():
    found = rg.infer(mixed(), **loopy(rg.randomized.Top(3), proposal=rg.randomized.Oracle()))
    assert float(found.marginal("a").sum()) == pytest.approx(1.0)


def test_a_batch_without_items():
    x, y = (rg.Variable(name, 3) for name in "xy")
    graph = rg.FactorGraph([rg.Factor((x, y), rg.Table(draw(2, 0, 3, 3)))])
    assert asked(graph).marginal(x).shape == (2, 0, 3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: rg.Redrawn(rg.Randomized.default(keep=2), at=(5, 3)), "increasing"),
        (lambda: rg.Redrawn(rg.Randomized.default(keep=2), share=0.0), "share"),
        (lambda: asked(mixed(), counting=rg.loopy.TreeReweighted()), "counting"),
        (lambda: asked(mixed(), temperature=0.5), "temperature"),
        (lambda: asked(mixed(), start=rg.infer(mixed(), scheduler=rg.Loopy())), "start"),
        (lambda: rg.infer(mixed(), estimator=FEW, scheduler=rg.Contraction()), "scheduler=Loopy"),
        (lambda: asked(rg.Chain(draw(3, 4), draw(4, 4))), "FactorGraph; got a Chain"),
    ],
)
def test_arguments_are_checked(make, message):
    with pytest.raises(rg.errors.ModelError, match=message):
        make().marginals()


def test_beliefs_of_variables_of_which_all_states_are_kept_heed_partial_evidence():
    """A factor whose other variable has one possible state is a part of the unary potentials."""
    xs, ys = rg.VariableArray("x", (3,), 4), rg.VariableArray("y", (2,), 2)
    graph = rg.FactorGraph(
        [
            rg.FactorBlock((xs[:-1], xs[1:]), rg.Table(draw(2, 4, 4, seed=1))),
            rg.FactorBlock((xs[:2], ys), rg.Table(draw(2, 4, 2, seed=2))),
        ]
    ).condition({"x": [-1, 2, -1]})
    estimator = rg.Redrawn(Randomized(Local(), Top(4)), at=(3,))
    few = rg.Redrawn(Randomized(Local(), Top(3), defensive=0.0), at=(1000,))
    exact = rg.infer(graph).marginal(ys)
    for each in (estimator, few):
        found = rg.infer(graph, rg.Loopy(), estimator=each, generator=seeded()).marginal(ys)
        assert torch.allclose(found[1], exact[1])
