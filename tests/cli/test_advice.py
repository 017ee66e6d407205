"""Errors and remedies advise in options, and following the advice works."""

import re

import pytest
import torch

import rdpgraph as rg

PYTHON = re.compile(r"\b\w+\([^)]*\)\.?\w*|\b[a-z_]+=\S")  # a call, or an argument


@pytest.fixture(scope="module")
def grids(tmp_path_factory):
    """Grids of ties that no message settles, of 3 x 3 and of 40 x 40 variables."""
    folder = tmp_path_factory.mktemp("grids")
    generator = torch.Generator().manual_seed(0)
    for name, side, states in (("small", 3, 3), ("middle", 12, 2), ("large", 40, 4)):
        x = rg.VariableArray("x", (side, side), states)
        tables = (
            rg.Table(2.0 * torch.randn(*shape, states, states, generator=generator))
            for shape in ((side - 1, side), (side, side - 1))
        )
        down, right = tables
        blocks = [
            rg.FactorBlock((x[:-1], x[1:]), down),
            rg.FactorBlock((x[:, :-1], x[:, 1:]), right),
        ]
        rg.write(rg.FactorGraph(blocks), folder / f"{name}.uai")
    return folder


# Commands that end in advice; what it says; the options that follow it.
ADVISED = {
    "marginal MAP by messages": (
        ("small", "--task", "MMAP", "--query", "0", "--method", "loopy"),
        "use --method auto",
        ("--task", "MMAP", "--query", "0", "--method", "auto"),
    ),
    "marginal MAP of an estimate": (
        ("small", "--task", "MMAP", "--query", "0", "--estimator", "randomized", "--keep", "2"),
        "use --estimator exact",
        ("--task", "MMAP", "--query", "0", "--estimator", "exact"),
    ),
    "messages that are approximate": (
        ("small", "--method", "loopy"), "--method exact is exact", ("--method", "exact"),
    ),
    "messages that have not converged": (
        ("small", "--method", "loopy", "--sweeps", "2"),
        r"allow more sweeps \(--sweeps\), damp them \(--damping 0.5\), or use --method join",
        ("--method", "loopy", "--sweeps", "1000", "--damping", "0.5"),
    ),
    "no memory for exact inference": (
        ("middle", "--method", "exact", "--memory", "16KiB", "--time", "1ms"),
        r"use an approximate method \(--method auto\)",
        ("--method", "auto", "--memory", "16KiB", "--time", "500ms"),
    ),
    "few replicates": (
        ("small", "--estimator", "randomized", "--keep", "2", "--replicates", "3", "--seed", "0"),
        "use --replicates 16",
        ("--estimator", "randomized", "--keep", "2", "--replicates", "16", "--seed", "0"),
    ),
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("case", ADVISED)
def test_advice_is_in_options_and_works(case: str, run, grids) -> None:
    (model, *asked), advice, followed = ADVISED[case]
    model = grids / f"{model}.uai"
    for more in ((), ("--json",)):
        _, out, err = run("infer", model, *asked, *more)
        assert re.search(advice, " ".join((out + err).split()))
        assert not PYTHON.search(err)
    code, _, err = run("infer", model, *followed)
    assert code == 0
    assert not re.search(advice, err)  # another remedy may follow


@pytest.mark.long
def test_a_sample_that_does_not_fit_names_options_that_it_has(run, grids) -> None:
    code, out, err = run("sample", grids / "large.uai", "--time", "2s")
    assert (code, out) == (1, "")
    assert "raise --time, or observe more variables by --set" in err
    assert not PYTHON.search(err.split("(", 1)[0])
    seen = [part for v in range(1600) if v % 2 for part in ("--set", f"{v}=0")]
    assert run("sample", grids / "large.uai", *seen)[0] == 0
