"""Layouts of trees that are cached between questions."""

import gc

import pytest
import torch

import rdpgraph as rg
from rdpgraph._core import tuning


def indices():
    """The numbers of the largest tensors of integers that are alive."""
    gc.collect()
    return sum(
        own.numel()
        for own in gc.get_objects()
        if type(own) is torch.Tensor and not own.is_floating_point() and own.numel() > 500
    )


@pytest.mark.long
def test_the_places_of_long_sentences_take_no_more_than_is_allowed(monkeypatch):
    most, before = 2**19, indices()
    monkeypatch.setattr(tuning, "KEPT_LAYOUTS", most)
    for words in range(65, 69):
        arcs = torch.zeros(words, words + 1)
        assert rg.ProjectiveDependencies(arcs).mode().shape == (words,)
        spans = torch.zeros(words, words, 1)
        assert rg.Hypertree(spans).mode().shape == (words, words)
    assert indices() - before < 2 * most  # in the program, and in the steps
