"""Expectations under a hypertree: gradients of log Z."""

import math
from dataclasses import replace

import torch
from torch import Tensor

from rdpgraph.model.gradients import expectations
from rdpgraph.model.structure import Structure
from rdpgraph.structures.hypertree.fields import HypertreeFields


def parts(tree: HypertreeFields) -> list[Tensor]:
    """What scores are sums of: the unary potentials, the rules' tensors, the root's potentials."""
    return [tree.unary, *tree.rules.parts, *([] if tree.root is None else [tree.root])]


def log_partition_with_gradients(tree: HypertreeFields) -> tuple[Tensor, list[Tensor]]:
    """Log Z, (B,), and its gradients in all `parts`, zero for impossible items.

    With a graph of their own if anything in the hypertree has one.
    """
    given, many = parts(tree), len(tree.rules.parts)

    def log_partition(unary: Tensor, *others: Tensor) -> Tensor:
        rules = tree.rules.with_parts(others[:many])
        root = None if tree.root is None else others[-1]
        return replace(tree, unary=unary, rules=rules, root=root).log_partition()

    return expectations(log_partition, given, tracked=any(part.requires_grad for part in given))


def entropy(tree: HypertreeFields) -> Tensor:
    """(B,) entropy in nats of a hypertree of one batch dim, its rules one for each item."""
    log_z, gradients = log_partition_with_gradients(tree)
    expected = log_z.new_zeros(())
    for values, chances in zip(parts(tree), gradients, strict=True):
        expected = expected + dot(values, chances)
    alive = log_z.detach() > -math.inf
    return torch.where(alive, torch.where(alive, log_z, 0.0) - expected, 0.0)


def entropy_of(model: Structure) -> Tensor:
    """(*batch,) entropy in nats of a model whose scores are sums of its unary potentials alone.

    Log Z less the expected score; 0 where nothing is possible.
    """
    tracked = torch.is_grad_enabled() and model.unary.requires_grad
    with torch.set_grad_enabled(tracked):
        log_z, marginals = model.log_partition(), model.marginals()
        alive = log_z.detach() > -math.inf
        scores = torch.where(model.unary > -math.inf, model.unary, 0.0) * marginals
        nats = torch.where(alive, log_z, 0.0) - scores.flatten(log_z.ndim).sum(-1)
        return torch.where(alive, nats, 0.0)


def dot(values: Tensor, gradient: Tensor) -> Tensor:
    """(B,) sums of products; what is impossible counts nothing."""
    values = torch.where(values > -math.inf, values, 0.0)
    return (values * gradient).flatten(1).sum(1)
