"""Relaxed draws on the states kept: those on all states, without the zeros."""

import pytest
import torch
from torch.testing import assert_close

import rdpgraph as rg
from rdpgraph.answers import RelaxedStates


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def fixed(*shape, seed=0):
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


def chain(weights):
    transition = rg.Bilinear(weights[:24].reshape(12, 2), weights[24:48].reshape(12, 2))
    return rg.Chain(fixed(2, 4, 12, seed=1), transition, lengths=torch.tensor([4, 2]))


def tree(weights):
    rules = rg.trees.LowRankRules(*(weights[24 * n : 24 * n + 24].reshape(12, 2) for n in range(3)))
    return rg.Hypertree(fixed(2, 3, 3, 12, seed=1), rules)


ESTIMATORS = {
    "systematic": rg.Randomized.default(keep=5),
    "replicates": rg.Randomized.default(keep=4, replicates=3),
    "repeats": rg.Randomized(rg.randomized.Local(), rg.randomized.TopTail(1, 6)),
    "top": rg.Randomized(rg.randomized.Local(), rg.randomized.Top(3)),
}


@pytest.mark.parametrize("estimator", ESTIMATORS.values(), ids=list(ESTIMATORS))
@pytest.mark.parametrize("model", [chain, tree])
def test_a_draw_on_the_states_kept_is_the_one_on_all_states(model, estimator):
    weights = fixed(72).requires_grad_()
    posterior = rg.infer(model(weights), estimator=estimator, generator=seeded(1))
    wide = posterior.rsample(temperature=0.6, generator=seeded(2))
    few = posterior.rsample_kept(temperature=0.6, generator=seeded(2))
    assert few.weights.shape == (*wide.shape[:-1], posterior.supports.kept)
    assert_close(torch.zeros_like(wide).scatter_add(-1, few.states, few.weights), wide)
    place = fixed(*wide.shape, seed=3)
    table = fixed(12, 3, seed=4)
    for found, expected in (
        (few.pick(place), (wide * place).sum(-1)),
        (few.mean(table), wide @ table),
    ):
        assert_close(found, expected)
        gradients = [
            torch.autograd.grad(value.square().sum(), weights, retain_graph=True)[0]
            for value in (found, expected)
        ]
        assert_close(*gradients)


def test_without_an_estimator_all_states_are_kept():
    posterior = rg.infer(chain(fixed(72)))
    few = posterior.rsample_kept(temperature=0.6, generator=seeded())
    wide = posterior.rsample(temperature=0.6, generator=seeded())
    assert few.states is None
    assert_close(few.weights, wide)
    table = fixed(12, 3)
    assert_close(few.mean(table), wide @ table)
    assert_close(few.pick(wide), wide.square().sum(-1))


def test_a_hard_draw_has_one_state_and_the_gradient_of_the_relaxed_one():
    weights = torch.tensor([[0.2, 0.8], [0.6, 0.4], [0.0, 0.0]]).requires_grad_()
    hard = RelaxedStates(weights, torch.tensor([[3, 5], [4, 4], [0, 0]])).hard()
    table = torch.arange(6.0).unsqueeze(1)
    assert hard.mean(table).flatten().tolist() == [5.0, 4.0, 0.0]
    hard.mean(table).sum().backward()
    assert weights.grad.tolist() == [[3.0, 5.0], [4.0, 4.0], [0.0, 0.0]]


def test_certain_states_have_one_weight_each():
    values = fixed(2, 3, 5)
    states = torch.tensor([[4, 0, -1], [2, -1, -1]])
    certain = RelaxedStates.of(states, values)
    assert certain.weights.dtype == values.dtype
    assert certain.weights.shape == (2, 3, 1)
    expected = values.gather(-1, states.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    assert_close(certain.pick(values), torch.where(states >= 0, expected, 0.0))
    table = fixed(5, 2)
    rows = torch.where((states >= 0).unsqueeze(-1), table[states.clamp(min=0)], 0.0)
    assert_close(certain.mean(table), rows)


def test_no_steps_have_a_draw_of_no_steps():
    empty = rg.Chain(fixed(2, 0, 6), fixed(6, 6))
    posterior = rg.infer(empty, estimator=rg.Randomized.default(keep=3), generator=seeded())
    assert posterior.rsample_kept(temperature=1.0).weights.shape == (2, 0, 3)


def test_weights_and_states_of_other_shapes_are_refused():
    with pytest.raises(rg.errors.ModelError, match="one shape"):
        RelaxedStates(torch.ones(2, 3), torch.ones(2, 2, dtype=torch.long))
