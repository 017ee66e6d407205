"""Entries by their numbers are those by an index for each dim."""

import pytest
import torch

from rdpgraph.model.potentials.table import looked_up


@pytest.mark.parametrize("dims", [1, 2, 3, 4])
@pytest.mark.parametrize("transposed", [False, True])
def test_entries_are_those_of_indexing(dims, transposed):
    generator = torch.Generator().manual_seed(dims)
    sizes = [3, 4, 2, 5][:dims]
    values = torch.randn(sizes, generator=generator, dtype=torch.float64, requires_grad=True)
    taken = values.transpose(0, -1) if transposed else values
    index = [
        torch.randint(size, (2, *(1 if place != dim else 6 for place in range(dims))))
        for dim, size in enumerate(taken.shape)
    ]
    found, expected = looked_up(taken, index), taken[tuple(index)]
    assert torch.equal(found, expected)
    weights = torch.randn(found.shape, generator=generator, dtype=torch.float64)
    first, second = (
        torch.autograd.grad((part * weights).sum(), values, retain_graph=True)[0]
        for part in (found, expected)
    )
    torch.testing.assert_close(first, second)
    assert looked_up(taken, [part[:0] for part in index]).shape == expected[:0].shape
