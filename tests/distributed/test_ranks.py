"""Every answer on 1, 2 and 4 processes equals that of one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rdpgraph.distributed import alone
from tests.distributed import chains, graphs  # noqa: F401
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
def test_checks_hold_on_every_rank(ranks: int, groups: Path, tmp_path: Path) -> None:
    if ranks == 1:
        with alone() as mesh:
            found = [outcomes(mesh, tmp_path)]
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
