"""XMLBIF, XDSL and the files of toulbar2: written, read and written again; refused in a line."""

import itertools
import math

import pytest
import torch

import rdpgraph as rg
from rdpgraph.errors import FileFormatError, UnsupportedError
from tests.io.helpers import of_format

parse_xdsl, format_xdsl = of_format(".xdsl")
parse_xmlbif, format_xmlbif = of_format(".xmlbif")

parse_cfn, format_cfn = of_format(".cfn")
parse_wcsp, format_wcsp = of_format(".wcsp")

XML = """<?xml version="1.0"?>
<!DOCTYPE BIF [ <!ELEMENT BIF ( NETWORK )*> ]>
<BIF VERSION="0.3"><NETWORK><NAME>n</NAME>
<VARIABLE TYPE="nature"><NAME>a &lt; b</NAME><OUTCOME>no</OUTCOME><OUTCOME>yes</OUTCOME></VARIABLE>
<VARIABLE TYPE="nature"><NAME>c</NAME><OUTCOME>x</OUTCOME><OUTCOME>y z</OUTCOME></VARIABLE>
<DEFINITION><FOR>c</FOR><GIVEN>a &lt; b</GIVEN>
<TABLE>0.1 0.9 <!-- no --> 1e-3 0.999</TABLE></DEFINITION>
<DEFINITION><FOR>a &lt; b</FOR><TABLE>0.25 0.75</TABLE></DEFINITION>
</NETWORK></BIF>
"""
XDSL = """<?xml version="1.0" encoding="UTF-8"?>
<smile version="1.0" id="n" numsamples="1000">
<nodes>
<cpt id="rain"><state id="no" /><state id="yes" /><probabilities>0.75 0.25</probabilities></cpt>
<cpt id="tap"><state id="off" /><state id="on" /><parents>rain</parents>
<probabilities>0.5 0.5 0.875 0.125</probabilities></cpt>
<deterministic id="lawn"><state id="dry" /><state id="wet" /><parents>rain tap</parents>
<resultingstates>dry wet wet wet</resultingstates></deterministic>
</nodes>
<extensions><genie version="1.0"><node id="rain"><name>Rain</name></node></genie></extensions>
</smile>
"""
WCSP = "name 3 3 3 10\n2 3 2\n2 1 0 0 2\n 2 0 7\n 1 1 10\n0 4 0\n1 2 5 1\n 0 0\n"
CFN = """{"problem": {"name": "x", "mustbe": "<12.5"},
"variables": {"a": ["r", "g"], "b": 3},
"functions": {"f": {"scope": ["a", "b"], "defaultcost": 0.25, "costs": ["g", 0, -1.5, 0, 2, 12.5]},
"g": {"scope": ["b"], "costs": [0, 1.125, 2]}, "h": {"scope": [], "costs": [-3]}}}"""


def tables(graph):
    return [
        ([v.name for v in factor.variables], factor.potential.table(len(factor.variables)))
        for factor in graph.factors()
    ]


def same(one, other):
    assert [(v.name, v.states) for v in one.variables] == [
        (v.name, v.states) for v in other.variables
    ]
    for (scope, table), (again, values) in zip(tables(one), tables(other), strict=True):
        assert scope == again
        assert torch.equal(table, values)


def test_xmlbif_holds_names_states_and_conditionals(tmp_path):
    graph = parse_xmlbif(XML)
    assert graph["c"].states == ("x", "y z")
    torch.testing.assert_close(
        rg.infer(graph.condition({"a < b": "yes"})).marginal("c"),
        torch.tensor([0.001, 0.999], dtype=torch.float64),
    )
    rg.write(graph, tmp_path / "m.xmlbif.gz")
    again = rg.read(tmp_path / "m.xmlbif.gz")
    assert format_xmlbif(again) == format_xmlbif(graph)
    rg.write(rg.read("examples/asia.bif"), tmp_path / "asia.xml")
    ours, theirs = rg.read(tmp_path / "asia.xml"), rg.read("examples/asia.bif")
    torch.testing.assert_close(rg.infer(ours).marginal("dysp"), rg.infer(theirs).marginal("dysp"))


def test_pyagrum_reads_our_xmlbif(tmp_path):
    pytest.importorskip("pyagrum")
    import pyagrum

    rg.write(rg.read("examples/asia.bif"), path := tmp_path / "asia.bifxml")
    engine = pyagrum.LazyPropagation(pyagrum.loadBN(str(path)))
    expected = rg.infer(rg.read("examples/asia.bif")).marginal("dysp")
    torch.testing.assert_close(torch.from_numpy(engine.posterior("dysp").toarray()), expected)


def test_xdsl_holds_tables_and_functions(tmp_path):
    graph = parse_xdsl(XDSL)
    dry = rg.infer(graph.condition({"lawn": "dry"})).log_partition.exp()
    assert float(dry) == pytest.approx(0.75 * 0.5)
    rg.write(graph, tmp_path / "m.xdsl.gz")
    same(again := rg.read(tmp_path / "m.xdsl.gz"), graph)
    assert format_xdsl(again) == format_xdsl(graph)
    x, y = rg.Variable("x", 2), rg.Variable('"y"<', 3)  # the child is declared before its parent
    tables = [(x, (y,), [[0.5, 0.5], [0.1, 0.9], [1, 0]]), (y, (), [0.25, 0.25, 0.5])]
    graph = rg.FactorGraph.bayesian_network(tables)
    again = parse_xdsl(format_xdsl(graph))
    assert [(v.name, v.states) for v in again.variables] == [
        ('"y"<', ("State0", "State1", "State2")), ("x", ("State0", "State1"))
    ]  # fmt: skip
    torch.testing.assert_close(
        rg.infer(again).joint(["x", '"y"<']),
        rg.infer(graph).joint(["x", '"y"<']).double(),
    )
    with pytest.raises(UnsupportedError, match="single word"):
        format_xdsl(parse_xmlbif(XML))


@pytest.mark.long  # pgmpy takes seconds to import
@pytest.mark.parametrize("peer", ["pgmpy", "pyagrum"])
def test_peers_read_and_write_our_xdsl(peer, tmp_path):
    pytest.importorskip(peer)
    asia = rg.read("examples/asia.bif")
    ours, theirs = tmp_path / "ours.xdsl", tmp_path / "theirs.xdsl"
    rg.write(asia, ours)
    if peer == "pgmpy":
        from pgmpy.readwrite import XDSLReader, XDSLWriter

        model = XDSLReader(str(ours)).get_model()
        again = rg.from_pgmpy(model)
        XDSLWriter(model).write(str(theirs))
    else:
        import pyagrum

        model = pyagrum.loadBN(str(ours))
        again = rg.from_pyagrum(model)
        pyagrum.saveBN(model, str(theirs))
    # pyAgrum 3.3 takes several parents in the other order than GeNIe and pgmpy.
    given, asked = ("dysp", "either") if peer == "pgmpy" else ("bronc", "lung")
    expected = rg.infer(asia.condition({given: "yes"})).marginal(asked)
    for graph in (again, rg.read(theirs)):
        posterior = rg.infer(graph.condition({given: "yes"}))
        torch.testing.assert_close(posterior.marginal(asked), expected)


def test_wcsp_costs_are_minus_log_values():
    graph = parse_wcsp(WCSP)
    pair = torch.tensor([[0.0, 0.0], [0.0, -math.inf], [-7.0, 0.0]], dtype=torch.float64)
    (scope, table), (_, constant), (_, last) = tables(graph)
    assert scope == ["1", "0"]
    assert torch.equal(table, pair)
    assert constant == -4
    assert last.tolist() == [0.0, -5.0]
    same(graph, parse_wcsp(format_wcsp(graph)))


def test_a_variable_of_a_wcsp_may_have_one_state():
    graph = parse_wcsp("one 2 2 1 9\n1 2\n2 0 1 4 1\n0 1 3\n")
    assert [v.size for v in graph.variables] == [1, 2]
    assert tables(graph)[0][1].tolist() == [[-4.0, -3.0]]


def test_cfn_holds_any_log_values():
    graph = parse_cfn(CFN)
    pair = [[-0.25, -0.25, -math.inf], [1.5, -0.25, -0.25]]
    assert tables(graph)[0][1].tolist() == pair
    assert tables(graph)[2][1] == 3
    same(graph, parse_cfn(format_cfn(graph)))
    turned = parse_cfn(CFN.replace('"<12.5"', '">-1.5"'))  # the highest sum is the best
    assert tables(turned)[0][1].tolist() == [[0.25, 0.25, 12.5], [-math.inf, 0.25, 0.25]]
    x, y = rg.VariableArray("x", (2,), 3), rg.Variable("y", ("u", "v"))
    source = torch.Generator().manual_seed(0)
    logs = 1e3 * torch.randn(3, 3, 2, generator=source, dtype=torch.float64)
    logs[0, 0, 0] = -math.inf
    graph = rg.FactorGraph([rg.Factor((x[0], x[1], y), rg.Table(logs))])
    again = parse_cfn(format_cfn(graph))
    same(again, parse_cfn(format_cfn(again)))
    assert torch.equal(tables(again)[0][1], logs)


@pytest.mark.parametrize("kind", ["wcsp", "cfn"])
def test_toulbar2_finds_the_mode_in_our_files(kind, tmp_path):
    toulbar = pytest.importorskip("pytoulbar2")
    graph = parse_wcsp(WCSP) if kind == "wcsp" else parse_cfn(CFN)
    rg.write(graph, path := tmp_path / f"m.{kind}")
    network = toulbar.CFN(vac=0)
    network.Read(str(path))
    states, cost, _ = network.Solve()
    assert cost == pytest.approx(-float(graph.score(rg.infer(graph).mode())))
    mode = rg.infer(graph).mode()
    assert [int(state) for state in states] == [int(mode[v]) for v in graph.variables]


NOISY = """<smile version="1.0"><nodes>
<cpt id="a"><state id="hot"/><state id="warm"/><state id="cold"/>
<probabilities>0.2 0.3 0.5</probabilities></cpt>
<cpt id="b"><state id="no"/><state id="yes"/><probabilities>0.6 0.4</probabilities></cpt>
<noisymax id="c"><state id="high"/><state id="low"/><state id="none"/><parents>a b</parents>
<strengths>0 1 2 1 0</strengths>
<parameters>0.5 0.3 0.2  0.1 0.6 0.3  0 0 1   0.25 0.25 0.5  0 0 1   0.05 0.15 0.8</parameters>
</noisymax></nodes></smile>"""
CAUSES = (  # of the states of c, for each state of a and of b in their order, and by the leak
    [[0.5, 0.3, 0.2], [0.1, 0.6, 0.3], [0.0, 0.0, 1.0]],
    [[0.0, 0.0, 1.0], [0.25, 0.25, 0.5]],
    [0.05, 0.15, 0.8],
)


def test_noisy_max_is_the_strongest_of_independent_causes(tmp_path):
    graph, expected = parse_xdsl(NOISY), torch.zeros(3, 2, 3, dtype=torch.float64)
    of_a, of_b, leak = CAUSES
    for a, b in itertools.product(range(3), range(2)):
        for caused in itertools.product(range(3), repeat=3):
            share = math.prod(
                row[state] for row, state in zip((of_a[a], of_b[b], leak), caused, strict=True)
            )
            expected[a, b, min(caused)] += share
    torch.testing.assert_close(graph.cpt("c"), expected)
    rg.write(graph, tmp_path / "m.xdsl")  # as a table
    torch.testing.assert_close(rg.read(tmp_path / "m.xdsl").cpt("c"), expected)
    natural = NOISY.replace("<strengths>0 1 2 1 0</strengths>", "")
    torch.testing.assert_close(parse_xdsl(natural).cpt("c"), expected.flip(1))


def test_noisy_max_with_two_states_is_noisy_or():
    rates, leak = [0.9, 0.4, 0.25], 0.1
    nodes = "".join(
        f'<cpt id="x{i}"><state id="on"/><state id="off"/>'
        f"<probabilities>0.5 0.5</probabilities></cpt>" for i in range(3)
    )  # fmt: skip
    causes = " ".join(f"{rate} {1 - rate} 0 1" for rate in rates)
    graph = parse_xdsl(
        f'<smile><nodes>{nodes}<noisymax id="y"><state id="on"/><state id="off"/>'
        f"<parents>x0 x1 x2</parents><parameters>{causes} {leak} {1 - leak}</parameters>"
        "</noisymax></nodes></smile>"
    )
    for states in itertools.product(range(2), repeat=3):
        off = (1 - leak) * math.prod(1 - r for r, s in zip(rates, states, strict=True) if s == 0)
        assert float(graph.cpt("y")[states][1]) == pytest.approx(off)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            ("0 1 2 1 0", "0 1 1 1 0"),
            "strengths of noisymax 'c' that order the 3 states of parent 0",
        ),
        (("0 1 2 1 0", "0 1 2 1"), "18 parameters of noisymax 'c'"),
        (("0.05 0.15 0.8", ""), "18 parameters of noisymax 'c'"),
        (("0 0 1   0.25", "0 0.5 0.5   0.25"), "the weakest state of parent 0"),
        (("0.05 0.15", "-0.05 0.15"), "numbers >= 0 as table of 'c'"),
        (("<parents>a b<", "<parents>a q<"), "got 'q'"),
    ],
)
def test_noisy_gates_that_do_not_fit(change, message):
    with pytest.raises(FileFormatError, match=message):
        parse_xdsl(NOISY.replace(*change))


def test_a_noisy_gate_of_many_parents_is_refused_before_its_table_is_made():
    names = [f"x{i}" for i in range(30)]
    nodes = "".join(
        f'<cpt id="{x}"><state id="a"/><state id="b"/><probabilities>.5 .5</probabilities></cpt>'
        for x in names
    )
    text = (
        f'<smile><nodes>{nodes}<noisymax id="y"><state id="a"/><state id="b"/>'
        f"<parents>{' '.join(names)}</parents><parameters>{'.5 .5 0 1 ' * 30} .1 .9</parameters>"
        "</noisymax></nodes></smile>"
    )
    with pytest.raises(FileFormatError, match=r"'y'\. Give it fewer parents"):
        parse_xdsl(text)


@pytest.mark.parametrize("kind", ["decision", "utility", "Decision"])
def test_decisions_and_utilities_are_no_chance(kind):
    with pytest.raises(FileFormatError, match=f"nodes of chance only; 'c' is a {kind.lower()}"):
        parse_xmlbif(XML.replace('"nature"><NAME>c', f'"{kind}"><NAME>c'))
    parse_xmlbif(XML.replace('"nature"', '"Nature"').replace(' TYPE="nature"', ""))
    if kind.islower():
        with pytest.raises(FileFormatError, match=f"nodes of chance only; 'rain' is a {kind}"):
            parse_xdsl(XDSL.replace("cpt id=\"rain\"", f"{kind} id=\"rain\"").replace(
                "0.75 0.25</probabilities></cpt>", f"0.75 0.25</probabilities></{kind}>"
            ))  # fmt: skip


def test_numbers_of_cfn_may_be_in_quotes():
    quoted = CFN.replace("0.25", '"0.25"').replace("1.125", '"1.125"').replace('"b": 3', '"b": "3"')
    quoted = quoted.replace('["g", 0, -1.5, 0', '["g", "0", "-1.5", "0"').replace("-3]", '"-3e0"]')
    same(parse_cfn(quoted), parse_cfn(CFN))
    for wrong in ('"nan"', '"1e999"', '"1_0"', '"x"', '""', "true"):
        with pytest.raises(FileFormatError, match="a cost"):
            parse_cfn(CFN.replace("1.125", wrong))
    with pytest.raises(FileFormatError, match="a state of 'b'"):
        parse_cfn(CFN.replace('["g", 0,', '["g", "3",'))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("m.uai", "MARKOV 2 2 3 0"),
        ("m.wcsp", "m 2 3 0 9 2 3"),
        ("m.cnf", "p cnf 3 0\n"),
        ("m.cfn", '{"problem": {"mustbe": "<9"}, "variables": {"a": 2, "b": 3}, "functions": {}}'),
    ],
)
def test_a_model_without_factors_has_the_type_that_was_asked_for(tmp_path, name, text, dtype):
    (tmp_path / name).write_text(text)
    graph = rg.read(tmp_path / name, dtype=dtype)
    assert (graph.num_factors, graph.dtype) == (0, dtype)
    assert "factors: none" in repr(graph)
    for asked in (graph, graph.condition({graph.variables[0]: 0})):
        posterior = rg.infer(asked)
        free = asked.num_variables if asked is graph else asked.num_variables - 1
        sizes = [variable.size for variable in graph.variables][-free:]
        expected = torch.tensor(math.prod(sizes), dtype=dtype).log()
        torch.testing.assert_close(posterior.log_partition, expected)
        assert {values.dtype for values in posterior.marginals().values()} == {dtype}
        assert posterior.entropy().dtype == dtype
    form = "uai" if name == "m.cnf" else name[2:]
    rg.write(graph, tmp_path / f"again.{form}")
    assert rg.read(tmp_path / f"again.{form}").num_factors == 0


BROKEN = {
    "no XML": (parse_xmlbif, XML[:200]),
    "entities": (parse_xmlbif, XML.replace("<!ELEMENT BIF ( NETWORK )*>", '<!ENTITY a "b">')),
    "no BIF": (parse_xmlbif, "<a/>"),
    "a value": (parse_xmlbif, XML.replace("0.25", "nan")),
    "few values": (parse_xmlbif, XML.replace("0.25", "")),
    "a variable twice": (parse_xmlbif, XML.replace("<NAME>c<", "<NAME>a &lt; b<")),
    "a strange parent": (parse_xmlbif, XML.replace("<GIVEN>a &lt; b<", "<GIVEN>q<")),
    "no definition": (parse_xmlbif, XML.replace("<FOR>a &lt; b</FOR>", "<FOR>c</FOR>")),
    "a cycle": (
        parse_xmlbif,
        XML.replace("</FOR><TABLE>0.25", "</FOR><GIVEN>c</GIVEN><TABLE>0.2 0.1 0.25"),
    ),
    "a noisy gate": (parse_xdsl, XDSL.replace("deterministic", "noisyadder")),
    "a noisy gate without parameters": (parse_xdsl, XDSL.replace("deterministic", "noisymax")),
    "two networks": (parse_xmlbif, XML.replace("</NETWORK>", "</NETWORK><NETWORK></NETWORK>")),
    "a dynamic network": (parse_xdsl, XDSL.replace("<extensions>", "<dynamic/><extensions>")),
    "two words": (parse_xdsl, XDSL.replace('"wet"', '"w t"')),
    "no result": (parse_xdsl, XDSL.replace(">dry wet", ">dry damp")),
    "few results": (parse_xdsl, XDSL.replace(">dry wet", ">dry")),
    "no probabilities": (parse_xdsl, XDSL.replace("0.75 0.25", "")),
    "a child that is its parent": (parse_xdsl, XDSL.replace(">rain tap<", ">rain lawn<")),
    "a global function": (parse_wcsp, WCSP.replace("1 2 5 1\n 0 0", "2 0 1 -1 salldiff var 0")),
    "few numbers": (parse_wcsp, WCSP[:-4]),
    "many numbers": (parse_wcsp, WCSP + "1"),
    "a state": (parse_wcsp, WCSP.replace("2 0 7", "3 0 7")),
    "a shared function": (parse_wcsp, WCSP.replace("1 2 5 1", "-1 2 5 1")),
    "huge tables": (parse_wcsp, "x 3 9999 1 9\n999 999 999\n3 0 1 2 0 0\n"),
    "no JSON": (parse_cfn, CFN[:-1]),
    "deep JSON": (parse_cfn, "[" * 100_000),
    "NaN": (parse_cfn, CFN.replace("1.125", "NaN")),
    "infinity": (parse_cfn, CFN.replace("1.125", "1e999")),
    "a bound": (parse_cfn, CFN.replace("<12.5", "12.5")),
    "a name": (parse_cfn, CFN.replace('["b"]', '["q"]')),
    "few costs": (parse_cfn, CFN.replace("1.125, ", "")),
    "a global": (parse_cfn, CFN.replace('"costs": [-3]', '"type": "salldiff"')),
    "a name twice": (parse_cfn, CFN.replace('"b": 3', '"a": 3')),
}


@pytest.mark.parametrize("what", BROKEN)
def test_what_does_not_fit_is_refused_in_a_line(what):
    parse, text = BROKEN[what]
    with pytest.raises(FileFormatError) as caught:
        parse(text)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 600


def test_what_cannot_be_written_is_refused_in_a_line():
    x = rg.Variable("x ", 2)
    graph = rg.FactorGraph.bayesian_network([(x, (), [0.5, 0.5])])
    for form in (format_xmlbif, format_wcsp):
        with pytest.raises(UnsupportedError) as caught:
            form(graph)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("form", ["bif", "xmlbif", "xdsl", "cfn"])
@pytest.mark.parametrize("name", ["bell\x07", "delete\x7f", "half\ud800"])
def test_names_of_no_text_are_refused_in_a_line_or_read_again(form, name, tmp_path):
    graph = rg.FactorGraph.bayesian_network([(rg.Variable(name, 2), (), [0.25, 0.75])])
    path = tmp_path / f"m.{form}"
    if form == "cfn" and name.isascii():
        rg.write(graph, path)
        assert [variable.name for variable in rg.read(path).variables] == [name]
        return
    with pytest.raises(UnsupportedError, match="Rename it") as caught:
        rg.write(graph, path)
    assert "\n" not in str(caught.value)
    assert not path.exists()


def test_pyagrum_is_given_text():
    pytest.importorskip("pyagrum")
    graph = rg.FactorGraph([], variables=[rg.Variable("x", ("a", "half\ud800"))])
    with pytest.raises(UnsupportedError, match="UTF-8"):
        rg.to_pyagrum(graph)
