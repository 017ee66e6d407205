"""Runs that do not look at the clock are ended in time."""

import itertools
import json
import signal
import threading
from pathlib import Path
from time import monotonic

import pytest
import torch

import rdpgraph as rg
from rdpgraph._core import effort
from rdpgraph.cli import loading, main, solving
from rdpgraph.cli.solving import PartialAnswer, ending
from rdpgraph.errors import BudgetError
from rdpgraph.plan import clock

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


def test_what_is_known_is_given_in_place_of_an_error(soon):
    del soon
    known = PartialAnswer()
    with ending(0.01, known=known):
        known.keep("half of an answer")
        stubborn()
    assert known.value == "half of an answer"


def test_a_process_that_had_little_of_the_machine_goes_on(soon, monkeypatch):
    del soon
    monkeypatch.setattr(solving, "process_time", lambda: 0.0)
    begin = monotonic()
    with ending(0.05):
        while monotonic() < begin + 0.1:
            pass
    with pytest.raises(BudgetError, match="after the time budget"), ending(0.02):
        stubborn()  # in the end it is ended all the same
    with ending(0.05, known=(known := PartialAnswer())):
        known.keep("an answer")
        stubborn()  # nothing is waited for where there is one


def rung(monkeypatch, name):
    """Rings the last alarm at once when something is asked of a posterior, which never answers."""

    def ask(*_, **__):
        signal.setitimer(signal.ITIMER_REAL, 1e-3)
        stubborn()

    value = property(ask) if isinstance(getattr(rg.Posterior, name), property) else ask
    monkeypatch.setattr(rg.Posterior, name, value)


@pytest.mark.parametrize("task", ["MAP", "MAR", "MMAP"])
def test_an_answer_is_given_without_what_the_time_left_out(task, run, monkeypatch):
    asked = ("infer", ASIA, "--task", task, "--set", "dysp=yes", "--json")
    asked += ("--query", "lung", "--query", "bronc") if task == "MMAP" else ()
    whole = json.loads(run(*asked)[1])
    rung(monkeypatch, "log_partition")
    code, out, err = run(*asked)
    assert code == 0
    assert "not converged. the time ran out before log Z and the quality of the answer" in err
    body = json.loads(out)
    assert (body["exact"], body["converged"], body["log_partition"]) == (False, False, None)
    if task == "MAR":
        assert body["marginals"] == whole["marginals"]
    else:
        assert body["assignment"] == whole["assignment"]
        assert body["log_score"] == pytest.approx(whole["log_score"])
    if task == "MAP":
        assert body["optimal"] is False
        told = run(*asked[:-1])[1]
        assert "there may be better ones" in told
        assert "log Z is not known" in told
    assert run(*asked, "--strict")[0] == 3


def test_an_answer_is_given_where_log_z_does_not_fit(run, monkeypatch):
    def refuse(_):
        raise BudgetError("Exact inference would take 1e+03 s, longer than predicted.")

    monkeypatch.setattr(rg.Posterior, "log_partition", property(refuse))
    code, out, err = run("infer", ASIA, "--task", "MAP", "--json")
    assert code == 0
    assert json.loads(out)["assignment"]["lung"] == "no"
    assert "would take 1e+03 s" in err
    assert run("infer", ASIA, "--task", "PR")[0] == 1


@pytest.mark.parametrize("task", ["MAP", "MAR", "PR"])
def test_a_model_too_wide_is_answered_under_load(task, run, tmp_path, monkeypatch):
    """Every look at the clock finds a fiftieth of the time gone."""
    x = rg.VariableArray("x", (9, 9), 3)
    generator = torch.Generator().manual_seed(0)
    ties = [
        rg.FactorBlock(pair, rg.Table(2.0 * torch.randn(*pair[0].shape, 3, 3, generator=generator)))
        for pair in ((x[1:], x[:-1]), (x[:, 1:], x[:, :-1]))
    ]
    rg.write(rg.FactorGraph(ties), tmp_path / "grid.uai")
    times = itertools.count(1000.0, 0.2)
    monkeypatch.setattr(clock, "perf_counter", lambda: float(next(times)))
    asked = ("infer", tmp_path / "grid.uai", "--task", task, "--time", "10s", "--memory", "2MB")
    code, out, err = run(*asked, "--json")
    assert (code, "Error" in err) == (0, False)
    body = json.loads(out)
    assert body["exact"] is False
    graph = rg.read(tmp_path / "grid.uai")
    if task == "MAP":
        score = float(graph.score({k: int(v) for k, v in body["assignment"].items()}))
        assert body["log_score"] == pytest.approx(score)
        assert body["optimal"] is False or body["score_bound"] == pytest.approx(score)
    elif task == "MAR":
        assert all(sum(row) == pytest.approx(1.0) for row in body["marginals"].values())
    elif "lower_bound" in body:
        assert body["lower_bound"] <= body["log_partition"] <= body["upper_bound"]


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
