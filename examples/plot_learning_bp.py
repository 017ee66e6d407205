"""
Learning through belief propagation
===================================

The log-likelihood needs log Z, and on a wide grid only an approximation of it can be had. Loopy
belief propagation gives one that is differentiable. Here it learns the coupling of an Ising model
from pictures; a grid small enough for exact inference lets us see how far off it is.
"""

import matplotlib.pyplot as plt
import torch

import rdpgraph as rg

side = 12
pixels = rg.VariableArray("pixel", (side, side), 2)
neighbours = (pixels[:, :-1], pixels[:, 1:]), (pixels[:-1], pixels[1:])
sign = torch.tensor([-1.0, 1.0])


def model(coupling, leaning):
    """Neighbours that agree gain ``coupling``; a pixel's leaning is a number, or one for each."""
    agree = rg.Table(coupling * torch.outer(sign, sign))
    return rg.FactorGraph(
        [
            *(rg.FactorBlock(pair, agree) for pair in neighbours),
            rg.FactorBlock((pixels,), rg.Table(leaning.unsqueeze(-1) * sign)),
        ]
    )


# %%
# The truth, and a thousand exact samples from it.

generator = torch.Generator().manual_seed(0)
true_coupling, true_leaning = torch.tensor(0.2), torch.tensor(0.1)
data = rg.infer(model(true_coupling, true_leaning)).sample(1000, generator=generator)

# %%
# The loss is log Z less the mean score of the data, per pixel. By belief propagation, log Z is
# Bethe's approximation, which is stationary in the messages: its gradient is the beliefs, and
# nothing needs to pass through the messages. ``FromBeliefs`` says so, and costs nothing. The same
# loop with exact inference shows what maximum likelihood would have found.


def fit(scheduler, steps=40):
    """Coupling and leaning after every step, and the last posterior."""
    coupling = torch.zeros((), requires_grad=True)
    leaning = torch.zeros((), requires_grad=True)
    optimizer = torch.optim.SGD([coupling, leaning], lr=0.2)
    history = []
    for _ in range(steps):
        history.append((coupling.item(), leaning.item()))
        graph = model(coupling, leaning)
        posterior = rg.infer(graph, scheduler=scheduler)
        loss = (posterior.log_partition - graph.score(data).mean()) / side**2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return history, posterior


by_bethe, posterior = fit(rg.Loopy(gradient=rg.loopy.FromBeliefs()))
by_exact, _ = fit(rg.Contraction())
print("                    coupling  leaning")
print(f"true                {true_coupling:8.4f} {true_leaning:8.4f}")
print(f"exact log Z         {by_exact[-1][0]:8.4f} {by_exact[-1][1]:8.4f}")
print(f"belief propagation  {by_bethe[-1][0]:8.4f} {by_bethe[-1][1]:8.4f}")
print(f"messages converged: {posterior.status.converged}, sweeps: {posterior.status.iterations}")

# %%
# With Bethe's log Z the gradient vanishes where the beliefs match the data, which need not be at
# the true numbers. What is learned is made for the use it was learned in: under it, belief
# propagation predicts as often as the data show it that neighbours agree, and that a pixel is 1.

either = rg.Table(torch.zeros(2, 2))
joints = [posterior.factor_marginal(rg.FactorBlock(pair, either)) for pair in neighbours]
believed = torch.cat([joint.flatten(0, 1) for joint in joints])
believed = believed.diagonal(dim1=1, dim2=2).sum(-1).mean().item()
pictures = data[pixels]
across = pictures[..., :-1] == pictures[..., 1:]
down = pictures[..., :-1, :] == pictures[..., 1:, :]
observed = torch.cat([across.flatten(), down.flatten()]).double().mean().item()
ones = posterior.marginal(pixels)[..., 1].mean().item()
print(f"neighbours agree: {observed:.4f} of the data, {believed:.4f} by the beliefs")
print(f"pixels that are 1: {pictures.double().mean():.4f} of the data, {ones:.4f} by the beliefs")

# %%
# The second way to learn is through the marginals. Each pixel has a known leaning of its own, the
# marginals of all pixels are given (here exact ones), and the coupling is wanted. The loss is a
# squared error of marginals, so the gradient has to pass through the messages. ``Implicit()``, the
# default, solves a linear system at the fixed point in place of going back through every sweep.

leanings = 0.5 * torch.randn(side, side, generator=generator)
given = rg.infer(model(true_coupling, leanings)).marginal(pixels)[..., 1]

coupling = torch.zeros((), requires_grad=True)
optimizer = torch.optim.SGD([coupling], lr=2.0)
by_marginals, errors = [], []
for _ in range(25):
    posterior = rg.infer(
        model(coupling, leanings), scheduler=rg.Loopy(gradient=rg.loopy.Implicit())
    )
    error = (posterior.marginal(pixels)[..., 1] - given).square().mean()
    by_marginals.append(coupling.item())
    errors.append(error.item())
    optimizer.zero_grad()
    error.backward()
    optimizer.step()

print(f"coupling: true {true_coupling:.4f}, learned from marginals {by_marginals[-1]:.4f}")
print(f"root mean square error of a marginal: {errors[0] ** 0.5:.4f}, then {errors[-1] ** 0.5:.4f}")

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
left.plot([step[0] for step in by_bethe], label="belief propagation")
left.plot([step[0] for step in by_exact], label="exact log Z")
left.set_title("by maximum likelihood")
right.plot(by_marginals, color="C2", label="belief propagation")
right.set_title("from given marginals")
for axis in (left, right):
    axis.axhline(true_coupling.item(), color="black", linestyle="--", label="true coupling")
    axis.set_xlabel("step")
    axis.set_ylabel("coupling")
    axis.legend(loc="lower right")
plt.show()
