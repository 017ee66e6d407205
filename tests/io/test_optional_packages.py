"""Packages that need not be installed are asked for in one line."""

import sys

import pytest
import torch

import rdpgraph as rg
from rdpgraph import learn

X = rg.Variable("x", 2)
GRAPH = rg.FactorGraph([rg.Factor(X, rg.Table(torch.zeros(2)))])
NETWORK = learn.BayesianNetwork([("a", "c")], prior=1.0)
ROWS = {"a": [0, 1, 1], "c": [1, 1, 0]}

DOORS = {
    "pgmpy": lambda: rg.to_pgmpy(GRAPH),
    "pyagrum": lambda: rg.to_pyagrum(GRAPH),
    "pandas": lambda: rg.infer(GRAPH).marginals().to_frame(),
    "pandas of predictions": lambda: NETWORK.fit(ROWS).predict({"a": [0]}, ["c"]),
    "pandas of probabilities": lambda: NETWORK.fit(ROWS).predict_proba({"a": [0]}, ["c"]),
}


@pytest.mark.parametrize("door", DOORS)
def test_what_is_not_installed_is_named(door: str, monkeypatch: pytest.MonkeyPatch) -> None:
    package = door.split()[0]
    monkeypatch.setitem(sys.modules, package, None)  # as if it could not be imported
    with pytest.raises(rg.errors.UnsupportedError, match=f"needs {package}, .*: pip install"):
        DOORS[door]()


def test_another_object_is_refused() -> None:
    for read in (rg.from_networkx, rg.from_pgmpy, rg.from_pyagrum):
        with pytest.raises(rg.errors.ModelError, match="got FactorGraph"):
            read(GRAPH)
