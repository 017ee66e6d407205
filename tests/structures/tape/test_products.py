"""Expectations by products of matrices are those over choices looked at one by one."""

import pytest
import torch
from torch.testing import assert_close

import rdpgraph as rg
from rdpgraph._core import tuning
from rdpgraph.logspace.logmatrix import LogMatrix
from rdpgraph.structures.recursion.down import last_read
from tests.structures.tape.models import Segments, Spans, Tags, draw

INF = float("inf")


def with_zeros(logs, share, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.where(torch.rand(logs.shape, generator=generator) < share, -INF, logs)


SHAPES = {Tags: ((4,), (3, 3)), Segments: ((4, 2), (3, 3)), Spans: ((4, 4), (2, 3, 3))}
"""Sites and table of each kind: of spans rules with fewer parents than states."""


def pairs(kind, zeros):
    """Two recursions of one shape, the second of which allows all that the first does, or not.

    And the potentials of both.
    """
    sites, shape = SHAPES[kind]
    models, inputs = [], []
    for seed in (0, 10):
        unary = with_zeros(3 * draw(2, *sites, 3, seed=seed), zeros, seed).requires_grad_()
        table = with_zeros(3 * draw(*shape, seed=seed + 1), zeros, seed + 1).requires_grad_()
        link = rg.trees.DenseRules(table) if kind is Spans else table
        models.append(kind(unary, link, lengths=torch.tensor([4, 3])))
        inputs += [unary, table]
    return *models, inputs


@pytest.mark.parametrize("kind", list(SHAPES))
@pytest.mark.parametrize("zeros", [0.0, 0.2, 0.5])
def test_products_are_choices_looked_at_one_by_one(kind, zeros, monkeypatch):
    one, other, inputs = pairs(kind, zeros)
    answers = {
        "entropy": one.entropy,
        "cross-entropy": lambda: one.cross_entropy(other),
        "divergence": lambda: one.kl_divergence(other),
        "from itself": lambda: one.kl_divergence(one),
    }
    for name, answer in answers.items():
        found = []
        for small in (2**12, 0):
            monkeypatch.setattr(tuning, "LOGGED_TERMS", small)
            value = answer()
            finite = torch.where(value.isfinite(), value, 0.0).sum()
            gradients = torch.autograd.grad(finite, inputs, materialize_grads=True)
            found.append((value, *gradients))
        assert all(part.isfinite().all() for part in found[1][1:]), name
        assert_close(found[0], found[1], rtol=1e-9, atol=1e-9, msg=name)
    assert not one.kl_divergence(one).any()


def test_products_are_differentiable_twice(monkeypatch):
    monkeypatch.setattr(tuning, "LOGGED_TERMS", 0)
    unary, table = draw(1, 3, 3, seed=3).requires_grad_(), draw(3, 3, seed=4).requires_grad_()
    torch.autograd.gradgradcheck(
        lambda *parts: Tags(*parts).entropy(), (unary, table), fast_mode=True
    )


def test_means_are_those_of_softmax_shares():
    rows, logs = with_zeros(draw(2, 5, 4), 0.3, 1), with_zeros(draw(2, 3, 4, seed=1), 0.3, 2)
    rows[0, 0], logs[1, 2] = -INF, -INF
    gains, scores = draw(2, 5, 4, seed=2), draw(2, 3, 4, seed=3)
    for scale in (1.0, 300.0):  # at the larger one most shares are below the smallest number
        matrix = LogMatrix.of(scale * logs)
        found = matrix.means(scale * rows, gains, (scores, matrix.weights * scores))
        terms = scale * (rows.unsqueeze(2) + logs.unsqueeze(1))
        shares = torch.where((terms > -INF).any(-1, keepdim=True), terms.softmax(-1), 0.0)
        wanted = (shares * (gains.unsqueeze(2) + scores.unsqueeze(1))).sum(-1)
        assert_close(found, wanted, rtol=1e-9, atol=1e-12)
        totals = torch.where(terms.isneginf().all(-1), -INF, terms.logsumexp(-1))
        assert_close(matrix.times(scale * rows), totals, rtol=1e-12, atol=1e-12)


def test_entropies_of_faint_choices_are_exact(monkeypatch):
    monkeypatch.setattr(tuning, "LOGGED_TERMS", 0)
    # All that is possible has a share of e^-900 of the largest sums.
    unary = torch.zeros(2, 2, dtype=torch.float64)
    table = torch.tensor([[0.0, -900.0], [0.0, -900.0]], dtype=torch.float64)
    unary[1, 0] = -INF
    assert_close(Tags(unary, table).entropy(), torch.tensor(2.0, dtype=torch.float64).log())


def test_values_are_kept_until_they_are_last_read():
    tape = rg.SemiMarkov(draw(5, 2, 3), draw(3, 3)).to_tape(ranks=False)
    for number, ended in enumerate(last_read(tape)):
        later = {
            value.number
            for step in tape.steps[number + 1 :]
            for view in step.reads
            for value in view.pool
        }
        assert not later & set(ended)
    assert sum(len(ended) for ended in last_read(tape)) == len(tape.steps) - 1
