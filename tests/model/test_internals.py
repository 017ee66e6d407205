"""Names, variables and rows at little memory: equal to a dictionary, a tuple and `torch.unique`."""

import copy
import pickle
from array import array

import numpy as np
import pytest
import torch

import rdpgraph as rg
from rdpgraph.errors import UnknownVariableError
from rdpgraph.model.domain import Domain
from rdpgraph.model.names import CompactVariables, Decimals, Names, StateLists
from rdpgraph.model.restriction import distinct_rows, grouped_rows

COUNT = 1_500
LARGE = tuple(f"s{n}" for n in range(5_000))


def test_names_are_those_of_a_dictionary():
    """Across several enlargements of the table; some of them empty, long, or beyond ASCII."""
    given = ["", "ab", "a", "b", "\u00e9", "\U0001f600", "\ud800", "x" * 1000]
    given += [str(number % 700) for number in range(2000)]
    names, truth = Names(), dict[str, int]()
    for name in given:
        number = names.add_bytes(name.encode("utf-8", "surrogatepass"))
        assert number == truth.setdefault(name, len(truth))
    assert names == tuple(truth)
    assert tuple(truth) == names
    assert list(names) == list(truth)
    assert all(names.find(name) == names.index(name) == truth[name] for name in truth)
    assert all(name in names for name in truth)
    for absent in ("aab", "701", "ba"):
        assert names.find(absent) == -1
        assert absent not in names
        with pytest.raises(ValueError, match="not among"):
            names.index(absent)
    assert 3 not in names
    assert names[-1] == "699"
    assert names[1:4] == ("ab", "a", "b")
    with pytest.raises(IndexError):
        names[len(names)]
    with pytest.raises(ValueError, match="not among"):
        names.index("ab", 2)


def test_names_are_compared_hashed_copied_and_picked_as_tuples():
    names = Names(["S", "NP", "S", "VP"])
    assert repr(names) == "('S', 'NP', 'VP')"
    assert hash(names) == hash(("S", "NP", "VP"))
    assert names != ("S", "NP")
    assert names != ["S", "NP", "VP"]
    assert names != ("S", "NP", 3)
    assert names.picked([2, 0]) == ("VP", "S")
    for other in (copy.deepcopy(names), pickle.loads(pickle.dumps(names))):
        assert other == names
        assert other.find("VP") == 2


def test_names_that_are_added_together_are_those_added_one_by_one(monkeypatch):
    """Some of them repeated, known, or of one hash; and in a text with longer places."""
    monkeypatch.setattr("rdpgraph.model.names._SHORT", 5000)
    monkeypatch.setattr("rdpgraph.model.names._BITS", 7)
    given = [b"", b"x" * 1000, *(b"%d" % (number % 700) for number in range(2000))]
    one_by_one, together = Names(), Names()
    for start in range(0, len(given), 90):
        part = given[start : start + 90]
        known = [one_by_one.find_bytes(name) for name in part]
        assert together.find_all(part).tolist() == known
        assert together.add_all(part).tolist() == list(map(one_by_one.add_bytes, part))
    assert together == one_by_one
    assert together.find_all([*given, b"absent"]).tolist() == [
        *map(one_by_one.find_bytes, given),
        -1,
    ]


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


@pytest.mark.parametrize("limit", [1, 2, 7, 10**6, 2**31 - 1])
@pytest.mark.parametrize("shape", [(0, 3), (1, 1), (40, 1), (200, 3), (30, 9), (5, 0)])
def test_distinct_rows_are_those_of_unique(shape, limit):
    rows = torch.randint(0, limit, shape, generator=torch.Generator().manual_seed(limit))
    rows = torch.cat([rows, rows[: shape[0] // 2]])
    found, which = distinct_rows(rows)
    assert torch.equal(found[which], rows)
    if shape[1]:
        expected, inverse = torch.unique(rows, dim=0, return_inverse=True)
        assert torch.equal(found, expected)
        assert torch.equal(which, inverse)
    kinds, groups = grouped_rows(rows)
    assert torch.equal(kinds, found)
    assert all(torch.equal(part, (which == n).nonzero().flatten()) for n, part in enumerate(groups))
