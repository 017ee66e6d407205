"""Features, kernels, and functions at positions given those at the inducing points."""

import math

import pytest
import torch

from rdpgraph.errors import ModelError
from rdpgraph.gp import RBF, Features, Linear, Matern
from rdpgraph.gp.inducing import Basis, chosen
from rdpgraph.gp.kernels import feature_list

SPARSE = torch.tensor([[1.0, 0.0, 2.0, 0.0], [0.0, 0.0, 1.0, 1.0], [3.0, 0.0, 0.0, 0.0]])


def rows(count, columns=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, columns, dtype=torch.float64, generator=generator)


def features(matrix):
    return Features.of(matrix, "x", dtype=torch.float64)


def test_sparse_products_are_the_dense_ones_and_stay_sparse():
    scipy = pytest.importorskip("scipy.sparse")
    dense = features(SPARSE)
    for given in (SPARSE.to_sparse(), SPARSE.to_sparse_csr(), scipy.csr_matrix(SPARSE.numpy())):
        sparse = features(given)
        assert sparse.matrix.is_sparse
        for one, other in zip(sparse.products(sparse), dense.products(dense), strict=True):
            torch.testing.assert_close(one, other)
        assert sparse[torch.tensor([2, 0])].matrix.is_sparse
        torch.testing.assert_close(
            Features.stacked([sparse, sparse]).squares()[3:], sparse.squares()
        )


def test_kernels_are_their_formulas():
    left, right = rows(4), rows(5, seed=1)
    products = features(left).products(features(right))
    distance = torch.cdist(left, right)
    scaled = distance / 0.7
    expected = {
        Linear(2.0): 2 * left @ right.T,
        RBF(0.7, 3.0): 3 * (-(scaled**2) / 2).exp(),
        Matern(0.7, 3.0, smoothness=0.5): 3 * (-scaled).exp(),
        Matern(0.7, 3.0): 3 * (1 + math.sqrt(3) * scaled) * (-math.sqrt(3) * scaled).exp(),
        Matern(0.7, 3.0, smoothness=2.5): 3
        * (1 + math.sqrt(5) * scaled + 5 * scaled**2 / 3)
        * (-math.sqrt(5) * scaled).exp(),
        Linear(2.0) + RBF(0.7): 2 * left @ right.T + (-(scaled**2) / 2).exp(),
        Linear(2.0) * RBF(0.7): 2 * left @ right.T * (-(scaled**2) / 2).exp(),
    }
    for kernel, value in expected.items():
        torch.testing.assert_close(kernel(products).detach(), value)


@pytest.mark.parametrize("kernel", [Linear(2.0), RBF(1.5), Matern(0.8), RBF() * Linear() + RBF()])
def test_hyperparameters_have_gradients_also_where_positions_coincide(kernel):
    points = features(rows(3))
    products = points.products(points)
    parameters = list(kernel.parameters())

    def total(*values):
        given = dict(zip(dict(kernel.named_parameters()), values, strict=True))
        return torch.func.functional_call(kernel, given, (products,))

    assert torch.autograd.gradcheck(total, tuple(parameters), fast_mode=True)


def test_positions_given_inducing_points_are_the_dense_conditionals():
    kernel, nugget = RBF(1.3, 2.0), 0.01
    points, positions = features(rows(4)), features(rows(3, seed=1))
    basis = Basis([points], [kernel], nugget)
    (given,) = basis.conditional(basis.group([0], [positions], None, None))
    own = kernel(positions.products(positions)) + nugget * torch.eye(3)
    cross, inverse = (
        kernel(positions.products(points)),
        kernel(points.products(points)).inverse(),
    )
    torch.testing.assert_close(given.rows[0] @ given.rows[0].mT, cross @ inverse @ cross.mT)
    torch.testing.assert_close(given.covariance[0], own - cross @ inverse @ cross.mT)


def test_points_are_chosen_by_variance_until_nothing_is_left():
    low_rank = rows(6, 2)
    repeated = features(torch.cat([low_rank, low_rank]))
    places = chosen(repeated, Linear(), 12)
    assert len(places) == 2
    assert int(places[0]) == int(repeated.squares().argmax())
    # Greedy: the second is the one farthest from the line through the first.
    first = repeated.matrix[places[0]]
    left = repeated.matrix - (repeated.matrix @ first / first.square().sum()).outer(first)
    assert int(places[1]) in left.square().sum(1).topk(2).indices
    Basis([repeated[places]], [Linear()], 0.01).roots()


def test_bad_input_is_one_line():
    cases = [
        (lambda: RBF(0.0), "positive lengthscale"),
        (lambda: Matern(smoothness=1.0), "smoothness of 0.5"),
        (lambda: features(torch.zeros(3)), "needs a matrix"),
        (lambda: features(torch.tensor([[math.nan]])), "not finite"),
        (lambda: feature_list([]), "at least one sequence"),
        (lambda: feature_list([torch.zeros(0, 2)]), "Sequence 0 is empty"),
        (
            lambda: feature_list([torch.zeros(1, 2), torch.zeros(1, 3)]),
            "Sequence 1 needs 2 features",
        ),
        (
            lambda: Basis([features(torch.ones(2, 1))], [Linear()], 0.01).roots(),
            "not positive definite",
        ),
        (lambda: chosen(features(torch.zeros(2, 2)), Linear(), 1), "zero at every position"),
    ]
    for make, message in cases:
        with pytest.raises(ModelError, match=message) as caught:
            make()
        assert "\n" not in str(caught.value)
