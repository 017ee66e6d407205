"""Entropy, divergences and expected transitions of chains, against enumeration."""

import itertools
import math

import pytest
import torch

import rdpgraph as rg

D = torch.float64


def potentials(batch=3, length=4, states=3, *, kind="shared", zeros=0.0, scale=1.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    steps = {"shared": (), "per step": (length - 1,), "per item": (batch, length - 1)}[kind]
    values = []
    for shape in ((batch, length, states), (*steps, states, states)):
        drawn = torch.randn(shape, generator=generator, dtype=D) * scale
        gone = torch.rand(shape, generator=generator) < zeros
        values.append(drawn.masked_fill(gone, -math.inf))
    return values


def every(model):
    """(S, *batch, T): all sequences of a chain without lengths."""
    *batch, length, states = model.unary.shape
    listed = torch.tensor(list(itertools.product(range(states), repeat=length)))
    return listed.reshape(-1, *(1,) * len(batch), length).expand(-1, *batch, -1)


def weighted(p, logs):
    """The sum of -p times logs, absent where p is zero."""
    return -(p * torch.where(p > 0, logs, 0.0)).sum(0)


KINDS = ("shared", "per step", "per item")


@pytest.mark.parametrize("zeros", [0.0, 0.2])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("other", KINDS)
def test_divergences_are_those_of_enumeration(kind, other, zeros):
    first = rg.Chain(*potentials(kind=kind, zeros=zeros, seed=1))
    second = rg.Chain(*potentials(kind=other, seed=2))
    logs, theirs = first.log_prob(every(first)), second.log_prob(every(first))
    entropy, cross = weighted(logs.exp(), logs), weighted(logs.exp(), theirs)
    assert torch.allclose(first.entropy(), entropy)
    assert torch.allclose(first.cross_entropy(second), cross)
    assert torch.allclose(first.kl_divergence(second), cross - entropy)
    assert torch.equal(first.kl_divergence(first), torch.zeros(3, dtype=D))


def relative_entropy(model, log_base):
    """Log Z less the expected score without a base measure, item by item, by enumeration."""
    values = []
    for item, length in enumerate(model.lengths.tolist()):
        unary, links = model.unary[item, :length], model.transition[item, : max(length - 1, 0)]
        listed = list(itertools.product(range(unary.shape[-1]), repeat=length))
        sequences, steps = torch.tensor(listed).long(), torch.arange(length)
        base = log_base[item, steps, sequences].sum(1)
        scores = unary[steps, sequences].sum(1)
        scores = scores + links[steps[:-1], sequences[:, :-1], sequences[:, 1:]].sum(1)
        log_z, p = scores.logsumexp(0), scores.softmax(0)
        values.append(log_z - torch.where(p > 0, p * (scores - base), 0.0).sum())
    return torch.stack(values)


@pytest.mark.parametrize(
    ("dtype", "zeros", "scale"),
    [(D, 0.0, 1.0), (D, 0.2, 1.0), (torch.float32, 0.0, 1.0), (torch.float32, 0.1, 60.0)],
)
@pytest.mark.parametrize("states", [1, 3, 17])
def test_entropies_over_a_base_measure_are_those_of_enumeration(dtype, zeros, scale, states):
    """Of tables for each step and item; some of them too far apart for products of float32."""
    length = 3 if states > 3 else 4
    drawn = potentials(4, length, states, kind="per item", zeros=zeros, scale=scale, seed=states)
    unary, links = (part.to(dtype).requires_grad_() for part in drawn)
    model = rg.Chain(unary, links, lengths=torch.tensor([length, 2, 1, 0]))
    log_base = torch.randn(4, length, states, generator=torch.Generator().manual_seed(1), dtype=D)
    log_base = log_base * (model.unary > -math.inf)
    pull = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=D)
    near = {"rtol": 1e-9} if dtype == D else {"rtol": 1e-4, "atol": 2e-4 * max(1.0, scale / 10)}
    wide = rg.Chain(*(part.detach().double().requires_grad_() for part in (unary, links)),
                    lengths=model.lengths)  # fmt: skip
    expected = torch.where(wide.log_partition() > -math.inf, relative_entropy(wide, log_base), 0.0)
    found = model.entropy_over(log_base.to(dtype))
    assert torch.allclose(found.double(), expected, **near)
    if not zeros:
        ours = torch.autograd.grad((found * pull).sum(), (unary, links))
        theirs = torch.autograd.grad((expected * pull).sum(), (wide.unary, wide.transition))
        for one, other in zip(ours, theirs, strict=True):
            assert torch.allclose(one.double(), other, **near)


def test_entropies_lose_no_digits_to_large_scores():
    """A constant changes no entropy; float32 has seven digits for it and the scores together."""
    drawn = potentials(2, 6, 20, kind="per item", seed=3)
    small = [(part * 256).round().float() / 256 for part in drawn]  # exact with 4096 added, too
    (near, *slopes), (far, *others) = (
        (model.entropy(), *torch.autograd.grad(model.entropy().sum(), parts))
        for parts in ([(part + by).requires_grad_() for part in small] for by in (0.0, 4096.0))
        for model in [rg.Chain(*parts)]
    )
    exact = rg.Chain(*(part.double() for part in small)).entropy()
    assert torch.allclose(near.double(), exact, atol=1e-5)
    assert torch.allclose(far, near, atol=1e-5)
    for one, other in zip(slopes, others, strict=True):
        assert torch.allclose(one, other, atol=1e-5)


def test_a_chain_that_was_changed_has_no_gradient_of_its_entropy():
    unary, links = potentials(kind="per item")
    values = links.requires_grad_() * 1.0
    entropy = rg.Chain(unary, values).entropy().sum()
    with torch.no_grad():
        values.mul_(2.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        entropy.backward()


def test_entropies_of_tables_for_each_step_are_differentiable_past_hard_zeros():
    unary, links = potentials(2, 4, 3, kind="per item", zeros=0.2, seed=5)
    model = rg.Chain(unary.requires_grad_(), links.requires_grad_())
    gradients = torch.autograd.grad(model.entropy().sum(), (unary, links))
    assert all(bool(part.isfinite().all()) for part in gradients)
    assert bool((gradients[1][links == -math.inf] == 0).all())
    step, epsilon = torch.randn(links.shape, generator=torch.Generator().manual_seed(0)), 1e-6
    step = step.to(D)
    ends = (rg.Chain(unary, links + sign * epsilon * step) for sign in (1, -1))
    moved = [float(end.entropy().sum().detach()) for end in ends]
    slope = float((gradients[1] * step).sum().detach())
    assert slope == pytest.approx((moved[0] - moved[1]) / (2 * epsilon), rel=1e-6)


def test_what_the_other_forbids_costs_infinitely_much():
    unary, transition = potentials()
    open_chain = rg.Chain(unary, transition)
    for where in ("state", "step"):
        hard, steps = unary.clone(), transition.clone()
        if where == "state":
            hard[1, 2, 0] = -math.inf
        else:
            steps[0, 1] = -math.inf
        closed = rg.Chain(hard, steps)
        assert bool(closed.cross_entropy(open_chain).isfinite().all())
        found = open_chain.kl_divergence(closed)
        expected = [False, True, False] if where == "state" else [True] * 3
        assert (found == math.inf).tolist() == expected
        assert bool((closed.kl_divergence(closed) == 0).all())


def test_a_step_nobody_takes_may_be_forbidden():
    unary, transition = potentials()
    unary[:, :, 0] = -math.inf
    allowed, closed = rg.Chain(unary, transition), transition.clone()
    closed[0] = -math.inf
    closed[:, 0] = -math.inf
    found = allowed.kl_divergence(rg.Chain(unary, closed))
    assert torch.allclose(found, torch.zeros(3, dtype=D), atol=1e-12)


def test_impossible_and_empty_items():
    unary, transition = potentials()
    dead = unary.clone()
    dead[1, 2] = -math.inf
    first = rg.Chain(dead, transition, lengths=[4, 4, 0])
    second = rg.Chain(unary, transition, lengths=[4, 4, 0])
    for values in (first.entropy(), first.cross_entropy(second), first.kl_divergence(second)):
        assert bool(values.isfinite().all())
        assert values[1:].tolist() == [0.0, 0.0]
    assert second.cross_entropy(first).tolist()[1:] == [math.inf, 0.0]


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_gradients(kind):
    first, second = potentials(2, 3, 2, kind=kind), potentials(2, 3, 2, seed=1)
    inputs = tuple(values.requires_grad_() for values in (*first, *second))

    def answers(u, f, v, g):
        p, q = rg.Chain(u, f, lengths=[3, 2]), rg.Chain(v, g, lengths=[3, 2])
        return p.entropy(), p.cross_entropy(q), p.kl_divergence(q), q.kl_divergence(p)

    assert torch.autograd.gradcheck(answers, inputs, fast_mode=True)
    assert torch.autograd.gradcheck(
        lambda u, f: (
            rg.Chain(u, f, lengths=[3, 2]).edge_counts(), rg.Chain(u, f).edge_marginals(),
            rg.Chain(u, f, lengths=[3, 2]).marginals(), rg.Chain(u, f).filtered(),
        ),
        inputs[:2], fast_mode=True
    )  # fmt: skip


def test_gradients_with_hard_zeros_are_those_of_enumeration():
    unary, transition = (x.requires_grad_() for x in potentials(zeros=0.2, seed=1))
    other = rg.Chain(*(x.requires_grad_() for x in potentials(seed=2)))
    model = rg.Chain(unary, transition)
    inputs = (unary, transition, other.unary, other.transition)
    found = torch.autograd.grad((model.entropy() + 2 * model.kl_divergence(other)).sum(), inputs)
    scores, theirs = model.score(every(model)), other.log_prob(every(model))
    possible = scores.detach() > -math.inf
    logs = torch.where(possible, scores, 0.0) - model.log_partition()
    p = torch.where(possible, logs.exp(), 0.0)
    entropy = -(p * logs).sum(0)
    kl = (p * (logs - theirs)).sum(0)
    expected = torch.autograd.grad((entropy + 2 * kl).sum(), inputs)
    for own, wanted in zip(found, expected, strict=True):
        assert torch.allclose(own, wanted)


@pytest.mark.parametrize("zeros", [0.0, 0.2])
@pytest.mark.parametrize("kind", KINDS)
def test_transitions_are_counted(kind, zeros):
    model = rg.Chain(*potentials(kind=kind, zeros=zeros, seed=1), lengths=[4, 3, 1])
    edges, counts = model.edge_marginals(), model.edge_counts()
    drawn, p = every(model), model.log_prob(every(model)).exp()
    for item, length in enumerate([4, 3, 1]):
        total = torch.zeros(3, 3, dtype=D)
        # Sequences that differ beyond the length are one.
        share = p[:, item] / 3 ** (4 - length)
        for step in range(3):
            joint = torch.zeros(3, 3, dtype=D)
            if step < length - 1:
                index = (drawn[:, item, step], drawn[:, item, step + 1])
                joint.index_put_(index, share, accumulate=True)
            assert torch.allclose(edges[item, step], joint)
            total += joint
        assert torch.allclose(counts[item], total)
    tracked = rg.Chain(model.unary.clone().requires_grad_(), model.transition, lengths=[4, 3, 1])
    assert torch.allclose(tracked.edge_counts(), counts)


@pytest.mark.parametrize("kind", KINDS)
def test_a_range_beyond_the_type_is_summed_in_logs(kind):
    unary, transition = (x.float() for x in potentials(3, 6, kind=kind, scale=300.0))
    first, exact = rg.Chain(unary, transition), rg.Chain(unary.double(), transition.double())
    other = rg.Chain(*potentials(3, 6, kind=kind, seed=1))
    assert torch.allclose(first.entropy().double(), exact.entropy(), atol=1e-3)
    assert torch.allclose(first.edge_counts().double(), exact.edge_counts(), atol=1e-3)
    small = rg.Chain(other.unary.float(), other.transition.float())
    expected = weighted(exact.log_prob(every(exact)).exp(), other.log_prob(every(exact)))
    assert torch.allclose(first.cross_entropy(small).double(), expected, rtol=1e-3)


def test_long_chains_in_single_precision():
    unary, transition = potentials(1, 3_000, 3, scale=3.0)
    unary = unary + 200.0  # log Z is above half a million: its rounding alone is .03
    single, double = rg.Chain(unary.float(), transition.float()), rg.Chain(unary, transition)
    assert torch.allclose(single.entropy().double(), double.entropy(), rtol=1e-5)
    near = rg.Chain(unary + 0.1 * torch.sin(unary * 1e3), transition)
    near_single = rg.Chain(near.unary.float(), transition.float())
    found = single.kl_divergence(near_single).double()
    assert torch.allclose(found, double.kl_divergence(near), rtol=1e-2)


def test_a_batch_is_its_items():
    for kind in KINDS:
        unary, transition = potentials(kind=kind, zeros=0.2, seed=1)
        other = potentials(seed=2)
        lengths = [4, 2, 0]
        p, q = (rg.Chain(u, f, lengths=lengths) for u, f in ((unary, transition), other))
        for item, length in enumerate(lengths):
            own = transition[item] if kind == "per item" else transition
            one = rg.Chain(unary[item], own, lengths=torch.tensor(length))
            two = rg.Chain(other[0][item], other[1], lengths=torch.tensor(length))
            assert torch.allclose(one.entropy(), p.entropy()[item])
            assert torch.allclose(one.kl_divergence(two), p.kl_divergence(q)[item])
            assert torch.allclose(one.edge_counts(), p.edge_counts()[item])
            assert torch.allclose(one.filtered(), p.filtered()[item])


def test_what_is_impossible_has_no_gradient_in_comparisons(by_torch):
    generator = torch.Generator().manual_seed(3)
    one, other = (torch.randn(2, 4, 3, generator=generator, dtype=D) for _ in range(2))
    one[1, 2] = -math.inf
    other.requires_grad_()
    transition = torch.randn(3, 3, generator=generator, dtype=D)

    def gradient():
        value = rg.Chain(one, transition).cross_entropy(rg.Chain(other, transition))
        assert value[1] == 0
        return torch.autograd.grad(value.sum(), other)[0]

    for found in (gradient(), by_torch(gradient)):
        assert bool((found[0] != 0).all())
        assert bool((found[1] == 0).all())


def test_short_chains():
    for length in (0, 1):
        generator = torch.Generator().manual_seed(0)
        unary = torch.randn(2, length, 3, generator=generator, dtype=D)
        model = rg.Chain(unary, torch.zeros(3, 3, dtype=D))
        p = unary.softmax(-1)
        assert torch.allclose(model.entropy(), -(p * p.log()).sum((1, 2)))
        assert model.edge_marginals().shape == (2, 0, 3, 3)
        assert torch.equal(model.edge_counts(), torch.zeros(2, 3, 3, dtype=D))
        assert torch.equal(model.kl_divergence(model), torch.zeros(2, dtype=D))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("spread", [1.0, 20.0, 1000.0])
def test_expected_transitions_of_many_states_are_sums_of_the_joints(spread, dtype):
    generator = torch.Generator().manual_seed(0)
    unary, transition = (
        spread * torch.randn(shape, generator=generator, dtype=torch.float64)
        for shape in ((4, 6, 40), (40, 40))
    )
    transition[torch.rand(40, 40, generator=generator) < 0.3] = -math.inf
    unary[3, 2] = -math.inf
    parts = unary.to(dtype), transition.to(dtype)
    chain = rg.Chain(*parts, lengths=torch.tensor([6, 3, 0, 6]))
    close = {} if dtype == torch.float64 else {"rtol": 1e-4, "atol": 1e-5}
    counts = chain.edge_counts()
    torch.testing.assert_close(counts, chain.edge_marginals().sum(1), **close)
    torch.testing.assert_close(counts.sum((1, 2)), torch.tensor([5, 2, 0, 0]).to(counts), **close)
