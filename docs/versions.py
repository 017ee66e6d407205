"""The pages of a build among those of other versions: `python docs/versions.py BUILD SITE NAME`.

Every version is a folder of the site; the site opens the latest release, or `dev` before the first.
"""

import json
import re
import shutil
import sys
from pathlib import Path

OPENING = '<!doctype html><meta http-equiv="refresh" content="0; url={0}/"><a href="{0}/">{0}</a>\n'


def place(build: Path, site: Path, name: str) -> list[str]:
    """Put a build into the site under a name; the names of all versions, the latest first."""
    shutil.rmtree(site / name, ignore_errors=True)
    shutil.copytree(build, site / name)
    every = [page.parent.name for page in site.glob("*/index.html")]
    releases = [each for each in every if re.fullmatch(r"\d+(\.\d+)*", each)]
    releases.sort(key=lambda each: [int(part) for part in each.split(".")], reverse=True)
    names = [*releases, *sorted(set(every) - set(releases))]
    (site / "versions.json").write_text(json.dumps(names))
    (site / "index.html").write_text(OPENING.format(names[0]))
    (site / ".nojekyll").touch()
    return names


if __name__ == "__main__":
    place(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
