"""Dynamic Bayesian networks: against the network of all steps, and sums over all configurations."""

import math

import pandas
import pytest
import torch

import rdpgraph as rg
from rdpgraph import learn
from rdpgraph.errors import BudgetError, EvidenceError, ImpossibleEvidenceError, ModelError
from rdpgraph.testing import brute_force


def rows(*shape, seed, zeros=0.0):
    generator = torch.Generator().manual_seed(seed)
    table = torch.rand(*shape, generator=generator, dtype=torch.float64) + 0.05
    table = table.masked_fill(torch.rand(*shape, generator=generator) < zeros, 0.0)
    table[..., 0] += 1e-3
    return table / table.sum(-1, keepdim=True)


# Two hidden chains, of which one depends on the other within a step; two observations, one of which
# is also the parent of the next step; and one that hangs on an observation.
WITHIN = [("a", "b"), ("a", "x"), ("b", "x"), ("b", "y"), ("y", "z")]
BETWEEN = [("a", "a"), ("b", "b"), ("y", "a")]
STATES = {"a": 2, "b": ["low", "mid", "high"], "x": 2, "y": 2, "z": 3}


def network(zeros=0.0, **options):
    tables = {
        "a": rows(2, 2, 2, seed=1), "b": rows(3, 2, 3, seed=2, zeros=zeros),
        "x": rows(2, 3, 2, seed=3), "y": rows(3, 2, seed=4, zeros=zeros), "z": rows(2, 3, seed=5),
    }  # fmt: skip
    first = {"a": rows(2, seed=6), "b": rows(2, 3, seed=7)}
    return learn.DynamicBayesianNetwork(
        WITHIN, BETWEEN, states=STATES, tables=tables, first=first, **options
    )


DATA = {
    "x": [0, 1, None, 1, 1, 0, 0], "y": [1, None, None, 0, 1, 1, 0],
    "z": [2, 0, 1, 1, None, None, 0],
}  # fmt: skip
LENGTHS = [4, 1, 2]


def part(first, last):
    return {name: column[first:last] for name, column in DATA.items()}


def evidence(data):
    return {
        f"{name}[{step}]": state
        for name, column in data.items()
        for step, state in enumerate(column)
        if state is not None
    }


@pytest.mark.parametrize("zeros", [0.0, 0.3])
def test_smoothing_is_that_of_the_network_of_all_steps(zeros):
    model = network(zeros)
    assert model.interface == ("a", "b", "y")
    found, total = model.smooth(DATA, LENGTHS), model.log_likelihood(DATA, LENGTHS)
    begin = 0
    for number, length in enumerate(LENGTHS):
        data = part(begin, begin + length)
        graph = model.unrolled(length)
        posterior = rg.infer(graph, evidence=evidence(data))
        torch.testing.assert_close(total[number], posterior.log_partition)
        if length < 3:
            truth = brute_force(graph.condition(evidence(data)))
            torch.testing.assert_close(total[number], truth.log_partition)
        for name in STATES:
            own = torch.from_numpy(found[name].to_numpy()[begin : begin + length].copy())
            torch.testing.assert_close(own, posterior.marginal(graph[name]))
        begin += length


def test_filtering_is_smoothing_of_each_prefix():
    model = network(0.2)
    found = model.filter(DATA, LENGTHS)
    begin = 0
    for length in LENGTHS:
        for step in range(length):
            alone = model.smooth(part(begin, begin + step + 1))
            for name in STATES:
                own, other = found[name].iloc[begin + step], alone[name].iloc[-1]
                assert own.to_numpy() == pytest.approx(other.to_numpy(), abs=1e-12)
        begin += length


def test_predictions_are_those_of_steps_without_evidence():
    model = network()
    found = model.predict(DATA, LENGTHS, steps=3)
    assert found.index.tolist() == [(n, s) for n in range(3) for s in (1, 2, 3)]
    data = {name: [*column[:4], None, None, None] for name, column in DATA.items()}
    expected = model.smooth(data)
    for name in STATES:
        ahead = found.loc[0][name].to_numpy()
        assert ahead == pytest.approx(expected[name].to_numpy()[4:], abs=1e-12)
    assert model.predict(part(0, 4), steps=2).index.tolist() == [1, 2]


@pytest.mark.parametrize("zeros", [0.0, 0.3])
def test_the_best_configuration_is_that_of_the_network_of_all_steps(zeros):
    model = network(zeros)
    found = model.decode(DATA, LENGTHS)
    # A series without steps is no reason to refuse the others.
    assert found.equals(model.decode(DATA, [4, 0, 1, 2]))
    begin = 0
    for length in LENGTHS:
        data, graph = part(begin, begin + length), model.unrolled(length)
        conditioned = graph.condition(evidence(data))
        best = rg.infer(conditioned).mode()
        states = {
            graph[name]: torch.tensor(
                found[name].cat.codes.to_numpy()[begin : begin + length].copy()
            )
            for name in STATES
        }
        score = conditioned.score({array: codes.long() for array, codes in states.items()})
        torch.testing.assert_close(score, conditioned.score(best))
        begin += length


def test_a_chain_of_interfaces_takes_long_series():
    """Filtering of 20,000 steps of a hidden Markov model is that of `Chain`."""
    generator = torch.Generator().manual_seed(0)
    symbols = torch.randint(3, (20_000,), generator=generator)
    tables = {"state": rows(2, 2, seed=1), "symbol": rows(2, 3, seed=2)}
    model = learn.DynamicBayesianNetwork(
        [("state", "symbol")], [("state", "state")], states={"state": 2, "symbol": 3},
        tables=tables, first={"state": [0.5, 0.5]},
    )  # fmt: skip
    chain = rg.Chain.hmm(
        torch.tensor([0.5, 0.5]).double().log(),
        tables["state"].log(),
        tables["symbol"].log(),
        symbols,
    )
    data = {"symbol": symbols}
    assert model.score(data) == pytest.approx(float(chain.log_partition()))
    found = torch.from_numpy(model.filter(data)["state"].to_numpy().copy())
    torch.testing.assert_close(found, chain.filtered())
    smoothed = torch.from_numpy(model.smooth(data)["state"].to_numpy().copy())
    torch.testing.assert_close(smoothed, chain.marginals())
    torch.testing.assert_close(model.structure(data).log_partition()[0], chain.log_partition())


def test_complete_series_are_counted():
    frame = pandas.DataFrame({
        "weather": ["dry", "dry", "wet", "wet", "dry", "wet"],
        "shop": ["open", "open", "shut", "open", "shut", "shut"],
    })  # fmt: skip
    model = learn.DynamicBayesianNetwork(
        [("weather", "shop")], [("weather", "weather")], prior=1.0, limit=5
    ).fit(frame, lengths=[4, 2])
    assert model.fit_.status.converged
    # From dry: to dry once, to wet twice; from wet: to wet once. One pseudo-count each.
    torch.testing.assert_close(
        model.tables_["weather"], torch.tensor([[2 / 5, 3 / 5], [1 / 3, 2 / 3]]).double(),
    )  # fmt: skip
    torch.testing.assert_close(model.first_["weather"], torch.tensor([3 / 4, 1 / 4]).double())
    torch.testing.assert_close(
        model.tables_["shop"], torch.tensor([[3 / 5, 2 / 5], [2 / 5, 3 / 5]]).double()
    )


@pytest.mark.long
def test_fits_with_gaps_and_hidden_variables_climb():
    truth = network()
    generator = torch.Generator().manual_seed(3)
    series = [truth.sample(60, generator) for _ in range(4)]
    frame = pandas.concat(series, ignore_index=True).drop(columns=["a"])
    hide = torch.rand(frame.shape, generator=generator) < 0.1
    frame = frame.mask(hide.numpy())
    model = learn.DynamicBayesianNetwork(
        WITHIN, BETWEEN, states={"a": 2}, prior=0.5, limit=25, starts=2
    ).fit(frame, lengths=[60] * 4)
    history = torch.tensor(model.fit_.history)
    assert bool((history.diff() > -1e-8).all())
    assert model.score(frame, lengths=[60] * 4) > -math.inf
    assert model.tables_["b"].shape == (3, 2, 3)
    torch.testing.assert_close(model.tables_["b"].sum(-1), torch.ones(3, 2).double())
    held = learn.DynamicBayesianNetwork(
        WITHIN, BETWEEN, states=STATES, tables=truth.tables, first=truth.first, fixed=["x"], limit=2
    ).fit({**DATA, "a": [0, 1, 0, 1, 0, 1, 1]}, lengths=LENGTHS)
    torch.testing.assert_close(held.tables_["x"], truth.tables["x"])
    assert not torch.allclose(held.tables_["z"], truth.tables["z"])


def test_fitted_networks_are_saved_and_counted_with_an_imagined_sample(tmp_path):
    pytest.importorskip("safetensors")
    data = {"a": [0, 0, 1], "b": ["u", "v", None]}
    prior = learn.BDeu(4.0)
    model = learn.DynamicBayesianNetwork([("a", "b")], [("a", "a")], prior=prior, limit=50)
    model.fit(data)
    # From 0 to 0 once and to 1 once, and one imagined for each of four entries.
    expected = torch.tensor([[0.5, 0.5], [0.5, 0.5]]).double()
    torch.testing.assert_close(model.tables_["a"], expected)
    learn.save(model, tmp_path)
    again = learn.load(tmp_path)
    beside = learn.DynamicBayesianNetwork([("a", "b")], [("a", "a")], prior=prior, limit=50)
    beside.fit(data, lengths=[0, 3, 0])
    assert beside.fit_.log_likelihood == model.fit_.log_likelihood
    assert again.score(data) == model.score(data)
    assert again.decode({"b": ["v"]})["b"].tolist() == ["v"]


def test_networks_without_edges_in_time_are_those_of_each_row():
    still = learn.DynamicBayesianNetwork([("u", "v")], prior=1.0, limit=20)
    data = {"u": [0, 0, 1, None, 1], "v": [0, 1, 1, 1, None]}
    still.fit(data, lengths=[2, 3])
    plain = learn.BayesianNetwork([("u", "v")], prior=1.0, limit=20).fit(data)
    assert still.interface == ()
    assert still.score(data, lengths=[2, 3]) == pytest.approx(
        float(plain.log_likelihood(data).sum()), abs=1e-3
    )


@pytest.mark.long
def test_drawn_series_are_as_likely_as_the_entropy_says():
    model = network()
    generator = torch.Generator().manual_seed(0)
    drawn = [model.sample(2, generator) for _ in range(300)]
    frame = pandas.concat(drawn, ignore_index=True)
    surprise = -model.log_likelihood(frame, [2] * 300)
    entropy = rg.infer(model.unrolled(2)).entropy()
    assert (surprise.mean() - entropy).abs() < 5 * surprise.std() / math.sqrt(300)


def test_a_variable_without_edges_is_one_that_states_name():
    """Columns that neither edges nor states name are left out, where any are named."""
    table = torch.tensor([0.2, 0.8], dtype=torch.float64)
    model = learn.DynamicBayesianNetwork([], [], states={"a": 2}, tables={"a": table})
    expected = torch.stack([torch.tensor([1.0, 0.0]).double(), table])
    found = model.smooth({"a": [0, None]})["a"]
    torch.testing.assert_close(torch.tensor(found.to_numpy()), expected)
    with pytest.raises(ModelError, match="'b' is no variable"):
        model.smooth({"a": [0, None], "b": [0, 1]})


def test_a_column_whose_name_is_a_number_is_no_variable():
    data = pandas.DataFrame({"a": [0, 1, 1, 0], 7: [1, 1, 0, 0]})
    with pytest.raises(ModelError, match="Column 7 is no variable of the network; drop it"):
        learn.DynamicBayesianNetwork([], [("a", "a")], limit=1).fit(data)
    fit = learn.DynamicBayesianNetwork([], [("a", "a")], limit=1).fit(data.drop(columns=7))
    assert list(fit.tables_) == ["a"]


def test_what_does_not_fit_is_told_in_a_line():
    model = network()
    wide = learn.DynamicBayesianNetwork(
        [], [(f"v{i}", f"v{i}") for i in range(30)], states={f"v{i}": 2 for i in range(30)},
        tables={f"v{i}": [[0.5, 0.5]] * 2 for i in range(30)},
        first={f"v{i}": [0.5, 0.5] for i in range(30)},
    )  # fmt: skip
    impossible = learn.DynamicBayesianNetwork(
        [], [("u", "u")], states={"u": 2}, tables={"u": [[1.0, 0.0], [0.0, 1.0]]},
        first={"u": [0.5, 0.5]},
    )  # fmt: skip
    make, two = learn.DynamicBayesianNetwork, {"a": 2, "b": 2}
    cases = [
        (lambda: make([("a", "b"), ("b", "a")], states=two).fit({"a": [0]}), ModelError,
         "cycle"),
        (lambda: make([("a", "b")]).fit({"a": [0, 1]}), ModelError, "'b' has no column"),
        (lambda: model.smooth({"w": [0]}), ModelError, "'w' is no variable"),
        (lambda: model.smooth(DATA, [4]), EvidenceError, "add up"),
        (lambda: make([("a", "b")]).smooth({"a": [0, 1], "b": [0, 1]}), ModelError, "not fitted"),
        (lambda: make([], [], states={"a": 2}, tables={"a": [[0.5, 0.5]]}).smooth({"a": [0]}),
         ModelError, r"shape \(2,\)"),
        (lambda: wide.smooth({"v0": [0, 1]}), BudgetError, "unrolled"),
        (lambda: impossible.smooth({"u": [0, 1]}), ImpossibleEvidenceError, "from row 0"),
        (lambda: impossible.decode({"u": [0, 0, 0, 1]}, [2, 2]), ImpossibleEvidenceError, "row 2"),
        (lambda: model.predict(DATA, steps=0), ModelError, "steps"),
        (lambda: model.unrolled(0), ModelError, "at least 1"),
        (lambda: make([("a", "b")], fixed=["a"]).fit({"a": [0, 1], "b": [1, 0]}), ModelError,
         "was not given"),
    ]  # fmt: skip
    for ask, error, message in cases:
        with pytest.raises(error, match=message) as caught:
            ask()
        assert "\n" not in str(caught.value)
    # The way out that the budget's error names.
    posterior = rg.infer(wide.unrolled(2), evidence={"v0[0]": 0})
    torch.testing.assert_close(posterior.log_partition.exp(), torch.tensor(0.5).double())
