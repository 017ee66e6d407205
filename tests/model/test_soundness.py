"""A large table is read once to see that it is sound, and again after a write to it."""

import math

import pytest
import torch
from torch.overrides import TorchFunctionMode

import rdpgraph as rg
from rdpgraph.errors import ModelError

STATES = 300


class Maxima(TorchFunctionMode):
    """Counts how often the largest of a large tensor is asked for."""

    count = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.Tensor.amax and args[0].numel() >= STATES**2:
            self.count += 1
        return func(*args, **(kwargs or {}))


@pytest.fixture
def table():
    return torch.randn(STATES, STATES, generator=torch.Generator().manual_seed(0))


def chain(table):
    return rg.Chain(torch.zeros(3, STATES), table)


def test_a_table_is_read_once_for_all_objects_that_are_made_of_it(table):
    parameter = torch.nn.Parameter(table.clone())
    with Maxima() as maxima:
        for _ in range(3):
            chain(table), rg.Table(table), chain(parameter)
        assert maxima.count == 2
        table[0, 0] = 1.0
        chain(table), chain(table)
        assert maxima.count == 3
        chain(table.T)  # another tensor, with an address and a counter of writes of its own
        assert maxima.count == 4


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_writes_are_seen_whoever_makes_them(table, value):
    for write in (
        lambda: table.__setitem__((1, 2), value),
        lambda: table[3].view(-1)[4:5].fill_(value),
        lambda: table.detach()[5].add_(value),
        lambda: setattr(table, "data", torch.full_like(table, value)),
    ):
        chain(table)
        sound = table.clone()
        write()
        with pytest.raises(ModelError, match="Chain's transition needs log-values below"):
            chain(table)
        with torch.no_grad():
            table.copy_(sound)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_write_by_way_of_numpy_is_found_when_the_table_is_used(table, value):
    assert chain(table).log_partition().isfinite()
    table.numpy()[7, 8] = value
    with pytest.raises(ModelError, match="needs log-values below"):
        chain(table).log_partition()
    table.numpy()[7, 8] = 0.0
    assert chain(table).log_partition().isfinite()
