"""
Who is who: tracks and detections
=================================

A sensor sees where things are, with noise; it misses some, and sees some that are not there. Which
detection belongs to which track? Greedy choices, the best assignment and the probabilities of
`Matching` are compared with the truth, over 30 scenes at each level of noise.
"""

import math

import matplotlib.pyplot as plt
import numpy as np
import torch
from scipy.optimize import linear_sum_assignment

import rdpgraph as rg

generator = torch.Generator().manual_seed(0)
tracks, scenes, seen, clutter, size = 30, 30, 0.9, 6, 14.0

# %%
# The log-odds of a pair compare "this detection is of this track" with "the track was missed, and
# the detection is of nothing". Pairs that are more than three and a half standard deviations apart
# are gated.


def scene(noise: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-odds (tracks, detections), and the detection of each track, -1 where it was missed."""
    places = size * torch.rand(tracks, 2, generator=generator, dtype=torch.float64)
    found = (torch.rand(tracks, generator=generator) < seen).nonzero()[:, 0]
    ghosts = size * torch.rand(clutter, 2, generator=generator, dtype=torch.float64)
    moved = noise * torch.randn(len(found), 2, generator=generator, dtype=torch.float64)
    detections = torch.cat([places[found] + moved, ghosts])
    order = torch.randperm(len(detections), generator=generator)
    truth = torch.full((tracks,), -1)
    truth[found] = order.argsort()[: len(found)]
    apart = ((places.unsqueeze(1) - detections[order]) ** 2).sum(-1) / noise**2
    density = -apart / 2 - math.log(2 * math.pi * noise**2)
    odds = density + math.log(seen / (1 - seen)) - math.log(clutter / size**2)
    return torch.where(apart < 12.25, odds, -math.inf), truth


def greedy(odds: torch.Tensor) -> torch.Tensor:
    """The best pair first, then the best of those that are left, while its log-odds are above 0."""
    left, partners = odds.clone(), torch.full((len(odds),), -1)
    while left.numel() and left.max() > 0:
        row, column = divmod(int(left.argmax()), left.shape[1])
        partners[row] = column
        left[row], left[:, column] = -math.inf, -math.inf
    return partners


def assigned(odds: torch.Tensor) -> torch.Tensor:
    """The best assignment by SciPy, with a column of its own for each track that is missed."""
    none = np.where(np.eye(len(odds)) > 0, 0.0, -1e6)
    scores = np.concatenate([odds.clamp(min=-1e6).numpy(), none], 1)
    _, column = linear_sum_assignment(scores, maximize=True)
    return torch.from_numpy(np.where(column < odds.shape[1], column, -1))


# %%
# `Matching` gives the best assignment too, and the probability of every pair, in which all other
# matchings count: the choice of the most probable detection of each track makes fewest errors.

levels = [0.2, 0.4, 0.6, 0.8]
right = {name: [0.0] * len(levels) for name in ("greedy", "SciPy", "mode", "marginals")}
said: list[torch.Tensor] = []
true: list[torch.Tensor] = []
for level, noise in enumerate(levels):
    for _ in range(scenes):
        odds, truth = scene(noise)
        model = rg.Matching(odds)
        chances = model.marginals()[..., 1]
        alone = 1 - chances.sum(1, keepdim=True)
        best = torch.cat([chances, alone], 1).argmax(1)
        choices = {
            "greedy": greedy(odds),
            "SciPy": assigned(odds),
            "mode": model.partners(model.mode()),
            "marginals": torch.where(best < odds.shape[1], best, -1),
        }
        for name, choice in choices.items():
            right[name][level] += float((choice == truth).double().mean()) / scenes
        there = odds > -math.inf
        said.append(chances[there])
        true.append((torch.arange(odds.shape[1]) == truth.unsqueeze(1))[there].double())
for name, shares in right.items():
    print(f"{name:10}", *(f"{share:.3f}" for share in shares))

# %%
# Where a probability of .7 is given, seven of ten pairs are true.

chances, hits = torch.cat(said), torch.cat(true)
group = (10 * chances).long().clamp(max=9)
means = [float(chances[group == at].mean()) for at in range(10)]
shares = [float(hits[group == at].mean()) for at in range(10)]

figure, (left, last) = plt.subplots(1, 2, figsize=(9, 3.6))
for name, style in (("greedy", ":"), ("mode", "--"), ("marginals", "-")):
    left.plot(levels, right[name], style, marker="o", label=name)
left.set_xlabel("noise")
left.set_title("tracks that are right")
left.legend()
last.plot([0, 1], [0, 1], color="0.8")
last.plot(means, shares, marker="o")
last.set_xlabel("probability of a pair")
last.set_title("share of true pairs")
figure.tight_layout()
