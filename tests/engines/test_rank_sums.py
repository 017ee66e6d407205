"""Sums of graphs with large low-rank factors by the default scheduler."""

import torch

import rdpgraph as rg


def ring(states: int, rank: int, length: int = 4) -> tuple[rg.FactorGraph, torch.Tensor]:
    """A ring of low-rank factors, and their sides (length, 2, states, rank)."""
    generator = torch.Generator().manual_seed(0)
    x = rg.VariableArray("x", (length,), states)
    shape = (length, 2, states, rank)
    sides = torch.randn(shape, generator=generator, dtype=torch.float64)
    pairs = [rg.Factor((x[i], x[(i + 1) % length]), rg.LowRank(*sides[i])) for i in range(length)]
    return rg.FactorGraph(pairs), sides


def test_sums_are_those_of_the_tables():
    graph, sides = ring(260, 2)
    tables = [first @ second.T for first, second in sides.exp()]
    whole = torch.linalg.multi_dot(tables)
    posterior = rg.infer(graph)
    torch.testing.assert_close(posterior.log_partition, whole.trace().log())
    torch.testing.assert_close(posterior.marginal("x[0]"), whole.diagonal() / whole.trace())
    apart = rg.infer(graph.condition({"x[1]": 7, "x[3]": [2, 5]}))
    for row, state in enumerate((2, 5)):
        values = tables[3][state] * tables[0][:, 7]
        torch.testing.assert_close(apart.marginal("x[0]")[row], values / values.sum())
    assert posterior.status.exact
    assert "over their ranks" in posterior.plan.why


def test_modes_and_joints_are_those_of_the_tables():
    graph, sides = ring(400, 2, length=2)
    values = (sides[0, 0].exp() @ sides[0, 1].exp().T) * (sides[1, 1].exp() @ sides[1, 0].exp().T)
    posterior = rg.infer(graph)
    torch.testing.assert_close(posterior.joint(["x[0]", "x[1]"]), values / values.sum())
    best = torch.tensor(divmod(int(values.argmax()), 400))
    assert torch.equal(posterior.mode()["x"], best)
    entropy = torch.special.entr(values / values.sum()).sum()
    torch.testing.assert_close(posterior.entropy(), entropy)
    assert posterior.status.exact


def test_no_table_is_written_for_sums():
    graph, _ = ring(20_000, 3)
    posterior = rg.infer(graph, rg.Auto(memory=5e7))
    other = rg.infer(graph, estimator=rg.LowRankFactors())
    assert posterior.status.exact
    torch.testing.assert_close(posterior.log_partition, other.log_partition)
    torch.testing.assert_close(posterior.marginal("x"), other.marginal("x"))


def test_gradients_of_sums_are_those_of_the_ranks():
    side = torch.zeros(600, 2, dtype=torch.float64, requires_grad=True)
    x = rg.VariableArray("x", (3,), 600)
    pairs = [(x[0], x[1]), (x[1], x[2]), (x[2], x[0])]
    graph = rg.FactorGraph([rg.Factor(pair, rg.LowRank(side, side)) for pair in pairs])
    (gradient,) = torch.autograd.grad(rg.infer(graph).log_partition, side)
    # Each of six sides has a probability of one, shared by all alike.
    torch.testing.assert_close(gradient, torch.full_like(side, 6 / side.numel()))
