"""Estimates that are wrong do not say that they are sure."""

import math
import pickle
from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

import rdpgraph as rg
from rdpgraph._core import tuning
from rdpgraph.errors import ModelError
from rdpgraph.estimate.replicates import Joined
from rdpgraph.pruning import sweeps_of
from rdpgraph.randomized import Selection, Threshold, TopTail, Uniform
from tests.estimate.pruning_models import chain, draw, pruned, seeded


def two_modes(depth):
    """Three steps that hardly ever change their state."""
    unary = torch.tensor([[0.1, 0.0]] * 3, dtype=torch.float64)
    return rg.Chain(unary, depth * (torch.eye(2, dtype=torch.float64) - 1))


@pytest.mark.parametrize("depth", [10.0, 50.0])
def test_chains_begin_apart_and_go_from_one_mode_to_the_other(depth):
    model = two_modes(depth)
    posterior = pruned(model, 60, chains=8)
    assert_close(posterior.marginals(), model.marginals(), rtol=0.0, atol=0.15)
    off = (sweeps_of(posterior).answers - model.marginals()).abs()
    assert bool((off < 5 * sweeps_of(posterior).standard_error).all())


def test_chains_that_stay_where_they_begin_are_told():
    stuck = pruned(two_modes(50.0), 20, chains=8, selected=rg.pruning.Alternating(share=1.0))
    assert not stuck.status.converged
    assert "R-hat" in stuck.status.remedy
    assert float(sweeps_of(stuck).r_hat.max()) == math.inf
    low, high = sweeps_of(stuck).answer_interval(0.9)
    assert bool((high - low > 0.1).all())
    alone = pruned(chain(), 20)
    assert not alone.status.converged
    assert "chains=8" in alone.status.remedy


def test_answers_that_have_not_moved_have_no_error_where_chains_disagree():
    leave = 50.0 * (torch.eye(9, dtype=torch.float64) - 1)
    stuck = pruned(
        rg.Chain(draw(3, 9), leave), 20, chains=4, selected=rg.pruning.Alternating(share=1.0)
    )
    answers = sweeps_of(stuck)
    missed = answers.answers < 1e-6
    assert bool(missed.any())
    assert bool((answers.standard_error[missed] == math.inf).all())
    low, high = answers.answer_interval(0.9)
    assert bool(((low == -math.inf) & (high == math.inf))[missed].all())


def stays(steps=6, states=10):
    """A chain that stays in the state that it begins in: Z is the number of states."""
    stay = torch.full((states, states), -math.inf, dtype=torch.float64).fill_diagonal_(0.0)
    return rg.Chain(torch.zeros(steps, states, dtype=torch.float64), stay)


@pytest.mark.parametrize(
    "estimator",
    [
        rg.Randomized(Uniform(), Threshold(2), replicates=16),
        rg.Randomized.piloted(keep=3, replicates=16),
    ],
)
def test_estimates_that_miss_are_not_sure(estimator):
    for seed in range(5):
        posterior = rg.infer(stays(), estimator=estimator, generator=seeded(seed))
        error = float(posterior.standard_error)
        assert error == math.inf or abs(float(posterior.log_partition) - math.log(10)) < 5 * error
        assert not posterior.status.converged
        assert posterior.status.remedy


def test_where_all_miss_a_controlled_estimate_is_the_surrogates_and_not_sure():
    found = rg.controlled(
        stays(), stays(), estimator=rg.Randomized(Uniform(), Threshold(2), replicates=4),
        solve=rg.infer, generator=seeded(),
    )  # fmt: skip
    assert bool((found.log_plain == -math.inf).all())
    assert float(found.log_partition) < math.inf
    assert float(found.standard_error) == math.inf


def test_intervals_of_few_replicates_are_wide():
    logs = 0.01 * draw(8, 4000)
    replicates = rg.answers.Replicates(logs)
    low, high = replicates.interval(0.9)
    assert 0.87 < float(((low <= 0) & (high >= 0)).double().mean()) < 0.93
    few = rg.Randomized.default(keep=2, replicates=2)
    status = rg.infer(chain(), estimator=few, generator=seeded()).status
    assert not status.converged
    assert status.remedy.startswith("only 2 of the recommended 16 replicates")


@pytest.mark.long
def test_few_replicates_of_heavy_tails_are_not_sure():
    model = rg.Chain(torch.zeros(6, 400, dtype=torch.float64), 3 * draw(400, 400))
    estimator = rg.Randomized.default(keep=40, replicates=16)
    for seed in range(30):
        posterior = rg.infer(model, estimator=estimator, generator=seeded(seed))
        error = abs(float(posterior.log_partition - model.log_partition()))
        assert error < 4 * float(posterior.standard_error) or not posterior.status.converged


@pytest.mark.parametrize("durations", [1, 2, 3])
def test_segments_take_one_map_for_all_only_if_asked(durations):
    embeddings = 0.3 * draw(4, 2)
    model = rg.SemiMarkov(draw(4, durations, 4), rg.Bilinear(embeddings, embeddings))
    with pytest.raises(ModelError, match=r"^LowRankFactors draws a random map .*shared"):
        rg.infer(model, estimator=rg.LowRankFactors(3), generator=seeded())
    shared = rg.LowRankFactors(3, shared=True)
    assert rg.infer(model, estimator=shared, generator=seeded()).status.biased


class Elsewhere(Selection):
    """The first state for all others, wherever it is: each replicate is too high by as much."""

    def select(self, scores, generator=None):
        first = torch.zeros_like(scores[..., :1])
        return rg.extend.Support(first.long(), first + 2.0)


def test_an_estimate_above_what_all_states_have_is_not_sure():
    model = rg.Chain(0.1 * draw(4, 5), torch.zeros(5, 5, dtype=torch.float64))
    few = rg.Randomized(Uniform(), Elsewhere(), replicates=16)
    posterior = rg.infer(model.factor_graph(), estimator=few)
    off = float(posterior.log_partition - model.log_partition())
    assert off > 1.0
    assert not posterior.status.converged
    assert posterior.status.standard_error >= off
    low, high = posterior.bounds(confidence=0.9)
    assert low <= model.log_partition() <= high


def test_an_error_of_replicates_that_few_decide_is_their_deviation():
    logs = torch.tensor([0.0, -3.0, -5.0, -9.0, -40.0, -2.0, -7.0, -8.0], dtype=torch.float64)
    wide = max(float(logs.std()), float(logs.var()) / 2)
    assert float(rg.answers.Replicates(logs).standard_error) == pytest.approx(wide)
    near = rg.answers.Replicates(logs.clamp(min=-2.0))
    assert float(near.standard_error) == pytest.approx(float(logs.clamp(min=-2.0).std()))
    assert float(rg.answers.Replicates(logs[:3]).standard_error) == math.inf
    logs[3:] = -math.inf  # three are possible
    assert float(rg.answers.Replicates(logs).standard_error) == math.inf


def test_replicates_of_a_posterior_know_what_all_of_them_miss():
    model = stays(steps=5, states=12)
    for seed in range(5):
        estimator = rg.Randomized(Uniform(), Threshold(6), replicates=16)
        posterior = rg.infer(model, estimator=estimator, generator=seeded(seed))
        error = (posterior.log_partition - math.log(12)).abs()
        assert bool(error <= 6 * posterior.standard_error)
        low, high = posterior.replicates.interval(0.999)
        assert bool((low <= math.log(12)) & (math.log(12) <= high))


def test_intervals_and_errors_know_of_bounds():
    logs = 0.1 * draw(16, 3)
    low, high = rg.answers.Replicates(logs).interval(0.95)
    error = rg.answers.Replicates(logs).standard_error
    least = torch.stack([low[0], high[1] + 0.5 * error[1], high[2] + 5.0])
    bounded = rg.answers.Replicates(logs, bounds=(least, torch.full_like(least, math.inf)))
    wanted = torch.stack([high[0], torch.tensor(math.inf), torch.tensor(math.inf)])
    assert torch.equal(torch.stack(bounded.interval(0.95)), torch.stack([low, wanted]))
    far = least[1:] - bounded.log_partition[1:]
    assert torch.equal(bounded.standard_error, torch.cat([error[:1], far]))
    most = rg.answers.Replicates(-logs, bounds=(-torch.full_like(least, math.inf), -least))
    assert torch.equal(most.interval(0.95)[0] == -math.inf, torch.tensor([False, True, True]))


@pytest.mark.parametrize("model", [stays(), stays().factor_graph()])
def test_states_that_replicates_keep_together_bound_log_z(monkeypatch, model):
    monkeypatch.setattr(tuning, "LITTLE_WORK", 0.0)  # as of a model that is too large to solve
    estimator = rg.Randomized(Uniform(), Threshold(3), replicates=4)
    for seed in range(5):
        posterior = rg.infer(model, estimator=estimator, generator=seeded(seed))
        least, most = posterior.replicates.bounds
        assert posterior.log_partitions.max() - 6 * math.log(3) <= least <= math.log(10) + 1e-9
        assert most == math.inf or math.isclose(most, math.log(10))


def grid(side, states):
    """A square of variables with pairs that differ from factor to factor."""
    x = rg.VariableArray("x", (side, side), states)
    pairs = [draw(side, side - 1, states, states), draw(side - 1, side, states, states)]
    return rg.FactorGraph(
        [
            rg.FactorBlock((x[:, 1:], x[:, :-1]), rg.Table(pairs[0])),
            rg.FactorBlock((x[1:], x[:-1]), rg.Table(pairs[1])),
        ]
    )


@pytest.mark.parametrize("states", [50, 200])
def test_errors_cost_no_more_operations_than_the_estimate(monkeypatch, states):
    estimator = rg.Randomized.default(keep=16, replicates=16)
    posterior = rg.infer(grid(3, states), estimator=estimator, generator=seeded())
    with FlopCounterMode(display=False) as estimate:
        _ = posterior.log_partition

    def search(*_args, **_more):
        raise AssertionError("An order is searched once more.")

    monkeypatch.setattr("rdpgraph.plan.planner.search", search)
    with FlopCounterMode(display=False) as others:
        replicates, status = posterior.replicates, posterior.status
        _ = posterior.standard_error, replicates.interval(0.95)
    little = 2 * tuning.LITTLE_WORK  # what takes no longer than the overhead of an answer
    assert 0 < others.get_total_flops() <= max(estimate.get_total_flops(), little)
    assert status.standard_error == float(posterior.standard_error)
    assert float(replicates.bounds[0]) > -math.inf


def few_of_many(steps=3, states=200, possible=5):
    """A chain in which few of many states are possible, so that replicates have most in common."""
    unary = torch.full((steps, states), -math.inf, dtype=torch.float64)
    unary[:, :possible] = draw(steps, possible)
    return rg.Chain(unary, draw(states, states))


@pytest.mark.parametrize("of_graph", [False, True])
def test_joined_states_average_all_combinations_of_replicates(monkeypatch, of_graph):
    monkeypatch.setattr(tuning, "LITTLE_WORK", 0.0)  # as of a model that is too large to solve
    chain = few_of_many()
    model = chain.factor_graph() if of_graph else chain
    estimator = rg.Randomized(Uniform(), TopTail(2, 1), replicates=16, defensive=0.0)
    posterior = rg.infer(model, estimator=estimator, generator=seeded())
    supports = posterior.solution.restriction.supports
    states = torch.cat([each.states.reshape(16, -1, 3) for each in supports], 1)
    weights = torch.cat([each.log_weights.reshape(16, -1, 3) for each in supports], 1).exp()
    measures = torch.zeros(16, 3, 5, dtype=torch.float64).scatter_add(2, states, weights)
    every = torch.cartesian_prod(*[torch.arange(5)] * 3)
    scores = chain.score(every).reshape(5, 5, 5).exp()
    # Each site by a replicate of its own: 16^3 combinations.
    first, second, third = measures.unbind(1)
    combined = torch.einsum("abc,ia,jb,kc->ijk", scores, first, second, third)
    # Replicates are the combinations with one number three times.
    alone = combined[(torch.arange(16),) * 3]
    assert_close(posterior.log_partitions.reshape(16), alone.log())
    joined = posterior.solution.joined
    assert_close(joined.estimate.reshape(()), combined.mean().log())
    assert_close(joined.error.reshape(()), 2 * (combined.mean() / alone.mean()).log().abs())
    assert bool(posterior.standard_error >= joined.error)
    kept = (measures > 0).any(0)
    mass = torch.einsum("abc,a,b,c->", scores, *kept.double())
    assert_close(posterior.replicates.bounds[0].reshape(()), mass.log())


def not_exact():
    return replace(rg.infer(chain()).status, exact=False, biased=True)


def test_estimates_that_joined_states_contradict_are_not_sure():
    replicates = rg.answers.Replicates(0.1 * draw(16))
    own = replicates.standard_error
    for far in (0.5, 5.5, 6.5):
        compared = replicates.compared(Joined(error=far * own))
        assert_close(compared.standard_error, max(far, 1.0) * own)
        status = compared.described(not_exact())
        assert status.converged == (far < 6.0)
        assert status.converged or "another estimate" in status.remedy


@pytest.mark.parametrize(
    ("logs", "word"),
    [
        ([0.0] * 13 + [-20.0] * 3, "miss most of Z"),
        ([0.0] * 13 + [-math.inf] * 3, "miss most of Z"),
        ([0.0] * 11 + [-3.0] * 5, "worth only 11.5"),
        ([0.0, 1e-4] * 8, "hardly differ"),
    ],
)
def test_replicates_of_few_modes_are_not_sure(logs, word):
    """Some of sixteen miss what others have, or all have the same states and hence no more."""
    replicates = rg.answers.Replicates(torch.tensor(logs, dtype=torch.float64))
    status = replicates.compared(Joined()).described(not_exact())
    assert not status.converged
    assert word in status.remedy
    log_z = replicates.log_partition  # known by all states
    known = replicates.compared(Joined(log_z, 0.0 * log_z, (log_z, log_z)))
    assert known.described(not_exact()).converged == ("miss" not in word)


def test_estimates_below_a_bound_are_not_sure():
    replicates = rg.answers.Replicates(0.1 * draw(16))
    log_z, error = replicates.log_partition, replicates.standard_error
    for far in (-1.0, 0.5, 1.5, 4.0):
        least = log_z + far * error
        compared = replicates.compared(Joined(bounds=(least, torch.full_like(least, math.inf))))
        status = compared.described(not_exact())
        assert status.converged == (far < 1.0)
        assert status.converged or "configurations" in status.remedy


def test_groups_that_disagree_are_not_sure():
    logs = 0.02 * draw(16)
    logs[8:12] -= 0.4
    groups = (0,) * 4 + (1,) * 4 + (2,) * 4 + (3,) * 4
    for given, word in ((groups, "groups of replicates disagree"), ((), "")):
        replicates = rg.answers.Replicates(logs, groups=given)
        status = replicates.compared(Joined()).described(not_exact())
        assert status.converged == (not word)
        assert status.remedy.startswith(word)


def test_replicates_that_do_not_differ_show_no_error(monkeypatch):
    monkeypatch.setattr(tuning, "LITTLE_WORK", 0.0)  # as of a model that is too large to solve
    unary = torch.zeros(8, 200, dtype=torch.float64)
    unary[:, :2] = 1e-3  # kept by all, of all others one
    leave = torch.full((200, 200), -50.0, dtype=torch.float64).fill_diagonal_(0.0)
    estimator = rg.Randomized(rg.randomized.Local(), rg.randomized.TopTail(2, 1), replicates=16)
    posterior = rg.infer(rg.Chain(unary, leave), estimator=estimator, generator=seeded())
    assert float(posterior.log_partitions.max() - posterior.log_partitions.min()) < 1e-6
    assert float(posterior.log_partition) < math.log(200) - 4.0
    assert float(posterior.standard_error) == posterior.status.standard_error == math.inf
    assert not posterior.status.converged
    assert "all replicates are equal" in posterior.status.remedy


@pytest.mark.parametrize("model", [stays(), stays().factor_graph()])
@pytest.mark.parametrize("estimator", [rg.Randomized.default(keep=3), rg.RandomizedPruning(3)])
def test_what_is_printed_of_an_estimate_names_the_estimator(model, estimator):
    posterior = rg.infer(model, estimator=estimator, generator=seeded())
    name = type(estimator).__name__
    for shown in (
        repr(posterior),
        posterior._repr_html_(),
        str(posterior.plan),
        str(rg.explain(model, estimator=estimator, generator=seeded())),
    ):
        assert f"by the estimator {name}" in shown
        assert f"describe the model that {name} made: " in shown
        assert "exact" not in shown
        assert "left       0 variables" not in shown
    assert name not in repr(rg.infer(model))


TREES = [
    rg.VariableArray("x", (5, 5), 4),
    rg.VariableArray("x", (6, 1), 4),
    rg.VariableArray("x", (2, 1), 4),
]


@pytest.mark.parametrize("x", TREES, ids=lambda x: str(x.shape))
@pytest.mark.parametrize("keep", [1, 2])
@pytest.mark.parametrize("scheduler", [None, rg.Loopy()])
def test_the_plan_of_an_estimate_counts_what_was_declared(x, keep, scheduler):
    pairs = rg.Table(draw(4, 4))
    graph = rg.FactorGraph(
        [rg.FactorBlock((x[1:], x[:-1]), pairs), rg.FactorBlock((x[:, 1:], x[:, :-1]), pairs)]
    )
    estimator = rg.Randomized.default(keep=keep, replicates=8)
    for model in (graph, graph.condition({x[0, 0]: 1})):
        posterior = rg.infer(model, scheduler, estimator=estimator, generator=seeded())
        plan = rg.explain(model, scheduler, estimator=estimator, generator=seeded())
        free = math.prod(x.shape) - (model.observed is not None)
        for each in (plan, posterior.plan):
            assert (each.num_variables, each.num_factors) == (free, graph.num_factors)
            assert each.why.startswith("by the estimator Randomized, 8 replicates; ")
            assert "exact" not in each.why
        assert not posterior.status.exact
        if (remedy := posterior.status.remedy) and scheduler is not None:
            assert remedy.startswith("in the model on the states kept: ")
        assert pickle.loads(pickle.dumps(posterior)).plan.why == posterior.plan.why


def ring(states=4):
    """A cycle, of which messages are an approximation."""
    x = rg.VariableArray("x", (3,), states)
    return rg.FactorGraph([rg.FactorBlock((x, x[[1, 2, 0]]), rg.Table(2 * draw(states, states)))])


@pytest.mark.parametrize(
    ("model", "estimator", "scheduler"),
    [
        (ring(), rg.Randomized.default(keep=3, replicates=16), rg.Loopy()),
        (ring(), rg.Randomized(Uniform(), rg.randomized.Top(2), replicates=16), rg.Auto()),
        (chain(), rg.Randomized(Uniform(), rg.randomized.Top(2), replicates=16), None),
        (
            rg.FactorGraph([rg.Factor([rg.Variable(n, 3) for n in "ab"],
                                      rg.Bilinear(draw(3, 2), draw(3, 2)))]),
            rg.LowRankFactors(2), rg.MiniBuckets(0.1),
        ),
    ],
)  # fmt: skip
def test_errors_that_draws_do_not_show_are_not_known(model, estimator, scheduler):
    more = {} if scheduler is None else {"scheduler": scheduler}
    posterior = rg.infer(model, estimator=estimator, generator=seeded(), **more)
    assert float(posterior.standard_error) == math.inf
    assert posterior.status.standard_error in (None, math.inf)
    low, high = posterior.replicates.interval(0.9)
    assert (float(low), float(high)) == (-math.inf, math.inf)
