"""Graphs cut where few factors cross: by METIS, a library that is there if one has installed it."""

from itertools import permutations

import torch
from torch import Tensor

from rdpgraph.errors import ModelError, UnsupportedError
from rdpgraph.model.graph import FactorGraph


def by_metis(graph: FactorGraph, ranks: int) -> Tensor:
    """(V,) an assignment for `partition`: alike many variables on each rank, few links cut.

    Two variables are linked if a factor holds both. O(links) time and memory, on every rank.

    Args:
        graph: the same on every rank.
        ranks: how many parts.

    Raises:
        UnsupportedError: pymetis is not installed.

    Source: Karypis and Kumar 1998, "A fast and high quality multilevel scheme for partitioning
    irregular graphs".
    """
    try:
        import pymetis  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise UnsupportedError(
            "by_metis needs pymetis: pip install 'rdpgraph[distributed]'; without it, partition "
            "cuts in blocks, or by an assignment of yours."
        ) from None
    if ranks < 1:
        raise ModelError(f"by_metis needs ranks >= 1; got {ranks}.")
    count = graph.num_variables
    codes = [
        block.scopes[:, one] * count + block.scopes[:, other]
        for block in graph.blocks
        for one, other in permutations(range(block.arity), 2)
    ]
    codes.append(torch.zeros(0, dtype=torch.long))
    links = torch.cat(codes).unique()
    degrees = torch.bincount(links // max(1, count), minlength=count)
    ends = torch.cat([degrees.new_zeros(1), degrees.cumsum(0)])
    if ranks == 1 or not len(links):
        return torch.arange(count) * ranks // max(1, count)
    linked = pymetis.CSRAdjacency(ends.int().numpy(), (links % count).int().numpy())
    return torch.tensor(list(pymetis.part_graph(ranks, linked)[1]), dtype=torch.long)
