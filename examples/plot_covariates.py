"""
Series with covariates: when attention comes and goes
=====================================================

In each trial an animal is shown a stimulus, and goes left or right. While it attends, the choice
depends on the stimulus; else it has a bias. Attention is a hidden state, and how soon it is lost
depends on how tired the animal is. Both are functions of covariates, fitted within EM.
"""

import sys

import matplotlib.pyplot as plt
import torch

from rdpgraph import learn

quick = "--quick" in sys.argv
sessions, trials, limit = (4, 60, 8) if quick else (20, 300, 80)
generator = torch.Generator().manual_seed(0)

# %%
# The emission: a line of logits for each state, of the stimulus, which is covariate 0.


class Choice(torch.nn.Module):
    """Log-probabilities of going left (0) or right (1) in each state."""

    def __init__(self, slopes: list[float], biases: list[float]) -> None:
        super().__init__()
        self.slope = torch.nn.Parameter(torch.tensor(slopes))
        self.bias = torch.nn.Parameter(torch.tensor(biases))

    def logits(self, covariates: torch.Tensor) -> torch.Tensor:
        return covariates[:, :1] * self.slope + self.bias

    def forward(self, observed: torch.Tensor, covariates: torch.Tensor) -> torch.Tensor:
        sign = 2 * observed - 1
        return torch.nn.functional.logsigmoid(sign * self.logits(covariates))

    def sample(
        self, states: torch.Tensor, covariates: torch.Tensor, generator: torch.Generator
    ) -> torch.Tensor:
        chances = self.logits(covariates).sigmoid().gather(1, states.unsqueeze(1))
        return (torch.rand(chances.shape, generator=generator) < chances).double()


# %%
# The transition: for each state a line of logits of leaving it, of tiredness, covariate 1.


class Leaving(torch.nn.Module):
    """Scores (rows, 2, 2) of staying, 0, or leaving."""

    def __init__(self, slopes: list[float], biases: list[float]) -> None:
        super().__init__()
        self.slope = torch.nn.Parameter(torch.tensor(slopes))
        self.bias = torch.nn.Parameter(torch.tensor(biases))

    def forward(self, covariates: torch.Tensor) -> torch.Tensor:
        leave = covariates[:, 1:2] * self.slope + self.bias
        stay = torch.zeros_like(leave)
        rows = [torch.stack([stay, leave], 2)[:, 0], torch.stack([leave, stay], 2)[:, 1]]
        return torch.stack(rows, 1)


# %%
# Sessions are drawn: the animal gets tired, attends in state 0, and loses attention more often
# then.

half = torch.zeros(2).log_softmax(0)
truth = learn.HMM(
    2, learn.Driven(Choice([4.0, 0.3], [0.0, 1.5])), start=half,
    transition=Leaving([1.5, -0.5], [-4.0, -3.0]), covariates=[1, 2],
)  # fmt: skip
rows, states = [], []
for _ in range(sessions):
    stimulus = torch.randn(trials, generator=generator, dtype=torch.float64)
    tired = torch.linspace(-1.5, 1.5, trials, dtype=torch.float64)
    covariates = torch.stack([stimulus, tired], 1)
    shown, path = truth.sample(trials, generator, covariates=covariates)
    rows.append(torch.cat([shown, covariates], 1))
    states.append(path)
fitted, held = rows[: sessions // 2], rows[sessions // 2 :]

# %%
# Three models: hidden states without covariates, with emissions that depend on the stimulus, and
# with transitions that depend on tiredness too.

columns = [row[:, :1] for row in fitted]
symbols = learn.HMM(2, learn.Bernoulli(prior=1.0), limit=limit, starts=3)
symbols.fit(columns, generator=generator)
scores = {"no covariates": symbols.score([row[:, :1] for row in held])}
choice = Choice([2.0, 0.0], [0.0, 0.5])
models = {}
for name, transition in (("stimulus", None), ("and tiredness", Leaving([0.0, 0.0], [-2.0, -2.0]))):
    models[name] = learn.HMM(
        2, learn.Driven(choice), transition=transition, covariates=[1, 2], limit=limit
    ).fit(fitted)
    scores[name] = models[name].score(held)
scores["truth"] = truth.score(held)
for name, score in scores.items():
    print(f"{name}: {score / (len(held) * trials):.4f} nats a trial, sessions that were left out")

# %%
# How often states are known, and how the rate of losing attention depends on tiredness.

best = models["and tiredness"]
right = torch.cat(states[sessions // 2 :]) == best.predict(held)
print(f"{float(right.double().mean()):.3f} of the states are right")
grid = torch.linspace(-1.5, 1.5, 50, dtype=torch.float64)
at = torch.stack([torch.zeros_like(grid), grid], 1)
with torch.no_grad():
    lost = [model(at).softmax(-1)[:, 0, 1] for model in (best.transition_, truth.transition_)]

figure, (left, last) = plt.subplots(1, 2, figsize=(9, 3.6))
left.plot(grid, lost[0], label="fitted")
left.plot(grid, lost[1], ":", label="true")
left.set_xlabel("tiredness")
left.set_title("chance of losing attention")
left.legend()
last.plot(best.predict_proba(held[0])[:, 0], label="chance of attention")
last.plot(1 - states[sessions // 2].double() * 1.0, ":", color="0.4", label="true")
last.set_xlabel("trial")
last.legend()
figure.tight_layout()
