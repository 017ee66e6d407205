"""Expectations under a hypertree: gradients of log Z."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from rdpgraph.structures.hypertree.model import Hypertree


def gradients(tree: "Hypertree", wanted: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """(B,) log Z, and its gradients in the tensors of the rules, zero for impossible items.

    With a graph of their own if anything in the hypertree has one.
    """
    log_z, _, rules, _ = _moments(tree)
    assert len(rules) == len(wanted)
    return log_z, rules


def entropy(tree: "Hypertree") -> Tensor:
    """(B,) entropy in nats of a hypertree of one batch dim, its rules one for each item."""
    log_z, unary, rules, root = _moments(tree)
    expected = _dot(tree.unary, unary)
    for part, gradient in zip(tree.rules.parts, rules, strict=True):
        expected = expected + _dot(part, gradient)
    if tree.root is not None and root is not None:
        expected = expected + _dot(tree.root, root)
    alive = log_z.detach() > -math.inf
    return torch.where(alive, torch.where(alive, log_z, 0.0) - expected, 0.0)


def _moments(tree: "Hypertree") -> tuple[Tensor, Tensor, list[Tensor], Tensor | None]:
    given = [tree.unary, *tree.rules.parts, *([] if tree.root is None else [tree.root])]
    tracked = torch.is_grad_enabled() and any(part.requires_grad for part in given)
    with torch.enable_grad():
        aliases = [
            part.view_as(part) if part.requires_grad else part.detach().requires_grad_()
            for part in given
        ]
        many = len(tree.rules.parts)
        rules = tree.rules.with_parts(aliases[1 : 1 + many])
        root = None if tree.root is None else aliases[-1]
        log_z = replace(tree, unary=aliases[0], rules=rules, root=root).log_partition()
        possible = (log_z.detach() > -math.inf).to(log_z)
        found = torch.autograd.grad(
            log_z, aliases, possible, create_graph=tracked, materialize_grads=True,
            allow_unused=True,
        )  # fmt: skip
    if not tracked:
        log_z, found = log_z.detach(), tuple(part.detach() for part in found)
    return log_z, found[0], list(found[1 : 1 + many]), None if root is None else found[-1]


def _dot(values: Tensor, gradient: Tensor) -> Tensor:
    """(B,) sums of products; what is impossible counts nothing."""
    values = torch.where(values > -math.inf, values, 0.0)
    return (values * gradient).flatten(1).sum(1)
