"""Pairs of labels that are not kept on the way up, and choices among many alternatives."""

import math

import pytest
import torch
from torch.testing import assert_close

from rdpgraph._core import tuning
from rdpgraph.structures.draws import drawn
from tests.structures.tape.models import RULES, Spans, draw


@pytest.fixture
def made_again(monkeypatch):
    def start():
        monkeypatch.setattr(tuning, "CACHE_BLOCK", 8)

    return start


@pytest.mark.long
def test_pairs_that_are_made_again_answer_as_those_that_are_kept(made_again):
    def answers():
        spans = Spans(draw(2, 4, 4, 2), RULES["dense"])
        draws = spans.sample(50, torch.Generator().manual_seed(0))
        return spans.max_marginals(), spans.mode(), spans.k_best(5).scores, spans.score(draws)

    kept = answers()
    made_again()
    again = answers()
    for one, other in zip(kept[:3], again[:3], strict=True):
        assert_close(one, other)
    # Of all draws together, for the noise is drawn in other pieces.
    assert_close(kept[3].mean(), again[3].mean(), atol=0.5, rtol=0.0)


@pytest.mark.long
def test_a_choice_among_many_is_in_proportion_and_never_impossible():
    logs = draw(400) * 2
    logs[::3] = -math.inf
    rows = logs.expand(20_000, -1)
    counts = torch.bincount(drawn(torch.Generator().manual_seed(0))(rows), minlength=400)
    chances = logs.double().softmax(0)
    assert not counts[::3].any()
    gaps = counts - len(rows) * chances
    spread = (len(rows) * chances * (1 - chances)).sqrt().clamp(min=1.0)
    assert float((gaps / spread).abs().max()) < 5.0
