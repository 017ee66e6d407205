"""Print the oldest releases that pyproject.toml allows, as constraints for pip: `make lowest`."""

import re
import sys
import tomllib
from pathlib import Path


def constraints(instead: list[str]) -> list[str]:
    """A line for each requirement of the library and of its extras, those given in its place."""
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    listed = [*project["dependencies"], *(line for extra in extras for line in extra)]
    found = {name: f"{name}=={oldest}" for name, oldest in map(_split, listed)}
    return list((found | {line.split("==")[0]: line for line in instead}).values())


def _split(requirement: str) -> tuple[str, str]:
    match = re.fullmatch(r"([\w.-]+)>=([\d.]+)", requirement)
    if match is None:
        raise SystemExit(f"lowest: expected a requirement such as torch>=2.6; got {requirement}.")
    return match[1], match[2]


if __name__ == "__main__":
    print("\n".join(constraints(sys.argv[1:])))
