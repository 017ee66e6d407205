"""What a small model costs beside its arithmetic: Python calls, and what is done once."""

import math
from contextlib import nullcontext
from typing import ClassVar

import pytest
import torch

import rdpgraph as rg
from tests.calls import calls_of


def declared(tables, edges, evidence=None):
    """A graph of single variables with a table on each edge, all of it declared anew."""
    x = [rg.Variable(name, 2) for name in "xyz"]
    factors = [
        rg.Factor((x[a], x[b]), rg.Table(table))
        for table, (a, b) in zip(tables, edges, strict=True)
    ]
    posterior = rg.infer(rg.FactorGraph(factors), evidence=evidence)
    return posterior.marginal(x[0])


def tables(count):
    """Tables with log-values on both sides of zero, which do not look like probabilities."""
    generator = torch.Generator().manual_seed(0)
    return [2.0 + torch.randn(2, 2, generator=generator) for _ in range(count)]


@pytest.mark.parametrize(
    ("edges", "evidence", "most"),
    [
        ([(0, 1), (1, 2)], None, 150),  # a chain
        ([(0, 1), (1, 2), (2, 0)], None, 165),
        ([(0, 1), (1, 2), (2, 0)], {"y": 1}, 225),
    ],
    ids=["chain", "cycle", "evidence"],
)
def test_three_variables_are_declared_and_answered_in_few_calls(edges, evidence, most):
    given = tables(len(edges))
    files = calls_of(lambda: declared(given, edges, evidence))
    assert sum(files.values()) <= most, files
    # No structure is recognised, no network made and no route asked for a bid.
    rooms = ("structures", "recurrences", "engines/reduction", "schedulers/auction")
    assert not [name for name in files if name.startswith(rooms)]


def test_a_small_chain_is_declared_and_answered_in_few_calls():
    unary, links = torch.randn(5, 3), torch.randn(3, 3)
    files = calls_of(lambda: rg.infer(rg.Chain(unary, links)).log_partition)
    assert sum(files.values()) <= 150, files


class Independent(rg.extend.Structure):
    """Variables without links, which notes what it is asked."""

    asked: ClassVar[list[str]] = []

    @property
    def batch_shape(self):
        return tuple(self.unary.shape[:-2])

    @classmethod
    def recognise(cls, graph):
        cls.asked.append("recognise")
        if any(block.arity != 1 for block in graph.blocks):
            return None
        (block,) = graph.blocks
        return rg.extend.Match(cls(block.table()), block.scopes[:, 0])

    def log_partition(self):
        self.asked.append("log_partition")
        return self.unary.logsumexp(-1).sum(-1)


@pytest.mark.parametrize("hard", [False, True])
def test_a_structure_is_recognised_once_and_its_marginals_take_one_log_z(hard):
    values = torch.randn(9, 3, generator=torch.Generator().manual_seed(0))
    if hard:  # nothing is possible, which log Z says
        values[4] = -math.inf
    x = rg.VariableArray("x", (9,), 3)
    graph = rg.FactorGraph([rg.FactorBlock((x,), rg.Table(values))])
    Independent.asked.clear()
    rg.extend.register(Independent)
    try:
        posterior = rg.infer(graph)
        with pytest.warns(UserWarning, match="possible") if hard else nullcontext():
            marginals = posterior.marginal(x)
        assert Independent.asked == ["recognise"] + ["log_partition"] * (1 + hard)
        assert torch.allclose(marginals, torch.zeros(9, 3) if hard else values.softmax(-1))
        for _ in range(2):
            assert torch.equal(posterior.log_partition, values.logsumexp(-1).sum())
        assert Independent.asked.count("log_partition") == 2
    finally:
        rg.extend.REGISTRY.remove(Independent)
