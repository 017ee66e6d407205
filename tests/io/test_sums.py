"""Rows of probabilities that do not sum to one are read, with a word."""

import warnings

import pytest

import rdpgraph as rg

BIF = """network x {{}}
variable a {{ type discrete [ 2 ] {{ t, f }}; }}
variable b {{ type discrete [ 3 ] {{ u, v, w }}; }}
probability ( a ) {{ table {0}, {1}; }}
probability ( b | a ) {{ (t) {2}, {3}, {4}; (f) {5}, {6}, {7}; }}
"""
XML = """<BIF><NETWORK>
<VARIABLE><NAME>a</NAME><OUTCOME>t</OUTCOME><OUTCOME>f</OUTCOME></VARIABLE>
<VARIABLE><NAME>b</NAME><OUTCOME>u</OUTCOME><OUTCOME>v</OUTCOME><OUTCOME>w</OUTCOME></VARIABLE>
<DEFINITION><FOR>a</FOR><TABLE>{0} {1}</TABLE></DEFINITION>
<DEFINITION><FOR>b</FOR><GIVEN>a</GIVEN><TABLE>{2} {3} {4} {5} {6} {7}</TABLE></DEFINITION>
</NETWORK></BIF>"""
XDSL = """<smile><nodes>
<cpt id="a"><state id="t"/><state id="f"/><probabilities>{0} {1}</probabilities></cpt>
<cpt id="b"><state id="u"/><state id="v"/><state id="w"/><parents>a</parents>
<probabilities>{2} {3} {4} {5} {6} {7}</probabilities></cpt></nodes></smile>"""
UAI = "BAYES 2 2 3 2 1 0 2 0 1 2 {0} {1} 6 {2} {3} {4} {5} {6} {7}"
FORMS = {"m.bif": BIF, "m.xmlbif": XML, "m.xdsl": XDSL, "m.uai": UAI}


def words(path):
    """What is said as a file is read."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        rg.read(path)
    return [str(one.message) for one in said]


@pytest.mark.parametrize("name", FORMS)
def test_sums_off_one_are_said_in_one_line(tmp_path, name):
    path, b = tmp_path / name, "1" if name == "m.uai" else "b"
    path.write_text(FORMS[name].format(0.2, 0.8, 0.5, 0.5, 0, 0.3333, 0.3333, 0.33335))
    assert words(path) == []  # rounded
    path.write_text(FORMS[name].format(0.2, 0.8, 0, 0, 0, 0, 0, 1))
    assert words(path) == []  # a row that is impossible
    path.write_text(FORMS[name].format(0.2, 0.799, 0.5, 0.5, 0, 0.33, 0.33, 0.33))
    (said,) = words(path)
    expected = f"{path}: probabilities do not sum to one in 2 rows; those of '{b}' sum to 0.99."
    assert said.startswith(expected)
    path.write_text(FORMS[name].format(0.2, 0.8, 0.5, 0.5, 0, 0.3, 0.3, 0.35))
    (said,) = words(path)
    assert f"in 1 row; those of '{b}' sum to 0.95" in said


def test_a_markov_network_has_no_rows(tmp_path):
    path = tmp_path / "m.uai"
    path.write_text(UAI.replace("BAYES", "MARKOV").format(0.2, 0.7, 1, 2, 3, 4, 5, 6))
    assert words(path) == []


def test_tables_taken_as_they_are_say_so():
    a = rg.Variable("a", 2)
    with pytest.warns(UserWarning, match="bayesian_network: .* in 1 row; those of 'a' sum to 0.9"):
        rg.FactorGraph.bayesian_network([(a, (), [0.5, 0.4])], tolerance=0.2)


def test_the_command_line_says_so_in_a_line(tmp_path, capsys, monkeypatch):
    from rdpgraph.cli import main

    path = tmp_path / "m.bif"
    path.write_text(BIF.format(0.2, 0.79, 0.5, 0.5, 0, 0, 0, 1))
    monkeypatch.setattr("sys.argv", ["rdpgraph", "infer", str(path), "--task", "PR"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert not stop.value.code
    error = capsys.readouterr().err
    assert error.startswith(f"Warning: {path}: probabilities do not sum to one in 1 row")
    assert error.count("\n") == 1
