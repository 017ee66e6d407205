"""Posteriors that are pickled, copied and sent to other processes."""

import contextlib
import copy
import multiprocessing
import pickle

import pytest
import torch

import rdpgraph as rg
from tests.routes import ROUTES, answered, posterior, total, weights

WAYS = (lambda p: pickle.loads(pickle.dumps(p)), copy.deepcopy)


def described(made):
    """All that a route answers, and its status except for what a run measured."""
    status = made.status
    told = (status.exact, status.converged, status.biased, status.iterations, status.bound)
    return answered(made), (told, str(made.plan))


@pytest.mark.long
@pytest.mark.parametrize("route", ROUTES)
def test_a_copy_answers_alike(route):
    """Before anything was asked of the original, and after."""
    made = posterior(route, 1.0 * weights())
    before = [make(made) for make in WAYS]
    expected, told = described(made)
    after = [make(made) for make in WAYS[:1]]
    for each in (*before, *after):
        found, same = described(each)
        # Messages that record gradients end within their tolerance of those that do not.
        exact = "loopy" not in route and route not in ("join graph", "portfolio")
        loose = {"rtol": 1e-3, "atol": 1e-3}
        torch.testing.assert_close(found, expected, **({} if exact else loose))
        assert same == told or "at random" in route
        assert not each.log_partition.requires_grad


def test_a_shallow_copy_keeps_gradients_and_answers():
    made = posterior("buckets", weights())
    log_z = made.log_partition
    assert copy.copy(made).log_partition.data_ptr() == log_z.data_ptr()
    assert copy.copy(made).log_partition.requires_grad


@pytest.mark.parametrize("route", ["join graph", "loopy", "loopy at random", "loopy, redrawn"])
def test_messages_that_were_sent_are_not_sent_again(route, monkeypatch):
    made = posterior(route, weights().detach())
    expected = answered(made)
    again = pickle.loads(pickle.dumps(made))

    def sent(*args, **kwargs):
        raise AssertionError("sent again")

    for place in ("propagation.propagate", "decoding.propagate"):
        monkeypatch.setattr(f"rdpgraph.engines.loopy.{place}", sent)
    monkeypatch.setattr("rdpgraph.engines.loopy.join_graph.JoinedSolution._propagated", sent)
    assert answered(again) == expected


def test_tables_of_contraction_do_not_cross():
    x = rg.VariableArray("x", (10, 10), 2)
    table = rg.Table(torch.zeros(2, 2))
    pairs = [rg.FactorBlock((x[:, :-1], x[:, 1:]), table), rg.FactorBlock((x[:-1], x[1:]), table)]
    made = rg.infer(rg.FactorGraph(pairs), scheduler=rg.Contraction())
    before = len(pickle.dumps(made))
    made.marginals()
    assert len(pickle.dumps(made)) == before


def test_a_graph_whose_parameters_it_copied_answers_after_crossing():
    """Also what is solved again; the version of a parameter here means nothing there."""
    a, b = rg.Variable("a", 3), rg.Variable("b", 3)
    leaves = [torch.zeros(3, requires_grad=True) for _ in range(2)]
    with torch.no_grad():
        leaves[0].add_(1.0)
    graph = rg.FactorGraph(
        [rg.Factor((v,), rg.Table(p)) for v, p in zip((a, b), leaves, strict=True)]
    )
    again = pickle.loads(pickle.dumps(rg.infer(graph)))
    torch.testing.assert_close(rg.infer(again.graph).log_partition, again.log_partition)
    alone = rg.infer(pickle.loads(pickle.dumps(graph)))
    torch.testing.assert_close(alone.log_partition, again.log_partition)


@pytest.mark.parametrize("way", WAYS)
def test_copies_of_a_graph_answer_alike(way):
    generator = torch.Generator().manual_seed(0)
    a, b, c = (rg.Variable(name, 3) for name in "abc")
    tables = [rg.Table(torch.randn(3, 3, generator=generator)) for _ in range(2)]
    graph = rg.FactorGraph([rg.Factor((a, b), tables[0]), rg.Factor((b, c), tables[1])])
    torch.testing.assert_close(rg.infer(way(graph)).marginal(c), rg.infer(graph).marginal(c))


def test_a_progress_callback_stays_behind():
    heard = []
    made = posterior("loopy", weights())
    made = rg.infer(made.graph, scheduler=rg.Loopy(progress=lambda sweep: heard.append(sweep)))
    again = pickle.loads(pickle.dumps(made))
    torch.testing.assert_close(again.log_partition, made.log_partition.detach())


def told(made, results):
    results.put(float(total(made.log_partition)))
    with contextlib.suppress(rg.errors.UnsupportedError):
        results.put(float(total(made.marginals())))


@pytest.mark.long
def test_a_posterior_crosses_to_a_spawned_process():
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    made = posterior("randomized chain", weights() * 1.0)
    child = context.Process(target=told, args=(made, results))
    child.start()
    found = [results.get(timeout=60), results.get(timeout=60)]
    child.join()
    assert found == pytest.approx(
        [float(total(part)) for part in (made.log_partition.detach(), made.marginals().detach())]
    )
