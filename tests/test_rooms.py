"""Imports point one way: each room imports only rooms to its left."""

import ast
import importlib
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import MemberDescriptorType
from typing import Any

import networkx
import pytest

import rdpgraph

PACKAGE = Path(rdpgraph.__file__).parent

# Rooms of one row know nothing of each other. The package itself may import all.
ROWS = (
    {"errors"},
    {"_core"},
    {"logspace", "native"},
    {"model"},
    {"interface"},
    {"io", "plan"},
    {"engines", "recurrences"},
    {"structures"},
    {"decoding", "estimate"},
    {"query"},
    {"distributions"},
    {"schedulers"},
    {"distributed"},
    {"infer"},
    {"gp", "nn"},
    {"learn"},
    {"cli", "testing"},
    {"answers", "extend", "loopy", "pruning", "randomized", "trees"},  # public names, no code
    {"_public", "__main__"},
    {"__init__"},
)
COLUMN = {room: column for column, row in enumerate(ROWS) for room in row}
HEAVY = (
    "networkx", "cotengra", "opt_einsum", "matplotlib", "pandas", "typer", "rich", "torch._dynamo",
    "stim", "sinter", "ldpc", "pymatching",
)  # fmt: skip


def room_of(module: str) -> str:
    """The room of a dotted module name inside the package."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


# An import of our own, those inside functions included; ruff forbids relative ones.
IMPORT = re.compile(
    r"^ *(?:from (rdpgraph[\w.]*) import (\([^)]*\)|.*)|import (rdpgraph[\w.]*).*)$", re.MULTILINE
)


@cache
def imported(path: Path) -> list[tuple[int, str]]:
    """Line and module of every import of our own in one file."""
    lines: list[tuple[int, str]] = []
    text = path.read_text()
    for found in IMPORT.finditer(text):
        base, names, module = found.groups()
        # `from rdpgraph.plan import clock` names a module; `import Plan` from there does not.
        aliases = re.findall(r"(\w+)(?: as \w+)?", names.partition("#")[0]) if base else ()
        modules = [f"{base}.{alias}" for alias in aliases]
        named = [each if _is_module(each) else str(base) for each in modules] or [module or base]
        line = text.count("\n", 0, found.start()) + 1
        lines += ((line, each) for each in named)
    return lines


@cache
def _is_module(name: str) -> bool:
    path = PACKAGE.parent.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


FILES = sorted(PACKAGE.rglob("*.py"))


def test_imports_point_left() -> None:
    faults = []
    for path in FILES:
        name = path.relative_to(PACKAGE)
        room = name.with_suffix("").parts[0]
        assert room in COLUMN, f"{name} is in no room; add it to the rooms or move it into one"
        for line, module in imported(path):
            other = room_of(module)
            other = other if other in COLUMN else "__init__"
            if other != room and COLUMN[other] >= COLUMN[room]:
                faults.append(f"{name}:{line} imports '{other}', which is not to its left")
    assert not faults, "\n".join(faults)


@pytest.mark.long
def test_no_files_import_each_other_in_a_circle() -> None:
    """Imports for types, and inside functions, count too: a file would know too much."""

    def name_of(path: Path) -> str:
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    known = {name_of(path): {module for _, module in imported(path)} for path in FILES}
    public = known.pop(PACKAGE.name)  # the package has its names from `_public`, whoever imports it
    assert f"{PACKAGE.name}._public" in public
    given: Any = known
    graph = networkx.DiGraph(given).subgraph(known)
    assert not [each for each in networkx.strongly_connected_components(graph) if len(each) > 1]


@pytest.mark.long
def test_importing_the_package_loads_nothing_heavy() -> None:
    code = (
        "import sys, torch; before = set(sys.modules); import rdpgraph;"
        f"print(*[name for name in {HEAVY} if name in sys.modules and name not in before])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == []


ARITHMETIC = (ast.Tuple, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop, ast.expr_context)
BUDGETS = {"seconds", "deadline", "memory", "memory_bytes"}


def _is_number(node: ast.AST) -> bool:
    return isinstance(node, ARITHMETIC) or (
        isinstance(node, ast.Constant) and type(node.value) in (int, float)
    )


def _names(tree: ast.AST) -> set[str]:
    names = (node for node in ast.walk(tree) if isinstance(node, ast.Name | ast.Attribute))
    return {node.id if isinstance(node, ast.Name) else node.attr for node in names}


# A line that may name a number; a file without one is not parsed, as that takes longest.
NUMBER = re.compile(r"^\w[\w, ]* = [-+~(\d]", re.MULTILINE)


@pytest.mark.parametrize("room", sorted({path.relative_to(PACKAGE).parts[0] for path in FILES}))
def test_numbers_of_an_algorithm_are_explained_and_share_no_budget(room: str) -> None:
    """Shares of time and memory are in `_core/tuning.py` and `_core/effort.py`, with units."""
    faults = []
    for path in (PACKAGE / room).rglob("*.py") if (PACKAGE / room).is_dir() else [PACKAGE / room]:
        text, numbers = path.read_text(), set[str]()
        if not NUMBER.search(text):
            continue
        lines, tree = text.splitlines(), ast.parse(text)
        for node in tree.body:
            if isinstance(node, ast.Assign) and all(map(_is_number, ast.walk(node.value))):
                numbers |= set().union(*map(_names, node.targets))
                said = "#" in "".join(lines[node.lineno - 2 : node.end_lineno])
                if not said and lines[node.end_lineno or 0][:3] != '"""':
                    faults.append(f"{path}:{node.lineno} does not say what it is")
        for node in ast.walk(tree) if numbers else ():
            if isinstance(node, ast.BinOp | ast.Compare):
                inside = _names(node)
                if inside & numbers and inside & BUDGETS:
                    faults.append(f"{path}:{node.lineno} sets a number against time or memory")
    assert not faults, "\n".join(faults)


def test_every_public_method_is_described_by_itself_or_its_interface() -> None:
    faults = []
    for path in (each for each in FILES if re.search(r"^class [A-Z]", each.read_text(), re.M)):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        module = importlib.import_module(".".join(parts).removesuffix(".__init__"))
        for described in vars(module).values():
            own = getattr(described, "__module__", None) == module.__name__
            if not isinstance(described, type) or not own or described.__name__[0] == "_":
                continue
            for name, part in vars(described).items():
                # Functions and what is made of them, as properties; a field is none.
                field = name in vars(described).get("__annotations__", ())
                if name[0] == "_" or field or isinstance(part, MemberDescriptorType):
                    continue
                said = [getattr(vars(base).get(name), "__doc__", 0) for base in described.__mro__]
                if hasattr(part, "__get__") and not any(said):
                    faults.append(f"{module.__name__}: {described.__name__}.{name}")
    assert not faults, "\n".join(faults)


def test_a_class_name_is_used_once() -> None:
    """A search for a class finds one definition.

    The exceptions are public, and are told apart by the modules that they are asked of.
    """
    public = {"HMM", "Mixture", "Product"}
    places: dict[str, list[str]] = {}
    for path in FILES:
        for name in re.findall(r"^ *class (\w+)[(:]", path.read_text(), re.MULTILINE):
            if name not in public:
                places.setdefault(name, []).append(str(path.relative_to(PACKAGE)))
    assert not {name: found for name, found in places.items() if len(found) > 1}
