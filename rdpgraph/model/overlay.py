"""Joints of variables that no factor holds together: a factor of zeros is laid over them."""

import torch
from torch import Tensor

from rdpgraph.model.block import Block
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.table import Table


def with_joint(graph: FactorGraph, numbers: Tensor, declared: int) -> FactorGraph:
    """The same distribution, with a last block of one factor of zeros over some variables.

    Args:
        graph: the model.
        numbers: (n,) of the variables, in the order of the slots.
        declared: the place of the factor in the order of declaration.
    """
    # One zero stands for all of them: the table is not written out here.
    zero = torch.zeros((), dtype=graph.dtype, device=graph.device)
    table = Table(zero.expand(graph.domain.sizes[numbers].tolist()))
    block = Block(numbers.unsqueeze(0), table, (), None, torch.tensor([declared]))
    return FactorGraph.from_blocks(graph.domain, (*graph.blocks, block), graph.observed)
