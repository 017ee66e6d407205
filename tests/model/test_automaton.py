"""Automata: messages by forward-backward, chains of auxiliary variables."""

import math

import pytest
import torch

import rdpgraph as rg
from rdpgraph import Automaton, Cardinality, ExactlyOne, Or, Xor
from rdpgraph.testing import brute_force
from tests.logical import LOGICAL, count_between

LONG = {**LOGICAL, "count": count_between(3, 9)}


def random_automaton(generator, *, states, size, arity, lead=()):
    transitions = torch.randint(states, (states, size), generator=generator)
    log_accept = torch.randn(*lead, states, generator=generator, dtype=torch.float64)
    log_accept[..., -1] = -math.inf
    return Automaton(transitions, log_accept, arity)


def random_messages(generator, *, arity, size, leads=((),)):
    incoming = []
    for slot in range(arity):
        shape = (*leads[slot % len(leads)], size)
        message = torch.randn(shape, generator=generator, dtype=torch.float64)
        blocked = torch.rand(shape, generator=generator) < 0.15
        incoming.append(message.masked_fill(blocked, -math.inf))
    return incoming


def close(got, expected):
    return torch.allclose(got, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("arity", [1, 2, 5])
def test_the_walk_reads_the_slots_in_order(arity):
    generator = torch.Generator().manual_seed(arity)
    automaton = random_automaton(generator, states=4, size=3, arity=arity)
    table = automaton.table(arity)
    for configuration in torch.cartesian_prod(*[torch.arange(3)] * arity).reshape(-1, arity):
        state = 0
        for symbol in configuration.tolist():
            state = int(automaton.transitions[state, symbol])
        assert table[tuple(configuration)] == automaton.log_accept[state]


@pytest.mark.parametrize(
    "temperature",
    [1.0, 0.5, 0.0, torch.tensor(2.0), torch.tensor([[0.3], [1.0], [2.5]])],
    ids=["1", "0.5", "0", "scalar", "per item"],
)
@pytest.mark.parametrize("arity", [1, 2, 3, 5])
@pytest.mark.parametrize(
    ("lead", "leads"),
    [((), ((),)), ((2,), ((), (2,), (3, 1), (3, 2))), ((3, 1), ((2,), ()))],
    ids=["none", "mixed", "own"],
)
def test_messages_are_those_of_the_table(arity, lead, leads, temperature):
    generator = torch.Generator().manual_seed(arity)
    automaton = random_automaton(generator, states=4, size=3, arity=arity, lead=lead)
    incoming = random_messages(generator, arity=arity, size=3, leads=leads)
    got = automaton.messages(incoming, temperature=temperature)
    expected = rg.extend.Potential.messages(automaton, incoming, temperature=temperature)
    assert len(got) == arity
    for message, wanted in zip(got, expected, strict=True):
        assert message.shape == wanted.shape
        assert close(message, wanted)


@pytest.mark.parametrize("temperature", [1.0, 0.5, torch.tensor([0.7, 1.3])])
@pytest.mark.parametrize("how", [Automaton.messages, rg.extend.Potential.messages])
def test_the_default_messages_are_the_definition(how, temperature):
    generator = torch.Generator().manual_seed(1)
    automaton = random_automaton(generator, states=3, size=2, arity=3, lead=(2,))
    a, b, c = random_messages(generator, arity=3, size=2)
    sent = how(automaton, [a, b, c], temperature=temperature)[1]
    heat = torch.as_tensor(temperature, dtype=torch.float64).expand(2)
    for item in range(2):
        logs = automaton.table(3)[item] + a.reshape(2, 1, 1) + c.reshape(1, 1, 2)
        assert close(sent[item], heat[item] * (logs / heat[item]).logsumexp((0, 2)))


@pytest.mark.parametrize("how", [Automaton.messages, rg.extend.Potential.messages])
def test_a_cold_limit_is_the_maximum(how):
    generator = torch.Generator().manual_seed(2)
    automaton = random_automaton(generator, states=3, size=2, arity=4)
    incoming = random_messages(generator, arity=4, size=2)
    for cold, limit in zip(
        how(automaton, incoming, temperature=1e-9),
        how(automaton, incoming, temperature=0.0),
        strict=True,
    ):
        assert torch.allclose(cold, limit, atol=1e-7)


@pytest.mark.parametrize("temperature", [1.0, 0.5, 0.0])
@pytest.mark.parametrize("how", [Automaton.messages, rg.extend.Potential.messages])
def test_gradients_of_messages(how, temperature):
    generator = torch.Generator().manual_seed(3)
    automaton = random_automaton(generator, states=3, size=2, arity=4, lead=(2,))
    incoming = [torch.randn(2, generator=generator, dtype=torch.float64) for _ in range(4)]
    log_accept = torch.randn(2, 3, generator=generator, dtype=torch.float64)
    inputs = [tensor.requires_grad_() for tensor in (log_accept, *incoming)]

    def sent(values, *messages):
        changed = Automaton(automaton.transitions, values, 4)
        total = torch.cat(how(changed, messages, temperature=temperature), -1)
        return torch.where(total > -math.inf, total, 0.0)

    assert torch.autograd.gradcheck(sent, inputs, fast_mode=True)


@pytest.mark.parametrize("how", [Automaton.messages, rg.extend.Potential.messages])
def test_gradients_have_no_nan_where_nothing_is_possible(how):
    heat = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    for temperature in (1.0, 0.0, heat):
        automaton = Xor(3, dtype=torch.float64)
        impossible = torch.tensor([-math.inf, -math.inf], dtype=torch.float64, requires_grad=True)
        sure = torch.tensor([-math.inf, 0.3], dtype=torch.float64, requires_grad=True)
        free = torch.tensor([0.1, 0.2], dtype=torch.float64, requires_grad=True)
        sent = torch.cat(how(automaton, [impossible, sure, free], temperature=temperature))
        assert not bool(sent.isnan().any())
        assert bool((sent[2:] == -math.inf).all())
        assert bool((sent[:2] > -math.inf).all())
        inputs = [impossible, sure, free, *([heat] if temperature is heat else [])]
        for gradient in torch.autograd.grad(sent[sent > -math.inf].sum(), inputs):
            assert bool(gradient.isfinite().all())


@pytest.mark.parametrize("scale", [1.0, 300.0])
def test_two_hundred_slots_of_an_or(scale):
    generator = torch.Generator().manual_seed(4)
    logs = scale * torch.randn(200, 2, generator=generator, dtype=torch.float64)
    sent = torch.stack(Or(200, dtype=torch.float64).messages(logs.unbind()))
    both = logs.logsumexp(1)
    total, none = both.sum() - both, logs[:, 0].sum() - logs[:, 0]
    assert bool(sent.isfinite().all())
    assert close(sent[:, 1], total)
    if scale == 1.0:
        assert close(sent[:, 0], total + torch.log1p(-(none - total).exp()))
    hottest = torch.stack(Or(200, dtype=torch.float64).messages(logs.unbind(), temperature=0.0))
    assert close(hottest[:, 1], logs.amax(1).sum() - logs.amax(1))


def test_two_hundred_slots_of_a_parity_check():
    generator = torch.Generator().manual_seed(5)
    logs = torch.randn(7, 200, 2, generator=generator, dtype=torch.float64) + 4 * torch.tensor(
        [1.0, 0.0]
    )
    logs.requires_grad_()
    check = Xor(200, parity=0, dtype=torch.float64)
    sent = torch.stack(check.messages(logs.unbind(-2)), -2)
    bias = (logs[..., 0] - logs[..., 1]).div(2).tanh()
    got = (sent[..., 0] - sent[..., 1]).div(2).tanh()
    assert close(got, bias.prod(-1, keepdim=True) / bias)
    sent.sum().backward()
    assert bool(logs.grad.isfinite().all())


def test_blocks_select_their_own_log_values():
    generator = torch.Generator().manual_seed(6)
    automaton = random_automaton(generator, states=3, size=2, arity=2, lead=(4, 1, 5))
    sites = rg.VariableArray("x", (3, 6), 2)
    block = rg.FactorBlock((sites[:, :-1], sites[:, 1:]), automaton)
    dense = rg.FactorBlock((sites[:, :-1], sites[:, 1:]), rg.Table(automaton.table(2)))
    fast, slow = rg.FactorGraph([block]), rg.FactorGraph([dense])
    assert fast.batch_shape == (4,)
    assert close(rg.infer(fast).log_partition, rg.infer(slow).log_partition)
    picked = automaton.select((3, 5), torch.tensor([7, 0, 14]), 2)
    assert picked.shape == (4, 3, 2, 2)
    assert torch.equal(picked.log_accept, automaton.log_accept[:, 0, [2, 0, 4]])


def test_a_long_chain_has_small_parts():
    automaton = Cardinality(30, at_least=2, at_most=5)
    split = automaton.decompose()
    assert split is not None
    # States that cannot be reached, or from which no accepted one can, are left out.
    counts = [min(read, 5) + 1 - max(0, 2 - (30 - read)) for read in range(1, 30)]
    assert split.auxiliary == tuple(counts)
    assert Cardinality(12, at_most=5).decompose() is None
    impossible = Automaton(automaton.transitions, torch.full((7,), -math.inf), 30)
    x = rg.VariableArray("x", (30,), 2)
    graph = rg.FactorGraph([rg.Factor(tuple(x[i] for i in range(30)), impossible)])
    assert float(rg.infer(graph).log_partition) == -math.inf


@pytest.mark.long
@pytest.mark.parametrize("kind", LONG)
def test_long_constraints_are_exact(kind):
    generator = torch.Generator().manual_seed(7)
    x = rg.VariableArray("x", (16,), 2)
    unary = torch.randn(16, 2, generator=generator, dtype=torch.float64)
    pair = torch.randn(2, 2, generator=generator, dtype=torch.float64)
    first, second = LONG[kind].make(13, dtype=torch.float64), Xor(14, dtype=torch.float64)
    assert first.decompose() is not None
    graph = rg.FactorGraph(
        [
            rg.FactorBlock((x,), rg.Table(unary)),
            rg.Factor((x[0], x[15]), rg.Table(pair)),
            rg.Factor(tuple(x[i] for i in range(13)), first),
            rg.Factor(tuple(x[i] for i in range(15, 1, -1)), second),
        ]
    )
    truth, posterior = brute_force(graph), rg.infer(graph)
    assert close(posterior.log_partition, truth.log_partition)
    expected = torch.stack([truth.joint((x[i],)) for i in range(16)])
    assert close(posterior.marginal(x), expected)
    assert close(posterior.entropy(), truth.entropy)
    assert close(graph.score({**posterior.mode()}), truth.maximum)
    drawn = posterior.sample(20, generator=generator)
    assert bool((graph.score({**drawn}) > -math.inf).all())
    seen = graph.condition({x[3]: 1, x[9]: torch.tensor([0, -1])})
    assert close(rg.infer(seen).log_partition, brute_force(seen).log_partition)


def test_a_block_of_long_automata_with_a_batch():
    generator = torch.Generator().manual_seed(8)
    x = rg.VariableArray("x", (2, 13), 2)
    log_accept = torch.randn(3, 2, 4, generator=generator, dtype=torch.float64)
    log_accept.requires_grad_()
    transitions = torch.randint(4, (4, 2), generator=generator)
    unary = torch.randn(2, 13, 2, generator=generator, dtype=torch.float64)
    link = torch.randn(2, 2, generator=generator, dtype=torch.float64)
    scopes = tuple(x[:, i] for i in range(13))

    def log_z(potential):
        graph = rg.FactorGraph(
            [
                rg.FactorBlock((x,), rg.Table(unary)),
                rg.FactorBlock(scopes, potential),
                rg.Factor((x[0, 4], x[1, 2]), rg.Table(link)),
            ]
        )
        return rg.infer(graph).log_partition

    automaton = Automaton(transitions, log_accept, 13)
    assert automaton.select((2,), None, 13).decompose() is not None
    fast, slow = log_z(automaton), log_z(rg.Table(automaton.table(13)))
    assert fast.shape == (3,)
    assert close(fast, slow)
    got, expected = (torch.autograd.grad(z.sum(), log_accept)[0] for z in (fast, slow))
    assert close(got, expected)


@pytest.mark.long
def test_hundreds_of_slots_in_the_exact_engine():
    generator = torch.Generator().manual_seed(9)
    x = rg.VariableArray("x", (200,), 2)
    unary = torch.randn(200, 2, generator=generator, dtype=torch.float64)
    graph = rg.FactorGraph(
        [
            rg.FactorBlock((x,), rg.Table(unary)),
            rg.Factor(tuple(x[i] for i in range(200)), ExactlyOne(200, dtype=torch.float64)),
        ]
    )
    odds = unary[:, 1] - unary[:, 0]
    posterior = rg.infer(graph)
    assert close(posterior.log_partition, unary[:, 0].sum() + odds.logsumexp(0))
    assert close(posterior.marginal(x)[:, 1], odds.softmax(0))
    assert float(graph.score({x: torch.zeros(200, dtype=torch.long)})) == -math.inf


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda t, a: Automaton(t.double(), a, 2), "transitions needs integers; got a tensor"),
        (lambda t, a: Automaton(t[0], a, 2), r"shape \(Q, k\).*got \(2,\)"),
        (lambda t, a: Automaton(t, a[:1], 2), r"needs log_accept of shape \(..., 2\); got \(1,\)"),
        (lambda t, a: Automaton(t + 1, a, 2), "states 0 to 1; got one to 2"),
        (lambda t, a: Automaton(t - 1, a, 2), "states 0 to 1; got one to -1"),
        (lambda t, a: Automaton(t, a, 0), "arity as a whole number of at least 1; got 0"),
        (lambda t, a: Automaton(t, a.long(), 2), "floating"),
        (lambda t, a: Automaton(t, a, 2).messages([a]), "each of its 2 slots; got 1"),
        (lambda t, a: Automaton(t, a, 2).messages([a, a[:1]]), r"got sizes \[2, 1\]"),
        (lambda t, a: Automaton(t, a, 2).messages([a, a], temperature=-1.0), "temperature >= 0"),
        (
            lambda t, a: Automaton(t, a, 2).messages([a.expand(2, 2), a.expand(3, 2)]),
            "leads that broadcast",
        ),
    ],
)
def test_what_does_not_fit_says_why(make, message):
    with pytest.raises(rg.errors.ModelError, match=message) as caught:
        make(torch.tensor([[0, 1], [1, 0]]), torch.zeros(2))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("seed", range(12))
def test_states_that_no_accepted_configuration_has_are_dropped(seed):
    """Also where the factors of a block accept different ends."""
    generator = torch.Generator().manual_seed(seed)
    transitions = torch.randint(4, (4, 2), generator=generator)
    factors = 1 + seed % 2
    accept = torch.where(torch.rand(factors, 4, generator=generator) < 0.4, 0.0, -math.inf)
    accept[:, 1] = torch.where(accept.isfinite().any(1), accept[:, 1], 0.0)
    potential = rg.Automaton(transitions, accept, 5)
    x = rg.VariableArray("x", (factors, 5), 2)
    graph = rg.FactorGraph([rg.FactorBlock(tuple(x[:, slot] for slot in range(5)), potential)])
    possible = potential.table(5).isfinite()
    if not bool(possible.flatten(1).any(1).all()):
        return
    gone = 0
    for slot in range(5):
        others = [dim + 1 for dim in range(5) if dim != slot]
        gone += int((~possible.amax(others)).sum())
    assert rg.explain(graph, rg.Loopy()).dropped_states == gone
