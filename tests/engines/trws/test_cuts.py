"""Modes of pairs of binary variables by minimum cuts, and by what cuts leave to be searched."""

import math

import pytest
import torch

import rdpgraph as rg
from rdpgraph.testing import brute_force

DOUBLE = torch.float64


def random_pairs(kind: str, seed: int, dtype: torch.dtype = DOUBLE) -> rg.FactorGraph:
    """Nine binary variables with 14 pairs, some of them over the same variables.

    Pairs attract, or do once the states of some variables are exchanged ("exchanged"), or are of
    either kind ("mixed"); "zeros" attract and forbid one configuration each of some pairs.
    """
    generator = torch.Generator().manual_seed(seed)
    x = rg.VariableArray("x", (9,), 2)
    fields = torch.randn(9, 2, generator=generator, dtype=DOUBLE)
    exchanged = torch.rand(9, generator=generator) < 0.5
    factors: list[rg.Factor | rg.FactorBlock] = [
        rg.FactorBlock((x,), rg.Table.from_logs(fields.to(dtype)))
    ]
    for number in range(14):
        i, j = torch.randperm(9, generator=generator)[:2].tolist()
        logs = torch.randn(2, 2, generator=generator, dtype=DOUBLE)
        repels = float(logs[0, 0] + logs[1, 1]) < float(logs[0, 1] + logs[1, 0])
        if kind != "mixed" and repels:
            logs = logs.flip(1)
        if kind == "zeros" and number % 3 == 0:
            logs[0, 1] = -math.inf
        if kind == "exchanged":
            logs = logs.flip([slot for slot, v in enumerate((i, j)) if exchanged[v]])
        factors.append(rg.Factor((x[i], x[j]), rg.Table.from_logs(logs.to(dtype))))
    return rg.FactorGraph(factors)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["attracting", "exchanged", "zeros", "mixed"])
def test_modes_are_those_of_enumeration_and_bounded(kind, dtype):
    for seed in range(6):
        graph = random_pairs(kind, seed, dtype)
        best = float(brute_force(graph.to(DOUBLE)).maximum)
        posterior = rg.infer(graph, scheduler=rg.Search(seconds=1.0))
        assert float(graph.to(DOUBLE).score({**posterior.mode()})) == pytest.approx(best, abs=1e-6)
        assert bool(posterior.mode_is_optimal())
        assert best - 1e-12 <= float(posterior.mode_bound()) <= best + 1e-5


def grid(side: int, fields: float, ties: torch.Tensor, seed: int) -> rg.FactorGraph:
    """A square grid of binary variables; ties (2, side - 1, side)."""
    generator = torch.Generator().manual_seed(seed)
    x = rg.VariableArray("x", (side, side), 2)
    unary = fields * torch.randn(side, side, 2, generator=generator, dtype=DOUBLE)
    same = torch.eye(2, dtype=DOUBLE)
    return rg.FactorGraph([
        rg.FactorBlock((x,), rg.Table.from_logs(unary)),
        rg.FactorBlock((x[1:], x[:-1]), rg.Table.from_logs(ties[0, :, :, None, None] * same)),
        rg.FactorBlock(
            (x[:, 1:], x[:, :-1]), rg.Table.from_logs(ties[1].T[:, :, None, None] * same)
        ),
    ])  # fmt: skip


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_smooth_images_are_solved_by_a_cut_whatever_their_size(sign):
    # Ties that outweigh the fields of whole neighbourhoods, for which messages take many sweeps.
    # Repelling neighbours attract once every other one has its states exchanged.
    graph = grid(120, 1.0, sign * torch.full((2, 119, 120), 2.5), seed=0)
    posterior = rg.infer(graph, scheduler=rg.Auto(seconds=2.0))
    assert bool(posterior.mode_is_optimal())
    assert posterior.status_of("mode").method == "minimum cut"
    score, bound = float(graph.score({**posterior.mode()})), float(posterior.mode_bound())
    assert score <= bound <= score + 1e-6


def test_states_that_a_cut_settles_leave_little_to_search():
    ties = 1.5 * torch.randn(2, 12, 13, generator=torch.Generator().manual_seed(1))
    graph = grid(13, 2.0, ties, seed=1)
    best = rg.infer(graph, scheduler=rg.Contraction()).mode_bound()
    posterior = rg.infer(graph, scheduler=rg.Search(seconds=0.6))
    score = graph.score({**posterior.mode()})
    torch.testing.assert_close(score, best, rtol=1e-9, atol=0.0)
    assert bool(posterior.mode_is_optimal())
    assert bool(posterior.solution.best.optimal.all())  # by the search itself, without a bound


def test_a_cut_that_ends_early_spoils_no_bound(monkeypatch):
    monkeypatch.setattr("rdpgraph._core.tuning.CUT_VISIT", 1e30)
    for seed in range(3):
        graph = random_pairs("mixed", seed)
        best = float(brute_force(graph).maximum)
        posterior = rg.infer(graph, scheduler=rg.Loopy(sweeps=20))
        assert float(posterior.mode_bound()) >= best - 1e-12


def test_items_of_a_batch_are_cut_apart():
    generator = torch.Generator().manual_seed(4)
    x = rg.VariableArray("x", (10, 10), 2)
    fields = torch.randn(2, 10, 10, 2, generator=generator, dtype=DOUBLE)
    ties = rg.Table.from_logs(torch.eye(2, dtype=DOUBLE))

    def graph(logs: torch.Tensor) -> rg.FactorGraph:
        return rg.FactorGraph([
            rg.FactorBlock((x,), rg.Table.from_logs(logs)),
            rg.FactorBlock((x[1:], x[:-1]), ties),
            rg.FactorBlock((x[:, 1:], x[:, :-1]), ties),
        ])  # fmt: skip

    together = rg.infer(graph(fields), scheduler=rg.Search(seconds=0.5))
    for item in range(2):
        alone = rg.infer(graph(fields[item]), scheduler=rg.Search(seconds=0.5))
        assert bool((together.mode()[x][item] == alone.mode()[x]).all())
        torch.testing.assert_close(together.mode_bound()[item], alone.mode_bound())
        assert bool(together.mode_is_optimal()[item])
