"""
Trees of species: branch lengths, rates and ancestors
=====================================================

Letters of a sequence change along the branches of a tree (Felsenstein 1981). Each column of an
alignment is one tree of variables, of which the leaves are seen; some columns change fast and some
slowly. Branch lengths and the rates of categories are learned by gradients, and the letters of
ancestors follow with their probabilities.
"""

import math
import sys

import matplotlib.pyplot as plt
import torch

import rdpgraph as rg

quick = "--quick" in sys.argv
taxa, columns, steps = (6, 40, 3) if quick else (20, 1500, 25)
generator = torch.Generator().manual_seed(0)
letters, categories = 4, 3

# %%
# A random tree: two lineages join at a time. Children have smaller numbers than their parents, the
# leaves are the first, and the root is the last.

parents, alive = {}, list(range(taxa))
for node in range(taxa, 2 * taxa - 1):
    for _ in range(2):
        chosen = int(torch.randint(len(alive), (1,), generator=generator))
        parents[alive.pop(chosen)] = node
    alive.append(node)
root = 2 * taxa - 2
above = torch.tensor([parents[child] for child in range(root)])
lengths = 0.02 + 0.3 * torch.rand(root, generator=generator, dtype=torch.float64)

# %%
# The rates of exchange of letters (all alike but transitions, A with G and C with T, which are
# twice as frequent), in units of changes per length; and those of the categories.

exchange = torch.ones(letters, letters, dtype=torch.float64)
exchange[[0, 2, 1, 3], [2, 0, 3, 1]] = 2.0
exchange -= torch.diag(exchange.sum(1))
exchange /= -exchange.diagonal().mean()
rates = torch.tensor([0.1, 0.7, 2.2], dtype=torch.float64)


def changes(lengths: torch.Tensor, rates: torch.Tensor) -> torch.Tensor:
    """(branches, categories, letters, letters) probabilities of the letter at the lower end."""
    return torch.linalg.matrix_exp(exchange * (lengths.unsqueeze(1) * rates)[..., None, None])


def draw(lengths: torch.Tensor, rates: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The letters of all nodes in each column, and the column's category."""
    kind = torch.randint(categories, (columns,), generator=generator)
    chances, drawn = changes(lengths, rates), torch.zeros(columns, root + 1, dtype=torch.long)
    drawn[:, root] = torch.randint(letters, (columns,), generator=generator)
    for child in reversed(range(root)):
        rows = chances[child][kind, drawn[:, above[child]]]
        drawn[:, child] = torch.multinomial(rows, 1, generator=generator)[:, 0]
    return drawn, kind


truth, kind = draw(lengths, rates)

# %%
# The model: a variable for each node, and one for the category, which every branch depends on.

node = rg.VariableArray("node", (root + 1,), letters)
speed = rg.VariableArray("speed", (1,), categories)


def tree(lengths: torch.Tensor, rates: torch.Tensor) -> rg.FactorGraph:
    """One column: the letters of all nodes, and the category."""
    alike = torch.full((1, letters), -math.log(letters), dtype=torch.float64)
    kinds = torch.full((1, categories), -math.log(categories), dtype=torch.float64)
    return rg.FactorGraph([
        rg.FactorBlock((node[root:],), rg.Table(alike)),
        rg.FactorBlock((speed,), rg.Table(kinds)),
        rg.FactorBlock((speed, node[above], node[:root]), rg.Table(changes(lengths, rates).log())),
    ])  # fmt: skip


seen = {node[:taxa]: truth[:, :taxa]}

# %%
# Felsenstein's pruning by hand, from the leaves to the root, gives the same likelihoods.


def pruned(lengths: torch.Tensor, rates: torch.Tensor) -> torch.Tensor:
    """(columns,) log-likelihoods."""
    chances, below = changes(lengths, rates), {}
    for child in range(root):
        own = below.pop(child, 1.0)
        if child < taxa:
            own = torch.eye(letters, dtype=torch.float64)[truth[:, child]].unsqueeze(0)
        sent = own @ chances[child].mT  # (categories, columns, letters)
        below[parents[child]] = below.get(parents[child], 1.0) * sent
    return (below[root].sum(2) / letters).mean(0).log()


posterior = rg.infer(tree(lengths, rates), evidence=seen)
off = float((posterior.log_partition - pruned(lengths, rates)).abs().max())
print(f"at most {off:.1e} off pruning by hand")

# %%
# Branch lengths and rates are learned from the leaves, the rates with a mean of one.

free = [
    torch.full((root,), math.log(0.1), dtype=torch.float64, requires_grad=True),
    torch.linspace(-1, 1, categories, dtype=torch.float64).requires_grad_(),
]
optimizer = torch.optim.LBFGS(free, line_search_fn="strong_wolfe", max_iter=steps)


def loss() -> torch.Tensor:
    optimizer.zero_grad()
    learned = tree(free[0].exp(), categories * free[1].softmax(0))
    value = -rg.infer(learned, evidence=seen).log_partition.mean()
    value.backward()
    return value


optimizer.step(loss)
found, speeds = free[0].detach().exp(), categories * free[1].detach().softmax(0)
print("rates", [round(rate, 2) for rate in speeds.tolist()], "of", rates.tolist())

# %%
# The letters of ancestors, and how fast each column changes. Where a probability of .9 is given,
# nine of ten letters are right.

posterior = rg.infer(tree(found, speeds), evidence=seen)
sure, best = posterior.marginals()[node][:, taxa:].max(-1)
right = best == truth[:, taxa:]
print(f"{float(right.double().mean()):.3f} of the ancestors' letters are right")
fast = posterior.marginal(speed)[:, 0]
print(f"{float((fast.argmax(1) == kind).double().mean()):.3f} of the categories are right")

groups = (10 * sure).long().clamp(max=9).flatten()
shown = [at for at in range(10) if bool((groups == at).any())]
means = [float(sure.flatten()[groups == at].mean()) for at in shown]
shares = [float(right.flatten()[groups == at].double().mean()) for at in shown]

figure, (left, last) = plt.subplots(1, 2, figsize=(9, 3.8))
left.plot([0, 0.4], [0, 0.4], color="0.8")
left.plot(lengths, found, "o")
left.set_xlabel("branch length")
left.set_ylabel("learned")
last.plot([0, 1], [0, 1], color="0.8")
last.plot(means, shares, marker="o")
last.set_xlabel("probability of an ancestor's letter")
last.set_title("share that is right")
figure.tight_layout()
