"""Settings that every test shares."""

import gc
import itertools
import os
import random
from collections.abc import Callable, Generator
from pathlib import Path

import hypothesis
import pytest
from jaxtyping import install_import_hook

os.environ.setdefault("MPLBACKEND", "Agg")
gc.disable()  # until all is collected, of which nothing is garbage

# Seeded, so that a failure repeats; no deadline, because the first call of a shape plans.
hypothesis.settings.register_profile(
    "rdpgraph", deadline=None, derandomize=True, database=None, max_examples=40
)
hypothesis.settings.load_profile("rdpgraph")

ROOT = Path(__file__).parents[1]

# Recursions whose annotations have shapes, checked at every call. Before any of them is imported.
CHECKED = (
    "rdpgraph/structures/chain/decode.py",
    "rdpgraph/structures/chain/parts.py",
    "rdpgraph/structures/chain/paths.py",
    "rdpgraph/structures/chain/recursion.py",
    "rdpgraph/structures/dependency/arborescences.py",
)
install_import_hook(
    [path.removesuffix(".py").replace("/", ".") for path in CHECKED], "beartype.beartype"
)


class Hands:
    """A clock that stands still until it is moved."""

    def __init__(self):
        self.time = 1000.0

    def __call__(self):
        return self.time


@pytest.fixture
def hands(monkeypatch):
    """Put such a clock in place of the machine's."""
    monkeypatch.setattr("rdpgraph.plan.clock.perf_counter", found := Hands())
    return found


# Files whose examples take seconds.
LONG = {
    "docs/alignments.md",
    "docs/api/inference.md",
    "docs/api/learn.md",
    "docs/api/testing.md",
    "docs/chains.md",
    "docs/coming_from/hmmlearn.md",
    "docs/distributed.md",
    "docs/extending.md",
    "docs/gp.md",
    "docs/hidden_markov.md",
    "docs/hypertrees.md",
    "docs/jobs/covariates.md",
    "docs/jobs/who_is_who.md",
    "docs/learning.md",
    "docs/loopy.md",
    "docs/lowrank.md",
    "docs/pruning.md",
    "docs/randomized.md",
    "docs/recipes.md",
    "docs/training.md",
    "docs/vae.md",
    "docs/variance.md",
    "rdpgraph/distributed/spread.py",
    "rdpgraph/gp/tagger.py",
    "rdpgraph/nn/crf.py",
    "rdpgraph/testing/estimators.py",
    "rdpgraph/testing/selections.py",
}


@pytest.hookimpl(wrapper=True)
def pytest_collect_file() -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Look for no examples in files of tests, which have none, and import no helper for them."""
    return [each for each in (yield) if type(each) is pytest.Module]


def choices(item: pytest.Function) -> set[tuple[object, ...]]:
    """Names and values of a case, together where one `parametrize` gives them together."""
    marks = (mark.args[0] for mark in item.iter_markers("parametrize"))
    groups = (mark.split(",") if isinstance(mark, str) else mark for mark in marks)
    together = [tuple(name.strip() for name in names) for names in groups]
    return {(names, *(id(item.callspec.params[name]) for name in names)) for names in together}


def covering(cases: list[pytest.Function], together: int) -> list[pytest.Function]:
    """A few of the cases, in which all that some choices of a case can be together occur."""
    met = {item: set(itertools.combinations(sorted(choices(item)), together)) for item in cases}
    lacking, few = set().union(*met.values()), []
    while lacking:
        few.append(max(met, key=lambda item: len(lacking & met[item])))
        lacking -= met.pop(few[-1])
    return few or cases


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Thin out the combinations of parameters, and mark as long what `make test` leaves out.

    Of a test marked `cover(2)` cases are kept in which every pair of values of two parameters
    occurs, of `cover(1)` every value. Of any test, every value is in one case that is not long.
    """
    tests: dict[str, list[pytest.Function]] = {}
    for item in items:
        if item.path.relative_to(ROOT).as_posix() in LONG:
            item.add_marker("long")
        if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
            tests.setdefault(item.nodeid.split("[")[0], []).append(item)
    dropped: set[pytest.Item] = set()
    for cases in tests.values():
        kept, cover = cases, cases[0].get_closest_marker("cover")
        if cover is not None:
            kept = covering(cases, cover.args[0])
            dropped |= {*cases} - {*kept}
        for item in {*kept} - {*covering(kept, 1)}:
            item.add_marker("long")
    config.hook.pytest_deselected(items=list(dropped))
    items[:] = [item for item in items if item not in dropped]


def pytest_collection_finish() -> None:
    """Leave what is here to stay, a million objects, out of every collection of garbage."""
    gc.enable()
    gc.collect()
    gc.freeze()


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


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Make everything in blocks of a few entries from now on, as where sizes are large."""
    from rdpgraph._core import tuning

    def begin(entries: int) -> None:
        for name in vars(tuning):
            if name.endswith(("BLOCK", "_TERMS")):
                monkeypatch.setattr(tuning, name, entries)

    return begin


@pytest.fixture
def tabulating(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Write out no tables of more than so many entries from now on, as where memory is short."""
    from rdpgraph._core import tuning

    return lambda entries: monkeypatch.setattr(tuning, "MOST_TABULATED", entries)


@pytest.fixture
def ticking(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Advance the clock by a second whenever anything looks at it, from now on."""
    from rdpgraph.plan import clock

    def begin() -> None:
        times = itertools.count()
        monkeypatch.setattr(clock, "now", lambda: float(next(times)))

    return begin


@pytest.fixture
def by_torch(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], object]:
    """Ask as where there is no compiled library: by torch, with steps laid out anew."""
    from rdpgraph.native import library
    from rdpgraph.recurrences import executor

    def asked(answer: Callable[[], object]) -> object:
        with monkeypatch.context() as patch:
            patch.setattr(library, "available", lambda *_: False)
            patch.setattr(executor.LIBRARY, "available", lambda dtype: False)
            return answer()

    return asked
