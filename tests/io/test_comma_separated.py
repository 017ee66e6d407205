"""Rows of comma-separated values, written and read back."""

import io
import json

import pandas
import pytest
import torch

import rdpgraph as rg
from rdpgraph.errors import FileFormatError
from rdpgraph.io.comma_separated import format_records, format_rows, parse_rows

NAMES = (
    "NA", "None", "nan", "NaN", "null", "-1", "?", "*", "True", "False", "true", "TRUE", "1", "01",
    "1.0", "1e0", "0x1", "1_0", "inf", " x ", "x", "\tx", 'a "quoted" one', "a,b", "a\nb", "a\r\nb",
    "a\rb", "'", "é", "日本", "#c", "=1+1", "\u2028", '"', ",", "2020-01-01", "<NA>", "\ufeffx",
)  # fmt: skip
"""Names that readers of tables are known to change."""
STATES = [*((name, "other") for name in NAMES), NAMES, ("", "x"), ("1", "0"), ("True", "False"), 3]


def model(*states):
    """A chain of variables of such states, its tables random."""
    generator = torch.Generator().manual_seed(0)
    variables = [rg.Variable(f"v{place}", names) for place, names in enumerate(states)]
    conditionals = []
    for place, variable in enumerate(variables):
        given = variables[place - 1 : place] if place else []
        table = torch.rand(*(v.size for v in (*given, variable)), generator=generator).double()
        conditionals.append((variable, tuple(given), table / table.sum(-1, keepdim=True)))
    return rg.FactorGraph.bayesian_network(conditionals)


def rows_of(graph):
    """Rows of states; the first variable has each of its states."""
    sizes = [variable.size for variable in graph.variables]
    return torch.stack([(7 * torch.arange(2 * sizes[0]) + k) % n for k, n in enumerate(sizes)], 1)


@pytest.mark.parametrize("states", STATES, ids=ascii)
def test_every_kind_of_name_is_read_back(states):
    graph = model(states, ("u", "v"), states)
    rows = rows_of(graph)
    text = format_rows(rows, graph.domain)
    read = parse_rows(text.encode(), graph.domain, source="rows.csv")
    assert list(read) == ["v0", "v1", "v2"]
    assert torch.equal(torch.stack(list(read.values()), 1).long(), rows)
    records = json.loads(format_records(rows, graph.domain))
    assert torch.equal(graph.condition(records).observed, rows)


@pytest.mark.parametrize("states", [names for names in STATES if names != 3], ids=ascii)
def test_pandas_reads_the_same_from_text(states):
    graph = model(states, ("u", "v"), states)
    rows = rows_of(graph)
    text = io.StringIO(format_rows(rows, graph.domain), newline="")
    frame = pandas.read_csv(text, dtype=str, keep_default_na=False, encoding="utf-8")
    assert torch.equal(graph.condition(frame).observed, rows)


def test_gaps_are_empty_fields_and_texts_that_no_state_has():
    graph = model(("NA", "no"), ("u", "v"), 3)
    text = b"v0,v2,v1\nNA,1,u\n,,\n?,NA,nan\nno,-1,v\nno,2.0,null\n"
    with pytest.warns(UserWarning, match="rows.csv: -1 is no state of 'v2', and is read as a miss"):
        read = parse_rows(text, graph.domain, source="rows.csv")
    assert read["v0"].tolist() == [0, -1, -1, 1, 1]
    assert read["v1"].tolist() == [0, -1, -1, 1, -1]
    assert read["v2"].tolist() == [1, -1, -1, -1, 2]
    assert parse_rows(b"v0\nNA\n\n\nno\n\n\n", graph.domain, source="r")["v0"].tolist() == [
        0, -1, -1, 1
    ]  # fmt: skip
    assert parse_rows(b"\n\nv1,v0\r\nu,NA\r\n\r\nv,no\r\n\r\n", graph.domain, source="r")[
        "v0"
    ].tolist() == [0, 1]
    empty = model(("", "x"), ("u", "v"))
    assert parse_rows(b"v0,v1\n,u\nx,\n", empty.domain, source="r")["v0"].tolist() == [0, 1]
    assert parse_rows(b'v0\n""\nx\n', empty.domain, source="r")["v0"].tolist() == [0, 1]


def test_long_files_are_read_in_pieces():
    graph = model(("a", "b"), ("u", "v"))
    rows = torch.randint(2, (40_000, 2), generator=torch.Generator().manual_seed(0))
    text = format_rows(rows, graph.domain).encode()
    read = parse_rows(text, graph.domain, source="rows.csv")
    assert torch.equal(torch.stack(list(read.values()), 1).long(), rows)
    lines = text.split(b"\n")
    lines[30_001] = b"a,w"
    with pytest.raises(FileFormatError, match=r"row 30000 \(line 30002\): Variable 'v1'"):
        parse_rows(b"\n".join(lines), graph.domain, source="rows.csv")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "expected the variables' names first"),
        (b"v0,v1\n", "there are no rows below the names"),
        (b"v0,v0\na,a\n", "Column 'v0' occurs twice"),
        (b"v0,snow\na,a\n", "Column 'snow' is no variable of the model"),
        (b",v0\n0,a\n", "Column '' is no variable of the model"),
        (
            b"v0,v1\na,u\na,w\n",
            r"row 1 \(line 3\): Variable 'v1' has no state 'w'; it has 'u', 'v'",
        ),
        (b"v0,v1\n\na,u\n\nb,U\n", r"row 1 \(line 5\): Variable 'v1' has no state 'U'"),
        (
            b"v0,v1\na,u\na\n",
            r"row 1 \(line 3\): a row has fewer fields than the first line, 1 and",
        ),
        (b"v0,v1\na,u,v\n", r"row 0 \(line 2\): a row has more fields than the first line, 3 and"),
        (b'v0,v1\na,"u\n', "line 2: unexpected end of data"),
        (b'v0,v1\na,"u"v\n', "line 2: "),
        (b"v2\n3\n", r"row 0 \(line 2\): Variable 'v2' has states 0 to 2; got 3"),
        (b"v2\n0.5\n", "Variable 'v2' has no state '0.5'"),
    ],
)
def test_errors_name_the_row(text, message):
    graph = model(("a", "b"), ("u", "v"), 3)
    with pytest.raises(FileFormatError, match=message) as error:
        parse_rows(text, graph.domain, source="rows.csv")
    assert str(error.value).startswith("rows.csv: ")
    assert "\n" not in str(error.value)
