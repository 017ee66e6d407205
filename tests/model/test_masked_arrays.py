"""Masked arrays of NumPy and masked tensors of torch, at every kind of door."""

import math

import numpy as np
import pytest
import torch
from torch.distributions import Normal

import rdpgraph as rg
from rdpgraph import decoding, gp, learn
from rdpgraph.distributions import HMM, LinearChain
from rdpgraph.errors import RdpgraphError
from rdpgraph.extend import Support
from rdpgraph.nn import CRF, FeatureMap, SemiCRF, exchange_clusters

pytestmark = [
    pytest.mark.filterwarnings("ignore:The PyTorch API of MaskedTensors"),
    pytest.mark.filterwarnings("ignore:It is not recommended to create a MaskedTensor"),
]

HALF = torch.tensor([0.5, 0.5]).log()
TABLE = torch.tensor([[0.9, 0.1], [0.2, 0.8]]).log()
SHAPES = rg.VariableArray("x", 3, 2)
CHECKS = torch.tensor([[1, 1, 0], [0, 1, 1]])
RATES = torch.tensor([0.1, 0.2, 0.3])


def masked(kind, values, absent):
    """A masked array or tensor; one of torch says which entries are there."""
    if kind == "numpy":
        return np.ma.masked_array(np.array(values), np.array(absent))
    return torch.masked.masked_tensor(torch.tensor(values), ~torch.tensor(absent))


def graph():
    level = torch.tensor([0.3, 0.7]).log()
    single = [rg.Variable("v", 2), rg.Variable("n", ["no", "yes"]), rg.Variable("b", [False, True])]
    factors = [rg.Factor(variable, rg.Table(level)) for variable in single]
    pairs = rg.FactorBlock((SHAPES[1:], SHAPES[:-1]), rg.Table(TABLE))
    return rg.FactorGraph([*factors, pairs])


def log_z(evidence):
    return rg.infer(graph().condition(evidence)).log_partition


def fitted():
    return learn.HMM(2, learn.Categorical(2, TABLE), start=HALF, transition=TABLE)


def network(rows):
    return learn.BayesianNetwork([("a", "c")], prior=1.0).fit(rows)


COMPLETE = {"a": [0, 1, 1], "c": [1, 1, 0]}
ABSENT = [False, True, False]
SYMBOLS = [0, 1, 0], ABSENT, torch.tensor([0, -1, 0])

MISSING = {
    "evidence": (lambda x: log_z({"v": x}), *SYMBOLS),
    "evidence of an array": (lambda x: log_z({"x": x}), *SYMBOLS),
    "evidence in rows": (lambda x: log_z([{"v": x[0]}, {"v": x[1]}]), *SYMBOLS),
    "evidence of bools": (
        lambda x: log_z({"b": x}), [False, True, False], ABSENT, [False, None, False],
    ),
    "observations": (lambda x: rg.Chain.hmm(HALF, TABLE, TABLE, x).log_partition(), *SYMBOLS),
    "observations of low rank": (
        lambda x: rg.LowRankHMM(HALF, rg.LowRank(TABLE, HALF.expand(2, 2)), TABLE).log_prob(x),
        *SYMBOLS,
    ),
    "observations of a distribution": (
        lambda x: HMM(HALF, TABLE, TABLE, length=3).log_prob(x), *SYMBOLS,
    ),
    "symbols": (lambda x: torch.tensor(fitted().score(x)), *SYMBOLS),
    "symbols that are fitted": (
        lambda x: learn.HMM(1, learn.Categorical(2, prior=0.1)).fit(x).emission_.log_values,
        *SYMBOLS,
    ),
    "numbers": (
        lambda x: learn.HMM(1, learn.Gaussian()).fit(x).emission_.means,
        [0.0, 1e6, 2.0], ABSENT, torch.tensor([0.0, math.nan, 2.0]),
    ),
    "sequences": (
        lambda x: learn.HMM(1, learn.Gaussian()).fit([x, x]).emission_.covariances,
        [[0.0], [1e6], [2.0]], [[False], [True], [False]], torch.tensor([[0.0], [math.nan], [2.0]]),
    ),
    "columns": (
        lambda x: network({**COMPLETE, "a": x}).graph_.cpt("a"), *SYMBOLS,
    ),
    "columns to predict from": (
        lambda x: torch.tensor(network(COMPLETE).predict_proba({"a": x}, "c").values), *SYMBOLS,
    ),
    "checks": (
        lambda x: rg.ParityModel.from_rates(CHECKS, RATES).condition(x).log_partition(),
        [1, 0], [False, True], torch.tensor([1, -1]),
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("door", MISSING)
def test_a_masked_entry_is_missing(door: str, kind: str) -> None:
    ask, values, absent, plain = MISSING[door]
    found, expected = ask(masked(kind, values, absent)), ask(plain)
    torch.testing.assert_close(found, expected)
    # Without a mask the entry would count.
    whole = ask(masked(kind, values, np.zeros_like(absent).tolist()))
    assert not torch.equal(whole, expected)


@pytest.mark.parametrize("given", [["no", "yes", "no"], [0.0, 1.0, 0.0], np.array([0, 1, 0], "u1")])
def test_names_and_numbers_of_any_type_are_missing_where_masked(given) -> None:
    name = "n" if given[0] == "no" else "v"
    expected = log_z({name: [given[0], None, given[2]]})
    torch.testing.assert_close(log_z({name: np.ma.masked_array(given, ABSENT)}), expected)


def test_the_masked_constant_is_a_gap() -> None:
    torch.testing.assert_close(log_z({"v": [0, np.ma.masked]}), log_z({"v": [0, None]}))
    torch.testing.assert_close(log_z({"v": np.ma.masked}), log_z({}))
    table = network({"a": [0, np.ma.masked, 1], "c": [0, 1, 1]}).graph_.cpt("a")
    torch.testing.assert_close(table, network({"a": [0, None, 1], "c": [0, 1, 1]}).graph_.cpt("a"))


def crf():
    return CRF(2, batch_first=True)


PAIR = [[0.5, 0.25], [0.75, 1.0]], [[False, True], [False, False]]
STATES = [0, 1, 0], ABSENT
CHAIN = rg.Chain(torch.zeros(3, 2), TABLE)

REFUSED = {
    "table": (rg.Table.from_logs, *PAIR),
    "rows of a table": (lambda x: rg.Table.from_logs([x[0], x[1]]), *PAIR),
    "probabilities": (rg.Table.from_probabilities, *PAIR),
    "unary": (lambda x: rg.Chain(x, TABLE), *PAIR),
    "transition": (lambda x: rg.Chain(torch.zeros(3, 2), x), *PAIR),
    "crf scores": (lambda x: rg.Chain.crf(x, TABLE), *PAIR),
    "low rank": (lambda x: rg.LowRank(x, TABLE), *PAIR),
    "alignment": (lambda x: rg.Alignment.pairwise(x, torch.tensor(0.0), torch.tensor(0.0)), *PAIR),
    "arcs": (rg.NonProjectiveDependencies, [[0.5, 0.5, 0.1], [0.2, 0.3, 0.4]],
             [[False, True, False], [False] * 3]),
    "lengths": (lambda x: rg.Chain(torch.zeros(3, 2, 2), TABLE, lengths=x), *STATES),
    "states to score": (CHAIN.log_prob, *STATES),
    "states of a distribution": (LinearChain(torch.zeros(3, 2), TABLE).log_prob, *STATES),
    "checks": (lambda x: rg.ParityModel.from_rates(x, RATES),
               [[1, 1, 0], [0, 1, 1]], [[False, True, False]] * 2),
    "means": (lambda x: learn.Gaussian("diagonal", x, torch.ones(2, 2)), *PAIR),
    "parameters of a density": (lambda x: learn.Density(Normal, {"loc": x, "scale": 1.0}), *PAIR),
    "start": (lambda x: learn.HMM(2, learn.Gaussian(), start=x[0]).fit(torch.arange(9.0)), *PAIR),
    "table to fit": (learn.Probabilities, *PAIR),
    "prior": (lambda x: learn.Probabilities(TABLE, prior=x), *PAIR),
    "prior of symbols": (lambda x: learn.Categorical(2, prior=x), *PAIR),
    "weights": (lambda x: learn.BayesianNetwork([]).fit(COMPLETE, weights=x), *STATES),
    "lengths to fit": (lambda x: learn.HMM(1, learn.Gaussian()).fit(torch.arange(1.0), x), *STATES),
    "features": (lambda x: gp.StructuredGP(["a", "b"]).fit([x], [["a", "b"]]), *PAIR),
    "emissions": (lambda x: crf().decode(x), [PAIR[0]], [PAIR[1]]),
    "emissions of segments": (lambda x: SemiCRF(2, 2).decode(x), [PAIR[0]], [PAIR[1]]),
    "tags": (lambda x: crf()(torch.zeros(1, 2, 2), x), [[0, 1]], [[False, True]]),
    "mask": (lambda x: crf().decode(torch.zeros(1, 2, 2), x), [[True, True]], [[False, True]]),
    "embeddings": (FeatureMap(2, 4), *PAIR),
    "embeddings of a potential": (lambda x: FeatureMap(2, 4).low_rank(x, x), *PAIR),
    "sentences": (lambda x: exchange_clusters(x, 3, 2), [[0, 1, 2]], [[False, True, False]]),
    "relaxed states": (rg.straight_through, *PAIR),
    "states of a support": (lambda x: Support(x, torch.zeros(2, 2)), [[0, 1], [0, 1]], PAIR[1]),
    "states that are kept": (lambda x: CHAIN.restrict(x, torch.zeros(3, 1)),
                             [[0], [1], [0]], [[False], [True], [False]]),
    "weights of states": (lambda x: CHAIN.restrict(torch.zeros(3, 1).long(), x),
                          [[0.0], [1.0], [0.0]], [[False], [True], [False]]),
    "ties of rates": (lambda x: decoding.learn_rates(rg.ParityModel.from_rates(CHECKS, RATES),
                                                     [[0, 1]], tied=x), *STATES),
    "mask of a program": (lambda x: crf().exportable()(torch.zeros(1, 2, 2), x),
                          [[True, True]], [[False, True]]),
}  # fmt: skip


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("door", REFUSED)
def test_masked_entries_are_refused_where_nothing_may_be_missing(door: str, kind: str) -> None:
    ask, values, absent = REFUSED[door]
    with pytest.raises(RdpgraphError, match="cannot hold masked entries; got one at") as error:
        ask(masked(kind, values, absent))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_the_ways_out_of_masked_entries(kind: str) -> None:
    """A value in their place; and without absent entries there is nothing to refuse."""
    given = masked(kind, *PAIR)
    filled = given.filled(0.0) if kind == "numpy" else given.to_tensor(0.0)
    expected = torch.tensor([[0.5, 0.0], [0.75, 1.0]])
    torch.testing.assert_close(rg.Table.from_logs(filled).log_values.float(), expected)
    whole = masked(kind, PAIR[0], [[False, False], [False, False]])
    made = rg.Table.from_logs(whole).log_values
    assert type(made) is torch.Tensor
    torch.testing.assert_close(made.float(), torch.tensor(PAIR[0]))


def test_gradients_pass_through_masked_tensors() -> None:
    values = torch.tensor(PAIR[0], requires_grad=True)
    whole = torch.masked.as_masked_tensor(values, torch.ones(2, 2, dtype=torch.bool))
    rg.Chain(whole, TABLE).log_partition().backward()
    plain = torch.tensor(PAIR[0], requires_grad=True)
    rg.Chain(plain, TABLE).log_partition().backward()
    torch.testing.assert_close(values.grad, plain.grad)
