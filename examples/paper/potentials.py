"""The potentials of the paper's unit cases, and exact answers to compare with.

Fu, Cunningham and Lapata 2022, section 5.1, as their released code has it: embeddings of the states
and of the words are uniform in (0, 1) and are trained for a few steps to lower the mean entropy of
the local softmax; then transitions and emissions are centred and scaled to a range of ten nats.

The three kinds of the released code hardly differ: at 2,000 states their chains have entropies of
28.4, 28.8 and 29.2 nats. The paper's own at 2,000 states, of a trained network, are far apart, and
not public. `of_entropy` makes chains of a given entropy from these: all potentials of a chain are
multiplied by the one number that gives it.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

import rdpgraph as rg

STEPS, DIM, RANGE = 10, 50, 10.0
KINDS = {"dense": 10, "intermediate": 30, "long-tail": 50}  # steps of training
NATS = {"dense": 35.0, "intermediate": 18.0, "long-tail": 6.0}  # of the paper's at 2,000 states


@dataclass(frozen=True)
class Case:
    """One chain of the experiments.

    Attributes:
        chain: its transition by embeddings, so that estimators form no table of all pairs.
        norms: (N,) L1 norms of the state embeddings as they were trained.
        name: which chain this is.
    """

    chain: rg.Chain
    norms: Tensor
    name: str = ""

    @property
    def model(self) -> rg.Chain:
        """The chain, as other cases have trees."""
        return self.chain


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
    name = f"{kind}, {states} states, {steps} steps, seed {seed}"
    return Case(rg.Chain(unary, rg.Bilinear(left, right)), embeddings.abs().sum(1), name)


def tabulated(chain: rg.Chain) -> rg.Chain:
    """The same with its transition written out, for exact answers."""
    assert isinstance(chain.transition, rg.extend.Potential)
    return rg.Chain(chain.unary, chain.transition.table(2))


def scaled(one: Case, by: float) -> Case:
    """All potentials times a number; the norms of the embeddings stay as they were trained."""
    pairs = one.chain.transition
    assert isinstance(pairs, rg.Bilinear)
    chain = rg.Chain(by * one.chain.unary, rg.Bilinear(by * pairs.left, pairs.right))
    return replace(one, chain=chain)


def scale_of(one: Case, nats: float) -> float:
    """The number that potentials are multiplied by for a chain of that entropy, to a thousandth.

    By bisection: in the products here the entropy falls as the number rises.
    """
    table = tabulated(one.chain)
    unary, transition = table.unary, table.transition
    assert isinstance(transition, Tensor)
    low, high = 0.0, 1.0

    def entropy(by: float) -> float:
        return float(rg.Chain(by * unary, by * transition).entropy())

    while entropy(high) > nats:
        low, high = high, 2.0 * high
    while high - low > 1e-6:
        middle = (low + high) / 2
        found = entropy(middle)
        if abs(found - nats) < 1e-3:
            return middle
        low, high = (middle, high) if found > nats else (low, middle)
    return (low + high) / 2
