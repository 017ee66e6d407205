"""Structures that are written as factors come back as what they are, whatever the order."""

import math

import pytest
import torch

import rdpgraph as rg
from rdpgraph.testing import brute_force, check_potential

D = torch.float64


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=seeded(seed), dtype=D)


def shuffled(graph, seed=0, *, states=None):
    """The same model over single variables in another order, its factors in another order too.

    ``states`` are the old states of the new ones, where these are others.
    """
    generator = seeded(seed)
    count = graph.num_variables
    names = torch.randperm(count, generator=generator).tolist()
    fresh = [rg.Variable(f"v{name}", int(graph.domain.sizes[k])) for k, name in enumerate(names)]
    factors = []
    for factor in graph.factors():
        numbers = [int(graph.domain.numbers(variable)) for variable in factor.variables]
        potential = factor.potential
        if len(numbers) > 2:
            potential = graph.blocks[-1].potential
        if states is not None:
            table = potential.table(len(numbers))
            for slot in range(len(numbers)):
                table = table.index_select(slot - len(numbers), states)
            potential = rg.Table(table)
        factors.append(rg.Factor([fresh[number] for number in numbers], potential))
    order = torch.randperm(len(factors), generator=generator).tolist()
    listed = [fresh[k] for k in torch.randperm(count, generator=generator).tolist()]
    return rg.FactorGraph([factors[k] for k in order], variables=listed)


def answered(graph, name, monkeypatch):
    """All answers are those of enumeration, without the general engine."""

    def refuse(*_args, **_options):
        raise AssertionError("contraction answers")

    truth = brute_force(graph)
    with monkeypatch.context() as forbidden:
        forbidden.setattr("rdpgraph.schedulers.contraction.Contraction.solve", refuse)
        forbidden.setattr("rdpgraph.schedulers.routes.contraction.plan_network", refuse)
        forbidden.setattr("rdpgraph.engines.exact.buckets.BucketsSolution.log_partition", refuse)
        posterior = rg.infer(graph)
        assert posterior.plan.route == "structure"
        assert posterior.plan.why.endswith(f"structure {name}")
        plan, run = rg.Auto().plan(graph)
        assert plan.why == posterior.plan.why
        solution = run()
        batch, count = graph.batch_shape, graph.num_variables
        close = {"rtol": 1e-8, "atol": 1e-8}
        z = solution.log_partition().reshape(batch)
        torch.testing.assert_close(z, truth.log_partition, **close)
        variables = [graph.domain.variable(number) for number in range(count)]
        joints = torch.cat([truth.joint((variable,)) for variable in variables], -1)
        marginals = solution.variable_marginals().reshape(joints.shape)
        torch.testing.assert_close(marginals, joints, **close)
        best = torch.cat([truth.max_marginal(variable) for variable in variables], -1)
        torch.testing.assert_close(solution.max_marginals().reshape(best.shape), best, **close)
        torch.testing.assert_close(solution.entropy().reshape(batch), truth.entropy, **close)
        modes, drawn = solution.mode().unsqueeze(0), solution.sample(60, seeded())
    scores = graph.score_states(torch.cat([modes, drawn]).reshape(-1, *batch, count))
    torch.testing.assert_close(scores[0], truth.maximum, **close)
    assert bool((scores > -math.inf).all())
    parts = [drawn[..., k].unsqueeze(-1) == torch.arange(v.size) for k, v in enumerate(variables)]
    rates = torch.cat(parts, -1).double().mean(0).reshape(joints.shape)
    assert bool(((rates - joints).abs() < 0.4).all())  # six standard errors of 60 draws


def observe(graph, which, seed=0):
    """The graph with the states of a draw as evidence on some of its variables, by number."""
    states = rg.infer(graph, rg.Contraction()).sample(1, generator=seeded(seed))
    flat = torch.cat(
        [states[entry][0].reshape(*graph.batch_shape, -1) for entry in graph.variables], -1
    )
    seen = torch.full_like(flat, -1)
    seen[..., which] = flat[..., which]
    starts = graph.domain.starts
    return graph.condition(
        {
            entry: seen[..., start:stop].reshape(*graph.batch_shape, *entry.shape)
            for entry, start, stop in zip(graph.variables, starts, starts[1:], strict=False)
        }
    )


def segments(case):
    some = torch.tensor([4, 2])
    unary = draw(2, 4, 2, 2)
    if case == "forbidden":
        unary[:, :, 1, 0] = -math.inf  # a label that lasts one step
    transition = {
        "each step": draw(3, 2, 2, seed=1),
        "each item": draw(2, 3, 2, 2, seed=1),
        "no label twice": draw(2, 2, seed=1).fill_diagonal_(-math.inf),
    }.get(case, draw(2, 2, seed=1))
    return rg.SemiMarkov(unary, transition, lengths=some if case == "lengths" else None)


SEGMENTS = ["plain", "lengths", "each step", "each item", "no label twice", "forbidden"]


@pytest.mark.parametrize("case", SEGMENTS)
def test_segments_as_their_factor_graph_writes_them(case, monkeypatch):
    answered(segments(case).factor_graph(), "SemiMarkov", monkeypatch)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("case", ["plain", "lengths", "no label twice"])
def test_segments_in_any_order_of_variables_factors_and_states(case, seed, monkeypatch):
    states = torch.randperm(4, generator=seeded(seed))
    answered(
        shuffled(segments(case).factor_graph(), seed, states=states), "SemiMarkov", monkeypatch
    )


@pytest.mark.parametrize("which", [[2], [0, 3], [1, 2], [3]])
def test_segments_with_evidence(which, monkeypatch):
    graph = segments("plain").factor_graph()
    answered(observe(graph, which), "SemiMarkov", monkeypatch)
    answered(observe(shuffled(graph), which), "SemiMarkov", monkeypatch)


def durations(*, observed):
    """A hidden semi-Markov model as a user writes it: hazards, transitions and emissions.

    The state counts the steps since the segment began; one shared table moves it on.
    """
    longest, labels, steps = 3, 2, 4
    hazard = torch.tensor([[0.2, 0.5, 1.0], [0.6, 0.3, 1.0]], dtype=D)
    move = draw(labels, labels).softmax(1)
    table = torch.zeros(labels, longest, labels, longest, dtype=D)
    for label in range(labels):
        for age in range(longest):
            if age + 1 < longest:
                table[label, age, label, age + 1] = 1 - hazard[label, age]
            table[label, age, :, 0] += hazard[label, age] * move[label]
    size = labels * longest
    z, y = rg.VariableArray("z", (steps,), size), rg.VariableArray("y", (steps,), 2)
    start = torch.full((labels, longest), -math.inf, dtype=D)
    start[:, 0] = math.log(0.5)
    emission = draw(labels, 2, seed=3).log_softmax(1).repeat_interleave(longest, 0)
    graph = rg.FactorGraph(
        [
            rg.Factor((z[0],), rg.Table(start.reshape(size))),
            rg.FactorBlock((z[:-1], z[1:]), rg.Table(table.log().reshape(size, size))),
            rg.FactorBlock((z, y), rg.Table(emission)),
        ]
    )
    return graph.condition({y: torch.tensor([[0, 1, 1, 0], [1, 1, 0, 1]]), **observed(z)})


@pytest.mark.parametrize("seen", ["words", "a state", "in a row"])
def test_a_hidden_semi_markov_model_as_a_user_writes_it(seen, monkeypatch):
    given = {
        "words": lambda z: {},
        "a state": lambda z: {z[2]: 3},
        "in a row": lambda z: {z[0]: torch.tensor([0, -1])},
    }
    answered(durations(observed=given[seen]), "SemiMarkov", monkeypatch)


def test_pairs_of_ages_that_are_no_sums_stay_a_chain():
    """A start that depends on age and next label together is no transition between labels."""
    graph = segments("plain").factor_graph()
    unary, pairs = graph.blocks
    table = pairs.potential.log_values.clone()
    table[..., 3, 0] += 0.1
    (x,) = graph.variables
    other = rg.FactorGraph(
        [rg.FactorBlock((x,), unary.potential), rg.FactorBlock((x[:-1], x[1:]), rg.Table(table))]
    )
    posterior = rg.infer(other)
    assert posterior.plan.why.endswith("structure Chain")
    torch.testing.assert_close(posterior.log_partition, brute_force(other).log_partition)


def test_trained_pairs_of_ages_have_the_gradients_of_their_entries():
    graph = segments("plain").factor_graph()
    (x,) = graph.variables
    tables = [block.potential.log_values.clone().requires_grad_() for block in graph.blocks]
    blocks = zip(((x,), (x[:-1], x[1:])), map(rg.Table, tables), strict=True)
    trained = rg.FactorGraph([rg.FactorBlock(*block) for block in blocks])
    posterior = rg.infer(trained)
    found = torch.autograd.grad(posterior.log_partition.sum(), tables)
    general = rg.infer(trained, rg.Contraction()).log_partition
    for mine, theirs in zip(found, torch.autograd.grad(general.sum(), tables), strict=True):
        torch.testing.assert_close(mine, theirs)
    assert posterior.plan.why.endswith("structure Chain")
    held = rg.FactorGraph(
        [
            rg.FactorBlock((x,), rg.Table(tables[0])),
            rg.FactorBlock((x[:-1], x[1:]), rg.Table(tables[1].detach())),
        ]
    )
    posterior = rg.infer(held)
    assert posterior.plan.why.endswith("structure SemiMarkov")
    (mine,) = torch.autograd.grad(posterior.log_partition.sum(), tables[:1])
    torch.testing.assert_close(mine, found[0])


def trees(kind, **options):
    return getattr(rg, kind)(draw(2, 3, 4), **options)


KINDS = ["ProjectiveDependencies", "NonProjectiveDependencies"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("multiroot", [False, True])
@pytest.mark.parametrize("lengths", [None, torch.tensor([3, 2])], ids=["full", "lengths"])
def test_dependency_trees_as_factors(kind, multiroot, lengths, monkeypatch):
    graph = trees(kind, multiroot=multiroot, lengths=lengths).factor_graph()
    answered(graph, kind, monkeypatch)
    answered(shuffled(graph), kind, monkeypatch)
    answered(observe(shuffled(graph), [0, 2]), kind, monkeypatch)


@pytest.mark.parametrize("kind", KINDS)
def test_trees_with_rows_of_evidence_and_factors_of_one_head(kind, monkeypatch):
    heads = [rg.Variable(f"head {word}", 4) for word in range(3)]
    tree = rg.extend.StructurePotential(getattr(rg, kind)(draw(3, 4)))
    extra = rg.Factor((heads[1],), rg.Table(draw(4, seed=5)))
    graph = rg.FactorGraph([rg.Factor(heads, tree), extra, extra])
    answered(graph, kind, monkeypatch)
    answered(graph.condition({heads[0]: torch.tensor([-1, 2]), heads[2]: 2}), kind, monkeypatch)
    answered(graph.condition({heads[0]: torch.tensor([-1, -1])}), kind, monkeypatch)


def hypertree(case):
    lengths = torch.tensor([3, 2])
    return {
        "no rules": rg.Hypertree(draw(2, 3, 3, 1)),
        "lengths": rg.Hypertree(draw(2, 3, 3, 1), lengths=lengths),
        "an empty one": rg.Hypertree(draw(2, 2, 2, 1), lengths=torch.tensor([2, 0])),
        "rules": rg.Hypertree(
            draw(3, 3, 2), rg.trees.DenseRules(draw(2, 2, 2, seed=1)), root=draw(2, seed=2)
        ),
        "preterminals": rg.Hypertree(
            draw(3, 3, 2), rg.trees.DenseRules(draw(1, 2, 2, seed=1)), preterminals=1
        ),
    }[case]


@pytest.mark.parametrize("case", ["no rules", "lengths", "an empty one", "rules", "preterminals"])
def test_charts_of_spans_as_factors(case, monkeypatch):
    graph = hypertree(case).factor_graph()
    answered(graph, "Hypertree", monkeypatch)
    answered(shuffled(graph), "Hypertree", monkeypatch)


@pytest.mark.parametrize("size", [3, pytest.param(4, marks=pytest.mark.long)])
def test_spans_that_are_seen_or_seen_to_be_none(size, monkeypatch):
    spans = rg.VariableArray("span", (size, size), 2)
    members = [spans[i, j] for i in range(size) for j in range(size)]
    tree = rg.extend.StructurePotential(rg.Hypertree(draw(size, size, 1)))
    other = draw(size, size, 2, seed=1)
    graph = rg.FactorGraph([rg.FactorBlock((spans,), rg.Table(other)), rg.Factor(members, tree)])
    seen = {spans[0, 1]: torch.tensor([0, 1, -1]), spans[2, 1]: 1}
    answered(graph.condition(seen), "Hypertree", monkeypatch)
    if size == 4:
        answered(graph.condition({spans[1, 2]: 0}), "Hypertree", monkeypatch)
    for wrong in ({spans[0, 1]: 0, spans[1, 2]: 0}, {spans[1, 0]: 0}, {spans[1, 1]: 1}):
        assert rg.infer(graph.condition(wrong)).log_partition == -math.inf


@pytest.mark.parametrize("kind", KINDS)
def test_structures_are_potentials_that_conform(kind):
    check_potential(rg.extend.StructurePotential(getattr(rg, kind)(draw(2, 3))))
    check_potential(rg.extend.StructurePotential(rg.Hypertree(draw(2, 2, 1))))


@pytest.mark.parametrize("model", [trees(KINDS[0]), trees(KINDS[1]), hypertree("rules")])
def test_gradients_pass_the_factors_of_trees(model):
    unary = model.unary.clone().requires_grad_()
    log_z = rg.infer(model.with_unary(unary).factor_graph()).log_partition
    (mine,) = torch.autograd.grad(log_z.sum(), unary)
    torch.testing.assert_close(mine, model.marginals())


def test_other_factors_beside_a_tree_are_written_out_or_refused():
    heads = [rg.Variable(f"head {word}", 4) for word in range(3)]
    tree = rg.Factor(heads, rg.extend.StructurePotential(trees(KINDS[0])))
    pair = rg.Factor((heads[0], heads[2]), rg.Table(draw(4, 4, seed=1)))
    graph = rg.FactorGraph([tree, pair])
    posterior, truth = rg.infer(graph), brute_force(graph)
    assert posterior.plan.route != "structure"
    torch.testing.assert_close(posterior.log_partition, truth.log_partition)
    many = [rg.Variable(f"head {word}", 13) for word in range(12)]
    tree = rg.Factor(many, rg.extend.StructurePotential(rg.ProjectiveDependencies(draw(12, 13))))
    assert rg.infer(rg.FactorGraph([tree])).plan.route == "structure"
    with pytest.raises(rg.errors.UnsupportedError, match="all other factors are over one variable"):
        rg.infer(rg.FactorGraph([tree, rg.Factor(many[:2], rg.Table(draw(13, 13)))]))


def test_chains_without_a_possible_first_state_are_answered():
    x = rg.VariableArray("x", (3,), 3)
    step = torch.eye(3, dtype=D).log().roll(1, 0)
    nothing = rg.Factor((x[0],), rg.Table(torch.full((3,), -math.inf, dtype=D)))
    links = [rg.Factor((x[t], x[t + 1]), rg.Table(step)) for t in range(2)]
    posterior = rg.infer(rg.FactorGraph([nothing, *links]))
    assert posterior.log_partition.item() == -math.inf


def test_what_is_declared_and_not_found_says_so():
    grid = rg.Bitext(torch.zeros(2, 2, 2, 2, 1))
    with pytest.raises(rg.errors.UnsupportedError, match="has no factor graph"):
        grid.factor_graph()
