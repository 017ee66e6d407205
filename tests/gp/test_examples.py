"""The scripts of the paper's experiment run, in small."""

import importlib
import json
import runpy
import sys
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).parents[2] / "examples" / "paper" / "gp"
DATA = Path(__file__).parents[3] / "shared" / "data" / "gpstruct"


def test_slices_are_draws_of_the_posterior(monkeypatch):
    """Two numbers of prior N(0, 1), of whose sum 3 is seen with a deviation of 1."""
    monkeypatch.syspath_prepend(str(FOLDER))
    slices = importlib.import_module("slices")
    generator = torch.Generator().manual_seed(0)

    def log_likelihood(state):
        return -0.5 * float(state[0] + state[1] - 3.0) ** 2

    def drawn():
        return [torch.randn((), generator=generator, dtype=torch.float64) for _ in range(2)]

    state, draws = drawn(), []
    level = log_likelihood(state)
    for _ in range(1500):
        state, level = slices.sliced(state, drawn(), level, log_likelihood, generator)
        draws.append(torch.stack(state))
        assert level == log_likelihood(state)
    every = torch.stack(draws)
    # Means of 1, variances of 2 / 3, a covariance of -1 / 3.
    assert torch.allclose(every.mean(0), torch.ones(2).double(), atol=0.15)
    assert torch.allclose(every.T.cov(), torch.eye(2).double() - 1 / 3, atol=0.12)


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
            for module in ("table1", "tasks", "baseline", "slices"):
                sys.modules.pop(module, None)
        return capsys.readouterr().out

    path = str(tmp_path)
    for columns in (["crf", "piecewise"], ["crf", "piecewise", "reparameterised", "slice"]):
        shown = run("table1", "segmentation", "--output", path, "--columns", *columns)
    assert "reparameterised" in shown
    assert "nan" not in shown
    lines = (tmp_path / "table1.jsonl").read_text().splitlines()
    columns = [json.loads(line)["column"] for line in lines]
    assert columns == ["spread", "crf", "piecewise", "reparameterised", "slice"]
    assert "control variate" in run("estimators", "segmentation")
    assert "bound" in run("tuning", "chunking", "--divisions", "1", "--rows", "0", "8")
    assert "confidence" in run("plots", "--output", path)
    assert (tmp_path / "gp.png").exists()
    assert "nats a label" in run("plots", "--large", "--output", path)
