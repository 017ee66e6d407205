"""Scores of configurations with their rounding."""

import math

import torch
from torch import Tensor

from rdpgraph.model.block import log_values_at
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.potentials.table import Table


def score_range(graph: FactorGraph, states: Tensor) -> tuple[Tensor, Tensor]:
    """Return lower and upper ends (B,) of the scores (nats) of configurations (B, V).

    The score lies between them whatever rounding does in float64.
    """
    states = states.reshape(*graph.batch_shape, graph.num_variables)
    with torch.no_grad():
        clash, every, _ = log_values_at(
            states, graph.domain, graph.blocks, graph.observed, graph.device
        )
        total = torch.where(clash.any(-1), -math.inf, 0.0).double().cpu()
        size = torch.zeros_like(total)
        for block, values in zip(graph.blocks, every, strict=True):
            # Tables give their entries; other potentials compute, in their own type.
            exact = type(block.potential) is Table
            dtype = torch.float64 if exact else values.dtype
            values = values.double().cpu()
            total = total + values.sum(-1)
            size = size + torch.finfo(dtype).eps * values.abs().sum(-1)
    error = torch.where(total > -math.inf, 64.0 * size, 0.0)
    below, above = ((total + sign * error).expand(graph.batch_shape) for sign in (-1.0, 1.0))
    return below.reshape(-1), above.reshape(-1)
