"""Runs that do not look at the clock are ended in time."""

import signal
import threading
from pathlib import Path

import pytest

from rdpgraph._core import effort
from rdpgraph.cli import loading, main
from rdpgraph.cli.solving import ending
from rdpgraph.errors import BudgetError

ASIA = str(Path(__file__).parents[2] / "examples" / "asia.bif")


@pytest.fixture
def soon(monkeypatch):
    """Remove the grace period added to the budget."""
    monkeypatch.setattr(effort, "COMMAND_MORE", 0.0)


def stubborn():
    """Goes on forever, whatever errors say."""
    while True:
        try:
            while True:
                pass
        except Exception:
            continue


def test_what_does_not_end_is_ended(soon):
    del soon
    before = signal.getsignal(signal.SIGALRM)
    with pytest.raises(BudgetError, match="after the time budget"), ending(0.01):
        stubborn()
    assert signal.getsignal(signal.SIGALRM) is before


def test_another_alarm_goes_on_afterwards():
    others = signal.setitimer(signal.ITIMER_REAL, 250.0)  # that of pytest's own timeout, for one
    try:
        with ending(1000.0):
            assert signal.getitimer(signal.ITIMER_REAL)[0] > 900.0
        left, _ = signal.getitimer(signal.ITIMER_REAL)
        assert 0.0 < left <= 250.0
    finally:
        signal.setitimer(signal.ITIMER_REAL, *others)


def test_seconds_that_were_spent_before_count_as_far_as_a_half():
    others = signal.setitimer(signal.ITIMER_REAL, 0.0)
    try:
        for spent, most in ((0.0, 1201.0), (100.0, 1101.0), (900.0, 701.0)):
            with ending(1000.0, spent=spent):
                assert most - 50.0 < signal.getitimer(signal.ITIMER_REAL)[0] <= most
    finally:
        signal.setitimer(signal.ITIMER_REAL, *others)


def test_threads_have_no_alarm():
    seen = []

    def work():
        with ending(1e-9):
            seen.append(signal.getitimer(signal.ITIMER_REAL))

    before = signal.getsignal(signal.SIGALRM)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert len(seen) == 1
    assert signal.getsignal(signal.SIGALRM) is before


@pytest.mark.parametrize("command", ["infer", "explain"])
def test_reading_for_ever_is_an_error_of_a_line(command, soon, monkeypatch, capsys):
    del soon
    monkeypatch.setattr(loading, "read", lambda *_, **__: stubborn())
    monkeypatch.setattr("sys.argv", ["rdpgraph", command, ASIA, "--time", "10ms"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 1
    said = capsys.readouterr().err
    assert said.startswith("Error: There is no answer well after the time budget of 0.01 s")
    assert said.count("\n") == 1


@pytest.mark.parametrize("command", ["convert", "draw", "parse"])
def test_every_command_ends(command, soon, monkeypatch, tmp_path, capsys):
    del soon
    grammar = tmp_path / "g.txt"
    grammar.write_text('1.0 S -> A A\n1.0 A -> "a"\n')
    given = {
        "convert": [ASIA, str(tmp_path / "a.uai")],
        "draw": [ASIA, "--output", str(tmp_path / "a.svg")],
        "parse": [str(grammar), "a a"],
    }[command]
    monkeypatch.setattr(loading, "read", lambda *_, **__: stubborn())
    monkeypatch.setattr("rdpgraph.io.grammar.read_grammar", lambda *_, **__: stubborn())
    monkeypatch.setattr("sys.argv", ["rdpgraph", command, *given, "--time", "10ms"])
    with pytest.raises(SystemExit):
        main()
    assert "after the time budget of 0.01 s" in capsys.readouterr().err
