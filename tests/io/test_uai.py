"""UAI models: what is read, what is written, what is refused."""

import gzip
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from rdpgraph import (
    Factor,
    FactorBlock,
    FactorGraph,
    Table,
    Variable,
    VariableArray,
    infer,
    read,
    write,
)
from rdpgraph.errors import UnsupportedError
from tests.io.helpers import assignments, graphs, networks, of_format, refused, same_graph

parse_uai, format_uai = of_format(".uai")

SMALL = "MARKOV\n3\n2 3 2\n3\n1 2\n2 0 1\n2 2 1\n2 1 4\n6 1 2 3 4 5 6\n6 .5 1e-1 2E0 7 8. 0\n"


def reference(text):
    """Scopes and flat tables of a UAI text, one token after the other."""
    words = iter(text.split())
    next(words)
    sizes = [int(next(words)) for _ in range(int(next(words)))]
    scopes = [[int(next(words)) for _ in range(int(next(words)))] for _ in range(int(next(words)))]
    tables = [[float(next(words)) for _ in range(int(next(words)))] for _ in scopes]
    return sizes, scopes, tables


def reference_score(text, states):
    """The log-value of an assignment by the definition: the last variable is the fastest."""
    sizes, scopes, tables = reference(text)
    total = 0.0
    for scope, table in zip(scopes, tables, strict=True):
        place = 0
        for variable in scope:
            place = place * sizes[variable] + states[variable]
        total += math.log(table[place]) if table[place] else -math.inf
    return total


@pytest.mark.parametrize(
    "text",
    [
        SMALL,
        SMALL.replace("MARKOV", "BAYES"),
        "MARKOV 1 2 3 0 1 0 0  1 3.5  2 1 2  1 2",
        "MARKOV 2 1 3 2 2 1 0 2 0 1 3 1 2 3 3 4 5 6",
        "MARKOV 2 2 2 0",
        "MARKOV 0 1 0 1 5",
    ],
)
def test_scores_equal_the_definition(text):
    graph = parse_uai(text)
    for assignment in assignments(graph):
        expected = reference_score(text, list(assignment.values()))
        assert float(graph.score(assignment)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.long
@given(graphs())
@settings(deadline=None)
def test_round_trip(graph):
    same_graph(parse_uai(format_uai(graph)), graph)


@given(graphs(named=True))
@settings(deadline=None)
def test_names_become_numbers(graph):
    again = parse_uai(format_uai(graph))
    same_graph(again, graph, names=False)
    assert [v.name for v in again.variables] == [str(n) for n in range(graph.num_variables)]


@pytest.mark.long
@given(networks())
@settings(deadline=None)
def test_bayes_puts_the_child_last(graph):
    text = format_uai(graph)
    assert text.startswith("BAYES\n")
    sizes, scopes, tables = reference(text)
    assert sorted(scope[-1] for scope in scopes) == list(range(len(sizes)))
    for scope, table in zip(scopes, tables, strict=True):
        np.testing.assert_allclose(np.reshape(table, (-1, sizes[scope[-1]])).sum(1), 1)
    again = parse_uai(text)
    for assignment in assignments(again):
        states = [v.states[s] for v, s in zip(graph.variables, assignment.values(), strict=True)]
        named = dict(zip((v.name for v in graph.variables), states, strict=True))
        torch.testing.assert_close(again.score(assignment), graph.score(named))


@pytest.mark.parametrize("name", ["m.uai", "m.uai.gz"])
def test_files(tmp_path, name):
    graph = parse_uai(SMALL)
    write(graph, tmp_path / name)
    same_graph(read(tmp_path / name), graph)
    assert (tmp_path / name).read_bytes().startswith(b"\x1f\x8b") == name.endswith(".gz")


def test_comments_and_line_ends():
    lines = SMALL.splitlines()
    lines.insert(1, "# a line  MARKOV 7")
    lines.insert(3, "c another 9")
    lines.insert(4, "c")
    lines.insert(5, "// and 3")
    lines[-1] += " # a tail 5 5"
    same_graph(parse_uai("\r\n".join(["# first", *lines])), parse_uai(SMALL))


def test_dtype_follows_the_argument_and_the_log_comes_first():
    graph = parse_uai("MARKOV 1 2 1 1 0 2 1e-200 1", dtype=torch.float32)
    (factor,) = graph.factors()
    assert factor.potential.dtype == torch.float32
    assert float(factor.potential.log_values[0]) == pytest.approx(math.log(1e-200), rel=1e-6)


def test_alike_factors_share_a_block():
    text = "MARKOV 3 2 2 2 4 2 0 1 2 1 2 1 0 2 2 0 " + "4 1 2 3 4 " * 2 + "2 1 2 " + "4 5 6 7 8"
    graph = parse_uai(text)
    assert sorted(block.count for block in graph.blocks) == [1, 3]
    assert all(float(f.potential.log_values.exp().sum()) > 0 for f in graph.factors())


def test_an_all_zero_table_is_read():
    graph = parse_uai("MARKOV 1 2 1 1 0 2 0 0")
    assert float(graph.score({"0": 1})) == -math.inf


def test_arrays_of_variables_are_written():
    pixels = VariableArray("pixel", (2, 2), 2)
    block = FactorBlock((pixels[:, :1], pixels[:, 1:]), Table(torch.randn(2, 2).double()))
    graph = FactorGraph([block])
    same_graph(parse_uai(format_uai(graph)), graph, names=False)


HOSTILE = {
    "empty": ("", "empty"),
    "only a comment": ("# nothing", "empty"),
    "another format": ("network x { }", "MARKOV or BAYES", "'network'"),
    "heading alone": ("MARKOV", "number of variables", "end of the file"),
    "a word": ("MARKOV 2 2 x 0", "token 4", "finite number", "'x'"),
    "nan": ("MARKOV 1 2 1 1 0 2 nan 1", "token 8", "'nan'"),
    "inf": ("MARKOV 1 2 1 1 0 2 1 inf", "token 9", "'inf'"),
    "overflow": ("MARKOV 1 2 1 1 0 2 1 1e999", "token 9", "'1e999'"),
    "underscore": ("MARKOV 1 2 1 1 0 2 1 1_0", "token 9", "'1_0'"),
    "foreign digits": ("MARKOV 1 2 1 1 0 2 1 ٣", "token 9", "finite number"),
    "negative": ("MARKOV 1 2\n1\n1 0\n2\n1 -1", "line 5, token 9", ">= 0", "factor 0", "'-1'"),
    "no variables' number": ("MARKOV -1", "token 2", "'-1'"),
    "half a variable": ("MARKOV 1.5 2 2 0", "token 2", "'1.5'"),
    "more variables than tokens": ("MARKOV 1000000000000 2 2", "token 2", "1000000000000"),
    "no states": ("MARKOV 2 2 0 0", "token 4", "states >= 1", "'0'"),
    "huge cardinality": ("MARKOV 2 2 1000000000 0", "token 4", "states", "'1000000000'"),
    "huge table": ("MARKOV 2 1000000 1000000 1 2 0 1 4 1 2 3 4", "token 9", "1000000000000", "'4'"),
    "lying table": (
        "MARKOV 3 1000000 1000000 9 1 3 0 1 2 9000000000000 1",
        "9000000000000 values of factor 0",
    ),
    "endless table": ("MARKOV 1 1048576 1 60 " + "0 " * 60, "scope does not hold yet"),
    "huge product": (
        "MARKOV 60 " + "1048576 " * 60 + "1 60 " + " ".join(map(str, range(60))) + " 5 1",
        "factor 0's table",
    ),
    "more factors than tokens": ("MARKOV 1 2 1000000000000 1 0 2 1 1", "token 4", "factors"),
    "factors missing": ("MARKOV 1 2", "number of factors", "end of the file"),
    "scope too long": ("MARKOV 1 2 1 61 0 0 0", "token 5", "up to 60", "'61'"),
    "scope cut": ("MARKOV 1 2 1 2 0", "end of the file"),
    "unknown variable": ("MARKOV 2 2 2 1 2 0 2 4 1 1 1 1", "token 8", "0 to 1", "'2'"),
    "negative variable": ("MARKOV 2 2 2 1 2 0 -1 4 1 1 1 1", "token 8", "'-1'"),
    "repeated variable": ("MARKOV 2 2 2 1 2 1 1 4 1 1 1 1", "token 8", "hold yet", "'1'"),
    "short table": ("MARKOV 2 2 2 1 2 0 1 3 1 1 1", "token 9", "4 of factor 0's table", "'3'"),
    "cut table": ("MARKOV 2 2 2 1 2 0 1 4 1 1 1", "token 13", "4 values of factor 0", "end"),
    "no table": ("MARKOV 2 2 2 1 2 0 1", "token 9", "end of the file"),
    "left over": ("MARKOV 1 2 1 1 0 2 1 1 7", "token 10", "end of the file after 1", "'7'"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_refused(case):
    text, *fragments = HOSTILE[case]
    refused(lambda: parse_uai(text, source="bad.uai"), "bad.uai: ", *fragments)


def test_the_line_counts_comments():
    text = "# one\nMARKOV\n# two\n1 2\n1\n1 0\n2 1 x"
    refused(lambda: parse_uai(text), "line 7, token 9", "'x'")


def test_every_cut_is_refused():
    """No proper prefix of the tokens is a model: none is taken for one."""
    words = SMALL.split()
    for count in range(len(words)):
        refused(lambda count=count: parse_uai(" ".join(words[:count])))


@pytest.mark.parametrize("log_value", [800.0, -800.0])
def test_log_values_outside_a_float_are_not_written(log_value):
    a = Variable("a", 2)
    graph = FactorGraph([Factor((a,), Table(torch.tensor([0.0, log_value])))])
    with pytest.raises(UnsupportedError, match=r"a.*Subtract"):
        format_uai(graph)


def test_what_a_file_cannot_hold_is_not_written():
    a = Variable("a", 2)
    unary = Factor((a,), Table(torch.zeros(2)))
    with pytest.raises(UnsupportedError, match="batch of shape"):
        format_uai(FactorGraph([Factor((a,), Table(torch.zeros(3, 2)))]))
    with pytest.raises(UnsupportedError, match="condition"):
        format_uai(FactorGraph([unary]).condition({"a": 1}))
    assert format_uai(FactorGraph([unary])).startswith("MARKOV\n")  # not a conditional table


@pytest.mark.long
def test_the_competition_models(shared_data):
    for path in sorted((shared_data / "uai2014").glob("*/*.uai.gz"))[::4]:
        text = gzip.decompress(path.read_bytes()).decode()
        graph = read(path)
        sizes, scopes, tables = reference(text)
        assert graph.domain.sizes.tolist() == sizes
        assert graph.num_factors == sum(map(bool, scopes)) + any(not scope for scope in scopes)
        states = [(7 * n + 3) % size for n, size in enumerate(sizes)]
        expected = reference_score(text, states)
        score = graph.score({str(n): state for n, state in enumerate(states)})
        assert float(score) == pytest.approx(expected, rel=1e-9)
        cells = [len(table) for scope, table in zip(scopes, tables, strict=True) if scope]
        assert sum(cells) == sum(b.count * math.prod(b.sizes) for b in graph.blocks if b.arity)


@pytest.mark.long
def test_a_graph_of_many_answers_by_name_and_by_variable():
    count = 1_500
    pairs = "".join(f"2 {n} {n + 1} " for n in range(count - 1))
    text = f"MARKOV {count} {'2 ' * count}{count - 1} {pairs}" + "4 2 1 1 2 " * (count - 1)
    graph = parse_uai(text)
    posterior = infer(graph.condition({"0": 1}))
    near = torch.tensor([1 / 3, 2 / 3], dtype=torch.float64)
    torch.testing.assert_close(posterior.marginal("1"), near)
    torch.testing.assert_close(posterior.marginal(graph.variables[1]), near)
    torch.testing.assert_close(posterior.marginals()[graph.variables[1]], near)
    assert int(posterior.mode()[graph["1499"]]) == 1
