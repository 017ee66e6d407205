"""Small chains with hard zeros, and all their sequences."""

import math
from itertools import product

import torch

from rdpgraph import Chain

KINDS = ("shared", "per step", "batched")
SHAPES = [(3, 4), (2, 5), (1, 3), (3, 1), (2, 0)]
"""Numbers of states, and of steps."""


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def chains(kind, *, seed=0, states=3, total=4, zeros=0.2, whole=False):
    """A batch of chains, one of each length 0..total: unary, transition, lengths.

    ``whole`` makes potentials small integers, so that many sequences tie.
    """
    generator = seeded(seed)
    batch = total + 1
    lead = {"shared": (), "per step": (1,), "batched": (batch,)}[kind]
    steps = () if kind == "shared" else (max(total - 1, 0),)
    made = []
    for shape in ((batch, total, states), (*lead, *steps, states, states)):
        values = torch.randn(shape, generator=generator, dtype=torch.float64) * 2
        values = values.round() if whole else values
        gone = torch.rand(shape, generator=generator) < zeros
        made.append(values.masked_fill(gone, -math.inf))
    return *made, torch.randperm(batch, generator=generator)


def item_of(unary, transition, lengths, item):
    """One item as a batch of its own."""
    batched = transition.ndim == 4 and transition.shape[0] > 1
    own = transition[item : item + 1] if batched else transition
    return unary[item : item + 1], own, lengths[item : item + 1]


def chain_of(unary, transition, lengths):
    """The same by its public name."""
    return Chain(unary, transition, lengths=lengths)


def possible_items(unary, transition, lengths):
    """The items that have a possible sequence, and how many have none."""
    log_z = Chain(unary, transition, lengths=lengths).log_partition()
    some = (log_z > -math.inf).nonzero().squeeze(1)
    batched = transition.ndim == 4 and transition.shape[0] > 1
    own = transition[some] if batched else transition
    return (unary[some], own, lengths[some]), len(lengths) - len(some)


def sequences(unary, transition, lengths, item):
    """All sequences of one item, (C, length), and their scores, (C,); differentiable."""
    unary, transition, lengths = item_of(unary, transition, lengths, item)
    length, states = int(lengths[0]), unary.shape[2]
    listed = torch.tensor(list(product(range(states), repeat=length)), dtype=torch.long)
    listed = listed.reshape(states**length, length)
    scores = unary.new_zeros(len(listed))
    for step in range(length):
        scores = scores + unary[0, step, listed[:, step]]
        if step:
            matrix = transition if transition.ndim == 2 else transition[0, step - 1]
            scores = scores + matrix[listed[:, step - 1], listed[:, step]]
    return listed, scores
