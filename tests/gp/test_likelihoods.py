"""Log-probabilities of labels, batched over samples of scores: equal to brute force."""

import itertools

import pytest
import torch

import rdpgraph as rg
from rdpgraph.errors import ModelError, UnsupportedError
from rdpgraph.gp import (
    ChainLikelihood,
    GraphLikelihood,
    Labelling,
    Likelihood,
    PiecewisePseudoLikelihood,
)

SAMPLES, LABELS, LENGTHS = 3, 3, (4, 1, 2)


def problem(scale=1.0, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    unary = torch.randn(SAMPLES, len(LENGTHS), max(LENGTHS), LABELS, generator=generator)
    pairwise = scale * torch.randn(SAMPLES, LABELS, LABELS, generator=generator)
    states = torch.full((len(LENGTHS), max(LENGTHS)), -1)
    for item, length in enumerate(LENGTHS):
        states[item, :length] = torch.randint(LABELS, (length,), generator=generator)
    return Labelling(states, torch.tensor(LENGTHS)), unary.to(dtype), pairwise.to(dtype)


def brute(labels, unary, pairwise, edges):
    """Log-probabilities (S, B) and marginals by enumeration."""
    values = torch.zeros(unary.shape[:2], dtype=unary.dtype)
    marginals = torch.zeros_like(unary)
    for sample, item in itertools.product(range(unary.shape[0]), range(unary.shape[1])):
        length = int(labels.lengths[item])

        def score(states, sample=sample, item=item):
            own = sum(unary[sample, item, t, state] for t, state in enumerate(states))
            return own + sum(pairwise[sample, states[a], states[b]] for a, b in edges[item])

        every = list(itertools.product(range(LABELS), repeat=length))
        scores = torch.stack([score(states) for states in every])
        truth = every.index(tuple(labels.states[item, :length].tolist()))
        values[sample, item] = scores.log_softmax(0)[truth]
        for states, weight in zip(every, scores.softmax(0), strict=True):
            for step, state in enumerate(states):
                marginals[sample, item, step, state] += weight
    return values, marginals


CHAIN = [[(t, t + 1) for t in range(length - 1)] for length in LENGTHS]
SKIP = [[*CHAIN[0], (0, 3), (2, 0)], *CHAIN[1:]]


@pytest.mark.parametrize("scale", [1.0, 300.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_chains_equal_brute_force_also_where_scores_are_far_apart(scale, dtype):
    labels, unary, pairwise = problem(scale, dtype)
    values, marginals = brute(labels, unary, pairwise, CHAIN)
    likelihood = ChainLikelihood()
    torch.testing.assert_close(likelihood.log_prob(labels, unary, pairwise), values)
    torch.testing.assert_close(likelihood.marginals(labels, unary, pairwise), marginals,
                               atol=1e-5, rtol=1e-4)  # fmt: skip


def test_gradients_of_chains_are_those_of_brute_force():
    labels, unary, pairwise = problem()
    inputs = (unary.requires_grad_(), pairwise.requires_grad_())
    own, (its, _) = ChainLikelihood().log_prob(labels, *inputs), brute(labels, *inputs, CHAIN)
    weights = torch.linspace(-1, 2, own.numel(), dtype=own.dtype).reshape(own.shape)
    for one, other in zip(
        torch.autograd.grad((own * weights).sum(), inputs),
        torch.autograd.grad((its * weights).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(one, other)
    torch.autograd.gradcheck(
        lambda *given: ChainLikelihood().log_prob(labels, *given), inputs, fast_mode=True
    )


@pytest.mark.parametrize("likelihood", [ChainLikelihood(), GraphLikelihood()])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_hard_zeros_of_scores_are_those_of_brute_force(likelihood, dtype):
    labels, unary, pairwise = problem(dtype=dtype)
    pairwise[0, 1, 2] = unary[1, 0, 2, 0] = -torch.inf
    unary[2, 1] = -torch.inf  # all labels of a sequence of one position
    values, marginals = (
        value.nan_to_num(0.0 if value.ndim > 2 else -torch.inf, neginf=-torch.inf)
        for value in brute(labels, unary, pairwise, CHAIN)
    )
    torch.testing.assert_close(likelihood.log_prob(labels, unary, pairwise), values)
    torch.testing.assert_close(likelihood.marginals(labels, unary, pairwise), marginals)
    inputs = unary.requires_grad_(), pairwise.requires_grad_()
    total = likelihood.log_prob(labels, *inputs)
    for slope in torch.autograd.grad(total[total > -torch.inf].sum(), inputs):
        assert bool(slope.isfinite().all())


def test_gradients_of_chains_are_not_differentiated_in_silence():
    labels, unary, pairwise = problem()
    roots = unary.requires_grad_()
    total = ChainLikelihood().log_prob(labels, roots.square(), pairwise).sum()
    (slope,) = torch.autograd.grad(total, roots, create_graph=True)
    with pytest.raises(UnsupportedError, match="differentiable once"):
        slope.sum().backward()


def test_many_sequences_are_the_same_ones_by_themselves():
    generator = torch.Generator().manual_seed(1)
    unary = torch.randn(2, 9, 5, 4, dtype=torch.float64, generator=generator)
    pairwise = torch.randn(2, 4, 4, dtype=torch.float64, generator=generator)
    lengths = torch.tensor([5, 1, 2, 3, 4, 5, 5, 2, 1])
    states = torch.randint(4, (9, 5), generator=generator)
    states[torch.arange(5) >= lengths.unsqueeze(1)] = -1
    together = ChainLikelihood().log_prob(Labelling(states, lengths), unary, pairwise)
    for item, length in enumerate(lengths.tolist()):
        own = slice(item, item + 1)
        one = Labelling(states[own, :length], lengths[own])
        alone = ChainLikelihood().log_prob(one, unary[:, own, :length], pairwise)
        torch.testing.assert_close(together[:, own], alone)


@pytest.mark.parametrize("scheduler", [None, rg.Contraction()])
def test_graphs_equal_brute_force(scheduler):
    labels, unary, pairwise = problem()
    edges = tuple(torch.tensor(one, dtype=torch.long).reshape(-1, 2) for one in SKIP)
    tied = Labelling(labels.states, labels.lengths, edges)
    values, marginals = brute(labels, unary, pairwise, SKIP)
    likelihood = GraphLikelihood(scheduler)
    torch.testing.assert_close(likelihood.log_prob(tied, unary, pairwise), values)
    torch.testing.assert_close(likelihood.marginals(tied, unary, pairwise), marginals)
    torch.testing.assert_close(
        likelihood.log_prob(labels, unary, pairwise),
        ChainLikelihood().log_prob(labels, unary, pairwise),
    )


@pytest.mark.long
def test_graphs_are_solved_together_where_edges_are_among_those_of_a_longer_sequence():
    """Also edges that are there twice or not at all, and where neither has those of the other."""
    labels, unary, pairwise = problem()
    unary.requires_grad_()
    for edges in (
        [SKIP[0], [], [(0, 1)]],
        [[(0, 1), (0, 1), (1, 3)], [], [(0, 1), (0, 1)]],
        [CHAIN[0], [], [(1, 0)]],
    ):
        tied = Labelling(
            labels.states,
            labels.lengths,
            tuple(torch.tensor(one, dtype=torch.long).reshape(-1, 2) for one in edges),
        )
        found = GraphLikelihood().log_prob(tied, unary, pairwise)
        values, marginals = brute(labels, unary, pairwise, edges)
        torch.testing.assert_close(found, values)
        for one, other in zip(
            torch.autograd.grad(found.sum(), unary),
            torch.autograd.grad(values.sum(), unary),
            strict=True,
        ):
            torch.testing.assert_close(one, other)
        torch.testing.assert_close(
            GraphLikelihood().marginals(tied, unary, pairwise), marginals.detach()
        )


def test_loopy_graphs_have_gradients_and_are_exact_on_trees():
    labels, unary, pairwise = problem()
    unary.requires_grad_()
    loopy = GraphLikelihood(rg.Loopy(sweeps=20)).log_prob(labels, unary, pairwise)
    exact = ChainLikelihood().log_prob(labels, unary, pairwise)
    torch.testing.assert_close(loopy, exact)
    (one,), (other,) = (torch.autograd.grad(each.sum(), unary) for each in (loopy, exact))
    torch.testing.assert_close(one, other)


def tied(labels, edges):
    """A labelling with edges; None: without."""
    pairs = tuple(torch.tensor(one, dtype=torch.long).reshape(-1, 2) for one in edges or ())
    return Labelling(labels.states, labels.lengths, pairs if edges else None)


# Positions without an edge, edges twice and backwards, none at all.
LOOSE = [[(0, 1), (3, 0), (0, 1)], [], [(1, 0)]]


@pytest.mark.parametrize("edges", [None, CHAIN, SKIP, LOOSE, [[], [], []]])
def test_the_pseudo_likelihood_is_a_sum_over_tied_pairs(edges):
    labels, unary, pairwise = problem()
    found = PiecewisePseudoLikelihood().log_prob(tied(labels, edges), unary, pairwise)
    for sample, item in itertools.product(range(SAMPLES), range(len(LENGTHS))):
        states = labels.states[item, : LENGTHS[item]].tolist()
        own, pairs = unary[sample, item], (edges or CHAIN)[item]
        alone = set(range(len(states))) - {place for pair in pairs for place in pair}
        total = sum(own[place].log_softmax(0)[states[place]] for place in alone)
        for first, second in pairs:
            one, other = states[first], states[second]
            total += (own[second] + pairwise[sample, one]).log_softmax(0)[other]
            total += (own[first] + pairwise[sample, :, other]).log_softmax(0)[one]
        torch.testing.assert_close(found[sample, item], torch.as_tensor(total, dtype=own.dtype))


@pytest.mark.parametrize("scale", [1.0, 100.0, 300.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("edges", [None, SKIP, LOOSE])
def test_the_pseudo_likelihood_is_the_sum_of_its_pieces(scale, dtype, edges):
    """Also where scores of labels are far apart, and gradients with them."""
    labels, unary, pairwise = problem(scale, dtype)
    labels = tied(labels, edges)
    unary = (30 * unary).requires_grad_()
    likelihood = PiecewisePseudoLikelihood()
    pieces = likelihood.pieces(labels)
    cut = unary[:, pieces.sequences.unsqueeze(1), pieces.positions]
    values = likelihood.log_prob(pieces.labels, cut, pairwise)
    totals = torch.stack([pieces.totals(one, len(LENGTHS)) for one in values])
    whole = likelihood.log_prob(labels, unary, pairwise)
    torch.testing.assert_close(totals, whole)
    for one, other in zip(
        torch.autograd.grad(totals.sum(), unary),
        torch.autograd.grad(whole.sum(), unary),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("likelihood", [ChainLikelihood(), GraphLikelihood()])
def test_draws_have_the_marginals(likelihood):
    labels, unary, pairwise = problem()
    repeats = 400
    many = unary[:1].repeat(repeats, 1, 1, 1), pairwise[:1].repeat(repeats, 1, 1)
    drawn = likelihood.sample(labels, *many, torch.Generator().manual_seed(0))
    assert ((drawn == -1) == ~labels.inside()).all()
    counts = torch.nn.functional.one_hot(drawn.clamp(min=0), LABELS).double().mean(0)
    expected = likelihood.marginals(labels, unary[:1], pairwise[:1])[0]
    apart = (counts - expected)[labels.inside()].abs()
    assert (apart < 5 * (0.25 / repeats) ** 0.5).all()


def test_edges_are_not_ignored():
    labels, unary, pairwise = problem()
    skip = tied(labels, SKIP)
    for ask in (
        lambda: ChainLikelihood().log_prob(skip, unary, pairwise),
        lambda: ChainLikelihood().marginals(skip, unary, pairwise),
        lambda: ChainLikelihood().sample(skip, unary, pairwise, None),
    ):
        with pytest.raises(UnsupportedError, match=r"use GraphLikelihood\(\) or Piecewise"):
            ask()
    for scheduler in (None, rg.Contraction()):
        piecewise = PiecewisePseudoLikelihood(scheduler)
        found = piecewise.marginals(skip, unary, pairwise)
        torch.testing.assert_close(found, brute(skip, unary, pairwise, SKIP)[1])
        drawn = piecewise.sample(skip, unary, pairwise, torch.Generator().manual_seed(0))
        assert ((drawn == -1) == ~labels.inside()).all()
    chain = PiecewisePseudoLikelihood().marginals(labels, unary, pairwise)
    torch.testing.assert_close(chain, ChainLikelihood().marginals(labels, unary, pairwise))
    with pytest.raises(ModelError, match="from position 2 to itself"):
        PiecewisePseudoLikelihood().log_prob(tied(labels, [[(2, 2)], [], []]), unary, pairwise)


def test_a_black_box_trains_without_marginals():
    class Mine(Likelihood):
        def log_prob(self, labels, unary, pairwise):
            return unary.new_zeros(unary.shape[:2])

    labels, unary, pairwise = problem()
    with pytest.raises(UnsupportedError, match="Mine has no marginals"):
        Mine().marginals(labels, unary, pairwise)
    with pytest.raises(UnsupportedError, match="Mine has no samples"):
        Mine().sample(labels, unary, pairwise, None)
