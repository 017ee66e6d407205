"""The errors of randomized pruning: how they fall, what they say of themselves, soft and hard."""

import math
from dataclasses import replace

import pytest
import torch

import rdpgraph as rg
from rdpgraph.pruning import Alternating, masks_of, sweeps_of
from tests.estimate.pruning_models import (
    bitext,
    chain,
    draw,
    graph,
    hypertree,
    mixed,
    pruned,
    seeded,
    segments,
)


def exact_answers(model):
    """(Q,) those to the open questions, and which of all these are."""
    masks = masks_of(model, rg.infer)
    none = torch.zeros(1, *masks.questions, dtype=torch.bool)
    asked = masks.open().flatten()
    return masks.masked(none, none).expected().answers.flatten()[asked], asked


def runs_of(posterior):
    """Each chain as a run of its own."""
    solution = sweeps_of(posterior)
    whole = solution.averages
    for number in range(whole.chains):
        one = slice(number, number + 1)
        own = replace(
            whole,
            total=whole.total[one],
            first=whole.first[one],
            squares=whole.squares[one],
            under_way=whole.under_way[one],
            kept=tuple(part[one] for part in whole.kept),
        )
        yield replace(solution, run=replace(solution.run, averages=own))


@pytest.mark.long
@pytest.mark.parametrize(
    ("model", "chains"), [(hypertree(5, 1), 64), (chain(), 64), (segments(5, 2), 1024)]
)
def test_squared_errors_fall_as_one_over_the_sweeps(model, chains):
    (exact, asked), generator = exact_answers(model), seeded()
    errors, posterior = [], None
    for sweeps in (16, 112):
        estimator = rg.RandomizedPruning(
            sweeps, warm_up=16, selected=Alternating(share=1 / 3), resume=posterior, chains=chains
        )
        posterior = rg.infer(model, estimator=estimator, generator=generator)
        runs = torch.stack([run.answers.flatten()[asked] for run in runs_of(posterior)])
        errors.append(float((runs - exact).square().sum()))
    slope = math.log(errors[1] / errors[0]) / math.log(8)
    assert -1.2 < slope < -0.8


def even(model):
    """A chain with weaker potentials: no answer is nearly certain, where few sweeps would do."""
    return model.with_unary(0.3 * model.unary)


@pytest.mark.long
@pytest.mark.parametrize("model", [chain(3, 2), even(hypertree(4, 1)), graph()])
def test_intervals_cover_the_exact_expectations_as_often_as_they_say(model):
    exact, asked = exact_answers(model)
    posterior = pruned(model, 100, selected=Alternating(share=1 / 3), chains=150)
    covered = []
    for run in runs_of(posterior):
        low, high = (end.flatten()[asked] for end in run.answer_interval(0.9))
        covered.append((low <= exact) & (exact <= high))
    assert 0.85 <= float(torch.stack(covered).double().mean()) <= 0.95


@pytest.mark.long
def test_intervals_of_rare_answers_know_how_seldom_chains_move():
    model = rg.Chain(draw(60, 6, 5), 15.0 * (torch.eye(5, dtype=torch.float64) - 1))
    low, high = sweeps_of(pruned(model, 50, chains=4)).answer_interval(0.9)
    exact = model.marginals()
    assert float(((low <= exact) & (exact <= high)).double().mean()) >= 0.88


@pytest.mark.parametrize("depth", [4.0, 9.0, 14.0])
def test_a_rare_no_has_the_error_of_a_rare_yes(depth):
    """The two states of a step have probabilities p and 1 - p, and one error."""
    unary = torch.randn(5, 2, generator=seeded(), dtype=torch.float64)
    unary[:, 1] -= depth
    model = rg.Chain(unary, torch.tensor([[0.0, -1.0], [-1.0, 5.0]], dtype=torch.float64))
    estimator = rg.RandomizedPruning(60, selected=Alternating(share=1 / 3), chains=4)
    solution = sweeps_of(rg.infer(model, estimator=estimator, generator=seeded()))
    no, yes = solution.standard_error.unbind(-1)
    torch.testing.assert_close(no, yes)
    exact = rg.infer(model).marginals()
    off = (solution.answers - exact).abs()
    assert bool((off <= 10 * solution.standard_error + 1e-9).all())


@pytest.mark.long
@pytest.mark.parametrize("model", [bitext(2, 3), hypertree(5, 2), chain(), mixed(2, 2), graph()])
def test_soft_counts_beat_hard_ones_at_every_budget(model):
    (exact, asked), generator = exact_answers(model), seeded()
    run = sweeps_of(pruned(model, 1, chains=64, selected=Alternating(share=1 / 3))).run
    soft = hard = torch.zeros(64, len(exact), dtype=torch.float64)
    for sweeps in range(1, 17):
        sweep = run.sampler.step(run.state, generator)
        run = replace(run, state=sweep.state)
        soft = soft + sweep.expected.answers.flatten(1)[:, asked]
        hard = hard + sweep.state.draw.answers.flatten(1)[:, asked].double()
        if sweeps in (1, 4, 16):
            errors = [(own / sweeps - exact).square().sum() for own in (soft, hard)]
            assert errors[0] < errors[1]
