"""Variables whose objects are made when they are asked for are those of a tuple."""

import copy
import pickle
from array import array

import numpy as np
import pytest
import torch

import rdpgraph as rg
from rdpgraph.errors import UnknownVariableError
from rdpgraph.model.compact_variables import CompactVariables, StateLists
from rdpgraph.model.domain import Domain
from rdpgraph.model.names import Decimals, Names
from tests.io.helpers import of_format

parse_uai, _ = of_format(".uai")

COUNT = 1_500
LARGE = tuple(f"s{n}" for n in range(5_000))


def numbered(count=COUNT):
    """Variables that have no names, and the same as a tuple."""
    sizes = 1 + np.arange(count) % 5
    variables = CompactVariables(Decimals(range(count)), sizes)
    return variables, tuple(rg.Variable(str(n), int(size)) for n, size in enumerate(sizes))


def named(count=COUNT):
    """Variables and states with names, some of which share a list, and the same as a tuple."""
    lists, numbers = StateLists(), array("i")
    states = [("no", "yes") if n % 3 else (f"{n}", "", "\u00e9") for n in range(count)]
    states[count // 2] = LARGE
    for names in states:
        numbers.append(lists.add("\n".join(names).encode()))
    names = Names(f"v {n}" for n in range(count))
    sizes = np.array([len(listed) for listed in states])
    own = CompactVariables(names, sizes, (lists, numbers))
    return own, tuple(map(rg.Variable, names, states))


@pytest.mark.parametrize("made", [numbered, named])
def test_they_are_equal_to_a_tuple(made):
    variables, truth = made()
    assert variables == truth
    assert truth == variables
    assert [v.states for v in variables] == [v.states for v in truth]
    assert hash(variables) == hash(truth)
    assert variables[-1] == truth[-1]
    assert variables[3:9:2] == truth[3:9:2]
    assert variables[COUNT // 2].states == truth[COUNT // 2].states
    assert truth[7] in variables
    assert rg.Variable("other", 2) not in variables
    assert variables + truth[:2] == truth + truth[:2]
    assert variables != truth[1:]
    assert repr(variables[:2]) == repr(truth[:2])
    with pytest.raises(IndexError):
        variables[COUNT]
    for other in (copy.deepcopy(variables), pickle.loads(pickle.dumps(variables))):
        assert other == truth
        assert other[COUNT // 2].states == truth[COUNT // 2].states


@pytest.mark.parametrize("made", [numbered, named])
def test_few_become_a_tuple(made):
    assert isinstance(numbered(20)[0].made(), tuple)
    assert isinstance(made()[0].made(), CompactVariables)


@pytest.mark.parametrize("made", [numbered, named])
def test_a_domain_of_them_says_the_same(made):
    compact, plain = map(Domain, made())
    assert compact.count == plain.count
    assert compact.total_states == plain.total_states
    assert list(compact.starts) == list(plain.starts)
    assert dict(compact.by_name) == plain.by_name
    assert torch.equal(compact.sizes, plain.sizes)
    assert torch.equal(compact.state_starts, plain.state_starts)
    names = [plain.entries[n].name for n in (0, 5, COUNT - 1)]
    assert compact.singles(names) == plain.singles(names)
    assert compact.singles(plain.entries[:4]) == [0, 1, 2, 3]
    assert [compact.place(name) for name in names] == [0, 5, COUNT - 1]
    assert compact.variable(9) == plain.variable(9)
    assert compact.states_of(names[1]) == plain.states_of(names[1])
    messages = []
    for domain in (compact, plain):
        with pytest.raises(UnknownVariableError) as caught:
            domain.place("x")
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


def test_names_that_are_numbers():
    names = Decimals(np.array([7, 0, 12], dtype=np.int32))
    assert [names.find(name) for name in ("7", "0", "12")] == [0, 1, 2]
    for absent in ("07", "1", "-7", "", "x", "\u0667", "9" * 18, "9" * 30):
        assert names.find(absent) == -1
    assert Decimals(range(3)).find("3") == -1
    assert Decimals(range(3)) == ("0", "1", "2")


@pytest.mark.long
def test_a_graph_of_many_answers_by_name_and_by_variable():
    pairs = "".join(f"2 {n} {n + 1} " for n in range(COUNT - 1))
    text = f"MARKOV {COUNT} {'2 ' * COUNT}{COUNT - 1} {pairs}" + "4 2 1 1 2 " * (COUNT - 1)
    graph = parse_uai(text)
    posterior = rg.infer(graph.condition({"0": 1}))
    near = torch.tensor([1 / 3, 2 / 3], dtype=torch.float64)
    torch.testing.assert_close(posterior.marginal("1"), near)
    torch.testing.assert_close(posterior.marginal(graph.variables[1]), near)
    torch.testing.assert_close(posterior.marginals()[graph.variables[1]], near)
    assert int(posterior.mode()[graph["1499"]]) == 1
