"""The commands fit and sample."""

import json
import math
import signal
from contextlib import nullcontext
from pathlib import Path

import pandas
import pytest
import torch

import rdpgraph as rg
from rdpgraph.learn import BayesianNetwork

ASIA = str(Path(__file__).parents[2] / "examples" / "asia.bif")


@pytest.fixture
def data(run, tmp_path):
    """Rows of asia in a file."""
    target = tmp_path / "data.csv"
    assert run("sample", ASIA, "-n", 300, "--output", target, "--seed", 1) == (0, "", "")
    return target


def test_draws_are_those_of_the_library(run, data):
    drawn = rg.infer(rg.read(ASIA)).sample(300, torch.Generator().manual_seed(1)).to_frame()
    pandas.testing.assert_frame_equal(pandas.read_csv(data), drawn.astype("str"))
    code, out, _ = run("sample", ASIA, "-n", 300, "--seed", 1, "--format", "json")
    assert [list(row.values()) for row in json.loads(out)] == drawn.values.tolist()
    code, out, _ = run("sample", ASIA, "-n", 3, "--set", "smoke=no")
    assert code == 0
    assert out.splitlines()[0].split(",") == list(drawn.columns)
    assert {line.split(",")[list(drawn.columns).index("smoke")] for line in out.split()[1:]} == {
        "no"
    }


NAMES = (
    "NA", "None", "nan", "True", "False", "1", "01", "1.0", " x ", "x", 'a "quoted" one', "a,b",
    "a\nb", "a\r\nb", "a\rb", "é", "日本", "-1", "?", "", "#c",
)  # fmt: skip


@pytest.mark.parametrize(
    "states",
    [NAMES, ("True", "False"), ("true", "false"), ("1", "0"), ("1.0", "2.0"), ("NA", "no"), 3],
    ids=ascii,
)
def test_draws_are_evidence_and_data_whatever_states_are_called(run, tmp_path, states):
    a, b, c = (
        rg.Variable("a", states),
        rg.Variable('b "x", y', ("u", "v")),
        rg.Variable("c", states),
    )
    generator = torch.Generator().manual_seed(0)
    rows = torch.rand(a.size, 2, generator=generator).double()
    model = rg.FactorGraph.bayesian_network([
        (a, (), torch.full((a.size,), 1 / a.size).double()),
        (b, (a,), rows / rows.sum(1, keepdim=True)),
        (c, (a,), torch.full((a.size, a.size), 1 / a.size).double()),
    ])  # fmt: skip
    source, table, fitted = (tmp_path / name for name in ("m.cfn", "rows.csv", "fitted.cfn"))
    rg.write(model, source)
    assert run("sample", source, "-n", 300, "-o", table, "--seed", 1) == (0, "", "")
    read = rg.read(source)
    draws = rg.infer(read).sample(300, torch.Generator().manual_seed(1))
    code, out, err = run("infer", source, "--evidence", table, "--task", "PR", "--json")
    assert (code, err) == (0, "")
    expected = rg.infer(read.condition(dict(draws))).log_partition.tolist()
    assert [row["log_partition"] for row in json.loads(out)["rows"]] == pytest.approx(expected)
    assert run("fit", source, table, "-o", fitted, "--prior", 1)[0] == 0
    counts = torch.bincount(draws["a"], minlength=a.size) + 1.0
    found = rg.infer(rg.read(fitted)).marginal("a")
    torch.testing.assert_close(found, (counts / counts.sum()).double(), atol=1e-6, rtol=0)


def test_a_fit_is_that_of_the_library(run, data, tmp_path):
    rows = pandas.read_csv(data).drop(columns="tub")
    rows.loc[rows.index % 3 == 0, "bronc"] = None
    rows.to_csv(data, index=False)
    target = tmp_path / "fitted.bif"
    code, out, err = run("fit", ASIA, data, "-o", target, "--prior", 0.5)
    assert (code, err) == (0, "")
    fitted, network = rg.read(target), BayesianNetwork(rg.read(ASIA), prior=0.5).fit(rows)
    assert f"log-likelihood {network.fit_.log_likelihood:.4f} nats, 300 rows" in out
    for name in ("bronc", "dysp", "tub"):
        torch.testing.assert_close(fitted.cpt(name), network.graph_.cpt(name), atol=1e-6, rtol=0)


def test_ctrl_c_writes_the_tables_of_the_last_step(run, data, tmp_path, monkeypatch):
    rows = pandas.read_csv(data).drop(columns="tub")
    rows.to_csv(data, index=False)

    one, stopped = tmp_path / "one.bif", tmp_path / "stopped.bif"
    code, out, _ = run("fit", ASIA, data, "-o", one, "--steps", 1, "--format", "json")
    assert (code, json.loads(out)["steps"], json.loads(out)["converged"]) == (0, 1, False)
    assert "raise --steps" in json.loads(out)["remedy"]
    told = []

    def press_once(step):
        told.append(step)
        if step.number == 1:
            signal.raise_signal(signal.SIGINT)

    shown = "rdpgraph._core.progress_line.show_progress"
    monkeypatch.setattr(shown, lambda *_: nullcontext(press_once))
    code, _, error = run("fit", ASIA, data, "-o", stopped)
    assert (code, len(told)) == (130, 2)
    assert "stopped: this is the best answer so far" in error
    assert stopped.read_text() == one.read_text()


def test_the_end_of_the_time_writes_the_tables_of_the_last_step(
    run, data, tmp_path, monkeypatch, hands
):
    rows = pandas.read_csv(data).drop(columns="tub")
    rows.to_csv(data, index=False)
    one, late = tmp_path / "one.bif", tmp_path / "late.bif"
    assert run("fit", ASIA, data, "-o", one, "--steps", 1)[0] == 0

    def pass_time(step):
        if getattr(step, "number", 0) == 1:
            hands.time += 1000.0

    shown = "rdpgraph._core.progress_line.show_progress"
    monkeypatch.setattr(shown, lambda *_: nullcontext(pass_time))
    code, _, error = run("fit", ASIA, data, "-o", late, "--time", "100s")
    assert code == 0
    assert error.startswith(f"Warning: {late}: ")
    assert late.read_text() == one.read_text()


def test_states_may_be_numbers(run, tmp_path):
    a, b = rg.Variable("x0", 2), rg.Variable("x1", 3)
    half = [[1 / 3] * 3] * 2
    rg.write(
        rg.FactorGraph.bayesian_network([(a, (), [0.5, 0.5]), (b, (a,), half)]), tmp_path / "m.uai"
    )
    model = rg.read(tmp_path / "m.uai")
    names = [v.name for v in model.variables]
    (tmp_path / "d.csv").write_text(f"{names[0]},{names[1]}\n0,2\n1,-1\n1,0\n?,0\n")
    assert run("fit", tmp_path / "m.uai", tmp_path / "d.csv", "-o", tmp_path / "f.uai")[0] == 0
    fitted = rg.infer(rg.read(tmp_path / "f.uai")).marginal(names[1])
    assert float(fitted[1]) == pytest.approx(0.0, abs=1e-6)
    assert math.isclose(float(fitted.sum()), 1.0, rel_tol=1e-6)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("asia,snow\nyes,no\n", "Column 'snow' is no variable"),
        ("asia,tub\nyes,maybe\n", "has no state 'maybe'"),
        ("", "not a table of comma-separated values"),
        ("asia\nyes,no,no\nyes\nno,no,no,no\n", "Error"),
        ("asia,tub\nyes,no,\nno,no,\n", "a row has more fields than the first line"),
        ("tub,lung,either\nyes,no,no\n", "row 0 of the data"),
    ],
)
def test_bad_data_is_told_in_one_line(run, tmp_path, text, message):
    target = tmp_path / "fitted.bif"
    (tmp_path / "data.csv").write_text(text)
    code, out, err = run("fit", ASIA, tmp_path / "data.csv", "-o", target)
    assert (code, out, len(err.splitlines())) == (1, "", 1)
    assert message in err
    assert not target.exists()


def test_outputs_are_refused_before_anything_is_read(run, data, tmp_path):
    model = tmp_path / "asia.bif"
    model.write_bytes(Path(ASIA).read_bytes())
    for command in (("fit", model, data, "-o", model), ("sample", model, "--output", model)):
        refused = f"Error: {model}: this file is an input of the command; write to another one."
        assert run(*command) == (1, "", f"{refused}\n")
    assert run("fit", ASIA, data, "-o", tmp_path / "fitted.txt")[0] == 1
    assert run("fit", ASIA, tmp_path / "none.csv", "-o", tmp_path / "f.bif")[0] == 1
