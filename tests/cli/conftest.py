"""Running commands."""

import pytest

from rdpgraph._core import effort
from rdpgraph.cli import main


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
