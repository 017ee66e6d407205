"""The scripts that remake the paper's tables run, in small."""

import runpy
import sys
from pathlib import Path

import pytest
import torch

import rdpgraph as rg

FOLDER = Path(__file__).parents[1] / "examples" / "paper"


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """Run a script with some options, and return what it prints."""
    pyplot = pytest.importorskip("matplotlib.pyplot")
    monkeypatch.syspath_prepend(str(FOLDER))

    def ran(name, *options):
        argv = [name, "--output", str(tmp_path), *map(str, options)]
        monkeypatch.setattr(sys, "argv", argv)
        try:
            runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
        finally:
            pyplot.close("all")
            for module in ("measure", "potentials", "hypertree", "table5", "vae", "hmm_lm"):
                sys.modules.pop(module, None)
        return capsys.readouterr().out

    return ran


@pytest.mark.long
@pytest.mark.parametrize("name", ["curves", "calibration", "shootout", "variance"])
def test_a_script_runs_at_a_tiny_size(name, run, tmp_path):
    shown = run(name, "--quick", "--kinds", "dense")
    assert "200 states" in shown
    assert "nan" not in shown
    assert (tmp_path / "curves.png").exists() == (name == "curves")


def rows_of(shown):
    """The cells of each row of the first table, by its name."""
    rows = {}
    for line in shown.split("\n\n|")[1].splitlines():
        name, *cells = (cell.strip() for cell in line.strip(" |").split("|"))
        rows[name] = cells
    return rows


@pytest.mark.long
def test_one_command_remakes_all_tables(run, text, tmp_path):
    options = ("--quick", "--kinds", "intermediate", "--text", text)
    shown = run("tables", *options, "--store", tmp_path / "all.jsonl")
    for title in (
        "of log Z,",
        "of the entropy,",
        "of hypertrees,",
        "Table 3",
        "Table 4",
        "Table 5",
    ):
        assert title in shown
    assert "rdp less top, 8 states: dev" in shown
    assert "nan" not in shown
    assert (tmp_path / "hypertrees-200.png").exists()
    assert (tmp_path / "table5" / "8-2-2-0" / "checkpoint.pt").exists()


@pytest.mark.long
def test_tables_go_on_from_their_store(run, tmp_path):
    options = ("--quick", "--kinds", "dense", "--tables", "log-z", "--store", tmp_path / "a.jsonl")
    assert "| a pilot's | - |" in run(
        "tables", *options, "--tables", "proposals", "--kept", "--set"
    )
    nothing = run("tables", *options, "--kept")
    assert all(cells == ["-"] for cells in list(rows_of(nothing).values())[2:])
    whole = run("tables", *options)
    lines = (tmp_path / "a.jsonl").read_text().splitlines(keepends=True)
    # A run that is ended after a few rows has printed these, and the next one makes the others.
    (tmp_path / "a.jsonl").write_text("".join(lines[:8]))
    part = rows_of(run("tables", *options, "--kept"))
    assert part["Top, 20%"] == rows_of(whole)["Top, 20%"]
    assert part["with a pilot, 20%"] == ["-"]
    assert run("tables", *options) == whole
    assert len((tmp_path / "a.jsonl").read_text().splitlines()) == len(lines)


def test_cells_of_tables_are_ours_the_papers_and_their_ratio(monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    monkeypatch.syspath_prepend(str(FOLDER))
    tables = runpy.run_path(str(FOLDER / "tables.py"), run_name="tables")
    kept = {"paper's": [0.5, None], "ours": [0.25, 2.0], "worse": [1.0, 0.0]}
    table = tables["Table"](
        "", {"a": [], "b": []}, dict.fromkeys(kept), printed={"paper's": (0.2, 3.0)},
        less={"ours": "paper's", "worse": "paper's"}, base="paper's",
    )  # fmt: skip
    monkeypatch.setattr(tables["Table"], "results", lambda self, name, repeats: kept[name])
    rows = rows_of("\n".join(table.lines(1)))
    assert rows["paper's"] == ["0.5 / 0.2 (2.5)", "-"]
    assert rows["ours"] == ["0.25 (2x less)", "2"]
    assert rows["worse"] == ["1 (2x more)", "0"]


def test_the_potentials_are_centred_and_of_one_range(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    potentials = runpy.run_path(str(FOLDER / "potentials.py"), run_name="potentials")
    chain = potentials["tabulated"](potentials["case"]("dense", states=50, seed=0).chain)
    for values in (chain.transition.flatten(), *chain.unary):
        assert float(values.max() - values.min()) == pytest.approx(potentials["RANGE"], rel=1e-4)
        assert float(values.mean()) == pytest.approx(0.0, abs=1e-4)


def test_chains_have_the_entropy_that_is_asked_for(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    potentials = runpy.run_path(str(FOLDER / "potentials.py"), run_name="potentials")
    one = potentials["case"]("dense", states=20, seed=0, steps=3)
    for nats in (1.0, 4.0, 8.0):
        chain = potentials["scaled"](one, potentials["scale_of"](one, nats)).chain
        scores = rg.Chain(chain.unary.double(), chain.transition.table(2).double())
        every = torch.cartesian_prod(*[torch.arange(20)] * 3)
        log_p = scores.score(every) - scores.score(every).logsumexp(0)
        assert float(-(log_p.exp() * log_p).sum()) == pytest.approx(nats, abs=0.01)


def test_results_are_kept_and_half_lines_are_not(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(FOLDER))
    store_of = runpy.run_path(str(FOLDER / "measure.py"), run_name="measure")["Store"]
    sys.modules.pop("potentials", None)
    file = tmp_path / "results.jsonl"
    first = store_of()
    first.read(file)
    assert first.found("a", lambda: [1.0]) == [1.0]
    with file.open("a") as lines:
        lines.write('{"b": [2.')  # ended here
    again = store_of()
    again.read(file)
    assert again.found("a", lambda: [3.0]) == [1.0]
    assert again.found("b", lambda: [4.0]) == [4.0]
    assert file.read_text() == '{"a": [1.0]}\n{"b": [4.0]}\n'
