"""
Which test next?
================

Patients of the Asia network have lung cancer, or not. Four things may be asked or tested. Asking
first what is expected to tell most, given all that is known of the patient, needs fewer questions
than a fixed order, or a random one.
"""

import random
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import torch

import rdpgraph as rg

path = Path(sys.argv[0]).with_name("asia.bif")  # beside this script, or this notebook
network = rg.read(path if path.exists() else "asia.bif")
names = [variable.name for variable in network.variables]
tests = ["smoke", "xray", "dysp", "asia"]
draw = random.Random(0)

# %%
# How much each test is expected to tell about lung cancer, in nats, before anything is known and
# once the picture is.

for seen in ({}, {"xray": "yes"}):
    about = rg.infer(network, evidence=seen).information_about("lung")
    ranked = [(name, f"{nats:.4f}") for name, nats in about.ranked() if name in tests]
    print(seen, ranked)

# %%
# Patients are drawn from the network. After each question the entropy of "lung" is what is still
# not known; its mean over patients is shown for the three orders.

patients = rg.infer(network).sample(60, torch.Generator().manual_seed(0))
orders = ("most informative first", "in a fixed order", "at random")
left = {order: [0.0] * (len(tests) + 1) for order in orders}
for number in range(60):
    patient = {name: int(patients[name][number]) for name in names}
    for order in orders:
        seen, open_ = dict[str, torch.Tensor](), tests[::-1]
        for count in range(len(tests) + 1):
            about = rg.infer(network, evidence=seen).information_about("lung")
            left[order][count] += float(about["lung"]) / 60
            if open_:
                choice = max(open_, key=lambda name: float(about[name]))
                asked = {orders[0]: choice, orders[1]: open_[0]}.get(order, draw.choice(open_))
                open_.remove(asked)
                seen[asked] = torch.tensor(patient[asked])
for order, values in left.items():
    print(f"{order:22}", *(f"{value:.4f}" for value in values))

figure, axes = plt.subplots(figsize=(5, 3.6))
for order, values in left.items():
    axes.plot(values, marker="o", label=order)
axes.set_xlabel("questions")
axes.set_ylabel("nats not known")
axes.set_xticks(range(len(tests) + 1))
axes.legend()
figure.tight_layout()
