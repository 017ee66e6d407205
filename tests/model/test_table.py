"""Tables of log-values."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import rdpgraph as rg


class Largest(TorchDispatchMode):
    """How many numbers the largest tensor has that is made."""

    def __init__(self):
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        if isinstance(found, torch.Tensor):
            self.numbers = max(self.numbers, found.numel())
        return found


def test_the_gradient_of_a_shared_table_is_not_one_for_each_item():
    draw = torch.Generator().manual_seed(0)
    values = torch.randn(30, 40, generator=draw, dtype=torch.float64, requires_grad=True)
    before = torch.randint(30, (50, 2), generator=draw)
    after = torch.randint(40, (50, 3), generator=draw)
    with Largest() as largest:
        found = rg.Table(values).evaluate([before, after])
        (gradient,) = torch.autograd.grad(found.sum(), values)
    assert largest.numbers == values.numel()
    assert torch.equal(found, values[before.unsqueeze(2), after.unsqueeze(1)])
    counts = torch.zeros(30, 40, dtype=torch.float64)
    index = (before.unsqueeze(2) * 40 + after.unsqueeze(1)).flatten()
    counts.view(-1).scatter_add_(0, index, torch.ones(len(index), dtype=torch.float64))
    assert torch.equal(gradient, counts)


def test_tables_with_dims_of_their_own_meet_those_of_the_states():
    values = torch.randn(3, 1, 4, 5, generator=torch.Generator().manual_seed(0))
    before, after = torch.arange(8).reshape(1, 2, 4) % 4, torch.tensor([[[4, 0]]])
    found = rg.Table(values).evaluate([before, after])
    assert found.shape == (3, 2, 4, 2)
    for one, two in ((0, 0), (2, 1)):
        assert torch.equal(found[one, two], values[one, 0][before[0, two]][:, [4, 0]])
