"""Annotated shapes are checked at every call in the tests: see conftest.py."""

import pytest
import torch
from jaxtyping import TypeCheckError

from rdpgraph.structures.chain import logs
from rdpgraph.structures.dependency import elimination


def test_a_wrong_shape_is_noticed():
    lengths = torch.tensor([3, 2])
    unary = torch.zeros(2, 3, 4)
    logs.log_partition(unary, torch.zeros(4, 4), lengths)
    logs.log_partition(unary, torch.zeros(1, 2, 4, 4), lengths)
    with pytest.raises(TypeCheckError):
        logs.log_partition(unary, torch.zeros(5, 5), lengths)
    with pytest.raises(TypeCheckError):
        logs.log_partition(unary, torch.zeros(4, 4), lengths[:1])
    with pytest.raises(TypeCheckError):
        elimination.max_marginals(torch.zeros(2, 3, 3), lengths, multiroot=True)
