"""The scripts that remake the paper's tables run, in small."""

import runpy
import sys
from pathlib import Path

import pytest
import torch

import rdpgraph as rg

FOLDER = Path(__file__).parents[1] / "examples" / "paper"


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    ["table2", "table3", "table4", "curves", "calibration", "hypertree", "shootout", "variance"],
)
def test_a_script_runs_in_small(name, monkeypatch, capsys, tmp_path):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    monkeypatch.syspath_prepend(str(FOLDER))
    kind = "intermediate" if name == "hypertree" else "dense"  # potentials that are trained
    argv = [name, "--small", "--kinds", kind, "--output", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", argv)
    try:
        runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
    finally:
        pyplot.close("all")
        for module in ("measure", "potentials"):
            sys.modules.pop(module, None)
    shown = capsys.readouterr().out
    assert "200 states" in shown
    assert "nan" not in shown
    assert (tmp_path / "curves.png").exists() == (name == "curves")


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
