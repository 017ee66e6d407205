"""Relaxed trees: the marginals at a temperature of a model with noise."""

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rdpgraph.structures.relaxation import perturbed

if TYPE_CHECKING:
    from rdpgraph.structures.hypertree.model import Hypertree


def relaxed(
    tree: "Hypertree", count: int, temperature: float, generator: torch.Generator | None
) -> Tensor:
    """(count, *batch, T, T, N): see `Hypertree.rsample`."""
    unary, lengths = perturbed(
        tree.unary, tree.lengths, count=count, temperature=temperature, generator=generator
    )
    root = None if tree.root is None else tree.root / temperature
    rules = tree.rules.scaled(1.0 / temperature)
    return replace(tree, unary=unary, rules=rules, root=root, lengths=lengths).marginals()
