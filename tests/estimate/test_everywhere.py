"""The randomized estimator on every kind of model that exact inference takes."""

import math

import pytest
import torch

import rdpgraph as rg
from rdpgraph import StructuredPosterior
from tests.estimate.models import kept_marginals
from tests.structures.test_extension import Independent

INF = math.inf


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


def arities():
    """Factors of one to four variables, a loop among them, sizes mixed, one state included."""
    a, b = rg.Variable("a", 6), rg.Variable("b", ("u", "v"))
    c, d, only = rg.Variable("c", 5), rg.Variable("d", 6), rg.Variable("only", 1)
    return rg.FactorGraph(
        [
            rg.Factor((), rg.Table(draw(1)[0])),
            rg.Factor((a,), rg.Table(draw(6))),
            rg.Factor((a, b), rg.Table(draw(6, 2, seed=1))),
            rg.Factor((b, only, c), rg.Table(draw(2, 1, 5, seed=2))),
            rg.Factor((a, b, c, d), rg.Table(draw(6, 2, 5, 6, seed=3))),
            rg.Factor((d, a), rg.Table(draw(6, 6, seed=4))),
        ]
    )


def sparse():
    xs = rg.VariableArray("x", (3,), 6)
    listed = torch.tensor([[0, 0], [1, 2], [2, 1], [3, 3], [4, 5], [5, 4], [0, 5], [2, 2]])
    table = rg.Sparse(listed, draw(8), (6, 6))
    return rg.FactorGraph(
        [rg.FactorBlock((xs,), rg.Table(draw(3, 6))), rg.FactorBlock((xs[:-1], xs[1:]), table)]
    )


def logical():
    """Twelve lamps of which three are on, which levels of seven states switch."""
    lamps, levels = rg.VariableArray("lamp", (12,), 2), rg.VariableArray("level", (12,), 7)
    three = rg.Cardinality(12, at_least=3, at_most=3)
    return rg.FactorGraph(
        [
            rg.Factor(tuple(lamps[i] for i in range(12)), three),
            rg.Factor((lamps[0], lamps[1], lamps[2]), rg.Or(3)),
            rg.FactorBlock((lamps, levels), rg.Table(draw(12, 2, 7))),
        ]
    )


def embedded(*batch):
    """A loop of embeddings, with unary potentials for each item."""
    xs = rg.VariableArray("x", (4,), 8)
    pair = rg.Bilinear(draw(8, 3, seed=1), draw(8, 3, seed=2))
    return rg.FactorGraph(
        [
            rg.FactorBlock((xs,), rg.Table(draw(*batch, 4, 8))),
            rg.FactorBlock((xs, xs[[1, 2, 3, 0]]), pair),
        ]
    )


def evidence_in_batches():
    graph = embedded()
    xs = graph.variables[0]
    return graph.condition({xs: torch.tensor([[-1, 2, -1, -1], [3, -1, -1, 0]])})


def recognised():
    xs = rg.VariableArray("x", (5,), 9)
    return rg.FactorGraph(
        [
            rg.FactorBlock((xs,), rg.Table(draw(5, 9))),
            rg.FactorBlock((xs[:-1], xs[1:]), rg.Table(draw(9, 9, seed=1))),
        ]
    )


def disconnected():
    xs, ys = rg.VariableArray("x", (4,), 6), rg.VariableArray("y", (2, 2), 3)
    return rg.FactorGraph(
        [
            rg.FactorBlock((xs[:2], xs[2:]), rg.Table(draw(6, 6))),
            rg.FactorBlock((ys[0], ys[1]), rg.Table(draw(3, 3, seed=1))),
        ],
        variables=(xs, ys, rg.Variable("lonely", 7)),
    )


def single():
    return rg.FactorGraph([rg.Factor((rg.Variable("x", 9),), rg.Table(draw(9)))])


def all_observed():
    graph = single()
    return graph.condition({"x": 4})


def chain():
    return rg.Chain(draw(2, 4, 8), draw(8, 8, seed=1), lengths=torch.tensor([4, 2]))


def embedded_chain():
    return rg.Chain(draw(4, 8), rg.Bilinear(draw(8, 3, seed=1), draw(8, 3, seed=2)))


def segments():
    unary, transition, duration = draw(2, 5, 6), draw(6, 6, seed=1), draw(3, 6, seed=2)
    lengths = torch.tensor([5, 3])
    return rg.SemiMarkov.from_unary(unary, transition, duration, lengths=lengths)


def forest():
    heads = [0, 0, 0, 1, 1, 1, 1, 2, 3, 3, 3, 3]
    tails = [[], [], [], [], [], [], [], [0], [1, 2], [2, -1], [1, 0], [0, -1]]
    rows = torch.tensor([[*tail, *[-1] * (2 - len(tail))] for tail in tails])
    return rg.Derivations(draw(2, len(heads)), torch.tensor(heads), rows, nodes=4)


MODELS = [
    arities,
    sparse,
    logical,
    embedded,
    lambda: embedded(3),
    evidence_in_batches,
    recognised,
    disconnected,
    single,
    all_observed,
    chain,
    embedded_chain,
    segments,
    forest,
    lambda: segments().factor_graph(),
]
NAMES = [
    "arities", "sparse", "logical", "embedded", "batched", "evidence", "recognised",
    "disconnected", "single", "observed", "chain", "embedded chain", "segments",
    "forest", "segments as a graph",
]  # fmt: skip
ESTIMATORS = [
    rg.Randomized.default(keep=4, replicates=3),
    rg.Randomized.default(keep=0.5),
    rg.Randomized.piloted(keep=3, replicates=2),
    rg.Randomized(rg.randomized.Global(), rg.randomized.Threshold(4), replicates=2),
    rg.Randomized(rg.randomized.Uniform(), rg.randomized.TopTail(2, 2), replicates=2),
    rg.Randomized(rg.randomized.Oracle(), rg.randomized.Top(4)),
]


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=repr)
@pytest.mark.parametrize("make", MODELS, ids=NAMES)
def test_every_question_is_answered(make, estimator):
    model = make()
    posterior = rg.infer(model, estimator=estimator, generator=seeded())
    exact = rg.infer(model)
    assert posterior.log_partition.shape == exact.log_partition.shape
    assert not bool(posterior.log_partition.isnan().any())
    assert posterior.entropy().shape == exact.entropy().shape
    assert not bool(posterior.entropy().isnan().any())
    alive = bool((posterior.log_partition > -INF).all())
    assert alive or make in (sparse, logical, MODELS[-1])
    drawn = posterior.sample(5, generator=seeded(1)) if alive else None
    mode = posterior.mode() if alive else None
    if isinstance(posterior, rg.Posterior):
        for entry, marginal in exact.marginals().items():
            assert posterior.marginal(entry).shape == marginal.shape
            assert posterior.max_marginals()[entry].shape == marginal.shape
        if alive:
            assert bool((model.score(drawn) > -INF).all())
            assert bool((model.score(mode) > -INF).all())
    else:
        assert isinstance(posterior, StructuredPosterior)
        assert posterior.marginals().shape == exact.marginals().shape
        if alive:
            assert type(mode) is type(drawn) is type(exact.mode())
            assert model.site_states(drawn).shape == (5, *model.states_shape)
            assert model.site_states(mode).shape == model.states_shape
    assert posterior.status.exact or posterior.status.biased


@pytest.mark.parametrize("make", MODELS, ids=NAMES)
def test_all_states_kept_is_exact(make):
    model = make()
    exact = rg.infer(model)
    found = rg.infer(model, estimator=rg.Randomized.default(keep=1.0), generator=seeded())
    assert found.status.exact
    assert torch.allclose(found.log_partition, exact.log_partition)
    assert torch.allclose(found.entropy(), exact.entropy())


@pytest.mark.long
@pytest.mark.parametrize("make", MODELS, ids=NAMES)
def test_z_is_right_on_average(make):
    model = make()
    truth = rg.infer(model).log_partition
    estimator = rg.Randomized(
        rg.randomized.Local(), rg.randomized.TopSystematic(1, 4), replicates=200
    )
    found = rg.infer(model, estimator=estimator, generator=seeded(3))
    assert bool(((found.log_partition - truth).abs() <= 5 * found.standard_error + 1e-9).all())


def test_a_structure_without_restrictions_says_what_to_do():
    with pytest.raises(rg.errors.ModelError, match=r"factor_graph\(\)"):
        rg.infer(Independent(draw(3, 4)), estimator=rg.Randomized.default(keep=3))


@pytest.mark.parametrize(
    "make", [arities, embedded, recognised, chain, embedded_chain, segments, forest]
)
def test_gradients_are_expectations_on_the_states_kept(make):
    """The gradient of log Z in a factor added to the model is its marginal on the states kept."""
    model = make()
    scale = torch.zeros((), dtype=torch.float64, requires_grad=True)
    estimator = rg.Randomized(rg.randomized.Uniform(), rg.randomized.TopTail(1, 2), replicates=2)
    if isinstance(model, rg.extend.Structure):
        added = draw(*model.unary.shape, seed=9)
        tilted = model.with_unary(model.unary + scale * added)
        found = rg.infer(tilted, estimator=estimator, generator=seeded())
        marginals = kept_marginals(found).reshape(model.unary.shape)
    else:
        entry = model.variables[0]
        added = draw(*entry.shape, entry.size, seed=9)
        table = rg.Table(scale * added)
        factor = rg.FactorBlock((entry,), table) if entry.shape else rg.Factor((entry,), table)
        found = rg.infer(model.with_factors(factor), estimator=estimator, generator=seeded())
        marginals = kept_marginals(found)[0, : added.numel()].reshape(added.shape)
    expected = (marginals.detach() * added).sum()
    (gradient,) = torch.autograd.grad(found.log_partition.sum(), scale)
    assert torch.allclose(gradient, expected)


@pytest.mark.parametrize("make", [embedded, chain], ids=["graph", "chain"])
def test_no_more_is_drawn_than_is_wanted(make):
    """Each replicate holds its selection alone; draws stay exact."""
    model = make()
    estimator = rg.Randomized(rg.randomized.Uniform(), rg.randomized.TopTail(2, 2), replicates=50)
    posterior = rg.infer(model, estimator=estimator, generator=seeded())
    inner = posterior.solution.inner
    asked = []
    sample = type(inner).sample

    def recorded(self, count, *args, **kwargs):
        asked.append(count)
        return sample(self, count, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(inner), "sample", recorded)
        drawn = posterior.sample(5000, generator=seeded(1))
    assert max(asked) < 2500
    if isinstance(drawn, dict):
        (drawn,) = drawn.values()
    marginals = kept_marginals(posterior).reshape(*drawn.shape[1:], -1)
    hot = torch.nn.functional.one_hot(drawn.clamp(min=0), marginals.shape[-1]).double()
    hot = hot * (drawn >= 0).unsqueeze(-1)
    spread = (marginals * (1 - marginals) / 5000).sqrt()
    assert bool(((hot.mean(0) - marginals).abs() <= 5 * spread + 1e-9).all())
