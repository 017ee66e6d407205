"""Plain English: docstrings that stand alone, and none of the words that readers stumble over."""

import ast
import importlib
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = sorted((ROOT / "rdpgraph").rglob("*.py"))
DOCUMENTED = [
    file for room in ("rdpgraph", "tests", "examples") for file in (ROOT / room).rglob("*.py")
]
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
OPENING = re.compile(
    r'^ *"""\s*(What|Whatever|Whether|Who|Whom|Whose|Whoever|Which|How|Where|When|That|Those|They'
    r"|It|Of|By|In|For|From|To|With|Beside|And|Not|Nothing)\b",
    re.M,
)
REFERENCE = re.compile(r"(See|As|Like|That of|Those of|The same as)\s+`[^`]+`(, .{0,40})?\.?", re.S)


def test_words_are_those_of_today() -> None:
    any_of_them = re.compile(rf"\b({'|'.join(FORBIDDEN)})\b", re.IGNORECASE)
    faults = []
    for path in TEXTS:
        text = path.read_text()
        for match in any_of_them.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            instead = next(
                word for words, word in FORBIDDEN.items() if re.fullmatch(words, match[0], re.I)
            )
            faults.append(f"{path.relative_to(ROOT)}:{line} says {match[0]!r}; write: {instead}")
    assert not faults, "\n".join(faults)


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def test_docstrings_stand_alone() -> None:
    """A docstring says the thing itself, not the place where it is said."""
    faults = []
    for path in PACKAGE:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                docstring = ast.get_docstring(node)
                if docstring and (REFERENCE.fullmatch(docstring) or len(docstring.split()) < 3):
                    where = f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
                    faults.append(f"{where} says only: {docstring}")
    assert not faults, "\n".join(faults)


def test_docstrings_begin_with_a_noun_or_a_verb() -> None:
    faults = []
    for path in DOCUMENTED:
        text = path.read_text()
        for begun in OPENING.finditer(text):
            where = f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, begun.start(1)) + 1}"
            faults.append(f"{where} begins with {begun[1]!r}; begin with a noun or a verb")
    assert not faults, "\n".join(faults)


def test_results_are_named_for_what_they_are() -> None:
    faults = [
        f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)} calls a result 'found'"
        for path in PACKAGE
        for node in ast.walk(tree_of(path))
        if "found" in (getattr(node, "id", None), getattr(node, "arg", None))
    ]
    assert not faults, "\n".join(faults)


def test_every_public_method_is_described_by_itself_or_its_interface() -> None:
    faults = []
    for path in PACKAGE:
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for node in tree_of(path).body:
            if not isinstance(node, ast.ClassDef) or node.name[0] == "_":
                continue
            described = getattr(importlib.import_module(module), node.name)
            for part in node.body:
                if isinstance(part, ast.FunctionDef) and part.name[0] != "_":
                    things = (vars(base).get(part.name) for base in described.__mro__)
                    if not any(getattr(thing, "__doc__", None) for thing in things):
                        faults.append(f"{path.relative_to(ROOT)}: {node.name}.{part.name}")
    assert not faults, "\n".join(faults)
