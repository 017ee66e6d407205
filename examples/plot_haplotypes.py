"""
Haplotypes: what was not genotyped
==================================

A new haplotype is a mosaic of those of a panel (Li and Stephens 2003): it is copied from one of
them, and jumps to another now and then. Of a few sites that were genotyped, the chances of all
haplotypes at all sites follow, and with them the alleles that were not. The rate of jumps and that
of errors are learned by gradients.
"""

import math
import sys

import matplotlib.pyplot as plt
import torch

import rdpgraph as rg

quick = "--quick" in sys.argv
sites, size, targets, every = (60, 40, 4, 5) if quick else (400, 300, 20, 10)
generator = torch.Generator().manual_seed(0)

# %%
# A population in which haplotypes recombine: 80 generations after founders whose alleles have all
# frequencies. Sites are at random places, so that some steps are long and some short.

places = torch.rand(sites, generator=generator, dtype=torch.float64).sort().values
gaps = places.diff()
people, founders, generations = size + targets, 24, 80
frequency = 0.05 + 0.45 * torch.rand(sites, generator=generator)
alleles = torch.rand(founders, sites, generator=generator) < frequency
alleles = alleles[torch.randint(founders, (people,), generator=generator)]
for _ in range(generations):
    first, second = torch.randint(people, (2, people), generator=generator)
    crossing = torch.rand(people, generator=generator).unsqueeze(1)
    alleles = torch.where(places < 2 * crossing, alleles[first], alleles[second])
alleles = alleles ^ (torch.rand(people, sites, generator=generator) < 0.003)  # mutations since
panel, truth = alleles[:size], alleles[size:]
typed = torch.arange(sites) % every == 0

# %%
# The chain: a state is a haplotype of the panel. Between neighbouring sites it stays, or jumps to
# any of them alike: a diagonal and one rank, with a rate for each step. An allele that was typed
# differs from the haplotype's by error; others say nothing.


def chain(seen: torch.Tensor, jump: torch.Tensor, error: torch.Tensor) -> rg.Chain:
    """The haplotypes (*batch, sites) are copied from, by jumps in all and a rate of errors."""
    rates, shape = (jump * gaps).reshape(-1, 1, 1), (sites - 1, size, 1)
    leave = torch.log(-torch.expm1(-rates)) - math.log(size)
    enter = torch.zeros(1, 1, dtype=torch.float64).expand(size, 1)  # any of them alike
    between = rg.Banded(-rates.expand(shape), (0,), rg.LowRank(leave.expand(shape), enter))
    same = seen.unsqueeze(-1) == panel.T
    fits = torch.where(same, torch.log1p(-error), error.log())
    start = -math.log(size) * (torch.arange(sites) == 0).unsqueeze(1)
    return rg.Chain(torch.where(typed.unsqueeze(1), fits, 0.0) + start, between)


# %%
# Both rates are learned from what was typed alone, by gradients of the log-likelihood.

free = torch.tensor([math.log(20.0), math.log(0.02)], dtype=torch.float64, requires_grad=True)
optimizer = torch.optim.LBFGS([free], line_search_fn="strong_wolfe", max_iter=5 if quick else 15)


def loss() -> torch.Tensor:
    optimizer.zero_grad()
    value = -chain(truth, *free.exp()).log_partition().mean()
    value.backward()
    return value


optimizer.step(loss)
jump, error = free.detach().exp()
print(f"{float(jump):.1f} jumps along the sites, errors {float(error):.4f}")

# %%
# The expected allele at each site, and its correlation with the truth; beside it the textbook's
# recursions, forwards and backwards with every step normalised.

model = chain(truth, jump, error)
dosage = (model.marginals() * panel.T).sum(-1)


def textbook(seen: torch.Tensor) -> torch.Tensor:
    """(sites,) dosages of one haplotype by hand."""
    emit = torch.where(seen.unsqueeze(1) == panel.T, 1 - error, error)
    emit = torch.where(typed.unsqueeze(1), emit, 1.0)
    stay = torch.exp(-jump * gaps)
    forward = [emit[0] / emit[0].sum()]
    for step in range(sites - 1):
        moved = stay[step] * forward[-1] + (1 - stay[step]) / size
        forward.append(moved * emit[step + 1] / (moved * emit[step + 1]).sum())
    back = [torch.ones(size, dtype=torch.float64)]
    for step in range(sites - 2, -1, -1):
        later = back[-1] * emit[step + 1]
        later = stay[step] * later + (1 - stay[step]) * later.mean()
        back.append(later / later.mean())
    chances = torch.stack(forward) * torch.stack(back[::-1])
    return (chances / chances.sum(1, keepdim=True) * panel.T).sum(1)


off = max(
    float((textbook(seen) - row).abs().max()) for seen, row in zip(truth, dosage, strict=True)
)
print(f"at most {off:.1e} off the textbook's recursions")


def correlation(guess: torch.Tensor) -> float:
    """The squared correlation with the truth at sites that were not typed."""
    rows = torch.stack([guess[:, ~typed].flatten(), truth[:, ~typed].double().flatten()])
    return float(torch.corrcoef(rows)[0, 1] ** 2)


often = panel.double().mean(0).expand(targets, -1)
print(f"squared correlation {correlation(dosage):.3f}; by frequencies {correlation(often):.3f}")

# %%
# The best mosaic of one haplotype, and how sure each allele is.

figure, (upper, lower) = plt.subplots(2, 1, figsize=(9, 4.5), sharex=True)
upper.plot(places, model.mode()[0], drawstyle="steps-mid")
upper.set_ylabel("copied from")
lower.plot(places, dosage[0], ".", color="0.6", label="chance of the allele 1")
wrong = (dosage[0] > 0.5) != truth[0]
lower.plot(places[wrong], dosage[0][wrong], "rx", label="wrong")
lower.plot(places[typed], truth[0][typed].double(), "|k", markersize=10, label="typed")
lower.set_xlabel("place")
lower.legend(loc="center right")
figure.tight_layout()
