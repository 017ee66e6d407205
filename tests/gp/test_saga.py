"""SAGA against SGD on averages of quadratics."""

import pytest
import torch

from rdpgraph.errors import ModelError
from rdpgraph.gp import SAGA


def quadratics(items=4, dimension=2):
    generator = torch.Generator().manual_seed(0)
    roots = torch.randn(items, dimension, dimension, dtype=torch.float64, generator=generator)
    curved = roots @ roots.mT + 2 * torch.eye(dimension)
    targets = torch.randn(items, dimension, dtype=torch.float64, generator=generator)
    lipschitz = float(torch.linalg.eigvalsh(curved).max())
    best = torch.linalg.solve(curved.mean(0), (curved @ targets.unsqueeze(2)).mean(0).squeeze(1))
    return curved, targets, lipschitz, best


def distance(make, steps=700):
    """Distance to the optimum after steps at a constant rate."""
    curved, targets, lipschitz, best = quadratics()
    position = torch.nn.Parameter(torch.zeros_like(best))
    optimiser = make([position], 1 / (3 * lipschitz), len(curved))
    generator = torch.Generator().manual_seed(1)
    for item in torch.randint(len(curved), (steps,), generator=generator).tolist():
        apart = position - targets[item]
        optimiser.zero_grad()
        (apart @ curved[item] @ apart / 2).backward()
        if isinstance(optimiser, SAGA):
            optimiser.step(item=item)
        else:
            optimiser.step()
    return float((position.detach() - best).norm())


@pytest.mark.long
def test_saga_converges_at_a_rate_at_which_sgd_does_not():
    assert distance(lambda params, rate, items: SAGA(params, items=items, lr=rate)) < 1e-8
    assert distance(lambda params, rate, items: torch.optim.SGD(params, lr=rate)) > 1e-2


@pytest.mark.long
def test_a_step_is_the_formula():
    position = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
    optimiser = SAGA([position], items=2, lr=0.1)
    gradients = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 1.0]])

    def closure(given):
        position.grad = given.clone()
        return torch.tensor(5.0)

    assert optimiser.step(lambda: closure(gradients[0]), item=0) == 5.0
    torch.testing.assert_close(position.data, torch.tensor([0.9, 2.0]))
    optimiser.step(lambda: closure(gradients[1]), item=1)  # the average of two first gradients
    torch.testing.assert_close(position.data, torch.tensor([0.85, 1.9]))
    optimiser.step(lambda: closure(gradients[2]), item=0)  # 3, 1 less 1, 0 and the average 0.5, 1
    torch.testing.assert_close(position.data, torch.tensor([0.85 - 0.25, 1.9 - 0.2]))
    table = optimiser.state[position]["table"]
    torch.testing.assert_close(table, torch.stack([gradients[2], gradients[1]]))


def test_the_table_is_part_of_the_state():
    position = torch.nn.Parameter(torch.ones(2))
    optimiser = SAGA([position], items=2, lr=0.1)
    position.grad = torch.ones(2)
    optimiser.step(item=1)
    other = SAGA([position], items=2, lr=0.1)
    other.load_state_dict(optimiser.state_dict())
    torch.testing.assert_close(other.state[position]["table"], optimiser.state[position]["table"])


def test_bad_input_is_one_line():
    position = torch.nn.Parameter(torch.ones(2))
    position.grad = torch.ones(2)
    for make in (
        lambda: SAGA([position], items=0, lr=0.1),
        lambda: SAGA([position], items=1, lr=0.0),
        lambda: SAGA([position], items=2, lr=0.1).step(item=2),
    ):
        with pytest.raises(ModelError) as caught:
            make()
        assert "\n" not in str(caught.value)
