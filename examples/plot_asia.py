"""
A Bayesian network from a file
==============================

Asia, the "chest clinic" of Lauritzen and Spiegelhalter (1988), is a small network about three
diseases of the lungs, what causes them and what they cause. We read it, tell it what a doctor
knows of a patient, and look at what that does to the diseases.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt

import rdpgraph as rg

path = Path(sys.argv[0]).with_name("asia.bif")  # beside this script, or this notebook
asia = rg.read(path if path.exists() else "asia.bif")
print(asia)

# %%
# The plan says what answering will take. Nothing has run yet.

print(rg.explain(asia))

# %%
# Three patients: one of whom nothing is known, one who is short of breath, and one who is short of
# breath and has been to Asia, where tuberculosis is common.

patients = {
    "nothing known": {},
    "short of breath": {"dysp": "yes"},
    "and has been to Asia": {"dysp": "yes", "asia": "yes"},
}
diseases = {"tub": "tuberculosis", "lung": "lung cancer", "bronc": "bronchitis"}
posteriors = {who: rg.infer(asia.condition(known)) for who, known in patients.items()}

for who, posterior in posteriors.items():
    chances = ", ".join(f"{diseases[name]} {posterior.marginal(name)[0]:.3f}" for name in diseases)
    print(f"{who}: {chances}")

# %%
# Each marginal is exact. Shortness of breath points at bronchitis first. A visit to Asia makes
# tuberculosis almost five times as likely, and lowers the other two a little: they are needed less
# as an explanation.

figure, axes = plt.subplots(figsize=(7, 3.5), layout="constrained")
height = 0.8 / len(patients)
for row, (who, posterior) in enumerate(posteriors.items()):
    chances = [posterior.marginal(name)[0].item() for name in diseases]
    places = [place + row * height for place in range(len(diseases))]
    bars = axes.barh(places, chances, height, label=who)
    axes.bar_label(bars, fmt="%.3f", padding=3)
axes.set_yticks([place + height for place in range(len(diseases))], list(diseases.values()))
axes.invert_yaxis()
axes.set_xlim(0, 1)
axes.set_xlabel("probability")
axes.legend()
plt.show()
