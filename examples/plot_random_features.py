"""
Accuracy of random features
===========================

Potentials by embeddings, exp(x . y), become potentials of low rank by random features: a chain of N
states then costs O(T N d) in place of O(T N^2). What that is worth depends on the number of
features d, and far more on the norm ``|x + y|``: the squared error for a pair is
``exp(2 x . y) (exp(|x + y|^2) - 1) / d``. Here it is measured beside the formula.
"""

import math
import warnings

import matplotlib.pyplot as plt
import torch

import rdpgraph as rg

warnings.filterwarnings("ignore", "Random features are useless")  # we are to see how useless
DIMENSION, MAPS = 8, 1000
generator = torch.Generator().manual_seed(0)


def measured(norm, count, *, orthogonal):
    """The mean squared error relative to the squared value, for x = y with |x + y| = norm."""
    point = torch.zeros(1, DIMENSION, dtype=torch.float64)
    point[0, 0] = norm / 2
    features = rg.RandomFeatures(
        DIMENSION, count, orthogonal=orthogonal, maps=(MAPS,), generator=generator,
        dtype=torch.float64,
    )  # fmt: skip
    values = features.low_rank(point, point, centred=False).table(2)
    return float((values - (norm / 2) ** 2).expm1().square().mean())


def formula(norm, count):
    return math.expm1(norm**2) / count


# %%
# More features help as 1/d. Orthogonal ones have less error than independent ones, and most so
# where d is no more than the dimension: they are orthogonal in blocks of that.

counts = [4, 8, 16, 32, 64, 128]
norms = [0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0, 2.25]
figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
for orthogonal, marker in ((False, "o"), (True, "^")):
    name = "orthogonal" if orthogonal else "independent"
    errors = [measured(1.0, count, orthogonal=orthogonal) for count in counts]
    axes[0].loglog(counts, errors, marker, label=name)
    print(name, ", ".join(f"d = {c}: {e:.2g}" for c, e in zip(counts, errors, strict=True)))
    errors = [measured(norm, 64, orthogonal=orthogonal) for norm in norms]
    axes[1].semilogy(norms, errors, marker, label=name)
    print("  |x + y|", ", ".join(f"{n}: {e:.2g}" for n, e in zip(norms, errors, strict=True)))
print("formula", ", ".join(f"{norm}: {formula(norm, 64):.2g}" for norm in norms))
axes[0].loglog(counts, [formula(1.0, count) for count in counts], label="formula")
axes[0].set(xlabel="features d", ylabel="relative squared error", title="|x + y| = 1")
axes[1].semilogy(norms, [formula(norm, 64) for norm in norms], label="formula")
axes[1].axhline(1.0, color="grey", linewidth=0.8)
axes[1].set(xlabel="|x + y|", title="d = 64")
axes[0].legend()
plt.show()

# %%
# A longer norm costs exponentially: above ``|x + y|^2 = log(1 + d)``, where the grey line is
# crossed, an estimate is mostly noise. Measured errors there scatter, and are mostly below the
# formula: the mean is made by draws too rare to be seen. `rdpgraph.RandomFeatures` warns of such
# embeddings, and `predicted_error` says in advance what to expect of a set of them.

generator = torch.Generator().manual_seed(0)
states = 0.25 * torch.randn(500, DIMENSION, generator=generator)
features = rg.RandomFeatures(DIMENSION, 256, generator=generator)
print(features.predicted_error(states, states))

# %%
# What that does to log Z: predicted by `LowRankFactors.predicted_error`, and measured over 50
# draws of independent features. Errors of the factors of a chain add up as its steps do, not as
# their square: with a map for each factor they are independent.


def chain_of(steps, norm, states=50):
    """A chain whose pairs of states have |x + y| = norm on average."""
    own = torch.Generator().manual_seed(0)
    vectors = torch.randn(states, 4, generator=own, dtype=torch.float64)
    vectors *= norm / (2 * vectors).norm(dim=1).mean()
    unary = torch.randn(steps, states, generator=own, dtype=torch.float64)
    return rg.Chain(unary, rg.Bilinear(vectors, vectors))


def deviation(chain, count, *, orthogonal=False):
    estimator = rg.LowRankFactors(count, orthogonal=orthogonal, replicates=50)
    found = rg.infer(chain, estimator=estimator, generator=generator)
    return float(found.solution.log_partitions().std())


figure, axis = plt.subplots(figsize=(5, 3.6), layout="constrained")
counts = [8, 32, 128]
for steps, norm in ((5, 1.0), (20, 1.0), (20, 0.5)):
    chain = chain_of(steps, norm)
    predicted = rg.LowRankFactors(8).predicted_error(chain, solve=rg.infer, generator=generator)
    expected = [float(predicted.of(count).deviation) for count in counts]
    found = [deviation(chain, count) for count in counts]
    (line,) = axis.loglog(counts, expected, label=f"{steps} steps, |x + y| = {norm}")
    axis.loglog(counts, found, "o", color=line.get_color())
    print(f"{steps} steps, |x + y| = {norm}: {predicted.features_for(0.1)} features for 0.1 nats")
axis.set(xlabel="features d", ylabel="deviation of log Z (nats)")
axis.legend()
plt.show()
