"""What every model that can be masked must do."""

import math

import torch
from torch import Tensor

from rdpgraph._agreement import agree as _agree
from rdpgraph._agreement import close as _close
from rdpgraph._agreement import seeded as _seeded
from rdpgraph.estimate.problem import Model
from rdpgraph.estimate.pruning.questions import masks_of
from rdpgraph.infer import infer
from rdpgraph.model.masks import Expected, Masks
from rdpgraph.model.structure import Structure

_MOST = 12
"""Questions that are answered both ways."""


def check_masks(model: Model) -> None:
    """Hold the masks of a model against the model itself.

    Without a mask log Z, marginals and the expected score are the model's. Of every question the
    masses of a yes and of a no add up to Z, and are what the expected answers say; and so they do
    where answers of a draw are held. Draws keep to their masks.

    Args:
        model: small, of float64, every item possible.
    """
    masks, generator = masks_of(model, infer), _seeded()
    none = torch.zeros(1, *masks.batch_shape, *masks.questions, dtype=torch.bool)
    unmasked = masks.masked(none, none)
    exact = infer(model)
    _close(unmasked.log_partition[0], exact.log_partition.double(), "log Z without a mask")
    averages = unmasked.expected()
    if isinstance(model, Structure):
        marginals = model.marginals().double()
        _close(_dense(averages, masks), marginals.flatten(), "marginals without a mask")
        if model.entropy() is not None:
            score = exact.log_partition - exact.entropy()
            _close(averages.score[0], score.double(), "the expected score without a mask")
    drawn = unmasked.draw(generator).answers
    asked = masks.open().expand_as(none)
    for held in (none, asked & (torch.rand(none.shape, generator=generator) < 0.4)):
        required, forbidden = held & drawn, held & ~drawn
        within = masks.masked(required, forbidden)
        base, answers = within.log_partition, within.expected().answers
        again = within.draw(generator).answers
        same = bool((again[held] == drawn[held]).all())
        _agree(same, "draws from a mask keep the answers held")
        free = (asked & ~held).reshape(base.numel(), masks.questions_count)
        places = free.any(0).nonzero()[:, 0]
        order = torch.randperm(len(places), generator=generator)[:_MOST]
        for place in places[order].tolist():
            question = torch.zeros(masks.questions_count, dtype=torch.bool)
            question[place] = True
            question = question.reshape(masks.questions) & asked & ~held
            yes = masks.masked(required | question, forbidden).log_partition
            no = masks.masked(required, forbidden | question).log_partition
            there = question.flatten(base.ndim).any(-1)
            total = torch.where(there, torch.logaddexp(yes, no), base)
            _close(total, base, "the masses of a yes and a no add up to Z")
            share = torch.where(question, answers, 0.0).flatten(base.ndim).sum(-1)
            alive = there & (base > -math.inf)
            expected = torch.where(alive, (yes - base).exp(), 0.0)
            _close(expected, torch.where(alive, share, 0.0), "the expected answer to a question")


def _dense(averages: Expected, masks: Masks) -> Tensor:
    size = math.prod(masks.batch_shape) * math.prod(masks.sites)
    dense = torch.zeros(size, dtype=torch.float64)
    return dense.index_add_(0, averages.places, averages.chances)
