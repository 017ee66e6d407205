"""Long models: what is done at every step does not grow with the number of steps."""

import sys
from itertools import pairwise

import torch

import rdpgraph as rg


def lines_run(count: int) -> int:
    """Lines of Python run to lay out the program of a chain of single factors, and to run it."""
    generator = torch.Generator().manual_seed(0)
    variables = [rg.Variable(f"v{i}", 2) for i in range(count)]
    tables = [rg.Table(torch.randn(2, 2, generator=generator)) for _ in variables[1:]]
    pairs = pairwise(variables)
    graph = rg.FactorGraph([rg.Factor(p, t) for p, t in zip(pairs, tables, strict=True)])
    run, before = 0, sys.gettrace()

    def counted(frame, event, argument):
        nonlocal run
        run += 1
        return counted

    sys.settrace(counted)
    try:
        log_z = rg.Contraction().solve(graph).log_partition()
    finally:
        sys.settrace(before)
    assert torch.isfinite(log_z)
    return run


def test_the_program_of_a_chain_is_laid_out_in_linear_time():
    short, long = lines_run(50), lines_run(200)
    assert long < 6 * short
