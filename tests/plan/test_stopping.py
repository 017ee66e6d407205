"""Work that is ended early: by Ctrl-C, by a callback, or from elsewhere."""

import logging
import signal
import threading

import pytest
import torch

import rdpgraph as rg
from rdpgraph.errors import BudgetError
from rdpgraph.learn import EM, Probabilities, fit_by_gradient


def frustrated(rows=6, columns=6, states=2, spread=3.0):
    """A grid of random ties, on which messages take many sweeps."""
    generator = torch.Generator().manual_seed(0)
    x = rg.VariableArray("x", (rows, columns), states)
    blocks = []
    for one, two in ((x[1:], x[:-1]), (x[:, 1:], x[:, :-1])):
        shape = (*one.shape, states, states)
        blocks.append(
            rg.FactorBlock((one, two), rg.Table(spread * torch.randn(shape, generator=generator)))
        )
    return rg.FactorGraph(blocks)


def press(step):
    del step
    signal.raise_signal(signal.SIGINT)


def end(step):
    raise StopIteration


def test_the_first_ctrl_c_ends_messages_with_what_they_have():
    graph = frustrated()
    with rg.interruptible() as stop:
        assert not stop.asked
        posterior = rg.infer(graph, rg.Loopy(tolerance=0.0, sweeps=10**9, progress=press))
        status, marginals = posterior.status, posterior.marginals()
    once = rg.infer(graph, rg.Loopy(tolerance=0.0, sweeps=1))
    assert (status.iterations, status.converged) == (1, False)
    assert stop.asked
    torch.testing.assert_close(list(marginals.values()), list(once.marginals().values()))


def test_the_second_ctrl_c_raises_and_the_handler_comes_back():
    before = signal.getsignal(signal.SIGINT)
    with rg.interruptible():
        press(0)
        with pytest.raises(KeyboardInterrupt):
            press(0)
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("progress", [press, end])
@pytest.mark.parametrize(
    "scheduler",
    [
        lambda progress: rg.Loopy(tolerance=0.0, sweeps=10**9, progress=progress),
        lambda progress: rg.JoinGraph(9000, 10**6, tolerance=0.0, progress=progress),
        lambda progress: rg.Auto(memory=9000, seconds=5.0, progress=progress),
    ],
    ids=["loopy", "join graph", "auto"],
)
def test_marginals_of_messages_that_were_ended_are_distributions(scheduler, progress):
    with rg.interruptible():
        posterior = rg.infer(frustrated(10, 10, 5), scheduler(progress))
        status, marginals = posterior.status, posterior.marginals()
    assert not status.converged
    sums = torch.stack([marginal.sum(-1) for marginal in marginals.values()])
    torch.testing.assert_close(sums, torch.ones_like(sums))


@pytest.mark.parametrize("progress", [press, end])
def test_a_search_that_was_ended_gives_the_best_so_far(progress):
    graph, moves = frustrated(12, 12, 3), []

    def tell(step):
        if isinstance(step, rg.answers.Move):
            moves.append(step)
            progress(step)

    with rg.interruptible():
        posterior = rg.infer(graph, rg.Search(memory=2000, seconds=10**6, progress=tell))
        mode = posterior.mode()
    assert moves
    assert float(graph.score(mode)) >= moves[-1].score - 1e-3


@pytest.mark.parametrize("progress", [press, end])
def test_random_pruning_that_was_ended_is_that_of_so_many_sweeps(progress):
    chain = rg.Chain(torch.zeros(4, 6), rg.Table(torch.eye(6)))

    def tell(step):
        if step.number == 3:
            progress(step)

    def pruned(sweeps, **options):
        estimator = rg.RandomizedPruning(sweeps, warm_up=1, **options)
        return rg.infer(chain, estimator=estimator, generator=torch.Generator().manual_seed(0))

    with rg.interruptible():
        marginals = pruned(10**9, progress=tell).marginals()
    torch.testing.assert_close(marginals, pruned(2).marginals())
    steps = []

    def end_at_once(step):
        steps.append(step.number)
        raise StopIteration

    pruned(10, progress=end_at_once)  # in the warm-up: a sweep that counts follows
    assert steps == [1]


@pytest.mark.parametrize("progress", [press, end])
def test_an_estimate_that_was_ended_has_bounds_and_an_error(progress):
    graph, steps = frustrated(8, 8, 3), []

    def tell(step):
        steps.append(step)
        if progress is end or len(steps) == 1:  # a second Ctrl-C raises
            progress(step)

    with rg.interruptible():
        posterior = rg.infer(graph, rg.MiniBuckets(10**6, memory=1e5, progress=tell))
        log_z, status, marginals = posterior.log_partition, posterior.status, posterior.marginals()
    lower, upper = posterior.bounds()
    assert float(lower) <= float(log_z) <= float(upper)
    assert not status.converged
    assert steps[0].value == pytest.approx(float(log_z), abs=1e-3)
    sums = torch.stack([marginal.sum(-1) for marginal in marginals.values()])
    torch.testing.assert_close(sums, torch.ones_like(sums))


def test_work_ends_once_the_time_is_over_whatever_its_budget_is(hands):
    graph, moves = frustrated(), []

    def late(step):
        hands.time += 1000.0  # others use the machine

    def late_in_search(step):
        if isinstance(step, rg.answers.Move):
            moves.append(step.score)
            late(step)

    with rg.interruptible(10.0) as stop:
        posterior = rg.infer(graph, rg.Loopy(tolerance=0.0, sweeps=10**9, progress=late))
        status, marginals = posterior.status, posterior.marginals()
    once = rg.infer(graph, rg.Loopy(tolerance=0.0, sweeps=1))
    assert (status.iterations, status.converged) == (1, False)
    assert (stop.asked, stop.over) == (False, True)
    torch.testing.assert_close(list(marginals.values()), list(once.marginals().values()))

    wide = frustrated(12, 12, 3)
    with rg.interruptible(10.0):
        search = rg.Search(memory=2000, seconds=10**6, progress=late_in_search)
        mode = rg.infer(wide, search).mode()
    assert float(wide.score(mode)) >= moves[-1] - 1e-3

    with rg.interruptible(10.0):
        hands.time += 11.0
        posterior = rg.infer(wide, rg.Auto(memory=2000, seconds=10**6))
        mode, status, bounds = posterior.mode(), posterior.status, posterior.bounds()
        log_z = posterior.log_partition
    assert not status.exact
    assert float(wide.score(mode)) > -torch.inf
    assert float(bounds[0]) - 1e-3 <= float(log_z) <= float(bounds[1]) + 1e-3  # float32
    posterior = rg.infer(frustrated(14, 14, 2), rg.Contraction(seconds=10**6))
    with rg.interruptible(10.0):
        hands.time += 11.0
        with pytest.raises(BudgetError, match="The time ran out"):
            posterior.marginals()


@pytest.mark.long
def test_exact_inference_has_no_answer_before_its_end():
    posterior = rg.infer(frustrated(14, 14, 2), rg.Contraction(memory=1e6, seconds=60.0))
    with rg.interruptible() as stop:
        stop.asked = True
        with pytest.raises(BudgetError, match=r"Stopped|does not fit"):
            posterior.marginals()
    assert posterior.marginals()  # no plan of a run that was stopped is remembered


@pytest.mark.parametrize("progress", [press, end])
@pytest.mark.parametrize("by", ["em", "gradient"])
def test_fits_that_were_ended_are_those_of_so_many_steps(progress, by):
    side, coin = rg.Variable("side", 2), rg.Variable("coin", 2)

    def model(values, rows):
        graph = rg.FactorGraph(
            [
                rg.Factor(coin, rg.Table(values["coin"])),
                rg.Factor((coin, side), rg.Table(values["side"])),
            ]
        )
        return graph.condition({side: rows})

    tables = {
        "coin": Probabilities(torch.tensor([0.4, 0.6]).log()),
        "side": Probabilities(torch.tensor([[0.7, 0.3], [0.2, 0.8]]).log()),
    }
    rows = torch.tensor([0, 1, 1, 1, 0, 1])

    def fitted(limit, progress=None):
        em = EM(model, tables, tolerance=0.0, limit=limit, progress=progress)
        return em.fit(rows) if by == "em" else fit_by_gradient(em, rows)

    def tell(step):
        if step.number == 2:
            progress(step)

    with rg.interruptible():
        fit = fitted(10**6, tell)
    same = fitted(2 if by == "em" else 3)
    assert fit.history == pytest.approx(same.history, rel=1e-6)
    assert not fit.status.converged
    assert "not converged in" in fit.status.remedy


def test_threads_leave_the_signal_alone_and_can_ask():
    before, seen = signal.getsignal(signal.SIGINT), []

    def work():
        with rg.interruptible() as stop:
            seen.append(signal.getsignal(signal.SIGINT))
            stop.asked = True
            seen.append(rg.infer(frustrated(), rg.Loopy(tolerance=0.0)).status.iterations)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before, 1]


def test_plans_and_tries_are_logged(caplog):
    with caplog.at_level(logging.DEBUG, "rdpgraph"):
        _ = rg.infer(frustrated(12, 12, 3), rg.Auto(memory=3000, seconds=0.5)).marginals()
    assert [record.name for record in caplog.records if "tried" in record.message]
    assert any("planned" in record.message for record in caplog.records)
