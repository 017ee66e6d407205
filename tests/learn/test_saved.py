"""Fits that are saved and read again go on where they were."""

import pytest
import torch

import rdpgraph as rg
from rdpgraph.learn import EM, Probabilities, load, save

pytest.importorskip("safetensors")
SIDE, SHOWN = rg.Variable("side", 2), rg.Variable("shown", 3)


def model(values, rows):
    graph = rg.FactorGraph([
        rg.Factor(SIDE, rg.Table(values["side"])),
        rg.Factor((SIDE, SHOWN), rg.Table(values["shown"])),
    ])  # fmt: skip
    return graph.condition({SHOWN: rows})


def em(size=3, **options):
    draws = torch.rand(2, size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    side = Probabilities(torch.tensor([0.3, 0.7]).double().log(), prior=torch.ones(2).double())
    tables = {"side": side, "shown": Probabilities(draws.log_softmax(1))}
    return EM(model, tables, limit=3, tolerance=0, **options)


@pytest.mark.parametrize("options", [{}, {"stepwise": 0.7, "batch_size": 4}])
def test_a_saved_fit_goes_on(tmp_path, options):
    rows = torch.arange(12) % 3
    fit = em(**options).fit(rows)
    save(fit, tmp_path / "fit.safetensors")
    again = load(em(**options), tmp_path / "fit.safetensors")
    assert (again.history, again.status) == (fit.history, fit.status)
    one, other = (em(**options).fit(rows, start=each) for each in (fit, again))
    assert one.history == other.history


def test_other_files_are_refused_in_one_line(tmp_path):
    path = tmp_path / "fit.safetensors"
    path.write_bytes(b"nothing")
    with pytest.raises(rg.errors.FileFormatError, match="not a fit that was saved"):
        load(em(), path)
    save(em().fit(torch.arange(3)), path)
    with pytest.raises(rg.errors.FileFormatError, match=r"shown\.log_values of shape"):
        load(em(size=4), path)
