"""Chains with a transition of low rank: every answer is that of the dense chain."""

import math

import pytest
import torch

import rdpgraph as rg
from rdpgraph.testing import brute_force, check_structure

WIDE = torch.float64
LEADS = {"shared": ((), ()), "per step": ((5,), (5,)), "per item": ((4, 5), (4, 5)),
         "mixed": ((), (4, 5))}  # fmt: skip


def problem(scale=1.0, lead="shared", dtype=WIDE, seed=0, zeros=True):
    """Unary, factors and lengths: 4 items of 6 steps, 7 states, rank 3."""
    generator = torch.Generator().manual_seed(seed)
    first, second = LEADS[lead]

    def drawn(*shape):
        return (scale * torch.randn(shape, generator=generator, dtype=WIDE)).to(dtype)

    unary, left, right = drawn(4, 6, 7), drawn(*first, 7, 3), drawn(*second, 7, 3)
    if zeros:
        unary[0, 2, 3] = left[..., 1, 0] = right[..., 2, :] = -math.inf
    tensors = tuple(part.requires_grad_() for part in (unary, left, right))
    return tensors, torch.tensor([6, 0, 1, 4])


def closeness(dtype):
    return {"rtol": 1e-10, "atol": 1e-10} if dtype == WIDE else {"rtol": 1e-5, "atol": 1e-4}


@pytest.mark.parametrize("lead", LEADS)
@pytest.mark.parametrize("scale", [1.0, 30.0, 200.0])
@pytest.mark.parametrize("dtype", [torch.float32, WIDE])
def test_log_z_and_its_gradient_are_those_of_the_dense_chain(lead, scale, dtype):
    tensors, lengths = problem(scale, lead, dtype)
    unary, left, right = tensors
    found = rg.Chain(unary, rg.LowRank(left, right), lengths=lengths).log_partition()
    wide = [part.double() for part in tensors]
    dense = rg.Chain(wide[0], rg.LowRank(*wide[1:]).table(2), lengths=lengths).log_partition()
    assert torch.allclose(found.double(), dense, **closeness(dtype))
    for own, expected in zip(
        torch.autograd.grad(found.sum(), tensors),
        torch.autograd.grad(dense.sum(), tensors),
        strict=True,
    ):
        assert torch.allclose(own, expected, **closeness(dtype))


@pytest.mark.parametrize("scale", [1.0, 60.0])
@pytest.mark.parametrize(
    "answer", ["marginals", "filtered", "entropy", "max_marginals", "edge_counts", "edge_marginals"]
)
def test_answers_and_their_gradients_are_those_of_the_dense_chain(scale, answer):
    tensors, lengths = problem(scale)
    unary, left, right = tensors
    potential = rg.LowRank(left, right)
    low = rg.Chain(unary, potential, lengths=lengths)
    dense = rg.Chain(unary, potential.table(2), lengths=lengths)
    found, expected = getattr(low, answer)(), getattr(dense, answer)()
    assert torch.equal(found == -math.inf, expected == -math.inf)
    finite = expected > -math.inf
    assert torch.allclose(found[finite], expected[finite], rtol=1e-9, atol=1e-9)
    weights = torch.randn(found.shape, generator=torch.Generator().manual_seed(1), dtype=WIDE)
    pair = [
        torch.autograd.grad((values * weights)[finite].sum(), tensors, retain_graph=True,
                            allow_unused=True, materialize_grads=True)
        for values in (found, expected)
    ]  # fmt: skip
    for own, other in zip(*pair, strict=True):
        assert torch.allclose(own, other, rtol=1e-8, atol=1e-8)


@pytest.mark.long
@pytest.mark.cover(1)
@pytest.mark.parametrize(
    ("shape", "lead", "lengths"),
    [((4, 3), (), None), ((3, 4, 3), (), [4, 0, 1]), ((2, 4, 3), (3,), [2, 4]),
     ((2, 1, 3), (), None), ((2, 0, 3), (), None)],
)  # fmt: skip
def test_conformance(shape, lead, lengths):
    generator = torch.Generator().manual_seed(0)
    unary = torch.randn(shape, generator=generator, dtype=WIDE)
    factors = [torch.randn(*lead, 3, 2, generator=generator, dtype=WIDE) for _ in range(2)]
    lengths = None if lengths is None else torch.tensor(lengths)
    check_structure(rg.Chain(unary, rg.LowRank(*factors), lengths=lengths))


def test_derivatives_of_every_order():
    (unary, left, right), lengths = problem(zeros=False)
    inputs = [part.detach()[..., :3, :2].clone().requires_grad_() for part in (left, right)]
    inputs = [unary.detach()[:, :4, :3].clone().requires_grad_(), *inputs]

    def scaled(unary, left, right):
        chain = rg.Chain(unary, rg.LowRank(left, right), lengths=lengths.clamp(max=4))
        return chain.log_partition()

    assert torch.autograd.gradcheck(scaled, inputs, fast_mode=True)
    assert torch.autograd.gradgradcheck(scaled, inputs, fast_mode=True)

    def entropy(unary, left, right):
        chain = rg.Chain(unary, rg.LowRank(left, right), lengths=lengths.clamp(max=4))
        return chain.entropy()

    assert torch.autograd.gradcheck(entropy, inputs, fast_mode=True)
    assert torch.autograd.gradgradcheck(entropy, inputs, fast_mode=True)


def test_single_precision_is_right_at_any_range():
    for seed in range(40):
        scale = (3.0, 10.0, 20.0, 40.0)[seed % 4]
        (unary, left, right), lengths = problem(scale, dtype=torch.float32, seed=seed)
        found = rg.Chain(unary, rg.LowRank(left, right), lengths=lengths).log_partition()
        table = rg.LowRank(left.double(), right.double()).table(2)
        exact = rg.Chain(unary.double(), table, lengths=lengths).log_partition()
        assert torch.allclose(found.double(), exact, rtol=1e-5, atol=1e-4)


def test_hard_zeros_that_split_the_ranks():
    """Two halves that never meet: ranks of the other half are unreachable, not underflown."""
    half = torch.zeros(2, 1)
    apart = torch.full((2, 1), -math.inf)
    factors = torch.cat([torch.cat([half, apart], 1), torch.cat([apart, half], 1)])
    unary = torch.zeros(1, 5, 4)
    unary[0, 0, 2:] = -math.inf
    values = rg.Chain(unary, rg.LowRank(factors, factors)).log_partition()
    assert torch.allclose(values, torch.tensor([5 * math.log(2.0)]))
    impossible = unary.clone()
    impossible[0, 3, :2] = -math.inf
    chain = rg.Chain(impossible.requires_grad_(), rg.LowRank(factors, factors))
    assert chain.log_partition().item() == -math.inf
    assert torch.equal(chain.marginals(), torch.zeros_like(impossible))
    with pytest.raises(rg.errors.ImpossibleEvidenceError):
        chain.sample(1)


def test_long_chains_in_single_precision():
    generator = torch.Generator().manual_seed(0)
    unary = torch.randn(1, 10_000, 6, generator=generator)
    factors = [torch.randn(6, 2, generator=generator) for _ in range(2)]
    dense = rg.Chain(unary.double(), rg.LowRank(*(f.double() for f in factors)).table(2))
    chosen = rg.Chain(unary, rg.LowRank(*factors)).log_partition()
    assert torch.allclose(chosen.double(), dense.log_partition(), rtol=1e-6)


@pytest.mark.parametrize("lead", ["shared", "mixed"])
def test_samples_follow_the_distribution(lead):
    (unary, left, right), _ = problem(lead=lead)
    item = 3
    right = right if right.ndim == 2 else right[item, :2]
    chain = rg.Chain(unary[item, :3].detach(), rg.LowRank(left.detach(), right.detach()))
    truth = brute_force(chain.factor_graph())
    count = 20_000
    generator = torch.Generator().manual_seed(0)
    for drawn in (
        chain.sample(count, generator),
        chain.rsample(count, temperature=0.5, generator=generator).argmax(-1),
    ):
        place = (drawn * torch.tensor([49, 7, 1])).sum(-1)
        seen = torch.bincount(place, minlength=343) / count
        p = truth.probabilities[:, 0]
        # Five standard errors of each frequency.
        assert bool(((seen - p).abs() <= 5 * (p * (1 - p) / count).sqrt() + 5 / count).all())


def test_relaxed_samples_are_differentiable():
    (unary, left, right), lengths = problem(zeros=False)
    chain = rg.Chain(unary, rg.LowRank(left, right), lengths=lengths)
    drawn = chain.rsample(2, temperature=0.7, generator=torch.Generator().manual_seed(0))
    assert drawn.shape == (2, 4, 6, 7)
    weights = torch.randn(drawn.shape, generator=torch.Generator().manual_seed(1), dtype=WIDE)
    for gradient in torch.autograd.grad((drawn * weights).sum(), (unary, left, right)):
        assert bool(gradient.isfinite().all())
        assert bool((gradient != 0).any())


@pytest.mark.parametrize("lead", LEADS)
@pytest.mark.parametrize("streamed", [False, True])
def test_the_best_sequences_are_those_of_the_table(lead, streamed, tabulating):
    (unary, left, right), lengths = problem(2.0, lead)
    potential = rg.LowRank(left, right)
    dense = rg.Chain(unary, potential.table(2), lengths=lengths)
    expected = dense.mode(), dense.max_marginals(), dense.k_best(5).scores
    if streamed:
        tabulating(0)
    low = rg.Chain(unary, potential, lengths=lengths)
    assert torch.equal(low.mode(), expected[0])
    assert torch.allclose(low.max_marginals().exp(), expected[1].exp())
    assert torch.allclose(low.k_best(5).scores.exp(), expected[2].exp())


def test_what_is_kept_by_restriction_stays_of_low_rank():
    (unary, left, right), lengths = problem()
    chain = rg.Chain(unary, rg.LowRank(left[:, :1], right[:, :1]), lengths=lengths)
    generator = torch.Generator().manual_seed(0)
    states = torch.randint(7, (2, 4, 6, 3), generator=generator)
    weights = torch.randn(states.shape, generator=generator, dtype=WIDE)
    few = chain.restrict(states, weights)
    assert isinstance(few.transition, rg.LowRank)
    dense = rg.Chain(unary, chain.transition.table(2), lengths=lengths).restrict(states, weights)
    assert isinstance(dense.transition, torch.Tensor)
    assert torch.allclose(few.log_partition(), dense.log_partition())
    assert torch.allclose(few.marginals(), dense.marginals())


@pytest.mark.parametrize("lead", LEADS)
def test_relaxed_samples_are_those_of_the_table_some_steps_at_a_time(lead, small_blocks):
    (unary, left, right), lengths = problem(lead=lead)
    potential = rg.LowRank(left, right)
    drawn = []
    for cells in (2**20, 60, 1):
        small_blocks(cells)
        for transition in (potential, potential.table(2)):
            chain = rg.Chain(unary, transition, lengths=lengths)
            generator = torch.Generator().manual_seed(3)
            drawn.append(chain.rsample(2, temperature=0.7, generator=generator))
    assert all(torch.allclose(one, drawn[0]) for one in drawn[1:])


@pytest.mark.parametrize("cells", [2**24, 15, 1])
@pytest.mark.parametrize("lead", LEADS)
def test_entropies_are_those_of_the_table_some_states_at_a_time(lead, cells, small_blocks):
    tensors, lengths = problem(lead=lead)
    potential = rg.LowRank(*tensors[1:])
    low, dense = (
        rg.Chain(tensors[0], transition, lengths=lengths).entropy()
        for transition in (potential, potential.table(2))
    )
    small_blocks(cells)
    some = rg.Chain(tensors[0], potential, lengths=lengths).entropy()
    with torch.no_grad():
        quick = rg.Chain(tensors[0], potential, lengths=lengths).entropy()
    for values in (low, some, quick):
        assert torch.allclose(values, dense, rtol=1e-9, atol=1e-9)
    gradients = (torch.autograd.grad(values.sum(), tensors) for values in (dense, some))
    for expected, own in zip(*gradients, strict=True):
        assert torch.allclose(own, expected, rtol=1e-8, atol=1e-8)
