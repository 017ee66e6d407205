"""States of many variables given one by one."""

import numpy as np
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
            own: (state, torch.tensor(state), None, np.int64(state), -1)[place % 5]
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
