"""How the documentation is built: `make docs`, warnings are errors."""

import importlib
import os
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import matplotlib
from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx

matplotlib.use("Agg")
os.environ.setdefault("MPLBACKEND", "Agg")
HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import modules  # noqa: E402
import pictures  # noqa: E402

pictures.make(HERE / "generated", HERE.parent / "examples")

project = "rdpgraph"
author = "the rdpgraph authors"
project_copyright = "2026, the rdpgraph authors"
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
]
default_role = "py:obj"
html_theme = "furo"
html_math_renderer = "mathml"
release = tomllib.loads((HERE.parent / "pyproject.toml").read_text())["project"]["version"]
html_title = f"rdpgraph {release}"
html_static_path = ["_static"]
html_css_files = ["custom.css"]
html_js_files = ["versions.js"]
exclude_patterns = ["gallery/*.ipynb", "gallery/*.py"]

# A click copies what is typed, without prompts and what is printed.
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
copybutton_only_copy_prompt_lines = True

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_dmath_double_inline = True
myst_heading_anchors = 3

autosummary_generate = False
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
    "write_computation_times": False,  # a page that needs scripts of other sites
    "copyfile_regex": r".*\.bif",
    "first_notebook_cell": "%matplotlib inline\n%pip install --quiet 'rdpgraph[draw]'",
}
# Where the workflow that builds these pages leaves the notebooks of the gallery.
REPOSITORY = os.environ.get("GITHUB_REPOSITORY")
COLAB = "`Open in Colab <https://colab.research.google.com/github/{}/blob/notebooks/{}.ipynb>`__"

LITERAL_OR_MARK = re.compile(r"(``.*?``|`[^`]*`)|(\*(?=\w)|\|)")


def escape_marks(
    app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    """Docstrings write (*batch, states) and |x|; reStructuredText takes these marks for its own."""
    if what in ("property", "attribute"):
        lines.insert(0, "")  # or what comes before a colon is taken for the type
    for place, line in enumerate(lines):
        if not line.lstrip().startswith((">>>", "...")):
            lines[place] = LITERAL_OR_MARK.sub(lambda match: match[1] or "\\" + match[2], line)


def without_fields(
    app: Sphinx, what: str, name: str, obj: object, skip: object, options: object
) -> bool | None:
    """Fields of named tuples are described by their class."""
    return True if type(obj).__name__ == "_tuplegetter" else None


CLOSING = re.compile(r"(^```python\n.*?\n)\n(```$)", re.DOTALL | re.MULTILINE)
REFERENCE = re.compile(r"^```\{eval-rst\}\n\.\. auto", re.MULTILINE)
DIRECTIVE = re.compile(r"^\.\. auto(module|class|function|data):: (\S+)", re.MULTILINE)
SUMMARY = """```{{eval-rst}}
.. autosummary::
   :nosignatures:

   {names}
```

## Example

"""


def arrange(app: Sphinx, page: str, source: list[str]) -> None:
    """Begin pages of the reference with a table of their names; end blocks without a blank line.

    Pages of the gallery end with a link to their notebook; the architecture lists all files.
    """
    if REPOSITORY and page.startswith("gallery/plot_"):
        source[0] += f"\n{COLAB.format(REPOSITORY, page.removeprefix('gallery/'))}\n"
    text = CLOSING.sub(r"\1\2", source[0])
    if page == "architecture":
        text = text.replace(modules.MARK, modules.listed())
    names = list[str]()
    for kind, name in DIRECTIVE.findall(text) if page.startswith("api/") else ():
        parts = importlib.import_module(name).__all__ if kind == "module" else None
        names += [name] if parts is None else [f"{name}.{part}" for part in parts]
    if names:
        listed = "\n   ".join(f"~{name}" for name in dict.fromkeys(names))
        begin, reference = text.index("```python"), REFERENCE.search(text)
        assert reference is not None
        summary, first = SUMMARY.format(names=listed), reference.start()
        text = f"{text[:begin]}{summary}{text[begin:first]}## Reference\n\n{text[first:]}"
    source[0] = text


def formula(translator: Any, node: nodes.Element) -> None:
    """A formula as MathML, which browsers draw without a script and without the network."""
    inline = isinstance(node, nodes.math)
    math = convert(node.astext(), display="inline" if inline else "block")
    translator.body.append(math if inline else f'<div class="math">{math}</div>')
    raise nodes.SkipNode


def setup(app: Sphinx) -> None:
    """Join the steps of autodoc, before the one that reads Google's sections."""
    app.add_html_math_renderer("mathml", (formula, None), (formula, None))
    app.connect("source-read", arrange)
    app.connect("autodoc-skip-member", without_fields)
    app.connect("autodoc-process-docstring", escape_marks, priority=100)
