"""
Labels for the pixels of a picture
==================================

A picture is seen with noise, and each pixel gets one of a few levels of grey: the labelling of
least cost, with a bound that says how far from the best it can be, and a map of doubt. Then a pair
of views gives the distance of each pixel. :doc:`../jobs/pictures` says when cuts are the better
tool.
"""

import sys

import matplotlib.pyplot as plt
import torch

import rdpgraph as rg

side = 32 if "--quick" in sys.argv else 96
generator = torch.Generator().manual_seed(0)
rows, columns = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")


def picture(costs, ties):
    """The pixels, and costs of their labels and of those of neighbours as a graph."""
    pixel = rg.VariableArray("pixel", tuple(costs.shape[:2]), costs.shape[2])
    smooth = rg.Table.from_logs(-ties)
    return pixel, rg.FactorGraph(
        [
            rg.FactorBlock((pixel,), rg.Table.from_logs(-costs)),
            rg.FactorBlock((pixel[1:], pixel[:-1]), smooth),
            rg.FactorBlock((pixel[:, 1:], pixel[:, :-1]), smooth),
        ]
    )


def inside(centre, radius):
    """The pixels of a disc, in parts of the side."""
    gaps = (rows - centre[0] * side) ** 2 + (columns - centre[1] * side) ** 2
    return gaps < (radius * side) ** 2


# %%
# The picture: discs before a slope, in eight levels of grey, and noise of a level and a half.

levels = 8
true = (columns * 3) // side
true[inside((0.35, 0.3), 0.2)] = 6
true[inside((0.6, 0.65), 0.25)] = 4
true[inside((0.65, 0.6), 0.1)] = 7
noise = 1.5
seen = true + noise * torch.randn(side, side, generator=generator)
level = torch.arange(levels)
costs = (seen[..., None] - level) ** 2 / (2 * noise**2)

# %%
# Neighbours cost more the more they differ, up to a limit: an edge costs the same however high. The
# mode has a certain bound, and messages give the probability of each level.

ties = (0.9 * (level[:, None] - level).abs()).clamp(max=2.5)
pixel, graph = picture(costs, ties)
posterior = rg.infer(graph)
best = posterior.mode()
cost, least = -float(graph.score(best)), -float(posterior.mode_bound())
labels, gap = best[pixel], cost - least
chances = rg.infer(graph, scheduler=rg.Loopy(tolerance=1e-3)).marginal(pixel)
doubt = 1.0 - chances.amax(-1)
before = float((seen.round().clamp(0, levels - 1) != true).double().mean())
after = float((labels != true).double().mean())
print(f"The labelling costs {cost:.1f}, and none costs less than {least:.1f}.")
print(f"{before:.1%} of the pixels were wrong, and {after:.1%} are.")

# %%
# A pair of views of textured things at different distances: each pixel of the left view is found in
# the right one, shifted by what the distance says.

shifts = 6
texture = torch.rand(side, side + shifts, generator=generator)
distance = torch.ones(side, side, dtype=torch.long)
distance[inside((0.4, 0.4), 0.25)] = 4
distance[inside((0.7, 0.7), 0.18)] = 5
right = texture[:, :side]
left = right.gather(1, (columns - distance).clamp(min=0))
left = left + 0.05 * torch.randn(side, side, generator=generator)
gaps = torch.full((side, side, shifts), 0.3)
for shift in range(shifts):
    gaps[:, shift:, shift] = (left[:, shift:] - right[:, : side - shift]).abs().clamp(max=0.3)
shift = torch.arange(shifts)
pair, views = picture(15.0 * gaps, (0.8 * (shift[:, None] - shift).abs()).clamp(max=1.6))
found = rg.infer(views).mode()[pair]
right_distances = float((found == distance).double().mean())
print(f"{right_distances:.1%} of the distances are right.")

# %%

figure, axes = plt.subplots(2, 3, figsize=(9, 6))
shown = {
    "seen": seen, "labels": labels, "doubt": doubt, "left view": left, "found": found,
    "true distances": distance,
}  # fmt: skip
for place, (name, values) in zip(axes.flat, shown.items(), strict=True):
    place.imshow(values, cmap="magma" if name == "doubt" else "gray")
    place.set_title(name)
    place.axis("off")
figure.tight_layout()
