"""Marginals of single sites of a structure, and frames, as a graph gives them of its variables."""

import itertools

import pandas as pd
import pytest
import torch

import rdpgraph as rg


def chain(*batch):
    generator = torch.Generator().manual_seed(0)
    return rg.Chain(
        torch.randn(*batch, 4, 3, generator=generator, dtype=torch.float64),
        torch.randn(3, 3, generator=generator, dtype=torch.float64),
    )


@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
def test_a_site_of_a_chain_is_the_variable_of_its_graph(batch):
    model = chain(*batch)
    posterior, general = rg.infer(model), rg.infer(model.factor_graph())
    for site in (0, 3, -1, (2,), slice(1, 3), [0, 2], torch.tensor(1)):
        expected = general.marginal(general.graph["site"][site])
        torch.testing.assert_close(posterior.marginal(site), expected)
    frame, expected = posterior.to_frame(), general.marginals().to_frame()
    pd.testing.assert_frame_equal(frame, expected)


def test_sites_in_a_grid_are_given_by_tuples():
    generator = torch.Generator().manual_seed(1)
    arcs = rg.ProjectiveDependencies(torch.randn(2, 3, 4, generator=generator))
    spans = rg.Hypertree(
        torch.randn(3, 3, 2, generator=generator),
        rg.trees.DenseRules(torch.randn(2, 2, 2, generator=generator)),
    )
    for model in (arcs, spans):
        posterior = rg.infer(model)
        marginals, batch = posterior.marginals(), len(posterior.batch_shape)
        for site in itertools.product(*map(range, marginals.shape[batch:-1])):
            expected = marginals[(slice(None),) * batch + site]
            assert torch.equal(posterior.marginal(site), expected)
    assert rg.infer(spans).to_frame().loc[("site[0, 2]", 1), "value"] == pytest.approx(
        float(rg.infer(spans).marginals()[0, 2, 1])
    )


def test_an_estimate_has_sites_and_gradients():
    model = chain()
    model.unary.requires_grad_()
    few = rg.Randomized.default(keep=2, replicates=4)
    generator = torch.Generator().manual_seed(0)
    for posterior in (rg.infer(model), rg.infer(model, estimator=few, generator=generator)):
        (gradient,) = torch.autograd.grad(posterior.marginal(1)[0], model.unary)
        assert gradient.isfinite().all()
        assert gradient.any()
    assert not posterior.to_frame().isna().any(axis=None)


@pytest.mark.parametrize("site", [4, -5, (0, 1), "site[0]", 1.5])
def test_no_such_site(site):
    with pytest.raises(rg.errors.ModelError, match="There is no site") as caught:
        rg.infer(chain()).marginal(site)
    assert "\n" not in str(caught.value)
