"""
A grid of pixels
================

An Ising model on a 10 x 10 grid: neighbours like to agree, and each pixel has a leaning of its own.
The variables are one array, and each direction of neighbours is one block of factors.
"""

import matplotlib.pyplot as plt
import torch

import rdpgraph as rg

generator = torch.Generator().manual_seed(0)
side, strength = 10, 0.45
pixels = rg.VariableArray("pixel", (side, side), 2)
agree = rg.Table(torch.tensor([[strength, -strength], [-strength, strength]]))
leaning = 0.6 * torch.randn(side, side, generator=generator)

ising = rg.FactorGraph(
    [
        rg.FactorBlock((pixels[:, :-1], pixels[:, 1:]), agree),
        rg.FactorBlock((pixels[:-1], pixels[1:]), agree),
        rg.FactorBlock((pixels,), rg.Table(torch.stack([-leaning, leaning], dim=-1))),
    ]
)
print(rg.explain(ising))

# %%
# A grid of this size is answered exactly: log Z, the marginals of all hundred pixels at once, the
# most probable picture, and samples that are independent of each other.

posterior = rg.infer(ising)
marginals = posterior.marginal(pixels)
best = posterior.mode()[pixels]
draws = posterior.sample(2000, generator=generator)[pixels]
print(f"log Z = {posterior.log_partition:.4f} nats, entropy = {posterior.entropy():.4f} nats")

# %%
# The mean of the samples comes close to the marginals, as it should.

error = (draws.double().mean(dim=0) - marginals[..., 1]).abs().max()
print(f"largest difference between the mean of {len(draws)} samples and the marginals: {error:.3f}")

pictures = {
    "each pixel's leaning": leaning,
    "P(pixel = 1)": marginals[..., 1],
    "most probable": best,
    "a sample": draws[0],
    "another": draws[1],
}
figure, axes = plt.subplots(1, len(pictures), figsize=(11, 2.6), layout="constrained")
for axis, (title, picture) in zip(axes, pictures.items(), strict=True):
    limits = (-1.5, 1.5) if picture is leaning else (0, 1)
    axis.imshow(picture.numpy(), cmap="RdBu_r", vmin=limits[0], vmax=limits[1])
    axis.set_title(title)
    axis.set_axis_off()
plt.show()
