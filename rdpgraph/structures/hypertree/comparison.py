"""Expectations under one hypertree of the scores of another."""

import math
from dataclasses import replace

import torch
from torch import Tensor

from rdpgraph.errors import ModelError
from rdpgraph.structures.hypertree import moments
from rdpgraph.structures.hypertree.fields import HypertreeFields
from rdpgraph.structures.hypertree.form import Form
from rdpgraph.structures.hypertree.recursion import HypertreeRecursion
from rdpgraph.structures.hypertree.rules import DenseRules, Rules
from rdpgraph.structures.hypertree.sparse_rules import SparseRules
from rdpgraph.structures.tape.up import goal, up


def cross_entropy(own: HypertreeFields, other: HypertreeFields) -> Tensor:
    """(*batch,) the mean under one hypertree of minus the log-probability in another, nats.

    log Z of the other less the mean of its score. Rules are written out.

    Raises:
        ModelError: the two differ in shape, preterminals or lengths.
        BudgetError: written out, the rules are too large.
    """
    alike = own.unary.shape == other.unary.shape and own.preterminals == other.preterminals
    if not alike or not torch.equal(Form(own).lengths, Form(other).lengths):
        raise ModelError(
            "Hypertrees are compared if their shapes, preterminals and lengths agree; got "
            f"{tuple(own.unary.shape)} and {tuple(other.unary.shape)}, lengths "
            f"{Form(own).lengths.tolist()} and {Form(other).lengths.tolist()}."
        )
    listed = _alike(own.rules, other.rules)
    one, two = (_written_out(tree, listed=listed) for tree in (own, other))
    log_p, gradients = moments.log_partition_with_gradients(one)
    possible = log_p.detach() > -math.inf
    compared = possible & ~_meets(one, _barred(one, two), possible)
    log_z = other.log_partition().flatten()
    expected = log_z.new_zeros(())
    for values, chances in zip(moments.parts(two), gradients, strict=True):
        expected = expected + moments.dot(values, chances)
    total = torch.where(compared, torch.where(compared, log_z, 0.0) - expected, math.inf)
    return torch.where(possible, total, 0.0).reshape(own.batch_shape)


def _alike(one: Rules, two: Rules) -> bool:
    """Whether both list the same rules."""
    return isinstance(one, SparseRules) and isinstance(two, SparseRules) and one.is_like(two)


def _written_out(tree: HypertreeFields, *, listed: bool) -> HypertreeFields:
    """One batch dim, `DenseRules`, or those in a list, for each item, and a root for each."""
    form, unary = Form(tree), tree.unary
    root = unary.new_zeros(form.states) if tree.root is None else tree.root
    rooted = Form(replace(tree, root=root))
    if listed:
        return rooted.flat(tree.rules.with_parts([part.to(unary) for part in tree.rules.parts]))
    return rooted.flat(DenseRules(tree.rules.table(form.states, unary.shape[-1]).to(unary)))


def _barred(one: HypertreeFields, two: HypertreeFields) -> list[Tensor]:
    """Of each part, where the first allows what the second forbids."""
    pairs = zip(moments.parts(one), moments.parts(two), strict=True)
    return [(own > -math.inf) & (other == -math.inf) for own, other in pairs]


@torch.no_grad()
def _meets(tree: HypertreeFields, barred: list[Tensor], possible: Tensor) -> Tensor:
    """(B,) whether a possible tree has anything barred: how much of it the best one has."""
    if not tree.unary.shape[-2] or not any(bool(part.any()) for part in barred):
        return torch.zeros_like(possible)
    unary, table, root = (
        torch.where(values > -math.inf, part.to(values), -math.inf)
        for values, part in zip(moments.parts(tree), barred, strict=True)
    )
    most = replace(tree, unary=unary, rules=tree.rules.with_parts([table]), root=root)
    tape = HypertreeRecursion.of(most).to_tape(double=True)
    return possible & (goal(tape, up(tape, 0.0)) > 0)
