"""Change the package at random places, one at a time, and count the changes that tests notice.

    python tests/mutants.py --count 20 --files 'rdpgraph/plan/*.py' -- tests/plan -m 'not long'

Each mutant is made in a copy of the package, and is killed if the tests named after `--` fail or
take longer than `--limit` seconds. Those that survive are printed: a test is missing there, or the
change changes no answer. A mutant depends on `--seed` and the files alone.
"""

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
COMPARED = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
COMPUTED = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult,
    ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
DROPPED = ast.Assign | ast.AugAssign | ast.Expr | ast.Raise


def changes(tree: ast.Module) -> Iterator[tuple[ast.expr | ast.stmt, Callable[[], object]]]:
    """Places in a file, each with a function that changes the tree there."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARED:
            other = COMPARED[type(node.ops[0])]()
            yield node, lambda node=node, other=other: node.ops.__setitem__(0, other)
        elif isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in COMPUTED:
            if not _annotates(node):
                other = COMPUTED[type(node.op)]()
                yield node, lambda node=node, other=other: setattr(node, "op", other)
        elif isinstance(node, ast.Constant) and type(node.value) in (int, float, bool):
            value = not node.value if isinstance(node.value, bool) else node.value + 1
            yield node, lambda node=node, value=value: setattr(node, "value", value)
        elif isinstance(node, ast.FunctionDef):
            for place, statement in enumerate(node.body):
                if isinstance(statement, DROPPED) and not _documents(statement):
                    body = node.body
                    yield statement, lambda body=body, at=place: body.__setitem__(at, ast.Pass())


def _annotates(node: ast.BinOp | ast.BoolOp) -> bool:
    """Whether an operator joins names of units or types in text."""
    sides = [node.left, node.right] if isinstance(node, ast.BinOp) else node.values
    return any(isinstance(side, ast.Constant) and isinstance(side.value, str) for side in sides)


def _documents(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def mutated(source: str, draw: random.Random) -> tuple[str, str]:
    """A source changed at one place, and a line that says where and how; empty if it has none."""
    tree = ast.parse(source)
    places = list(changes(tree))
    if not places:
        return "", ""
    node, change = draw.choice(places)
    before = ast.unparse(node)
    change()
    after = ast.unparse(ast.fix_missing_locations(tree))
    named = "dropped" if isinstance(node, ast.stmt) else f"now {ast.unparse(node)}"
    return after, f"{node.lineno}: {before} ({named})"


def killed(copy: Path, tests: list[str], limit: float) -> bool:
    """Whether the tests fail, or do not end, in a copy of the package."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    environment = os.environ | {"PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"}
    try:
        run = subprocess.run(
            command, cwd=copy, env=environment, capture_output=True, timeout=limit, check=False
        )
    except subprocess.TimeoutExpired:
        return True
    return run.returncode != 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", default="rdpgraph/**/*.py", help="which files are changed")
    parser.add_argument("--count", type=int, default=10, help="of mutants")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=600.0, help="seconds for the tests")
    parser.add_argument("tests", nargs="*", default=["-m", "not long"], help="after --")
    given = parser.parse_args()
    draw, deaths = random.Random(given.seed), 0
    files = sorted(ROOT.glob(given.files))
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        ignored = shutil.ignore_patterns(".*", "__pycache__", "build", "dist")
        shutil.copytree(ROOT, copy, ignore=ignored)
        if killed(copy, given.tests, given.limit):
            sys.exit("The tests fail before anything is changed.")
        for number in range(given.count):
            place = where = None
            while not where:
                place = draw.choice(files).relative_to(ROOT)
                source = (ROOT / place).read_text()
                changed, where = mutated(source, draw)
            (copy / place).write_text(changed)
            dead = killed(copy, given.tests, given.limit)
            (copy / place).write_text(source)
            deaths += dead
            print(f"{number} {'killed' if dead else 'SURVIVED'} {place}:{where}", flush=True)
    print(f"{deaths} of {given.count} killed")


if __name__ == "__main__":
    main()
