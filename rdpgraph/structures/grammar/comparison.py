"""Expectations under one hypertree of the scores of itself and of another."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from rdpgraph.errors import ModelError
from rdpgraph.interface.structure import Structure
from rdpgraph.structures import expectations as moments
from rdpgraph.structures.grammar.batched import Form
from rdpgraph.structures.grammar.spans import HypertreeFields
from rdpgraph.structures.recursion.rules import DenseRules, NoRules, Rules
from rdpgraph.structures.recursion.sparse_rules import SparseRules
from rdpgraph.structures.recursion.up import goal, up


def scored(tree: HypertreeFields, rules: Rules) -> moments.Scored:
    """A hypertree with other rules, all in one batch dim, by its potentials, rules and root."""
    flat = Form(tree).flat(rules)
    many, root = len(flat.rules.parts), [] if flat.root is None else [flat.root]

    def made(parts: Sequence[Tensor]) -> HypertreeFields:
        own = flat.rules.with_parts(parts[1 : 1 + many])
        return replace(flat, unary=parts[0], rules=own, root=parts[-1] if root else None)

    return moments.Scored([flat.unary, *flat.rules.parts, *root], made, _best)


def _best(tree: Structure) -> Tensor:
    """(B,) the score of the best tree."""
    assert isinstance(tree, HypertreeFields)
    tape = tree.to_tape(ranks=False, double=True)
    return goal(tape, up(tape, 0.0))


def entropy(tree: HypertreeFields) -> Tensor:
    """(*batch,) nats. Rules of low rank are written out.

    Raises:
        BudgetError: written out, the rules are too large.
    """
    rules = tree.rules
    if not isinstance(rules, NoRules | SparseRules):
        rules = DenseRules(rules.table(Form(tree).states, tree.unary.shape[-1]))
    return moments.entropy(scored(tree, rules)).reshape(tree.batch_shape)


def cross_entropy(own: HypertreeFields, other: HypertreeFields) -> Tensor:
    """(*batch,) the mean under one hypertree of minus the log-probability in another, nats.

    log Z of the other less the mean of its score. Rules are written out.

    Raises:
        ModelError: the two differ in shape, preterminals or lengths.
        BudgetError: written out, the rules are too large.
    """
    if not isinstance(other, HypertreeFields):
        raise ModelError(f"A hypertree is compared with a hypertree; got {type(other).__name__}.")
    alike = own.unary.shape == other.unary.shape and own.preterminals == other.preterminals
    if not alike or not torch.equal(Form(own).lengths, Form(other).lengths):
        raise ModelError(
            "Hypertrees are compared if their shapes, preterminals and lengths agree; got "
            f"{tuple(own.unary.shape)} and {tuple(other.unary.shape)}, lengths "
            f"{Form(own).lengths.tolist()} and {Form(other).lengths.tolist()}."
        )
    listed = _alike(own.rules, other.rules)
    one, two = (_written_out(tree, listed=listed) for tree in (own, other))
    nats = moments.cross_entropy(one, two, other.log_partition().flatten())
    return nats.reshape(own.batch_shape)


def _alike(one: Rules, two: Rules) -> bool:
    """Whether both list the same rules."""
    return isinstance(one, SparseRules) and isinstance(two, SparseRules) and one.is_like(two)


def _written_out(tree: HypertreeFields, *, listed: bool) -> moments.Scored:
    """By a root, and a table of the rules or those in a list, of the type of the potentials."""
    form, unary, rules = Form(tree), tree.unary, tree.rules
    root = unary.new_zeros(form.states) if tree.root is None else tree.root
    if listed:
        rules = rules.with_parts([part.to(unary) for part in rules.parts])
    else:
        rules = DenseRules(rules.table(form.states, unary.shape[-1]).to(unary))
    return scored(replace(tree, root=root), rules)
