"""
Attention as the marginal of one factor
=======================================

A query x that looks at keys y with probability proportional to exp(x . y) is a factor over two
variables. Attention is the expectation of the keys' values under it: row by row, T x I products.
With random features, or with learned ones, the factor is a `LowRank`, and the same expectation is
two thin products: linear in the queries and in the keys (Choromanski et al. 2021).
"""

import time

import matplotlib.pyplot as plt
import torch

import rdpgraph as rg

generator = torch.Generator().manual_seed(0)
DIMENSION, VALUES = 8, 4


def attention(low, values):
    """(T, values) the mean of the values under p(key | query), through the ranks of the factor.

    Both sides of the fraction are sums over keys, done once for all queries: O((T + I) d).
    """
    queries = (low.log_left - low.log_left.amax(1, keepdim=True)).exp()  # the shift cancels
    keys = (low.log_right - low.log_right.amax()).exp()
    return queries @ (keys.T @ values) / (queries @ keys.sum(0)).unsqueeze(1)


def sides(queries, keys, norm):
    both = torch.randn(queries + keys, DIMENSION, generator=generator)
    both = both * norm / both.norm(dim=1, keepdim=True) / 2
    return both[:queries], both[queries:], torch.randn(keys, VALUES, generator=generator)


# %%
# The softmax of a row of scores is the marginal of the key, given the query.

x, y, values = sides(200, 500, norm=1.5)
query, key = rg.Variable("query", 200), rg.Variable("key", 500)
graph = rg.FactorGraph([rg.Factor([query, key], rg.Bilinear(x, y))])
weights = rg.infer(graph.condition({query: torch.arange(200)})).marginal(key)
exact = weights @ values
assert torch.allclose(weights, (x @ y.T).softmax(1), atol=1e-6)

# %%
# With features the error falls as one over the root of their number. It is the error of a ratio:
# what is off in the same way above and below cancels.

counts, errors = [16, 64, 256, 1024], []
for count in counts:
    features = rg.RandomFeatures(DIMENSION, count, generator=generator)
    found = attention(features.low_rank(x, y), values)
    errors.append(float((found - exact).square().mean().sqrt() / exact.square().mean().sqrt()))
    print(f"{count} features: relative error {errors[-1]:.3f}")

# %%
# As the lengths grow, the table's work grows with their product and the features' with their sum.

lengths, seconds = [1000, 2000, 4000, 8000], {"table": [], "256 features": []}
for length in lengths:
    x, y, values = sides(length, length, norm=1.5)
    features = rg.RandomFeatures(DIMENSION, 256, generator=generator)
    start = time.perf_counter()
    (x @ y.T).softmax(1) @ values
    middle = time.perf_counter()
    attention(features.low_rank(x, y), values)
    seconds["table"].append(middle - start)
    seconds["256 features"].append(time.perf_counter() - middle)

figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
axes[0].loglog(counts, errors, "o-")
axes[0].set(xlabel="features", ylabel="relative error of attention")
for name, times in seconds.items():
    axes[1].loglog(lengths, times, "o-", label=name)
axes[1].set(xlabel="queries and keys", ylabel="seconds")
axes[1].set_xticks(lengths, [f"{length:,}" for length in lengths])
axes[1].minorticks_off()
axes[1].legend()
plt.show()
