"""Distinct rows, held against the general function."""

import pytest
import torch

from rdpgraph.model.restriction import distinct_rows


@pytest.mark.parametrize("limit", [1, 2, 7, 10**6, 2**31 - 1])
@pytest.mark.parametrize("shape", [(0, 3), (1, 1), (40, 1), (200, 3), (30, 9), (5, 0)])
def test_distinct_rows_are_those_of_unique(shape, limit):
    rows = torch.randint(0, limit, shape, generator=torch.Generator().manual_seed(limit))
    rows = torch.cat([rows, rows[: shape[0] // 2]])
    found, which = distinct_rows(rows)
    assert torch.equal(found[which], rows)
    if shape[1]:
        expected, inverse = torch.unique(rows, dim=0, return_inverse=True)
        assert torch.equal(found, expected)
        assert torch.equal(which, inverse)
