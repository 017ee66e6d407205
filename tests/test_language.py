"""Plain English: docstrings that stand alone, and none of the words that readers stumble over."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = sorted((ROOT / "rdpgraph").rglob("*.py"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TEXTS = [page for page in PAGES if page.stem != "changelog"] + [
    *PACKAGE,
    *sorted((ROOT / "examples").rglob("*.py")),
]
# Each with the word to use instead.
FORBIDDEN = {
    r"dearer|too dear": "more expensive",
    r"(come|comes|came) to rest|at rest": "converge",
    r"whilst": "while",
    r"where(by|in|of|upon)|there(of|in|to)|here(of|in|by)": "a clause of its own",
    r"upon": "on",
    r"for ever": "forever",
    r"anew": "again",
    r"beforehand": "in advance",
    r"in the\s+place\s+of": "instead of",
    r"but\s+for": "except for",
    r"one's own": "your own, or its own",
    r"bettered": "improved",
    r"mend(s|ed|ing)?": "repair, or fix",
    r"learnt": "learned",
    r"weighed": "weighted",
    r"lest|aught|nought|ere|amongst|betwixt|hither|thither|whence": "a word of today",
    r"shall": "will, or must",
}
REFERENCE = re.compile(r"(See|As|Like|That of|Those of|The same as)\s+`[^`]+`(, .{0,40})?\.?", re.S)


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_words_are_those_of_today(path: Path) -> None:
    text = path.read_text()
    for words, instead in FORBIDDEN.items():
        match = re.search(rf"\b({words})\b", text, re.IGNORECASE)
        assert match is None, (
            f"{path.name}:{text.count(chr(10), 0, match.start()) + 1} says {match[0]!r}; "
            f"write: {instead}"
        )


def documented(path: Path) -> list[tuple[str, str]]:
    """Name and docstring of everything in a file that has one."""
    return [
        (f"{path.name}:{node.lineno} {node.name}", ast.get_docstring(node) or "")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node)
    ]


@pytest.mark.parametrize("path", PACKAGE, ids=lambda path: str(path.relative_to(ROOT)))
def test_docstrings_stand_alone(path: Path) -> None:
    """Whoever reads one has what it says in front of them, not where it is said."""
    for name, docstring in documented(path):
        assert not REFERENCE.fullmatch(docstring), f"{name} says only: {docstring}"
        assert len(docstring.split()) > 2, f"{name} says no more than: {docstring}"


@pytest.mark.parametrize("path", PACKAGE, ids=lambda path: str(path.relative_to(ROOT)))
def test_results_are_named_for_what_they_are(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        name = getattr(node, "id", None) or getattr(node, "arg", None)
        assert name != "found", f"{path.name}:{getattr(node, 'lineno', 0)} calls a result 'found'"
