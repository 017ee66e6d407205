"""Batch shapes broadcast as torch's do, without what torch imports for it."""

import itertools
import subprocess
import sys

import pytest
import torch

import rdpgraph as rg

SHAPES = ((), (1,), (3,), (0,), (2, 1), (2, 3), (4, 1, 3), (1, 1, 1))


def graph_of(shapes):
    """Factors of one variable with these batch shapes."""
    x = rg.Variable("x", 2)
    return rg.FactorGraph([rg.Factor((x,), rg.Table(torch.zeros(*s, 2))) for s in shapes], [x])


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_shapes_broadcast_as_tensors_do(count):
    for shapes in itertools.product(SHAPES, repeat=count):
        try:
            expected = tuple(torch.broadcast_shapes(*shapes))
        except RuntimeError:
            with pytest.raises(rg.errors.ModelError, match="broadcast"):
                graph_of(shapes)
        else:
            assert graph_of(shapes).batch_shape == expected


@pytest.mark.long
def test_answers_import_no_symbolic_algebra():
    code = (
        "import sys, torch, rdpgraph as rg\n"
        "x = [rg.Variable(str(i), 2) for i in range(3)]\n"
        "g = rg.FactorGraph([rg.Factor((a, b), rg.Table(torch.eye(2))) for a in x for b in x "
        "if a.name < b.name])\n"
        "for s in (rg.Auto(), rg.Contraction(), rg.Loopy()):\n"
        "    p = rg.infer(g.condition({'0': 1}), scheduler=s)\n"
        "    p.log_partition, p.marginals(), g.score(p.mode())\n"
        "print('sympy' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["False"]
