"""Potentials of low rank, random features, and products in log-space."""

import math
import warnings

import pytest
import torch

import rdpgraph as rg
from rdpgraph.nn import FeatureMap
from rdpgraph.testing import check_potential

WIDE = torch.float64


def factors(*leads, scale=1.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    sizes = ((5, 3), (6, 3))
    return [
        scale * torch.randn(*lead, *size, generator=generator, dtype=WIDE)
        for lead, size in zip(leads or ((), ()), sizes, strict=True)
    ]


@pytest.mark.cover(2)
@pytest.mark.parametrize("scale", [1.0, 200.0])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("cells", [2**22, 1])
def test_conformance(small_blocks, scale, zeros, cells):
    small_blocks(cells)
    for leads in (((), ()), ((2,), ()), ((2,), (2,))):
        left, right = factors(*leads, scale=scale)
        if zeros:
            left[..., 0, 1] = left[..., 2, :] = right[..., 1, 0] = -math.inf
        check_potential(rg.LowRank(left, right), 2)


def test_a_table_of_rank_one_is_a_sum_of_its_sides():
    left, right = (part[:, :1] for part in factors())
    torch.testing.assert_close(rg.LowRank(left, right).table(2), left + right.mT)
    check_potential(rg.LowRank(left, right), 2)


@pytest.mark.parametrize("scale", [1.0, 100.0, 1000.0])
def test_tables_are_exact_at_any_range(scale):
    generator = torch.Generator().manual_seed(0)
    first, second = (
        scale * torch.randn(2, n, 4, generator=generator, dtype=torch.float32) for n in (5, 6)
    )
    first[0, 1], second[1, 2, :2] = -math.inf, -math.inf
    first.requires_grad_()
    found = rg.LowRank(first, second).table(2)
    expected = (first.double().unsqueeze(-2) + second.double().unsqueeze(-3)).logsumexp(-1)
    finite = expected > -math.inf
    assert torch.equal(found > -math.inf, finite)
    assert torch.allclose(found[finite].double(), expected[finite], rtol=1e-5, atol=1e-4)
    (gradient,) = torch.autograd.grad(found[finite].sum(), first)
    assert not bool(gradient.isnan().any())
    ones = torch.zeros_like(first).where(first == -math.inf, finite.sum(-1, keepdim=True))
    assert torch.allclose(gradient.sum(-1), ones[..., 0].where(finite.any(-1), 0.0), atol=1e-3)


def test_messages_at_other_temperatures_are_those_of_the_table():
    left, right = factors()
    low, dense = rg.LowRank(left, right), rg.Table(rg.LowRank(left, right).table(2))
    incoming = [torch.randn(5, dtype=WIDE), torch.randn(2, 6, dtype=WIDE)]
    for temperature in (0.5, torch.tensor([0.3, 2.0], dtype=WIDE)):
        for own, other in zip(
            low.messages(incoming, temperature=temperature),
            dense.messages(incoming, temperature=temperature),
            strict=True,
        ):
            assert torch.allclose(own, other)


def test_normalised_rows_sum_to_one_exactly():
    for scale in (1.0, 50.0, 500.0):
        left, right = factors(scale=scale)
        right[2] = -math.inf
        right[:, 1] = -math.inf  # a rank that leads nowhere
        plain, normal = rg.LowRank(left, right), rg.LowRank.normalised(left, right)
        table = normal.table(2)
        assert torch.allclose(table.logsumexp(1), torch.zeros(5, dtype=WIDE), atol=1e-12 * scale)
        assert torch.allclose(table.exp(), plain.table(2).softmax(1), atol=1e-10 * scale)
        assert torch.allclose(normal.log_left.logsumexp(1).exp(), torch.ones(5, dtype=WIDE))
    with pytest.raises(rg.errors.ModelError, match="possible second state"):
        rg.LowRank.normalised(torch.full((5, 3), -math.inf, dtype=WIDE), right)


def test_embeddings_of_a_million_states_are_evaluated_without_a_table():
    states = torch.zeros(1_000_000, 4)
    low = rg.LowRank(states, states)
    asked = torch.tensor([0, 999_999])
    assert torch.allclose(low.evaluate([asked, asked]), torch.full((2, 2), math.log(4.0)))


@pytest.mark.parametrize(
    ("left", "right", "message"),
    [
        (torch.zeros(3, 2), torch.zeros(3, 4), "one rank"),
        (torch.zeros(3), torch.zeros(3), "log-factors"),
        (torch.zeros(3, 0), torch.zeros(3, 0), "at least 1"),
        (torch.zeros(3, 2).long(), torch.zeros(3, 2), "floating"),
        (torch.full((3, 2), torch.inf), torch.zeros(3, 2), "below"),
        (torch.zeros(2, 3, 2), torch.zeros(3, 3, 2), "broadcast"),
        (torch.zeros(3, 2), torch.zeros(3, 2, dtype=WIDE), "one dtype"),
    ],
)
def test_what_is_no_factor_is_refused(left, right, message):
    with pytest.raises(rg.errors.ModelError, match=message):
        rg.LowRank(left, right)


def embeddings(scale=0.5, shift=0.0):
    generator = torch.Generator().manual_seed(0)
    return [shift + scale * torch.randn(n, 4, generator=generator, dtype=WIDE) for n in (6, 7)]


@pytest.mark.parametrize("orthogonal", [False, True])
@pytest.mark.parametrize("centred", [False, True])
def test_random_features_are_right_on_average(orthogonal, centred):
    """Within 4.5 standard errors for each of 42 pairs: it fails once in 3,000 seeds."""
    left, right = embeddings(0.4, shift=0.1)
    generator = torch.Generator().manual_seed(0)
    features = rg.RandomFeatures(
        4, 6, orthogonal=orthogonal, maps=(4000,), generator=generator, dtype=WIDE
    )
    values = features.low_rank(left, right, centred=centred).table(2).exp()
    error = values.std(0) / math.sqrt(4000)
    assert bool(((values.mean(0) - (left @ right.mT).exp()).abs() < 4.5 * error).all())


@pytest.mark.parametrize("centred", [False, True])
def test_the_predicted_error_is_the_error_measured(centred):
    left, right = embeddings(0.25)
    generator = torch.Generator().manual_seed(0)
    maps = 20_000
    features = rg.RandomFeatures(
        4, 8, orthogonal=False, maps=(maps,), generator=generator, dtype=WIDE
    )
    values = features.low_rank(left, right, centred=centred).table(2).exp()
    exact = (left @ right.mT).exp()
    squares = (values - exact).square()
    predicted = features.predicted_error(left, right, centred=centred)
    for errors, log_expected in (
        (squares, predicted.log_absolute), (squares / exact.square(), predicted.log_relative)
    ):  # fmt: skip
        means = errors.mean((1, 2))
        sigma = means.std() / math.sqrt(maps)
        assert abs(float(means.mean()) - math.exp(log_expected)) < 4 * float(sigma)


def test_orthogonal_features_have_less_error():
    left, right = embeddings(0.4)
    errors = []
    for orthogonal in (True, False):
        features = rg.RandomFeatures(
            4, 4, orthogonal=orthogonal, maps=(4000,), dtype=WIDE,
            generator=torch.Generator().manual_seed(0),
        )  # fmt: skip
        values = features.low_rank(left, right).table(2).exp()
        errors.append(float((values - (left @ right.mT).exp()).square().mean()))
    assert errors[0] < errors[1]
    first = features.directions.new_tensor(0)
    one = rg.RandomFeatures(4, 4, generator=torch.Generator().manual_seed(1), dtype=WIDE).directions
    gram = one @ one.mT
    assert torch.allclose(gram - gram.diagonal().diag(), first, atol=1e-12)


def test_embeddings_that_are_too_long_are_warned_of_by_their_norm():
    left, right = embeddings(4.0)
    features = rg.RandomFeatures(4, 64, dtype=WIDE)
    with pytest.warns(UserWarning, match=r"norm \|x \+ y\| is"):
        features.low_rank(left, right)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        features.low_rank(left / 10, right / 10)
        # Far off, and close to each other: centring is exact, and all that is needed.
        features.low_rank(left / 10 + 5, right / 10 + 5)
    with pytest.warns(UserWarning, match="useless"):
        features.low_rank(left / 10 + 5, right / 10 + 5, centred=False)


def test_features_that_are_learned():
    left, right = embeddings()
    feature_map = FeatureMap(4, 3, generator=torch.Generator().manual_seed(0)).double()
    values = feature_map.low_rank(left, right).table(2).exp()
    weight = feature_map.weight
    expected = (left @ weight.mT).exp() @ (right @ weight.mT).exp().mT / 3
    assert torch.allclose(values, expected)
    values.sum().backward()
    assert bool((weight.grad != 0).all())
    with pytest.raises(rg.errors.ModelError, match=r"needs embeddings \(\*lead, n, 4\)"):
        feature_map(left[:, :2])
