"""Entries of tables are those of indexing, for few and for many."""

import pytest
import torch

import rdpgraph as rg


@pytest.mark.parametrize("dims", [1, 2, 3, 4])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("count", [0, 2, 17])
def test_entries_are_those_of_indexing(dims, transposed, count):
    generator = torch.Generator().manual_seed(dims)
    sizes = [3, 4, 2, 5][:dims]
    values = torch.randn(sizes, generator=generator, dtype=torch.float64, requires_grad=True)
    table = rg.Table(values.transpose(0, -1) if transposed else values)
    counts = range(count, count + dims)
    states = [
        torch.randint(size, (each,), generator=generator)
        for size, each in zip(table.shape, counts, strict=True)
    ]
    found, expected = (
        table.evaluate(states),
        table.log_values[torch.meshgrid(*states, indexing="ij")],
    )
    assert torch.equal(found, expected)
    weights = torch.randn(found.shape, generator=generator, dtype=torch.float64)
    first, second = (
        torch.autograd.grad((part * weights).sum(), values, retain_graph=True)[0]
        for part in (found, expected)
    )
    torch.testing.assert_close(first, second)
