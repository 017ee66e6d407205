"""The trees of the paper's Table 2, and others that have rules, for tables.py.

The paper's potentials are those of its released code. No rules join the states of spans, and
as scores are scaled to one range span by span, all spans have the same: a sum over states for each
span, to the power of their number. Beside them are trees whose rules have rank 16: log-factors are
normal, of deviation 1 or 2, and every span has scores of its own. The paper's setting is a uniform
proposal, K / 2 states of the largest score and as many draws.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

import rdpgraph as rg

WORDS = {2000: 15, 10_000: 5}
DIM = {2000: 100, 10_000: 50}
STEPS = {"dense": 0, "intermediate": 30, "long-tail": 50}  # of training
RULES = {"rules": 1.0, "sharp rules": 2.0}  # deviation of the log-factors
RANK, RANGE = 16, 10.0


def spread(scores: Tensor) -> Tensor:
    """Every row scaled to a range of ten nats."""
    low, high = scores.amin(-1, keepdim=True), scores.amax(-1, keepdim=True)
    return (scores - low) * (RANGE / (high - low))


def degenerate(kind: str, *, states: int, words: int, seed: int) -> rg.Hypertree:
    """The released code's: what it adds to a state's score from the words is scaled away."""
    generator = torch.Generator().manual_seed(seed)
    embeddings = torch.rand(states, DIM.get(states, 50), generator=generator).requires_grad_()
    optimizer = torch.optim.Adam([embeddings], lr=1e-4)
    for _ in range(STEPS[kind]):
        loss = torch.distributions.Categorical(logits=spread(embeddings.sum(1))).entropy()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return rg.Hypertree(spread(embeddings.detach().sum(1)).expand(words, words, states))


def ruled(kind: str, *, states: int, words: int, seed: int) -> rg.Hypertree:
    """Scores of spans by the embeddings of their ends, and random rules of low rank."""
    generator = torch.Generator().manual_seed(seed)
    embeddings = torch.randn(states, 50, generator=generator)
    ends = torch.randn(2, words, 50, generator=generator)
    scores = (ends[0].unsqueeze(1) + ends[1]) @ embeddings.mT
    factors = (RULES[kind] * torch.randn(states, RANK, generator=generator) for _ in range(3))
    return rg.Hypertree(spread(scores), rg.trees.LowRankRules(*factors))


@dataclass(frozen=True)
class Case:
    """One tree of the experiments, by its name."""

    model: rg.Hypertree
    name: str


def case(kind: str, *, states: int, seed: int) -> Case:
    """A tree of the given kind: dense, intermediate, long-tail, rules or sharp rules."""
    make, words = ruled if kind in RULES else degenerate, WORDS.get(states, 6)
    model = make(kind, states=states, words=words, seed=seed)
    return Case(model, f"hypertree, {kind}, {states} states, {words} words, seed {seed}")


def paper(_: Case, keep: int) -> rg.Randomized:
    """The paper's setting: half the states by their scores, and as many uniform draws."""
    half = keep // 2
    return rg.Randomized(
        rg.randomized.Uniform(), rg.randomized.TopTail(half, keep - half), defensive=0.0
    )


def top(_: Case, keep: int) -> rg.Randomized:
    """The K of the largest scores, and no correction."""
    return rg.Randomized(rg.randomized.Local(), rg.randomized.Top(keep), defensive=0.0)
