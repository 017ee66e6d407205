"""
A network fitted to rows with gaps
==================================

Entries of a table are missing at random. Rows that lack one could be left out; here all are used,
by expectation maximisation, and the fitted network comes out nearer to the truth.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import torch

import rdpgraph as rg
from rdpgraph.learn import BayesianNetwork

path = Path(sys.argv[0]).with_name("asia.bif")  # beside this script, or this notebook
truth = rg.read(path if path.exists() else "asia.bif")
generator = torch.Generator().manual_seed(0)
edges = [(parent.name, x.name) for x in truth.variables for parent in truth.parents(x)]
states = {x.name: x.states for x in truth.variables}


# %%
# The distance of a fitted network from the truth: the Kullback-Leibler divergence of their joint
# distributions, in nats, by 100,000 draws.

draws = rg.infer(truth).sample(100_000, generator)


def distance(network):
    return float((truth.score(draws) - network.graph_.score(draws)).mean())


# %%
# 500 rows, of which more and more entries are hidden. Complete rows are soon too few: all eight
# entries are there in one row of six, if every fifth is missing.

rows = rg.infer(truth).sample(500, generator).to_frame()
shares = [0.0, 0.1, 0.2, 0.3, 0.4]
whole, every = [], []
for share in shares:
    gaps = rows.mask((torch.rand(rows.shape, generator=generator) < share).numpy())
    network = BayesianNetwork(edges, states=states, prior=0.5)
    every.append(distance(network.fit(gaps)))
    history = network.fit_.history
    whole.append(distance(network.fit(gaps.dropna())))
    print(f"{share:.0%} missing: {len(gaps.dropna())} rows without gaps, {len(history) - 1} steps")

figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
axes.plot(shares, whole, "o-", color="#9aa3ad", label="rows without gaps")
axes.plot(shares, every, "o-", color="#1d4e79", label="all rows")
axes.set(xlabel="share of entries missing", ylabel="divergence from the truth (nats)")
axes.set_ylim(bottom=0)
axes.legend()
plt.show()

# %%
# What is missing in a row is predicted from what it has.

network = BayesianNetwork(edges, states=states, prior=0.5).fit(gaps)
patient = {"smoke": ["yes"], "dysp": ["yes"], "xray": [None]}
print(network.predict_proba(patient, ["lung", "xray"]).round(3).T)
