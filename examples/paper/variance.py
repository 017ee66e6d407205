"""Appendix B of the paper: the variance of the estimated Z and of its logarithm, in figures.

    python examples/paper/variance.py [--quick] [--repeats 200]

Z^ of a chain is a sum over sequences of their weights, and steps are drawn independently. So its
second moment is a sum over pairs of sequences, exact by one recursion over pairs of states: nothing
is simulated for the first columns. They are the standard deviation of Z^ / Z, and the square root
of the sum over steps of the variances that each would have alone, which is its limit as more states
are drawn. Then, from repeated runs, the standard deviation of log Z^, and its bias beside minus
half of its variance. Chains are those of table 2 (dense), by length, number of states, and split.
"""

import torch
from measure import Embedded, arguments, row
from potentials import case, tabulated
from torch import Tensor

import rdpgraph as rg


def tails(log_q: Tensor, top: int) -> tuple[Tensor, Tensor]:
    """States drawn beyond the ``top`` likeliest of each step, and their weights: (T, N) each."""
    first = log_q.topk(top, -1).indices
    rest = log_q.scatter(-1, first, -torch.inf)
    return rest > -torch.inf, rest.softmax(-1)


def relative_variance(chain: rg.Chain, log_q: Tensor, top: int, tail: int) -> float:
    """Var Z^ / Z^2 of `TopTail(top, tail)`, exactly; O(T N^3).

    The expected product of the weights of two states of a step is one if either is kept for
    certain, and else 1 - 1 / tail, and 1 / (tail q) more if they are the same.
    """
    marginals, drawn, share = _read(chain, log_q, top)
    total = len(marginals)
    pairs = torch.ones((), dtype=torch.float64)
    kernel = chain.edge_marginals()
    for step in range(total):
        both = drawn[step].unsqueeze(1) & drawn[step]
        weight = 1 - both.double() / tail
        weight += torch.diag(torch.where(drawn[step], 1 / (tail * share[step]), 0.0))
        if step:
            before = marginals[step - 1].unsqueeze(1)
            table = torch.where(before > 0, kernel[step - 1] / before.clamp(min=1e-300), 0.0)
            pairs = weight * (table.mT @ pairs @ table)
        else:
            pairs = weight * marginals[0].unsqueeze(1) * marginals[0]
    return float(pairs.sum() - 1)


def first_order(chain: rg.Chain, log_q: Tensor, top: int, tail: int) -> float:
    """The sum over steps of Var Z^ / Z^2 if that step alone were drawn.

    For each S^2 sum eps^2 / q / tail, S the mass of the tail and eps = p / S - q.
    """
    marginals, drawn, share = _read(chain, log_q, top)
    squares = torch.where(drawn, marginals.square() / share, 0.0).sum(-1)
    mass = torch.where(drawn, marginals, 0.0).sum(-1)
    return float(((squares - mass.square()) / tail).sum())


def _read(chain: rg.Chain, log_q: Tensor, top: int) -> tuple[Tensor, Tensor, Tensor]:
    drawn, share = tails(log_q.double(), top)
    return chain.marginals(), drawn, torch.where(drawn, share, 1.0)


def doubled(chain: rg.Chain) -> rg.Chain:
    """The chain with its transition written out, in double precision."""
    table = tabulated(chain)
    assert isinstance(table.transition, torch.Tensor)
    return rg.Chain(table.unary.double(), table.transition.double())


def line(steps: int, states: int, top: int, tail: int, repeats: int) -> None:
    one = case("dense", states=states, seed=0, steps=steps)
    exact = doubled(one.chain)
    proposal = rg.randomized.LocalGlobal(Embedded(one.norms))
    selection = rg.randomized.TopTail(top, tail)
    log_q = proposal.log_scores(one.chain.sites())
    many = rg.Randomized(proposal, selection, replicates=repeats, defensive=0.0)
    generator = torch.Generator().manual_seed(1)
    found = rg.infer(one.chain, estimator=many, generator=generator)
    assert isinstance(found, rg.StructuredPosterior)
    errors = found.log_partitions.double() - exact.log_partition()
    cells = (
        relative_variance(exact, log_q, top, tail) ** 0.5,
        first_order(exact, log_q, top, tail) ** 0.5,
        float(errors.std()),
        float(errors.mean()),
        -float(errors.var()) / 2,
    )
    row(f"T {steps}, N {states}, K1 {top}, K2 {tail}", [f"{cell:.3g}" for cell in cells])


if __name__ == "__main__":
    chosen = arguments("Appendix B of Fu, Cunningham and Lapata 2022.")
    sizes = (200,) if chosen.quick else (250, 500, 1000)
    print(f"{sizes[0]} states and more, {chosen.repeats} runs")
    row("", ["sd of Z^ / Z", "first order", "sd of log Z^", "bias", "- variance / 2"])
    middle = sizes[len(sizes) // 2]
    keep = middle // 10
    for steps in (5, 10, 20) if chosen.quick else (5, 10, 20, 40):
        line(steps, middle, keep // 2, keep // 2, chosen.repeats)
    for states in sizes:
        line(10, states, keep // 2, keep // 2, chosen.repeats)
    for tail in (1, keep // 10, keep // 2, 9 * keep // 10):
        line(10, middle, keep - tail, tail, chosen.repeats)
    for times in (1, 2, 4):
        line(10, middle, keep // 2, times * keep // 2, chosen.repeats)
