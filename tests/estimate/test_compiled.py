"""Scores and selections in compiled code against those on torch, which serve GPUs."""

import math

import pytest
import torch
from torch.testing import assert_close

from rdpgraph.estimate.proposals import mixed
from rdpgraph.estimate.selections import Threshold, TopSystematic
from rdpgraph.native import library
from tests.estimate.models import seeded


@pytest.fixture
def both(monkeypatch):
    """Calls a function with compiled code, and then without it."""

    def call(function):
        with_it = function()
        with monkeypatch.context() as without:
            without.setattr(library, "available", lambda *_: False)
            return with_it, function()

    return call


def scores(case, dtype):
    """(3, N) scores of one of many kinds: of all spreads, sorted, with hard zeros, far apart."""
    generator = seeded(case)
    states = int(torch.randint(2, 300, (), generator=generator))
    spread = 10.0 ** float(4.0 * torch.rand((), generator=generator) - 2.0)
    values = spread * torch.randn(3, states, generator=generator, dtype=torch.float64)
    if case % 3 == 0:
        values = values.sort(-1).values
    if case % 5 == 0:
        absent = torch.rand(3, states, generator=generator) < (0.6 if case % 2 else 1.0)
        values = torch.where(absent, -math.inf, values)
    if case % 7 == 0:
        values[:, : states // 2] -= 1000.0
    return values.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["threshold", "half", "most"])
def test_systematic_samples_are_those_of_torch(both, kind, dtype):
    for case in range(60):
        given = scores(case, dtype)
        states = given.shape[-1]
        keep = 1 + case * 17 % (states - 1)
        top = {"threshold": 0, "half": keep // 2, "most": keep - 1}[kind]
        selection = TopSystematic(top, keep - top) if top else Threshold(keep)

        def choose(selection=selection, given=given, case=case):
            return selection.select_each(given, 2, seeded(case))

        ours, theirs = both(choose)
        assert_close(ours.log_weights, theirs.log_weights, rtol=1e-5, atol=1e-5)
        # Entries of weight zero may hold any state, and of equal scores either may be the first.
        kept = ours.log_weights > -math.inf
        equal = given.expand(2, 3, -1).gather(-1, ours.states) == given.expand(2, 3, -1).gather(
            -1, theirs.states
        )
        assert bool((~kept | (ours.states == theirs.states) | equal).all())


def test_a_state_that_is_far_below_the_largest_is_certain_where_there_is_room(both):
    """Three states of 800 nats and more apart, and a crowd far below: the three are certain."""
    row = torch.full((1, 50), -4000.0)
    row[0, :3] = torch.tensor([0.0, -800.0, -1600.0])
    for support in both(lambda: Threshold(10).select(row, seeded(1))):
        assert support.states[0, :3].tolist() == [0, 1, 2]
        assert support.log_weights[0, :3].tolist() == [0.0, 0.0, 0.0]
        assert_close(support.log_weights[0, 3:], torch.full((7,), math.log(47 / 7)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_means_of_scores_are_those_of_torch(both, dtype):
    for case in range(60):
        every = scores(case, dtype)
        parts = [every, every[0].flip(-1), every.flip(-1) * 0.5]
        parts = parts[case % 3 :] + parts[: case % 3]
        ours, theirs = both(lambda parts=parts: mixed([(p,) for p in parts], (0.3, 0.5, 0.2)))
        assert ours[0].dtype == dtype
        assert_close(ours[0], theirs[0])
        assert_close(every, scores(case, dtype))  # what was given is as it was


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_a_number_stays_for_the_selection_to_refuse(both, bad):
    good, wrong = torch.zeros(2, 40), torch.zeros(2, 40)
    wrong[0, 3] = bad
    none = torch.full((2, 40), -math.inf)
    for pair in ((good, wrong), (wrong, good), (none, wrong), (wrong, none)):
        for (mean,) in both(lambda pair=pair: mixed([(part,) for part in pair], (0.5, 0.5))):
            assert not bool(mean[0].amax() < math.inf)
