"""Names and their numbers."""

import copy
import pickle

import pytest

from rdpgraph.model.names import Names


def test_names_are_those_of_a_dictionary():
    """Across several enlargements of the table; some of them empty, long, or beyond ASCII."""
    given = ["", "ab", "a", "b", "\u00e9", "\U0001f600", "\ud800", "x" * 1000]
    given += [str(number % 700) for number in range(2000)]
    names, truth = Names(), dict[str, int]()
    for name in given:
        assert names.add(name) == truth.setdefault(name, len(truth))
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
