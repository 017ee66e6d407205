"""The potentials of the paper's unit cases, and exact answers to compare with.

Fu, Cunningham and Lapata 2022, section 5.1, as their released code has it: embeddings of the states
and of the words are uniform in (0, 1) and are trained for a few steps to lower the mean entropy of
the local softmax; then transitions and emissions are centred and scaled to a range of ten nats.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

import rdpgraph as rg

STEPS, DIM, RANGE = 10, 50, 10.0
KINDS = {"dense": 10, "intermediate": 30, "long-tail": 50}  # steps of training


@dataclass(frozen=True)
class Case:
    """One chain of the experiments.

    Attributes:
        chain: its transition by embeddings, so that estimators form no table of all pairs.
        norms: (N,) L1 norms of the state embeddings as they were trained.
    """

    chain: rg.Chain
    norms: Tensor


def case(kind: str, *, states: int, seed: int, steps: int = STEPS) -> Case:
    """A chain of the given kind: dense, intermediate or long-tail."""
    generator = torch.Generator().manual_seed(seed)
    embeddings = torch.rand(states, DIM, generator=generator).requires_grad_()
    words = torch.rand(steps, DIM, generator=generator).requires_grad_()
    optimizer = torch.optim.Adam([embeddings, words], lr=1e-4)
    for _ in range(KINDS[kind]):
        local = torch.distributions.Categorical(logits=words @ embeddings.mT)
        loss = local.entropy().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    embeddings, words = embeddings.detach(), words.detach()
    emission = words @ embeddings.mT
    low, high = emission.amin(1, keepdim=True), emission.amax(1, keepdim=True)
    unary = (emission - emission.mean(1, keepdim=True)) * (RANGE / (high - low))
    # The table's mean and range, without the table.
    mean = embeddings.mean(0) @ embeddings.mean(0)
    lows, highs = zip(
        *((part.min(), part.max()) for part in (e @ embeddings.mT for e in embeddings.split(500))),
        strict=True,
    )
    scale = RANGE / (torch.stack(highs).max() - torch.stack(lows).min())
    one = torch.ones(states, 1)
    left = torch.cat([scale * embeddings, -scale * mean * one], 1)
    right = torch.cat([embeddings, one], 1)
    return Case(rg.Chain(unary, rg.Bilinear(left, right)), embeddings.abs().sum(1))


def tabulated(chain: rg.Chain) -> rg.Chain:
    """The same with its transition written out, for exact answers."""
    assert isinstance(chain.transition, rg.extend.Potential)
    return rg.Chain(chain.unary, chain.transition.table(2))
