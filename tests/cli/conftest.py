"""Running commands."""

from functools import cache

import pytest
import typer.main

from rdpgraph._core import effort
from rdpgraph.cli import main


@pytest.fixture(autouse=True, scope="session")
def parsers():
    """Build the parsers of all commands once, which takes a third of the time of a command."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", cache(typer.main.get_command))
        yield


@pytest.fixture
def run(monkeypatch, capsys):
    """Run a command; gives its exit code, standard output and standard error."""
    monkeypatch.setattr(effort, "COMMAND_MORE", 200.0)  # the machine has other work

    def call(*arguments):
        monkeypatch.setattr("sys.argv", ["rdpgraph", *map(str, arguments)])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = stop.code or 0
        shown = capsys.readouterr()
        assert "Traceback" not in shown.out + shown.err
        return code, shown.out, shown.err

    return call
