"""Settings that every test shares."""

import os
import random
from pathlib import Path

import hypothesis
import pytest
from jaxtyping import install_import_hook

os.environ.setdefault("MPLBACKEND", "Agg")

# Seeded, so that a failure repeats; no deadline, because the first call of a shape plans.
hypothesis.settings.register_profile(
    "rdpgraph", deadline=None, derandomize=True, database=None, max_examples=40
)
hypothesis.settings.load_profile("rdpgraph")

ROOT = Path(__file__).parents[1]

# Modules whose annotations have shapes, checked at every call. Before any of them is imported.
CHECKED = {
    "structures.chain": (
        "decode", "logs", "paths", "recursion", "sampling", "scaled", "scan",
    ),
    "structures.hypertree": ("elimination",),
}  # fmt: skip
install_import_hook(
    [f"rdpgraph.{package}.{name}" for package, names in CHECKED.items() for name in names],
    "beartype.beartype",
)


# Pages whose blocks take seconds, and are run by `make check` alone.
LONG_PAGES: set[str] = set()


def choices(item: pytest.Function) -> set[tuple[object, ...]]:
    """Names and values of a case, together where one `parametrize` gives them together."""
    marks = (mark.args[0] for mark in item.iter_markers("parametrize"))
    groups = (mark.split(",") if isinstance(mark, str) else mark for mark in marks)
    together = [tuple(name.strip() for name in names) for names in groups]
    return {(names, *(id(item.callspec.params[name]) for name in names)) for names in together}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as long what is listed, and cases of a test whose every value another case has, too."""
    tests: dict[str, dict[pytest.Item, set[tuple[object, ...]]]] = {}
    for item in items:
        if item.path.relative_to(ROOT).as_posix() in LONG_PAGES:
            item.add_marker("long")
        if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
            tests.setdefault(item.nodeid.split("[")[0], {})[item] = choices(item)
    for cases in tests.values():
        lacking = set().union(*cases.values())
        while lacking:
            item = max(cases, key=lambda case: len(lacking & cases[case]))
            lacking -= cases.pop(item)
        for item in cases:
            item.add_marker("long")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of evaluation data beside the checkout; the test is skipped where it is absent."""
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"the evaluation data is not here: {folder}")
    return folder


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """A file of sentences of animals that do things, and an empty line."""
    draw = random.Random(0)
    nouns, verbs = ["cat", "dog", "bird"], ["sees", "likes"]
    lines = [
        f"the {draw.choice(nouns)} {draw.choice(verbs)} the {draw.choice(nouns)}"
        + draw.choice(["", " today"])
        for _ in range(60)
    ]
    path = tmp_path / "text.txt"
    path.write_text("\n".join(lines) + "\n\n")
    return path
