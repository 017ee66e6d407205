"""Answers to models of the UAI-2022 competition, scored beside its solvers.

    python tests/benchmarks/uai2022.py --task MPE --seconds 20 --memory 4e9 [--only NAME ...]

Each model runs by the command line in a process of its own on one core, start, reading and planning
included in its time limit of 1.2 times the seconds and 2 more. Prints a row per model and a table
per family, and what the solvers of the competition scored in 20 s on the same models; needs the
models in ``../shared/data/uai2022``.
"""

import argparse
import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
from types import ModuleType

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared"
TASKS = {"PR": "PR", "MPE": "MAP", "MMAP": "MMAP"}


def solve(task: str, name: str, folder: pathlib.Path, options: argparse.Namespace) -> str:
    """Run one model; what there is to say of the run."""
    stem = SHARED / "data" / "uai2022" / task / f"{name}.uai"
    command = [
        sys.executable, "-m", "rdpgraph", "infer", f"{stem}.gz", "--evidence", f"{stem}.evid",
        "--task", TASKS[task], "--time", f"{options.seconds}s", "--memory", str(options.memory),
        "--format", "uai", "--output", str(folder / f"{name}.{task}"),
    ]  # fmt: skip
    if task == "MMAP":
        command += ["--query", f"{stem}.query"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    begin = time.perf_counter()
    limit = 1.2 * options.seconds + 2
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=limit, env=environment, check=False
        )
    except subprocess.TimeoutExpired:
        return f"no answer after {limit:.0f} s"
    took = time.perf_counter() - begin
    return f"{took:.1f} s {done.stderr.strip().splitlines()[-1][:120] if done.returncode else ''}"


def scorer() -> ModuleType:
    """The module that scores results as the competition did."""
    path = SHARED / "tools" / "score_uai2022.py"
    spec = importlib.util.spec_from_file_location("score_uai2022", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def score(module: ModuleType, task: str, name: str, sheet: dict, folder: pathlib.Path) -> float:
    """The points of one model, of 100."""
    path = folder / f"{name}.{task}"
    if not path.exists():
        return 0.0
    found = module.value(task, SHARED / "data" / "uai2022", name, path.read_text())
    error = abs(found - sheet["best"]) if task == "PR" else sheet["best"] - found
    most = abs(sheet["baseline"] - sheet["best"])
    return 100.0 if error < 0.06 else max(0.0, 100 * (1 - error / most)) if most else 0.0


def main() -> None:
    """Run all models of a task and score them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", choices=list(TASKS), default="MPE")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--memory", type=float, default=4e9)
    parser.add_argument("--only", nargs="*", default=[])
    options = parser.parse_args()
    sheets_path = SHARED / "data" / "uai2022" / options.task / "scores.json"
    if not sheets_path.exists():
        sys.exit("tests/benchmarks/uai2022.py needs ../shared/data/uai2022, which is absent")
    sheets = json.loads(sheets_path.read_text())
    names = [n for n in sorted(sheets) if not options.only or n.startswith(tuple(options.only))]
    module = scorer()
    families: dict[str, list[float]] = {}
    solvers: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as text:
        folder = pathlib.Path(text)
        for name in names:
            said = solve(options.task, name, folder, options)
            points = score(module, options.task, name, sheets[name], folder)
            families.setdefault(re.split(r"[\d_.-]", name)[0] or "ratio", []).append(points)
            for solver, theirs in sheets[name]["scores_20s"].items():
                solvers.setdefault(solver, []).append(theirs)
            print(f"{points:6.1f}  {name:28s} {said}", flush=True)
    for family, all_points in families.items():
        print(f"{family:20s} {len(all_points):3d} models  {sum(all_points) / len(all_points):6.1f}")
    total = [points for all_points in families.values() for points in all_points]
    print(f"{options.task}: {sum(total) / len(total):.1f} on {len(total)} models")
    for solver, theirs in sorted(solvers.items(), key=lambda pair: -sum(pair[1])):
        print(f"  {solver:24s} {sum(theirs) / len(theirs):6.1f}")


if __name__ == "__main__":
    main()
