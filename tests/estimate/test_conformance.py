"""The checks of proposals and selections: ours pass, and each kind of mistake is caught."""

import math
from dataclasses import dataclass

import pytest
import torch

import rdpgraph as rg
from rdpgraph.extend import Support
from rdpgraph.randomized import (
    Global,
    Landmark,
    Local,
    LocalGlobal,
    Mixture,
    Oracle,
    Pilot,
    Proposal,
    Selection,
    SoftmaxGlobal,
    Threshold,
    Top,
    TopSystematic,
    TopTail,
    Uniform,
)
from rdpgraph.testing import check_proposal, check_selection


@pytest.mark.long
@pytest.mark.parametrize(
    "selection",
    [
        Top(3),
        Top(0.5),
        TopTail(1, 2),
        TopTail(0, 3),
        TopSystematic(1, 2),
        Threshold(3),
        TopTail(1, 4),
    ],
    ids=repr,
)
def test_selections_that_are_built_in(selection):
    check_selection(selection)


@pytest.mark.long
@pytest.mark.parametrize(
    "proposal",
    [
        Uniform(),
        Local(),
        Global(),
        SoftmaxGlobal(),
        LocalGlobal(),
        Landmark(2),
        Pilot(),
        Pilot(selection=TopTail(1, 1)),
        Mixture((Local(), Uniform()), (2.0, 1.0)),
        Mixture((Pilot(), Local()), (1.0, 1.0)),
        Oracle(),
    ],
    ids=lambda proposal: type(proposal).__name__,
)
def test_proposals_that_are_built_in(proposal):
    check_proposal(proposal)


@dataclass(frozen=True)
class Gumbel(Selection):
    """Draws with replacement by Gumbel noise: no function of a few uniform numbers."""

    draws: int
    weight: float = 1.0
    shared: bool = False
    dead: float = -math.inf

    def select(self, log_q, generator):
        log_q = torch.where(log_q > -math.inf, log_q, self.dead)
        shape = (*log_q.shape[:-2], 1, log_q.shape[-1]) if self.shared else log_q.shape
        uniform = torch.rand(self.draws, *shape, generator=generator, dtype=torch.float64)
        states = (log_q - (-uniform.clamp(min=1e-300).log()).log()).argmax(-1).movedim(0, -1)
        some = (log_q > -math.inf).any(-1, keepdim=True)
        q = log_q - log_q.logsumexp(-1, keepdim=True)
        weights = -q.gather(-1, states) - math.log(self.draws * self.weight)
        return Support(states, torch.where(some, weights, -math.inf).to(log_q))


def test_a_selection_that_cannot_be_enumerated():
    check_selection(Gumbel(2))


class Unweighted(TopTail):
    def choose(self, log_q, uniforms):
        support = super().choose(log_q, uniforms)
        alive = torch.where(support.log_weights > -math.inf, 0.0, -math.inf)
        return Support(support.states, alive.to(log_q))


class Twice(Top):
    def choose(self, log_q, uniforms):
        one = super().choose(log_q, uniforms)
        both = torch.cat([one.states, one.states], -1)
        return Support(both, torch.cat([one.log_weights, one.log_weights], -1))


@dataclass(frozen=True)
class Forgetful(Selection):
    def select(self, log_q, generator):
        return TopTail(1, 2).select(log_q, None)


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        (Unweighted(1, 2), "expected weight"),
        (Twice(2), "above one"),
        (Gumbel(2, weight=1.05), "mean weight"),
        (Gumbel(1, shared=True), "independently"),
        (Gumbel(2, dead=-1.0), "score -inf"),
        (Forgetful(), "same seed"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_wrong_selections_are_caught(selection, message):
    with pytest.raises(AssertionError, match=message):
        check_selection(selection)


@dataclass(frozen=True)
class Scored(Proposal):
    """Scores by a function of a site's own potential."""

    scores: object

    def log_scores(self, sites):
        return self.scores(sites.unary)


def test_scores_may_have_a_dim_of_one():
    check_proposal(Scored(lambda unary: torch.zeros(unary.shape[-1]).to(unary)))


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        (lambda unary: unary.expand(2, *unary.shape), "broadcast"),
        (lambda unary: unary[..., :2], "broadcast"),
        (lambda unary: unary * math.nan, "NaN"),
        (lambda unary: torch.where(unary == unary.amax(-1, keepdim=True), 0.0, -math.inf), "score"),
        (lambda unary: unary - unary.clamp(min=-9).mean(), "one batch item"),
    ],
    ids=["larger", "smaller", "not a number", "states missed", "batch mixed"],
)
def test_wrong_proposals_are_caught(scores, message):
    with pytest.raises((AssertionError, rg.errors.ModelError), match=message):
        check_proposal(Scored(scores))
