"""Marginals of single sites of a structure, and frames, as a graph gives them of its variables."""

import dataclasses
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


def top_two(model):
    """An estimate on the two states of each site with the largest potentials, and that model."""
    few = rg.Randomized(rg.randomized.Local(), rg.randomized.Top(2), defensive=0.0)
    least = model.unary.topk(2, -1).values[..., -1:]
    unary = torch.where(model.unary < least, -torch.inf, model.unary)
    return rg.infer(model, estimator=few), dataclasses.replace(model, unary=unary)


@pytest.mark.parametrize("batch", [(), (2,)])
def test_an_estimate_on_certain_states_answers_as_the_model_on_these(batch):
    posterior, exact = top_two(chain(*batch))
    torch.testing.assert_close(posterior.log_partition, exact.log_partition())
    assert torch.equal(posterior.mode(), exact.mode())
    truth = rg.infer(exact)
    torch.testing.assert_close(posterior.max_marginals(), truth.max_marginals())
    torch.testing.assert_close(posterior.joint([0, 2]), truth.joint([0, 2]))
    torch.testing.assert_close(posterior.mutual_information(0, 2), truth.mutual_information(0, 2))
    draws = posterior.sample(4000, torch.Generator().manual_seed(0))
    assert draws.shape == (4000, *batch, 4)
    shares = torch.nn.functional.one_hot(draws, 3).double().mean(0)
    torch.testing.assert_close(shares, exact.marginals(), atol=0.04, rtol=0)


def test_an_estimate_of_segments_gives_segmentations():
    generator = torch.Generator().manual_seed(2)
    model = rg.SemiMarkov(
        torch.randn(3, 2, 3, generator=generator, dtype=torch.float64),
        torch.randn(3, 3, generator=generator, dtype=torch.float64),
    )
    posterior, exact = top_two(model)
    best, draws = posterior.mode(), posterior.sample(50, generator)
    torch.testing.assert_close(model.score(best), model.score(exact.mode()))
    assert bool((exact.score(draws) > -torch.inf).all())
    assert draws.labels.shape == (50, 3)


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
