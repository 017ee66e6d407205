"""General graphs that are chains are answered by their recursion, all others as before."""

import math

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

import rdpgraph as rg
from rdpgraph.testing import brute_force

D = torch.float64


@st.composite
def chained(draw):
    """Graphs of one chain or more, whose factors come in every form."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    chains = draw(st.integers(1, 2))
    total = draw(st.integers(3, 6 if chains == 1 else 3))
    states = draw(st.integers(1, 3)) if chains * total <= 6 else 2
    batch = draw(st.sampled_from([(), (), (2,), (2, 1)]))
    zeros = draw(st.sampled_from([0.0, 0.0, 0.2]))

    def table(*shape, batched):
        lead = batch if batched else ()
        values = torch.randn([*lead, *shape], generator=generator, dtype=D)
        gone = torch.rand(values.shape, generator=generator) < zeros
        return rg.Table(values.masked_fill(gone, -math.inf))

    x = rg.VariableArray("x", (chains * total,), states)
    order = torch.tensor(draw(st.permutations(range(chains * total)))).reshape(chains, total)
    left, right = x[order[:, :-1]], x[order[:, 1:]]
    factors = []
    kind = draw(st.sampled_from(["shared", "each", "row", "single", "mixed"]))
    batched = draw(st.booleans())
    for _ in range(draw(st.integers(1, 2))):
        flip = draw(st.booleans())
        scopes = (right, left) if flip else (left, right)
        if kind == "shared":
            factors.append(rg.FactorBlock(scopes, table(1, 1, states, states, batched=batched)))
        elif kind == "each":
            lead = (chains, total - 1)
            factors.append(rg.FactorBlock(scopes, table(*lead, states, states, batched=batched)))
        elif kind == "row":
            lead = (chains, 1)
            factors.append(rg.FactorBlock(scopes, table(*lead, states, states, batched=batched)))
        else:
            one = table(states, states, batched=batched)
            for chain in range(chains):
                for step in range(total - 1):
                    pair = (x[int(order[chain, step])], x[int(order[chain, step + 1])])
                    turned = draw(st.booleans()) if kind == "mixed" else flip
                    own = one if draw(st.booleans()) else table(states, states, batched=batched)
                    factors.append(rg.Factor(pair[::-1] if turned else pair, own))
    for _ in range(draw(st.integers(0, 2))):
        members = draw(st.lists(st.integers(0, chains * total - 1), min_size=1))
        own = table(len(members), states, batched=draw(st.booleans()))
        factors.append(rg.FactorBlock((x[torch.tensor(members)],), own))
    if draw(st.booleans()):
        factors.append(rg.Factor((x[0],), table(states, batched=False)))
    shuffled = draw(st.permutations(factors))
    return rg.FactorGraph(shuffled, variables=[x])


def close(got, expected, tolerance=1e-8):
    got, expected = torch.broadcast_tensors(got, expected)
    near = (got - expected).abs() <= tolerance * (1 + expected.abs())
    return bool(((got == expected) | near).all())


@pytest.mark.long
@settings(max_examples=20)
@given(chained())
def test_answers_are_those_of_enumeration(graph):
    posterior, truth = rg.infer(graph), brute_force(graph)
    assert posterior.plan.route == "structure"
    assert "Chain" in posterior.plan.why
    assert posterior.status.exact
    (x,) = graph.variables
    assert close(posterior.log_partition, truth.log_partition)
    best = posterior.max_marginals()[x]
    for number in range(graph.num_variables):
        assert close(posterior.marginal(x)[..., number, :], truth.joint((x[number],)))
        assert close(best[..., number, :], truth.max_marginal(x[number]))
    assert close(posterior.entropy(), truth.entropy, 1e-6)
    general = rg.infer(graph, scheduler=rg.Contraction())
    for block in graph.blocks[:1]:
        pair = [graph.domain.variable(number) for number in block.scopes[0].tolist()]
        assert close(posterior.factor_marginal(pair), general.factor_marginal(pair))
    if bool((truth.log_partition == -math.inf).any()):
        with pytest.raises(rg.errors.ImpossibleEvidenceError):
            posterior.mode()
        return
    assert close(graph.score({**posterior.mode()}), truth.maximum)
    drawn = posterior.sample(5, generator=torch.Generator().manual_seed(0))
    assert drawn[x].shape == (5, *graph.batch_shape, graph.num_variables)
    assert bool((graph.score({**drawn}) > -math.inf).all())
    assert close(posterior.marginal_mode([x[0]])[x[0]], general.marginal_mode([x[0]])[x[0]])


def three(**more):
    x = rg.VariableArray("x", (6,), 2)
    generator = torch.Generator().manual_seed(0)
    table = rg.Table(torch.randn(2, 2, generator=generator, dtype=D))
    return x, table


def graphs_that_are_not_chains():
    x, table = three()
    line = rg.FactorBlock((x[:-1], x[1:]), table)
    unary = rg.FactorBlock((x,), rg.Table(torch.zeros(2, dtype=D)))
    other = rg.Variable("other", 3)
    yield "no pairs", rg.FactorGraph([unary])
    yield "a cycle", rg.FactorGraph([line, rg.Factor((x[5], x[0]), table)])
    yield "a branch", rg.FactorGraph([line, rg.Factor((rg.Variable("y", 2), x[2]), table)])
    yield (
        "a cycle and a chain",
        rg.FactorGraph([rg.FactorBlock((x[[0, 1, 2, 3, 4]], x[[1, 2, 0, 4, 5]]), table)]),
    )
    short = [
        rg.FactorBlock((x[2 * k : 2 * k + 1], x[2 * k + 1 : 2 * k + 2]), table) for k in (1, 2)
    ]
    wide = rg.VariableArray("wide", (9,), 2)
    yield (
        "one long and many short",
        rg.FactorGraph([*short, rg.FactorBlock((wide[:3], wide[1:4]), table)], variables=[wide]),
    )
    yield "only pairs", rg.FactorGraph([rg.FactorBlock((x[::2], x[1::2]), table)])
    yield (
        "two sizes",
        rg.FactorGraph([line, rg.Factor((x[5], other), rg.Table(torch.zeros(2, 3, dtype=D)))]),
    )
    triple = rg.Factor((x[0], x[1], x[2]), rg.Table(torch.zeros(2, 2, 2, dtype=D)))
    yield "a triple", rg.FactorGraph([line, triple])
    yield "a constant", rg.FactorGraph([line, rg.Factor((), rg.Table(torch.ones((), dtype=D)))])
    three_left = rg.FactorGraph([line, triple]).condition({x[4]: 1})
    yield "evidence that leaves a triple", three_left


@pytest.mark.parametrize(
    "graph",
    [pytest.param(graph, id=name) for name, graph in graphs_that_are_not_chains()],
)
def test_other_graphs_are_solved_as_before(graph):
    posterior = rg.infer(graph)
    assert posterior.plan.route in ("forest", "contraction")
    assert close(posterior.log_partition, brute_force(graph).log_partition)


def test_one_table_stays_one_table():
    x, table = three()
    for scopes in ((x[:-1], x[1:]), (x[1:], x[:-1])):
        match = rg.Chain.recognise(rg.FactorGraph([rg.FactorBlock(scopes, table)]))
        assert match.structure.transition.shape == (2, 2)
        assert torch.equal(match.structure.transition, table.log_values)  # along its direction
    rows = rg.VariableArray("y", (4, 5), 2)
    many = rg.Chain.recognise(rg.FactorGraph([rg.FactorBlock((rows[:, :-1], rows[:, 1:]), table)]))
    assert many.structure.transition.shape == (2, 2)
    assert many.numbers.tolist() == torch.arange(20).reshape(4, 5).tolist()


def test_gradients_reach_the_factors():
    x, _ = three()
    values = [torch.randn(s, dtype=D, requires_grad=True) for s in ((6, 2), (5, 2, 2), (2, 2))]
    graph = rg.FactorGraph(
        [
            rg.FactorBlock((x,), rg.Table(values[0])),
            rg.FactorBlock((x[1:], x[:-1]), rg.Table(values[1])),
            rg.Factor((x[2], x[3]), rg.Table(values[2])),
        ]
    )
    own, general = rg.infer(graph), rg.infer(graph, scheduler=rg.Contraction())
    for ask in (
        lambda posterior: posterior.log_partition,
        lambda posterior: posterior.entropy(),
        lambda posterior: posterior.marginal(x[1])[0],
        lambda posterior: posterior.max_marginals()[x][2, 1],
    ):
        found = torch.autograd.grad(ask(own), values, retain_graph=True)
        expected = torch.autograd.grad(ask(general), values, retain_graph=True)
        for mine, theirs in zip(found, expected, strict=True):
            assert torch.allclose(mine, theirs)


def answers_are_those_of_enumeration(graph, kind):
    """Compare the structure's answers, whatever small graphs are answered by, and its gradients."""
    solution, truth = rg.Auto().plan(graph)[1](), brute_force(graph)
    assert type(solution).__name__ == kind
    shape = graph.batch_shape
    variables = [graph.domain.variable(number) for number in range(graph.num_variables)]
    assert close(solution.log_partition().reshape(shape), truth.log_partition)
    joints = torch.cat([truth.joint((variable,)) for variable in variables], -1)
    assert close(solution.variable_marginals().reshape(joints.shape), joints)
    best = torch.cat([truth.max_marginal(variable) for variable in variables], -1)
    assert close(solution.max_marginals().reshape(best.shape), best)
    assert close(solution.entropy().reshape(shape), truth.entropy, 1e-6)
    general = rg.infer(graph, scheduler=rg.Contraction())
    score = general.log_partition - general.entropy()
    assert close(solution.expected_score().reshape(shape), score, 1e-6)
    generator, starts = torch.Generator().manual_seed(0), graph.domain.starts
    states = torch.cat([solution.mode().unsqueeze(0), solution.sample(4, generator)])
    parts = states.reshape(5, *shape, -1).split(torch.tensor(starts).diff().tolist(), -1)
    parts = [
        part.reshape(5, *shape, *entry.shape)
        for part, entry in zip(parts, graph.variables, strict=True)
    ]
    scores = graph.score(dict(zip(graph.variables, parts, strict=True)))
    assert close(scores[0], truth.maximum)
    assert bool((scores > -math.inf).all())
    tables = [block.potential.log_values for block in graph.blocks]
    tables = [table for table in tables if table.requires_grad]
    mine = torch.autograd.grad(solution.log_partition().sum(), tables, allow_unused=True)
    theirs = torch.autograd.grad(general.log_partition.sum(), tables, allow_unused=True)
    assert all(torch.allclose(a, b) for a, b in zip(mine, theirs, strict=True) if b is not None)


@pytest.mark.cover(2)
@pytest.mark.parametrize("lengths", [[3, 1], [4, 2], [3, 1, 2], [4, 1, 1]], ids=str)
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("way", ["ahead", "back", "mixed"])
@pytest.mark.parametrize("batch", [(), (2,)], ids=str)
def test_chains_of_different_lengths(lengths, shared, way, batch):
    generator = torch.Generator().manual_seed(len(lengths))
    count = sum(lengths)
    x = rg.VariableArray("x", (count,), 2)
    paths = torch.randperm(count, generator=generator).split(lengths)
    pairs = torch.cat([torch.stack([path[:-1], path[1:]], 1) for path in paths])
    turned = {"ahead": pairs[:, 0] < 0, "back": pairs[:, 0] >= 0, "mixed": pairs[:, 0] % 2 == 0}
    pairs = torch.where(turned[way].unsqueeze(1), pairs.flip(1), pairs)
    tables = torch.randn(*batch, 1 if shared else len(pairs), 2, 2, generator=generator, dtype=D)
    values = torch.randn(count, 2, generator=generator, dtype=D)
    graph = rg.FactorGraph(
        [
            rg.FactorBlock((x[pairs[:, 0]], x[pairs[:, 1]]), rg.Table(tables.requires_grad_())),
            rg.FactorBlock((x,), rg.Table(values.requires_grad_())),
        ]
    )
    match = rg.Chain.recognise(graph)
    assert sorted(match.structure.lengths.reshape(-1, len(lengths))[0].tolist()) == sorted(lengths)
    if shared and way != "mixed" and not batch:
        assert match.structure.transition.shape == (2, 2)
    answers_are_those_of_enumeration(graph, "RecognisedSolution")


@pytest.mark.cover(2)
@pytest.mark.parametrize("batch", [(), (2,)], ids=str)
@pytest.mark.parametrize("seen", ["observations", "a state too", "a cut", "in some rows"])
@pytest.mark.parametrize("hard", [0.0, 0.2])
def test_what_evidence_leaves_is_a_chain(batch, seen, hard):
    """A hidden Markov model as a graph; what is seen of its states may cut the chain."""
    generator = torch.Generator().manual_seed(0)
    x, y = (rg.VariableArray(name, (6,), size) for name, size in (("x", 2), ("y", 3)))
    transition = torch.randn(1, 2, 2, generator=generator, dtype=D)
    emission = torch.randn(1, 2, 3, generator=generator, dtype=D)
    emission[torch.rand(emission.shape, generator=generator) < hard] = -math.inf
    graph = rg.FactorGraph(
        [
            rg.FactorBlock((x[1:], x[:-1]), rg.Table(transition.requires_grad_())),
            rg.FactorBlock((x, y), rg.Table(emission.requires_grad_())),
        ]
    )
    symbols = emission.detach()[0].amax(0).argsort(descending=True)[:2]
    given = symbols[torch.randint(2, (*batch, 6), generator=generator)]
    given[..., 2] = symbols[0]
    states = torch.full((*batch, 6), -1)
    if seen == "a state too":
        states[..., 0] = 1
    if seen == "a cut":
        states[..., 2] = 0
    if seen == "in some rows":
        (states[:1] if batch else states)[..., 1] = 1
    graph = graph.condition({y: given, x: states})
    assert bool((brute_force(graph).log_partition > -math.inf).all())
    answers_are_those_of_enumeration(graph, "LeftSolution")


def test_what_is_left_for_all_rows_of_evidence():
    """The chain is the same for all of them, and its draws are not."""
    x, y = rg.VariableArray("x", (6,), 2), rg.Variable("y", 3)
    generator = torch.Generator().manual_seed(0)
    tables = [torch.randn(*shape, generator=generator, dtype=D) for shape in ((5, 2, 2), (3,))]
    line, alone = (rg.Table(table.requires_grad_()) for table in tables)
    graph = rg.FactorGraph([rg.FactorBlock((x[1:], x[:-1]), line), rg.Factor((y,), alone)])
    graph = graph.condition({"y": torch.tensor([[0, 1], [2, 2]])})
    answers_are_those_of_enumeration(graph, "LeftSolution")
    drawn = rg.Auto().plan(graph)[1]().sample(500, generator)[..., :6].double()
    pairs = torch.corrcoef(drawn[..., 0].T)
    assert bool((pairs[~torch.eye(4, dtype=torch.bool)].abs() < 0.3).all())


def test_what_a_match_leaves_open_says_by_what_it_came():
    """The chain answers what it can; another question that does not fit goes to messages."""
    x = rg.VariableArray("x", (50,), 40)
    graph = rg.FactorGraph([rg.FactorBlock((x[:-1], x[1:]), rg.Table(torch.zeros(40, 40)))])
    posterior = rg.infer(graph, scheduler=rg.Auto(memory=10.0))
    assert posterior.plan.route == "structure"
    expected = torch.full((50, 40), 1 / 40)
    assert torch.allclose(posterior.marginal(x), expected)
    assert torch.allclose(posterior.entropy(), torch.tensor(50 * math.log(40.0)))
    with pytest.warns(UserWarning, match="factor_marginal is approximate here"):
        joint = posterior.factor_marginal((x[0], x[1]))
    assert torch.allclose(joint, torch.full((40, 40), 1 / 1600))
    assert posterior.status.exact
    assert not posterior.status_of("factor_marginal").exact


@settings(max_examples=20)
@given(st.integers(1, 4), st.integers(3, 40), st.randoms(use_true_random=False))
def test_paths_are_found_in_any_order(paths, length, random):
    numbers = list(range(paths * length))
    random.shuffle(numbers)
    wanted = torch.tensor(numbers).reshape(paths, length)
    pairs = torch.stack([wanted[:, :-1], wanted[:, 1:]], 2).reshape(-1, 2)
    pairs = pairs[random.sample(range(len(pairs)), len(pairs))]
    x = rg.VariableArray("x", (paths * length,), 2)
    table = rg.Table(torch.tensor([[0.0, 1.0], [-1.0, 0.5]], dtype=D))
    ahead = rg.FactorBlock((x[pairs[:, 0]], x[pairs[:, 1]]), table)
    back = rg.FactorBlock((x[pairs[:, 1]], x[pairs[:, 0]]), table)
    for graph in (rg.FactorGraph([ahead]), rg.FactorGraph([back, ahead])):
        chain = rg.Chain.recognise(graph).structure
        assert chain.unary.shape[-2] == length
        assert chain.unary[..., 0].numel() == paths * length
        expected = rg.infer(graph, scheduler=rg.Contraction()).log_partition
        assert close(chain.log_partition().sum(), expected)
