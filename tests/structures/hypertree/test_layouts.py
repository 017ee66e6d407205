"""What layouts of trees keep between questions."""

import gc

import torch

import rdpgraph as rg


def indices():
    """The numbers of the largest tensors of integers that are alive."""
    gc.collect()
    return sum(
        own.numel()
        for own in gc.get_objects()
        if type(own) is torch.Tensor and own.dtype == torch.int64 and own.numel() > 500
    )


def test_the_places_of_long_sentences_are_not_kept():
    before = indices()
    for words in range(65, 69):
        arcs = torch.zeros(words, words + 1)
        assert rg.ProjectiveDependencies(arcs).mode().shape == (words,)
        spans = torch.zeros(words, words, 1)
        assert rg.Hypertree(spans).mode().shape == (words, words)
    assert indices() <= before + 1_000
