"""States of many variables given one by one."""

import re
import warnings

import numpy as np
import pandas as pd
import pytest
import torch

import rdpgraph as rg


def many_keys():
    """A graph over arrays and single variables, and a state for each of them."""
    arrays = rg.VariableArray("a", (9, 7), 3), rg.VariableArray("b", (20,), 3)
    lone = [rg.Variable(f"v{number}", 2 + number % 3) for number in range(40)]
    graph = rg.FactorGraph(
        [rg.FactorBlock((array,), rg.Table(torch.zeros(3))) for array in arrays]
        + [rg.Factor((own,), rg.Table(torch.zeros(own.size))) for own in lone]
    )
    members = [array[tuple(at)] for array in arrays for at in np.ndindex(*array.shape)]
    return graph, {own: place % 2 for place, own in enumerate([*members, *lone])}


@pytest.mark.parametrize("kind", ["variables", "one array", "names", "mixed", "other values"])
def test_many_keys_at_once_are_those_keys_one_by_one(kind):
    graph, given = many_keys()
    if kind == "one array":
        given = {own: state for own, state in given.items() if own.name.startswith("a[")}
    if kind in ("names", "mixed"):
        given = {
            own.name if kind == "names" or place % 2 else own: state
            for place, (own, state) in enumerate(given.items())
        }
    if kind == "other values":
        given = {
            own: (state, torch.tensor(state), None, np.int64(state), torch.tensor(-1))[place % 5]
            for place, (own, state) in enumerate(given.items())
        }
    one_by_one = graph
    for key, state in given.items():
        one_by_one = one_by_one.condition({key: state})
    for _ in range(2):
        assert torch.equal(graph.condition(given).observed, one_by_one.observed)


@pytest.mark.parametrize(
    ("key", "state", "kind", "message"),
    [
        ("v0", 2, rg.errors.EvidenceError, "Variable 'v0' has states 0 to 1"),
        ("a[8, 6]", -2, rg.errors.EvidenceError, r"Variable 'a\[8, 6\]' has states 0 to 2"),
        ("v0", 2**70, rg.errors.EvidenceError, "Variable 'v0' has states 0 to 1"),
        ("a[9, 0]", 0, rg.errors.ModelError, "outside array 'a'"),
        ("nobody", 0, rg.errors.UnknownVariableError, "not in this graph"),
        ("a", 0, None, ""),
    ],
)
def test_what_one_of_many_keys_gets_wrong_is_said_as_alone(key, state, kind, message):
    graph, given = many_keys()
    named = {own.name: 0 for own in given} | {key: state}
    if kind is None:  # a whole array beside its members
        assert torch.equal(
            graph.condition(named).observed,
            torch.zeros(graph.num_variables, dtype=torch.long),
        )
        return
    with pytest.raises(kind, match=message):
        graph.condition(named)


A, B = rg.Variable("a", ("no", "yes")), rg.Variable("b", 2)
RATING, SIGN = rg.Variable("rating", (0, 1, 2)), rg.Variable("sign", (-1, 0, 1))
ROW = rg.VariableArray("row", (3,), 2)
EVERY = rg.FactorGraph([], [A, B, RATING, SIGN, ROW])


@pytest.mark.parametrize("value", [-1, -1.0, np.int64(-1), np.float32(-1)])
@pytest.mark.parametrize("item", [A, "b", "rating", ROW, ROW[1]])
def test_one_state_of_minus_one_is_refused(item, value):
    name = item if isinstance(item, str) else item.name
    for door in (EVERY.condition, EVERY.score):
        with pytest.raises(rg.errors.EvidenceError, match=f"-1 is no state of '{re.escape(name)}'"):
            door({item: value})
    with pytest.raises(rg.errors.EvidenceError, match=r"^Row 1: -1 is no state"):
        EVERY.condition([{item: None}, {item: value}])
    # What the message says to do instead.
    assert EVERY.condition({item: None}).observed.eq(-1).all()
    assert EVERY.condition({}).observed.eq(-1).all()


def test_one_of_many_states_that_is_minus_one_is_refused():
    graph, given = many_keys()
    with pytest.raises(rg.errors.EvidenceError, match=r"-1 is no state of 'v3'"):
        graph.condition({**given, graph["v3"]: -1})


def test_minus_one_is_missing_in_tensors_and_arrays_and_is_a_state_by_its_name(recwarn):
    for many in (torch.tensor([0, -1]), np.array([0, -1]), [0, -1], torch.tensor([-1, -1])):
        assert EVERY.condition({"b": many}).observed[1, 1] == -1
    assert EVERY.condition({ROW: [0, -1, 1]}).observed[-3:].tolist() == [0, -1, 1]
    assert EVERY.condition({"a": torch.tensor(-1)}).observed.eq(-1).all()
    signs = pd.DataFrame({"sign": [-1, 0, 1]})
    for given, index in (({"sign": -1}, [0]), (signs, [0, 1, 2]), ({"sign": [-1, 1]}, [0, 2])):
        assert EVERY.condition(given).observed[..., 3].flatten().tolist() == index
    assert not recwarn


@pytest.mark.parametrize(
    "given",
    [
        pd.DataFrame({"b": [0, -1]}),
        pd.DataFrame({"b": [0.0, -1.0]}),
        {"b": pd.Series([1, -1])},
        {"rating": [0, -1]},
        {"rating": np.array([0, -1])},
        {"a": ["no", -1]},
        pd.Series({"b": -1, "a": "no"}),
    ],
    ids=str,
)
def test_minus_one_in_a_column_or_among_names_is_missing_with_a_warning(given):
    with pytest.warns(UserWarning, match="-1 is no state of '(a|b|rating)', and is read as"):
        observed = EVERY.condition(given).observed
    assert observed.reshape(-1, 7)[-1][[1, 2]].eq(-1).all()


def test_the_warning_comes_once_for_a_variable():
    graph = rg.FactorGraph([], [rg.Variable("one time", 2), rg.Variable("one more", 2)])
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("default")
        for _ in range(3):
            graph.condition(pd.DataFrame({"one time": [0, -1], "one more": [-1, 0]}))
    assert sorted(str(each.message)[:29] for each in said) == [
        "-1 is no state of 'one more',", "-1 is no state of 'one time',"
    ]  # fmt: skip


FINE = {"a": ["no", "yes", None, "no"], "b": [0, 1, None, 1]}


def wrong_rows(item, value, place):
    columns = {name: list(column) for name, column in FINE.items()}
    columns[item][place] = value
    frame = pd.DataFrame(columns, dtype=object)
    named = frame.set_axis([f"patient {n}" for n in range(4)])
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return [
        (columns, str(place)),
        (rows, str(place)),
        (frame, str(place)),
        (named, f"'patient {place}'"),
        (dict(named.items()), str(place)),
        ({**columns, "rating": 2}, str(place)),
    ]


@pytest.mark.parametrize("place", [0, 2, 3])
@pytest.mark.parametrize(("item", "value"), [("a", "maybe"), ("b", 7), ("b", "x"), ("a", 2.5)])
def test_an_error_names_the_row(item, value, place):
    for given, row in wrong_rows(item, value, place):
        for door in (EVERY.condition, EVERY.score):
            with pytest.raises(rg.errors.EvidenceError, match=f"^Row {row}: .*'{item}'") as caught:
                door(given)
            assert "\n" not in str(caught.value)
            assert str(value) in str(caught.value)


def test_an_error_names_the_row_of_tensors_and_of_what_contradicts():
    states = torch.tensor([[0, 1, -1], [1, 0, 2], [0, 5, 0]])
    with pytest.raises(rg.errors.EvidenceError, match=r"^Row 1: .*'row'.*; got 2"):
        EVERY.condition({ROW: states})
    with pytest.raises(rg.errors.EvidenceError, match=r"^Row 2: The evidence gives 'a' two"):
        EVERY.condition({"a": ["no", None, "no"], A: ["no", "yes", "yes"]})
    seen = EVERY.condition({"a": "no"})
    with pytest.raises(rg.errors.EvidenceError, match=r"^Row 1: Variable 'a' is already observed"):
        seen.condition({"a": ["no", "yes"]})
    with pytest.raises(rg.errors.EvidenceError, match=r"^Row 'u': Variable 'a' is already"):
        seen.condition(pd.DataFrame({"a": ["no", "yes"]}, index=["t", "u"]))
    for whole in ({"a": ["no", "yes"], "b": [0, 1, 1]}, {"a": "maybe"}, pd.Series({"a": "maybe"})):
        with pytest.raises(rg.errors.EvidenceError) as caught:  # no row is to blame
            EVERY.condition(whole)
        assert not str(caught.value).startswith("Row")


def test_a_fit_names_the_row(monkeypatch):
    monkeypatch.setattr("rdpgraph._core.tuning.COUNTED_ROWS", 4)
    network = rg.learn.BayesianNetwork([("a", "b")], states={"a": ("no", "yes"), "b": 2})
    columns = {"a": ["no", "yes"] * 5, "b": [0, 1] * 5}
    columns["b"][6] = 3
    for data in (columns, pd.DataFrame(columns)):
        with pytest.raises(rg.errors.EvidenceError, match=r"^Row 6: .*'b'"):
            network.fit(data)


def test_a_score_names_the_row_that_lacks_a_state():
    complete = {"a": ["no", "yes", "no"], "b": [0, 1, None], "rating": 0, "sign": 0, ROW: [0, 0, 0]}
    with pytest.raises(rg.errors.EvidenceError, match=r"1 have none, such as 'b' in row 2\.$"):
        EVERY.score(complete)
