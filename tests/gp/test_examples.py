"""The scripts of the paper's experiment run, in small."""

import json
import runpy
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "paper" / "gp"
DATA = Path(__file__).parents[3] / "shared" / "data" / "gpstruct"


@pytest.mark.long
@pytest.mark.skipif(not DATA.exists(), reason="the data are beside the checkout")
def test_scripts_run_in_small_and_go_on_where_they_ended(monkeypatch, capsys, tmp_path):
    pytest.importorskip("matplotlib.pyplot")
    monkeypatch.syspath_prepend(str(FOLDER))

    def run(name, *arguments):
        monkeypatch.setattr(sys, "argv", [name, *arguments, "--small"])
        try:
            runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
        finally:
            for module in ("table1", "tasks", "baseline"):
                sys.modules.pop(module, None)
        return capsys.readouterr().out

    path = str(tmp_path)
    for columns in (["crf", "piecewise"], ["crf", "piecewise", "reparameterised"]):
        shown = run("table1", "segmentation", "--output", path, "--columns", *columns)
    assert "reparameterised" in shown
    assert "nan" not in shown
    lines = (tmp_path / "table1.jsonl").read_text().splitlines()
    columns = [json.loads(line)["column"] for line in lines]
    assert columns == ["spread", "crf", "piecewise", "reparameterised"]
    assert "control variate" in run("estimators", "segmentation")
    assert "bound" in run("tuning", "chunking", "--divisions", "1", "--rows", "0", "8")
    assert "confidence" in run("plots", "--output", path)
    assert (tmp_path / "gp.png").exists()
    assert "nats a label" in run("plots", "--large", "--output", path)
