"""How the documentation is built: `make docs`, warnings are errors."""

import os
import re

import matplotlib
from sphinx.application import Sphinx

matplotlib.use("Agg")
os.environ.setdefault("MPLBACKEND", "Agg")

project = "rdpgraph"
author = "the rdpgraph authors"
project_copyright = "2026, the rdpgraph authors"
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_gallery.gen_gallery",
]
default_role = "py:obj"
html_theme = "furo"
html_title = "rdpgraph"
exclude_patterns = ["gallery/*.ipynb", "gallery/*.py", "sg_execution_times.rst"]

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False

sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    "filename_pattern": r"/plot_",
    "within_subsection_order": "FileNameSortKey",
    "abort_on_example_error": True,
    "download_all_examples": False,
    "show_signature": False,
    "min_reported_time": 60,
    "copyfile_regex": r".*\.bif",
}

LITERAL_OR_MARK = re.compile(r"(``.*?``|`[^`]*`)|(\*(?=\w)|\|)")


def escape_marks(
    app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    """Docstrings write (*batch, states) and |x|; reStructuredText takes these marks for its own."""
    for place, line in enumerate(lines):
        if not line.lstrip().startswith((">>>", "...")):
            lines[place] = LITERAL_OR_MARK.sub(lambda match: match[1] or "\\" + match[2], line)


def setup(app: Sphinx) -> None:
    """Join the steps of autodoc, before the one that reads Google's sections."""
    app.connect("autodoc-process-docstring", escape_marks, priority=100)
