"""A variable whose name a graph has, with other states or another order, is refused everywhere."""

import copy

import pandas as pd
import pytest
import torch

import rdpgraph as rg

A, B = rg.Variable("a", ("no", "yes")), rg.Variable("b", (0, 1))
ROW = rg.VariableArray("row", (3,), ("x", "y"))


def graph():
    generator = torch.Generator().manual_seed(0)
    return rg.FactorGraph.bayesian_network(
        [(A, (), [0.8, 0.2]), (B, (A,), [[0.9, 0.1], [0.3, 0.7]])]
    ).with_factors(
        rg.FactorBlock((ROW[1:], ROW[:-1]), rg.Table(torch.randn(2, 2, 2, generator=generator))),
        rg.Factor((A, ROW[0]), rg.Table(torch.randn(2, 2, generator=generator))),
    )


WRONG = [
    rg.Variable("a", ("yes", "no")),
    rg.Variable("a", ("no", "yes", "maybe")),
    rg.Variable("a", 2),
    rg.Variable("b", 2),
    rg.Variable("b", (1, 0)),
    rg.Variable("b", (False, True)),
    rg.VariableArray("row", (3,), ("y", "x")),
    rg.VariableArray("row", (3,), ("y", "x"))[1:],
    rg.VariableArray("row", (3,), ("y", "x"))[1],
    rg.VariableArray("row", (3,), 2)[1],
]


def state_of(item):
    return torch.zeros(item.shape, dtype=torch.long)


def complete(item):
    """States of all variables, those of `item` given by it."""
    others = {"a": torch.tensor(0), "b": torch.tensor(0), "row": torch.zeros(3, dtype=torch.long)}
    others.pop(item.name.split("[")[0])
    return {**others, item: state_of(item)}


MODEL = graph()
POSTERIOR = rg.infer(MODEL)

DOORS = {
    "graph": lambda item: MODEL[item],
    "condition": lambda item: rg.infer(MODEL.condition({item: state_of(item)})).log_partition,
    "condition a list": lambda item: MODEL.condition([{item: state_of(item)}]).observed,
    "ignore unknown": lambda item: (
        MODEL.condition({item: state_of(item)}, ignore_unknown=True).observed
    ),
    "retract": lambda item: MODEL.condition(POSTERIOR.mode()).retract(item).observed,
    "state names": lambda item: MODEL.state_names({item: state_of(item)}),
    "marginal": POSTERIOR.marginal,
    "marginals": lambda item: POSTERIOR.marginals()[item],
    "get of marginals": lambda item: POSTERIOR.marginals().get(item),
    "max-marginals": lambda item: POSTERIOR.max_marginals()[item],
    "mode": lambda item: POSTERIOR.mode()[item],
    "sample": lambda item: POSTERIOR.sample(2, torch.Generator().manual_seed(0))[item],
    "relaxed": lambda item: POSTERIOR.rsample(
        temperature=1.0, generator=torch.Generator().manual_seed(0)
    )[item],
    "marginal mode": lambda item: POSTERIOR.marginal_mode([item])[item],
    "its answer": lambda item: POSTERIOR.marginal_mode(["a", "b", "row"])[item],
}
SINGLE = {
    "joint": lambda item: POSTERIOR.joint([item, "row[2]"]),
    "joint of one": lambda item: POSTERIOR.joint([item]),
    "factor marginal": lambda item: POSTERIOR.factor_marginal([item]),
    "condition by name": lambda item: (
        MODEL.condition(
            {item: "yes" if item.name == "a" else 1 if item.name == "b" else "x"}
        ).observed
    ),
    "condition a frame": lambda item: MODEL.condition(pd.DataFrame({item: [None, None]})).observed,
    "many keys": lambda item: (
        MODEL.condition(
            dict.fromkeys([item, *(ROW[place] for place in (0, 2))], torch.tensor(0))
        ).observed
    ),
}
NETWORK = rg.FactorGraph.bayesian_network(
    [(A, (), [0.8, 0.2]), (B, (A,), [[0.9, 0.1], [0.3, 0.7]])]
)
IN_A_NETWORK = {"parents": NETWORK.parents, "cpt": NETWORK.cpt}
OF_ALL = {
    "score": lambda item: MODEL.score(complete(item)),
    "violations": lambda item: MODEL.violations(complete(item)),
    "restrict": lambda item: MODEL.restrict({item: support_of(item)}),
}


def support_of(item):
    return rg.extend.Support(torch.zeros(*item.shape, 1).long(), torch.zeros(*item.shape, 1))


def doors_for(item):
    doors = DOORS | OF_ALL
    if isinstance(item, rg.Variable):
        doors = doors | SINGLE
    return doors | IN_A_NETWORK if item.name in "ab" else doors


@pytest.mark.parametrize(
    ("item", "door"),
    [(item, door) for item in WRONG for door in doors_for(item)],
    ids=lambda value: repr(value) if not isinstance(value, str) else value,
)
def test_another_variable_is_refused_at_every_door(item, door):
    with pytest.raises(rg.errors.ModelError, match="is not what this graph has by that name") as e:
        doors_for(item)[door](item)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize("item", WRONG, ids=repr)
def test_another_variable_is_not_in_a_graph_or_an_answer(item):
    assert item not in MODEL
    assert item not in POSTERIOR.mode()
    with pytest.raises(rg.errors.ModelError) as caught:
        POSTERIOR.marginal(item)
    whole = item.name.split("[")[0]
    # The advice of the message holds.
    assert f"use graph[{whole!r}], or the name alone" in str(caught.value)
    assert torch.equal(POSTERIOR.marginal(MODEL[whole]), POSTERIOR.marginal(whole))


SAME = [
    rg.Variable("a", ["no", "yes"]),
    copy.deepcopy(B),
    rg.VariableArray("row", (3,), ("x", "y")),
    rg.VariableArray("row", (3,), ("x", "y"))[1],
]


@pytest.mark.parametrize(
    ("same", "door"),
    [(same, door) for same in SAME for door in doors_for(same) if door not in OF_ALL],
    ids=str,
)
def test_an_equal_variable_is_the_graphs_own(same, door):
    ask = doors_for(same)[door]
    got, expected = ask(same), ask(MODEL[same.name])
    if isinstance(expected, torch.Tensor):
        assert torch.equal(torch.as_tensor(got), torch.as_tensor(expected))
    else:
        assert got == expected
    assert same in MODEL
    assert same in POSTERIOR.mode()


def test_variables_are_equal_by_name_and_states():
    assert rg.Variable("a", ("no", "yes")) == A
    assert rg.Variable("a", ("yes", "no")) != A
    assert rg.Variable("b", (False, True)) != B
    assert rg.VariableArray("row", (3,), ("x", "y"))[1:] == ROW[1:]
    assert rg.VariableArray("row", (3,), ("y", "x")) != ROW
    # Evidence on both keeps two keys, so that the second is not lost in the first.
    with pytest.raises(rg.errors.ModelError, match="not what this graph has"):
        MODEL.condition({A: torch.tensor(0), WRONG[0]: torch.tensor(1)})


def test_a_member_of_an_array_is_a_variable_of_its_name_and_states():
    read = rg.FactorGraph([rg.Factor((rg.Variable("row[1]", ("x", "y")),), rg.Table([0.0, 1.0]))])
    assert torch.equal(rg.infer(read).marginal(ROW[1]), rg.infer(read).marginal("row[1]"))
    with pytest.raises(rg.errors.ModelError, match="not what this graph has"):
        rg.infer(read).marginal(WRONG[8])


def test_names_outside_an_array_are_unknown_and_left_out():
    given = MODEL.condition({"row[7]": 1, "a": "yes", 5: 1}, ignore_unknown=True)
    assert given.observed.tolist() == [1, -1, -1, -1, -1]
    with pytest.raises(rg.errors.UnknownVariableError, match="outside array 'row'"):
        MODEL.condition({"row[7]": 1})


def test_one_other_variable_among_many():
    many = [rg.Variable(f"x{number}", 2) for number in range(300)]
    free = rg.FactorGraph([], many)
    same = {rg.Variable(item.name, 2): 1 for item in many}
    assert free.condition(same).observed.eq(1).all()
    with pytest.raises(rg.errors.ModelError, match=r"'x7'.* not what this graph has"):
        free.condition({**same, rg.Variable("x7", ("yes", "no")): 1})
