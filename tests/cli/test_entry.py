"""The process around the commands: what it imports, what it is given to write to."""

import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

import rdpgraph as rg
from rdpgraph.cli import entry
from rdpgraph.cli.answers import answer, print_table
from rdpgraph.cli.options import Task

ROOT = Path(__file__).parents[2]
ASIA = str(ROOT / "examples" / "asia.bif")
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT)}


@pytest.mark.long
def test_help_waits_for_no_torch():
    code = """
import sys
from rdpgraph.cli import main
for arguments in (["--help"], ["infer", "--help"], ["parse", "--help"]):
    sys.argv = ["rdpgraph", *arguments]
    try:
        main()
    except SystemExit as stop:
        assert not stop.code
    assert "torch" not in sys.modules, arguments
    assert "numpy" not in sys.modules, arguments
"""
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=ENVIRONMENT, check=False
    )
    assert run.returncode == 0, run.stderr
    assert "--evidence" in run.stdout


@pytest.mark.long
def test_the_package_is_a_command_and_says_that_its_output_is_closed():
    shell = f'"{sys.executable}" -m rdpgraph infer "{ASIA}" --task PR >&-'
    run = subprocess.run(
        ["sh", "-c", shell], capture_output=True, text=True, env=ENVIRONMENT, check=False
    )
    assert run.returncode == 1
    assert run.stderr == "Error: standard output: it is closed; use --output FILE.\n"


def test_names_of_the_package_are_those_it_declares():
    assert rg.infer is sys.modules["rdpgraph.infer"].infer  # the function, not the module
    assert set(rg.__all__) <= set(dir(rg))
    assert all(hasattr(rg, name) for name in rg.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = rg.nothing


@pytest.mark.parametrize(
    ("encoding", "bar"), [("ascii", "###"), ("latin-1", "###"), ("cp1252", "###"), ("utf-8", "███")]
)
def test_bars_are_what_the_output_can_write(encoding, bar):
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    found = answer(rg.infer(rg.read(ASIA)), Task.MAR, ["lung"])
    print_table(found, Console(file=out, width=100))
    out.flush()
    assert bar in out.buffer.getvalue().decode(encoding)


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (KeyboardInterrupt(), 130, "Error: Stopped."),
        (BrokenPipeError(), 1, ""),
        (OSError(28, "No space left on device"), 1, "Error: No space left on device."),
        (TimeoutError(110, "nothing came", "pipe"), 1, "Error: pipe: nothing came."),
    ],
)
def test_whatever_stops_a_run_is_a_line(monkeypatch, capsys, error, code, line):
    def stopped():
        raise error

    monkeypatch.setattr(entry, "_run", stopped)
    monkeypatch.setattr(entry, "_drop_stdout", lambda: None)
    with pytest.raises(SystemExit) as stop:
        entry.main()
    assert stop.value.code == code
    assert capsys.readouterr().err.strip() == line


def test_an_interrupted_import_that_fails_otherwise_is_a_line(monkeypatch, capsys):
    def torn():
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:  # as code beneath an import may do
            raise AttributeError("half a module") from None

    monkeypatch.setattr(entry, "_run", torn)
    with pytest.raises(SystemExit) as stop:
        entry.main()
    assert stop.value.code == 130
    assert capsys.readouterr().err == "Error: Stopped.\n"
