"""
Logical error rates by sinter
=============================

stim writes circuits and samples them; sinter collects statistics over many rates and sizes. With
`SinterDecoder` it decodes by the probability of the stored value, summed over all errors. Needs
``pip install rdpgraph[draw,stim]``.
"""

import matplotlib.pyplot as plt
import sinter
import stim

import rdpgraph as rg

# %%
# Memories of repetition codes, over as many rounds as the distance.

tasks = [
    sinter.Task(
        circuit=stim.Circuit.generated(
            "repetition_code:memory", distance=distance, rounds=distance,
            after_clifford_depolarization=rate, before_measure_flip_probability=rate,
        ),
        json_metadata={"d": distance, "p": rate},
    )
    for distance in (3, 5, 7)
    for rate in (0.02, 0.04, 0.06, 0.08)
]  # fmt: skip

# %%
# The model of a task tells the cost of exact answers. Seven bits leave few checks open; where
# 2^open does not fit, ``SinterDecoder(keep=100)`` keeps the states of largest mass.

model = rg.ParityModel.from_dem(tasks[-1].circuit.detector_error_model())
print(model.cost())

# %%
# Workers of sinter are processes, and the decoder is sent to each.

if __name__ == "__main__":
    stats = sinter.collect(
        num_workers=1, tasks=tasks, max_shots=2000, decoders=["exact"],
        custom_decoders={"exact": rg.decoding.SinterDecoder()},
    )  # fmt: skip
    figure, axes = plt.subplots(figsize=(5, 3.4), layout="constrained")
    sinter.plot_error_rate(
        ax=axes, stats=stats, x_func=lambda stat: stat.json_metadata["p"],
        group_func=lambda stat: f"distance {stat.json_metadata['d']}",
    )  # fmt: skip
    axes.set(xlabel="physical error rate", ylabel="logical error rate", yscale="log")
    axes.grid(which="both", alpha=0.3)
    axes.legend(frameon=False)
    plt.show()
