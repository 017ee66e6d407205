"""
Cleaning a noisy picture
========================

A black and white picture has lost a share of its pixels to noise. An Ising model says what pictures
look like, neighbours tend to agree, and loopy belief propagation gives the probability that each
pixel was white. A grid of this size is far too wide for exact inference; messages take a moment.
"""

import matplotlib.pyplot as plt
import torch

import rdpgraph as rg

side = 256
rows, columns = torch.arange(side).unsqueeze(1), torch.arange(side)
letters = {
    "R": ["####.", "#...#", "#...#", "####.", "#.#..", "#..#.", "#...#"],
    "D": ["####.", "#...#", "#...#", "#...#", "#...#", "#...#", "####."],
    "P": ["####.", "#...#", "#...#", "####.", "#....", "#....", "#...."],
}

original = torch.zeros(side, side, dtype=torch.long)
for place, lines in enumerate(letters.values()):
    letter = torch.tensor([[mark == "#" for mark in line] for line in lines]).long()
    letter = letter.repeat_interleave(12, dim=0).repeat_interleave(12, dim=1)
    original[24:108, 24 + 74 * place : 84 + 74 * place] = letter
radius = torch.hypot((rows - 184).double(), (columns - 68).double())
original[(radius < 12) | ((radius > 28) & (radius < 46))] = 1
diamond = (rows - 184).abs() + (columns - 186).abs() < 50
original[diamond & ((rows // 10 + columns // 10) % 2 == 0)] = 1

# %%
# The noise flips every pixel with the same probability, whatever its colour.

flip = 0.2
generator = torch.Generator().manual_seed(0)
flipped = torch.rand(side, side, generator=generator) < flip
noisy = torch.where(flipped, 1 - original, original)

# %%
# The model has one unary factor for each pixel, the probability of what was seen given what was
# there, and one table for all pairs of neighbours. Its strength is a choice: the larger, the
# smoother the answer. :doc:`plot_learning_bp` learns such a number from data instead.

strength = 0.5
pixels = rg.VariableArray("pixel", (side, side), 2)
agree = rg.Table(torch.tensor([[strength, -strength], [-strength, strength]]))
seen = torch.tensor([[1 - flip, flip], [flip, 1 - flip]]).log()
graph = rg.FactorGraph(
    [
        rg.FactorBlock((pixels,), rg.Table(seen[noisy])),
        rg.FactorBlock((pixels[:, :-1], pixels[:, 1:]), agree),
        rg.FactorBlock((pixels[:-1], pixels[1:]), agree),
    ]
)
posterior = rg.infer(graph, scheduler=rg.Loopy())
white = posterior.marginal(pixels)[..., 1]
print(graph)

# %%
# The messages are approximate, so the status is worth a look before the answer is.

status = posterior.status
print(f"converged: {status.converged}, sweeps: {status.iterations}, exact: {status.exact}")
print(f"log Z, by the Bethe approximation: {posterior.log_partition:.1f} nats")

# %%
# Guessing the more probable colour of each pixel keeps the expected number of wrong ones lowest.
# As a simpler way to compare with, the majority of a 5 x 5 window around each pixel. The marginals
# also say how many pixels they expect to get wrong; as the picture was not drawn from the model,
# that figure need not be the real one.

cleaned = (white > 0.5).long()
window = torch.nn.functional.avg_pool2d(
    noisy[None].double(), 5, stride=1, padding=2, count_include_pad=False
)[0]
majority = (window > 0.5).long()


def wrong(picture):
    """The share of pixels that differ from the original."""
    return (picture != original).double().mean().item()


print(f"wrong pixels before: {wrong(noisy):.2%}")
print(f"after a vote of 5 x 5 pixels: {wrong(majority):.2%}")
print(f"after belief propagation: {wrong(cleaned):.2%}")
print(f"expected by the marginals: {torch.minimum(white, 1 - white).mean():.2%}")

pictures = {
    "original": original,
    f"noisy, {wrong(noisy):.1%} wrong": noisy,
    "P(pixel is white)": white,
    f"cleaned, {wrong(cleaned):.1%} wrong": cleaned,
}
figure, axes = plt.subplots(1, len(pictures), figsize=(12, 3.3), layout="constrained")
for axis, (title, picture) in zip(axes, pictures.items(), strict=True):
    axis.imshow(picture.numpy(), cmap="gray", vmin=0, vmax=1)
    axis.set_title(title)
    axis.set_axis_off()
plt.show()

# %%
# The status keeps the largest change of a message in every sweep. Sweeping ends when it comes
# under the tolerance.

figure, axis = plt.subplots(figsize=(6, 3.3), layout="constrained")
axis.semilogy(range(1, len(status.trace) + 1), status.trace, label="largest change of a message")
axis.axhline(rg.Loopy().tolerance, color="black", linestyle="--", label="tolerance")
axis.set_xlabel("sweep")
axis.legend()
plt.show()
