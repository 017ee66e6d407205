"""Bayesian networks fitted to tables: counting, gaps, hidden variables, manners of scikit-learn."""

import itertools
import math
import pickle

import networkx
import numpy as np
import pandas
import pytest
import torch

import rdpgraph as rg
from rdpgraph.learn import BayesianNetwork, BDeu

EDGES = [("rain", "wet"), ("lawn", "wet"), ("rain", "lawn")]
NAMES = ("no", "yes")


def frame(count=60, gaps=0.0, seed=0):
    generator = np.random.default_rng(seed)
    rain = generator.random(count) < 0.3
    lawn = generator.random(count) < np.where(rain, 0.1, 0.6)
    wet = generator.random(count) < np.where(rain | lawn, 0.8, 0.1)
    made = {"rain": rain, "lawn": lawn, "wet": wet}
    made = {name: np.array(NAMES, object)[own.astype(int)] for name, own in made.items()}
    for own in made.values():
        own[generator.random(count) < gaps] = None
    return pandas.DataFrame(made)


def shares(table, child, parents, prior=0.0):
    """Counts of a complete table, normalised: (*parents, states)."""
    scope = [*parents, child]
    counts = torch.zeros([2] * len(scope), dtype=torch.float64)
    for row in table[scope].itertuples(index=False):
        counts[tuple(NAMES.index(state) for state in row)] += 1
    counts += prior
    return counts / counts.sum(-1, keepdim=True)


@pytest.mark.parametrize("prior", [0.0, 1.0, BDeu(4.0), {"wet": 0.5}])
def test_complete_rows_are_counted(prior):
    table = frame()
    network = BayesianNetwork(EDGES, prior=prior).fit(table)
    for child, parents in (("rain", []), ("lawn", ["rain"]), ("wet", ["rain", "lawn"])):
        own = prior
        if isinstance(prior, BDeu):
            own = 4.0 / 2 ** (1 + len(parents))
        elif isinstance(prior, dict):
            own = prior.get(child, 0.0)
        torch.testing.assert_close(network.graph_.cpt(child), shares(table, child, parents, own))
    assert network.fit_.status.converged
    assert network.fit_.steps <= 2


def test_structures_of_every_kind_are_the_same():
    table = frame()
    network = BayesianNetwork(EDGES).fit(table)
    for other in (networkx.DiGraph(EDGES), network.graph_):
        again = BayesianNetwork(other).fit(table)
        torch.testing.assert_close(again.graph_.cpt("wet"), network.graph_.cpt("wet"))
    columns = {name: table[name].tolist() for name in table}
    again = BayesianNetwork(EDGES).fit(columns)
    torch.testing.assert_close(again.graph_.cpt("wet"), network.graph_.cpt("wet"))


def test_gaps_are_summed_out():
    """A fixed point of the textbook's update, by enumerating what each row may be."""
    table = frame(gaps=0.3)
    network = BayesianNetwork(EDGES, prior=0.2, tolerance=0, limit=300).fit(table)
    history = network.fit_.history
    assert all(b >= a - 1e-9 for a, b in itertools.pairwise(history))
    graph, counts = network.graph_, torch.zeros(2, 2, 2, dtype=torch.float64)
    joint = rg.infer(graph).joint(["rain", "lawn", "wet"])
    for row in table[["rain", "lawn", "wet"]].itertuples(index=False):
        known = [slice(i := NAMES.index(x), i + 1) if x in NAMES else slice(None) for x in row]
        part = torch.zeros_like(joint)
        part[tuple(known)] = joint[tuple(known)]
        counts += part / part.sum()
    wet = counts + 0.2
    expected = wet / wet.sum(-1, keepdim=True)
    torch.testing.assert_close(graph.cpt("wet"), expected, atol=1e-6, rtol=0)


def test_tables_are_recovered():
    truth = BayesianNetwork(EDGES).fit(frame(200))
    drawn = truth.sample(20_000, torch.Generator().manual_seed(0))
    hidden = torch.rand(drawn.shape, generator=torch.Generator().manual_seed(1)) < 0.2
    again = BayesianNetwork(EDGES).fit(drawn.mask(hidden.numpy()))
    for name in ("rain", "lawn", "wet"):
        p, q = truth.graph_.cpt(name), again.graph_.cpt(name)
        assert float((p - q).abs().max()) < 0.05


def test_a_hidden_variable_is_found():
    generator = np.random.default_rng(0)
    kind = generator.random(400) < 0.4
    draws = {f"x{i}": (generator.random(400) < np.where(kind, 0.95, 0.05)) * 1 for i in range(4)}
    edges = [("kind", name) for name in draws]
    network = BayesianNetwork(edges, states={"kind": 2}, starts=2).fit(pandas.DataFrame(draws))
    p = network.graph_.cpt("kind")
    assert float((p.sort().values - torch.tensor([0.4, 0.6])).abs().max()) < 0.1
    predicted = network.predict(pandas.DataFrame(draws))
    agree = (predicted["kind"].astype(int).to_numpy() == kind).mean()
    assert max(agree, 1 - agree) > 0.95


def test_fixed_tables_stay():
    table = frame(gaps=0.2)
    network = BayesianNetwork(EDGES, fixed={"rain": [0.9, 0.1]}).fit(table)
    assert network.graph_.cpt("rain").tolist() == pytest.approx([0.9, 0.1])
    again = BayesianNetwork(network.graph_, fixed=("wet",)).fit(frame(seed=3))
    torch.testing.assert_close(again.graph_.cpt("wet"), network.graph_.cpt("wet"))


NOISY = pandas.DataFrame(
    [(0, 2, 1), (1, 0, 2), (0, 1, 0), (1, 2, 1), (None, 1, 2), (1, None, 0), (0, 0, None)],
    columns=["a", "b", "c"],
)


def test_a_step_of_noisy_max_is_that_of_the_textbook():
    """All states of a row, and the states that a leak and each parent cause, are enumerated."""
    edges, sizes = [("a", "c"), ("b", "c")], {"a": 2, "b": 3, "c": 3}
    begun, ended = (
        BayesianNetwork(edges, states=sizes, noisy=["c"], prior={"c": 0.2}, limit=limit).fit(NOISY)
        for limit in (1, 2)
    )
    causes = begun.fit_.parameters["c"].log_values.exp()
    a, b = begun.graph_.cpt("a"), begun.graph_.cpt("b")
    counts = torch.full((4, 3), 0.2, dtype=torch.float64)
    table = torch.zeros(2, 3, 3, dtype=torch.float64)
    for row in NOISY.itertuples(index=False):
        joint: dict = {}
        for i, j, *own in itertools.product(range(2), range(3), *[range(3)] * 3):
            rows = 0, i and 1, j and 1 + j  # of the causes; an absent parent has none
            p = a[i] * b[j] * causes[0, own[0]]
            for which, state in zip(rows[1:], own[1:], strict=True):
                p = p * (causes[which, state] if which else float(state == 0))
            table[i, j, max(own)] += p / a[i] / b[j] / len(NOISY)
            if all(pandas.isna(x) or x == y for x, y in zip(row, (i, j, max(own)), strict=True)):
                joint[rows, tuple(own)] = p
        for (rows, own), p in joint.items():
            for place, (which, state) in enumerate(zip(rows, own, strict=True)):
                if which or not place:
                    counts[which, state] += p / sum(joint.values())
    torch.testing.assert_close(begun.graph_.cpt("c"), table)
    stepped = ended.fit_.parameters["c"].log_values.exp()
    torch.testing.assert_close(stepped, counts / counts.sum(1, keepdim=True))
    assert begun.free_parameters_ == 1 + 2 + 4 * 2


def test_noisy_or_of_complete_rows_is_at_its_maximum():
    """The gradient of the likelihood vanishes in each chance that a cause fails."""
    rows = [(0, 0, 0), (0, 0, 1), (1, 0, 1), (1, 0, 1), (1, 0, 0), (0, 1, 1), (0, 1, 0), (1, 1, 1)]
    table = pandas.DataFrame(rows * 2 + [(0, 0, 0)] * 3, columns=["flu", "cold", "fever"])
    edges = [("flu", "fever"), ("cold", "fever")]
    network = BayesianNetwork(edges, noisy=["fever"], tolerance=1e-13, limit=2000).fit(table)
    fails = network.fit_.parameters["fever"].log_values[:, 0].exp().requires_grad_()
    flu, cold, fever = torch.tensor(table.to_numpy()).T
    off = fails[0] * fails[1] ** flu * fails[2] ** cold
    torch.where(fever == 1, 1 - off, off).log().sum().backward()
    torch.testing.assert_close(fails.grad, torch.zeros(3).double(), atol=1e-3, rtol=0)
    assert all(bool((own > 0).all()) for own in network.standard_errors(table).values())


def test_an_adjustment_is_an_intervention():
    edges = [("u", "x"), ("u", "z"), ("z", "y"), ("x", "m"), ("m", "y"), ("x", "w"), ("y", "w")]
    generator = np.random.default_rng(0)
    table = pandas.DataFrame({name: generator.integers(2, size=40) for name in "uxzmyw"})
    network = BayesianNetwork(edges, prior=1.0).fit(table)
    (z,) = network.adjustment_set("x", "y")
    assert z in ("u", "z")
    joint = rg.infer(network.graph_).joint([z, "x", "y"])
    given = joint / joint.sum(2, keepdim=True)
    adjusted = (joint.sum((1, 2))[:, None] * given[:, 1]).sum(0)
    torch.testing.assert_close(adjusted, rg.infer(network.do(x=1)).marginal("y"))
    hidden = BayesianNetwork(edges, prior=1.0, states={"u": 2}, limit=1)
    assert hidden.fit(table.drop(columns="u")).adjustment_set("x", "y") == {"z"}
    hidden = BayesianNetwork(edges, prior=1.0, states={"u": 2, "z": 2}, limit=1)
    with pytest.raises(rg.errors.ModelError, match="blocks every path"):
        hidden.fit(table.drop(columns=["u", "z"])).adjustment_set("x", "y")


def test_rows_are_predicted_as_infer_says():
    network = BayesianNetwork(EDGES).fit(frame())
    table = pandas.DataFrame({"rain": ["yes", None, "no"], "wet": ["yes", "no", None]}, [7, 8, 9])
    values = network.predict_proba(table, ["lawn", "rain"])
    expected = rg.infer(network.graph_.condition(table)).marginals()
    assert list(values.index) == [7, 8, 9]
    for name in ("lawn", "rain"):
        np.testing.assert_allclose(values[name], expected[name], atol=1e-12)
    best = network.predict(table)  # of the one without a column
    assert list(best.columns) == ["lawn"]
    assert [NAMES.index(x) for x in best["lawn"]] == expected["lawn"].argmax(-1).tolist()


def test_scores_are_log_likelihoods():
    table = frame(gaps=0.2)
    network = BayesianNetwork(EDGES).fit(table)
    values = rg.infer(network.graph_.condition(table)).log_partition
    torch.testing.assert_close(network.log_likelihood(table), values)
    assert network.score(table) == pytest.approx(float(values.mean()))
    assert network.fit_.log_likelihood == pytest.approx(float(values.sum()))
    assert network.aic(table) == pytest.approx(2 * 7 - 2 * float(values.sum()))
    assert network.bic(table) == pytest.approx(7 * np.log(60) - 2 * float(values.sum()))
    assert network.log_likelihood(table[:0]).shape == (0,)
    with torch.inference_mode():
        assert BayesianNetwork(EDGES).fit(table).score(table) == network.score(table)


@pytest.mark.long
def test_standard_errors_are_binomial_and_gaps_widen_them():
    table = frame(200)
    network = BayesianNetwork(EDGES, tolerance=1e-12, limit=1000).fit(table)
    p = network.graph_.cpt("rain")
    full = network.standard_errors(table)
    torch.testing.assert_close(full["rain"], (p * (1 - p) / 200).sqrt())
    counts = pandas.crosstab(table["rain"], table["lawn"]).sum(axis=1).to_numpy()
    q = network.graph_.cpt("lawn")
    torch.testing.assert_close(full["lawn"], (q * (1 - q) / torch.tensor(counts)[:, None]).sqrt())
    gaps = frame(200, gaps=0.3)
    wider = network.fit(gaps).standard_errors(gaps)
    assert bool((wider["rain"] > full["rain"]).all())


def test_weights_repeat_rows():
    table = frame(20, gaps=0.2)
    weights = np.arange(20)
    once = BayesianNetwork(EDGES).fit(table, weights=weights)
    repeated = BayesianNetwork(EDGES).fit(table.loc[table.index.repeat(weights)])
    torch.testing.assert_close(once.graph_.cpt("wet"), repeated.graph_.cpt("wet"))


def test_interventions_cut_the_edges_of_parents():
    network = BayesianNetwork(EDGES, prior=1.0).fit(frame())
    joint = rg.infer(network.graph_).joint(["rain", "lawn", "wet"])
    done = rg.infer(network.do(lawn="yes"))
    rain, wet = network.graph_.cpt("rain"), network.graph_.cpt("wet")
    torch.testing.assert_close(done.marginal("rain"), rain)
    torch.testing.assert_close(done.marginal("wet"), (rain[:, None] * wet[:, 1]).sum(0))
    seen = rg.infer(network.graph_.condition({"lawn": "yes"})).marginal("rain")
    torch.testing.assert_close(seen, joint[:, 1].sum(-1) / joint[:, 1].sum())


def test_paths_are_asked_of_networkx():
    network = BayesianNetwork([("a", "b"), ("c", "b"), ("b", "d")])
    assert network.d_separated("a", "c")
    assert not network.d_separated("a", "c", ["d"])
    assert network.markov_blanket("a") == {"b", "c"}


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda network: network.d_separated("a", "x"), "'x' is no variable of a, b"),
        (lambda network: network.d_separated("a", "b", ["a"]), "takes a variable once; got 'a'"),
        (lambda network: network.adjustment_set("x", "b"), "'x' is no variable of a, b"),
        (lambda network: network.adjustment_set("a", "a"), "two variables; got 'a' twice"),
        (lambda network: network.markov_blanket("x"), "'x' is no variable of a, b"),
    ],
)
def test_paths_between_names_that_there_are(ask, message):
    with pytest.raises(rg.errors.ModelError, match=message):
        ask(BayesianNetwork([("a", "b")]))


def test_numbers_and_categories_are_states():
    table = pandas.DataFrame({
        "n": [3.0, 5.0, np.nan, 3.0],
        "k": pandas.Categorical(["x", None, "y", "x"], categories=["y", "x", "z"]),
        "i": [0, 1, -1, 1],
        "b": [True, False, True, True],
    })  # fmt: skip
    with pytest.warns(UserWarning, match="-1 is no state of 'i', and is read as a missing value"):
        network = BayesianNetwork([("n", "k"), ("i", "b")]).fit(table)
    states = {name: network.graph_[name].states for name in table}
    assert states == {"n": (3, 5), "k": ("y", "x", "z"), "i": (0, 1), "b": (False, True)}
    assert network.graph_.cpt("k")[:, 2].tolist() == pytest.approx([0, 0], abs=1e-4)


@pytest.mark.parametrize("size", [2**7, 2**7 + 1, 2**15 + 1])
def test_the_last_of_many_states_is_counted(size):
    x = rg.Variable("x", size)
    start = rg.FactorGraph.bayesian_network([(x, (), torch.full((size,), 1 / size).double())])
    network = BayesianNetwork(start).fit(pandas.DataFrame({"x": [size - 1, 0, None, size - 1]}))
    found = network.graph_.cpt("x")
    assert found[[0, -1]].tolist() == pytest.approx([1 / 3, 2 / 3], abs=1e-4)


def test_states_of_few_variables_do_not_bound_those_of_others():
    last = ["v199", "v0", None, "v199"]
    start = rg.FactorGraph.bayesian_network([
        (x, (), torch.full((x.size,), 1 / x.size).double())
        for x in (rg.Variable("few", 2), rg.Variable("many", [f"v{n}" for n in range(200)]))
    ])  # fmt: skip
    network = BayesianNetwork(start).fit(pandas.DataFrame({"few": [0, 1, 1, 1], "many": last}))
    found = network.graph_.cpt("many")
    assert found[[0, -1]].tolist() == pytest.approx([1 / 3, 2 / 3], abs=1e-4)


def test_tables_start_at_the_counts_of_complete_rows_with_one_added():
    data = pandas.DataFrame({"a": ["no", "yes", None], "b": ["no", None, "yes"]})
    network = BayesianNetwork([("a", "b")], limit=0).fit(data)
    assert network.graph_.cpt("a").tolist() == pytest.approx([1 / 2, 1 / 2])
    assert network.graph_.cpt("b").flatten().tolist() == pytest.approx([2 / 3, 1 / 3, 1 / 2, 1 / 2])


@pytest.mark.long
def test_manners_of_scikit_learn():
    base = pytest.importorskip("sklearn.base")
    selection = pytest.importorskip("sklearn.model_selection")
    pipeline = pytest.importorskip("sklearn.pipeline")
    network = BayesianNetwork(EDGES, prior=1.0)
    again = base.clone(network).set_params(prior=2.0)
    assert again.get_params()["prior"] == 2.0
    assert network.get_params()["prior"] == 1.0
    scores = selection.cross_val_score(network, frame(gaps=0.1), cv=3)
    assert len(scores) == 3
    assert np.isfinite(scores).all()
    piped = pipeline.Pipeline([("network", network)]).fit(frame())
    assert piped.predict(frame(3).drop(columns="wet")).shape == (3, 1)
    thawed = pickle.loads(pickle.dumps(network))
    torch.testing.assert_close(thawed.graph_.cpt("wet"), network.graph_.cpt("wet"))


@pytest.mark.parametrize(
    ("options", "change", "message"),
    [
        ({}, {"snow": ["no"] * 60}, "Column 'snow' is no variable"),
        ({"states": {"rain": ("no", "maybe")}}, {}, "has no state 'yes'"),
        ({"structure": [("a", "rain")]}, {}, "'a' has no column and no states"),
        ({"structure": [("rain", "wet"), ("wet", "rain")]}, {}, "cannot have a directed cycle"),
        ({"structure": ["rain"]}, {}, "needs edges"),
        ({"fixed": ("rain",)}, {}, "is fixed and has no table"),
        ({"fixed": {"rain": [0.5, 0.4, 0.1]}}, {}, r"shape \(2,\)"),
        ({"fixed": {"rain": [1.0, 0.0]}}, {}, "explains row 3 of the data"),
        ({}, {"rain": [0.5] * 60}, "holds 0.5"),
        ({}, {"rain": [math.inf] * 60}, "holds inf"),
        ({"fixed": ("snow",)}, {}, "name 'snow', which is no variable"),
        ({"prior": {"snow": 1.0}}, {}, "name 'snow', which is no variable"),
        ({"noisy": ("snow",)}, {}, "name 'snow', which is no variable"),
        ({"noisy": ("wet",), "fixed": {"wet": [0.5, 0.5]}}, {}, r"shape \(3, 2\)"),
        ({"prior": -1.0}, {}, "finite number of pseudo-counts, at least 0"),
        ({"batch_size": 0}, {}, "batch_size as a whole number of at least 1"),
    ],
)
def test_bad_input_is_told_in_one_line(options, change, message):
    table = frame(gaps=0.1)
    table.loc[:2, "rain"] = "no"
    table.loc[3, "rain"] = "yes"
    options = {"structure": EDGES, **options}
    with pytest.raises(rg.errors.RdpgraphError, match=message) as caught:
        BayesianNetwork(**options).fit(table.assign(**change))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("size", [-1.0, math.inf, math.nan, "ten"])
def test_an_imagined_sample_has_a_size(size):
    with pytest.raises(rg.errors.ModelError, match="BDeu needs size"):
        BDeu(size)


def test_what_is_not_fitted_answers_nothing():
    with pytest.raises(rg.errors.ModelError, match="not fitted"):
        BayesianNetwork(EDGES).predict(frame())


def test_states_and_targets_are_those_of_the_graph():
    table = frame()
    network = BayesianNetwork(EDGES, prior=1.0).fit(table)
    again = BayesianNetwork(network.graph_, states={"rain": list(NAMES)}).fit(table)
    torch.testing.assert_close(again.graph_.cpt("wet"), shares(table, "wet", ["rain", "lawn"]))
    for states in (NAMES[::-1], 2, (*NAMES, "maybe")):
        with pytest.raises(rg.errors.ModelError, match="leave it out of states"):
            BayesianNetwork(network.graph_, states={"rain": states}).fit(table)
    rows = table.drop(columns="rain")
    by_name = network.predict_proba(rows, "rain")
    pandas.testing.assert_frame_equal(
        network.predict_proba(rows, rg.Variable("rain", NAMES)), by_name
    )
    for wrong in (rg.Variable("rain", NAMES[::-1]), [rg.Variable("rain", 2)]):
        with pytest.raises(rg.errors.ModelError, match="not what this graph has by that name"):
            network.predict(rows, wrong)


@pytest.mark.parametrize("structure", [[], (), networkx.DiGraph()], ids=["list", "tuple", "graph"])
def test_without_edges_columns_are_independent(structure) -> None:
    """Frequencies of each column by itself, gaps left out; BIC counts their parameters."""
    rows = {"a": ["x", "y", "x", None], "b": [0, 2, 2, 1]}
    network = BayesianNetwork(structure).fit(rows)
    assert network.fit_.status.converged
    torch.testing.assert_close(
        network.graph_.cpt("a"), torch.tensor([2 / 3, 1 / 3]).double(), atol=1e-3, rtol=0
    )
    torch.testing.assert_close(network.graph_.cpt("b"), torch.tensor([0.25, 0.25, 0.5]).double())
    assert network.free_parameters_ == 1 + 2
    assert network.d_separated("a", "b")


def test_a_network_without_variables_is_told() -> None:
    with pytest.raises(rg.errors.ModelError, match="'a' is no variable"):
        BayesianNetwork(rg.FactorGraph([])).fit({"a": [0, 1]})
    with pytest.raises(rg.errors.ModelError, match="has no variables"):
        BayesianNetwork([]).fit(pandas.DataFrame(index=range(3)))


def family(parents: int, states: int, child: int = 2):
    """Edges and rows of a variable with so many parents."""
    rows = {f"p{i}": [(row * (i + 1)) % states for row in range(20)] for i in range(parents)}
    for column in rows.values():
        column[:states] = range(states)
    return [(name, "y") for name in rows], {**rows, "y": [row % child for row in range(20)]}


@pytest.mark.parametrize(
    ("parents", "states", "size"),
    [
        (12, 10, r"10\^12 x 2 = 2,000,000,000,000"),
        (70, 2, r"2\^71 = 2,361,183,241,434,822,606,848"),
    ],
)
@pytest.mark.parametrize("options", [{}, {"noisy": ["y"]}, {"prior": BDeu(1.0)}])
def test_tables_that_do_not_fit_are_refused_by_family(parents, states, size, options) -> None:
    edges, rows = family(parents, states)
    told = rf"table of 'y' with {parents} parents \(p0, p1, p2, ...\) has {size} entries"
    with pytest.raises(rg.errors.BudgetError, match=told) as error:
        BayesianNetwork(edges, **options).fit(rows)
    assert "take parents away" in str(error.value)
    assert "\n" not in str(error.value)


def test_the_ways_out_of_a_table_that_does_not_fit() -> None:
    edges, rows = family(12, 10)
    few = BayesianNetwork(edges[:3], prior=1.0).fit({
        name: column for name, column in rows.items() if name in ("p0", "p1", "p2", "y")
    })  # fmt: skip
    assert few.graph_.cpt("y").shape == (10, 10, 10, 2)
    groups = [(f"p{i}", f"h{i // 3}") for i in range(12)] + [(f"h{i}", "y") for i in range(4)]
    hidden = dict.fromkeys(["h0", "h1", "h2", "h3"], 2)
    by_groups = BayesianNetwork(groups, states=hidden, prior=1.0, limit=1).fit(rows)
    assert by_groups.graph_.cpt("y").shape == (2, 2, 2, 2, 2)


def test_more_parents_than_dims_of_tensors_are_refused() -> None:
    edges, rows = family(70, 1)
    with pytest.raises(rg.errors.BudgetError, match=r"'y' with 70 parents .* which is 62"):
        BayesianNetwork(edges).fit(rows)
    kept = {name: column for name, column in rows.items() if name == "y" or int(name[1:]) < 62}
    assert BayesianNetwork(edges[:62]).fit(kept).fit_.status.converged


def cut(count=40):
    """A number for each row, and the intervals that pandas cuts it into."""
    x = torch.randn(count, generator=torch.Generator().manual_seed(0), dtype=torch.float64).numpy()
    return x, pandas.DataFrame({"x": pandas.cut(x, 3), "y": (x > 0).astype(int)})


def test_numbers_are_cut_into_intervals_as_the_error_says() -> None:
    x, table = cut()
    with pytest.raises(rg.errors.EvidenceError, match=r"as by pandas.cut"):
        BayesianNetwork([("x", "y")]).fit(table.assign(x=x))
    network = BayesianNetwork([("x", "y")]).fit(table)
    shares = table.x.value_counts(normalize=True, sort=False)
    torch.testing.assert_close(network.graph_.cpt("x"), torch.tensor(shares.to_numpy()))
    assert network.graph_.domain.variable(0).states == tuple(table.x.cat.categories)


@pytest.mark.parametrize("form", ["category", "objects", "list", "intervals"])
def test_intervals_are_states_in_every_form_of_a_column(form: str) -> None:
    _, table = cut()
    column = {
        "category": table.x, "objects": table.x.astype(object), "list": list(table.x),
        "intervals": pandas.Series(pandas.arrays.IntervalArray(table.x)),
    }[form]  # fmt: skip
    network = BayesianNetwork([("x", "y")], prior=1.0).fit({"x": column, "y": table.y})
    expected = BayesianNetwork([("x", "y")], prior=1.0).fit(table)
    torch.testing.assert_close(network.graph_.cpt("y"), expected.graph_.cpt("y"))
    found = network.predict({"x": column}, "x").x
    assert list(found.astype(object)) == list(table.x)


def test_intervals_are_evidence_and_read_as_their_text(tmp_path) -> None:
    _, table = cut()
    graph = BayesianNetwork([("x", "y")], prior=1.0).fit(table).graph_
    one = table.x.iloc[0]
    wanted = graph.cpt("y")[list(table.x.cat.categories).index(one)]
    rg.write(graph, tmp_path / "cut.bif")
    for model in (graph, rg.read(tmp_path / "cut.bif")):
        for given in (one, str(one)):
            found = rg.infer(model.condition({"x": given})).marginal("y")
            torch.testing.assert_close(found, wanted)
        rows = rg.infer(model.condition(table[["x"]])).marginal("y")
        torch.testing.assert_close(rows[0], wanted)
    with pytest.raises(rg.errors.EvidenceError, match="has no state Interval"):
        graph.condition({"x": pandas.Interval(7, 8)})
