"""Inputs of users: arrays, lists, DataFrames, views that repeat a variable."""

import math

import numpy as np
import pandas as pd
import pytest
import torch

import rdpgraph as rg

RAIN, WET = rg.Variable("rain", ("no", "yes")), rg.Variable("wet", 3)
LAMPS = rg.VariableArray("lamp", (2, 3), 2)
VALUES = [[0.5, -math.inf, 2.0], [-1.0, 0.0, 1.5]]


def graph():
    pair = rg.Factor((RAIN, WET), rg.Table(torch.tensor(VALUES)))
    return rg.FactorGraph([pair, rg.FactorBlock((LAMPS,), rg.Table(torch.tensor([0.3, -0.2])))])


@pytest.mark.parametrize("read", [lambda g, e: g.condition(e).observed, lambda g, e: g.score(e)])
@pytest.mark.parametrize("rows", [[0, 1], [1, 0], [[0, 0], [1, 0]]])
def test_a_view_that_holds_a_variable_twice_and_contradicts_itself(read, rows):
    whole = {
        RAIN: "no",
        WET: 0,
        LAMPS: torch.full((2, 3), -1),
        LAMPS[0, [1, 1]]: torch.tensor(rows),
    }
    with pytest.raises(rg.errors.EvidenceError, match=r"'lamp\[0, 1\]' two different states"):
        read(graph(), whole)


def test_a_gap_erases_no_state_of_the_same_variable():
    twice = LAMPS[:, 0][[0, 0, 1]]
    for states in ([1, -1, 0], [-1, 1, 0], [1, 1, 0]):
        observed = graph().condition({twice: torch.tensor(states)}).observed
        assert torch.equal(observed, graph().condition({LAMPS[0, 0]: 1, LAMPS[1, 0]: 0}).observed)
    batch = torch.tensor([[1, -1, 0], [-1, -1, 1]])
    observed = graph().condition({twice: batch}).observed
    expected = graph().condition({LAMPS[0, 0]: [1, None], LAMPS[1, 0]: [0, 1]}).observed
    assert torch.equal(observed, expected)


@pytest.mark.parametrize(
    ("given", "same"),
    [
        ({WET: np.array([0, 2, -1])}, {WET: torch.tensor([0, 2, -1])}),
        ({WET: np.array([0.0, 2.0, np.nan])}, {WET: torch.tensor([0, 2, -1])}),
        ({WET: [np.int64(1), None, float("nan")]}, {WET: torch.tensor([1, -1, -1])}),
        ({RAIN: np.array(["yes", "no"])}, {RAIN: ["yes", "no"]}),
        ({RAIN: np.array(["yes", None], dtype=object)}, {RAIN: ["yes", None]}),
        ({RAIN: pd.Series(["yes", None])}, {RAIN: ["yes", None]}),
        ({WET: pd.array([2, None], dtype="Int64")}, {WET: [2, None]}),
        ({LAMPS: np.eye(2, 3, dtype=bool)}, {LAMPS: torch.eye(2, 3).long()}),
        (
            pd.DataFrame({"rain": ["yes", None, "no"], "lamp[1, 2]": [1, np.nan, 0]}),
            {"rain": ["yes", None, "no"], "lamp[1, 2]": [1, None, 0]},
        ),
        (
            pd.DataFrame({"rain": pd.Categorical(["no", None]), "wet": [2.0, np.nan]}),
            {"rain": ["no", None], "wet": [2, None]},
        ),
        (
            pd.DataFrame({"lamp[0, 0]": [True, False], "wet": pd.array([1, None], dtype="Int64")}),
            {"lamp[0, 0]": [1, 0], "wet": [1, None]},
        ),
    ],
)
def test_evidence_in_arrays_and_frames_is_that_in_tensors_and_lists(given, same):
    assert torch.equal(graph().condition(given).observed, graph().condition(same).observed)


@pytest.mark.parametrize(
    "given",
    [
        {WET: torch.zeros(2, dtype=torch.long, device="meta")},
        {WET: torch.eye(2).long().to_sparse()},
        {WET: {1}},
        {WET: [[0], [0, 1]]},
        {WET: [0.5]},
        {WET: np.array([0.5])},
        {WET: object()},
        {WET: [2**70]},
        {WET: 3},
        {RAIN: np.array(["maybe"])},
        {0: 1},
        {"rain[0]": 1},
        {rg.VariableArray("lamp", (9,), 2)[8]: 1},
        {rg.VariableArray("rain", (2,), 2)[1]: 1},
        {rg.VariableArray("lamp", (6,), 2): 1},
        pd.DataFrame({"rain": ["perhaps"]}),
        pd.DataFrame({"wet": [0.5]}),
        pd.DataFrame({"wet": [pd.Timestamp("2020-01-01")]}),
        pd.DataFrame([[0, 1]], columns=["wet", "wet"]),
        pd.DataFrame({"snow": [1]}),
        pd.Series([1]),
    ],
)
def test_evidence_that_cannot_be_meant(given):
    with pytest.raises(rg.errors.RdpgraphError) as error:
        graph().condition(given)
    assert "\n" not in str(error.value)


def test_rows_of_another_order_are_refused():
    """Rows are taken in order, so that the names of the rows must agree."""
    first, second = pd.Series([0, 1], index=[5, 3]), pd.Series([0, 1], index=[3, 5])
    rows = graph().condition(pd.DataFrame({"wet": first}))
    for ask in (
        lambda: graph().condition({"wet": first, LAMPS[0, 0]: second}),
        lambda: rows.condition(pd.DataFrame({"lamp[0, 0]": second})),
        lambda: rg.learn.BayesianNetwork([("a", "b")]).fit({"a": first, "b": second}),
    ):
        with pytest.raises(rg.errors.EvidenceError, match="need one index"):
            ask()


def test_many_single_variables_are_as_one_array():
    states = torch.randint(-1, 2, (2, 3), generator=torch.Generator().manual_seed(0))
    at = [(i, j) for i in range(2) for j in range(3)]
    expected = graph().condition({LAMPS: states}).observed
    for key in (lambda i, j: LAMPS[i, j], lambda i, j: f"lamp[{i}, {j}]"):
        known = {key(*place): int(state) for place in at if (state := states[place]) >= 0}
        assert torch.equal(graph().condition(known).observed, expected)


def test_tensors_of_many_single_variables_are_read_together(monkeypatch):
    many = [rg.Variable(f"x{i}", 2 + i % 3) for i in range(30)]
    model = rg.FactorGraph([rg.Factor((v,), rg.Table(torch.randn(v.size))) for v in many])
    states = torch.stack([torch.randint(v.size, (4,)) for v in many], 1)
    one = {v: states[0, i] for i, v in enumerate(many)}
    expected = model.score({v: int(value) for v, value in one.items()})
    assert torch.equal(model.score(one), expected)
    mixed = {v: states[:, i] if i % 2 else states[0, i] for i, v in enumerate(many)}
    rows = torch.where(torch.arange(30) % 2 == 1, states, states[0])
    assert torch.equal(model.condition(mixed).observed, rows)
    with pytest.raises(rg.errors.EvidenceError, match=r"Variable 'x4' has states 0 to 2 .* got 3"):
        model.condition(mixed | {many[4]: torch.tensor([0, 3, 1, 0])})
    with pytest.raises(rg.errors.EvidenceError, match="does not broadcast"):
        model.condition(mixed | {many[4]: torch.zeros(3).long()})
    stacked, stack = [], torch.stack
    monkeypatch.setattr(torch, "stack", lambda *a, **k: stacked.append(a) or stack(*a, **k))
    model.score(mixed)
    assert len(stacked) == 2  # one for each shape, not one for each variable


def test_evidence_is_taken_back():
    full = graph().condition({RAIN: ["yes", None], LAMPS: torch.ones(2, 3, dtype=torch.long)})
    left = full.retract("rain", LAMPS[0])
    expected = graph().condition({LAMPS[1]: torch.ones(2, 3, dtype=torch.long)})
    assert torch.equal(left.observed, expected.observed)
    assert left.batch_shape == (2,)
    assert torch.equal(left.condition({RAIN: "no"}).observed[:, 0], torch.zeros(2).long())
    for none in (full.retract(), full.retract(RAIN, LAMPS), graph().retract("wet")):
        assert none.observed is None
        assert none.batch_shape == ()
    with pytest.raises(rg.errors.ModelError, match="not in this graph"):
        full.retract("snow")


def test_names_are_looked_up():
    model = graph()
    assert model["rain"] is RAIN
    assert model["lamp"] is LAMPS
    assert model["lamp[1, 0]"] == LAMPS[1, 0]
    assert model[LAMPS[1:]] == LAMPS[1:]
    for known in ("wet", WET, "lamp", "lamp[0, 2]", LAMPS[:, 1]):
        assert known in model
    for unknown in ("snow", "lamp[2, 0]", "rain[0]", 0, None, rg.VariableArray("lamp", (2,), 2)):
        assert unknown not in model
    with pytest.raises(rg.errors.UnknownVariableError, match="did you mean 'rain'"):
        model["rian"]
    with pytest.raises(TypeError):
        iter(model)


def test_assignments_in_names_are_evidence_again():
    states = {"rain": torch.tensor([1, -1]), "wet": torch.tensor([0, 2])}
    named = graph().state_names(states)
    assert named == {"rain": ["yes", None], "wet": [0, 2]}
    assert torch.equal(graph().condition(named).observed, graph().condition(states).observed)
    assert graph().state_names({LAMPS[0, 0]: 1, RAIN: "no"}) == {"lamp[0, 0]": 1, "rain": "no"}


TABLES = [[0.5, 1.0], [-1.0, 0.25]]
LISTED = (
    ("Table", lambda v, w: rg.Table(v(TABLES)).log_values),
    ("probabilities", lambda v, w: rg.Table.from_probabilities(v([[1.0, 0.5]])).log_values),
    ("Sparse", lambda v, w: rg.Sparse(w([[0, 1]]), v([0.5]), (2, 2)).table(2)),
    ("Automaton", lambda v, w: rg.Automaton(w([[0, 1], [1, 0]]), v([0.0, 1.0]), 2).table(2)),
    ("Bilinear", lambda v, w: rg.Bilinear(v(TABLES), v(TABLES)).table(2)),
    ("LowRank", lambda v, w: rg.LowRank(v(TABLES), v(TABLES)).table(2)),
    ("Chain", lambda v, w: rg.Chain(v([TABLES]), v(TABLES), lengths=w([1])).log_partition()),
    ("crf", lambda v, w: rg.Chain.crf(v(TABLES), v(TABLES), start=v([1.0, 2.0])).log_partition()),
    (
        "hmm",
        lambda v, w: rg.Chain.hmm(
            v([0.0, -math.inf]), v([[-math.inf, 0.0]] * 2), v([[0.0], [0.0]]), w([0, 0])
        ).log_partition(),
    ),
    ("SemiMarkov", lambda v, w: rg.SemiMarkov(v([TABLES]), v(TABLES)).log_partition()),
    ("durations", lambda v, w: rg.SemiMarkov.from_unary(v(TABLES), v(TABLES), v(TABLES)).unary),
    ("Hypertree", lambda v, w: rg.Hypertree.span_scores(v(TABLES)).log_partition()),
    (
        "rules",
        lambda v, w: rg.Hypertree(
            v([[[1.0, 2]]]), rg.trees.DenseRules(v([TABLES] * 2))
        ).log_partition(),
    ),
    ("heads", lambda v, w: rg.ProjectiveDependencies.from_arcs(v(TABLES)).log_partition()),
    ("arcs", lambda v, w: rg.NonProjectiveDependencies(v([[0.5, 1.0]])).log_partition()),
)  # fmt: skip


@pytest.mark.parametrize("make", [m for _, m in LISTED], ids=[name for name, _ in LISTED])
def test_lists_and_arrays_are_tensors(make):
    expected = make(torch.tensor, torch.tensor)
    of_arrays = make(lambda v: np.array(v, dtype=np.float32), lambda w: np.array(w))
    for found in (make(list, list), of_arrays):
        assert torch.equal(found, expected)


def test_scores_take_lists_and_arrays():
    chain = rg.Chain(TABLES, TABLES)
    trees = rg.ProjectiveDependencies.from_arcs(torch.eye(3))
    spans = rg.Hypertree.span_scores(TABLES)
    for model, states in ((chain, [1, 0]), (trees, [0, 1]), (spans, [[0, 0], [-1, 0]])):
        expected = model.score(torch.tensor(states))
        assert torch.equal(model.score(states), expected)
        assert torch.equal(model.score(np.array(states)), expected)
        for wrong in ("ab", [0.5, 1], None, [[0], [0, 1]]):
            with pytest.raises(rg.errors.EvidenceError) as error:
                model.score(wrong)
            assert "\n" not in str(error.value)


def test_gradients_reach_tensors_inside_lists():
    weight = torch.tensor(0.5, requires_grad=True)
    log_z = rg.infer(rg.FactorGraph([rg.Factor((RAIN,), rg.Table([weight, 0.0]))])).log_partition
    (gradient,) = torch.autograd.grad(log_z, weight)
    torch.testing.assert_close(gradient, weight.detach().sigmoid())


@pytest.mark.parametrize(
    "values",
    [
        [[1, 2], [3]], "ab", None, {1: 2}, np.array(["a"]), object(), [None, 1.0],
        torch.zeros(2, device="meta"), torch.eye(2).to_sparse(), torch.zeros(2).long(),
        torch.zeros(2, dtype=torch.complex64), torch.zeros(2).to(torch.float8_e5m2),
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "make",
    [
        rg.Table, rg.Table.from_probabilities, lambda v: rg.Chain(v, torch.zeros(2, 2)),
        lambda v: rg.Sparse([[0]], v, (1,)), lambda v: rg.Bilinear(v, torch.zeros(2, 1)),
        lambda v: rg.LowRank(v, torch.zeros(2, 1)), rg.Hypertree.span_scores, rg.trees.DenseRules,
        lambda v: rg.SemiMarkov(v, torch.zeros(2, 2)), lambda v: rg.Automaton([[0]], v, 1),
        rg.ProjectiveDependencies,
    ],
)  # fmt: skip
def test_what_is_no_table_is_refused_in_a_line(make, values):
    with pytest.raises(rg.errors.ModelError) as error:
        make(values)
    assert "\n" not in str(error.value)
