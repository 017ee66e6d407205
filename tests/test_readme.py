"""The README and the examples show what happens."""

import contextlib
import doctest
import io
import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
SHOWN = re.compile(r"```python\n(?P<code>.*?)```\n(?:\n```text\n(?P<output>.*?)```)?", re.DOTALL)
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def test_readme_opens_with_the_two_commands() -> None:
    first_block = README.split("```")[1]
    assert re.findall(r"^\$ (make \w+)", first_block, re.MULTILINE) == ["make demo", "make test"]


@pytest.mark.long
@pytest.mark.parametrize("shown", list(SHOWN.finditer(README)), ids=lambda shown: shown.start())
def test_readme_python_prints_what_it_shows(shown: re.Match[str]) -> None:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(shown["code"], "README.md", "exec"), {})
    assert doctest.OutputChecker().check_output(shown["output"] or "", printed.getvalue(), FLAGS), (
        printed.getvalue()
    )


@pytest.mark.long
@pytest.mark.parametrize(
    "script", sorted((ROOT / "examples").glob("plot_*.py")), ids=lambda script: script.stem
)
def test_example_runs(script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(script), run_name="__main__")
    assert pyplot.get_fignums()
    pyplot.close("all")
