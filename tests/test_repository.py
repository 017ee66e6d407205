"""Files at the root of the repository that repeat what pyproject.toml says."""

import importlib.util
import json
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_citation_is_of_this_version() -> None:
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {PROJECT['version']}\n" in citation
    assert f"\nlicense: {PROJECT['license']}\n" in citation
    names = re.findall(r"^  - name: (.+)$", citation, re.MULTILINE)
    assert names == [author["name"] for author in PROJECT["authors"]]


def test_workflows_run_targets_of_the_makefile_on_the_pythons_that_are_promised() -> None:
    makefile = (ROOT / "Makefile").read_text()
    workflows = "".join(path.read_text() for path in (ROOT / ".github/workflows").glob("*.yml"))
    for target in re.findall(r"run: make ([\w-]+)", workflows):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    promised = re.findall(r"Python :: (3\.\d+)", " ".join(PROJECT["classifiers"]))
    tested = re.search(r"python: \[(.+)\]", workflows)
    assert tested is not None
    assert re.findall(r"3\.\d+", tested[1]) == promised


def loaded(path: str):
    spec = importlib.util.spec_from_file_location("loaded", ROOT / path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_architecture_lists_every_file_with_its_first_line() -> None:
    modules = loaded("docs/modules.py")
    assert (ROOT / "docs/architecture.md").read_text().count(modules.MARK) == 1
    rows = re.findall(r"^\| `(\S+)` \| (.{10,}\.) \|$", modules.listed(), re.MULTILINE)
    names = [file.name for file in (ROOT / "rdpgraph").rglob("*.*") if file.stat().st_size]
    kept = (name for name in names if name.endswith((".py", ".h", ".cpp")))
    assert sorted(name for name, _ in rows) == sorted(kept)


def test_versions_of_the_pages_stand_side_by_side(tmp_path) -> None:
    build, site = tmp_path / "build", tmp_path / "site"
    build.mkdir()
    place = loaded("docs/versions.py").place
    for name in ("dev", "0.9.0", "0.10.0", "dev"):
        (build / "index.html").write_text(name)
        names = place(build, site, name)
    assert names == ["0.10.0", "0.9.0", "dev"] == json.loads((site / "versions.json").read_text())
    assert (site / "0.9.0" / "index.html").read_text() == "0.9.0"
    assert 'url=0.10.0/"' in (site / "index.html").read_text()


def test_a_release_has_the_addresses_of_its_repository(monkeypatch) -> None:
    monkeypatch.setenv("GITHUB_SERVER_URL", "https://example.org")
    monkeypatch.setenv("GITHUB_REPOSITORY", "Someone/name")
    text = (ROOT / "pyproject.toml").read_text() + loaded(".github/urls.py").URLS
    urls = tomllib.loads(text)["project"]["urls"]
    assert urls["Source"] == "https://example.org/Someone/name"
    assert urls["Documentation"] == "https://someone.github.io/name/"


def test_settings_of_the_tests_name_files_that_exist() -> None:
    settings = (ROOT / "tests/conftest.py").read_text()
    named = re.findall(r'"((?:docs|rdpgraph)/[\w/]+\.(?:md|py))"', settings)
    assert named
    assert [path for path in named if not (ROOT / path).is_file()] == []
