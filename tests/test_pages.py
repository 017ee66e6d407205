"""The pages: each has a way on, no link leads nowhere, and every public name is shown in use."""

import doctest
import importlib.util
import inspect
import re
from pathlib import Path
from types import ModuleType

import pytest

import rdpgraph as rg

DOCS = Path(__file__).parents[1] / "docs"
PAGES = sorted(page for page in DOCS.rglob("*.md"))
LINK = re.compile(r"\[[^\]\n]*\]\((?!https?:|#|mailto:)([^)\s#]+)(?:#[^)\s]*)?\)")
BLOCK = re.compile(r"^ *```python\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
TOCTREE = re.compile(r"```\{toctree\}\n(.*?)```", re.DOTALL)
MODULES = [name for name in rg.__all__ if isinstance(getattr(rg, name), ModuleType)]
EXAMPLES = {path.stem for path in (DOCS.parent / "examples").glob("*.py")} | {"index"}


def exists(page: Path, target: str) -> bool:
    path = (page.parent / target).resolve()
    if path.parent == (DOCS / "gallery").resolve():  # made from examples/
        return path.stem in EXAMPLES
    if path.parent == (DOCS / "generated").resolve():
        return path.name in (DOCS / "pictures.py").read_text()
    return path.is_file() or path.with_suffix(".md").is_file()


def name_of(page: Path) -> str:
    return str(page.relative_to(DOCS).with_suffix(""))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_no_link_leads_nowhere(page: Path) -> None:
    text = page.read_text()
    for target in LINK.findall(text):
        assert exists(page, target), f"{page.name} links to {target}"
    for target in re.findall(r"^:link: (\S+)$", text, re.MULTILINE):
        assert exists(page, target), f"a card of {page.name} links to {target}"


def test_readme_and_contributing_link_to_what_is_there() -> None:
    for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md"):
        page = DOCS.parent / name
        for target in LINK.findall(page.read_text()):
            assert (page.parent / target).exists(), f"{name} links to {target}"


def test_the_places_that_contributing_names_are_there() -> None:
    text = (DOCS.parent / "CONTRIBUTING.md").read_text()
    rows = [line.split("|")[2:5] for line in text.splitlines() if line.startswith("|")]
    assert len(rows) > 10
    for row in rows:
        for folder, cell in zip(("rdpgraph", "tests", "docs"), row, strict=True):
            for path in re.findall(r"`([\w./]+[./]\w*)`", cell):
                assert (DOCS.parent / folder / path).exists(), f"there is no {folder}/{path}"


def test_every_page_is_in_the_navigation_once() -> None:
    listed = [
        (page.parent / line.strip()).resolve().relative_to(DOCS.resolve())
        for page in PAGES
        for tree in TOCTREE.findall(page.read_text())
        for line in tree.splitlines()
        if line.strip() and not line.startswith(":")
    ]
    expected = {*map(name_of, PAGES), "gallery/index"} - {"index"}
    assert sorted(map(str, listed)) == sorted(expected)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_page_has_a_way_on(page: Path) -> None:
    if name_of(page) != "changelog":
        assert LINK.search(page.read_text())


def shown(name: str, thing: object, code: str) -> bool:
    """True if a name is used in an example: in its docstring, or on a page of the reference."""
    return ">>>" in (inspect.getdoc(thing) or "") or bool(re.search(rf"\b{name}\b", code))


def code_of(*pages: str) -> str:
    texts = ((DOCS / "api" / f"{page}.md").read_text() for page in pages)
    return "\n".join(block for text in texts for block in BLOCK.findall(text))


@pytest.mark.parametrize("module", [*MODULES, "testing"])
def test_every_name_of_a_module_is_on_its_page_with_an_example(module: str) -> None:
    public = importlib.import_module(f"rdpgraph.{module}")
    page = (DOCS / "api" / f"{module}.md").read_text()
    assert f".. automodule:: rdpgraph.{module}\n   :members:" in page
    code = code_of(module)
    lacking = [name for name in public.__all__ if not shown(name, getattr(public, name), code)]
    assert not lacking


def test_every_name_at_the_top_is_on_one_page_with_an_example() -> None:
    names = {name for name in rg.__all__ if name not in MODULES}
    pages = ("models", "potentials", "inference", "structures", "files")
    found = [
        name
        for page in pages
        for name in re.findall(
            r"^\.\. auto(?:class|function):: rdpgraph\.(\w+)$",
            (DOCS / "api" / f"{page}.md").read_text(),
            re.MULTILINE,
        )
    ]
    assert sorted(found) == sorted(names)
    code = code_of(*pages)
    assert not [name for name in names if not shown(name, getattr(rg, name), code)]


def test_every_example_of_the_gallery_has_a_picture() -> None:
    for script in (DOCS.parent / "examples").glob("*.py"):
        text = script.read_text()
        named = re.search(r"^# sphinx_gallery_thumbnail_path = \"generated/(\S+)\"$", text, re.M)
        if script.stem.startswith("plot_"):
            assert "plt." in text
        else:
            assert named is not None
            assert named[1] in (DOCS / "pictures.py").read_text()


def public_classes() -> dict[type, str]:
    """Every public class, and the text of the directive that describes it."""
    homes = {name: rg for name in rg.__all__ if name not in MODULES}
    for module in (*MODULES, "testing"):
        place = importlib.import_module(f"rdpgraph.{module}")
        homes |= dict.fromkeys(place.__all__, place)
    pages = "\n".join(page.read_text() for page in sorted((DOCS / "api").glob("*.md")))
    classes = {getattr(place, name): (place, name) for name, place in homes.items()}
    described: dict[type, str] = {}
    for thing, (place, name) in classes.items():
        if inspect.isclass(thing):
            one = re.search(rf"autoclass:: rdpgraph\.(?:\w+\.)?{name}\n(( +:.*\n)*)", pages)
            every = re.search(rf"automodule:: {re.escape(place.__name__)}\n(( +:.*\n)*)", pages)
            found = one or every
            assert found is not None, name
            described[thing] = found[0]
    return described


def test_members_that_a_private_base_has_are_described() -> None:
    described = public_classes()
    for kind, options in described.items():
        known = {name for each in kind.__mro__ if each in described for name in vars(each)}
        private = (base for base in kind.__mro__ if base.__module__.startswith("rdpgraph."))
        lacking = {
            name
            for base in private
            for name, member in vars(base).items()
            if name[0] != "_"
            and getattr(member, "__doc__", None)
            and name not in known
            and not isinstance(member, int)
        } - {"crosses"}  # of pickles
        assert not lacking or ":inherited-members:" in options, (kind, lacking)


def test_the_picture_of_the_front_page_shows_the_tables():
    spec = importlib.util.spec_from_file_location("pictures", DOCS / "pictures.py")
    pictures = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(pictures)
    ratios = pictures.compared((DOCS / "benchmarks.md").read_text())
    assert all(len(each) > 1 for each in ratios.values())
    tables = []
    for _, first, theirs, ours in pictures.COMPARED:
        heads = [*first, theirs, ours or "other"]
        rows = [[*first, "-", "2"], [*first, "3,000", "20"]]
        tables += ["|".join(["", *row, ""]) for row in [heads, ["-"] * len(heads), *rows]] + [""]
    made = pictures.compared("\n".join(tables)).values()
    assert list(made) == [[150.0 if ours else 3000.0] for *_, ours in pictures.COMPARED]


def test_the_first_page_runs_where_there_is_no_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = doctest.testfile(str(DOCS / "index.md"), module_relative=False)
    assert found.attempted
    assert not found.failed
