"""Add [project.urls] to pyproject.toml: addresses of the repository that builds a release."""

import os
from pathlib import Path

SOURCE = f"{os.environ['GITHUB_SERVER_URL']}/{os.environ['GITHUB_REPOSITORY']}"
OWNER, NAME = os.environ["GITHUB_REPOSITORY"].split("/")
URLS = f"""
[project.urls]
Documentation = "https://{OWNER.lower()}.github.io/{NAME}/"
Source = "{SOURCE}"
Issues = "{SOURCE}/issues"
Changelog = "{SOURCE}/blob/main/CHANGELOG.md"
"""

if __name__ == "__main__":
    project = Path("pyproject.toml")
    project.write_text(project.read_text() + URLS)
