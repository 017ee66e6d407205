"""The exact engine against enumeration, on random graphs of every shape."""

import itertools
import math
from dataclasses import replace

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

import rdpgraph as rg
from rdpgraph.testing import brute_force

SCALES = (1.0, 1.0, 300.0)  # the last one does not fit scaled float64 tables


@st.composite
def graphs(draw):
    """Graphs of arities 0-5 and sizes 1-5, with batches, hard zeros, evidence, lonely variables."""
    seed = draw(st.integers(0, 10**6))
    generator = torch.Generator().manual_seed(seed)
    sizes = draw(st.lists(st.integers(1, 5), min_size=0, max_size=5))
    variables = [rg.Variable(f"v{i}", size) for i, size in enumerate(sizes)]
    batch = draw(st.sampled_from([(), (), (3,), (2, 2)]))
    zeros, scale = draw(st.sampled_from([0.0, 0.0, 0.3])), draw(st.sampled_from(SCALES))
    shared: list[tuple[tuple[int, ...], rg.Table]] = []
    factors = []
    for _ in range(draw(st.integers(0, 7))):
        arity = draw(st.integers(0, min(5, len(sizes))))
        order = draw(st.permutations(range(len(sizes)))) if sizes else []
        scope = tuple(order[:arity])
        shape = tuple(sizes[i] for i in scope)
        known = [table for kind, table in shared if kind == shape]
        if known and draw(st.booleans()):
            table = known[0]
        else:
            lead = batch if draw(st.booleans()) else ()
            values = torch.randn([*lead, *shape], generator=generator, dtype=torch.float64) * scale
            gone = torch.rand(values.shape, generator=generator) < zeros
            table = rg.Table(values.masked_fill(gone, -math.inf))
            shared.append((shape, table))
        factors.append(rg.Factor(tuple(variables[i] for i in scope), table))
    if not factors:
        factors.append(rg.Factor((), rg.Table(torch.zeros((), dtype=torch.float64))))
    graph = rg.FactorGraph(factors, variables=variables)
    kind = draw(st.sampled_from(["none", "none", "hard", "rows"]))
    if sizes and kind == "hard":
        graph = graph.condition({"v0": draw(st.integers(0, sizes[0] - 1))})
    elif sizes and kind == "rows":
        rows = batch or (3,)
        states = torch.randint(-1, sizes[0], rows, generator=generator)
        graph = graph.condition({"v0": states})
        if len(sizes) > 1:
            states = torch.randint(0, sizes[-1], rows, generator=generator)
            graph = graph.condition({variables[-1]: states})
    return graph, factors


def close(got, expected, tolerance=1e-8):
    got, expected = torch.broadcast_tensors(got, expected)
    return bool(
        ((got == expected) | ((got - expected).abs() <= tolerance * (1 + expected.abs()))).all()
    )


@pytest.mark.long
@settings(max_examples=20)
@given(graphs())
def test_log_z_and_marginals_are_those_of_enumeration(case):
    graph, factors = case
    truth, posterior = brute_force(graph), rg.infer(graph)
    assert posterior.status.exact
    assert posterior.log_partition.shape == graph.batch_shape
    assert close(posterior.log_partition, truth.log_partition)
    # Small graphs are answered by compiled buckets: the engine for all others is asked too.
    general = rg.Contraction().solve(graph)
    assert close(posterior.log_partition.reshape(-1), general.log_partition())
    flat = [posterior.marginal(v).reshape(-1, v.size) for v in graph.variables]
    if flat:
        assert close(torch.cat(flat, 1), general.variable_marginals())
    for variable in graph.variables:
        assert close(posterior.marginal(variable), truth.joint((variable,)))
    for factor in factors:
        if factor.variables:
            assert close(posterior.factor_marginal(factor), truth.joint(factor.variables))
            back = factor.variables[::-1]
            assert close(posterior.factor_marginal(back), truth.joint(back))
    assert close(posterior.entropy(), truth.entropy, 1e-6)


@pytest.mark.long
@settings(max_examples=15)
@given(graphs())
def test_modes_and_samples_are_those_of_enumeration(case):
    graph, _ = case
    truth, posterior = brute_force(graph), rg.infer(graph)
    found = posterior.max_marginals()
    for variable in graph.variables:
        assert close(found[variable], truth.max_marginal(variable))
    if bool((truth.log_partition == -math.inf).any()):
        for ask in (posterior.mode, lambda: posterior.sample(2)):
            with pytest.raises(rg.errors.ImpossibleEvidenceError):
                ask()
        return
    assert close(graph.score({**posterior.mode()}), truth.maximum)
    drawn = posterior.sample(6, generator=torch.Generator().manual_seed(1))
    assert bool((graph.score({**drawn}) > -math.inf).all())


@pytest.mark.long
@settings(max_examples=15)
@given(graphs(), st.data())
def test_marginal_modes_are_those_of_enumeration(case, data):
    graph, _ = case
    truth, posterior = brute_force(graph), rg.infer(graph)
    if not graph.variables or bool((truth.log_partition == -math.inf).any()):
        return
    chosen = data.draw(st.lists(st.sampled_from(graph.variables), min_size=1, unique=True))
    best = posterior.marginal_mode(chosen)
    mass = truth.log_joint(tuple(chosen)).reshape(-1, math.prod(v.size for v in chosen))
    place = torch.zeros(mass.shape[0], dtype=torch.long)
    for variable in chosen:
        place = place * variable.size + best[variable].reshape(-1).expand(len(place))
    assert close(mass.gather(1, place.unsqueeze(1)).squeeze(1), mass.amax(1), 1e-6)


@pytest.mark.long
@settings(max_examples=15)
@given(graphs())
def test_a_batch_is_its_items(case):
    graph, factors = case
    if len(graph.batch_shape) != 1 or graph.observed is not None:
        return
    together = rg.infer(graph)
    for item in range(graph.batch_shape[0]):
        alone = rg.FactorGraph(
            [
                rg.Factor(
                    f.variables,
                    rg.Table(values[item] if values.ndim > len(f.variables) else values),
                )
                for f in factors
                for values in [f.potential.log_values]
            ],
            variables=graph.variables,
        )
        posterior = rg.infer(alone)
        assert close(together.log_partition[item], posterior.log_partition)
        for variable in graph.variables:
            assert close(together.marginal(variable)[item], posterior.marginal(variable))


def triangle(tables):
    a, b, c = (rg.Variable(name, 3) for name in "abc")
    pairs = [(a, b), (b, c), (c, a)]
    return rg.FactorGraph([rg.Factor(p, rg.Table(t)) for p, t in zip(pairs, tables, strict=True)])


def test_gradients_of_log_z_and_of_marginals():
    generator = torch.Generator().manual_seed(0)
    tables = [
        torch.randn(3, 3, generator=generator, dtype=torch.float64, requires_grad=True)
        for _ in range(3)
    ]
    assert torch.autograd.gradcheck(
        lambda *t: rg.infer(triangle(t)).log_partition, tables, fast_mode=True
    )
    assert torch.autograd.gradcheck(
        lambda *t: rg.infer(triangle(t)).marginal("b"), tables, fast_mode=True
    )
    assert torch.autograd.gradcheck(
        lambda *t: rg.infer(triangle(t)).entropy(), tables, fast_mode=True
    )
    assert torch.autograd.gradgradcheck(
        lambda *t: rg.infer(triangle(t)).log_partition, tables, fast_mode=True
    )


def test_the_gradient_in_a_table_is_its_factor_marginal_with_hard_zeros_too():
    generator = torch.Generator().manual_seed(1)
    tables = [torch.randn(3, 3, generator=generator, dtype=torch.float64) for _ in range(3)]
    tables[0][0] = -math.inf
    tables[2][:, 1] = -math.inf
    for table in tables:
        table.requires_grad_()
    posterior = rg.infer(triangle(tables))
    posterior.log_partition.backward()
    for table, pair in zip(tables, (["a", "b"], ["b", "c"], ["c", "a"]), strict=True):
        assert close(table.grad, posterior.factor_marginal(pair).detach())


def test_an_impossible_model_gives_minus_infinity_and_no_nan():
    table = torch.tensor([[-math.inf, 0.0], [0.0, -math.inf]], dtype=torch.float64)
    same = torch.tensor([[0.0, -math.inf], [-math.inf, 0.0]], dtype=torch.float64)
    table.requires_grad_()
    a, b = rg.Variable("a", 2), rg.Variable("b", 2)
    graph = rg.FactorGraph([rg.Factor((a, b), rg.Table(table)), rg.Factor((a, b), rg.Table(same))])
    posterior = rg.infer(graph)
    assert posterior.log_partition.item() == -math.inf
    assert posterior.marginal(a).tolist() == [0.0, 0.0]
    assert float(posterior.entropy()) == 0.0
    with pytest.raises(rg.errors.ImpossibleEvidenceError, match="probability zero"):
        posterior.mode()
    rows = graph.with_factors(rg.Factor((a,), rg.Table(torch.zeros(2, 2, dtype=torch.float64))))
    assert rg.infer(rows).log_partition.tolist() == [-math.inf] * 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_range_beyond_the_type_is_exact(dtype):
    x, y = rg.Variable("x", 2), rg.Variable("y", 2)
    left = torch.tensor([0.0, -1000.0], dtype=dtype, requires_grad=True)
    right = torch.tensor([-1000.0, 0.0], dtype=dtype)
    link = torch.tensor([[0.0, -900.0], [-900.0, 0.0]], dtype=dtype)
    graph = rg.FactorGraph(
        [
            rg.Factor((x,), rg.Table(left)),
            rg.Factor((x, y), rg.Table(link)),
            rg.Factor((y,), rg.Table(right)),
        ]
    )
    posterior = rg.infer(graph)
    scores = [0.0 - 1000, -900 + 0.0, -1000 - 900 - 1000, -1000 + 0.0]
    expected = torch.tensor(scores, dtype=torch.float64).logsumexp(0)
    assert float(posterior.log_partition.detach()) == pytest.approx(float(expected), rel=1e-6)
    posterior.log_partition.backward()
    assert torch.allclose(left.grad, posterior.marginal(x).detach(), atol=1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_the_bound_of_an_exact_mode_is_its_score_in_double_precision(seed):
    x = rg.VariableArray("x", (5, 5), 2)
    generator = torch.Generator().manual_seed(seed)
    tables = [1e5 * torch.rand(*shape, 2, 2, generator=generator) for shape in ((5, 4), (4, 5))]

    def grid(dtype):
        across, down = (rg.Table(table.to(dtype)) for table in tables)
        return rg.FactorGraph([
            rg.FactorBlock((x[:, :-1], x[:, 1:]), across), rg.FactorBlock((x[:-1], x[1:]), down),
        ])  # fmt: skip

    posterior = rg.infer(grid(torch.float32), scheduler=rg.Contraction())
    assert bool(posterior.mode_is_optimal())
    score = float(grid(torch.float64).score({**posterior.mode()}))
    assert score <= float(posterior.mode_bound()) <= score * (1.0 + 1e-12)


@pytest.mark.long
@pytest.mark.parametrize(
    ("scheduler", "route", "length"),
    [(rg.Auto(), "structure", 10_000), (rg.Contraction(), "forest", 500)],
)
def test_a_long_chain_in_single_precision(scheduler, route, length):
    states = 4
    generator = torch.Generator().manual_seed(2)
    pair = torch.randn(states, states, generator=generator, dtype=torch.float64) * 3
    unary = torch.randn(length, states, generator=generator, dtype=torch.float64) * 3
    sites = rg.VariableArray("x", (length,), states)

    def log_z(dtype):
        graph = rg.FactorGraph(
            [
                rg.FactorBlock((sites[:-1], sites[1:]), rg.Table(pair.to(dtype))),
                rg.FactorBlock((sites,), rg.Table(unary.to(dtype))),
            ]
        )
        posterior = rg.infer(graph, scheduler=scheduler)
        assert posterior.plan.route == route
        marginals = posterior.marginal(sites)
        assert bool(marginals.isfinite().all())
        assert torch.allclose(marginals.sum(-1), torch.ones((), dtype=dtype), atol=1e-5)
        return float(posterior.log_partition)

    forward = unary[0]
    for step in unary[1:]:
        forward = (forward.unsqueeze(1) + pair).logsumexp(0) + step
    truth = float(forward.logsumexp(0))
    assert log_z(torch.float64) == pytest.approx(truth, rel=1e-12)
    assert abs(log_z(torch.float32) - truth) < 1e-3 * length


def ising(side, dtype=torch.float64):
    generator = torch.Generator().manual_seed(3)
    pixels = rg.VariableArray("pixel", (side, side), 2)
    across = torch.randn(side, side - 1, 2, 2, generator=generator, dtype=dtype)
    down = torch.randn(side - 1, side, 2, 2, generator=generator, dtype=dtype)
    return pixels, rg.FactorGraph(
        [
            rg.FactorBlock((pixels[:, :-1], pixels[:, 1:]), rg.Table(across)),
            rg.FactorBlock((pixels[:-1], pixels[1:]), rg.Table(down)),
        ]
    )


@pytest.mark.long
def test_slices_give_the_answers_of_the_whole():
    pixels, graph = ising(5)
    whole = rg.infer(graph)
    sliced = rg.infer(graph, scheduler=rg.Contraction(memory=whole.plan.stored_bytes / 2))
    assert sliced.plan.num_slices > 1
    assert sliced.plan.slices
    assert close(sliced.log_partition, whole.log_partition)
    assert close(sliced.marginal(pixels), whole.marginal(pixels))
    pair = (pixels[0, 0], pixels[0, 1])
    assert close(sliced.factor_marginal(pair), whole.factor_marginal(pair))
    assert close(sliced.entropy(), whole.entropy())
    assert close(sliced.max_marginals()[pixels], whole.max_marginals()[pixels])
    assert close(graph.score({**sliced.mode()}), graph.score({**whole.mode()}))
    drawn = sliced.sample(400, generator=torch.Generator().manual_seed(4))[pixels]
    error = (drawn.double().mean(0) - whole.marginal(pixels)[..., 1]).abs().max()
    assert float(error) < 5 * 0.5 / math.sqrt(400)


@pytest.mark.long
def test_slices_keep_to_the_evidence_of_each_item():
    generator = torch.Generator().manual_seed(6)
    pixels, graph = ising(4)
    seen = torch.randint(-1, 2, (3, 4, 4), generator=generator)
    graph = graph.condition({pixels: seen})
    greedy = rg.Contraction(optimize="greedy")  # all rows at once
    whole = rg.infer(graph, scheduler=greedy)
    downwards = whole.plan.stored_bytes - whole.plan.peak_bytes  # the tables are in both
    sliced = rg.infer(graph, scheduler=replace(greedy, memory=downwards))
    fixed = seen.reshape(3, -1)[:, torch.tensor(sliced.solution.numbers)]
    assert sliced.plan.num_slices > 1
    assert bool((fixed >= 0).any())
    assert close(sliced.log_partition, whole.log_partition)
    assert close(sliced.marginal(pixels), whole.marginal(pixels))
    assert close(sliced.entropy(), whole.entropy())
    assert close(sliced.max_marginals()[pixels], whole.max_marginals()[pixels])
    assert close(graph.score(sliced.mode()), graph.score(whole.mode()))
    drawn = sliced.sample(20, generator=generator)
    assert bool((graph.score(drawn) > -math.inf).all())


def test_a_budget_that_does_not_fit_says_by_how_much():
    _, graph = ising(12)
    with pytest.raises(rg.errors.BudgetError, match=r"needs .*B of memory .* is 1\.0 kB"):
        rg.infer(graph, scheduler=rg.Contraction(memory=1000, seconds=1e-3))


def test_draws_follow_the_joint_distribution():
    generator = torch.Generator().manual_seed(5)
    tables = [torch.randn(3, 3, generator=generator, dtype=torch.float64) for _ in range(3)]
    graph = triangle(tables)
    count = 40_000
    drawn = rg.infer(graph).sample(count, generator=generator)
    cells = sum(drawn[v] * 3**i for i, v in enumerate(graph.variables[::-1]))
    joint = brute_force(graph).joint(graph.variables).flatten()
    seen = torch.bincount(cells, minlength=27).double()
    chi_square = float(((seen - count * joint) ** 2 / (count * joint)).sum())
    assert chi_square < 26 + 5 * math.sqrt(2 * 26)  # five standard deviations


def test_ties_are_broken_the_same_way_every_time():
    _, graph = ising(4)
    flat = rg.FactorGraph(
        [rg.FactorBlock((block,), rg.Table(torch.zeros(2))) for block in graph.variables]
    )
    first, second = rg.infer(flat).mode(), rg.infer(flat).mode()
    assert all(torch.equal(first[entry], second[entry]) for entry in flat.variables)
    assert bool((first[flat.variables[0]] == 0).all())


def test_a_second_run_plans_nothing():
    _, graph = ising(5)
    assert rg.explain(graph).tree is rg.infer(graph).plan.tree


def test_a_long_list_of_configurations_needs_no_table():
    states = torch.tensor(list(itertools.product(range(2), repeat=16)))[::97]
    values = torch.linspace(-1, 1, len(states), dtype=torch.float64)
    bits = [rg.Variable(f"b{i}", 2) for i in range(16)]
    extra = torch.randn(2, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    graph = rg.FactorGraph(
        [
            rg.Factor(tuple(bits), rg.Sparse(states, values, (2,) * 16)),
            rg.Factor((bits[3],), rg.Table(extra)),
        ]
    )
    assert rg.Sparse(states, values, (2,) * 16).decompose() is not None
    posterior = rg.infer(graph)
    scores = values + extra[states[:, 3]]
    assert close(posterior.log_partition, scores.logsumexp(0))
    expected = (scores - scores.logsumexp(0)).exp() @ states.double()
    got = torch.stack([posterior.marginal(bit)[1] for bit in bits])
    assert close(got, expected)
    mode = torch.stack([posterior.mode()[bit] for bit in bits])
    assert torch.equal(mode, states[scores.argmax()])


@pytest.mark.long
def test_modes_and_draws_of_wide_variables_are_made_a_few_at_a_time():
    count, states = 3, 1 << 19
    best = [5, states - 1, states // 2]
    values = torch.full((count, states), -1e3)
    values[range(count), best] = 0.0
    x = rg.VariableArray("x", (count,), states)
    graph = rg.FactorGraph([rg.FactorBlock((x,), rg.Table(values))])
    posterior = rg.infer(graph, scheduler=rg.Contraction())
    assert posterior.mode()[x].tolist() == best
    assert posterior.sample(9)[x].tolist() == [best] * 9
