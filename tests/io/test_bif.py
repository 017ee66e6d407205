"""BIF networks: what is read, what is written, what is refused."""

import gzip
import math
import random
import re
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings

from rdpgraph import Factor, FactorGraph, Table, Variable, read, write
from rdpgraph.errors import UnsupportedError
from tests.io.helpers import assignments, networks, of_format, refused, same_graph

parse_bif, format_bif = of_format(".bif")

SMALL = """
// a comment with "a quote { and a brace
network "a name" { property author = "x; y"; }
/* over
   lines } */
variable rain { type discrete [ 2 ] { no, yes }; property position = (73, 165) ; }
variable "wind speed" {
  property unit {odd;
  type discrete[3] { "<5 m/s", 5-10, >10 }
}
variable wet { type discrete [2] {no,yes}; }
probability ( wet | rain, "wind speed" ) {
  (yes, >10) 1e-1, 9.E-1;
  default 0.5, 0.5;
  property note free text;
  (no, "<5 m/s") 1 0;
}
probability ( rain ) { table 0.8, 0.2; }
property after all ;
probability ( "wind speed" | rain ) { table .2, .3, .3 .3 .5 .4 }
"""
RAIN = "variable rain { type discrete [2] { no, yes }; }\n"
WET = "variable wet { type discrete [2] { no, yes }; }\n"
PRIOR = "probability (rain) { table 0.8, 0.2; }\n"


def test_a_small_network_equals_the_drawing():
    graph = parse_bif(SMALL)
    assert [(v.name, v.states) for v in graph.variables] == [
        ("rain", ("no", "yes")),
        ("wind speed", ("<5 m/s", "5-10", ">10")),
        ("wet", ("no", "yes")),
    ]
    rain = [0.8, 0.2]
    wind = [[0.2, 0.3, 0.5], [0.3, 0.3, 0.4]]  # a table's first variable, the child, is slowest
    for assignment in assignments(graph):
        r, s, w = assignment.values()
        rows = {(1, 2): [0.1, 0.9], (0, 0): [1.0, 0.0]}
        p = rain[r] * wind[r][s] * rows.get((r, s), [0.5, 0.5])[w]
        expected = math.log(p) if p else -math.inf
        states = {name: torch.tensor(state) for name, state in assignment.items()}
        assert float(graph.score(states)) == pytest.approx(expected)


@pytest.mark.long
@given(networks())
@settings(deadline=None)
def test_round_trip(graph):
    again = parse_bif(format_bif(graph))
    same_graph(again, graph)
    assert [v.states for v in again.variables] == [v.states for v in graph.variables]


def test_unnamed_states_and_children_last():
    a, b = Variable("a", 2), Variable("b", 3)
    table = torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.2, 0.7]], dtype=torch.float64).log()
    prior = torch.tensor([0.4, 0.6], dtype=torch.float64).log()
    again = parse_bif(
        format_bif(FactorGraph([Factor((a, b), Table(table)), Factor((a,), Table(prior))]))
    )
    assert again.domain.states_of("b") == ("0", "1", "2")
    for assignment in assignments(again):
        expected = table[assignment["a"], assignment["b"]] + prior[assignment["a"]]
        torch.testing.assert_close(again.score(assignment), expected)


@pytest.mark.parametrize("name", ["m.bif", "m.bif.gz"])
def test_files(tmp_path, name):
    graph = parse_bif(SMALL)
    write(graph, tmp_path / name)
    same_graph(read(tmp_path / name), graph)


def test_names_with_spaces_and_no_quotes():
    text = RAIN.replace("{ no, yes }", "{ not at all, a lot }") + PRIOR
    assert parse_bif(text).variables[0].states == ("not at all", "a lot")


def test_rounded_and_empty_rows_are_read():
    text = RAIN + WET + PRIOR
    text += "probability (wet | rain) { (no) 0.33, 0.65; (yes) 0, 0; }"
    assert float(parse_bif(text).score({"rain": "yes", "wet": "yes"})) == -math.inf


def test_dtype_follows_the_argument():
    (factor,) = parse_bif(RAIN + PRIOR, dtype=torch.float32).factors()
    assert factor.potential.dtype == torch.float32


def many_parents(body, count=40):
    """A variable with 40 parents of 2 states: 2 ** 40 rows, on the word of a header."""
    names = [f"x{n}" for n in range(count)]
    text = "".join(f"variable {n} {{ type discrete [2] {{ a, b }}; }}\n" for n in names)
    text += "".join(f"probability ({n}) {{ table 0.5, 0.5; }}\n" for n in names)
    return RAIN + text + f"probability (rain | {', '.join(names)}) {{ {body} }}"


HOSTILE = {
    "empty": ("", "the file is empty"),
    "only a comment": ("// nothing", "the file is empty"),
    "another format": ("MARKOV 1 2", "line 1", "network, variable", "'MARKOV'"),
    "stray word": (RAIN + "oops", "line 2", "'oops'"),
    "open comment": (RAIN + PRIOR + "\n/* one */ /* no end", "line 4", "expected */ after /*"),
    "open comment before all": ("network x { } /* no */ // no /* end\n/* no end", "line 2", "*/"),
    "network without a brace": ("network | x; }\nprobability (a) { }", "line 1", "'{'", "'|'"),
    "network without an end": ("network x { property p;\n" + RAIN, "line 2", "closing brace"),
    "no open comment": (RAIN + PRIOR + "/* an end */ // and /* no other", None),
    "open quote": (RAIN + 'variable "x {', "line 2", "name of a variable"),
    "open brace": (RAIN + "variable x {", "end of the file"),
    "variable without an end": (RAIN.replace("; }", ";"), "closing brace", "end of the file"),
    "long cycle": (
        RAIN + WET + "variable x { type discrete [1] { a }; }"
        "probability (x | wet) { default 1; } probability (wet | rain) { default 1, 0; }"
        "probability (rain | wet, x) { default 1, 0; }",
        "without a cycle",
        "'wet' - 'rain' - 'wet'",
    ),
    "no name": ("variable { type discrete [2] {a, b}; }", "name of a variable", "'{'"),
    "no type": ("variable x { }", "type of variable 'x'", "'}'"),
    "two types": (RAIN.replace("; }", "; type discrete [2] {a, b}; }"), "closing brace"),
    "continuous": ("variable x { type continuous; }", "'discrete'", "'continuous'"),
    "huge cardinality": (
        "variable x { type discrete [ 1000000000 ] { a, b }; }",
        "line 1",
        "'1000000000'",
    ),
    "endless cardinality": (f"variable x {{ type discrete [0{'9' * 5000}] {{ a }}; }}", "states"),
    "wrong cardinality": (RAIN.replace("[2]", "[3]"), "3 state names", "there are 2"),
    "no brackets": (
        "variable x { type discrete 2 { a, b }; }",
        "discrete [NUMBER] for the number of states",
    ),
    "no states": ("variable x { type discrete [0] { }; }", "'0'"),
    "state named twice": (RAIN.replace("no", "yes"), "'rain'", "twice"),
    "declared twice": (RAIN + RAIN, "line 2", "not declared yet", "'rain'"),
    "defined twice": (RAIN + PRIOR + PRIOR, "line 3", "no probability block", "'rain'"),
    "not defined": (RAIN + WET + PRIOR, "probability block for variable 'wet'"),
    "unknown child": (RAIN + "probability (snow) { table 1, 0; }", "line 2", "declared", "'snow'"),
    "unknown parent": (RAIN + "probability (rain | snow) { }", "line 2", "declared", "'snow'"),
    "repeated parent": (
        RAIN + WET + PRIOR + "probability (wet | rain, rain) { }",
        "line 4",
        "hold yet",
        "'rain'",
    ),
    "its own parent": (RAIN + "probability (rain | rain) { }", "hold yet"),
    "no scope": (RAIN + "probability () { table 1; }", "1 to 60"),
    "cycle": (
        RAIN + WET + "probability (rain | wet) { default 1, 0; }"
        "probability (wet | rain) { default 1, 0; }",
        "without a cycle",
    ),
    "unknown state": (
        RAIN + WET + PRIOR + "probability (wet | rain) {\n(maybe) 1, 0; }",
        "line 5",
        "'maybe'",
    ),
    "too many states": (
        RAIN + WET + PRIOR + "probability (wet | rain) { (no, no) 1, 0; }",
        "1 states",
        "there are 2",
    ),
    "repeated row": (
        RAIN + WET + PRIOR + "probability (wet | rain) { (no) 1, 0; (no) 1, 0; }",
        "not listed yet",
    ),
    "missing row": (
        RAIN + WET + PRIOR + "probability (wet | rain) { (no) 1, 0; }",
        "2 rows of 'wet'",
        "there are 1",
    ),
    "short row": (RAIN + "probability (rain) { table 1; }", "2 probabilities", "there are 1"),
    "long row": (RAIN + "probability (rain) { table 1, 0, 0; }", "2 prob", "there are 3"),
    "two tables": (RAIN + "probability (rain) { table 1, 0; table 1, 0; }", "'table'"),
    "table and row": (RAIN + "probability (rain) { table 1, 0; () 1, 0; }", "1 rows"),
    "stray statement": (RAIN + "probability (rain) { tabel 1, 0; }", "'tabel'"),
    "negative": (RAIN + "probability (rain) { table 1.5, -0.5; }", ">= 0", "'-0.5'"),
    "nan": (RAIN + "probability (rain) { table nan, 1; }", "'nan'"),
    "inf": (RAIN + "probability (rain) { table 0, Infinity; }", "'Infinity'"),
    "overflow": (RAIN + "probability (rain) { table 0, 1e999; }", "'1e999'"),
    "underscore": (RAIN + "probability (rain) { table 0_1, 0; }", "'0_1'"),
    "a word": (RAIN + "probability (rain) { table\nhalf, 0.5; }", "line 3", "'half'"),
    "not normalised": (RAIN + "probability (rain) { table 0.8, 0.9; }", "'rain'", "sum to 1"),
    "huge values": (RAIN + "probability (rain) { table 1e308, 1e308; }", "sum to 1"),
    "rows without end": (many_parents("(a) 1, 0;"), "40 states"),
    "lying header": (many_parents("property none;"), str(2**40)),
    "lying table": (many_parents("table 1, 0;"), str(2**41)),
    "default without end": (many_parents("default 1, 0;"), "default", str(2**41)),
    "many parents": (many_parents("default 1, 0;", 61), "1 to 60", "62"),
    "stray punctuation": (RAIN.replace("no, yes", "no, |"), "state names", "'|'"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_refused(case):
    text, *fragments = HOSTILE[case]
    if fragments == [None]:
        assert parse_bif(text).num_variables == 1
    else:
        refused(lambda: parse_bif(text, source="bad.bif"), "bad.bif: ", *fragments)


LONG = {
    "long row": ("(no) 1, 0; (yes) /* {0} */ 0.5, 0.5;", [[1, 0], [0.5, 0.5]]),
    "long default": ("default /* {0} */ 0.5, 0.5;", [[0.5, 0.5], [0.5, 0.5]]),
    "long table": ("table /* {0} */ 0.5, 1, 0.5, 0;", [[0.5, 0.5], [1, 0]]),
    "long state": ("(/* {0} */ no) 1, 0; (yes {1}) 0, 1", [[1, 0], [0, 1]]),
    "long property": ("property {0} ; (no) 1, 0; property {0} ; (yes) 0, 1", [[1, 0], [0, 1]]),
    "long bad number": ("default /* {0} */ 0.5, half;", "line 4", "'half'"),
    "long bad count": ("default /* {0} */ 0.5;", "line 4", "2 probabilities", "there are 1"),
    "long bad table": ("table {1} 1, 0;", "4 probabilities", "there are 2"),
    "long bad row": ("({1} maybe) 1, 0;", "no 'maybe'"),
    "long open row": ("({1} no", "')'"),
    "long repeat": ("(no) 1, 0; (/* {0} */ no) 1, 0;", "not listed yet"),
    "long stray word": ("tabel {0};", "'tabel'"),
    "long not normalised": ("default /* {0} */ 0.5, 0.9;", "'wet'", "sum to 1"),
}


@pytest.mark.parametrize("case", LONG)
def test_statements_longer_than_a_piece(case):
    body, *expected = LONG[case]
    body = body.format("x;" * 50_000 if "/*" in body else "x " * 50_000, "," * 100_000)
    text = RAIN + WET + PRIOR + f"probability (wet | rain) {{ {body} }}"
    if isinstance(expected[0], str):
        refused(lambda: parse_bif(text), *expected)
        return
    rows = torch.tensor(expected[0], dtype=torch.float64)
    _, factor = parse_bif(text).factors()
    torch.testing.assert_close(factor.potential.log_values.exp(), rows.T)


def test_blanks_beyond_ascii_are_blanks_between_names_and_kept_in_quotes():
    text = RAIN.replace(" ", "\u3000") + PRIOR.replace(" ", "\xa0") + "// \u2003"
    same_graph(parse_bif(text), parse_bif(RAIN + PRIOR))
    quoted = RAIN.replace("no", '"n\u3000o"') + PRIOR + "\u2028"
    assert parse_bif(quoted).variables[0].states == ("n\u3000o", "yes")
    assert parse_bif(quoted.encode()).variables[0].states == ("n\u3000o", "yes")
    latin = (RAIN.replace("no", '"n\xa0\xe9"') + PRIOR).replace(" ", "\xa0").encode("latin-1")
    assert parse_bif(latin).variables[0].states == ("n\xa0\xe9", "yes")


def test_marks_within_quotes_are_names_and_comments_follow_one_another():
    x = Variable("{ } ( ) | ; [ ],// /*", ("a;b", "c, d", "}", "// e"))
    y = Variable("y", ("(", "[ ]"))
    rows = torch.tensor([[0.25, 0.75]] * 4, dtype=torch.float64)
    prior = Table(torch.full((4,), 0.25, dtype=torch.float64).log())
    graph = FactorGraph([Factor((x,), prior), Factor((x, y), Table(rows.log()))])
    text = format_bif(graph)
    assert [v.states for v in parse_bif(text).variables] == [x.states, y.states]
    same_graph(parse_bif(text.replace("\n", " /*1*//*\n;*/ // {\n")), parse_bif(text))
    same_graph(parse_bif(text.replace("\n", '\u3000// \x1c } "\n\x1c')), parse_bif(text))


BRACKETS = ("_35_45]", "[0", "0]", "a[1]", "[]")


@pytest.mark.parametrize("form", ["usual", "close", "comments", "default"])
def test_brackets_belong_to_words(form):
    """As in intervals of R's `cut`, which other tools write without quotes."""
    states, other = BRACKETS, ("_1_2]", "_2_3]")
    listed = ", ".join(states)
    rows = "".join(
        f" ({state}) 0.{place + 1}, 0.{9 - place};" for place, state in enumerate(states)
    )
    head = f"variable x[0] {{ type discrete [ 5 ] {{ {listed} }}; }}\n"
    tail = f"probability ( y | x[0] ) {{{rows} }}\n"
    if form == "close":
        head = f"variable x[0]{{type discrete[5]{{{listed}}};}}\n"
        tail = f"probability(y|x[0]){{{rows}}}\n"
    elif form == "comments":
        head = f"variable x[0] {{ type discrete /* a */ [5]// five\n {{ {listed} }} }}\n"
    elif form == "default":
        tail = "probability(y|x[0]){default .5, .5; (0]) 0.3, 0.7; property a = [1, 2];}\n"
    graph = parse_bif(
        f"{head}variable y {{ type discrete [2] {{ {other[0]}, {other[1]} }}; }}\n"
        f"probability ( x[0] ) {{ table 0.1, 0.2, 0.3, 0.2, 0.2; }}\n{tail}"
    )
    assert [variable.name for variable in graph.variables] == ["x[0]", "y"]
    assert [variable.states for variable in graph.variables] == [states, other]
    first = [0.5, 0.5, 0.3, 0.5, 0.5] if form == "default" else [0.1, 0.2, 0.3, 0.4, 0.5]
    torch.testing.assert_close(graph.cpt("y")[:, 0], torch.tensor(first).double())
    same_graph(parse_bif(format_bif(graph)), graph)


def test_a_long_list_of_states_may_hold_spaces_and_comments():
    names = [f"state {number}" for number in range(20_000)]
    head = f"variable x {{ type discrete [20000] {{ /* all */ {', '.join(names)} }}; }}\n"
    body = "probability (x) { default 1" + ", 0" * 19_999 + "; }"
    assert parse_bif(head + body).variables[0].states == tuple(names)
    message = "line 1", "20001 state names", "there are 40000"
    refused(lambda: parse_bif(head.replace("[20000]", "[20001]") + body), *message)


def test_every_cut_is_refused():
    """No shorter text that ends inside the last block is a network, but for the empty one."""
    text = SMALL.rstrip()
    empty = range(text.index("}") + 1, text.index("variable") + 1)
    for count in set(range(len(text))) - {*empty}:
        refused(lambda count=count: parse_bif(text[:count]))
    assert parse_bif(text[: empty.start]).num_variables == 0


@pytest.mark.long
@pytest.mark.parametrize("piece", ['"', "/* ", "// ", "property ", "( ", "a/*", '"a" ', "{ "])
def test_hostile_repeats_take_linear_time(piece):
    """A megabyte of what a backtracking tokenizer chokes on (the suite's timeout is the check)."""
    text = piece * (1_000_000 // len(piece))
    refused(lambda: parse_bif(text))
    refused(lambda: parse_bif(RAIN + "probability (rain) {" + text))


def test_what_a_file_cannot_hold_is_not_written():
    a, b = Variable("a", 2), Variable("b", 2)
    half = Table(torch.full((2, 2), 0.5).log())
    prior = Table(torch.full((2,), 0.5).log())
    for factors in (
        [],
        [Factor((a,), Table(torch.zeros(2)))],
        [Factor((a,), prior), Factor((a,), prior)],
        [Factor((a, b), half), Factor((b, a), half)],
        [Factor((a,), Table(torch.full((2,), 5000.0)))],
    ):
        with pytest.raises(UnsupportedError, match="Not a Bayesian network"):
            format_bif(FactorGraph(factors, variables=[a, b][: len(factors) or 1]))
    with pytest.raises(UnsupportedError, match="Rename"):
        format_bif(FactorGraph([Factor((Variable('a"', 2),), prior)]))
    with pytest.raises(UnsupportedError, match="condition"):
        format_bif(FactorGraph([Factor((a,), prior)]).condition({"a": 0}))


def example_models():
    pgmpy = pytest.importorskip("pgmpy", reason="its wheel holds the bnlearn networks")
    paths = sorted((Path(pgmpy.__file__).parent / "utils" / "example_models").glob("*.bif.gz"))
    assert len(paths) >= 20
    return paths


def test_the_networks_of_pgmpy():
    for path in example_models():
        graph = read(path)
        text = gzip.decompress(path.read_bytes()).decode()
        declared = re.findall(r"^variable (\S+) \{\s+type discrete \[ (\d+) \]", text, re.MULTILINE)
        assert [(v.name, str(v.size)) for v in graph.variables] == declared
        children = re.findall(r"^probability \( (\S+)", text, re.MULTILINE)
        assert [f.variables[0].name for f in graph.factors()] == children
        for factor in graph.factors():
            sums = factor.potential.log_values.exp().sum(0)
            torch.testing.assert_close(sums, torch.ones_like(sums), atol=0.02, rtol=0)


@pytest.mark.parametrize("name", ["asia", "cancer", "survey", "sachs"])
def test_tables_equal_those_that_pgmpy_reads(name):
    paths = {path.name.removesuffix(".bif.gz"): path for path in example_models()}
    readwrite = pytest.importorskip("pgmpy.readwrite", reason="pgmpy is not whole here")
    text = gzip.decompress(paths[name].read_bytes()).decode()
    model = readwrite.BIFReader(string=text).get_model()
    for factor in read(paths[name]).factors():
        child, *parents = factor.variables
        cpd = model.get_cpds(child.name)
        assert list(cpd.variables) == [child.name, *(p.name for p in parents)]
        assert all(tuple(cpd.state_names[v.name]) == v.states for v in factor.variables)
        torch.testing.assert_close(
            factor.potential.log_values.exp(), torch.as_tensor(cpd.values, dtype=torch.float64)
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_numbers_are_written_short_and_read_as_they_were(dtype):
    a = Variable("a", 3)
    generator = torch.Generator().manual_seed(0)
    drawn = torch.rand(3, generator=generator, dtype=dtype)
    for values in ([0.1, 0.7, 0.2], [1.0, 0.0, 0.0], (drawn / drawn.sum()).tolist()):
        log_values = torch.tensor(values, dtype=torch.float64).log().to(dtype)
        text = format_bif(FactorGraph([Factor((a,), Table(log_values))]))
        (factor,) = parse_bif(text, dtype=dtype).factors()
        assert torch.equal(factor.potential.log_values, log_values)
        if 0.1 in values:
            assert "table 0.1, 0.7, 0.2;" in text


def _interleaved(count):
    """Blocks of several shapes and forms in turn, as texts that are read many at a time."""
    generator = random.Random(0)
    states = {"0": ["a", "b"]}
    parts = ["variable 0{type discrete[2]{a,b};}", "probability(0){table 0.25,0.75;}"]
    for n in range(1, count):
        own = [f"s{n}", "b", "c"][: 2 + n % 2]
        states[str(n)] = own
        parts.append(f"variable {n} {{ type discrete [ {len(own)} ] {{ {', '.join(own)} }}; }}\n")
        parent = str(n - 1)
        rows = []
        for state in states[parent]:
            low = generator.randrange(1, 100)
            values = [low / 200, 0.5 - low / 200, 0.5] if n % 2 else [low / 100, 1 - low / 100]
            rows.append(f"({state}) {', '.join(map(str, values))};\n")
        generator.shuffle(rows)
        if n % 5 == 4:  # unusual
            rows[-1] = "default " + rows[-1].partition(")")[2]
        if n % 7 == 6:
            parts.append(f"probability ( {n} ) {{ table {rows[0].partition(')')[2]} }}\n")
        else:
            parts.append(f"probability ( {n} | {parent} ) {{ {''.join(rows)}}}\n")
    return parts


def test_many_blocks_are_those_that_are_read_alone():
    parts = _interleaved(400)
    usual, alone = "".join(parts), "/**/".join(parts).replace("{", "{ /**/ ")
    same_graph(parse_bif(usual), parse_bif(alone))


@pytest.mark.parametrize(
    ("wrong", "fragment"),
    [
        ("(s221) 0.5;(b) 1, 0;", "probabilities here"),
        ("(s221) 0.5, 0.9;(b) 1, 0;(c) 1, 0;", "sum to 1"),
        ("(s221) 1, 0;(s221) 1, 0;(c) 1, 0;", "not listed yet"),
        ("(s221) 1, 0;(x) 1, 0;(c) 1, 0;", "has no 'x'"),
        ("(s221) 1, 0;(b) 1, 1_0;(c) 1, 0;", "'1_0'"),
        ("(s221) 1, 0;(b) 1, inf;(c) 1, 0;", "'inf'"),
        ("table 1, 0, 1;", "6 probabilities here (there are 3)"),
    ],
)
def test_the_first_error_of_many_blocks_is_said(wrong, fragment):
    parts = _interleaved(400)
    for block in (222, 301):
        head = parts[2 * block + 1].partition("{")[0]
        parts[2 * block + 1] = f"{head} {{\n{wrong} }}\n"
    line = "".join(parts[: 2 * 222 + 1]).count("\n") + 2
    refused(lambda: parse_bif("".join(parts)), f"line {line}", fragment)
