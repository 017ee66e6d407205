"""Long models: what is done at every step does not grow with the number of steps."""

from itertools import pairwise

import torch

import rdpgraph as rg
from rdpgraph.engines.exact import program


def _work(count: int, monkeypatch) -> int:
    """The entries of all ranges made while the program of a chain of single factors is laid out."""
    made = 0

    def counted(*bounds: int) -> range:
        nonlocal made
        found = range(*bounds)
        made += len(found)
        return found

    monkeypatch.setattr(program, "range", counted, raising=False)
    generator = torch.Generator().manual_seed(0)
    variables = [rg.Variable(f"v{i}", 2) for i in range(count)]
    tables = [rg.Table(torch.randn(2, 2, generator=generator)) for _ in variables[1:]]
    pairs = pairwise(variables)
    graph = rg.FactorGraph([rg.Factor(p, t) for p, t in zip(pairs, tables, strict=True)])
    log_z = rg.Contraction().solve(graph).log_partition()
    monkeypatch.undo()
    assert torch.isfinite(log_z)
    return made


def test_the_program_of_a_chain_is_laid_out_in_linear_time(monkeypatch):
    short, long = _work(150, monkeypatch), _work(600, monkeypatch)
    assert long < 6 * short
