"""Work without steps reports what is being done: planning, exact passes, starts of a search."""

import math
import pickle
import time

import pytest
import torch

import rdpgraph as rg


def grid(rows=8, columns=8, states=3, spread=2.0):
    generator = torch.Generator().manual_seed(0)
    x = rg.VariableArray("x", (rows, columns), states)
    blocks = []
    for one, two in ((x[1:], x[:-1]), (x[:, 1:], x[:, :-1])):
        shape = (*one.shape, states, states)
        blocks.append(
            rg.FactorBlock((one, two), rg.Table(spread * torch.randn(shape, generator=generator)))
        )
    return rg.FactorGraph(blocks)


@pytest.fixture
def at_once(monkeypatch):
    """Report at every look at the clock."""
    monkeypatch.setattr("rdpgraph._core.tuning.QUIET_SECONDS", 0.0)


def works(told):
    """The names of the works that were reported without steps."""
    steps = [step for step in told if isinstance(step, rg.answers.Progress)]
    return list(dict.fromkeys(step.work for step in steps if math.isnan(step.value)))


def test_exact_inference_reports_each_question(at_once):
    told = []
    posterior = rg.infer(grid(), rg.Auto(progress=told.append))
    assert works(told) == ["planning"]
    for ask, name in (
        (lambda: posterior.log_partition, "log Z"),
        (posterior.marginals, "marginals"),
        (posterior.mode, "mode"),
        (posterior.max_marginals, "max marginals"),
        (lambda: posterior.marginal_mode(["x[0, 0]", "x[7, 7]"]), "marginal mode"),
    ):
        told.clear()
        ask()
        assert name in works(told)
    numbers = [step.number for step in told]
    assert numbers == sorted(numbers)
    assert str(told[-1]).startswith(f"{told[-1].work}: ")
    assert "nan" not in str(told[-1])


def test_answers_do_not_depend_on_reports(at_once):
    graph = grid()
    plain, told = rg.infer(graph), rg.infer(graph, rg.Auto(progress=lambda step: None))
    assert torch.equal(plain.log_partition, told.log_partition)
    assert torch.equal(plain.marginals()["x"], told.marginals()["x"])
    assert torch.equal(plain.mode()["x"], told.mode()["x"])
    assert plain.status == told.status
    assert plain.status_of("mode") == told.status_of("mode")
    again = pickle.loads(pickle.dumps(told))
    assert torch.equal(again.log_partition, plain.log_partition)


@pytest.mark.long
@pytest.mark.parametrize(
    "scheduler",
    [
        lambda tell: rg.Search(seconds=0.3, progress=tell),
        lambda tell: rg.Auto(memory=2e4, seconds=1.0, progress=tell),
    ],
)
def test_a_search_for_a_marginal_mode_reports(at_once, scheduler):
    told, graph = [], grid(6, 6)
    posterior = rg.infer(graph, scheduler(told.append))
    told.clear()
    posterior.marginal_mode(["x[0, 0]", "x[3, 3]", "x[5, 5]"])
    assert "marginal mode" in works(told)


def test_a_population_that_takes_long_reports(at_once):
    told = []
    posterior = rg.infer(grid(), rg.MiniBuckets(0.3, progress=told.append))
    assert posterior.log_partition.isfinite()
    assert {"planning", "log Z"} & set(works(told))
    assert any("populations" in str(step) for step in told)


def test_a_join_graph_reports_and_messages_go_on_from_it(at_once):
    told = []
    posterior = rg.infer(grid(), rg.JoinGraph(memory=1e4, progress=told.append))
    assert posterior.log_partition.isfinite()
    assert "planning" in works(told)
    assert any(isinstance(step, rg.loopy.Sweep) for step in told)
    # No clusters can be set up in time: single factors answer, and others begin at their messages.
    few = rg.infer(grid(), rg.JoinGraph(seconds=0.01, progress=lambda step: None))
    assert few.plan.route == "loopy"
    assert rg.infer(grid(), rg.Loopy(start=few)).log_partition.isfinite()


def test_a_report_may_end_the_work(at_once):
    def end(step):
        raise StopIteration

    posterior = rg.infer(grid(12, 12), rg.MiniBuckets(10**6, memory=1e5, progress=end))
    begin = time.process_time()
    assert posterior.log_partition.isfinite()
    assert time.process_time() - begin < 30.0  # of a million


def test_what_a_report_asks_is_not_reported(at_once):
    asked = []

    def tell(step):
        asked.append(step)
        if len(asked) < 3:
            small = grid(2, 2, 2)
            rg.infer(small, rg.Auto(progress=asked.append)).log_partition  # noqa: B018

    assert rg.infer(grid(), rg.Auto(progress=tell)).log_partition.isfinite()


def test_nothing_is_reported_of_quick_work():
    told = []
    rg.infer(grid(3, 3), rg.Auto(progress=told.append)).marginals()
    assert not told


def test_the_line_shows_the_age_of_its_step(monkeypatch, capsys, at_once):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")
    with rg.answers.show_progress("reading", 60.0) as tell:
        tell("populations: 3, 7.0")
    assert "for 0 s, " in capsys.readouterr().err
