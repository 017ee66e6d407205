"""Relaxed trees: the marginals at a temperature of a model with noise."""

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rdpgraph.structures.hypertree.checks import checked_temperature
from rdpgraph.structures.hypertree.descent import gumbel

if TYPE_CHECKING:
    from rdpgraph.structures.hypertree.model import Hypertree


def relaxed(
    tree: "Hypertree", count: int, temperature: float, generator: torch.Generator | None
) -> Tensor:
    """(count, *batch, T, T, N): see `Hypertree.rsample`."""
    checked_temperature(temperature)
    noise = gumbel((count, *tree.unary.shape), tree.unary, generator)
    root = None if tree.root is None else tree.root / temperature
    lengths = None if tree.lengths is None else tree.lengths.expand(count, *tree.batch_shape)
    unary = (tree.unary + noise) / temperature
    rules = tree.rules.scaled(1.0 / temperature)
    return replace(tree, unary=unary, rules=rules, root=root, lengths=lengths).marginals()
