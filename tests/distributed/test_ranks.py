"""Every answer on 1, 2 and 4 processes equals that of one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import rdpgraph as rg
from rdpgraph.distributed import alone
from rdpgraph.loopy import FromBeliefs
from tests.distributed import chains, costs, graphs  # noqa: F401
from tests.distributed.checks import CHECKS, SECONDS, outcomes

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def groups(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where groups of 2 and of 4 processes have written what the checks came to."""
    folder = tmp_path_factory.mktemp("groups")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.distributed.checks", str(folder)]
    subprocess.run(command, env=environment, cwd=ROOT, timeout=10 * SECONDS, check=True)
    return folder


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_checks_hold_on_every_rank(ranks: int, groups: Path) -> None:
    if ranks == 1:
        (groups / "1").mkdir()
        with alone() as mesh:
            found = [outcomes(mesh, groups / "1")]
    else:
        files = [groups / str(ranks) / f"{rank}.json" for rank in range(ranks)]
        found = [json.loads(file.read_text()) for file in files]
    failed = [
        f"rank {rank}, {name}: {why}"
        for rank, own in enumerate(found)
        for name, why in own.items()
        if why
    ]
    assert not failed, "\n".join(failed)
    assert all(set(own) == set(CHECKS) for own in found)


@pytest.mark.parametrize("fault", ["killed", "silent", "missing", "unequal", "unset"])
def test_what_is_lost_ends_the_others_with_one_line(fault: str, groups: Path) -> None:
    ended = json.loads((groups / "faults.json").read_text())[fault]
    survivors = [(code, said) for code, said in ended if code != 9]
    assert survivors
    for code, said in survivors:
        assert code == 1
        assert said.startswith("Error: ")
        assert len(said.splitlines()) == 1


def test_the_command_line_answers_one_model_on_all_processes(groups: Path) -> None:
    assert json.loads((groups / "faults.json").read_text())["answered"] == [[0, ""], [0, ""]]
    found = json.loads((groups / "asia").read_text())
    graph = rg.read(ROOT / "examples" / "asia.bif")
    one = rg.infer(graph, scheduler=rg.Loopy(gradient=FromBeliefs()))
    assert found["log_partition"] == pytest.approx(float(one.log_partition), abs=1e-9)
    for name, shares in found["marginals"].items():
        assert list(shares.values()) == pytest.approx(one.marginal(name).tolist(), abs=1e-9)
