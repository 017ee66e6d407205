"""The recipes of docs/recipes.md: each is one short file outside the package, with its check.

That they run is tested with the other pages.
"""

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[1] / "docs" / "recipes.md").read_text()
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
KINDS = (
    "potential", "kind of factor", "proposal", "selection", "estimator", "structure", "rules",
    "schedule", "scheduler", "file format", "command",
)  # fmt: skip


def test_there_is_one_of_each_kind() -> None:
    assert [re.sub(r"^(A|An) ", "", title).lower() for title in SECTIONS] == list(KINDS)


@pytest.mark.parametrize("title", SECTIONS)
def test_a_recipe_is_short_and_whole(title: str) -> None:
    first = re.search(r"```python\n(.*?)```", SECTIONS[title], re.DOTALL)
    assert first is not None
    lines = [line for line in first[1].splitlines() if line.startswith((">>>", "..."))]
    assert len(lines) < 30
    assert any(line == ">>> import rdpgraph as rg" for line in lines), "it stands alone"
    assert not re.search(r"rdpgraph\._|rg\._", first[1]), "public names only"
    assert max(map(len, lines)) <= 104
