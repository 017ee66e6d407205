"""
Learning potentials
===================

The log-likelihood of data under a model is ``score(data).mean() - log Z``, and both parts are
differentiable. Here a ring of variables draws its own data, forgets its potentials, and finds
them again by gradient ascent.
"""

import matplotlib.pyplot as plt
import torch

import rdpgraph as rg

length, states = 8, 3
ring = rg.VariableArray("x", (length,), states)
following = ring[[*range(1, length), 0]]


def model(unary, pairwise):
    """A ring in which every variable has the same leanings and every pair the same table."""
    return rg.FactorGraph(
        [
            rg.FactorBlock((ring,), rg.Table(unary)),
            rg.FactorBlock((ring, following), rg.Table(pairwise)),
        ]
    )


# %%
# The truth, and 5,000 exact samples from it.

generator = torch.Generator().manual_seed(1)
true_unary = 0.5 * torch.randn(states, generator=generator)
true_pairwise = torch.randn(states, states, generator=generator)
data = rg.infer(model(true_unary, true_pairwise)).sample(5000, generator=generator)

# %%
# Gradient ascent from zero. Every step declares the graph again, as cheap as that is: the order of
# elimination depends on the shape of the graph alone and is found once.

unary = torch.zeros(states, requires_grad=True)
pairwise = torch.zeros(states, states, requires_grad=True)
optimizer = torch.optim.Adam([unary, pairwise], lr=0.05, maximize=True)
history = []
for _ in range(150):
    graph = model(unary, pairwise)
    log_likelihood = graph.score(data).mean() - rg.infer(graph).log_partition
    optimizer.zero_grad()
    log_likelihood.backward()
    optimizer.step()
    history.append(log_likelihood.item())

truth = model(true_unary, true_pairwise)
best = (truth.score(data).mean() - rg.infer(truth).log_partition).item()
print(f"log-likelihood per sample: {history[0]:.3f} at the start, {history[-1]:.3f} at the end")
print(f"under the potentials that made the data: {best:.3f}")


# %%
# Potentials are determined up to what a table and its neighbours can pass to and fro. What no such
# exchange can change is the interaction: the table less the means of its rows and columns.


def interaction(table):
    """The part of a pairwise table that no unary table can express."""
    return table - table.mean(0, keepdim=True) - table.mean(1, keepdim=True) + table.mean()


learned, true = interaction(pairwise.detach()), interaction(true_pairwise)
print(f"largest error of an interaction: {(learned - true).abs().max():.3f}")

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
left.plot(history, label="gradient ascent")
left.axhline(best, color="black", linestyle="--", label="true potentials")
left.set_xlabel("step")
left.set_ylabel("log-likelihood per sample (nats)")
left.legend()
right.axline((0, 0), slope=1, color="black", linestyle="--")
right.plot(true.flatten(), learned.flatten(), "o")
right.set_xlabel("true interaction")
right.set_ylabel("learned interaction")
plt.show()
