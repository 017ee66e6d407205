"""Structures and autograd: no_grad, create_graph, steps in place, inference mode, pickles."""

import math
import pickle
from functools import partial

import pytest
import torch

import rdpgraph as rg


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


def bilinear(seed=1):
    return rg.Bilinear(normal(3, 2, seed=seed), normal(3, 2, seed=seed + 1))


def low_rank(seed=1):
    return rg.LowRank(normal(3, 2, seed=seed), normal(3, 2, seed=seed + 1))


MODELS = {
    "chain": lambda u: rg.Chain(u, normal(3, 3, seed=1)),
    "embedded chain": lambda u: rg.Chain(u, bilinear()),
    "chain of low rank": lambda u: rg.Chain(u, low_rank()),
    "semi-Markov": lambda u: rg.SemiMarkov(u.reshape(2, 2, 3), normal(3, 3, seed=1)),
    "hypertree": lambda u: rg.Hypertree(u.reshape(2, 2, 3), rg.trees.DenseRules(normal(3, 3, 3))),
    "projective": lambda u: rg.ProjectiveDependencies(u.reshape(3, 4)),
    "non-projective": lambda u: rg.NonProjectiveDependencies(u.reshape(3, 4)),
    "graph": lambda u: rg.Chain(u, normal(3, 3, seed=1)).factor_graph(),
}
ESTIMATORS = {"exact": rg.Exact(), "estimated": rg.Randomized.default(keep=2, replicates=2)}
ANSWERS = {
    "log Z": lambda p: p.log_partition,
    "marginals": lambda p: marginals(p).square().sum(),
    "entropy": lambda p: p.entropy(),
}


def marginals(posterior):
    found = posterior.marginals()
    return next(iter(found.values())) if isinstance(found, dict) else found


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("name", MODELS)
def test_what_was_asked_without_gradients_cuts_none(name, estimator, answer):
    def asked(before):
        unary = normal(4, 3).requires_grad_()
        model = MODELS[name](unary)
        posterior = rg.infer(model, estimator=ESTIMATORS[estimator], generator=seeded())
        if before:
            with torch.no_grad():
                posterior.sample(2, generator=seeded(1))
                posterior.mode()
                for other in ANSWERS.values():
                    other(posterior)
        value = ANSWERS[answer](posterior)
        return value.detach(), torch.autograd.grad(value.sum(), unary)[0]

    plain, after = asked(before=False), asked(before=True)
    torch.testing.assert_close(after, plain)


def test_a_distribution_that_was_drawn_from_keeps_its_gradients():
    unary = torch.zeros(3, 2, requires_grad=True)
    drawn = rg.distributions.LinearChain(unary, torch.zeros(2, 2))
    sequence = drawn.sample()
    (gradient,) = torch.autograd.grad(drawn.log_prob(sequence), unary)
    expected = torch.nn.functional.one_hot(sequence, 2) - 0.5
    torch.testing.assert_close(gradient, expected)


@pytest.mark.parametrize("make", [lambda f: f, rg.Table, None], ids=["tensor", "table", "bilinear"])
def test_steps_in_place_are_seen(make):
    unary = torch.zeros(3, 3, requires_grad=True)
    table = torch.zeros(3, 3, requires_grad=True)
    transition = rg.Bilinear(table, torch.eye(3)) if make is None else make(table)
    chain = rg.Chain(unary, transition)
    asked = (
        chain.log_partition, chain.entropy, chain.marginals, chain.edge_counts, chain.mode,
        chain.max_marginals, chain.filtered,
    )  # fmt: skip
    for ask in asked:
        ask()
    with torch.no_grad():
        unary[:, 0] += 5
        table[1, 0] += 2
    fresh = rg.Chain(unary, transition)
    for ask in asked:
        torch.testing.assert_close(ask(), getattr(fresh, ask.__name__)())
    for _ in range(2):  # a second backward pass has a graph of its own
        chain.log_partition().backward()


@pytest.mark.parametrize("scale", [1.0, 30.0, 300.0])
@pytest.mark.parametrize("low", [False, True])
def test_gradients_with_a_graph_are_those_without(scale, low):
    """Both forms of the recursion; the unary potentials come from the transition too."""
    weights = (scale * normal(3, 3)).requires_grad_()
    inputs = normal(5, 3, seed=1)

    def log_z(weights):
        table = rg.LowRank(weights, weights.mT) if low else weights
        return rg.Chain(inputs @ weights, table).log_partition()

    value = log_z(weights)
    (plain,) = torch.autograd.grad(value, weights, retain_graph=True)
    (graphed,) = torch.autograd.grad(value, weights, create_graph=True)
    torch.testing.assert_close(graphed.detach(), plain, rtol=1e-7, atol=1e-7)
    if scale == 1.0:
        assert torch.autograd.gradgradcheck(log_z, (weights,), fast_mode=True)


def test_second_gradients_in_logs_count_each_step_once():
    """Log-space, where every step is a function of its own: brute force over all sequences."""
    unary, table = 3 * normal(4, 3), 3 * normal(3, 3, seed=1)
    unary[1, 0] += 900.0  # beyond the range of a scaled sum, and taken back by what leads there
    table[:, 0] -= 900.0
    unary[0, 0] -= 900.0
    unary[2:, 0] += 900.0
    table.requires_grad_()
    every = torch.cartesian_prod(*[torch.arange(3)] * 4)
    pairs = torch.nn.functional.one_hot(every[:, :-1] * 3 + every[:, 1:], 9).sum(1).double()

    def enumerated(table):
        scores = unary[torch.arange(4), every].sum(1) + pairs @ table.flatten()
        return scores.logsumexp(0)

    answers = []
    for ask in (lambda t: rg.Chain(unary, t).log_partition(), enumerated):
        (first,) = torch.autograd.grad(ask(table), table, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), table)
        answers.append((first.detach(), second))
    torch.testing.assert_close(*answers)


def test_expected_transitions_at_any_range():
    for scale in (1.0, 60.0, 300.0):
        unary, table = scale * normal(6, 4), (scale * normal(4, 4, seed=1)).requires_grad_()
        counts = rg.Chain(unary, table).edge_counts()
        with torch.no_grad():
            plain = rg.Chain(unary, table).edge_counts()
        torch.testing.assert_close(counts.detach(), plain)
        assert abs(float(counts.detach().sum()) - 5) < 1e-9


LOSSES = {
    "marginals": lambda one, _: one.marginals().square().sum((1, 2)),
    "counts": lambda one, _: one.edge_counts().square().sum((1, 2)),
    "entropy": lambda one, _: one.entropy(),
    "cross-entropy": lambda one, two: one.cross_entropy(two),
    "divergence": lambda one, two: one.kl_divergence(two),
}


@pytest.mark.parametrize("ask", LOSSES)
@pytest.mark.parametrize("shape", [(3, 3), (1, 3, 3, 3), (4, 3, 3, 3)])
@pytest.mark.parametrize("spread", [1.0, 100.0])
def test_gradients_of_losses_of_chains_are_those_of_torch(ask, shape, spread, by_torch):
    lengths = torch.tensor([4, 1, 0, 3])
    inputs = [spread * normal(*size, seed=seed) for seed, size in enumerate([(4, 4, 3), shape])]
    inputs += [part + spread * normal(*part.shape, seed=2) for part in inputs]
    for part in inputs:
        part.view(-1)[::7] = -math.inf
        part.requires_grad_()
    inputs[2].detach()[3, 1] = -math.inf  # what the second forbids to an item of the first

    def asked():
        one, two = (rg.Chain(*inputs[at : at + 2], lengths=lengths) for at in (0, 2))
        values = LOSSES[ask](one, two)
        loss = torch.where(values < math.inf, values, 0.0).sum()
        return values.detach(), *torch.autograd.grad(loss, inputs, materialize_grads=True)

    found = asked()
    torch.testing.assert_close(found, by_torch(asked), rtol=1e-6, atol=1e-8)
    assert all(bool(part.isfinite().all()) for part in found[1:])


@pytest.mark.parametrize("ask", LOSSES)
@pytest.mark.parametrize("compiled", [True, False])
def test_losses_of_chains_are_differentiable_twice(ask, compiled, by_torch):
    lengths = torch.tensor([3, 2])
    inputs = [normal(*size).requires_grad_() for size in ((2, 3, 2), (2, 2), (2, 3, 2), (2, 2))]

    def asked(*parts):
        one, two = (rg.Chain(*parts[at : at + 2], lengths=lengths) for at in (0, 2))
        return LOSSES[ask](one, two)

    for check in (torch.autograd.gradcheck, torch.autograd.gradgradcheck):
        run = partial(check, asked, inputs, fast_mode=True)
        assert run() if compiled else by_torch(run)


@pytest.mark.parametrize("transition", [torch.zeros(3, 3), None])
def test_sequences_of_one_step(transition):
    parts = [torch.zeros(3, 2, requires_grad=True) for _ in range(2)]
    table = rg.LowRank(*parts) if transition is None else transition.requires_grad_()
    unary = torch.randn(2, 1, 3, generator=seeded(), requires_grad=True)
    chain = rg.Chain(unary, table)
    torch.testing.assert_close(chain.marginals(), unary.softmax(-1))
    assert not chain.edge_counts().any()
    (gradient,) = torch.autograd.grad(chain.log_partition().sum(), unary, create_graph=True)
    gradient.square().sum().backward()
    chain.entropy().sum().backward()
    crf = rg.nn.CRF(3, batch_first=True)
    torch.testing.assert_close(crf.marginals(unary).sum(-1), torch.ones(2, 1))
    crf.entropy(unary).sum().backward()


EMPTY = {
    "chain": lambda: rg.Chain(torch.zeros(0, 4, 3), torch.zeros(3, 3)),
    "segments": lambda: rg.SemiMarkov(torch.zeros(0, 4, 2, 3), torch.zeros(3, 3)),
    "tree": lambda: rg.Hypertree(torch.zeros(0, 3, 3, 2)),
    "projective": lambda: rg.ProjectiveDependencies(torch.zeros(0, 3, 4)),
    "non-projective": lambda: rg.NonProjectiveDependencies(torch.zeros(0, 3, 4)),
    "alignment": lambda: rg.Alignment(torch.zeros(0, 2, 3, 3)),
    "bitext": lambda: rg.Bitext(torch.zeros(0, 3, 3, 3, 3, 1)),
    "parities": lambda: rg.ParityModel([[1, 1]], torch.zeros(0, 2)),
}


@pytest.mark.parametrize("name", EMPTY)
def test_no_items_have_no_answers(name):
    model = EMPTY[name]()
    assert model.log_partition().shape == model.entropy().shape == (0,)
    assert model.marginals().shape[0] == 0
    assert model.k_best(2).scores.shape == (2, 0)
    for drawn in (model.mode(), model.sample(2)):
        assert model.site_states(drawn).numel() == 0
    if name != "non-projective":
        few = rg.Randomized.default(keep=2)
        assert rg.infer(model, estimator=few).log_partition.shape == (0,)


@pytest.mark.parametrize("transition", [torch.zeros(3, 3), torch.zeros(3, 3, 3), "low rank"])
def test_nothing_to_do(transition):
    """No items, and no draws."""
    if isinstance(transition, str):
        transition = rg.LowRank(torch.zeros(3, 2), torch.zeros(3, 2))
    chain = rg.Chain(torch.zeros(0, 4, 3), transition)
    assert chain.mode().shape == (0, 4)
    assert chain.sample(2).shape == (2, 0, 4)
    assert chain.rsample(2, temperature=1.0).shape == (2, 0, 4, 3)
    assert chain.max_marginals().shape == chain.marginals().shape == (0, 4, 3)
    assert chain.entropy().shape == (0,)
    estimator = rg.Randomized.default(keep=2, replicates=2)
    assert rg.infer(chain, estimator=estimator).status.standard_error is None
    full = rg.Chain(torch.zeros(2, 4, 3), transition)
    assert full.sample(0).shape == (0, 2, 4)
    assert full.rsample(0, temperature=1.0).shape == (0, 2, 4, 3)


@pytest.mark.parametrize("name", MODELS)
def test_inference_mode(name):
    expected = rg.infer(MODELS[name](normal(4, 3)))
    with torch.inference_mode():
        found = rg.infer(MODELS[name](normal(4, 3)))
        torch.testing.assert_close(marginals(found), marginals(expected))
        torch.testing.assert_close(found.entropy(), expected.entropy())
        found.sample(2, generator=seeded())
        found.mode()
        if name != "graph":
            found.rsample(temperature=0.5, generator=seeded())


@pytest.mark.parametrize("states", [1, 3])
@pytest.mark.parametrize("kind", ["table", "low rank", "banded"])
def test_losses_of_chains_in_inference_mode(kind, states):
    sides = normal(states, 2, seed=1), normal(states, 2, seed=2)
    link = {"table": sides[0] @ sides[1].T, "low rank": rg.LowRank(*sides)}.get(kind)
    link = rg.Banded(normal(states, 1, seed=1), [0]) if link is None else link

    def asked():
        one, other = (rg.Chain(normal(2, 4, states, seed=seed), link) for seed in (3, 4))
        return one.entropy(), one.entropy_over(one.unary), one.kl_divergence(other)

    expected = asked()
    with torch.inference_mode():
        torch.testing.assert_close(asked(), expected)


def test_types_are_promoted_in_every_answer():
    chain = rg.Chain(torch.zeros(4, 6), torch.zeros(6, 6, dtype=torch.float64))
    estimated = rg.infer(chain, estimator=rg.Randomized.default(keep=4))
    for posterior in (rg.infer(chain), estimated):
        assert posterior.log_partition.dtype == torch.float64
        assert posterior.marginals().dtype == torch.float64
        assert posterior.entropy().dtype == torch.float64


@pytest.mark.parametrize("name", [name for name in MODELS if name != "graph"])
def test_structures_that_were_used_are_pickled(name):
    model = MODELS[name](normal(4, 3))
    model.log_partition()
    model.mode()
    again = pickle.loads(pickle.dumps(model))
    torch.testing.assert_close(again.log_partition(), model.log_partition())


def test_what_stands_beyond_a_length_may_be_anything():
    lengths = torch.tensor([2, 4])
    emissions, table = normal(2, 4, 3), normal(3, 3, seed=1)
    clean = rg.Chain.crf(emissions, table, lengths=lengths)
    emissions[0, 2:] = torch.tensor([math.nan, math.inf, -math.inf])
    torch.testing.assert_close(
        rg.Chain.crf(emissions, table, lengths=lengths).marginals(), clean.marginals()
    )
    start, step, shown = (normal(*s).log_softmax(-1) for s in ((3,), (3, 3), (3, 5)))
    seen = torch.tensor([[0, 4, -100, 99], [1, 2, 3, -1]])
    hmm = rg.Chain.hmm(start, step, shown, seen, lengths=lengths)
    first = rg.Chain.hmm(start, step, shown, seen[0, :2])
    torch.testing.assert_close(hmm.log_partition()[0], first.log_partition())


def ranged(kind, scale, dtype, seed):
    generator = torch.Generator().manual_seed(seed)

    def leaf(*shape):
        values = scale * torch.randn(*shape, generator=generator, dtype=dtype)
        return values.requires_grad_()

    if kind in ("semi-Markov", "semi-Markov of low rank"):
        leaves = [leaf(6, 3, 5)]
    else:
        leaves = [leaf(10, 5)]
    if "low rank" in kind:
        leaves += [leaf(5, 2), leaf(5, 2)]
        transition = rg.LowRank(*leaves[1:])
    else:
        leaves.append(leaf(9, 5, 5) if kind == "by steps" else leaf(5, 5))
        transition = leaves[1]
    made = rg.SemiMarkov if "semi" in kind else rg.Chain
    return made(leaves[0], transition), leaves


@pytest.mark.long
@pytest.mark.cover(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [2.0, 20.0, 30.0, 100.0, 1000.0])
@pytest.mark.parametrize(
    "kind", ["chain", "by steps", "low rank", "semi-Markov", "semi-Markov of low rank"]
)
def test_no_range_makes_a_gradient_that_is_no_number(kind, scale, dtype):
    for seed in range(3):
        model, leaves = ranged(kind, scale, dtype, seed)
        with torch.no_grad():
            plain = model.marginals()
        assert bool(plain.isfinite().all())
        noise = torch.Generator().manual_seed(seed)
        answers = (
            model.log_partition(),
            model.marginals().square().sum(),
            model.entropy(),
            model.rsample(1, temperature=0.3, generator=noise).square().sum(),
        )
        for answer in answers:
            for gradient in torch.autograd.grad(answer, leaves, allow_unused=True):
                assert gradient is None or bool(gradient.isfinite().all())


def test_an_item_of_wide_range_leaves_the_others_alone():
    generator = torch.Generator().manual_seed(8)
    unary = torch.randn(8, 12, 6, generator=generator)
    unary[3] *= 30
    table = 30 * torch.randn(6, 6, generator=generator)
    leaves = [unary.requires_grad_(), table.requires_grad_()]
    log_z = rg.Chain(*leaves).log_partition()
    found = torch.autograd.grad(log_z.sum(), leaves)
    wide = [leaf.detach().double().requires_grad_() for leaf in leaves]
    expected = torch.autograd.grad(rg.Chain(*wide).log_partition().sum(), wide)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine.double(), theirs, rtol=1e-3, atol=1e-3)
