"""
A machine that wears: a dynamic Bayesian network
================================================

Wear and load of a machine are hidden; heat depends on both, and two sensors show heat and wear
with errors. A network of one slice is repeated in time. Its tables are fitted to records with
gaps, and tell how worn the machine is now, was, and will be.
"""

import sys

import matplotlib.pyplot as plt
import pandas
import torch

import rdpgraph as rg
from rdpgraph import learn

quick = "--quick" in sys.argv
machines, hours, limit = (3, 40, 3) if quick else (30, 200, 40)
generator = torch.Generator().manual_seed(0)

# %%
# The slice: edges within an hour, and from each hour to the next. Tables have the parents of the
# hour before first, then those of the same hour, then the states.

within = [("wear", "heat"), ("load", "heat"), ("heat", "thermometer"), ("wear", "vibration")]
between = [("wear", "wear"), ("load", "load"), ("heat", "wear")]
states = {
    "wear": ["new", "used", "worn"], "load": ["idle", "busy"], "heat": ["cold", "hot"],
    "thermometer": ["low", "high"], "vibration": ["calm", "shaky"],
}  # fmt: skip
tables = {
    "wear": [  # [wear before, heat before, wear]
        [[0.99, 0.01, 0.0], [0.95, 0.05, 0.0]],
        [[0.0, 0.99, 0.01], [0.0, 0.95, 0.05]],
        [[0.01, 0.0, 0.99], [0.01, 0.0, 0.99]],  # mended now and then
    ],
    "load": [[0.9, 0.1], [0.1, 0.9]],
    "heat": [[[0.95, 0.05], [0.7, 0.3]], [[0.9, 0.1], [0.5, 0.5]], [[0.8, 0.2], [0.1, 0.9]]],
    "thermometer": [[0.9, 0.1], [0.1, 0.9]],
    "vibration": [[0.95, 0.05], [0.8, 0.2], [0.3, 0.7]],
}
first = {"wear": [0.8, 0.2, 0.0], "load": [0.5, 0.5]}
truth = learn.DynamicBayesianNetwork(within, between, states=states, tables=tables, first=first)
print("interface:", ", ".join(truth.interface))

# %%
# Filtering, smoothing and the network of all steps agree.

records = [truth.sample(hours, generator) for _ in range(machines)]
seen = ["thermometer", "vibration"]
short = records[0][seen].iloc[:6]
graph = truth.unrolled(6)
evidence = {f"{name}[{t}]": short[name].iloc[t] for name in seen for t in range(6)}
whole = rg.infer(graph, evidence=evidence).marginal(graph["wear"])
off = float((torch.from_numpy(truth.smooth(short)["wear"].to_numpy().copy()) - whole).abs().max())
print(f"at most {off:.1e} off the network of six hours")

# %%
# Learned from what the sensors show, a tenth of it missing: hidden variables have no columns. The
# states of the truth are where EM starts, with tables that are less sure.

frame = pandas.concat(records, ignore_index=True)
gaps = torch.rand(len(frame), 2, generator=generator) < 0.1
shown = frame[seen].mask(gaps.numpy())
vague = {
    name: (torch.tensor(table, dtype=torch.float64) + (torch.tensor(table) > 0) * 0.3)
    for name, table in tables.items()
}
vague = {name: table / table.sum(-1, keepdim=True) for name, table in vague.items()}
model = learn.DynamicBayesianNetwork(
    within, between, states=states, tables=vague, first=first, prior=0.5, limit=limit
).fit(shown, lengths=[hours] * machines)
for name, which in (("fitted", model), ("truth", truth)):
    print(f"{name}: log-likelihood {which.score(shown, lengths=[hours] * machines):.1f}")

# %%
# One machine, that with most changes: how worn it is, given all hours up to each, and given all;
# and what comes.

changes = [int((record["wear"] != record["wear"].shift()).sum()) for record in records]
one = changes.index(max(changes))
part = shown.iloc[one * hours : (one + 1) * hours].reset_index(drop=True)
filtered, smoothed = model.filter(part)["wear"]["worn"], model.smooth(part)["wear"]["worn"]
ahead = model.predict(part, steps=hours // 4)["wear"]["worn"]
right = (model.decode(part)["wear"].to_numpy() == records[one]["wear"].to_numpy()).mean()
print(f"{right:.3f} of the hours' wear is right")

figure, axis = plt.subplots(figsize=(9, 3.6))
axis.plot(filtered, color="0.6", label="filtered")
axis.plot(smoothed, label="smoothed")
axis.plot(hours - 1 + ahead.index, ahead, "--", label="predicted")
axis.plot((records[one]["wear"] == "worn").astype(float), ":k", label="true")
axis.set_xlabel("hour")
axis.set_ylabel("chance of being worn")
axis.legend()
figure.tight_layout()
