"""Public names: each in one place, each place described."""

import importlib
import re
import subprocess
import sys
from dataclasses import is_dataclass
from pathlib import Path
from types import ModuleType

import pytest

import rdpgraph as rg

MODULES = sorted(name for name in rg.__all__ if isinstance(getattr(rg, name), ModuleType))


@pytest.mark.parametrize("name", MODULES)
def test_public_modules_say_what_belongs_there(name: str) -> None:
    module = getattr(rg, name)
    assert len(module.__doc__.strip().splitlines()) > 2
    assert set(module.__all__) <= set(dir(module))
    assert importlib.import_module(f"rdpgraph.{name}") is module


def test_names_that_are_completed_are_public() -> None:
    assert dir(rg) == sorted(rg.__all__)


@pytest.mark.parametrize("name", ["gp", "testing", "distributed", "nn", "learn", "decoding"])
def test_modules_are_completed_and_loaded_when_asked_for(name: str) -> None:
    assert name in dir(rg)
    assert getattr(rg, name) is importlib.import_module(f"rdpgraph.{name}")


def test_each_name_is_in_one_place() -> None:
    # A density and a distribution, and `explain` of one process and of several, share their names.
    alike = ("distributions", "learn", "distributed")
    places = [(name, place) for place in MODULES for name in getattr(rg, place).__all__]
    names = [
        *rg.__all__,
        *(name for name, place in places if place not in alike),
    ]
    assert not {name for name in names if names.count(name) > 1}


@pytest.mark.parametrize("module", [rg, *(getattr(rg, name) for name in MODULES)])
def test_what_users_declare_is_frozen(module: ModuleType) -> None:
    """All but the models that are fitted in scikit-learn's manner."""
    every = [getattr(module, name) for name in module.__all__]
    kinds = [each for each in every if isinstance(each, type) and is_dataclass(each)]
    loose = {each.__name__ for each in kinds if not each.__dataclass_params__.frozen}
    fitted = {
        "HMM", "HSMM", "HiddenStates", "BayesianNetwork", "DynamicBayesianNetwork",
        "SequenceTagger", "StructuredGP",
    }  # fmt: skip
    assert loose <= fitted


def asks_inside(path: Path) -> bool:
    """True if a file of tests imports from the package what is not public."""
    public = {"rdpgraph", *(f"rdpgraph.{name}" for name in MODULES)}
    imports = r"^ *from (rdpgraph[\w.]*) import (\([^)]*\)|.*)$"
    for module, listed in re.findall(imports, path.read_text(), re.MULTILINE):
        names = set(re.findall(r"(\w+)(?: as \w+)?", re.sub("#.*", "", listed)))
        if (module, names) == ("rdpgraph.cli", {"main"}):  # the command
            continue
        if module not in public or names - {*importlib.import_module(module).__all__}:
            return True
    return False


def test_tests_ask_by_public_names() -> None:
    """A test of an internal stays only where nothing public can see it."""
    files = sorted(Path(__file__).parent.rglob("test_*.py"))
    assert len([path for path in files if asks_inside(path)]) <= 42


@pytest.mark.long
def test_modules_are_imported_in_any_way() -> None:
    """Each by a process that has imported torch alone."""
    ways = "from rdpgraph import loopy", "import rdpgraph.loopy as loopy", "from rdpgraph import *"
    code = (
        f"import os, torch\nfor way in {ways}:\n if os.fork():\n  os.wait()\n else:\n"
        "  exec(way, names := {}); print(names['loopy'].Bethe.__name__, flush=True); os._exit(0)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["Bethe"] * 3
