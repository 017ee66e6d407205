"""Structures that are written as factors come back as what they are, whatever the order."""

import math

import pytest
import torch

import rdpgraph as rg
from rdpgraph.model.evidence import MISSING
from rdpgraph.testing import brute_force

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
        forbidden.setattr("rdpgraph.schedulers.auto.solved", refuse)
        forbidden.setattr("rdpgraph.schedulers.auto.plan_network", refuse)
        forbidden.setattr("rdpgraph.engines.circuit.CircuitSolution.log_partition", refuse)
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
        modes, drawn = solution.mode().unsqueeze(0), solution.sample(40, seeded())
    scores = graph.score_states(torch.cat([modes, drawn]).reshape(-1, *batch, count))
    torch.testing.assert_close(scores[0], truth.maximum, **close)
    assert bool((scores > -math.inf).all())
    assert len(drawn.reshape(40, -1).unique(dim=0)) > 1


def observe(graph, which, seed=0):
    """The graph with the states of a draw as evidence on some of its variables, by number."""
    states = rg.infer(graph, rg.Contraction()).sample(1, generator=seeded(seed))
    flat = torch.cat(
        [states[entry][0].reshape(*graph.batch_shape, -1) for entry in graph.variables], -1
    )
    seen = torch.full_like(flat, MISSING)
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
