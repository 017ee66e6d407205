"""Change the package at random places, one at a time, and count the changes that tests notice.

python -m tests.mutants --count 200 --seed 0
python -m tests.mutants --count 20 --files 'rdpgraph/plan/*.py' -m 'not long'

Each mutant is made in a copy of the repository. It is killed if a test fails among those related to
its file: the tests of the folders that mirror its room, those that mention most of its names first,
then those of all questions to a posterior.
Survivors are printed: a test is missing there, or the change changes no answer. A mutant depends
on `--seed` and the files alone.
"""

import argparse
import ast
import contextlib
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest
import torch  # noqa: F401  once for all

from tests.mutants.places import mutated

ROOT = Path(__file__).parents[2]
# Rooms whose tests are in folders of other names.
TESTED = {
    "_core": ("model",), "interface": ("structures",), "logspace": ("structures",),
    "schedulers": ("engines",), "testing": ("estimate",), "io": ("io", "learn", "nn"),
    "structures/grammar": ("structures/hypertree",),
    "structures/dependency": ("structures/hypertree",),
    "structures/derivations": ("structures/hypertree",),
}  # fmt: skip
FIRST = 3  # files of tests that run before the others are collected


def related(copy: Path, file: Path) -> list[Path]:
    """Files of tests for a file of the package, the nearest first."""
    room, tests = file.relative_to("rdpgraph").parent, copy / "tests"
    while room.name and str(room) not in TESTED and not (tests / room).is_dir():
        room = room.parent
    folders = [tests / name for name in TESTED.get(str(room), (room,))] if room.name else []
    tree = ast.parse((copy / file).read_text())
    defined = (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef | ast.FunctionDef))
    words = {file.stem, file.parent.name}
    names = {node.name for node in defined if node.name[0] != "_"} | {file.stem}
    near = {}
    for path in sorted(tests.rglob("test_*.py")):
        met = len(names & set(re.findall(r"\w+", f"{path.stem} {path.read_text()}")))
        inside = any(path.is_relative_to(folder) for folder in folders)
        if inside or path.parent.name == "query" or (met and not folders):
            named = any(part in path.stem for part in words)
            near[path.relative_to(copy)] = (not inside, not named, -met)
    return sorted(near, key=near.__getitem__)


def failing(copy: Path, tests: list[str], options: list[str], limit: int) -> str:
    """The first test that fails in a copy; empty if after so many CPU seconds none has failed."""
    printed = copy.parent / "printed.txt"
    child = os.fork()  # torch is imported already
    if child == 0:
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(os.open(printed, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
        os.dup2(1, 2)
        os.chdir(copy)
        os.environ["PYTHONPATH"] = sys.path[0] = str(copy)
        flags = ["-q", "-x", "-n0", "-p", "no:cacheprovider", "--timeout=100", "--tb=no"]
        os._exit(int(pytest.main([*flags, *options, *tests])))
    _, status = os.waitpid(child, 0)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # what it started and left
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) in (
        signal.SIGXCPU, signal.SIGKILL, signal.SIGALRM
    ):  # fmt: skip
        return ""
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) in (0, 5):  # all passed, none chosen
        return ""
    found = re.search(r"^(?:FAILED|ERROR) (\S+)", printed.read_text(errors="replace"), re.M)
    return found[1] if found else "pytest itself"


def killer(copy: Path, tests: list[Path], options: list[str], limit: int) -> str:
    parts = [[str(path) for path in part] for part in (tests[:FIRST], tests[FIRST:]) if part]
    return next(filter(None, (failing(copy, part, options, limit) for part in parts)), "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", default="rdpgraph/**/*.py", help="which files are changed")
    parser.add_argument("--count", type=int, default=10, help="of mutants")
    parser.add_argument("--first", type=int, default=0, help="number of the first mutant")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=int, default=100, help="seconds of the processor for each")
    parser.add_argument("-m", default="", help="marks of the tests, as in pytest")
    given = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    deaths, options = Counter[str](), ["-m", given.m]
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        ignored = shutil.ignore_patterns(".*", "__pycache__", "build", "dist")
        shutil.copytree(ROOT, copy, ignore=ignored)
        files = sorted(path.relative_to(copy) for path in copy.glob(given.files))
        for number in range(given.first, given.first + given.count):
            draw = random.Random(f"{given.seed} {number}")
            where = ""
            while not where:
                place = draw.choice(files)
                source = (copy / place).read_text()
                changed, where = mutated(source, draw)
            tests = related(copy, place)
            (copy / place).write_text(changed)
            death = killer(copy, tests, options, given.limit)
            (copy / place).write_text(source)
            deaths[death] += 1
            told = f"killed by {death}" if death else "SURVIVED"
            print(f"{number} {place}:{where}: {told}", flush=True)
        for test in sorted({*deaths} - {"", "pytest itself"}):
            if failing(copy, [test], options, given.limit):
                print(f"{test} fails before anything is changed: {deaths.pop(test)} do not count")
    print(f"{deaths.total() - deaths['']} of {deaths.total()} killed")


if __name__ == "__main__":
    main()
