"""Alternatives over the states of one site, added up on a tape."""

import math
from dataclasses import dataclass

import pytest
import torch

import rdpgraph as rg
from rdpgraph.testing import check_structure
from tests.structures.tape.models import draw


@dataclass(frozen=True, eq=False)
class TwoTables(rg.extend.Recursion):
    """A chain with two tables: each step goes by one of them, and the second by the first alone."""

    first: torch.Tensor
    second: torch.Tensor
    way: str

    def recursion(self, tape):
        (steps,) = tape.site_shape
        state = tape.sites[0]
        for t in range(1, steps):
            site = tape.sites[t]
            ways = [tape.link(state, table, to=site) for table in (self.first, self.second)]
            second = 1 if self.both(t) else -1
            if self.way == "view":
                both = tape.view(ways, torch.tensor([[0], [second]]))
            elif self.way == "of each item":
                index = torch.tensor([[[0], [second]], [[second], [0]]])
                both = tape.view(ways, index[torch.arange(tape.batch) % 2])
            else:
                both = tape.as_alternatives(ways if self.both(t) else ways[:1])
            state = tape.total((site, tape.total(both)))
        return tape.sum(state)

    def both(self, step):
        return step != 2

    def factor_graph(self):
        steps = self.unary.shape[-2]
        tables = [
            torch.logaddexp(self.first, self.second) if self.both(step) else self.first
            for step in range(1, steps)
        ]
        return rg.Chain(self.unary, torch.stack(tables)).factor_graph()


def parted(*shape):
    """Two tables, each with what the other forbids: a configuration goes one way."""
    table = draw(*shape, seed=1)
    first = torch.eye(*shape) > 0
    return torch.where(first, table, -math.inf), torch.where(first, -math.inf, table)


@pytest.mark.parametrize("way", ["view", "of each item", "as alternatives"])
def test_two_links_to_one_site_are_summed(way):
    check_structure(TwoTables(draw(2, 4, 3), *parted(3, 3), way))


@pytest.mark.parametrize("way", ["view", "of each item", "as alternatives"])
def test_ways_that_overlap_are_added_up(way):
    model = TwoTables(draw(2, 4, 3), draw(3, 3, seed=1), draw(3, 3, seed=2), way)
    known = rg.infer(model.factor_graph())
    torch.testing.assert_close(model.log_partition(), known.log_partition)
    (site,) = known.marginals().values()
    torch.testing.assert_close(model.marginals(), site)
