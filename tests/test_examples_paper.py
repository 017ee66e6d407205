"""The scripts that remake the paper's tables run, in small."""

import runpy
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "examples" / "paper"


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    ["table2", "table3", "table4", "curves", "calibration", "hypertree", "shootout", "variance"],
)
def test_a_script_runs_in_small(name, monkeypatch, capsys, tmp_path):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.setattr(sys, "argv", [name, "--small", "--output", str(tmp_path)])
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
