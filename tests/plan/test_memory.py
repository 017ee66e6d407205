"""The memory that a plan predicts is the memory that log Z and marginals take."""

import pytest
import torch

import rdpgraph as rg
from tests.memory import peak_of_tensors

MADE = torch.Generator().manual_seed(0)


def made(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=MADE)


def tree(count: int, states: int, *batch: int, shared: bool = False) -> rg.FactorGraph:
    x, child = rg.VariableArray("x", (count,), states), torch.arange(1, count)
    vectors = 0.3 * made(states, 8)
    each = rg.Table(made(count - 1, states, states))
    pairs = rg.Bilinear(vectors, vectors) if shared else each
    edges = rg.FactorBlock((x[(child - 1) // 2], x[child]), pairs)
    return rg.FactorGraph([rg.FactorBlock((x,), rg.Table(made(*batch, count, states))), edges])


def triples(count: int, states: int) -> rg.FactorGraph:
    x, i = rg.VariableArray("x", (2 * count + 1,), states), torch.arange(count)
    tables = rg.Table(made(count, states, states, states))
    return rg.FactorGraph([rg.FactorBlock((x[i], x[2 * i + 1], x[2 * i + 2]), tables)])


def grid(side: int, states: int) -> rg.FactorGraph:
    x = rg.VariableArray("x", (side, side), states)
    down = rg.Table(made(side - 1, side, states, states))
    across = rg.Table(made(side, side - 1, states, states))
    blocks = [rg.FactorBlock((x[:-1], x[1:]), down), rg.FactorBlock((x[:, :-1], x[:, 1:]), across)]
    return rg.FactorGraph([rg.FactorBlock((x,), rg.Table(made(side, side, states))), *blocks])


def chain(steps: int, states: int) -> rg.Chain:
    vectors = 0.3 * made(states, 8)
    return rg.Chain(made(steps, states), rg.Bilinear(vectors, vectors))


# The model, and the scheduler where it is not the default one.
MODELS = {
    "many pairs": (lambda: tree(60, 40), None),
    "a batch": (lambda: tree(60, 20, 30), None),
    "one large potential": (lambda: tree(15, 600, shared=True), None),
    "triples": (lambda: triples(12, 40), None),
    "cycles": (lambda: grid(7, 4), rg.Contraction()),
    "slices": (lambda: grid(8, 3), rg.Contraction(memory=1e6)),
    "messages": (lambda: grid(20, 8), rg.Loopy(sweeps=5)),
    "chain": (lambda: rg.Chain(made(300, 100), made(100, 100)).factor_graph(), None),
    "chain of vectors": (lambda: chain(60, 500), None),
    "segments": (lambda: rg.SemiMarkov(made(60, 5, 40), made(40, 40)), None),
    "spans": (lambda: rg.Hypertree(made(16, 16, 20), rg.trees.DenseRules(made(20, 20, 20))), None),
    "heads": (lambda: rg.ProjectiveDependencies.from_arcs(made(6, 60, 60)), None),
    "heads that cross": (lambda: rg.NonProjectiveDependencies.from_arcs(made(6, 60, 60)), None),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_plan_predicts_the_memory_within_a_factor_of_three(name, monkeypatch):
    # Tables that wait for the next call would hide what it takes.
    monkeypatch.setattr("rdpgraph.recurrences.executor._IDLE", 0)
    make, scheduler = MODELS[name]
    plan = rg.explain(make(), scheduler)
    models = make(), make()
    rg.infer(make(), scheduler).marginals()  # layouts of structures are made once, and kept
    log_z = peak_of_tensors(lambda: rg.infer(models[0], scheduler).log_partition)
    marginals = peak_of_tensors(lambda: rg.infer(models[1], scheduler).marginals())
    assert plan.fits
    assert plan.peak_bytes / 3 < log_z < 3 * plan.peak_bytes
    assert plan.stored_bytes / 3 < marginals < 3 * plan.stored_bytes


def test_large_tables_count_against_the_budget():
    model, needed = tree(7, 2200, shared=True), 2 * 4 * 2200**2
    plan = rg.explain(model)
    assert needed < plan.peak_bytes < 1.5 * needed
    assert rg.explain(model, rg.Contraction(memory=2 * needed)).fits
    scarce = rg.Contraction(memory=needed / 2)
    plan = rg.explain(model, scarce)
    assert not plan.fits
    assert "the budget is 19.4 MB" in plan.remedy  # the budget as given
    with pytest.raises(rg.errors.BudgetError, match="memory"):
        rg.infer(model, scarce)


def test_a_scheduler_that_takes_all_it_is_given_says_so():
    plan = rg.explain(grid(6, 3), rg.MiniBuckets(memory=3e7, seconds=1.0))
    assert "at most 30.0 MB are taken" in str(plan)
