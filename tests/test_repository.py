"""Files at the root of the repository that repeat what pyproject.toml says."""

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
