"""Chains of potentials without a table are recognised at any number of states."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

import rdpgraph as rg
from rdpgraph.extend import Potential

MANY = 2100  # states whose table the recognition does not make
STEPS, FEWER = 80, 240  # pairs of their own tables, which are as large together
MADE = torch.Generator().manual_seed(0)


def made(*shape: int) -> Tensor:
    return 0.5 * torch.randn(shape, generator=MADE)


@dataclass(frozen=True, eq=False)
class Distance(Potential):
    """A user's potential: minus the distance of two states' places."""

    first: Tensor
    second: Tensor

    @property
    def shape(self):
        return len(self.first), len(self.second)

    def evaluate(self, states):
        first, second = self.first[states[0]], self.second[states[1]]
        return -(first.unsqueeze(-1) - second.unsqueeze(-2)).abs()


ONE = made(MANY, 3), made(MANY, 3)
PLACES = made(MANY), made(MANY)
EACH = made(STEPS, FEWER, 3), made(STEPS, FEWER, 3)

# The potential, the steps, whether it reads the later variable first, and the pairs' order.
CHAINS = {
    "one": (rg.Bilinear(*ONE), 3, False, None),
    "one turned": (rg.Bilinear(*ONE), 3, True, None),
    "one with a leading dim": (rg.Bilinear(ONE[0][None], ONE[1][None]), 3, False, None),
    "a user's turned": (Distance(*PLACES), 3, True, None),
    "one each": (rg.Bilinear(*EACH), STEPS, False, None),
    "one each turned": (rg.Bilinear(*EACH), STEPS, True, torch.randperm(STEPS, generator=MADE)),
}


def graph(name: str, unary: Tensor, potential: Potential) -> rg.FactorGraph:
    """A chain whose pairs have the potential, in an order and a direction."""
    _, steps, backwards, order = CHAINS[name]
    x = rg.VariableArray("x", (steps + 1,), unary.shape[-1])
    earlier = torch.arange(steps) if order is None else order
    scope = (x[earlier + 1], x[earlier]) if backwards else (x[earlier], x[earlier + 1])
    return rg.FactorGraph([rg.FactorBlock((x,), rg.Table(unary)), rg.FactorBlock(scope, potential)])


def unary_of(name: str, *batch: int) -> Tensor:
    potential, steps, *_ = CHAINS[name]
    values = made(*batch, steps + 1, potential.shape[-1])
    values[..., 1, 5:9] = -torch.inf
    return values


@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_without_a_table_is_recognised_and_answers_as_with_one(name):
    potential, unary = CHAINS[name][0], unary_of(name)
    unary.requires_grad_()
    model = graph(name, unary, potential)
    assert rg.explain(model).route == "structure"
    dense = graph(name, unary, rg.Table(potential.table(2)))
    ours, theirs = rg.infer(model), rg.infer(dense, rg.Contraction())
    torch.testing.assert_close(ours.log_partition, theirs.log_partition)
    torch.testing.assert_close(ours.marginal("x"), theirs.marginal("x"), atol=1e-5, rtol=1e-3)
    torch.testing.assert_close(
        *(torch.autograd.grad(each.log_partition, unary)[0] for each in (ours, theirs)),
        atol=1e-5, rtol=1e-3,
    )  # fmt: skip
    score = model.score(ours.mode())
    torch.testing.assert_close(score, dense.score(theirs.mode()))


def test_gradients_reach_the_vectors_of_a_turned_chain():
    left, right = (part.clone().requires_grad_() for part in ONE)
    unary = unary_of("one turned")
    models = (
        graph("one turned", unary, rg.Bilinear(left, right)),
        graph("one turned", unary, rg.Table(left @ right.mT)),
    )
    solved = (torch.autograd.grad(rg.infer(model).log_partition, (left, right)) for model in models)
    for ours, theirs in zip(*solved, strict=True):
        assert bool(ours.isfinite().all())
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-3)


def test_batches_and_evidence_are_those_of_the_items():
    potential, unary = CHAINS["one"][0], unary_of("one", 2)
    model = graph("one", unary, potential)
    whole = rg.infer(model)
    for number, item in enumerate(unary):
        one = rg.infer(graph("one", item, potential))
        torch.testing.assert_close(whole.log_partition[number], one.log_partition)
    seen = model.condition({model.domain.variable(2): 7})
    held = unary.clone()
    held[:, 2] = torch.where(torch.arange(MANY) == 7, held[:, 2], -torch.inf)
    torch.testing.assert_close(
        rg.infer(seen).log_partition, rg.infer(graph("one", held, potential)).log_partition
    )


def test_a_tree_of_large_tables_is_exact_and_not_left_to_messages():
    """The plan reckons a table times vectors by its size, not as a product of tables."""
    states = 4000
    x, child = rg.VariableArray("x", (61,), states), torch.arange(1, 61)
    vectors = made(states, 2)
    pairs = rg.FactorBlock((x[(child - 1) // 2], x[child]), rg.Bilinear(vectors, vectors))
    plan = rg.explain(rg.FactorGraph([pairs]))
    assert plan.route == "forest"
    assert plan.seconds < 8.0


def test_a_table_beyond_the_machine_is_refused_and_an_estimate_needs_none():
    states = 400_000
    x, child = rg.VariableArray("x", (7,), states), torch.arange(1, 7)
    vectors = made(states, 2)
    pairs = rg.FactorBlock((x[(child - 1) // 2], x[child]), rg.Bilinear(vectors, vectors))
    tree = rg.FactorGraph([pairs])
    with pytest.raises(rg.errors.BudgetError, match=r"table of a Bilinear.*estimator.*keep=100"):
        rg.infer(tree)
    estimate = rg.infer(tree, estimator=rg.Randomized.default(keep=100))
    assert bool(estimate.log_partition.isfinite())
