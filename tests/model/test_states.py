"""States by name, number and truth value, in everything that takes them and gives them back."""

import io
import math

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import rdpgraph as rg
from rdpgraph.errors import EvidenceError, ModelError

NAMES = st.one_of(
    st.integers(1, 4),
    st.lists(st.integers(-3, 9), min_size=1, max_size=4, unique=True).map(tuple),
    st.lists(st.sampled_from(["no", "yes", "1", "0", "2", "-1", "True", ""]), min_size=1,
             max_size=4, unique=True).map(tuple),
    st.permutations([False, True]).map(tuple),
    st.permutations([7, "many", "2", True]).map(tuple),
)  # fmt: skip


@st.composite
def models(draw):
    """A graph of variables with states of every kind, and rows of their states."""
    kinds = draw(st.lists(NAMES, min_size=2, max_size=4))
    own = [rg.Variable(f"v{place}", kind) for place, kind in enumerate(kinds)]
    pixels = rg.VariableArray("pixel", (2,), draw(NAMES))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    tables = [torch.randn(v.size, generator=generator) for v in (*own, pixels)]
    factors = [rg.Factor((v,), rg.Table(t)) for v, t in zip(own, tables[:-1], strict=True)]
    near = torch.randn(own[0].size, own[1].size, generator=generator)
    factors.append(rg.Factor(own[:2], rg.Table(near)))
    graph = rg.FactorGraph([*factors, rg.FactorBlock((pixels,), rg.Table(tables[-1]))])
    rows = draw(st.integers(1, 3))
    sizes = graph.domain.sizes
    states = (torch.rand(rows, len(sizes), generator=generator) * sizes).long()
    states[torch.rand(states.shape, generator=generator) < 0.2] = -1
    return graph, states


def called(graph, row):
    """Name of each variable's state; None where there is none."""
    result = {}
    for number, state in enumerate(row.tolist()):
        variable = graph.domain.variable(number)
        names = variable.states if isinstance(variable.states, tuple) else range(variable.size)
        result[variable.name] = None if state < 0 else names[state]
    return result


@pytest.mark.long
@given(models())
@settings(max_examples=10, deadline=None)
def test_values_of_every_kind_are_evidence(model):
    graph, states = model
    rows = [called(graph, row) for row in states]
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    some = [{name: value for name, value in row.items() if value is not None} for row in rows]
    frame = pd.DataFrame({name: pd.Series(own, dtype=object) for name, own in columns.items()})
    arrays = {name: np.array(own, dtype=object) for name, own in columns.items()}
    tensors = {graph[name]: states[:, place] for place, name in enumerate(columns)}
    for given_rows in (columns, rows, some, frame, arrays, tensors, pd.DataFrame(columns)):
        assert torch.equal(graph.condition(given_rows).observed, states)
    for row, expected in zip(rows, states, strict=True):
        for one in (row, pd.Series(row, dtype=object)):
            assert torch.equal(graph.condition(one).observed, expected)
        for name, value in row.items():
            if value is not None:
                number = int(graph.domain.numbers(name))
                assert graph[name].index_of(value) == expected[number]


@given(models())
@settings(max_examples=5, deadline=None)
def test_answers_of_every_kind_are_evidence_again(model):
    graph, states = model
    frame = pd.DataFrame([called(graph, row) for row in states], dtype=object)
    frame.index = [f"row {place}" for place in range(len(frame))]
    posterior = rg.infer(graph.condition(frame))
    draws = posterior.sample(2, torch.Generator().manual_seed(0))
    for answer in (posterior.mode(), draws):
        expected = graph.condition(dict(answer)).observed
        assert torch.equal(graph.condition(graph.state_names(answer)).observed, expected)
        again = answer.to_frame()
        assert torch.equal(graph.condition(again).observed, expected.flatten(0, -2))
        assert again.index.get_level_values(-1).tolist() == [*frame.index] * (expected.ndim - 1)
        given_rows = [dict(zip(again, row, strict=True)) for row in again.itertuples(index=False)]
        assert torch.equal(graph.condition(given_rows).observed, expected.flatten(0, -2))
        values = graph.score(dict(answer)).reshape(-1)
        torch.testing.assert_close(graph.score(again), values)
    joint = posterior.joint(["v0", "v1"])
    table = joint.to_frame()
    assert table.columns.tolist() == frame.index.tolist()
    first = called(graph, torch.zeros(graph.num_variables).long())
    assert table.index[0] == (first["v0"], first["v1"])
    torch.testing.assert_close(torch.tensor(table.to_numpy().T).reshape(joint.shape), joint)


@pytest.mark.parametrize(
    ("states", "value", "readings"),
    [
        (("yes", "no"), True, ("True", "truth value", "index 1, that of 'no'")),
        (("yes", "no"), np.bool_(False), ("False", "truth value", "index 0, that of 'yes'")),
        ((1, 2, 3), True, ("truth value", "index 1, that of 2")),
        ((0, 1), True, ("truth value", "index 1, that of 1")),
        (3, True, ("truth value", "index 1")),
        (("1", "2", "3"), 1, ("the state '1'", "index 1, that of '2'")),
        (("1", "2", "3"), np.int64(2), ("the state '2'", "index 2, that of '3'")),
        (("1", "2", "3"), 1.0, ("the state '1'", "index 1, that of '2'")),
        ((True, False), 1, ("the state True", "index 1, that of False")),
        (("1", "2", "3"), 0, ("no state 0; it has '1', '2', '3'",)),
        (("1", "2", "3"), 7, ("no state 7",)),
        ((1, 2, 3), 0, ("no state 0; it has 1, 2, 3",)),
        ((1, 2, 3), "1", ("no state '1'; it has 1, 2, 3",)),
        (("no", "yes"), 1, ("no state 1; it has 'no', 'yes'", "torch.tensor(1)", "index 1, 'yes'")),
        (("0", "1", "2 or more"), 2, ("no state 2", "its index 2, '2 or more'")),
        ((False, True), 1, ("the state True", "index 1, that of True")),
        (("no", "yes"), 2, ("no state 2; it has 'no', 'yes'.",)),
        (("no", "yes"), 0.5, ("0.5",)),
        (("0.5", "0.50"), 0.5, ("0.5",)),
        (("true", "True"), True, ("truth value", "index 1, that of 'True'")),
    ],
)
def test_what_could_be_either_is_refused_with_both_readings(states, value, readings):
    x = rg.Variable("x", states)
    graph = rg.FactorGraph([rg.Factor((x,), rg.Table(torch.zeros(x.size)))])
    ways = [
        lambda: graph.condition({"x": value}),
        lambda: graph.condition({x: [value, None]}),
        lambda: graph.condition({x: np.array([value])}),
        lambda: graph.condition([{"x": value}]),
        lambda: graph.condition(pd.DataFrame({"x": [value]})),
        lambda: graph.condition(pd.Series({"x": value})),
        lambda: graph.score({"x": value}),
        lambda: graph.state_names({"x": value}),
        lambda: x.index_of(value),
    ]
    if isinstance(value, bool):
        ways.append(lambda: graph.condition({x: torch.tensor([value])}))
    for way in ways:
        with pytest.raises(EvidenceError) as error:
            way()
        assert all(reading in str(error.value) for reading in ("'x'", *readings))
        assert "\n" not in str(error.value)


@pytest.mark.filterwarnings("ignore:-1 is no state of")
@pytest.mark.parametrize(
    ("states", "value", "index"),
    [
        (("0", "1", "2 or more"), 1, 1),
        (2, True, 1),
        ((-1, 1), -1, 0),
        ((-1, 1), np.float32(1), 1),
        ((1, 2, 3), -1, -1),
        (("no", "yes"), -1, -1),
        ((True, False), np.bool_(True), 0),
        (("True", "False"), True, 0),
        (("FALSE", "TRUE"), np.bool_(True), 1),
        (("no", "maybe", "false"), False, 2),
        (("0.5", "1.5"), 1.5, 1),
        (("0.50", "1.5"), np.float32(0.5), 0),
    ],
)
def test_what_can_mean_one_state_alone_is_read(states, value, index):
    x = rg.Variable("x", states)
    graph = rg.FactorGraph([rg.Factor((x,), rg.Table(torch.zeros(x.size)))])
    for many in ([value], np.array([value]), pd.Series([value]), [value, None]):
        assert graph.condition({"x": many}).observed[0].tolist() == [index]


@pytest.mark.parametrize(
    "kind",
    ["object", "category", "string", "bool", "boolean", "str", "bool[pyarrow]", "string[pyarrow]"],
)
@pytest.mark.parametrize("names", [("True", "False"), ("false", "true"), (True, False)], ids=str)
def test_columns_of_truth_values_are_read_whatever_their_type(kind, names):
    if kind.endswith("[pyarrow]"):
        pytest.importorskip("pyarrow")
    textual = kind.startswith("str")
    if textual and names[0] is True:
        pytest.skip("names that are truth values are no texts")
    gap = [] if kind == "bool" else [None]
    values = [*names] if textual else [str(name).lower() == "true" for name in names]
    column = pd.Series([*values, *gap], dtype=kind)
    x = rg.Variable("x", names)
    graph = rg.FactorGraph.bayesian_network([(x, (), [0.5, 0.5])])
    expected = [0, 1, *(-1 for _ in gap)]
    assert graph.condition(pd.DataFrame({"x": column})).observed[:, 0].tolist() == expected
    fitted = rg.learn.BayesianNetwork(graph).fit(pd.DataFrame({"x": column[[0, 0, 0, 1]]}))
    assert fitted.graph_.cpt("x").tolist() == pytest.approx([0.75, 0.25])


@pytest.mark.parametrize("names", [("True", "False"), ("true", "false"), ("0.5", "1.5")], ids=str)
def test_what_pandas_makes_of_names_in_a_file_is_read(names):
    x = rg.Variable("x", names)
    graph = rg.FactorGraph([rg.Factor((x,), rg.Table(torch.zeros(2)))])
    text = f"x,n\n{names[1]},0\n{names[0]},1\n,2\n{names[1]},3\n"
    for options in ({}, {"dtype": "category"}, {"dtype_backend": "numpy_nullable"}, {"dtype": str}):
        frame = pd.read_csv(io.StringIO(text), **options)[["x"]]
        assert graph.condition(frame).observed[:, 0].tolist() == [1, 0, -1, 1]
        assert graph.condition(frame[:2].copy()).observed[:, 0].tolist() == [1, 0]
        assert graph.condition(frame.iloc[0]).observed.tolist() == [1]


def test_tensors_hold_indices_whatever_the_names_are():
    x, y = rg.Variable("x", (3, 2, 1)), rg.VariableArray("y", (2,), (True, False))
    graph = rg.FactorGraph([rg.Factor((x, y[0], y[1]), rg.Table(torch.zeros(3, 2, 2)))])
    states = torch.tensor([2, 0, -1])
    assert graph.condition({x: states}).observed[:, 0].tolist() == [2, 0, -1]
    assert graph.condition({y: torch.tensor([1, 0])}).observed.tolist() == [-1, 1, 0]
    assert graph.condition({y: torch.tensor([True, False])}).observed.tolist() == [-1, 0, 1]
    assert graph.condition([{y: [False, True]}, {x: 3}]).observed.tolist() == [
        [-1, 1, 0], [0, -1, -1]
    ]  # fmt: skip


def test_many_values_at_once_are_those_one_by_one():
    kinds = (3, (3, 1, 2), ("a", "b"), ("2", "0"))
    own = [rg.Variable(f"v{place}", kinds[place % 4]) for place in range(80)]
    graph = rg.FactorGraph([rg.Factor((v,), rg.Table(torch.zeros(v.size))) for v in own])
    row = {v: (2, 2, "b", "2")[place % 4] for place, v in enumerate(own)}
    assert graph.condition(row).observed.tolist() == [2, 2, 1, 0] * 20
    with pytest.raises(EvidenceError, match="'v7' can be read as the state '0' or as the index 0"):
        graph.condition(row | {own[7]: 0})
    with pytest.raises(EvidenceError, match="'v6' has no state 1; it has 'a', 'b'"):
        graph.condition(row | {own[6]: 1})


@pytest.mark.parametrize(
    ("states", "said"),
    [
        ((1, True), "twice"), ((0, False), "twice"), ((1, "1"), "twice"), ((True, "True"), "twice"),
        ((1.0, 2.0), "truth values or intervals"), (("a", None), "strings, whole"),
        ((), "at least one state"), (True, "a number of states"), ({1, 2}, "a number of states"),
    ],
)  # fmt: skip
def test_names_of_states_that_are_refused(states, said):
    for make in (lambda: rg.Variable("x", states), lambda: rg.VariableArray("x", (2,), states)):
        with pytest.raises(ModelError, match=said) as error:
            make()
        assert "\n" not in str(error.value)


def test_names_are_of_python_s_own_types():
    for given_names in (np.array([3, 1]), torch.tensor([3, 1]), range(3, 0, -2), [np.int64(3), 1]):
        states = rg.Variable("x", given_names).states
        assert states == (3, 1)
        assert set(map(type, states)) == {int}
    assert rg.Variable("x", np.array([True, False])).states == (True, False)
    one, other = rg.Variable("x", (0, 1)), rg.Variable("x", (False, True))
    flat = rg.Table(torch.zeros(2))
    with pytest.raises(ModelError, match=r"\(0, 1\), and .* \(False, True\)"):
        rg.FactorGraph([rg.Factor((one,), flat), rg.Factor((other,), flat)])


def test_frames_come_back_as_they_were():
    rain, wet = rg.Variable("rain", ("no", "yes")), rg.Variable("wet", (False, True))
    slip = rg.Variable("slip", 2)
    graph = rg.FactorGraph([rg.Factor((slip, rain, wet), rg.Table(torch.randn(2, 2, 2)))])
    index = pd.MultiIndex.from_tuples([("a", 3), ("b", 1)], names=["who", "day"])
    frame = pd.DataFrame({"wet": [True, None], "day": [3, 1], "rain": ["no", "yes"]}, index)
    with pytest.raises(rg.errors.UnknownVariableError, match="'day'"):
        graph.condition(frame)
    seen = graph.condition(frame, ignore_unknown=True)
    assert torch.equal(seen.observed, graph.condition(frame[["wet", "rain"]]).observed)
    for posterior in map(rg.infer, (seen, seen.with_factors(), seen.condition({"slip": 0}))):
        mode = posterior.mode().to_frame()
        assert mode.columns.tolist() == ["wet", "rain", "slip"]
        assert mode.index.equals(index)
        assert posterior.marginals().to_frame().columns.equals(index)
        assert posterior.joint(["wet"]).to_frame().columns.equals(index)
        draws = posterior.sample(3).to_frame()
        assert draws.index.names == [None, "who", "day"]
        assert draws.loc[(2, "b", 1), "rain"] == "yes"
    full = mode.assign(day=0)
    values = graph.score(full, ignore_unknown=True)
    torch.testing.assert_close(values, graph.score(mode))
    assert graph.condition({"wet": True, "day": 1}, ignore_unknown=True).observed.tolist() == [
        -1, -1, 1
    ]  # fmt: skip
    assert graph.condition(frame.loc[("a", 3)], ignore_unknown=True).observed.tolist() == [-1, 0, 1]
    assert rg.infer(seen.retract()).mode().to_frame().index.tolist() == [0]


def test_lists_of_rows():
    x, y = rg.Variable("x", ("a", "b")), rg.VariableArray("y", (2,), 2)
    graph = rg.FactorGraph([rg.Factor((x,), rg.Table([0.1, 0.5])), rg.FactorBlock((y,), rg.Or(1))])
    rows = [{"x": "b"}, {}, {y: [1, 0], x: "a"}, {"y[1]": 1, "other": 3}]
    expected = [[1, -1, -1], [-1, -1, -1], [0, 1, 0], [-1, -1, 1]]
    assert graph.condition(rows, ignore_unknown=True).observed.tolist() == expected
    assert graph.condition([]).observed.shape == (0, 3)
    assert graph.condition([{}, {}]).observed.tolist() == [[-1] * 3] * 2
    for wrong in ([1], [{"x": "b"}, None], "x", pd.Index(["x"]), pd.Series([1, 2], ["x", "x"])):
        with pytest.raises(EvidenceError):
            graph.condition(wrong)


def test_a_joint_is_a_tensor_with_a_frame():
    a, b = rg.Variable("a", (False, True)), rg.Variable("b", 3)
    values = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    joint = rg.infer(rg.FactorGraph([rg.Factor((a, b), rg.Table(values))])).joint([b, a])
    frame = joint.to_frame()
    assert frame.index.names == ["b", "a"]
    for at, row in frame["value"].items():
        assert row == float(joint[at[0], int(at[1])].detach())
    assert math.isclose(frame["value"].sum(), 1.0)
    assert type(joint + 0) is type(joint[0]) is torch.Tensor
    assert repr(joint).startswith("tensor(")
    (gradient,) = torch.autograd.grad(joint[2, 1], values)
    p = joint.detach().T
    expected = p[1, 2] * ((torch.arange(6).reshape(2, 3) == 5).double() - p)
    torch.testing.assert_close(gradient, expected)
