"""Answers by name, as DataFrames, and joints of any variables."""

import copy
import itertools
import math
import pickle
from dataclasses import replace

import pandas as pd
import pytest
import torch

import rdpgraph as rg
from rdpgraph.testing import brute_force
from tests.estimate.models import kept_marginals

A, B, C, D = (rg.Variable(name, size) for name, size in zip("abcd", (2, 3, 2, 4), strict=True))
NAMED = rg.Variable("weather", ("dry", "wet", "snow"))
X = rg.VariableArray("x", (2, 3), 2)


def drawn(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return rg.Table(torch.randn(shape, generator=generator, dtype=torch.float64))


def chain(lead=()):
    """A path of variables of several sizes, which contraction solves."""
    return rg.FactorGraph(
        [
            rg.Factor((A, B), drawn(*lead, 2, 3)),
            rg.Factor((B, C), drawn(3, 2, seed=1)),
            rg.Factor((C, D), drawn(2, 4, seed=2)),
            rg.Factor((NAMED,), drawn(3, seed=3)),
        ]
    )


def alike(count=5):
    """A chain that a structure answers."""
    steps = rg.VariableArray("s", (count,), 3)
    links = rg.FactorBlock((steps[:-1], steps[1:]), drawn(count - 1, 3, 3))
    return steps, rg.FactorGraph([links, rg.FactorBlock((steps,), drawn(count, 3, seed=1))])


@pytest.mark.parametrize("lead", [(), (2,)])
@pytest.mark.parametrize("evidence", [{}, {"b": 1}, {"c": [1, None]}])
def test_joints_of_any_variables_are_exact(lead, evidence):
    graph = chain(lead).condition(evidence)
    posterior, truth = rg.infer(graph), brute_force(graph)
    for size in (1, 2, 3):
        for asked in itertools.combinations((D, B, A, NAMED, C), size):
            torch.testing.assert_close(posterior.joint(asked), truth.joint(asked))


@pytest.mark.parametrize("asked", [*itertools.permutations("abc")])
def test_joints_have_the_order_in_which_variables_are_asked_for(asked):
    held = rg.FactorGraph([rg.Factor((C, A, B), drawn(2, 2, 3)), rg.Factor((C, D), drawn(2, 4))])
    for graph in (held, chain()):
        torch.testing.assert_close(rg.infer(graph).joint(asked), brute_force(graph).joint(asked))
    found = rg.infer(held, scheduler=rg.Loopy()).joint(asked)
    expected = brute_force(held).joint(asked)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_joints_in_a_chain_that_a_structure_answers():
    steps, graph = alike()
    posterior, truth = rg.infer(graph), brute_force(graph)
    assert posterior.plan.route == "structure"
    asked = (steps[4], steps[0], steps[2])
    torch.testing.assert_close(posterior.joint(asked), truth.joint(asked))
    torch.testing.assert_close(posterior.joint(["s[1]", "s[2]"]), truth.joint(("s[1]", "s[2]")))


def test_joints_in_slices_with_ranks_and_on_kept_states():
    steps, graph = alike()
    asked = (steps[0], steps[3])
    expected = brute_force(graph).joint(asked)
    generator = torch.Generator().manual_seed(0)
    every = rg.infer(graph, estimator=rg.Randomized.default(keep=3), generator=generator)
    few = rg.infer(
        graph, estimator=rg.Randomized.default(keep=2, replicates=3), generator=generator
    )
    torch.testing.assert_close(every.joint(asked), expected)
    # On few states, a joint sums to the marginals of the states kept.
    (marginals,) = kept_marginals(few)
    places = graph.domain.places(graph.domain.numbers(steps), 3)
    torch.testing.assert_close(few.joint(asked).sum(1), marginals[places[0]])
    torch.testing.assert_close(few.joint(asked).sum(0), marginals[places[3]])
    logs = drawn(3, 2).log_values
    low = rg.FactorGraph(
        [
            rg.FactorBlock((steps[:-1], steps[1:]), rg.LowRank(logs, logs)),
            rg.FactorBlock((steps,), drawn(5, 3, seed=1)),
        ]
    )
    ranks = rg.infer(low, estimator=rg.LowRankFactors())
    torch.testing.assert_close(ranks.joint(asked), brute_force(low).joint(asked))


def test_joints_of_sites():
    chain = rg.Chain(drawn(2, 4, 3).log_values, drawn(3, 3, seed=1).log_values)
    graph = chain.factor_graph()
    posterior = rg.infer(chain)
    expected = brute_force(graph).joint(("site[3]", "site[0]"))
    torch.testing.assert_close(posterior.joint([3, 0]), expected)
    for wrong in ([4], [0, 0], [], ["a"]):
        with pytest.raises(rg.errors.ModelError):
            posterior.joint(wrong)
    few = rg.infer(
        chain,
        estimator=rg.Randomized.default(keep=2, replicates=3),
        generator=torch.Generator().manual_seed(0),
    )
    # On few states, a joint sums to the marginals of the states kept.
    marginals = kept_marginals(few).reshape(2, 4, 3)
    torch.testing.assert_close(few.joint([0, 3]).sum(-1), marginals[:, 0])
    torch.testing.assert_close(few.joint([0, 3]).sum(-2), marginals[:, 3])


def test_joints_have_gradients():
    values = drawn(2, 3).log_values.requires_grad_()

    def joint(values):
        graph = rg.FactorGraph([rg.Factor((A, B), rg.Table(values)), *list(chain().factors())[1:]])
        return rg.infer(graph).joint([A, D])

    assert torch.autograd.gradcheck(joint, (values,), fast_mode=True)


def test_joints_of_impossible_evidence_are_zero():
    graph = rg.FactorGraph([rg.Factor((A, B), rg.Table(torch.full((2, 3), -math.inf)))], [C])
    assert not bool(rg.infer(graph).joint([A, C]).any())


def test_joints_that_cannot_be_had():
    graph = chain()
    posterior = rg.infer(graph)
    for asked in ([], [A, A], "ab", [rg.Variable("z", 2)]):
        with pytest.raises(rg.errors.ModelError):
            posterior.joint(asked)
    with pytest.raises(rg.errors.ModelError, match=r"joint\(\['a', 'd'\]\)"):
        posterior.factor_marginal([A, D])
    with pytest.raises(rg.errors.UnsupportedError, match="Contraction"):
        rg.infer(graph, scheduler=rg.Loopy()).joint([A, D])
    loopy = rg.infer(graph, scheduler=rg.Loopy()).joint([B, A])
    torch.testing.assert_close(loopy, posterior.joint([B, A]), rtol=1e-4, atol=1e-4)
    big = [rg.Variable(f"v{i}", 1000) for i in range(5)]
    wide = rg.FactorGraph([rg.Factor((v,), drawn(1000)) for v in big])
    with pytest.raises(rg.errors.BudgetError, match="would take"):
        rg.infer(wide).joint(big)
    tight = replace(posterior, solve=rg.Contraction(seconds=1e-9).solve)
    with pytest.raises(rg.errors.BudgetError, match="does not fit"):
        tight.joint([A, B, C, D])


def grid(seen=(1, None)):
    graph = rg.FactorGraph(
        [rg.FactorBlock((X,), drawn(2, 3, 2)), rg.Factor((NAMED, X[0, 0]), drawn(3, 2))]
    )
    return graph, rg.infer(graph.condition({X[1, 2]: seen}))


@pytest.mark.parametrize("seen", [1, (1, None)])
def test_answers_take_names_members_and_views(seen):
    _, posterior = grid(seen)
    draws = posterior.sample(4, generator=torch.Generator().manual_seed(0))
    for answers, ends in ((posterior.marginals(), 1), (posterior.max_marginals(), 1), (draws, 0)):
        whole = answers[X]
        assert answers["x"] is whole
        by_states = whole if ends else whole.unsqueeze(-1)
        for item in (X[1], X[:, ::2], X[[0, 0], [1, 1]]):
            rows = by_states.flatten(-3, -2)[..., item.positions, :]
            assert torch.equal(answers[item], rows if ends else rows.squeeze(-1))
        assert torch.equal(answers["x[1, 2]"], whole[..., 1, 2, :] if ends else whole[..., 1, 2])
        assert torch.equal(answers["weather"], answers[NAMED])
        for known in ("x", X, "x[0, 1]", X[0], "weather", NAMED):
            assert known in answers
            assert answers.get(known) is not None
        for unknown in ("y", "x[2, 0]", A, 3, None):
            assert unknown not in answers
            assert answers.get(unknown, 7) == 7
        with pytest.raises(KeyError, match="did you mean 'weather'"):
            answers["wether"]
        assert list(answers) == [X, NAMED]
        for again in (pickle.loads(pickle.dumps(answers)), copy.deepcopy(answers)):
            assert type(again) is type(answers)
            assert torch.equal(again["x[0, 1]"], answers["x[0, 1]"])


def test_a_marginal_mode_has_what_was_asked_for():
    _, posterior = grid()
    best = posterior.marginal_mode([X[0, 1:], "weather"])
    assert torch.equal(best["x[0, 2]"], best[X[0, 1:]][..., 1])
    assert torch.equal(best[X[0, [2, 1]]], best[X[0, 1:]].flip(-1))
    assert "x[0, 0]" not in best
    with pytest.raises(rg.errors.UnknownVariableError, match="have no variable"):
        best["x"]


def test_states_by_name():
    graph, posterior = grid()
    draws = posterior.sample(3, generator=torch.Generator().manual_seed(1))
    named = graph.state_names(draws)
    states = NAMED.states
    assert named["weather"] == [[states[s] for s in row] for row in draws["weather"].tolist()]
    assert named["x"] == draws["x"].tolist()
    assert torch.equal(graph.score(named), graph.score(draws))


def test_frames_of_states_are_evidence_again():
    graph, posterior = grid()
    for states in (posterior.sample(3), posterior.mode(), rg.infer(graph).mode()):
        frame = states.to_frame()
        members = [X[i, j].name for i in range(2) for j in range(3)]
        assert list(frame.columns) == [*members, "weather"]
        assert set(frame["weather"]) <= set(NAMED.states)
        torch.testing.assert_close(graph.score(frame), graph.score(states).reshape(-1))
        assert len(frame.index.names) == max(states["weather"].ndim, 1)


def test_frames_of_marginals():
    graph, posterior = grid()
    one, batch = rg.infer(graph).marginals(), posterior.marginals()
    assert one.to_frame().loc[("weather", "snow"), "value"] == float(one["weather"][2])
    frame = batch.to_frame()
    assert frame.loc[("x[1, 2]", 1)].tolist() == batch["x[1, 2]"][:, 1].tolist()
    assert pd.api.types.is_float_dtype(frame[0])
    nothing = rg.infer(rg.FactorGraph([]))
    assert len(nothing.marginals().to_frame()) == 0
    assert len(nothing.mode().to_frame().columns) == 0


@pytest.mark.parametrize("estimator", [None, rg.Randomized.default(keep=2)])
def test_a_posterior_is_shown_in_a_line(estimator):
    x = rg.VariableArray("x", (40,), 3)
    pairs = rg.FactorBlock((x[:-1], x[1:]), rg.Table(torch.zeros(39, 3, 3)))
    graph = rg.FactorGraph([pairs, rg.Factor((x[0], x[39]), rg.Table(torch.zeros(3, 3)))])
    posterior = rg.infer(graph, estimator=estimator, generator=torch.Generator())
    shown = repr(posterior)
    assert shown.startswith(f"{type(posterior).__name__}(FactorGraph of 40 variables")
    assert posterior.plan.why in shown
    assert "\n" not in shown
    assert len(shown) < 200
