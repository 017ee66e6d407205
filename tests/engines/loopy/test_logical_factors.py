"""Factors whose potential answers messages itself: no table is formed, the answers are the same."""

import itertools
import math
from functools import partial

import pytest
import torch

import rdpgraph as rg
from rdpgraph.testing import brute_force
from tests.engines.loopy.helpers import SCHEDULES, differences, loopy, randn, same, seeded
from tests.logical import LOGICAL

DOUBLE = torch.float64
KINDS = {
    "cardinality": lambda: rg.Cardinality(9, at_least=2, at_most=4, dtype=DOUBLE),
    "at least": lambda: rg.Cardinality(11, at_least=9, dtype=DOUBLE),
    **{name: partial(one.make, 9, dtype=DOUBLE) for name, one in LOGICAL.items()},
    "automaton": lambda: counter(),
}
GRADIENTS = (
    rg.loopy.FromBeliefs(),
    rg.loopy.Implicit(iterations=200, tolerance=1e-11),
    rg.loopy.Unrolled(),
)


def counter(log_accept=None):
    """Six slots of three states, summed modulo five; every sum has its own log-value."""
    sums = torch.arange(5).unsqueeze(1)
    values = randn(0, 5) if log_accept is None else log_accept
    return rg.Automaton((sums + torch.arange(3)) % 5, values, 6)


def tree(potential, *, seed=0, batch=(), dense=False):
    """A logical factor over many variables, one of them in a further factor, and unaries."""
    arity, size = len(potential.shape), potential.shape[-1]
    x = [rg.Variable(f"x{i}", size) for i in range(arity)]
    y = rg.Variable("y", 3)
    own = rg.Table(potential.table(arity)) if dense else potential
    factors = [rg.Factor(tuple(x), own), rg.Factor((y, x[2]), rg.Table(randn(seed, 3, size)))]
    unary = randn(seed + 1, *batch, arity, size)
    factors += [rg.Factor((v,), rg.Table(unary[..., i, :])) for i, v in enumerate(x)]
    return x, y, rg.FactorGraph(factors)


def is_whole(posterior):
    return bool(posterior.solution.network.high_order)


def check(graph, name="flooding", **options):
    truth, posterior = brute_force(graph), loopy(graph, name, **options)
    possible = bool((truth.log_partition > -math.inf).all())
    assert is_whole(posterior) or not possible
    assert posterior.status.converged
    assert posterior.status.exact
    same(posterior.log_partition, truth.log_partition)
    for variable in graph.variables:
        same(posterior.marginal(variable), truth.joint((variable,)))
    same(posterior.entropy(), truth.entropy, 1e-6)
    if possible and name in ("flooding", "sequential"):
        same(graph.score({**posterior.mode()}), truth.maximum)
        best = posterior.max_marginals()
        for variable in graph.variables:
            same(best[variable], truth.max_marginal(variable))
        assert bool(posterior.mode_is_consistent().all())
    return posterior


EVERY_KIND = pytest.mark.parametrize(
    ("kind", "name"),
    [(kind, "flooding") for kind in KINDS]
    + [("cardinality", name) for name in ("sequential", "residual")]
    + [("automaton", name) for name in ("ordered", "residual", "random")],
)


@pytest.mark.long
@EVERY_KIND
def test_trees_are_those_of_enumeration(kind, name):
    _, _, graph = tree(KINDS[kind]())
    check(graph, name)


@pytest.mark.long
@pytest.mark.cover(1)
@pytest.mark.parametrize("damping", [0.4, rg.loopy.ProbabilityDamping(0.4)], ids=str)
@pytest.mark.parametrize("kind", ["cardinality", "odd", "automaton"])
def test_damped_trees_are_those_of_enumeration(kind, damping):
    _, _, graph = tree(KINDS[kind](), batch=(2,))
    check(graph, damping=damping)


ANY_KIND = pytest.mark.parametrize(
    ("kind", "name"), [*((kind, "flooding") for kind in KINDS), ("automaton", "residual")]
)


@pytest.mark.long
@ANY_KIND
def test_evidence_settles_some_slots(kind, name):
    x, y, graph = tree(KINDS[kind]())
    for evidence in ({x[0]: 1}, {x[0]: 1, x[2]: 1, x[5]: 1}, {y: 2, x[1]: 1}):
        check(graph.condition(evidence), name)


@pytest.mark.long
@ANY_KIND
def test_rows_of_evidence_with_missing_entries(kind, name):
    x, y, graph = tree(KINDS[kind]())
    check(graph.condition({x[0]: [1, -1, 1], x[2]: [1, 1, -1], y: [-1, 0, 2]}), name)
    check(graph.condition({x[0]: [1, 0, 1], x[3]: [-1, 1, -1]}), name)
    _, _, batched = tree(KINDS[kind](), batch=(3,))
    check(batched.condition({x[0]: 1, x[4]: [1, -1, 1]}), name)


@pytest.mark.long
@pytest.mark.parametrize("name", ["flooding", "residual"])
def test_two_batch_dims(name):
    x, _, graph = tree(KINDS["cardinality"](), batch=(2, 1))
    check(graph.condition({x[1]: [0, -1, 1]}), name)


@pytest.mark.long
@pytest.mark.parametrize("name", ["flooding", "residual"])
def test_one_row_that_a_logical_factor_rules_out(name):
    x, _, graph = tree(rg.Cardinality(9, at_most=2, dtype=DOUBLE))
    rows = {x[i]: [1, 1, -1] for i in range(3)} | {x[2]: [1, 0, -1]}
    posterior = loopy(graph.condition(rows), name)
    truth = brute_force(graph.condition(rows))
    same(posterior.log_partition, truth.log_partition)
    assert posterior.log_partition[0].item() == -math.inf
    for variable in graph.variables:
        same(posterior.marginal(variable), truth.joint((variable,)))
    same(posterior.entropy(), truth.entropy)


@pytest.mark.parametrize("kind", ["exactly one", "and"])
def test_evidence_that_a_logical_factor_rules_out(kind):
    x, y, graph = tree(KINDS[kind]())
    evidence = {x[0]: 1, x[1]: 1} if kind == "exactly one" else {x[0]: 0}
    posterior = loopy(graph.condition(evidence))
    assert posterior.log_partition.item() == -math.inf
    assert posterior.marginal(y).tolist() == [0.0, 0.0, 0.0]
    assert posterior.entropy().item() == 0.0
    assert posterior.status.converged
    with pytest.raises(rg.errors.ImpossibleEvidenceError):
        posterior.mode()


@pytest.mark.long
def test_evidence_that_leaves_a_logical_factor_no_choice():
    """All its slots are settled, by evidence or by what follows from it."""
    x, _, graph = tree(rg.ExactlyOne(11, dtype=DOUBLE))
    check(graph.condition({x[4]: 1}))
    check(graph.condition({v: int(i == 3) for i, v in enumerate(x)}))
    check(graph.condition({v: [int(i == 3), int(i == 0)] for i, v in enumerate(x)}))


@pytest.mark.long
def test_a_block_of_logical_factors_of_which_evidence_settles_different_slots():
    count = 9
    bits = rg.VariableArray("bit", (2, count), 2)
    link = rg.Factor((bits[0, 4], bits[1, 5]), rg.Table(randn(0, 2, 2)))
    unary = rg.FactorBlock((bits,), rg.Table(randn(1, 2, count, 2)))
    slots = tuple(bits[:, i] for i in range(count))
    for potential in (rg.Xor(count, dtype=DOUBLE), rg.Cardinality(count, at_most=3, dtype=DOUBLE)):
        graph = rg.FactorGraph([rg.FactorBlock(slots, potential), unary, link])
        seen = torch.full((2, count), -1)
        seen[0, :3], seen[1, 2] = torch.tensor([1, 0, 0]), 1
        for observed in (seen[:1].expand(2, -1) * 0 - 1, seen):
            conditioned = graph.condition({bits: observed})
            posterior, truth = loopy(conditioned), rg.infer(conditioned)
            assert is_whole(posterior)
            same(posterior.log_partition, truth.log_partition)
            same(posterior.marginal(bits), truth.marginal(bits))
            same(posterior.entropy(), truth.entropy(), 1e-6)
            same(conditioned.score({**posterior.mode()}), conditioned.score({**truth.mode()}))


@pytest.mark.long
def test_automata_with_a_log_value_for_each_factor_and_batch_item():
    array = rg.VariableArray("x", (2, 6), 3)
    slots = tuple(array[:, i] for i in range(6))
    unary = rg.FactorBlock((array,), rg.Table(randn(2, 2, 6, 3)))
    for lead in ((2,), (4, 1), (4, 2)):
        graph = rg.FactorGraph([rg.FactorBlock(slots, counter(randn(1, *lead, 5))), unary])
        graph = graph.condition({array[0, 0]: 1, array[1, 3]: [-1, 0, 2, -1]})
        truth = rg.infer(graph)
        for name in ("flooding", "residual"):
            posterior = loopy(graph, name)
            assert is_whole(posterior)
            same(posterior.log_partition, truth.log_partition)
            same(posterior.marginal(array), truth.marginal(array))
            same(posterior.entropy(), truth.entropy(), 1e-6)
            same(graph.score({**posterior.mode()}), graph.score({**truth.mode()}))


def ring(potentials, *, dense, seed=0, batch=()):
    """Logical factors that share variables in cycles, with pairwise factors beside them."""
    x = [rg.Variable(f"x{i}", 2) for i in range(14)]
    starts = (0, 4, 9)
    factors = []
    for start, potential in zip(starts, potentials, strict=True):
        arity = len(potential.shape)
        scope = tuple(x[(start + i) % len(x)] for i in range(arity))
        own = rg.Table(potential.table(arity)) if dense else potential
        factors.append(rg.Factor(scope, own))
    factors.append(rg.Factor((x[0], x[7]), rg.Table(randn(seed, 2, 2) * 0.5)))
    unary = randn(seed + 1, *batch, len(x), 2) * 0.7
    factors += [rg.Factor((v,), rg.Table(unary[..., i, :])) for i, v in enumerate(x)]
    return x, rg.FactorGraph(factors)


def some_potentials():
    return (
        rg.Cardinality(9, at_least=2, at_most=6, dtype=DOUBLE),
        rg.Or(9, dtype=DOUBLE),
        rg.Cardinality(9, at_most=6, dtype=DOUBLE),
    )


SETTLED, ROWS = {"x5": 1, "x9": 0}, {"x5": [1, -1, 0], "x1": [-1, 1, 0]}


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "evidence"),
    [
        ({}, SETTLED),
        ({}, ROWS),
        ({"temperature": 0.5}, ROWS),
        ({"temperature": 0.0}, SETTLED),
        ({"temperature": 0.0}, ROWS),
        ({"counting": rg.loopy.Fractional(0.7)}, SETTLED),
        ({"counting": rg.loopy.Fractional(0.7)}, ROWS),
        ({"counting": rg.loopy.Fractional(0.7), "temperature": 0.5}, ROWS),
        ({"counting": rg.loopy.Fractional(1.3), "temperature": 0.0}, ROWS),
        ({"name": "residual"}, SETTLED),
    ],
    ids=str,
)
def test_on_loops_the_answers_are_those_of_dense_tables(options, evidence):
    found = []
    for dense in (False, True):
        _, graph = ring(some_potentials(), dense=dense)
        graph = graph.condition(evidence) if evidence else graph
        options = {"damping": 0.15, "tolerance": 1e-10} | options
        posterior = loopy(graph, **options)
        assert is_whole(posterior) == (not dense)
        assert posterior.status.converged
        found.append(posterior)
    whole, dense = found
    same(whole.log_partition, dense.log_partition)
    for variable, marginal in dense.marginals().items():
        same(whole.marginal(variable), marginal)
    if options.get("temperature", 1.0):
        same(whole.entropy(), dense.entropy(), 1e-6)
    if options.get("temperature") == 0.0:
        same(whole.max_marginals()[variable], dense.max_marginals()[variable])
        for state, other in zip(whole.mode().values(), dense.mode().values(), strict=True):
            assert torch.equal(state, other)
        assert torch.equal(whole.mode_is_consistent(), dense.mode_is_consistent())


@pytest.mark.long
def test_the_belief_of_a_logical_factor_is_that_of_its_table():
    beliefs = []
    for dense in (False, True):
        x, graph = ring(some_potentials(), dense=dense)
        posterior = loopy(graph.condition({x[3]: [1, -1]}), damping=0.3)
        beliefs.append(posterior.factor_marginal(x[:9]))
        beliefs.append(posterior.factor_marginal((x[2], x[5])))
    same(beliefs[0], beliefs[2])
    same(beliefs[1], beliefs[3])


def test_the_belief_of_a_large_logical_factor_is_refused():
    x = [rg.Variable(f"x{i}", 2) for i in range(60)]
    graph = rg.FactorGraph([rg.Factor(tuple(x), rg.Or(60, dtype=DOUBLE))])
    posterior = loopy(graph)
    same(posterior.log_partition, 60 * math.log(2.0) + math.log1p(-(2.0**-60)))
    with pytest.raises(rg.errors.UnsupportedError, match="ask for the marginals of its variables"):
        posterior.factor_marginal(x)


def gradients(make, leaves, ask, gradient):
    own = [leaf.clone().requires_grad_() for leaf in leaves]
    posterior = loopy(make(*own), gradient=gradient, damping=0.2, tolerance=1e-13)
    assert posterior.status.converged
    return torch.autograd.grad(ask(posterior), own)


def automaton_ring(unary, log_accept):
    """Two automata that share two of their variables; batch dims in front."""
    x = [rg.Variable(f"x{i}", 3) for i in range(10)]
    one, two = counter(log_accept), counter(log_accept.flip(-1))
    factors = [rg.Factor(tuple(x[:6]), one), rg.Factor(tuple(x[4:]), two)]
    factors += [rg.Factor((v,), rg.Table(unary[..., i, :])) for i, v in enumerate(x)]
    return rg.FactorGraph(factors)


def log_z(posterior):
    return posterior.log_partition


def some_marginals(posterior):
    total = torch.zeros((), dtype=DOUBLE)
    for number, marginal in enumerate(posterior.marginals().values()):
        total = total + (marginal * randn(50 + number, marginal.shape[-1])).sum(-1)
    return total


def entropy(posterior):
    return posterior.entropy()


@pytest.mark.long
@pytest.mark.parametrize("ask", [log_z, some_marginals, entropy])
def test_gradients_in_unaries_and_in_log_values(ask):
    leaves = [randn(0, 10, 3), randn(1, 5)]
    expected = differences(automaton_ring, leaves, ask, damping=0.2)
    for gradient in GRADIENTS if ask is log_z else GRADIENTS[1:]:
        found = gradients(automaton_ring, leaves, ask, gradient)
        for one, other in zip(found, expected, strict=True):
            same(one.reshape(-1), other, 1e-6)


@pytest.mark.long
@pytest.mark.cover(1)
@pytest.mark.parametrize(
    "options", [{}, {"counting": rg.loopy.Fractional(0.7), "temperature": 0.6}]
)
@pytest.mark.parametrize("gradient", GRADIENTS, ids=lambda gradient: type(gradient).__name__)
def test_gradients_in_unaries_are_those_through_dense_tables(options, gradient):
    found = []
    for dense in (False, True):
        x, graph = ring(some_potentials(), dense=dense)
        leaf = randn(9, 14, 2).requires_grad_()
        more = [rg.Factor((v,), rg.Table(leaf[i])) for i, v in enumerate(x)]
        seen = graph.with_factors(*more).condition({x[3]: 1})
        posterior = loopy(seen, gradient=gradient, damping=0.1, tolerance=1e-10, **options)
        asks = [log_z] if isinstance(gradient, rg.loopy.FromBeliefs) else [log_z, some_marginals]
        values = [ask(posterior) for ask in asks]
        found.append([torch.autograd.grad(v, leaf, retain_graph=True)[0] for v in values])
    for one, other in zip(*found, strict=True):
        assert bool(one.isfinite().all())
        same(one, other, 1e-7)


@pytest.mark.long
def test_exactly_one_of_a_hundred():
    """Z = (prod_j e^u_j0) sum_i e^(u_i1 - u_i0), and the marginals are a softmax."""
    count = 100
    unary = (randn(0, 2, count, 2) * 3).requires_grad_()
    x = rg.VariableArray("x", (count,), 2)
    slots = [x[i] for i in range(count)]
    graph = rg.FactorGraph(
        [
            rg.Factor(tuple(slots), rg.ExactlyOne(count, dtype=DOUBLE)),
            rg.FactorBlock((x,), rg.Table(unary)),
        ]
    )
    odds = unary[..., 1] - unary[..., 0]
    log_z = unary[..., 0].sum(-1) + odds.logsumexp(-1)
    share = odds.softmax(-1)
    expected = torch.stack([1 - share, share], -1)
    posterior = loopy(graph)
    same(posterior.log_partition, log_z)
    same(posterior.marginal(x), expected)
    assert torch.equal(posterior.mode()[x].argmax(-1), odds.argmax(-1))
    same(posterior.entropy(), -(share * share.log()).sum(-1), 1e-7)
    (slope,) = torch.autograd.grad(posterior.log_partition.sum(), unary)
    same(slope, expected)
    seen = loopy(graph.condition({x[7]: [1, 0], x[8]: [0, -1]}))
    first = unary[0, :, 0].sum() + odds[0, 7]
    kept = torch.ones(count, dtype=torch.bool)
    kept[7] = False
    second = unary[1, :, 0].sum() + odds[1, kept].logsumexp(-1)
    same(seen.log_partition, torch.stack([first, second]))


@pytest.mark.long
@pytest.mark.parametrize("name", SCHEDULES)
def test_sets_of_messages_cost_no_more_than_a_few_sweeps(name):
    """A logical factor is asked once for all its messages of a set, not once for each of them."""
    count, asked = 16, []

    class Counted(rg.Automaton):
        def messages(self, incoming, *, temperature=1.0):
            asked.append(len(incoming))
            return super().messages(incoming, temperature=temperature)

        def select(self, block, rows, arity):
            own = super().select(block, rows, arity)
            return Counted(own.transitions, own.log_accept, own.arity)

    one = rg.ExactlyOne(count, dtype=DOUBLE)
    x = rg.VariableArray("x", (count,), 2)
    slots = tuple(x[i] for i in range(count))
    factor = rg.Factor(slots, Counted(one.transitions, one.log_accept, count))
    unary = randn(0, count, 2)
    graph = rg.FactorGraph([factor, rg.FactorBlock((x,), rg.Table(unary))])
    posterior = loopy(graph, name, tolerance=1e-6)
    status = posterior.status
    odds = unary[:, 1] - unary[:, 0]
    same(posterior.log_partition, unary[:, 0].sum() + odds.logsumexp(0), 1e-6)
    sets = {"flooding": 1, "random": 4, "residual": 5}.get(name, count)  # in each sweep
    assert len(asked) <= 2 * sets * status.iterations + 20


def test_single_precision_with_strong_fields():
    count = 40
    unary = (randn(0, count, 2) * 100).float()
    x = rg.VariableArray("x", (count,), 2)
    most = rg.Cardinality(count, at_least=3, at_most=5)

    def graph(dtype, potential):
        slots = tuple(x[i] for i in range(count))
        return rg.FactorGraph(
            [rg.Factor(slots, potential), rg.FactorBlock((x,), rg.Table(unary.to(dtype)))]
        )

    single = loopy(graph(torch.float32, most), tolerance=1e-6)
    double = rg.Cardinality(count, at_least=3, at_most=5, dtype=DOUBLE)
    exact = rg.infer(graph(DOUBLE, double), scheduler=rg.Contraction())
    same(single.log_partition.double(), exact.log_partition, 1e-5)
    same(single.marginal(x).double(), exact.marginal(x), 1e-3)
    assert torch.equal(single.mode()[x], exact.mode()[x])


@pytest.mark.long
def test_parity_checks_decode_a_noisy_word():
    """A regular code of 200 bits: flips are corrected, in two received words at once."""
    bits, weight, checks = 200, 10, 60
    generator = seeded(1)
    x = rg.VariableArray("bit", (bits,), 2)
    rounds = [torch.randperm(bits, generator=generator) for _ in range(3)]
    scopes = torch.cat([places.reshape(-1, weight) for places in rounds])
    assert len(scopes) == checks
    slots = tuple([x[int(i)] for i in scopes[:, slot]] for slot in range(weight))
    # The channel flips one bit of fifty; the word sent is all zeros.
    received = torch.zeros(2, bits, dtype=torch.long)
    received[0, :4], received[1, 30] = 1, 1
    log_odds = math.log(49.0)
    values = torch.nn.functional.one_hot(received, 2).to(DOUBLE) * log_odds
    graph = rg.FactorGraph(
        [
            rg.FactorBlock(slots, rg.Xor(weight, parity=0, dtype=DOUBLE)),
            rg.FactorBlock((x,), rg.Table(values)),
        ]
    )
    posterior = loopy(graph, tolerance=1e-6, sweeps=500)
    assert is_whole(posterior)
    assert posterior.status.converged
    word = posterior.marginal(x).argmax(-1)
    assert not bool((word[:, scopes].sum(-1) % 2).any())
    assert not bool(word.any())
    mode = posterior.mode()[x]
    assert bool((graph.score({x: mode}) > -math.inf).all())
    assert not bool(mode.any())


@pytest.mark.long
def test_a_restart_keeps_the_messages_of_logical_factors():
    x, graph = ring(some_potentials(), dense=False)
    cold = loopy(graph, tolerance=1e-9, damping=0.3)
    again = loopy(graph, tolerance=1e-8, damping=0.3, start=cold)
    assert cold.status.iterations > 5
    assert again.status.iterations <= 2
    changed = graph.condition({x[12]: 1})
    fresh = loopy(changed, damping=0.3)
    warm = loopy(changed, damping=0.3, start=cold)
    same(warm.log_partition, fresh.log_partition)
    for variable, marginal in fresh.marginals().items():
        same(warm.marginal(variable), marginal)


@pytest.mark.long
def test_reweighting_with_logical_factors_bounds_log_z():
    generator = seeded(3)
    x, graph = ring(some_potentials(), dense=False, batch=(2,))
    links = torch.randn(3, 2, 2, generator=generator, dtype=DOUBLE)
    pairs = [(0, 5), (3, 11), (8, 13)]
    more = [rg.Factor((x[a], x[b]), rg.Table(t)) for (a, b), t in zip(pairs, links, strict=True)]
    graph = graph.with_factors(*more)
    posterior = loopy(graph, counting=rg.loopy.TreeReweighted(), damping=0.5, tolerance=1e-9)
    converged = posterior.solution.outcome.converged
    assert bool(converged.any())
    gap = posterior.log_partition - brute_force(graph).log_partition
    assert float(gap[converged].min()) >= -1e-6


def checks(arity, *, batch=(), seed=0, count=14):
    """Random parity checks of some bits, each with one bit more that evidence tells."""
    generator = seeded(seed)
    x, s = rg.VariableArray("x", (count,), 2), rg.VariableArray("s", (count // 2,), 2)
    rows = torch.stack([torch.randperm(count, generator=generator)[:arity] for _ in range(len(s))])
    unary = torch.randn(*batch, count, 2, dtype=DOUBLE, generator=generator).requires_grad_()
    parity = rg.Xor(arity + 1, parity=0, dtype=DOUBLE)
    scopes = (*(x[rows[:, slot]] for slot in range(arity)), s)
    told = torch.randint(2, (*batch, len(s)), generator=generator)
    graph = rg.FactorGraph([rg.FactorBlock((x,), rg.Table(unary)), rg.FactorBlock(scopes, parity)])
    return graph.condition({s: told}), x, unary


@pytest.mark.parametrize("arity", [2, 3, 6])
@pytest.mark.parametrize("batch", [(), (7,)])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("damping", [0.0, 0.4])
def test_compiled_parities_pass_the_messages_of_torch(arity, batch, temperature, damping):
    graph, x, _ = checks(arity, batch=batch)
    # Unrolled sweeps record gradients, which compiled ones do not.
    plain, compiled = (
        loopy(graph, gradient=how, temperature=temperature, damping=damping, sweeps=12)
        for how in (rg.loopy.Unrolled(), rg.loopy.FromBeliefs())
    )
    torch.testing.assert_close(plain.log_partition, compiled.log_partition)
    assert plain.status.iterations == compiled.status.iterations
    if temperature:
        torch.testing.assert_close(plain.marginal(x), compiled.marginal(x))


def test_gradients_at_the_end_of_compiled_sweeps():
    graph, x, unary = checks(6, batch=(3,))
    wanted, found = (
        torch.autograd.grad(
            loopy(graph, gradient=how, damping=0.3).marginal(x)[:, 3, 1].sum(), unary
        )
        for how in (rg.loopy.Unrolled(), rg.loopy.Implicit(iterations=200, tolerance=1e-11))
    )
    torch.testing.assert_close(wanted, found, rtol=1e-6, atol=1e-8)


def test_compiled_parities_of_weighted_checks():
    """Factors of a soft parity, one for each item, on a tree: the beliefs are exact."""
    x = rg.VariableArray("x", (9,), 2)
    turn, soft = torch.tensor([[0, 1], [1, 0]]), randn(1, 2, 2)
    parts = [
        rg.FactorBlock((x,), rg.Table(randn(2, 2, 9, 2))),
        rg.Factor([x[i] for i in range(5)], rg.Automaton(turn, soft, 5)),
        rg.Factor([x[i] for i in range(4, 9)], rg.Automaton(turn, -soft, 5)),
    ]
    graph = rg.FactorGraph(parts)
    truth, posterior = brute_force(graph), loopy(graph)
    same(posterior.log_partition, truth.log_partition)
    for at in range(9):
        same(posterior.marginal(x[at]), truth.joint((x[at],)))


def test_messages_of_parities_beyond_exponentials():
    """Log-odds of a thousand nats: exponentials of theirs vanish, and messages are theirs."""
    x = rg.VariableArray("x", (8,), 2)
    odds = torch.tensor([[0.0, 900.0 + 300 * at] for at in range(8)], dtype=DOUBLE)
    odds[0] = 0.0
    check = rg.Factor([x[i] for i in range(8)], rg.Xor(8, parity=0, dtype=DOUBLE))
    posterior = loopy(rg.FactorGraph([rg.FactorBlock((x,), rg.Table(odds)), check]))
    assert posterior.mode()[x].tolist() == [1] * 8
    assert posterior.marginal(x)[0].tolist() == pytest.approx([0, 1])


def test_items_of_a_batch_may_forbid_what_others_allow():
    x = rg.VariableArray("x", (4,), 3)
    accept = torch.tensor(
        [[-math.inf, -math.inf, 0.0], [4.0, 3.0, 2.0], [-math.inf] * 3], dtype=torch.float64
    )
    transitions = torch.tensor([[2, 2, 2], [0, 2, 1], [2, 2, 1]])
    pair = torch.linspace(-2, 2, 9, dtype=torch.float64).reshape(3, 3)
    factors = [
        rg.Factor((x[0], x[1], x[2]), rg.Automaton(transitions, accept, 3)),
        rg.Factor((x[2], x[3]), rg.Table(pair)),
    ]
    graph = rg.FactorGraph(factors)
    wanted, found = rg.infer(graph), rg.infer(graph, scheduler=rg.Loopy())
    assert found.status.converged
    torch.testing.assert_close(found.marginals()["x"], wanted.marginals()["x"])
    torch.testing.assert_close(found.log_partition, wanted.log_partition)


def assignments(side, *, batch=(), seed=0, weights=None):
    """Rows to columns, one each, with a weight for every pair."""
    x = rg.VariableArray("x", (side, side), 2)
    weights = randn(seed, *batch, side, side) if weights is None else weights
    pairs = torch.stack([torch.zeros_like(weights), weights], -1)
    one = rg.ExactlyOne(side, dtype=DOUBLE)
    rows = rg.FactorBlock(tuple(x[:, i] for i in range(side)), one)
    columns = rg.FactorBlock(tuple(x[i] for i in range(side)), one)
    return rg.FactorGraph([rg.FactorBlock((x,), rg.Table(pairs)), rows, columns]), x, weights


def test_messages_of_logical_factors_on_cycles_settle_by_themselves():
    graph, x, _ = assignments(8)
    plain = rg.infer(graph, scheduler=rg.Loopy(damping=0.0, sweeps=100))
    settled = rg.infer(graph, scheduler=rg.Loopy(sweeps=100))
    assert not plain.status.converged
    assert settled.status.converged
    assert "damped by 0.5 from sweep 11 on" in settled.status.remedy
    same(settled.marginal(x)[..., 1].sum(0), torch.ones(8, dtype=DOUBLE), 1e-4)
    same(settled.marginal(x)[..., 1].sum(1), torch.ones(8, dtype=DOUBLE), 1e-4)


def test_without_logical_factors_or_cycles_messages_are_damped_only_if_asked():
    x = rg.VariableArray("x", (5, 5), 3)
    tables = [rg.Table(3 * randn(n, *shape, 3, 3)) for n, shape in enumerate(((4, 5), (5, 4)))]
    grid = rg.FactorGraph([
        rg.FactorBlock((x[1:], x[:-1]), tables[0]),
        rg.FactorBlock((x[:, 1:], x[:, :-1]), tables[1]),
    ])  # fmt: skip
    for graph in (grid, tree(KINDS["or"]())[2]):
        runs = [rg.infer(graph, scheduler=rg.Loopy(sweeps=40, damping=d)) for d in (None, 0.0)]
        assert runs[0].status.trace == runs[1].status.trace
        assert "damped by" not in runs[0].status.remedy


@pytest.mark.parametrize("seed", range(3))
def test_the_mode_of_an_assignment_is_the_best_permutation(seed):
    graph, _, weights = assignments(6, seed=seed)
    best = max(
        float(weights[torch.arange(6), list(order)].sum())
        for order in itertools.permutations(range(6))
    )
    for scheduler in (rg.Loopy(), rg.Loopy(temperature=0.0), rg.Loopy(sweeps=12)):
        mode = rg.infer(graph, scheduler=scheduler).mode()
        assert abs(float(graph.score(mode)) - best) < 1e-9


@pytest.mark.long
def test_items_of_a_batch_settle_as_each_does_alone():
    graph, x, weights = assignments(4, batch=(2,))
    together = rg.infer(graph, scheduler=rg.Loopy(tolerance=1e-10))
    for item in range(2):
        single = assignments(4, weights=weights[item])[0]
        alone = rg.infer(single, scheduler=rg.Loopy(tolerance=1e-10))
        same(together.marginal(x)[item], alone.marginal(x), 1e-8)
        assert torch.equal(together.mode()[x][item], alone.mode()[x])


def test_auto_searches_on_from_the_mode_of_messages():
    graph, _, _ = assignments(14)
    best, messages = rg.infer(graph).mode(), rg.infer(graph, scheduler=rg.Loopy()).mode()
    assert int(graph.violations(best)) == 0
    assert float(graph.score(best)) >= float(graph.score(messages)) - 1e-9


@pytest.mark.parametrize("seen", [2, 3, 4])
@pytest.mark.parametrize("name", ["odd", "exactly one", "at most one"])
def test_what_was_observed_in_the_other_slots_differs_between_items(name, seen):
    """A message then allows states in one item that it forbids in another."""
    x = rg.VariableArray("x", (5,), 2)
    graph = rg.FactorGraph(
        [
            rg.FactorBlock((x,), rg.Table(randn(0, 5, 2))),
            rg.Factor(tuple(x[i] for i in range(5)), LOGICAL[name].make(5)),
        ]
    )
    rows = torch.eye(seen, dtype=torch.long)
    rows[0] = 0
    given = graph.condition({x[i]: rows[:, i] for i in range(seen)})
    truth, posterior = brute_force(given), rg.infer(given, rg.Loopy())
    same(posterior.log_partition, truth.log_partition)
    same(posterior.marginal(x[4]), truth.joint((x[4],)))
    same(given.score(posterior.mode()), truth.maximum)
