"""How the documentation is built: `make docs`, warnings are errors."""

import os
import re
import sys
from pathlib import Path

import matplotlib
from sphinx.application import Sphinx

matplotlib.use("Agg")
os.environ.setdefault("MPLBACKEND", "Agg")
HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import pictures  # noqa: E402

pictures.make(HERE / "generated", HERE.parent / "examples")

project = "rdpgraph"
author = "the rdpgraph authors"
project_copyright = "2026, the rdpgraph authors"
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
]
default_role = "py:obj"
html_theme = "furo"
html_title = "rdpgraph"
html_static_path = ["_static"]
html_css_files = ["custom.css"]
exclude_patterns = ["gallery/*.ipynb", "gallery/*.py", "sg_execution_times.rst"]

# A click copies what is typed, without prompts and what is printed.
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
copybutton_only_copy_prompt_lines = True

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_dmath_double_inline = True
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


def without_fields(
    app: Sphinx, what: str, name: str, obj: object, skip: object, options: object
) -> bool | None:
    """Fields of named tuples are described by their class."""
    return True if type(obj).__name__ == "_tuplegetter" else None


def setup(app: Sphinx) -> None:
    """Join the steps of autodoc, before the one that reads Google's sections."""
    app.connect("autodoc-skip-member", without_fields)
    app.connect("autodoc-process-docstring", escape_marks, priority=100)
