"""Every command and option, and every way to get them wrong."""

import gzip
import io
import itertools
import json
import math
import random
import signal
import sys
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

import rdpgraph as rg
from rdpgraph.cli import answers, solving
from rdpgraph.cli.app import app
from rdpgraph.cli.loading import load
from rdpgraph.cli.options import Format, Task
from rdpgraph.errors import ModelError
from rdpgraph.plan import clock
from rdpgraph.recurrences.executor import LIBRARY

ASIA = str(Path(__file__).parents[2] / "examples" / "asia.bif")


@pytest.fixture
def grid(tmp_path):
    """A 14 x 14 grid in a file."""
    table = torch.tensor([[2.0, 1.0], [1.0, 2.0]], dtype=torch.float64)
    variables = {i: rg.Variable(f"x{i}", 2) for i in range(196)}
    pairs = [(i, i + 1) for i in range(196) if (i + 1) % 14] + [(i, i + 14) for i in range(182)]
    factors = [
        rg.Factor((variables[a], variables[b]), rg.Table.from_probabilities(table))
        for a, b in pairs
    ]
    path = tmp_path / "grid.uai"
    rg.write(rg.FactorGraph(factors), path)
    return path


def posterior(**evidence):
    return rg.infer(rg.read(ASIA).condition(evidence))


def test_marginals_as_json_are_the_library_s(run):
    code, out, _ = run("infer", ASIA, "--set", "dysp=yes", "--set", "asia=yes", "--format", "json")
    assert code == 0
    answer = json.loads(out)
    truth = posterior(dysp="yes", asia="yes")
    assert answer["exact"] is True
    assert answer["log_partition"] == pytest.approx(float(truth.log_partition))
    for variable, values in truth.marginals().items():
        assert list(answer["marginals"][variable.name].values()) == pytest.approx(values.tolist())


def test_rows_of_comma_separated_values_are_evidence(run, tmp_path):
    pytest.importorskip("pandas")
    (tmp_path / "rows.csv").write_text("smoke,dysp\nno,yes\n?,no\nyes,\n")
    code, out, _ = run("infer", ASIA, "--evidence", tmp_path / "rows.csv", "--format", "json")
    assert code == 0
    given = {"smoke": "no", "dysp": "yes"}, {"dysp": "no"}, {"smoke": "yes"}
    for row, evidence in zip(json.loads(out)["rows"], given, strict=True):
        truth = posterior(**evidence)
        assert row["log_partition"] == pytest.approx(float(truth.log_partition))
        assert row["marginals"]["lung"]["yes"] == pytest.approx(float(truth.marginal("lung")[0]))
    (tmp_path / "rows.csv").write_text("smoke\nno\nmaybe\n")
    code, _, err = run("infer", ASIA, "--evidence", tmp_path / "rows.csv")
    assert code == 1
    assert "'smoke' has no state 'maybe'" in err


IMPOSSIBLE = {"tub": "yes", "either": "no"}


@pytest.mark.parametrize(
    ("method", "task"),
    [(method, task) for method in ("auto", "loopy") for task in ("PR", "MAR", "MAP")]
    + [("auto", "MMAP")],
)
def test_an_impossible_row_says_so_and_the_others_are_answered(run, tmp_path, method, task):
    given = {"tub": "yes", "either": "yes"}, IMPOSSIBLE, {"tub": "no", "either": "no"}
    (tmp_path / "rows.csv").write_text("tub,either\nyes,yes\nyes,no\nno,no\n")
    asked = ("infer", ASIA, "--evidence", tmp_path / "rows.csv", "--task", task, "--method", method)
    asked += ("--query", "lung", "--query", "xray") if task == "MMAP" else ()
    code, out, err = run(*asked, "--format", "json")
    assert code == 0
    rows = json.loads(out)["rows"]
    assert [row.get("impossible", False) for row in rows] == [False, True, False]
    assert "marginals" not in rows[1]
    assert "assignment" not in rows[1]
    assert ("1 of 3 rows of evidence have no answer (1)" in err) == (task != "PR")
    for row, evidence in (pair for pair in zip(rows, given, strict=True) if pair[0] is not rows[1]):
        truth = posterior(**evidence)
        assert row["log_partition"] == pytest.approx(float(truth.log_partition))
        if task == "MAR":
            for name, values in row["marginals"].items():
                assert list(values.values()) == pytest.approx(truth.marginal(name).tolist())
        elif task == "MAP":
            assert row["log_score"] == pytest.approx(float(truth.graph.score(truth.mode())))
            assert float(truth.graph.score(row["assignment"])) == pytest.approx(row["log_score"])
        elif task == "MMAP":
            assert row["assignment"] == truth.graph.state_names(
                truth.marginal_mode(["lung", "xray"])
            )
    told = run(*asked)[1]
    assert told.split("evidence row ")[2].startswith("1\nThe evidence has probability zero\n")
    assert "nan" not in told


@pytest.mark.parametrize("task", ["PR", "MAR", "MAP"])
def test_a_batch_of_one_impossible_row_is_a_batch(run, tmp_path, task):
    (tmp_path / "rows.csv").write_text("tub,either\nyes,no\n")
    asked = ("infer", ASIA, "--evidence", tmp_path / "rows.csv", "--task", task)
    code, out, _ = run(*asked, "--json")
    assert (code, json.loads(out)["impossible"]) == (0, True)
    if task != "PR":  # a format that cannot say so
        code, out, err = run(*asked, "--format", "uai")
        assert (code, out) == (1, "")
        assert "probability zero" in err


def test_log_z_of_what_is_impossible_is_an_answer(run, tmp_path):
    settings = [f"--set={name}={state}" for name, state in IMPOSSIBLE.items()]
    assert run("infer", ASIA, *settings, "--task", "PR", "--format", "uai") == (0, "PR\n-inf\n", "")
    code, out, err = run("infer", ASIA, *settings, "--task", "PR")
    assert (code, err) == (0, "")
    assert out.startswith("The evidence has probability zero\nlog Z = -inf nats, log10 Z = -inf\n")
    body = json.loads(run("infer", ASIA, *settings, "--task", "PR", "--json")[1])
    assert (body["log_partition"], body["impossible"]) == (None, True)
    for task in ("MAR", "MAP"):
        code, out, err = run("infer", ASIA, *settings, "--task", task)
        assert (code, out) == (1, "")
        assert "probability zero" in err
    unsatisfiable = tmp_path / "model.cnf"
    unsatisfiable.write_text("p cnf 1 2\n1 0\n-1 0\n")
    assert "The model has probability zero" in run("infer", unsatisfiable, "--task", "PR")[1]


NAMES_WITH_EQUALS = """network x {
}
variable age { type discrete [ 2 ] { "<=30", ">30" }; }
variable "b=c" { type discrete [ 2 ] { "x=1", "x:2,y" }; }
variable b { type discrete [ 2 ] { "c=x=1", "other" }; }
probability ( age ) { table 0.2, 0.8; }
probability ( "b=c" | age ) { ("<=30") 0.1, 0.9; (">30") 0.5, 0.5; }
probability ( b ) { table 0.5, 0.5; }
"""


@pytest.fixture
def equals(tmp_path):
    """A model whose names hold equals signs, colons and commas."""
    (tmp_path / "equals.bif").write_text(NAMES_WITH_EQUALS)
    return tmp_path / "equals.bif"


def test_settings_are_split_where_the_names_say(run, equals):
    graph = rg.read(equals)
    for setting, evidence in (
        ("age=<=30", {"age": "<=30"}), ("age=>30", {"age": ">30"}),
        ("b=c=x:2,y", {"b=c": "x:2,y"}), ("b=other", {"b": "other"}),
    ):  # fmt: skip
        answer = json.loads(run("infer", equals, "--set", setting, "--task", "PR", "--json")[1])
        truth = rg.infer(graph.condition(evidence)).log_partition
        assert answer["log_partition"] == pytest.approx(float(truth))
    for setting, code, said in (
        ("b=c=x=1", 1, "can be read as 'c=x=1' of variable 'b' or 'x=1' of variable 'b=c'"),
        ("age=<=31", 1, "Variable 'age' has no state '<=31'; it has '<=30', '>30'"),
        ("agee=<=30", 1, "'agee' is not in this graph; did you mean 'age'"),
        ("=30", 2, "--set needs NAME=STATE"), ("age", 2, "--set needs NAME=STATE"),
    ):  # fmt: skip
        found, _, err = run("infer", equals, "--set", setting)
        assert found == code
        assert said in " ".join(err.replace("│", " ").split())


def test_interventions_and_soft_evidence_are_those_of_the_library(run, equals):
    asia, model = rg.read(ASIA), rg.read(equals)
    for path, options, truth in (
        (ASIA, ("--do", "lung=yes"), asia.do({"lung": "yes"})),
        (ASIA, ("--do", "lung=yes", "--set", "xray=no"),
         asia.do({"lung": "yes"}).condition({"xray": "no"})),
        (equals, ("--do", "b=c=x:2,y", "--do", "b=other"),
         model.do({"b=c": "x:2,y", "b": "other"})),
        (equals, ("--soft", "b=c=x=1:.7,x:2,y:.3"), model.with_factors(rg.Factor(
            model["b=c"], rg.Table.from_probabilities([0.7, 0.3])))),
        (equals, ("--soft", "b=c=x:2,y:0,x=1:4"), model.with_factors(rg.Factor(
            model["b=c"], rg.Table.from_probabilities([4.0, 0.0])))),
    ):  # fmt: skip
        answer = json.loads(run("infer", path, *options, "--json")[1])
        known = rg.infer(truth)
        assert answer["log_partition"] == pytest.approx(float(known.log_partition), abs=1e-6)
        for name, values in answer["marginals"].items():
            assert list(values.values()) == pytest.approx(known.marginal(name).tolist(), abs=1e-6)
    assert {
        line.split(",")[2]
        for line in run("sample", ASIA, "-n", 9, "--do", "smoke=yes")[1].split()[1:]
    } == {"yes"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--soft", "smoke=yes:1"), "a weight >= 0 for each state of 'smoke', and one above 0, as "
         "yes:WEIGHT,no:WEIGHT; got 'yes:1'"),
        (("--soft", "smoke=yes:1,no:-1"), "a weight >= 0"),
        (("--soft", "smoke=yes:0,no:0"), "and one above 0"),
        (("--soft", "smoke=yes:1,no:1,"), "a weight >= 0"),
        (("--soft", "smoke=yes:1,no:nan"), "a weight >= 0"),
        (("--soft", "snow=yes:1,no:1"), "'snow' is not in this graph"),
        (("--do", "smoke=maybe"), "'smoke' has no state 'maybe'"),
        (("--do", "smoke=yes", "--do", "smoke=no"), "--do sets 'smoke' to two states"),
    ],
)  # fmt: skip
def test_interventions_and_soft_evidence_that_do_not_fit(run, options, message):
    code, _, err = run("infer", ASIA, *options)
    assert code == 1
    assert message in err


def test_interventions_need_a_bayesian_network(run, grid):
    code, _, err = run("infer", grid, "--do", "0=1")
    assert code == 1
    assert err.startswith("Error: --do needs a Bayesian network.")


@pytest.mark.parametrize(
    ("name", "text", "log_z"),
    [
        ("m.uai", "MARKOV 0 0", 0.0), ("m.uai", "MARKOV\r\n0\r\n\r\n1\r\n0\r\n1\r\n5", math.log(5)),
        ("m.wcsp", "m 0 0 0 1\n", 0.0),
        ("m.cfn", '{"problem": {"mustbe": "<1"}, "variables": {}, "functions": {}}', 0.0),
        ("m.cnf", "p cnf 0 0\n", 0.0), ("m.bif", "network unknown {\n}\n", 0.0),
        ("m.xmlbif", "<BIF><NETWORK/></BIF>", 0.0), ("m.xdsl", "<smile><nodes/></smile>", 0.0),
    ],
)  # fmt: skip
def test_a_model_without_variables_is_a_constant(run, tmp_path, name, text, log_z):
    model = tmp_path / name
    model.write_text(text, newline="")
    for task in ("PR", "MAR", "MAP"):
        code, out, _ = run("infer", model, "--task", task, "--json")
        assert (code, json.loads(out)["log_partition"]) == (0, pytest.approx(log_z))
    assert run("infer", model)[0] == 0
    assert run("sample", model) == (1, "", f"Error: {model}: the model has no variable to draw.\n")


@pytest.mark.parametrize("log_z", [0.0, math.log(5)])
def test_a_constant_is_written_in_every_format_that_can_say_it(run, tmp_path, log_z):
    model = tmp_path / "m.uai"
    model.write_text("MARKOV 0 1 0 1 5" if log_z else "MARKOV 0 0")
    for target in ("n.bif", "n.xmlbif", "n.xdsl", "n.cnf", "n.uai", "n.wcsp", "n.cfn"):
        code, _, err = run("convert", model, tmp_path / target)
        if log_z and target not in ("n.uai", "n.cfn"):  # the others cannot say a constant
            assert code == 1, target
            assert err.startswith("Error: ")
            assert not (tmp_path / target).exists()
        else:
            assert code == 0
            again = rg.read(tmp_path / target)
            assert (again.num_variables, again.dtype) == (0, torch.float64)
            assert rg.infer(again).log_partition.item() == pytest.approx(log_z)


def test_draws_without_a_seed_differ(run):
    asked = ("sample", ASIA, "-n", 60)
    assert run(*asked)[1] != run(*asked)[1]
    assert run(*asked, "--seed", 3)[1] == run(*asked, "--seed", 3)[1]


def test_the_competition_format(run, tmp_path):
    target = tmp_path / "asia.MAR"
    assert run("infer", ASIA, "--format", "uai", "--output", target, "--set", "tub=yes")[0] == 0
    tokens = target.read_text().split()
    assert tokens[:3] == ["MAR", "8", "2"]
    assert len(tokens) == 2 + 8 * 3
    values = [v for m in posterior(tub="yes").marginals().values() for v in m.tolist()]
    read = [float(tokens[2 + 3 * i + j]) for i in range(8) for j in (1, 2)]
    assert read == pytest.approx(values)
    code, out, _ = run("infer", ASIA, "--task", "PR", "--format", "uai", "--set", "tub=yes")
    assert code == 0
    assert float(out.split()[1]) == pytest.approx(math.log10(0.0104))
    code, out, _ = run("infer", ASIA, "--task", "MAP", "--format", "uai")
    states = [int(s) for s in posterior().mode().values()]
    assert out.split() == ["MPE", "8", *map(str, states)]
    code, out, _ = run("infer", ASIA, "--task", "MMAP", "--query", "lung", "--format", "uai")
    assert code == 0
    assert out.split() == ["MMAP", "1", "3", "1"]


def test_a_query_file_names_the_variables(run, tmp_path):
    query = tmp_path / "asia.query"
    query.write_text("2 3 0\n")
    asked = ("infer", ASIA, "--task", "MMAP", "--format", "uai")
    code, out, _ = run(*asked, "--query", str(query))
    assert code == 0
    assert out == run(*asked, "--query", "lung", "--query", "asia")[1]
    query.write_text("2 3 99\n")
    code, _, err = run(*asked, "--query", str(query))
    assert code == 1
    assert "variable 99" in err


@pytest.mark.long
def test_configurations_say_whether_they_are_the_best(run, tmp_path):
    for task, query in (("MAP", ()), ("MMAP", ("--query", "lung", "--query", "asia"))):
        found = json.loads(run("infer", ASIA, "--task", task, *query, "--format", "json")[1])
        assert found["optimal"] is True
        assert found["log_score"] == pytest.approx(found["score_bound"])
    generator = random.Random(0)
    side, lines = 10, []
    pairs = [(i, i + 1) for i in range(side * side) if (i + 1) % side]
    pairs += [(i, i + side) for i in range(side * (side - 1))]
    values = [[repr(math.exp(3 * generator.gauss(0, 1))) for _ in range(4)] for _ in pairs]
    lines = ["MARKOV", str(side * side), " ".join("2" for _ in range(side * side)), str(len(pairs))]
    lines += [f"2 {a} {b}" for a, b in pairs] + [f"4 {' '.join(row)}" for row in values]
    path = tmp_path / "grid.uai"
    path.write_text("\n".join(lines))
    asked = ("infer", str(path), "--task", "MAP", "--memory", "2kB", "--time", "0.5s")
    said = json.loads(run(*asked, "--format", "json")[1])
    if not said["optimal"] and "score_bound" in said:  # else the time was over
        assert said["score_bound"] >= said["log_score"]
    told = run(*asked)[1]
    if "there may be better ones" in told and "log Z is not known" not in told:
        assert "is better by more than" in told
    exact = json.loads(run("infer", str(path), "--task", "MAP", "--format", "json")[1])
    assert exact["optimal"] is True
    assert said["log_score"] <= exact["log_score"] + 1e-6
    asked = ("infer", str(path), "--task", "MMAP", *(f"--query={i}" for i in range(0, 100, 9)))
    limits = ("--memory", "2kB", "--time", "0.5s")
    said, sure = (
        json.loads(run(*asked, *more, "--format", "json")[1])
        for more in (limits, ("--time", "60s"))
    )
    assert sure["optimal"] is True
    assert said["log_score"] <= sure["log_score"] + 1e-6 <= said["score_bound"] + 2e-6
    if said["log_partition"] is not None:  # as it is where the time is over
        assert said["lower_bound"] <= sure["log10_partition"] * math.log(10) <= said["upper_bound"]
    if "confidence" in said:
        assert said["lower_bound"] <= said["confidence_lower"]
        assert said["confidence_lower"] <= said["confidence_upper"] <= said["upper_bound"]
    told = run(*asked, *limits)[1]
    assert "log-score" in told
    if "there may be better ones" in told:
        assert "is better by more than" in told


def test_tables_for_people(run):
    code, out, _ = run("infer", ASIA, "--query", "lung")
    assert code == 0
    assert "0.055000" in out
    assert "exact" in out
    assert "bronc" not in out
    code, out, _ = run("infer", ASIA, "--task", "MAP")
    assert code == 0
    assert "log-score" in out
    code, out, _ = run("infer", ASIA, "--task", "PR")
    assert code == 0
    assert "log Z = 0.000000 nats" in out


@pytest.mark.parametrize(("ends", "shown"), [((-1.0, 1.0), True), ((-2.0, 2.0), False)])
def test_an_interval_is_shown_where_it_is_not_the_bounds(ends, shown):
    known = answers.answer(posterior(), Task.PR, [])
    told = replace(known, bounds=((-2.0, 2.0),), interval=(ends,))
    body = json.loads(answers.as_text(told, Format.JSON))
    assert (body["lower_bound"], body["upper_bound"]) == (-2.0, 2.0)
    assert ("confidence" in body) == shown
    if shown:
        assert (body["confidence_lower"], body["confidence_upper"]) == ends


@pytest.mark.parametrize("task", [Task.MAP, Task.MAR])
def test_log_z_is_left_out_once_the_time_is_over(task):
    known = posterior(dysp="yes")
    answered = answers.answer(known, task, [], until=-math.inf)
    row = json.loads(answers.as_text(answered, Format.JSON))
    assert row["log_partition"] is None
    assert row["log10_partition"] is None
    whole = json.loads(answers.as_text(answers.answer(known, task, []), Format.JSON))
    assert {**whole, **row} == {**whole, "log_partition": None, "log10_partition": None}
    answers.print_table(answered, Console(file=(shown := io.StringIO())))
    assert "log Z is not known" in shown.getvalue()
    assert "nan" not in shown.getvalue()
    asked = answers.answer(known, Task.PR, [], until=-math.inf)
    assert asked.log_partition == tuple(known.log_partition.reshape(-1).tolist())


@pytest.mark.long
def test_printing_an_answer_begins_no_log_z_that_was_left_out(tmp_path):
    x = rg.VariableArray("x", (5, 5), 3)
    generator = torch.Generator().manual_seed(0)
    blocks = [
        rg.FactorBlock(pair, rg.Table(2.0 * torch.randn(shape, generator=generator)))
        for pair, shape in (
            ((x[1:], x[:-1]), (4, 5, 3, 3)),
            ((x[:, 1:], x[:, :-1]), (5, 4, 3, 3)),
        )
    ]
    rg.write(rg.FactorGraph(blocks), tmp_path / "grid.uai")
    told = list[object]()
    scheduler = rg.Auto(memory=5000, seconds=2.0, progress=told.append)
    known = rg.infer(rg.read(tmp_path / "grid.uai"), scheduler)
    answered = answers.answer(known, Task.MAP, [], until=-math.inf)
    answers.as_text(answered, Format.JSON)
    answers.print_table(answered, Console(file=io.StringIO()))
    assert not any("populations" in str(step) for step in told)
    assert "log Z" not in answered.status.method
    _ = known.log_partition
    assert any("populations" in str(step) for step in told)


def test_evidence_files_and_rows(run, tmp_path):
    one, rows = tmp_path / "one.evid", tmp_path / "rows.evid"
    one.write_text("1 1 0\n")
    rows.write_text("2\n1 1 0\n1 2 1\n")
    assert json.loads(run("infer", ASIA, "--evidence", one, "--format", "json")[1])[
        "log_partition"
    ] == pytest.approx(math.log(0.0104))
    answer = json.loads(run("infer", ASIA, "--evidence", rows, "--format", "json")[1])
    assert [row["log_partition"] for row in answer["rows"]] == pytest.approx(
        [math.log(0.0104), math.log(0.5)]
    )
    code, _, err = run("infer", ASIA, "--evidence", rows, "--format", "uai")
    assert code == 1
    assert "one evidence row" in err


def test_rows_of_evidence_are_read_together(run, tmp_path):
    """No function is called for each of them, and what they would take is refused before."""
    made = []
    for count in (300, 3000):
        rows = tmp_path / f"{count}.evid"
        rows.write_text(f"{count}\n" + "1 1 0\n2 2 1 0 0\n" * (count // 2))
        made.append(0)

        def count_calls(_, event, __, made=made):
            made[-1] += event == "call"

        before = sys.getprofile()
        sys.setprofile(count_calls)
        try:
            graph = load(Path(ASIA), rows, limit=None, wait=60.0)
        finally:
            sys.setprofile(before)
        assert graph.batch_shape == (count,)
    assert made[1] < made[0] + 1000
    model = tmp_path / "long.uai"
    model.write_text(f"MARKOV\n2000\n{'2 ' * 2000}\n0\n")
    code, _, error = run("infer", model, "--evidence", rows, "--memory", "100MB", "--task", "PR")
    assert code == 1
    assert "3,000 rows of evidence on 2,000 variables would take 144 MB" in error


def test_answers_of_rows_ask_for_error_bars_once(run, wide, tmp_path, monkeypatch):
    asked, rows = [], tmp_path / "rows.evid"
    rows.write_text("3  1 0 1  1 0 2  0")
    monkeypatch.setattr(
        rg.Posterior, "standard_error", property(lambda own: asked.append(own) or torch.ones(3))
    )
    options = ("--estimator", "randomized", "--replicates", 2, "--seed", 0, "--task", "PR")
    code, text, _ = run("infer", wide, "--evidence", rows, *options, "--format", "json")
    assert code == 0
    assert [row["standard_error"] == 1 for row in json.loads(text)["rows"]] == [True] * 3
    assert len(asked) == 1


def test_states_that_are_named_by_numbers(run, tmp_path):
    model, seen = tmp_path / "faces.bif", tmp_path / "seen.evid"
    model.write_text(
        "variable x { type discrete [3] { 1, 2, 3 }; }\nprobability (x) { table 0.5, 0.3, 0.2; }\n"
    )
    seen.write_text("1 0 2\n")  # such files number the states

    def mass(*arguments):
        answer = json.loads(run("infer", model, *arguments, "--format", "json")[1])
        return math.exp(answer["log_partition"])

    assert mass("--set", "x=2") == pytest.approx(0.3)
    assert mass("--evidence", seen) == pytest.approx(0.2)
    code, _, err = run("infer", model, "--set", "x=0")
    assert code == 1
    assert "'x' has no state '0'; it has '1', '2', '3'" in " ".join(err.split())


@pytest.mark.long
def test_tests_are_ranked_as_by_the_library(run, tmp_path):
    code, out, _ = run("rank", ASIA, "lung", "--set", "dysp=yes", "--json")
    assert code == 0
    told, about = json.loads(out), posterior(dysp="yes").information_about("lung")
    expected = [(name, nats) for name, nats in about.ranked() if name not in ("lung", "dysp")]
    assert list(told["information"]) == [name for name, _ in expected]
    assert list(told["information"].values()) == pytest.approx([nats for _, nats in expected])
    assert told["exact"]
    assert told["entropy"] == pytest.approx(float(about["lung"]))
    code, out, _ = run("rank", ASIA, "lung", "--query", "xray", "--query", "smoke")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == ["lung", "xray", "smoke"]
    rows = tmp_path / "rows.csv"
    rows.write_text("dysp\nyes\nno\n")
    for wrong, message in (
        (("lung", "--set", "lung=yes"), "'lung' is observed"),
        (("lung", "--query", "dysp", "--set", "dysp=yes"), "'dysp' is observed"),
        (("snow",), "'snow' is not in this graph"),
        (("lung", "--query", "snow"), "'snow' is not in this graph"),
        (("lung", "--evidence", rows), "got 2 rows"),
        (("lung", "--set", "either=no", "--set", "tub=yes"), "probability zero"),
    ):
        code, out, err = run("rank", ASIA, *wrong)
        assert (code, out) == (1, "")
        assert message in err
        assert err.count("\n") == 1


def test_explain_convert_draw(run, tmp_path):
    code, out, _ = run("explain", ASIA)
    assert code == 0
    assert out.startswith("Plan: ")
    target = tmp_path / "asia.uai.gz"
    assert run("convert", ASIA, target)[0] == 0
    assert gzip.decompress(target.read_bytes()).split()[0] in (b"MARKOV", b"BAYES")
    assert float(rg.infer(rg.read(target)).log_partition) == pytest.approx(0.0, abs=1e-12)
    pytest.importorskip("matplotlib")
    picture = tmp_path / "asia.png"
    assert run("draw", ASIA, "-o", picture, "--set", "lung=yes")[0] == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


@pytest.mark.long
def test_a_picture_replaces_its_file_as_answers_do(run, tmp_path):
    pytest.importorskip("matplotlib")
    (tmp_path / "real.png").touch(mode=0o600)
    (tmp_path / "link.png").symlink_to("real.png")
    assert run("draw", ASIA, "-o", tmp_path / "link.png", "--no-marginals")[0] == 0
    assert (tmp_path / "link.png").is_symlink()
    assert (tmp_path / "real.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "real.png").stat().st_mode & 0o777 == 0o600


def forbidden(*_, **__):
    raise AssertionError("nothing runs before what was asked is checked")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["infer", "MODEL", "--output", "MODEL"], "is an input"),
        (["infer", "MODEL", "--output", "LINK"], "is an input"),
        (["infer", ASIA, "--evidence", "MODEL", "--output", "MODEL"], "is an input"),
        (["convert", "MODEL", "MODEL"], "is an input"),
        (["infer", "MODEL", "--output", "no/such/folder/x"], "No such file"),
        (["infer", "MODEL", "--output", "MODEL/x"], "Not a directory"),
        (["infer", "MODEL", "--output", "."], "Is a directory"),
        (["draw", "MODEL", "-o", "no/such/folder/x.png"], "No such file"),
        (["draw", "MODEL", "-o", "x.txt"], "name of a picture"),
        (["convert", "MODEL", "x.txt"], ".uai or .bif"),
    ],
)
def test_where_answers_go_is_checked_before_anything_is_read(
    run, tmp_path, monkeypatch, arguments, message
):
    monkeypatch.setattr("rdpgraph.cli.loading.read", forbidden)
    model, link = write(tmp_path / "m.bif", Path(ASIA).read_text()), tmp_path / "link.bif"
    link.symlink_to(model)
    names = [a.replace("MODEL", str(model)).replace("LINK", str(link)) for a in arguments]
    code, out, err = run(*names)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert message in err
    assert model.read_text() == Path(ASIA).read_text()


def test_an_unknown_query_is_refused_before_anything_is_planned(run, monkeypatch):
    monkeypatch.setattr("rdpgraph.cli.solving.infer", forbidden)
    code, _, err = run("infer", ASIA, "--query", "nobody")
    assert code == 1
    assert "'nobody'" in err


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_limit_of_text_that_can_be_raised(run, tmp_path, pack):
    model = tmp_path / "m.uai"
    model.write_bytes(pack(b"MARKOV 1 2 1 1 0 2 1 3" + b" " * 2000))
    for command in (["infer", model], ["explain", model], ["convert", model, tmp_path / "n.uai"]):
        code, _, err = run(*command, "--limit", "2kB")
        assert (code, err.count("\n")) == (1, 1)
        assert "at most 2000 bytes" in err
        assert run(*command, "--limit", "2KiB")[0] == 0


def write(path, text):
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["infer", "nothing.uai"], "nothing.uai: No such file"),
        (["infer", ASIA, "--set", "nobody=1"], "Variable 'nobody' is not in this graph"),
        (["infer", ASIA, "--set", "lung=perhaps"], "has no state 'perhaps'"),
        (["infer", ASIA, "--set", "lung=7"], "has no state '7'"),
        (["infer", ASIA, "--set", "lung=1234567890123456789"], "has no state"),
        (["infer", ASIA, "--set", "lung=" + "9" * 5000], "has no state"),
        (["infer", ASIA, "--query", "nobody"], "Variable 'nobody' is not in this graph"),
        (
            ["infer", ASIA, "--set", "lung=yes", "--set", "either=no"],
            "evidence has probability zero",
        ),
        (
            ["infer", ASIA, "--method", "loopy", "--sweeps", "0"],
            "sweeps as a whole number of at least 1",
        ),
        (["infer", ASIA, "--evidence", "nothing.evid"], "nothing.evid: No such file"),
        (["infer", ASIA, "--output", "no/such/folder/x", "--format", "uai"], "No such file"),
        (["draw", ASIA, "-o", "picture.exe"], "name of a picture must end in"),
        (["convert", ASIA, "model.docx"], "model.docx"),
    ],
)
def test_bad_input_is_one_line_and_exit_1(run, arguments, message):
    code, out, err = run(*arguments)
    assert code == 1
    assert out == ""
    assert err.startswith("Error: ")
    assert err.count("\n") == 1
    assert message in err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("MARKOV 1 2 1 1 0 2 0.5 nan", "nan"),
        ("MARKOV 1 2 1 1 0 2 0.5 -1", "-1"),
        ("MARKOV 1 2 1 1 0 2 0 0", "model has probability zero"),
        ("MARKOV 1 1000000000 1 1 0 2 1 1", "token"),
        ("MARKOV 2 2 2 1 2 0 1 4 1 1", "token"),
        ("\x00\x01\x02", "broken.uai"),
        ("", "broken.uai"),
    ],
)
def test_broken_files_are_one_line_and_exit_1(run, tmp_path, text, message):
    code, _, err = run("infer", write(tmp_path / "broken.uai", text))
    assert code == 1
    assert err.startswith("Error: ")
    assert err.count("\n") == 1
    assert message in err


@pytest.mark.long
@pytest.mark.parametrize(
    "arguments",
    [
        ["infer"],
        ["infer", ASIA, "--task", "XYZ"],
        ["infer", ASIA, "--memory", "4XB"],
        ["infer", ASIA, "--time", "soon"],
        ["infer", ASIA, "--memory", "1e300GB"],
        ["infer", ASIA, "--memory", "1e400"],
        ["infer", ASIA, "--time", "1e300h"],
        ["infer", ASIA, "--limit", "0"],
        ["infer", ASIA, "--estimator", "randomized", "--replicates", "9" * 20],
        ["infer", ASIA, "--estimator", "randomized", "--keep", "9" * 5000],
        ["infer", ASIA, "--query", "lung", "--format", "uai"],
        ["infer", ASIA, "--query", "lung", "--format", "uai", "--task", "MAP"],
        ["infer", ASIA, "--query", "lung", "--task", "PR"],
        ["infer", ASIA, "--set", "lung"],
        ["infer", ASIA, "--task", "MMAP"],
        ["nonsense"],
    ],
)
def test_wrong_usage_is_exit_2(run, arguments):
    assert run(*arguments)[0] == 2


def test_a_model_too_wide_explains_itself(run, grid, tmp_path):
    target = write(tmp_path / "kept.MAR", "what was there")
    code, out, err = run(
        "infer", grid, "--method", "exact", "--memory", "10kB", "--time", "1ms",
        "--output", target, "--format", "uai",
    )  # fmt: skip
    assert code == 1
    assert out == ""
    assert "width" in err
    assert err.splitlines()[-1].startswith("Error: Exact inference does not fit")
    assert target.read_text() == "what was there"
    assert run("infer", grid, "--task", "PR", "--memory", "1GiB", "--time", "2m")[0] == 0


@pytest.mark.long
def test_auto_answers_a_model_too_wide_and_says_that_it_is_approximate(run, grid):
    code, out, _ = run("infer", grid, "--memory", "10kB", "--time", "2s", "--format", "json")
    assert code == 0
    found = json.loads(out)
    assert not found["exact"]
    assert found["route"] in ("join graph", "loopy")  # as far as a busy machine comes in the time
    assert found["remedy"]
    exact = json.loads(run("infer", grid, "--format", "json")[1])
    assert exact["exact"]
    assert found["log_partition"] == pytest.approx(exact["log_partition"], rel=0.05)


@pytest.mark.parametrize("method", ["loopy", "join"])
def test_message_passing_on_request(run, method):
    arguments = ("infer", ASIA, "--set", "dysp=yes", "--method", method, "--damping", "0.2")
    code, out, _ = run(*arguments, "--sweeps", "200", "--format", "json")
    assert code == 0
    found, exact = json.loads(out), json.loads(run(*arguments[:4], "--format", "json")[1])
    assert found["converged"]
    assert found["exact"] or found["sweeps"] >= 1  # a junction tree needs none
    for name, values in exact["marginals"].items():
        assert found["marginals"][name] == pytest.approx(values, abs=0.05)
    assert found["exact"] or "sweeps" in run(*arguments)[1]
    assert run(*arguments, "--sweeps", "0")[0] == 1
    assert run("infer", ASIA, "--damping", "0.2")[0] == 2


@pytest.fixture
def wide(tmp_path):
    """A chain of four variables with twenty states."""
    generator = torch.Generator().manual_seed(0)
    variables = [rg.Variable(f"x{i}", 20) for i in range(4)]
    factors = [
        rg.Factor((a, b), rg.Table(torch.randn(20, 20, generator=generator, dtype=torch.float64)))
        for a, b in itertools.pairwise(variables)
    ]
    path = tmp_path / "wide.uai"
    rg.write(rg.FactorGraph(factors), path)
    return path


@pytest.mark.long
@pytest.mark.parametrize(
    "proposal", ["default", "uniform", "local", "global", "local-global", "landmark", "pilot"]
)
def test_a_randomized_estimate_with_its_error_bar(run, wide, proposal):
    asked = ("infer", wide, "--estimator", "randomized", "--keep", "40%", "--proposal", proposal)
    asked = (*asked, "--replicates", "16", "--seed", "1")
    code, out, _ = run(*asked, "--format", "json")
    assert code == 0
    found = json.loads(out)
    truth = float(rg.infer(rg.read(wide)).log_partition)
    assert not found["exact"]
    assert found["replicates"] == 16
    assert 1 <= found["effective_sample_size"] <= 16
    assert found["standard_error"] > 0
    assert abs(found["log_partition"] - truth) < 5 * found["standard_error"]
    assert run(*asked, "--format", "json")[1] == out
    code, out, _ = run(*asked, "--task", "PR")
    assert code == 0
    assert f"standard error {found['standard_error']:.2g} nats, from 16 replicates" in out
    assert f"effective sample size {found['effective_sample_size']:.1f}" in out
    assert "estimated on a few states of each variable" in out
    code, out, _ = run(*asked, "--task", "MAP")
    assert code == 0
    assert "need not be the best of all" in out
    code, _, err = run(*asked, "--task", "MMAP", "--query", "0")
    assert code == 1
    assert "Marginal MAP" in err


def test_an_estimate_of_one_replicate_has_no_error_bar(run, wide):
    asked = ("infer", wide, "--estimator", "randomized", "--replicates", "1", "--keep", "5")
    assert "standard error" not in run(*asked)[1]
    assert "standard_error" not in json.loads(run(*asked, "--format", "json")[1])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--keep", "0"], "keep"),
        (["--keep", "150%"], "keep"),
        (["--replicates", "0"], "replicates"),
    ],
)
def test_bad_estimators_are_one_line_and_exit_1(run, arguments, message):
    code, out, err = run("infer", ASIA, "--estimator", "randomized", *arguments)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith("Error: ")
    assert message in err


@pytest.mark.parametrize(
    "arguments",
    [
        ["--estimator", "magic"],
        ["--estimator", "randomized", "--keep", "lots"],
        ["--estimator", "randomized", "--proposal", "nobody"],
        ["--keep", "10%"],
        ["--replicates", "2"],
    ],
)
def test_wrong_estimator_options_are_exit_2(run, arguments):
    assert run("infer", ASIA, *arguments)[0] == 2


def test_a_size_is_a_number_or_a_share(run, wide):
    asked = ("infer", wide, "--estimator", "randomized", "--seed", "3", "--format", "json")
    assert run(*asked, "--keep", "10")[1] == run(*asked, "--keep", "50%")[1]
    assert run(*asked, "--keep", "10")[1] == run(*asked, "--keep", "0.5")[1]


def test_an_estimate_on_which_nothing_is_possible_says_so(run, tmp_path):
    same = torch.full((50, 50), -math.inf, dtype=torch.float64).fill_diagonal_(0.0)
    a, b = rg.Variable("a", 50), rg.Variable("b", 50)
    path = tmp_path / "same.uai"
    rg.write(rg.FactorGraph([rg.Factor((a, b), rg.Table(same))]), path)
    code, _, err = run(
        "infer", path, "--estimator", "randomized", "--keep", "1", "--replicates", "1",
        "--proposal", "uniform", "--seed", "0",
    )  # fmt: skip
    assert code == 1
    assert "larger --keep" in err


def test_version(run):
    code, out, _ = run("--version")
    assert code == 0
    first, second = out.splitlines()
    assert first.startswith("rdpgraph ")
    assert second == f"Structures on the CPU: {LIBRARY.status}"


def test_reading_and_writing_count_as_time(run, monkeypatch):
    given, ticks = [], iter(range(0, 10_000, 7))
    monkeypatch.setattr(clock, "now", lambda: float(next(ticks)))

    def noted(graph, *, scheduler, **options):
        del graph, options
        given.append(scheduler.seconds)
        raise ModelError("noted")

    monkeypatch.setattr(solving, "infer", noted)
    for method in ("auto", "exact", "loopy", "join"):
        assert run("infer", ASIA, "--time", "20s", "--method", method)[0] == 1
    assert len(given) == 4
    assert max(given) < 20.0 - 7.0


def test_models_are_shared_by_the_processes_of_torchrun(run, tmp_path, monkeypatch):
    names = [f"{number}.bif" for number in range(5)]
    for name in names:
        (tmp_path / name).write_text(Path(ASIA).read_text())
    models = [tmp_path / name for name in names]
    asked = ("--task", "MAR", "--set", "tub=yes", "--format", "uai")
    alone = run("infer", ASIA, *asked)[1]
    assert run("infer", *models, *asked)[1] == 5 * alone
    out = tmp_path / "out"
    for rank in range(3):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "3")
        before = set(out.glob("*"))
        assert run("infer", *models, *asked, "--output", out)[0] == 0
        written = {f"{name}.MAR" for name in names[rank::3]}
        assert {path.name for path in set(out.glob("*")) - before} == written
    assert [(out / f"{name}.MAR").read_text() for name in names] == [alone] * 5
    code, _, said = run("infer", *models, *asked)
    assert code == 2
    assert "--output FOLDER" in said
    estimated = ("--method", "loopy", "--estimator", "randomized", "--keep", "2")
    for wrong in ((), estimated):
        code, _, said = run("infer", ASIA, *wrong)
        assert code == 2
        assert "--method loopy" in said


@pytest.mark.parametrize(("rank", "ranks"), [(0, 0), (7, 2), (-1, 2), (0, -3), ("x", 2)])
def test_a_process_that_is_none_of_the_group_is_refused(run, monkeypatch, tmp_path, rank, ranks):
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", str(ranks))
    for models in ((ASIA,), (ASIA, tmp_path / "other.bif")):
        code, out, said = run("infer", *models, "--output", tmp_path / "out")
        assert (code, out) == (2, "")
        assert "RANK must be" in said
    assert not (tmp_path / "out").exists()


def test_several_models_that_cannot_be_told_apart_or_have_one_evidence(run, tmp_path):
    evidence = tmp_path / "evidence"
    evidence.write_text("0")
    for wrong in (
        ("infer", ASIA, ASIA, "--output", tmp_path / "out"),
        ("infer", ASIA, ASIA, "--evidence", evidence),
    ):
        assert run(*wrong)[0] == 2
    shown = run("infer", ASIA, ASIA, "--task", "PR")[1]
    assert shown.count("asia.bif:") == 2


def test_what_goes_wrong_with_one_of_several_models_begins_with_its_name(run, tmp_path):
    other = tmp_path / "other.uai"
    other.write_text("MARKOV\n1\n2\n1\n1 0\n2\n0 0\n")
    for arguments, words in (((), "probability zero"), (("--set", "tub=yes"), "'tub'")):
        code, _, said = run("infer", ASIA, other, "--task", "MAR", *arguments)
        assert code == 1
        assert str(other) in said
        assert words in said
        assert str(other) not in run("infer", other, "--task", "PR", *arguments)[2]


def test_memory_without_a_unit_is_refused_where_bytes_are_hardly_meant(run):
    for option in ("--memory", "--limit"):
        code, _, said = run("infer", ASIA, option, "4")
        assert code == 2
        assert "no unit" in " ".join(said.split())
        assert run("infer", ASIA, option, "400kB", "--task", "PR")[0] == 0
        assert run("infer", ASIA, option, "1e9", "--task", "PR")[0] == 0


@pytest.mark.long
@pytest.mark.parametrize("style", ["table", "uai", "json"])
def test_what_has_not_converged_is_said_and_strictly_has_a_code_of_its_own(run, grid, style):
    asked = ("--method", "loopy", "--task", "PR", "--set", "0=1", "--format", style)
    code, out, said = run("infer", grid, *asked, "--sweeps", "2")
    assert code == 0
    assert out
    assert said.startswith(f"Warning: {grid}: not converged")
    assert said.count("\n") == 1
    assert run("infer", grid, *asked, "--sweeps", "2", "--strict") == (3, out, said)
    code, _, said = run("infer", grid, *asked, "--strict")
    assert code == 0
    assert ("approximate, converged" in said) == (style == "uai")  # the others print it


def test_a_network_converts_to_bayes_and_back(run, tmp_path, grid):
    first, second, third = (tmp_path / name for name in ("a.uai", "b.bif", "c.uai"))
    assert run("convert", ASIA, first)[0] == 0
    assert first.read_text().startswith("BAYES")
    assert run("convert", first, second)[0] == 0
    assert run("convert", second, third)[0] == 0
    assert third.read_text() == first.read_text()
    assert run("convert", grid, third)[0] == 0
    assert third.read_text().startswith("MARKOV")


def test_the_shell_completes_commands_and_choices(run, monkeypatch):
    monkeypatch.setenv("_RDPGRAPH_COMPLETE", "complete_bash")
    for words, expected in (("rdpgraph inf", "infer"), ("rdpgraph infer --method lo", "loopy")):
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
        assert run()[:2] == (0, f"{expected}\n")


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_is_the_phase_and_the_time_left_on_terminals_alone(monkeypatch, capsys, terminal):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")
    if not terminal:
        monkeypatch.delenv("FORCE_COLOR")
    with rg.answers.show_progress("reading", 60.0) as tell:
        tell("messages: sweep 3, residual 1.0e-02")
    out, shown = capsys.readouterr()
    assert out == ""
    assert ("messages: sweep 3, residual 1.0e-02" in shown) == (" s left" in shown) == terminal
    assert bool(shown) == terminal


def test_answers_that_do_not_fit_are_refused_before_anything_is_planned(run, tmp_path):
    rows, model = tmp_path / "rows.evid", tmp_path / "wide.uai"
    rows.write_text("2000 " + "1 0 0 " * 2000)
    model.write_text("MARKOV\n1\n1000000\n0\n")
    code, _, error = run("infer", ASIA, "--evidence", rows, "--memory", "17MB", "--format", "json")
    assert code == 1
    assert "Answers for 2,000 rows of evidence, 16 numbers each, would take 31 MB" in error
    code, _, error = run("infer", model, "--memory", "100MB", "--format", "uai")
    assert code == 1
    assert "1,000,000 numbers each" in error


def test_the_plan_is_json_too(run, grid):
    code, out, _ = run("explain", grid, "--format", "json")
    plan = rg.explain(rg.read(grid), rg.Auto(seconds=60.0))
    told = json.loads(out)
    assert (code, told["route"], told["width"]) == (0, plan.route, plan.width)
    assert "tree" not in told


def test_ctrl_c_prints_the_best_answer_so_far(run, grid, monkeypatch):
    sweeps = []

    def press(step):
        sweeps.append(step)
        if len(sweeps) == 3:  # after "planning" and "solving"
            signal.raise_signal(signal.SIGINT)

    shown = "rdpgraph._core.progress_line.show_progress"
    monkeypatch.setattr(shown, lambda *_: nullcontext(press))
    options = ("--method", "loopy", "--set", "0=1", "--time", "60s", "--format", "json")
    code, out, error = run("infer", grid, "--task", "PR", *options)
    assert code == 130
    assert "stopped: this is the best answer so far" in error
    body = json.loads(out)
    assert body["converged"] is False
    assert math.isfinite(body["log_partition"])


@pytest.mark.parametrize("command", ["infer", "explain", "convert", "draw", "sample", "fit"])
def test_ctrl_c_while_reading_ends_with_a_line(run, tmp_path, monkeypatch, command):
    def reading(*arguments, **options):
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("rdpgraph.cli.loading.read", reading)
    more = {"convert": [tmp_path / "a.bif"], "draw": ["-o", tmp_path / "a.png"]}
    more["fit"] = [ASIA, "-o", tmp_path / "a.bif"]
    assert run(command, ASIA, *more.get(command, [])) == (130, "", "Error: Stopped.\n")
    assert not list(tmp_path.iterdir())


def test_ctrl_c_before_there_is_an_answer_ends_with_a_line(run, monkeypatch):
    def nothing(*arguments, **options):
        signal.raise_signal(signal.SIGINT)
        raise ModelError("No configuration is known.")

    monkeypatch.setattr("rdpgraph.cli.answers.answer", nothing)
    assert run("infer", ASIA, "--task", "MAP") == (130, "", "Error: Stopped.\n")


def test_ctrl_c_that_an_import_swallows_ends_the_command(run, monkeypatch):
    @contextmanager
    def shown(*_):
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        yield lambda step: None

    monkeypatch.setattr("rdpgraph._core.progress_line.show_progress", shown)
    assert run("explain", ASIA) == (130, "", "Error: Stopped.\n")


@pytest.mark.parametrize("asked", [("--json",), ("--format", "json")])
def test_every_command_has_an_answer_in_json(run, tmp_path, asked):
    rows, grammar = tmp_path / "rows.csv", tmp_path / "a.cfg"
    rows.write_text("lung\nyes\nno\n")
    grammar.write_text('1.0 S -> N N\n1.0 N -> "dog"\n')
    commands = {
        "infer": [ASIA],
        "explain": [ASIA],
        "convert": [ASIA, tmp_path / "a.uai"],
        "draw": [ASIA, "-o", tmp_path / "a.svg", "--no-marginals"],
        "sample": [ASIA, "-n", 2],
        "fit": [ASIA, rows, "-o", tmp_path / "b.bif", "--steps", 1],
        "parse": [grammar, "dog dog"],
        "rank": [ASIA, "lung"],
    }
    names = {one.name or one.callback.__name__ for one in app.registered_commands}
    assert set(commands) == names
    told = {name: json.loads(run(name, *given, *asked)[1]) for name, given in commands.items()}
    size = {"variables": 8, "factors": 8}
    assert told["convert"] == {"output": str(tmp_path / "a.uai"), **size}
    assert told["draw"] == {"output": str(tmp_path / "a.svg"), **size, "marginals": False}
