"""Evidence and queries in both dialects, and results in the competitions' format."""

import math
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rdpgraph.io.evidence import (
    format_map,
    format_mar,
    format_mmap,
    format_pr,
    parse_evidence,
    parse_query,
    read_evidence,
    read_query,
)
from tests.io.helpers import accepted_or_refused, cuts, mutated, of_format, peak, refused

parse_uai, _ = of_format(".uai")

ROWS = st.lists(st.dictionaries(st.integers(0, 50).map(str), st.integers(0, 5), max_size=4))


def line(row):
    return " ".join(map(str, [len(row), *(x for pair in row.items() for x in pair)]))


@given(ROWS.filter(bool).map(lambda rows: rows[0]))
def test_one_row_in_either_dialect(row):
    assert parse_evidence(line(row)) == [row]
    assert parse_evidence(f"1\n{line(row)}\n") == [row]


@given(ROWS)
def test_many_rows(rows):
    text = "\n".join([str(len(rows)), *map(line, rows)])
    if len(text.split()) != 1 + 2 * len(rows):  # else both dialects fit, and the first is taken
        assert parse_evidence(text) == rows


@given(ROWS.filter(bool))
def test_rows_are_mappings(rows):
    text = "\n".join([str(len(rows)), *map(line, rows)])
    if len(text.split()) != 1 + 2 * len(rows):
        found = parse_evidence(text)
        for row, same in zip(found, rows, strict=True):
            assert list(row) == list(same)
            assert {name: row[name] for name in same} == same
            assert dict(row) == same
            assert row.get("00") is row.get("x") is row.get("51") is None
        assert found[:1] == rows[:1]
        assert found[-1] == rows[-1]


def test_large_numbers_and_what_is_said_again():
    assert parse_evidence("2 5000000000 1 3 4") == [{"5000000000": 1, "3": 4}]
    assert parse_evidence("3 1 2 0 1 1 2") == [{"1": 2, "0": 1}]
    assert parse_evidence("2  2 1 2 1 2  0") == [{"1": 2}, {}]


@pytest.mark.parametrize("text", ["", " \n", "0", "0\n", "# none\n0", "1\n0"])
def test_no_evidence(text):
    assert parse_evidence(text) == [{}]


def test_rows_condition_a_graph(tmp_path):
    graph = parse_uai("MARKOV 2 2 2 1 2 0 1 4 1 2 3 4")
    (tmp_path / "m.evid").write_text("1 1 0\n")
    (row,) = read_evidence(tmp_path / "m.evid")
    torch.testing.assert_close(
        graph.condition(row).score({"0": 1}), torch.tensor(3.0).log().double()
    )


@pytest.mark.parametrize(
    ("text", "fragments"),
    [
        ("x", ("token 1", "'x'")),
        ("-1", ("token 1", "'-1'")),
        ("1000000000000 1 1", ("token 1", "1000000000000")),
        ("2 0 1 1", ("token 3", "a number of observed variables up to 0")),
        ("2 0 0 1", ("token 4", "end of the file after 2 samples", "or 5 tokens in all")),
        ("1 0 1 1", ("end of the file after 1 samples",)),
        ("1 0.5 1", ("token 2", "a variable", "'0.5'")),
        ("1 0 nan", ("token 3", "'nan'")),
        ("2 0 1 0 0", ("token 5", "state 1", "already", "'0'")),
        ("1 2 0 1 4", ("up to 1", "'2'")),
        ("3 1 0 1", ("end of the file",)),
    ],
)
def test_refused(text, fragments):
    refused(lambda: parse_evidence(text, source="m.evid"), "m.evid: ", *fragments)


def test_many_rows_are_those_that_are_read_alone():
    """More than are checked at once, of lengths from nothing to most of a piece."""
    generator = random.Random(0)
    rows = [{str(n): n % 3 for n in range(generator.randrange(20))} for _ in range(3_000)]
    rows[1234] = {str(n): 1 for n in range(40_000)}
    lines = [" ".join([str(len(row)), *(f"{n} {s}" for n, s in row.items())]) for row in rows]
    lines[7] = "3 5 1 4 0 5 1"  # says one thing twice
    rows[7] = {"4": 0, "5": 1}
    assert parse_evidence(f"{len(rows)}\n" + "\n".join(lines)) == rows
    for wrong, line, fragments in (
        ("2 5 1 5 0", 2500, ("the state 1 that variable 5 has already", "'0'")),
        ("1 5 x", 1, ("a finite number", "'x'")),
        ("1 -5 1", 1234, ("a variable", "'-5'")),
        ("1 5 0.5", 2999, ("a state of variable 5", "'0.5'")),
        ("-1", 2998, ("a number of observed variables", "'-1'")),
    ):
        others = [*lines[:line], wrong, *lines[line + 1 :]]
        text = f"{len(rows)}\n" + "\n".join(others)
        refused(lambda text=text: parse_evidence(text), f"line {line + 2}, ", *fragments)


def test_columns_are_those_of_the_rows():
    rows = parse_evidence("5  2 7 1 0 3  0  1 7 0  3 2 1 2 1 0 2  1 11 4")
    columns = rows.columns()
    assert sorted(columns) == ["0", "11", "2", "7"]
    for name, column in columns.items():
        assert column.tolist() == [row.get(name, -1) for row in rows]


def test_queries(tmp_path):
    (tmp_path / "m.map").write_text("3 4 0 2\n")
    assert read_query(tmp_path / "m.map") == ("4", "0", "2")
    assert parse_query("0") == ()
    for text in ("", "2 1", "1 1 2", "2 1 1", "1 -1", "99999999999999"):
        refused(lambda text=text: parse_query(text))


def test_the_competition_evidence(shared_data):
    for path in sorted((shared_data / "uai2014").glob("*/*.evid")):
        (row,) = read_evidence(path)
        words = path.read_text().split()
        assert len(words) - 2 * len(row) in (0, 1, 2)
        assert [str(x) for pair in row.items() for x in pair] == words[len(words) - 2 * len(row) :]


MUTATED = [(parse_evidence, "2\n2 0 1 3 0\n1 2 1\n"), (parse_query, "3 0 4 2\n")]


@pytest.mark.long
@pytest.mark.parametrize(("parse", "text"), MUTATED)
@given(data=st.data())
@settings(deadline=None, max_examples=100)
def test_mutations(parse, text, data):
    changed = mutated(data, text)
    accepted_or_refused(lambda: parse(changed))


@pytest.mark.long
@pytest.mark.parametrize(("parse", "text"), MUTATED)
def test_cuts_and_deletions(parse, text):
    for changed in cuts(text):
        accepted_or_refused(lambda changed=changed: parse(changed))


MANY = 50_000
EVIDENCE = {
    "one row": f"{MANY} " + " ".join(f"{n} 1" for n in range(MANY)),
    "one observation, again and again": f"{MANY} " + "0 1 " * MANY,
    "many rows": f"{MANY // 10} "
    + ("10 " + " ".join(f"{n} 1" for n in range(10)) + " ") * (MANY // 10),
    "rows of one observation": f"{MANY} " + "1 0 1 " * MANY,
    "rows without observations": f"{4 * MANY} " + "0 " * 4 * MANY,
    "large numbers": f"{MANY} " + " ".join(f"{2**40 + n} 1" for n in range(MANY)),
}


@pytest.mark.long
@pytest.mark.parametrize("case", EVIDENCE)
def test_the_memory_of_evidence_is_at_most_six_times_its_text(case):
    data = EVIDENCE[case].encode()
    parse_evidence("1 0 1")
    found, raised = peak(lambda: parse_evidence(data))
    assert raised is None
    assert found + len(data) < 6 * len(data) + 400_000


def test_the_memory_of_a_query_is_at_most_six_times_its_text():
    data = f"{MANY} {' '.join(map(str, range(MANY)))}".encode()
    parse_query("1 0")
    found, raised = peak(lambda: parse_query(data))
    assert raised is None
    assert found + len(data) < 6 * len(data) + 400_000


def solution(text, task):
    head, *body = text.split()
    assert head == task
    assert text == f"{task}\n{' '.join(body)}\n"
    return body


@given(st.floats(allow_nan=False))
def test_pr(value):
    assert [float(word) for word in solution(format_pr(value), "PR")] == [value]


def test_pr_of_a_tensor():
    assert format_pr(torch.tensor(-math.inf)) == "PR\n-inf\n"


@given(st.lists(st.lists(st.floats(0, 1), min_size=1, max_size=4), max_size=4))
def test_mar(marginals):
    for given_as in (list, np.array, lambda p: torch.tensor(p, dtype=torch.float64)):
        words = solution(format_mar([given_as(p) for p in marginals]), "MAR")
        count, words = int(words[0]), words[1:]
        found = []
        for _ in range(count):
            size = int(words[0])
            found.append([float(word) for word in words[1 : 1 + size]])
            words = words[1 + size :]
        assert found == marginals
        assert words == []


@given(st.lists(st.integers(0, 9)))
def test_map_and_mmap(states):
    words = solution(format_map(torch.tensor(states, dtype=torch.long)), "MPE")
    assert [int(word) for word in words] == [len(states), *states]
    query = [str(3 * n) for n in range(len(states))]
    words = solution(format_mmap(query, states), "MMAP")
    assert [int(w) for w in words[:1]] == [len(states)]
    assert words[1::2] == query
    assert [int(w) for w in words[2::2]] == states
