"""Pairs of labels that are not kept on the way up, and choices among many alternatives."""

import math

import pytest
import torch
from torch.testing import assert_close

from tests.structures.tape.models import RULES, Spans, Tags, draw


@pytest.mark.long
def test_pairs_that_are_made_again_answer_as_those_that_are_kept(small_blocks):
    def answers():
        spans = Spans(draw(2, 4, 4, 2), RULES["dense"])
        draws = spans.sample(50, torch.Generator().manual_seed(0))
        return spans.max_marginals(), spans.mode(), spans.k_best(5).scores, spans.score(draws)

    kept = answers()
    small_blocks(8)
    again = answers()
    for one, other in zip(kept[:3], again[:3], strict=True):
        assert_close(one, other)
    # Of all draws together, for the noise is drawn in other pieces.
    assert_close(kept[3].mean(), again[3].mean(), atol=0.5, rtol=0.0)


@pytest.mark.long
def test_a_choice_among_many_is_in_proportion_and_never_impossible():
    logs = draw(400) * 2
    logs[::3] = -math.inf
    states = Tags(logs.unsqueeze(0), torch.zeros(400, 400)).sample(
        20_000, torch.Generator().manual_seed(0)
    )
    counts = torch.bincount(states.flatten(), minlength=400)
    chances = logs.double().softmax(0)
    assert not counts[::3].any()
    gaps = counts - len(states) * chances
    spread = (len(states) * chances * (1 - chances)).sqrt().clamp(min=1.0)
    assert float((gaps / spread).abs().max()) < 5.0
