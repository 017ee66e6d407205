"""Every benchmark, at a tiny size and in this process, so that none rots.

Those of competitions need models that are not here: what they say then is all that is tested.
"""

import ast
import importlib.util
import io
import resource
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from rdpgraph.cli import main

FOLDER = Path(__file__).parent / "benchmarks"


@dataclass(frozen=True)
class Tiny:
    """A run of a script that takes a moment.

    Attributes:
        arguments: of its command line.
        sizes: its constants, to be replaced.
        shrunk: gives more of these from the script.
        needs: a module that it is nothing without.
    """

    arguments: str = ""
    sizes: dict[str, Any] = field(default_factory=dict)
    shrunk: Callable[[ModuleType], dict[str, Any]] = lambda module: {}
    needs: str = ""


def cases(module: ModuleType) -> dict[str, Any]:
    forms = dict.fromkeys((case.kind, case.form) for case in module.CASES)
    return {"CASES": [module.Case(*form, states) for form in forms for states in (6, 8)]}


def small(module: ModuleType) -> dict[str, Any]:
    sizes = {
        "deconvolution": (1, 5), "factorisation": (3, 2), "assignment": (3,), "sudoku": (2,),
        "parity": (12,), "ising": (3,), "rbm": (3,),
    }  # fmt: skip
    return {"MODELS": {name: lambda r, n=name: getattr(module, n)(r, *sizes[n]) for name in sizes}}


def settings(module: ModuleType) -> dict[str, Any]:
    small = {"states": 30, "steps": 4, "batch": 2, "dim": 4, "keep": 5}
    made = {"SETTINGS": [replace(setting, **small) for setting in module.SETTINGS]}
    if hasattr(module, "BESIDE"):
        small = {"states": 30, "steps": 4, "keep": 5, "runs": 1}
        made["BESIDE"] = [replace(setting, **small) for setting in module.BESIDE]
    return made


def grids(module: ModuleType) -> dict[str, Any]:
    started = module.run

    def run(command: list[str], limit: float) -> tuple[int, float, float, float, str]:
        """The command in this process, and what it takes to start one that does nothing."""
        code, before, sys.argv = 0, sys.argv, command[2:]
        try:
            main()
        except SystemExit as left:
            code = int(left.code or 0)
        finally:
            sys.argv = before
        return code, *started(["true"], limit)[1:4], ""

    return {"MADE": {"grid": module._file(2, lambda: module.grid(3, 3))}, "TAKEN": {}, "run": run}


RUNS = {
    "alignment": Tiny("--repeats 1", {"FRAMES": 12, "LABELS": 3, "BATCH": 2, "CLASSES": 5}),
    "bnlearn": Tiny(f"--ours {FOLDER.parents[1] / 'examples' / 'asia.bif'}"),
    "budgets": Tiny("--task PR --method auto", shrunk=grids),
    "chain": Tiny("--batch 1 --states 4 --memory 1e8", {"STEPS": 5, "LONG": (20, 3)}),
    "modes": Tiny("--sides 4 --seconds 0.2 --messages 0.2"),
    "operators": Tiny("--width 3 --steps 3"),
    "orders": Tiny(
        "--runs 1", {"STATES": 40, "PAPER": 60, "STEPS": 3, "SIDE": 2, "WORDS": 3, "SHARES": (0.1,)}
    ),
    "constrained": Tiny("--states 20 --rank 3 --words 9 --length 9 --batch 1 2"),
    "counting": Tiny(
        "--seconds 5", {"SIZES": ((6, 1.0),), "SEEDS": 1, "ROWS": 3}, needs="pysdd"
    ),
    "crf": Tiny("--seconds 0.001 --beside", {"SIZES": [(1, 4, 3)] * 4}, needs="torchcrf"),
    "decoding": Tiny("--distance 3 --rounds 2 --shots 20 --keep 10 20", needs="pymatching"),
    "dense": Tiny("--count 1 --seconds 0.3"),
    "dependencies": Tiny("", {"BATCH": 1, "WORDS": (3, 5)}),
    "distributed": Tiny("--side 4 --sweeps 2 --repeats 1 --rounds 1"),
    "errata": Tiny("", {"DATA": Path("absent")}),
    "evidence": Tiny("--repeats 1 --side 9"),
    "features": Tiny("--draws 4 --cases 1"),
    "hidden": Tiny(
        "--steps 2 --rounds 1", {"SIZES": ((2, 20),), "SEQUENCES": 3}, needs="hmmlearn"
    ),
    "hypertree": Tiny(
        "", {"BATCH": 2, "WORDS": 4, "SIZES": ((2, 3),), "LARGE": (1, 4, 5, 6, 2)}
    ),
    "intervals": Tiny("", {"DATA": Path("absent")}),
    "learning": Tiny(
        f"--network {FOLDER.parents[1] / 'examples' / 'asia.bif'} --rows 30 --steps 1",
        needs="pyagrum",
    ),
    "lengths": Tiny(
        "--steps 2",
        {
            "FRAMES": (4, 6), "TARGETS": (1, 2), "STEPS": (2, 3), "WORDS": (2, 3), "SHORT": (2, 3),
        },
    ),
    "logical": Tiny("", shrunk=small),
    "loopy": Tiny(
        "",
        {
            "GRIDS": ((4, 2, 3),), "RESIDUAL_GRIDS": ((3, 2),), "BATCHES": ((2, 4, 3, 0.2),),
            "WORDS": 3, "BITS": 24, "DECODED": ((0.2, 5),), "MILLION": 4, "LONGEST": 0.0,
        },
    ),
    "covariates": Tiny("--steps 40 --limit 1"),
    "dynamic": Tiny("--steps 12 --limit 1"),
    "haplotypes": Tiny("--sites 30 --panel 12 --reference 8 --targets 2"),
    "linkage": Tiny("--pairs 60"),
    "lowrank": Tiny("", {"STEPS": 4, "RANK": 2, "WORDS": 4, "PARENT_RANK": 2}, cases),
    "masks": Tiny("", {"SIZES": ((4, 2),)}),
    "matching": Tiny("--rows 30", {"SQUARES": (4.0,), "TRACKS": 6}),
    "pictures": Tiny("--side 12 --seconds 0.3"),
    "randomized": Tiny("", shrunk=settings),
    "randomized_grid": Tiny("--size 3 --states 20 --runs 1"),
    "reading": Tiny("--megabytes 0.004 --runs 1"),
    "recursions": Tiny(
        "--seconds 0.001",
        {
            "CHAINS": [(1, 3, 2)], "STEPS": [(1, 3, 2)], "SEGMENTS": [(1, 3, 2, 2)],
            "GRAMMARS": [(1, 3, 2)], "TREES": (1, 3), "BITEXT": (2, 2),
            "FRAMES": 5, "LABELS": 2, "BATCH": 2, "CLASSES": 4,
        },
    ),
    "semicrf": Tiny("--steps 6 --tags 2 --durations 3"),
    "small": Tiny("asia --repeats 1 --rounds 1"),
    "species": Tiny("--taxa 4 --columns 5"),
    "sweeps": Tiny("--models 1 --variables 8 --members 4"),
    "tagging": Tiny("--sentences 4", {"TAGS": 2, "WORDS": 5}),
    "trees": Tiny("--variables 5 --states 6"),
    "tuning": Tiny("--elements 4096 --side 4 --repeats 1"),
    "uai": Tiny("", {"SHARED": Path("absent")}),
    "uai2022": Tiny("", {"SHARED": Path("absent")}),
}  # fmt: skip


def test_every_benchmark_is_run():
    assert sorted(RUNS) == sorted(path.stem for path in FOLDER.glob("*.py"))


def started(module: ModuleType, arguments: list[str]) -> str:
    """Output of a script, run by the last lines of its file."""
    source = Path(str(module.__file__)).read_text()
    entry = ast.parse(source).body[-1]
    assert isinstance(entry, ast.If)
    before, sys.argv = sys.argv, arguments
    try:
        with redirect_stdout(io.StringIO()) as printed:
            exec(compile(ast.Module(entry.body, []), arguments[0], "exec"), vars(module))
    finally:
        sys.argv = before
    return printed.getvalue()


@pytest.mark.long
@pytest.mark.parametrize("name", RUNS)
def test_a_benchmark_runs_at_a_tiny_size(name, monkeypatch):
    tiny, path = RUNS[name], FOLDER / f"{name}.py"
    if tiny.needs:
        pytest.importorskip(tiny.needs)
    spec = importlib.util.spec_from_file_location(f"tiny_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    for constant, value in {**tiny.sizes, **tiny.shrunk(module)}.items():
        assert hasattr(module, constant)
        monkeypatch.setattr(module, constant, value)
    run = subprocess.run

    def here(command: list[str], **options: Any) -> subprocess.CompletedProcess:
        """Children of the script run in this process, with its sizes."""
        if command[:2] != [sys.executable, str(path)]:
            return run(command, **options)
        return subprocess.CompletedProcess(command, 0, started(module, command[1:]), "")

    monkeypatch.setattr(subprocess, "run", here)
    monkeypatch.setattr(resource, "setrlimit", lambda *_: None)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # and back to what they were before
    monkeypatch.setenv("PYTHONPATH", str(FOLDER.parents[1]))
    threads, arguments = torch.get_num_threads(), [str(path), *tiny.arguments.split()]
    try:
        if name == "distributed":  # it forks
            command = [sys.executable, *arguments]
            printed = run(command, capture_output=True, text=True, check=True).stdout
        else:
            printed = started(module, arguments)
    except SystemExit as left:
        if "needs" not in str(left):
            raise
        pytest.skip(str(left))
    finally:
        torch.set_num_threads(threads)
    assert printed.strip()
