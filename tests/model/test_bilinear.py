"""Bilinear potentials."""

import pytest
import torch

import rdpgraph as rg
from rdpgraph import Bilinear
from rdpgraph.testing import check_potential


def draw(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize(
    "shapes",
    [
        ((4, 2), (3, 2)),
        ((3, 1), (3, 1)),
        ((5, 4, 2), (5, 3, 2)),
        ((5, 4, 2), (3, 2)),
        ((2, 1, 4, 2), (5, 3, 2)),
        ((1, 4, 2), (3, 2)),
    ],
)
def test_conformance(shapes):
    check_potential(Bilinear(*(draw(*shape, seed=n) for n, shape in enumerate(shapes))), 2)


def test_a_block_of_factors_with_embeddings_of_their_own():
    sites = rg.VariableArray("x", (4,), 5)
    for left, right in [((3, 5, 2), (5, 2)), ((5, 2), (5, 2)), ((2, 3, 5, 2), (3, 5, 2))]:
        potential = Bilinear(draw(*left), draw(*right, seed=1))
        table = rg.Table(potential.table(2))
        scopes = (sites[:-1], sites[1:])
        given = rg.FactorGraph([rg.FactorBlock(scopes, potential)])
        dense = rg.FactorGraph([rg.FactorBlock(scopes, table)])
        assert given.batch_shape == dense.batch_shape
        posteriors = [rg.infer(graph) for graph in (given, dense)]
        assert torch.allclose(*(p.log_partition for p in posteriors))
        support = rg.extend.Support(
            torch.randint(5, (*given.batch_shape, 4, 3)), draw(*given.batch_shape, 4, 3)
        )
        few = [rg.infer(graph.restrict({"x": support})) for graph in (given, dense)]
        assert torch.allclose(*(p.log_partition for p in few))


def test_a_million_states_form_no_table():
    embeddings = torch.randn(1_000_000, 3, generator=torch.Generator().manual_seed(0))
    embeddings.requires_grad_()
    potential = Bilinear(embeddings, embeddings)
    states = torch.tensor([[3, 999_999], [0, 7]])
    values = potential.evaluate([states, states.flip(-1)])
    expected = embeddings[states] @ embeddings[states.flip(-1)].mT
    assert torch.equal(values, expected)
    (gradient,) = torch.autograd.grad(values.sum(), embeddings)
    assert set(gradient.abs().sum(1).nonzero().flatten().tolist()) == {0, 3, 7, 999_999}


@pytest.mark.parametrize(
    ("left", "right", "message"),
    [
        (torch.zeros(3, 2), torch.zeros(3, 4), "one length"),
        (torch.zeros(3), torch.zeros(3), "embeddings"),
        (torch.zeros(3, 2).long(), torch.zeros(3, 2), "floating"),
        (torch.full((3, 2), -torch.inf), torch.zeros(3, 2), "finite"),
        (torch.zeros(2, 3, 2), torch.zeros(3, 3, 2), "broadcast"),
        (torch.zeros(3, 2), torch.zeros(3, 2, dtype=torch.float64), "one dtype"),
    ],
)
def test_what_is_no_embedding_is_refused(left, right, message):
    with pytest.raises(rg.errors.ModelError, match=message):
        Bilinear(left, right)


@pytest.mark.parametrize("kept", [None, 3])
def test_subnormal_gradients_are_zeros(kept):
    """Sharp models give many, and products with them take up to a hundred times as long."""
    embeddings = torch.randn(6, 2, generator=torch.Generator().manual_seed(0)).requires_grad_()
    potential = rg.Bilinear(embeddings, embeddings)
    every = torch.arange(6)[:kept]
    values = potential.table(2) if kept is None else potential.evaluate([every, every])
    gradient = torch.rand(values.shape, generator=torch.Generator().manual_seed(1)) - 0.5
    faint = torch.arange(values.numel()).reshape(values.shape) % 3 == 0
    (found,) = torch.autograd.grad(
        values, embeddings, torch.where(faint, 1e-39 * gradient, gradient), retain_graph=True
    )
    cleared = gradient.masked_fill(faint, 0.0)
    (expected,) = torch.autograd.grad(values, embeddings, cleared, retain_graph=True)
    assert torch.equal(found, expected)
    (found,) = torch.autograd.grad(values, embeddings, 1e-39 * gradient)
    assert not found.any()
