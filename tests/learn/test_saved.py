"""Fits and estimators that are saved and read again are what they were."""

import json

import networkx
import pandas
import pytest
import torch

import rdpgraph as rg
from rdpgraph import learn
from rdpgraph.learn import EM, Probabilities, load, save

pytest.importorskip("safetensors")
SIDE, SHOWN = rg.Variable("side", 2), rg.Variable("shown", 3)


def model(values, rows):
    graph = rg.FactorGraph([
        rg.Factor(SIDE, rg.Table(values["side"])),
        rg.Factor((SIDE, SHOWN), rg.Table(values["shown"])),
    ])  # fmt: skip
    return graph.condition({SHOWN: rows})


def em(size=3, **options):
    draws = torch.rand(2, size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    side = Probabilities(torch.tensor([0.3, 0.7]).double().log(), prior=torch.ones(2).double())
    tables = {"side": side, "shown": Probabilities(draws.log_softmax(1))}
    return EM(model, tables, limit=3, tolerance=0, **options)


@pytest.mark.parametrize("options", [{}, {"stepwise": 0.7, "batch_size": 4}])
def test_a_saved_fit_goes_on(tmp_path, options):
    rows = torch.arange(12) % 3
    fit = em(**options).fit(rows)
    save(fit, tmp_path)
    again = load(tmp_path)
    assert (again.history, again.status) == (fit.history, fit.status)
    one, other = (em(**options).fit(rows, start=each) for each in (fit, again))
    assert one.history == other.history


EDGES = [("a", "c"), ("b", "c")]
ROWS = pandas.DataFrame({
    "a": ["x", None, "y", "x", "y", "x"], "b": [True, False, None, True, False, False],
    "c": [0, 2, 1, None, 2, 0],
})  # fmt: skip
NETWORKS = {
    "edges": learn.BayesianNetwork(EDGES, prior={"c": 1.0}, scheduler=rg.Contraction(), limit=2),
    "digraph": learn.BayesianNetwork(networkx.DiGraph(EDGES), prior=learn.BDeu(2.0), limit=2),
    "noisy": learn.BayesianNetwork(EDGES, noisy=["c"], prior=0.5, limit=2, progress=print),
    "graph": learn.BayesianNetwork(
        learn.BayesianNetwork(EDGES, prior=1.0, limit=1).fit(ROWS).graph_,
        fixed=["c"],
        prior=0.1,
        limit=2,
    ),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_saved_network_is_the_same(tmp_path, name):
    network = NETWORKS[name].fit(ROWS)
    save(network, tmp_path)
    again = load(tmp_path)
    torch.testing.assert_close(again.graph_.cpt("c"), network.graph_.cpt("c"), rtol=0, atol=0)
    assert again.score(ROWS) == network.score(ROWS)
    assert again.predict(ROWS).equals(network.predict(ROWS))
    assert list(again.feature_names_in_) == list(ROWS)
    assert again.fit(ROWS).fit_.history == network.fit_.history


MODELS = {
    "full": learn.HMM(2, learn.Gaussian("full", covariance_prior=1.0), limit=2, sticky=1.0),
    "left to right": learn.HMM(
        2, learn.Gaussian(covariance_prior=torch.eye(2)), transition=learn.left_to_right(2), limit=2
    ),
    "rank": learn.HMM(2, learn.Mixture(2, learn.Gaussian(covariance_prior=1.0)), rank=2, limit=2),
    "product": learn.HSMM(
        2, learn.Product([(learn.Gaussian(covariance_prior=1.0), [0]), (learn.Gaussian(), [1])]),
        3, limit=2, censored=False,
    ),
    "density": learn.HSMM(
        2, learn.Density(torch.distributions.Laplace, {"loc": 0.0, "scale": 1.0}),
        learn.Durations(learn.Density(torch.distributions.Poisson, {"rate": 1.0}), 3), limit=0,
    ),
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("name", MODELS)
def test_a_saved_model_is_the_same(tmp_path, name):
    data = torch.randn(20, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    model = MODELS[name].fit(data, [12, 8])
    save(model, tmp_path)
    again = load(tmp_path)
    assert again.score(data, [12, 8]) == model.score(data, [12, 8])
    assert again.fit_.history == model.fit_.history
    assert again.fit(data, [12, 8]).fit_.history == model.fit(data, [12, 8]).fit_.history


class Tilted(Probabilities):
    """A parameter of a user's own."""


def test_own_classes_are_named(tmp_path):
    begun = em()
    begun.parameters["side"] = Tilted(torch.tensor([0.3, 0.7]).double().log())
    fit = begun.fit(torch.arange(3))
    save(fit, tmp_path)
    with pytest.raises(rg.errors.FileFormatError, match="classes="):
        load(tmp_path)
    assert type(load(tmp_path, classes=[Tilted]).parameters["side"]) is Tilted


def test_other_files_are_refused_in_one_line(tmp_path):
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "nothing")
    save(em().fit(torch.arange(3)), tmp_path)
    config = json.dumps(["object", ["class", "rdpgraph", "read"], ["mapping"], ["mapping"]])
    for wrong in ("{", config, "[]", json.dumps(["tensor", "77"])):
        (tmp_path / "config.json").write_text(wrong)
        with pytest.raises(rg.errors.FileFormatError, match="expected a saved model") as caught:
            load(tmp_path)
        assert "\n" not in str(caught.value)
    (tmp_path / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(rg.errors.FileFormatError, match="not the tensors"):
        load(tmp_path)
    with pytest.raises(rg.errors.UnsupportedError, match="pickle"):
        save(learn.BayesianNetwork(EDGES, scheduler=object()), tmp_path)  # type: ignore[arg-type]


def test_intervals_of_pandas_are_saved(tmp_path):
    numbers = torch.arange(6).double().numpy()
    network = learn.BayesianNetwork([]).fit({"x": pandas.cut(numbers, 2)})
    save(network, tmp_path / "numbers")
    assert load(tmp_path / "numbers").graph_.variables == network.graph_.variables
    days = pandas.Series(pandas.date_range("2020-01-01", periods=6))
    dated = learn.BayesianNetwork([]).fit({"x": pandas.cut(days, 2)})
    with pytest.raises(rg.errors.UnsupportedError, match="pickle the model"):
        save(dated, tmp_path / "days")
