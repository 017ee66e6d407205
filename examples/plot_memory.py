"""
Noise of a memory, from its syndromes
=====================================

A repetition code is measured again and again. Nobody sees its errors: only which neighbours differ.
From these syndromes alone the rate of each kind of error is learned, and then the code is decoded
with them.
"""

import matplotlib.pyplot as plt
import torch

import rdpgraph as rg

# %%
# Five bits and six rounds. Bits flip before every round, measurements are wrong now and then, and
# one of the bits is worse than the others. An error names the checks that it flips, and L0 is the
# value that is stored.

BITS, ROUNDS = 5, 6
generator = torch.Generator().manual_seed(0)


def memory(flips: list[float], wrong: float) -> rg.ParityModel:
    lines = []
    for first in range(0, ROUNDS * (BITS - 1), BITS - 1):
        for bit, rate in enumerate(flips):
            near = [f"D{first + check}" for check in (bit - 1, bit) if 0 <= check < BITS - 1]
            lines.append(f"error({rate}) {' '.join(near)}{' L0' if bit == 0 else ''}")
        if first:
            here = range(first, first + BITS - 1)
            lines += [f"error({wrong}) D{at - BITS + 1} D{at}" for at in here]
    return rg.ParityModel.from_dem("\n".join(lines))


truth = memory([0.03, 0.03, 0.15, 0.03, 0.03], 0.06)
guess = memory([0.05] * BITS, 0.05)
errors = truth.sample(5000, generator)
syndromes, stored = truth.syndrome_of(errors)
print(guess.cost())

# %%
# Errors of one kind have one number: each bit is a kind, and measurements are another. The
# likelihood of the syndromes has exact gradients, and the rates come with standard errors.

kinds: list[int] = []
for round_ in range(ROUNDS):
    kinds += list(range(BITS)) + ([BITS] * (BITS - 1) if round_ else [])
learned = rg.decoding.learn_rates(guess, syndromes, tied=kinds)
for rate, error in zip(learned.rates, learned.standard_errors, strict=True):
    print(f"{rate:.4f} +- {error:.4f}")

# %%
# With the rates that were learned fewer shots are decoded wrongly, and the confidence is right.

*flips, wrong = learned.rates.tolist()
figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3))
for name, model in {"guessed": guess, "learned": memory(flips, wrong), "true": truth}.items():
    decoded = rg.decoding.CosetDecoder(model).decode_observables(syndromes)
    good = (decoded.observables == stored).all(1).double()
    left.bar(name, 1 - good.mean(), color="#1d4e79")
    bins = ((decoded.confidence - 0.5) * 10).long().clamp(max=4)
    shown = decoded.confidence, good
    means = [[float(part[bins == at].mean()) for at in range(5)] for part in shown]
    right.plot(*means, "o-", label=name)
left.set_ylabel("share of shots decided wrongly")
right.plot([0.5, 1], [0.5, 1], color="#9aa3ad")
right.set(xlabel="confidence", ylabel="share decided rightly")
right.legend(frameon=False)
figure.tight_layout()
