"""The code on the pages of README and docs has no type errors, in the eyes of pyright."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE)
PROMPT = re.compile(r"^(?:>>>|\.\.\.) ?")
RULES = {
    "typeCheckingMode": "standard",
    "reportUnusedExpression": False,  # what a session shows
    "reportMissingModuleSource": False,
}

CALLS = """
from typing import assert_type

import numpy as np
import torch
import rdpgraph as rg

rain, lamps = rg.Variable("rain", ("no", "yes")), rg.VariableArray("lamp", (3,), 2)
pair = rg.Table([[0.0, 1.0], [1.0, 0.0]])
graph = rg.FactorGraph([
    rg.Factor((rain,), rg.Table([0.6, 0.4])),
    rg.Factor(rain, rg.Table(np.zeros(2))),
    rg.Factor((rain, lamps[0]), pair),
    rg.Factor([lamps[i] for i in range(3)], rg.Or(3)),
    rg.FactorBlock((lamps[:-1], lamps[1:]), pair),
    rg.FactorBlock([[lamps[0], lamps[1]], [lamps[1], lamps[2]]], pair),
])
few = rg.Randomized.default(keep=1)
assert_type(rg.infer(graph), rg.Posterior)
assert_type(rg.infer(graph, scheduler=rg.Loopy(), estimator=rg.Exact()), rg.Posterior)
assert_type(rg.infer(graph, estimator=rg.LowRankFactors()), rg.Posterior)
assert_type(rg.infer(graph, estimator=few), rg.Posterior)
chain = rg.Chain(torch.zeros(3, 5, 4), np.zeros((4, 4)), lengths=[5, 3, 0])
assert_type(rg.infer(chain), rg.StructuredPosterior)
assert_type(rg.infer(chain, estimator=rg.LowRankFactors()), rg.StructuredPosterior)
assert_type(rg.infer(chain, estimator=few), rg.StructuredPosterior)
posterior = rg.infer(graph.condition({"rain": "yes", lamps[0]: 1, lamps[1]: None}))
posterior.marginals()["rain"].sum(), posterior.mode()[lamps[0]], posterior.sample(3)["rain"]
posterior.marginal(graph["rain"]), posterior.joint([rain, "lamp[1]"])
rg.ProjectiveDependencies([[0.0, 1.0]], multiroot=True, lengths=torch.tensor(1))
rg.Hypertree(torch.zeros(1, 2, 2, 1), rg.trees.DenseRules(torch.zeros(1, 1, 1)), lengths=[2])


def own(model: rg.FactorGraph | rg.Chain, estimator: rg.extend.Estimator) -> torch.Tensor:
    return rg.infer(model, estimator=estimator).log_partition.exp()


own(graph, rg.Exact()), own(chain, few)
"""


def code_of(page: str) -> str:
    """The Python of a page, each line where it stands there; a session without its output."""
    lines = [""] * (page.count("\n") + 1)
    for block in BLOCK.finditer(page):
        first = page.count("\n", 0, block.start("code"))
        code = block["code"].splitlines()
        session = any(line.startswith(">>>") for line in code)
        for place, line in enumerate(code):
            if not session:
                lines[first + place] = line
            elif PROMPT.match(line) and not _fails(code, place):
                lines[first + place] = PROMPT.sub("", line)
    return "\n".join(lines)


def _fails(code: list[str], place: int) -> bool:
    """True if a line of a session belongs to a call whose output is an error."""
    while place < len(code) and PROMPT.match(code[place]):
        place += 1
        if place < len(code) and code[place].startswith(">>>"):
            return False
    return place < len(code) and code[place].startswith("Traceback")


def test_lines_stay_where_they_are() -> None:
    page = "a\n```python\n>>> x = [\n...     1]\n>>> x[0]\n1\n>>> y\nTraceback\n```\n```\nno\n```\n"
    assert code_of(page).splitlines() == ["", "", "x = [", "    1]", "x[0]", *[""] * 8][:12]


def test_calls_of_every_kind_run() -> None:
    exec(compile(CALLS, "calls", "exec"), {})


@pytest.mark.long  # eleven seconds; CI asks for it
def test_pages_and_calls_have_no_type_errors(tmp_path: Path) -> None:
    if importlib.util.find_spec("pyright") is None:
        pytest.skip("pyright is not installed: `make check` installs it and runs this")
    for page in PAGES:
        name = "_".join(page.relative_to(ROOT).with_suffix("").parts).lower()
        (tmp_path / f"{name}_md.py").write_text(code_of(page.read_text()))
    (tmp_path / "calls.py").write_text(CALLS)
    settings = {**RULES, "extraPaths": [str(ROOT)], "pythonVersion": "3.11"}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "pyright", "--outputjson", "-p", str(tmp_path)]
    command += ["--pythonpath", sys.executable]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    found = json.loads(done.stdout)
    assert found["summary"]["filesAnalyzed"] == len(PAGES) + 1
    errors = [
        f"{Path(error['file']).stem.replace('_md', '.md')}:{error['range']['start']['line'] + 1}: "
        + error["message"]
        for error in found["generalDiagnostics"]
        if error["severity"] == "error"
    ]
    assert not errors, "\n".join(errors)
