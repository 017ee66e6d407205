"""Time and memory of the command line under budgets, over models, tasks and methods.

    python tests/benchmarks/budgets.py --time 5 --memory 500e6 [--only grid80] [--task MAP]

Every run is to end within 1.2 times its time and 2 s, and to stay within 1.2 times its memory
above what a run of a tiny model takes. Wall time counts the work of others on the machine, CPU time
does not: both are printed, with how often each rule was broken. Models are generated; those of the
competitions are taken from ``../shared/data`` where they are.
"""

import argparse
import os
import pathlib
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared" / "data" / "uai2014"
TASKS = ("PR", "MAR", "MAP", "MMAP")
METHODS = ("auto", "exact", "loopy", "join")
Scopes = list[tuple[int, ...]]


def grid(rows: int, columns: int) -> Scopes:
    """Pairs of neighbours."""
    number = [[r * columns + c for c in range(columns)] for r in range(rows)]
    across = [(number[r][c], number[r][c + 1]) for r in range(rows) for c in range(columns - 1)]
    return across + [
        (number[r][c], number[r + 1][c]) for r in range(rows - 1) for c in range(columns)
    ]


def tangled(count: int, factors: int, arity: int) -> Scopes:
    """Random factors."""
    draw = random.Random(0)
    return [tuple(draw.sample(range(count), arity)) for _ in range(factors)]


def written(path: pathlib.Path, states: int, scopes: Scopes, *, parity: bool = False) -> None:
    """A UAI file with random tables, or with those of parity checks, and one table for each."""
    draw = random.Random(1)
    count = 1 + max(v for scope in scopes for v in scope)
    with path.open("w") as file:
        print("MARKOV", count, " ".join([str(states)] * count), len(scopes) + count, file=file)
        for scope in scopes:
            print(len(scope), *scope, file=file)
        for v in range(count):
            print(1, v, file=file)
        for scope in scopes:
            size = states ** len(scope)
            if parity:
                table = [f"{1 - i.bit_count() % 2}" for i in range(size)]
            else:
                table = [f"{draw.uniform(0.2, 3.0):.3f}" for _ in range(size)]
            print(size, " ".join(table), file=file)
        for _ in range(count):
            print(states, *(f"{draw.uniform(0.5, 1.5):.3f}" for _ in range(states)), file=file)


def huge(path: pathlib.Path) -> None:
    """A thousand variables of 2^20 states, and no tables to speak of."""
    path.write_text("MARKOV 1000 " + " ".join(["1048576"] * 1000) + " 0\n")


def _file(
    states: int, scopes: Callable[[], Scopes], *, parity: bool = False
) -> Callable[[pathlib.Path], None]:
    return lambda path: written(path, states, scopes(), parity=parity)


MADE: dict[str, Callable[[pathlib.Path], None]] = {
    "grid12x2": _file(2, lambda: grid(12, 12)),
    "grid60x20": _file(20, lambda: grid(60, 60)),
    "grid80x10": _file(10, lambda: grid(80, 80)),
    "grid200x5": _file(5, lambda: grid(200, 200)),
    "thin10000": _file(2, lambda: grid(2, 5000)),
    "triples2000": _file(2, lambda: tangled(2000, 3000, 3)),
    "triples3000": _file(2, lambda: tangled(3000, 4500, 3)),
    "pairs55000": _file(2, lambda: tangled(30_000, 55_000, 2)),
    "parity1200": _file(2, lambda: tangled(1200, 600, 6), parity=True),
    "huge": huge,
}
TAKEN = {
    "rb.cnf": SHARED / "PR" / "rb.cnf.uai.gz",
    "DBN_15": SHARED / "MAR" / "DBN_15.uai.gz",
    "2bitmax_6": SHARED / "PR" / "2bitmax_6.cnf.uai.gz",
}


def models(folder: pathlib.Path, only: str) -> Iterator[tuple[str, pathlib.Path]]:
    """Names and files."""
    for name, make in MADE.items():
        if only in name:
            path = folder / f"{name}.uai"
            make(path)
            yield name, path
    for name, path in TAKEN.items():
        if only in name and path.exists():
            yield name, path


def run(command: list[str], limit: float) -> tuple[int, float, float, float, str]:
    """Exit code, wall seconds, CPU seconds, peak resident bytes and the last line of the error."""
    with tempfile.TemporaryFile("w+") as said:
        start = time.perf_counter()
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=said)
        while True:
            pid, status, usage = os.wait4(child.pid, os.WNOHANG)
            if pid or time.perf_counter() - start > limit:
                break
            time.sleep(0.02)
        if not pid:
            child.kill()
            _, status, usage = os.wait4(child.pid, 0)
        wall = time.perf_counter() - start
        said.seek(0)
        lines = said.read().strip().splitlines()
    child.returncode = os.waitstatus_to_exitcode(status)
    cpu = usage.ru_utime + usage.ru_stime
    return child.returncode, wall, cpu, 1024.0 * usage.ru_maxrss, lines[-1] if lines else ""


def main() -> None:
    """The table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--time", type=float, default=5.0)
    parser.add_argument("--memory", type=float, default=500e6)
    parser.add_argument("--only", default="")
    parser.add_argument("--task", choices=TASKS, action="append")
    parser.add_argument("--method", choices=METHODS, action="append")
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (20 << 30, 20 << 30))
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["PYTHONPATH"] = str(ROOT)
    program = [sys.executable, "-m", "rdpgraph", "infer"]
    folder = pathlib.Path(tempfile.mkdtemp())
    tiny = folder / "tiny.uai"
    written(tiny, 2, [(0, 1)])
    baseline = run([*program, str(tiny)], 60.0)[3]
    most_seconds, most_bytes = 1.2 * options.time + 2.0, 1.2 * options.memory + baseline
    print(
        f"{options.time:g} s and {options.memory / 1e6:g} MB: at most {most_seconds:.1f} s and "
        f"{most_bytes / 1e6:.0f} MB, of which {baseline / 1e6:.0f} MB for a tiny model"
    )
    print(f"{'model':12} {'task':5} {'method':7} {'wall s':>7} {'CPU s':>7} {'MB':>6}  result")
    late = busy = large = count = 0
    for name, path in models(folder, options.only):
        for task in options.task or TASKS:
            for method in options.method or METHODS:
                if task == "MMAP" and method in ("loopy", "join"):
                    continue  # refused: needs exact inference
                command = [*program, str(path), "--task", task, "--method", method]
                command += ["--time", f"{options.time}s", "--memory", f"{options.memory:.0f}B"]
                command += ["--format", "json"]
                if task == "MMAP":
                    command += ["--query", "0", "--query", "1", "--query", "2"]
                code, wall, cpu, peak, said = run(command, 10 * options.time + 30)
                marks = (wall > most_seconds, cpu > most_seconds, peak > most_bytes)
                late, busy, large = late + marks[0], busy + marks[1], large + marks[2]
                count += 1
                flag = "".join(m for m, on in zip(("W", "C", "M"), marks, strict=True) if on)
                print(
                    f"{name:12} {task:5} {method:7} {wall:7.1f} {cpu:7.1f} {peak / 1e6:6.0f}  "
                    f"{flag:3} {'answered' if not code else said[:90]}",
                    flush=True,
                )
        if name in MADE:
            path.unlink()
    print(f"{count} runs: {late} too long (wall), {busy} (CPU), {large} too large")


if __name__ == "__main__":
    main()
