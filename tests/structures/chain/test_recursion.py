"""The recursion of chains: against enumeration, in every route, at any range."""

import itertools
import math

import pytest
import torch
from jaxtyping import TypeCheckError

from rdpgraph.recurrences import evaluation, logsums
from rdpgraph.recurrences.semirings import LogSum
from rdpgraph.structures.chain import recursion, rules
from rdpgraph.structures.chain.parts import Parts
from rdpgraph.structures.dependency import arborescences

INF = math.inf
KINDS = ("shared", "steps", "batch")


def parts(kind, batch=4, steps=4, states=3, dtype=torch.float64, forbidden=0.3, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

    shape = {
        "shared": (states, states),
        "steps": (1, steps - 1, states, states),
        "batch": (batch, steps - 1, states, states),
    }[kind]
    unary, transition = normal(batch, steps, states), normal(*shape)
    gone = torch.rand(shape, generator=generator) < forbidden
    lengths = torch.tensor([steps, 0, 1, steps - 1] * batch)[:batch]
    return unary, transition.masked_fill(gone, -INF), lengths


def enumerated(unary, transition, lengths):
    """Log Z of each item: the sum over all sequences, written out."""
    values = []
    for item, length in enumerate(lengths.tolist()):
        scores = []
        for states in itertools.product(range(unary.shape[2]), repeat=length):
            score = unary.new_zeros(())
            for step, state in enumerate(states):
                score = score + unary[item, step, state]
                if step:
                    own = transition
                    if transition.ndim == 4:
                        own = transition[item % len(transition), step - 1]
                    score = score + own[states[step - 1], state]
            scores.append(score)
        stacked = torch.stack(scores)
        alive = stacked > -INF
        values.append(stacked[alive].logsumexp(0) if alive.any() else stacked.new_full((), -INF))
    return torch.stack(values)


def log_partition(unary, transition, lengths):
    return recursion.log_partition(Parts(unary, transition, lengths))


def by(evaluated):
    """Log Z by what evaluates a program, its inputs, lengths and sizes."""

    def asked(unary, transition, lengths):
        if not unary.numel():
            return unary.sum((1, 2))
        bound = rules.bound(Parts(unary, transition, lengths))
        logs = {name: x if x.ndim > 2 else x.unsqueeze(0) for name, x in bound.logs().items()}
        return evaluated(bound.program, logs, {"lengths": lengths}, bound.sizes)

    return asked


by_torch = by(logsums.log_partition)
in_logs = by(lambda *given: evaluation.evaluate(*given, LogSum()))
ROUTES = {"dispatched": log_partition, "torch": by_torch, "logs": in_logs}


def gradients(route, unary, transition, lengths):
    unary, transition = unary.clone().requires_grad_(), transition.clone().requires_grad_()
    values = route(unary, transition, lengths)
    weights = torch.arange(1.0, len(values) + 1, dtype=values.dtype)
    weights = torch.where(values > -INF, weights, 0.0)
    total = (torch.where(values > -INF, values, 0.0) * weights).sum()
    return values.detach(), *torch.autograd.grad(total, (unary, transition))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("route", ROUTES)
def test_value_and_gradient_are_those_of_the_sum_over_sequences(kind, route):
    case = parts(kind)
    value, *found = gradients(ROUTES[route], *case)
    expected, *wanted = gradients(enumerated, *case)
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("steps", [2, 4])
def test_gradients_of_both_orders(kind, route, steps):
    unary, transition, lengths = parts(kind, steps=steps)
    possible = transition > -INF

    def function(unary, transition):
        return ROUTES[route](unary, torch.where(possible, transition, -INF), lengths)

    inputs = (unary.requires_grad_(), transition.masked_fill(~possible, 0.0).requires_grad_())
    assert torch.autograd.gradcheck(function, inputs, fast_mode=True)
    assert torch.autograd.gradgradcheck(function, inputs, fast_mode=True)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("kind", KINDS)
def test_second_derivatives_have_no_nan_beside_hard_zeros(kind, route):
    unary, transition, lengths = parts(kind, forbidden=0.5)
    unary[:, 1, 0] = -INF
    unary, transition = unary.requires_grad_(), transition.requires_grad_()
    values = ROUTES[route](unary, transition, lengths)
    total = values[values > -INF].sum()
    first = torch.autograd.grad(total, (unary, transition), create_graph=True)
    again = torch.autograd.grad(sum(part.square().sum() for part in first), (unary, transition))
    assert all(part.isfinite().all() for part in (*first, *again))
    assert (again[1][transition == -INF] == 0).all()


@pytest.mark.parametrize("route", ROUTES)
def test_an_impossible_item_leaves_the_others_alone(route):
    unary, transition, _ = parts("shared", forbidden=0.0)
    lengths = torch.tensor([4, 4, 1, 3])
    unary[1, 2] = -INF
    value, marginals, edges = gradients(ROUTES[route], unary, transition, lengths)
    rest = torch.tensor([0, 2, 3])
    expected, *wanted = gradients(enumerated, unary[rest], transition, lengths[rest])
    assert value[1] == -INF
    assert (marginals[1] == 0).all()
    torch.testing.assert_close(value[rest], expected)
    assert edges.isfinite().all()
    assert (wanted[0] >= 0).all()


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("kind", KINDS)
def test_batch_equals_singles_whatever_lies_beyond_the_lengths(kind, route):
    unary, transition, lengths = parts(kind, forbidden=0.1)
    together = ROUTES[route](unary, transition, lengths)
    spoiled = unary.clone()
    for item, length in enumerate(lengths.tolist()):
        spoiled[item, length:] = torch.tensor([1e30, -INF, -1e30], dtype=unary.dtype)
        own = transition[item : item + 1] if kind == "batch" else transition
        cut = own if kind == "shared" else own[:, : max(length - 1, 0)]
        if length:
            alone = ROUTES[route](unary[item : item + 1, :length], cut, lengths[item : item + 1])
            torch.testing.assert_close(alone[0], together[item])
    torch.testing.assert_close(ROUTES[route](spoiled, transition, lengths), together)
    _, marginals, edges = gradients(ROUTES[route], spoiled, transition, lengths)
    assert marginals.isfinite().all()
    assert edges.isfinite().all()


def test_no_steps_and_one():
    unary = torch.zeros(2, 0, 3, requires_grad=True)
    lengths = torch.zeros(2, dtype=torch.int64)
    values = log_partition(unary, torch.zeros(3, 3), lengths)
    assert values.tolist() == [0.0, 0.0]
    assert torch.autograd.grad(values.sum(), unary)[0].shape == unary.shape
    unary = torch.randn(2, 1, 3, generator=torch.Generator().manual_seed(0))
    for transition in (torch.zeros(3, 3), torch.zeros(1, 0, 3, 3), torch.zeros(2, 0, 3, 3)):
        values, marginals, edges = gradients(log_partition, unary, transition, torch.tensor([1, 0]))
        torch.testing.assert_close(values, torch.stack([unary[0, 0].logsumexp(0), values[1] * 0]))
        torch.testing.assert_close(marginals[0], unary[0].softmax(-1))
        assert (marginals[1] == 0).all()
        assert (edges == 0).all()
        assert edges.shape == transition.shape


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_lost_state_that_evidence_revives(dtype):
    """Left to right: a state falls by e^-150, then evidence wants that state and no other."""
    steps, states = 60, 3
    transition = torch.tensor([[0.0, -1.0, -INF], [-INF, 0.0, -1.0], [-INF, -INF, 0.0]])
    unary = torch.zeros(2, steps, states)
    unary[:, :30, 0] = -5.0  # 150 nats to the disadvantage of the first state
    unary[0, 30:, 1:] = -20.0  # and 600 to its advantage
    lengths = torch.tensor([steps, steps])
    exact = in_logs(unary.double(), transition.double(), lengths)
    value, marginals, _ = gradients(log_partition, unary.to(dtype), transition.to(dtype), lengths)
    assert value.dtype == dtype
    torch.testing.assert_close(value.double(), exact, rtol=8e-3, atol=1e-3)
    torch.testing.assert_close(marginals[0, -1].double(), torch.tensor([1.0, 0, 0]).double())


def test_a_path_lost_at_both_its_ends():
    """Forward and backward messages of the survivor overlap well, and log Z is another's."""
    gain = 900.0
    unary = torch.zeros(1, 60, 2, dtype=torch.float64)
    unary[0, :10, 0] = -gain / 10
    unary[0, 10:50, 1] = -2.5 * gain / 40
    unary[0, 50:, 0] = -gain / 10
    transition = torch.tensor([[0.0, -INF], [-INF, 0.0]], dtype=torch.float64)
    lengths = torch.tensor([60])
    value, marginals, edges = gradients(log_partition, unary, transition, lengths)
    torch.testing.assert_close(value, torch.tensor([-2 * gain]).double())
    torch.testing.assert_close(marginals[0, :, 0], torch.ones(60).double())
    torch.testing.assert_close(edges, torch.diag(torch.tensor([59.0, 0.0]).double()))


@pytest.mark.parametrize(
    "dtype", [torch.float32, pytest.param(torch.float64, marks=pytest.mark.long)]
)
def test_left_to_right_chains_of_ten_thousand_steps(dtype):
    """Early states are left behind for good; that takes nothing, and is known to."""
    steps, states = 10_000, 8
    generator = torch.Generator().manual_seed(0)
    transition = torch.full((states, states), -INF, dtype=torch.float64)
    stay = torch.linspace(0.5, 0.99, states).double().log()
    transition.diagonal().copy_(stay)
    transition.diagonal(1).copy_(torch.log1p(-stay[:-1].exp()))
    unary = torch.randn(2, steps, states, generator=generator, dtype=torch.float64)
    unary[:, 0, 1:] = -INF
    lengths = torch.tensor([steps, 9_000])
    exact = log_partition(unary, transition, lengths)
    first = unary[:1, :200], transition, torch.tensor([200])
    assert recursion.forward(Parts(*first)).isfinite().any(-1).all()
    torch.testing.assert_close(log_partition(*first), in_logs(*first))
    found, marginals, _ = gradients(log_partition, unary.to(dtype), transition.to(dtype), lengths)
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=0)
    torch.testing.assert_close(
        marginals[0].sum(-1).double(), torch.ones(steps).double(), rtol=1e-4, atol=1e-4
    )


def test_float32_follows_float64_for_ten_thousand_steps():
    steps, states = 10_000, 32
    unary, transition, _ = parts("shared", 2, steps, states, forbidden=0.3)
    lengths = torch.tensor([steps, 5_000])
    wide = gradients(log_partition, unary, transition, lengths)
    narrow = gradients(log_partition, unary.float(), transition.float(), lengths)
    torch.testing.assert_close(narrow[0].double(), wide[0], rtol=1e-6, atol=0.0)
    torch.testing.assert_close(narrow[1].double(), wide[1], rtol=1e-3, atol=1e-4)
    assert (narrow[2][transition == -INF] == 0).all()


@pytest.mark.parametrize("spread", [1.0, 30.0, 300.0, 3000.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_any_range_agrees_with_log_space(spread, dtype, kind):
    unary, transition, _ = parts(kind, 3, 12, 5, dtype, forbidden=0.2, seed=1)
    unary, transition = spread * unary, spread * transition
    lengths = torch.tensor([12, 5, 1])
    value, marginals, edges = gradients(log_partition, unary, transition, lengths)
    expected, *wanted = gradients(in_logs, unary.double(), transition.double(), lengths)
    close = {"rtol": 1e-5, "atol": 2e-5} if dtype == torch.float32 else {}
    torch.testing.assert_close(value.double(), expected, **close)
    torch.testing.assert_close(marginals.double(), wanted[0], **close)
    torch.testing.assert_close(edges.double(), wanted[1], **close)


@pytest.mark.parametrize("route", ROUTES)
def test_nothing_of_the_size_of_all_pairs_at_all_steps_is_kept(route):
    batch, steps, states = 2, 40, 24
    unary, transition, _ = parts("shared", batch, steps, states, torch.float32)
    lengths = torch.tensor([steps, steps])
    kept: dict[int, int] = {}

    def pack(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    unary, transition = unary.requires_grad_(), transition.requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        values = ROUTES[route](unary, transition, lengths)
    assert sum(kept.values()) < 4 * 8 * (batch * steps * states + states * states)
    assert sum(kept.values()) > 0
    values.sum().backward()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("spread", [1.0, 40.0, 1000.0])
def test_messages_give_the_marginals(kind, spread):
    unary, transition, lengths = parts(kind, forbidden=0.15, seed=3)
    unary, transition = spread * unary, spread * transition
    given = Parts(unary, transition, lengths)
    ahead, behind = recursion.forward(given), recursion.backward(given)
    values, marginals, _ = gradients(log_partition, unary, transition, lengths)
    weights = torch.arange(1.0, 5, dtype=torch.float64).reshape(-1, 1, 1)
    joint = ahead + behind
    for item, length in enumerate(lengths.tolist()):
        assert (ahead[item, length:] == -INF).all()
        assert (behind[item, length:] == -INF).all()
        for step in range(length):
            if values[item] > -INF:
                torch.testing.assert_close(
                    joint[item, step].softmax(-1), (marginals / weights)[item, step]
                )
                assert behind[item, step].amax() == 0


def test_a_wrong_shape_is_noticed():
    """Annotated shapes are checked at every call in the tests: see tests/conftest.py."""
    lengths = torch.tensor([3, 2])
    Parts(torch.zeros(2, 3, 4), torch.zeros(4, 4), lengths)
    with pytest.raises(TypeCheckError):
        Parts(torch.zeros(2, 3, 4), torch.zeros(4, 4), lengths[:1])
    with pytest.raises(TypeCheckError):
        arborescences.max_marginals(torch.zeros(2, 3, 3), lengths, multiroot=True)
