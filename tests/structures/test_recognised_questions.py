"""A recognised graph answers what its structure answers, and computes an answer once."""

import pytest
import torch

import rdpgraph as rg


def made(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64)


TREES = {
    "spans": lambda: rg.Hypertree(made(6, 6, 4), rg.trees.DenseRules(made(4, 4, 4))),
    "heads": lambda: rg.ProjectiveDependencies.from_arcs(made(20, 20)),
    "heads that cross": lambda: rg.NonProjectiveDependencies.from_arcs(made(2, 20, 20)),
}


@pytest.mark.parametrize("kind", TREES)
def test_relaxed_draws_of_a_large_tree_are_those_of_the_structure(kind):
    """As a factor the tree would have too many configurations to be written out."""
    structure = TREES[kind]()
    graph, seed = structure.factor_graph(), torch.Generator
    ours = rg.infer(graph).rsample(temperature=0.5, generator=seed().manual_seed(0))["site"]
    theirs = structure.rsample(1, temperature=0.5, generator=seed().manual_seed(0))[0]
    values = structure.variable_values(theirs, best=False)
    torch.testing.assert_close(ours.reshape(values.shape), values)
    torch.testing.assert_close(ours.sum(-1), torch.ones(ours.shape[:-1], dtype=ours.dtype))


def test_an_answer_that_a_structure_may_leave_open_is_computed_once(monkeypatch):
    asked = []
    for name in ("mode", "max_marginals", "entropy"):
        answer = getattr(rg.Chain, name)
        monkeypatch.setattr(
            rg.Chain,
            name,
            lambda self, name=name, answer=answer: asked.append(name) or answer(self),
        )
    graph = rg.Chain(made(6, 5), made(5, 5)).factor_graph()
    posterior = rg.infer(graph)
    score = graph.score(posterior.mode())
    torch.testing.assert_close(posterior.max_marginals()["site"].amax(-1), score.expand(6))
    assert bool(posterior.entropy() > 0)
    assert sorted(asked) == ["entropy", "max_marginals", "mode"]


def test_marginal_modes_of_a_chain_cost_what_its_pairs_cost():
    """Variables in series are summed from their end, where tables of pairs suffice."""
    states = 300
    x = rg.VariableArray("x", (8,), states)
    vectors = made(states, 3)
    pairs = rg.FactorBlock((x[:-1], x[1:]), rg.Bilinear(vectors, vectors))
    ring = rg.FactorBlock((x[:3], x[[1, 2, 0]]), rg.Table(made(3, states, states)[:, :, :]))
    unary = rg.FactorBlock((x,), rg.Table(made(8, states)))
    chain = rg.FactorGraph([pairs, unary])
    posterior = rg.infer(chain, rg.Contraction(seconds=0.1))
    best = posterior.marginal_mode([x[0]])
    assert best[x[0]] == posterior.marginal(x)[0].argmax()
    pending = rg.explain(rg.FactorGraph([pairs, unary, ring]), rg.Contraction())
    assert pending.flops < 2 * states**3 + 100 * states**2
