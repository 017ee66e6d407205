"""Names are shown as they are: no markup, no pictures, no control characters, in short."""

import itertools
import json
import math
import warnings
from pathlib import Path

import pytest

import rdpgraph as rg
from rdpgraph.errors import FileFormatError, ModelError, RdpgraphError, UnknownVariableError
from tests.io.helpers import of_format

parse_bif, _ = of_format(".bif")

ASIA = str(Path(__file__).parents[2] / "examples" / "asia.bif")
MARKUP = ("[/x]", "[bold]", ":dog:", "[red]red[/red]", "[link=a]b", "\\[x]", "日本", "a$b_{")
HIDDEN = ("a\u009b31m", "b\u202ec", "d\u200be")
LONG = "x" * 5000
CONTROL = "\x1b[31m\x07\x7f"


def network(names, path):
    """Independent variables whose states have the names, too."""
    states = [rg.Variable(name, (names[place - 1], name)) for place, name in enumerate(names)]
    table = rg.Table.from_probabilities([0.25, 0.75])
    rg.write(rg.FactorGraph([rg.Factor((x,), table) for x in states]), path)
    return path


@pytest.mark.parametrize("task", ["MAR", "MAP"])
def test_names_are_printed_as_they_are(run, tmp_path, task):
    path = network(MARKUP, tmp_path / "m.bif")
    code, out, _ = run("infer", path, "--task", task)
    assert code == 0
    words = [line.split() for line in out.splitlines()]
    for before, name in itertools.pairwise((MARKUP[-1], *MARKUP)):
        pairs = ([name, before], [name]) if task == "MAR" else ([name, name],)
        for pair in pairs:
            assert any(row[: len(pair)] == pair for row in words)
    assert run("infer", path, "--task", task, "--output", tmp_path / "out")[0] == 0
    assert all(name in (tmp_path / "out").read_text() for name in MARKUP)


def test_what_terminals_would_obey_is_escaped(run, tmp_path):
    path = network(HIDDEN, tmp_path / "m.bif")
    for arguments in ((), ("--task", "MAP"), ("--query", HIDDEN[0]), ("--set", f"{HIDDEN[0]}=no")):
        _, out, err = run("infer", path, *arguments)
        assert (out + err).replace("\n", "").isprintable()
        assert r"a\x9b31m" in out + err
    found = json.loads(run("infer", path, "--format", "json")[1])
    assert tuple(found["marginals"]) == HIDDEN  # programs have the names themselves
    grammar = tmp_path / "grammar"
    grammar.write_text(f'1.0 S -> "{HIDDEN[0]}"')
    code, out, _ = run("parse", grammar, HIDDEN[0])
    assert (code, out) == (0, "(S a\\x9b31m)\n")


@pytest.mark.long
def test_pictures_of_any_letters_say_nothing(run, tmp_path):
    pytest.importorskip("matplotlib")
    path = network((*MARKUP, *HIDDEN), tmp_path / "m.bif")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for picture in ("m.png", "m.svg"):
            assert run("draw", path, "-o", tmp_path / picture) == (0, "", "")


@pytest.mark.parametrize("text", [LONG, CONTROL])
@pytest.mark.parametrize(
    "arguments",
    [
        ("TEXT",),
        ("infer", "TEXT"),
        ("infer", ASIA, "--TEXT"),
        ("infer", ASIA, "--task", "TEXT"),
        ("infer", ASIA, "--time", "TEXT"),
        ("infer", ASIA, "--memory", "TEXT"),
        ("infer", ASIA, "--keep", "TEXT"),
        ("infer", ASIA, "--seed", "TEXT"),
        ("infer", ASIA, "--query", "TEXT"),
        ("infer", ASIA, "--set", "TEXT"),
        ("infer", ASIA, "--set", "TEXT=1"),
        ("infer", ASIA, "--set", "lung=TEXT"),
        ("infer", ASIA, "--output", "no/TEXT"),
        ("infer", "FILE"),
        ("infer", ASIA, "--evidence", "FILE"),
        ("convert", ASIA, "TEXT"),
        ("draw", ASIA, "-o", "TEXT"),
        ("parse", "FILE", "a"),
    ],
)
def test_refusals_are_short_and_printable(run, tmp_path, arguments, text):
    path = tmp_path / "file"
    path.write_text(text)
    given = [str(path) if word == "FILE" else word.replace("TEXT", text) for word in arguments]
    code, _, err = run(*given)
    assert code in (1, 2)
    assert len(err) < 1000
    assert err.replace("\n", "").isprintable()


@pytest.mark.parametrize(
    "declaration",
    [
        "variable NAME { type discrete [ 2 ] { a, a }; }",
        "variable NAME { type discrete [ 3 ] { a, b }; }",
        "variable NAME { type discrete [ NAME ] { a, b }; }",
        "variable NAME { type discrete [ 2 ] { a, b }; }",
        "variable x { type discrete [ 2 ] { NAME, NAME }; }",
        "variable x { type discrete [ 2 ] { NAME, b }; } probability ( x ) { NAME 1; }",
    ],
)
def test_refusals_of_files_name_the_file_and_no_more_than_the_start_of_a_name(declaration):
    with pytest.raises(FileFormatError, match=r"m\.bif") as caught:
        parse_bif(declaration.replace("NAME", LONG), source="m.bif")
    assert len(str(caught.value)) < 500


def test_refusals_of_the_library_are_short():
    x = rg.Variable(LONG, (LONG, "b"))
    graph = rg.FactorGraph([rg.Factor((x,), rg.Table([0.0, 1.0]))])
    for wrong in (lambda: graph.condition({LONG: "c" * 5000}), lambda: graph.domain.place("q")):
        with pytest.raises(RdpgraphError) as caught:
            wrong()
        assert len(str(caught.value)) < 1000
    words = ModelError("a word " * 1000 + "the way out.")
    assert len(str(words)) < 1100
    assert str(words).endswith("the way out.")
    assert str(UnknownVariableError(f"Variable {CONTROL} is not here.")).isprintable()


def test_the_encoding_of_files_can_be_given(run, tmp_path):
    model, rows, fitted = tmp_path / "m.bif", tmp_path / "rows.csv", tmp_path / "fitted.bif"
    text = (
        "variable Größe { type discrete [2] { groß, klein }; }\n"
        "probability (Größe) { table .4, .6; }\n"
    )
    model.write_bytes(text.encode("cp437"))
    rows.write_bytes("Größe\ngroß\nklein\n".encode("cp437"))
    option = ("--encoding", "cp437")
    code, out, _ = run("infer", model, "--evidence", rows, "--task", "PR", "--json", *option)
    assert code == 0
    values = [row["log_partition"] for row in json.loads(out)["rows"]]
    assert values == pytest.approx([math.log(0.4), math.log(0.6)])
    assert run("fit", model, rows, "-o", fitted, *option)[0] == 0
    assert "groß" in fitted.read_text(encoding="utf-8")
    for command in (("explain", model), ("convert", model, fitted), ("sample", model)):
        assert run(*command, *option)[0] == 0
        code, _, err = run(*command, "--encoding", "utf-99")
        assert code == 1
        assert "There is no encoding 'utf-99'" in err
