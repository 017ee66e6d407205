"""Every answer on 1 and 3 processes equals that of one."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import checkpoint
from torch.distributed.checkpoint.api import CheckpointException

import rdpgraph as rg
from rdpgraph.distributed import alone, partition
from rdpgraph.loopy import FromBeliefs
from tests.distributed import costs, graphs, shards, spread  # noqa: F401
from tests.distributed.checks import CHECKS, RANKS, SECONDS, outcomes
from tests.distributed.faults import state_of

ROOT = Path(__file__).parents[2]


@pytest.mark.long
@pytest.mark.timeout(18 * SECONDS)
def test_answers_of_many_processes_are_those_of_one(tmp_path: Path) -> None:
    """One test, so that one worker of pytest-xdist starts the processes, once."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.distributed.checks", str(tmp_path)]
    subprocess.run(command, env=environment, cwd=ROOT, timeout=15 * SECONDS, check=True)
    files = [tmp_path / str(RANKS) / f"{rank}.json" for rank in range(RANKS)]
    all_hold([json.loads(file.read_text()) for file in files])
    pair = [json.loads((tmp_path / "2" / f"{rank}.json").read_text()) for rank in range(2)]
    assert all(pair)
    assert not [why for own in pair for why in own.values() if why]
    (tmp_path / "1").mkdir()
    with alone() as mesh:
        all_hold([outcomes(mesh, tmp_path / "1")])
    ends = json.loads((tmp_path / "faults.json").read_text())
    assert ends.pop("answered") == [[0, ""], [0, ""]]
    for fault, ended in ends.items():
        ended_in_one_line(fault, ended)
    is_as_it_was(tmp_path / "saved")
    is_that_of_one_process(json.loads((tmp_path / "asia").read_text()))


def test_a_part_may_have_no_messages() -> None:
    scores = torch.tensor([[0.0, 1.0], [2.0, -1.0]], dtype=torch.float64)
    graph = rg.FactorGraph([rg.FactorBlock((rg.VariableArray("x", (2,), 2),), rg.Table(scores))])
    with alone() as mesh, torch.no_grad():
        found = partition(graph, mesh).infer(rg.Loopy(sweeps=3))
    torch.testing.assert_close(found.log_partition, scores.logsumexp(1).sum())


def all_hold(found: list[dict[str, str]]) -> None:
    """Every check, on every rank."""
    failed = [
        f"rank {rank} of {len(found)}, {name}: {why}"
        for rank, own in enumerate(found)
        for name, why in own.items()
        if why
    ]
    assert not failed, "\n".join(failed)
    assert all(set(own) == set(CHECKS) for own in found)


def ended_in_one_line(fault: str, ended: list[tuple[int, str]]) -> None:
    """All but the process that was lost, which ends with 9."""
    survivors = [own for own in ended if own[0] != 9]
    assert survivors, fault
    for code, said in survivors:
        assert code == 1, fault
        assert said.startswith("Error: "), fault
        assert len(said.splitlines()) == 1, fault


def is_as_it_was(saved: Path) -> None:
    """The checkpoint before the one that was cut short, which is refused."""
    with alone() as mesh:
        state = state_of(mesh, 0.0)
        checkpoint.load(state, checkpoint_id=saved / "1")
        assert torch.equal(state["x"].full_tensor(), torch.ones(4, 6))
        assert (saved / "2" / "half").exists()
        with pytest.raises(CheckpointException):
            checkpoint.load(state, checkpoint_id=saved / "2")


def is_that_of_one_process(found: dict[str, Any]) -> None:
    """Compare the command line's answer on two processes with that of one."""
    graph = rg.read(ROOT / "examples" / "asia.bif")
    one = rg.infer(graph, scheduler=rg.Loopy(gradient=FromBeliefs()))
    assert found["log_partition"] == pytest.approx(float(one.log_partition), abs=1e-9)
    for name, shares in found["marginals"].items():
        assert list(shares.values()) == pytest.approx(one.marginal(name).tolist(), abs=1e-9)
