"""
Durations of hidden states
==========================

Three states with Gaussian emissions last for times that no hidden Markov model has. A semi-Markov
model, fitted to what they show with a tenth of the steps missing, finds states and durations.
"""

import matplotlib.pyplot as plt
import torch

from rdpgraph import learn

generator = torch.Generator().manual_seed(0)

# %%
# The truth: a state lasts about 4, 8 or 12 steps, and then another one follows.

longest = 20
steps = torch.arange(1, longest + 1.0)
durations = (-0.5 * (steps.unsqueeze(1) - torch.tensor([4.0, 8.0, 12.0])) ** 2).log_softmax(0)
means = torch.tensor([[0.0, 0.0], [2.5, 0.0], [1.0, 2.5]])
truth = learn.HSMM(
    3,
    learn.Gaussian("spherical", means, torch.full((3,), 0.6)),
    durations,
    start=torch.full((3,), 1 / 3).log(),
    transition=((1 - torch.eye(3)) / 2).log(),
)
drawn = [truth.sample(150, generator) for _ in range(6)]
X, states = torch.cat([x for x, _ in drawn]), torch.cat([s for _, s in drawn])
X[torch.rand(len(X), generator=generator) < 0.1] = torch.nan
lengths = [150] * 6

# %%
# The fit, and a hidden Markov model beside it. Both say how probable the data is (nats for each
# step), and criteria count their parameters.

semi = learn.HSMM(3, learn.Gaussian("full"), longest, duration_prior=0.01, limit=20)
semi.fit(X, lengths)
plain = learn.HMM(3, learn.Gaussian("full"), limit=20).fit(X, lengths)
order = torch.cdist(means.double(), semi.emission_.means).argmin(1)
right = (semi.predict(X, lengths) == order[states]).double().mean()
for name, model in (("semi-Markov", semi), ("Markov", plain)):
    print(f"{name}: {model.score(X, lengths) / len(X):.3f} nats, BIC {model.bic(X, lengths):.0f}")
print(f"states found: {right:.0%}")

# %%
# Fitted emissions, the states of one sequence, and the durations.

colors = ["#1d4e79", "#c2571a", "#4b8b3b"]
figure, (left, middle, last) = plt.subplots(1, 3, figsize=(12, 3.6))
circle = torch.linspace(0, 2 * torch.pi, 100, dtype=torch.float64)
ring = torch.stack([circle.cos(), circle.sin()])
found = semi.predict(X, lengths)
for state, color in zip(order.tolist(), colors, strict=True):
    own = X[found == state]
    left.scatter(own[:, 0], own[:, 1], s=4, color=color, alpha=0.4)
    factor = torch.linalg.cholesky(semi.emission_.covariances[state])
    ellipse = semi.emission_.means[state].unsqueeze(1) + 2 * factor @ ring
    left.plot(*ellipse, color=color)
    last.plot(steps, semi.duration_.exp()[:, state], color=color)
    last.plot(steps, durations.exp()[:, order.tolist().index(state)], ":", color=color)
left.set_title("emissions")
chance = semi.predict_proba(X, lengths)[:150]
middle.stackplot(range(150), *chance[:, order].mT, colors=colors)
middle.set_xlabel("step")
middle.set_title("probability of the states")
last.set_xlabel("steps")
last.set_title("durations, and the true ones (dotted)")
figure.tight_layout()
