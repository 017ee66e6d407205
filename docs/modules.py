"""The files of the package, room by room, with the first line of each: `python docs/modules.py`.

`conf.py` puts them where `docs/architecture.md` has MARK.
"""

from itertools import groupby, takewhile
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "rdpgraph"
MARK = "<!-- modules -->"


def first_line(file: Path) -> str:
    """The first line of a module's docstring, or sentence of the comment that begins a C++ file."""
    text = file.read_text()
    if file.suffix == ".py":
        return text.removeprefix('"""').partition("\n")[0].removesuffix('"""')
    comment = takewhile(lambda line: line.startswith("//"), text.splitlines())
    return " ".join(line.strip("/ ") for line in comment).partition(". ")[0].rstrip(".") + "."


def listed() -> str:
    """A table of files for each folder, in MyST."""
    files = [file for kind in ("*.py", "*.h", "*.cpp") for file in PACKAGE.rglob(kind)]
    files = sorted((file.parent, file) for file in files if file.stat().st_size)
    tables = list[str]()
    for folder, members in groupby(files, key=lambda pair: pair[0]):
        lines = [
            f"### `{folder.relative_to(PACKAGE.parent)}/`\n",
            "| file | contents |",
            "|---|---|",
        ]
        for _, file in members:
            lines.append(f"| `{file.name}` | {first_line(file).replace('|', '&#124;')} |")
        tables.append("\n".join(lines))
    return "\n\n".join(tables)


if __name__ == "__main__":
    print(listed())
