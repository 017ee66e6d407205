"""Haplotypes by Li and Stephens: seconds, and the accuracy of imputation, beside NumPy by hand.

    pip install msprime==1.4.4
    OMP_NUM_THREADS=1 python tests/benchmarks/haplotypes.py --sites 2000 --panel 2000

The panel is simulated by msprime where it is installed, else alleles are drawn independently: then
the times mean as much, and the accuracy nothing. A haplotype is a state, every tenth site is typed,
and the rate of jumps and that of errors are learned from what was typed.
"""

import argparse
import importlib.util
import math
import time
from collections.abc import Callable

import numpy as np
import torch

import rdpgraph as rg

Array = np.ndarray
EVERY = 10  # sites for each one that is typed


def simulated(sites: int, haplotypes: int) -> tuple[Array, Array]:
    """Places (sites,) in Morgans and alleles (haplotypes, sites), common ones."""
    draw = np.random.default_rng(0)
    if importlib.util.find_spec("msprime") is None:
        print("msprime is not here: alleles are independent")
        rates = draw.random(sites) * 0.5
        return np.sort(draw.random(sites)) / 10, draw.random((haplotypes, sites)) < rates
    import msprime

    length = 1_500 * sites  # bases; about as many common sites follow
    tree = msprime.sim_ancestry(
        (haplotypes + 1) // 2, population_size=10_000, recombination_rate=1e-8,
        sequence_length=length, random_seed=1,
    )  # fmt: skip
    tree = msprime.sim_mutations(tree, rate=1.3e-8, random_seed=2)
    alleles = tree.genotype_matrix()[:, :haplotypes].T > 0
    common = np.minimum(alleles.mean(0), 1 - alleles.mean(0)) > 0.02
    return tree.tables.sites.position[common][:sites] * 1e-8, alleles[:, common][:, :sites]


def by_hand(panel: Array, typed: Array, seen: Array, rates: Array, error: float) -> Array:
    """(sites,) expected alleles by forward and backward recursions, as textbooks have them."""
    size, sites = panel.shape
    fits = np.where(typed[:, None], np.where(seen[:, None] == panel.T, 1 - error, error), 1.0)
    stay, chances = np.exp(-rates), np.empty((sites, size))
    state = fits[0] / fits[0].sum()
    chances[0] = state
    for step in range(sites - 1):
        state = (stay[step] * state + (1 - stay[step]) / size) * fits[step + 1]
        state /= state.sum()
        chances[step + 1] = state
    back = np.ones(size)
    for step in range(sites - 2, -1, -1):
        back *= fits[step + 1]
        back = stay[step] * back + (1 - stay[step]) * back.mean()
        back /= back.mean()
        chances[step] *= back
    return (chances * panel.T).sum(1) / chances.sum(1)


def chain(
    panel: torch.Tensor, typed: torch.Tensor, seen: torch.Tensor, rates: torch.Tensor,
    error: torch.Tensor,
) -> rg.Chain:  # fmt: skip
    """The haplotypes that one, or several, (*batch, sites), are copied from."""
    size, sites = panel.shape
    start = -math.log(size) * (torch.arange(sites) == 0).unsqueeze(1)
    fits = torch.where(seen.unsqueeze(-1) == panel.T, torch.log1p(-error), error.log())
    unary = torch.where(typed.unsqueeze(1), fits, 0.0) + start
    rates, shape = rates.reshape(-1, 1, 1), (sites - 1, size, 1)
    leave = torch.log(-torch.expm1(-rates)) - math.log(size)
    enter = unary.new_zeros(1, 1).expand(size, 1)  # any of them alike
    rest = rg.LowRank(leave.expand(shape), enter)
    return rg.Chain(unary, rg.Banded(-rates.expand(shape), (0,), rest))


def learned(panel: torch.Tensor, typed: torch.Tensor, seen: torch.Tensor, gaps: torch.Tensor):
    """Jumps for each Morgan and the rate of errors, by gradients of the log-likelihood."""
    free = torch.tensor([math.log(200.0), math.log(0.01)]).to(gaps).requires_grad_()
    optimizer = torch.optim.LBFGS([free], line_search_fn="strong_wolfe", max_iter=12)

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        jump, error = free.exp()
        value = -chain(panel, typed, seen, jump * gaps, error).log_partition().mean()
        value.backward()
        return value

    optimizer.step(loss)
    return free.detach().exp()


def seconds(ask: Callable[[], object]) -> str:
    """CPU milliseconds of the second of two calls."""
    ask()
    begun = time.process_time()
    ask()
    return f"{1000 * (time.process_time() - begun):.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sites", type=int, default=2000)
    parser.add_argument("--panel", type=int, default=2000)
    parser.add_argument("--reference", type=int, default=100)
    parser.add_argument("--targets", type=int, default=10)
    options = parser.parse_args()
    places, alleles = simulated(options.sites, options.panel + options.targets)
    sites = len(places)
    panel, truth = (
        torch.from_numpy(p) for p in (alleles[: options.panel], alleles[options.panel :])
    )
    typed, gaps = (
        torch.arange(sites) % EVERY == 0,
        torch.from_numpy(np.diff(places)).clamp(min=1e-12),
    )
    jump, error = torch.tensor([1000.0, 0.001], dtype=torch.float64)

    print(
        "| CPU milliseconds | log Z | and its gradient in the rates | marginals | mode | a draw |"
    )
    print("|---|---|---|---|---|---|")
    for dtype in (torch.float64, torch.float32):
        rates = (jump * gaps).to(dtype)
        model = chain(panel, typed, truth[0], rates, error.to(dtype))
        free = rates.clone().requires_grad_()
        asked = (
            lambda model=model: model.log_partition(),
            lambda free=free, dtype=dtype: torch.autograd.grad(
                chain(panel, typed, truth[0], free, error.to(dtype)).log_partition(), free
            ),
            lambda model=model: model.marginals(),
            lambda model=model: model.mode(),
            lambda model=model: model.sample(1, torch.Generator().manual_seed(0)),
        )
        print(f"| {str(dtype)[6:]} | {' | '.join(map(seconds, asked))} |")
    given = panel.numpy(), typed.numpy(), truth[0].numpy(), (jump * gaps).numpy(), float(error)
    print(f"| NumPy by hand | | | {seconds(lambda: by_hand(*given))} | | |")

    # Accuracy with a panel of few, of whom none is as close.
    panel = panel[: options.reference]
    jump, error = learned(panel, typed, truth, gaps)
    given = panel.numpy(), typed.numpy(), truth[0].numpy(), (jump * gaps).numpy(), float(error)
    print(f"{len(panel)} haplotypes: {jump:.0f} jumps a Morgan and errors {error:.5f} are learned")
    dosages = torch.stack([
        (chain(panel, typed, seen, jump * gaps, error).marginals() * panel.T).sum(-1)
        for seen in truth
    ])  # fmt: skip
    hand = [by_hand(given[0], given[1], seen.numpy(), given[3], given[4]) for seen in truth]
    off = np.abs(np.stack(hand) - dosages.numpy()).max()
    left = ~typed
    pairs = torch.stack([dosages[:, left].flatten(), truth[:, left].double().flatten()])
    common = panel.double().mean(0)[left].expand(len(truth), -1).flatten()
    plain = torch.corrcoef(torch.stack([common, pairs[1]]))[0, 1] ** 2
    print(f"squared correlation {torch.corrcoef(pairs)[0, 1] ** 2:.3f}, by frequencies {plain:.3f}")
    print(f"alleles that are right {((pairs[0] > 0.5) == (pairs[1] > 0.5)).double().mean():.3f}")
    print(f"at most {off:.1e} off the recursions by hand")


if __name__ == "__main__":
    main()
