"""Hypertrees with one batch dim: scores of given trees, entropies, and means for proposals."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from rdpgraph._core.cache import cached_property
from rdpgraph.errors import ModelError
from rdpgraph.interface.structure import Structure
from rdpgraph.logspace.logmatrix import soft_scatter
from rdpgraph.structures import expectations
from rdpgraph.structures.chain.factors import flat_lengths
from rdpgraph.structures.grammar.spans import HypertreeFields
from rdpgraph.structures.recursion.down import goal, up
from rdpgraph.structures.recursion.rules import DenseRules, LowRankRules, NoRules, Rules, flat
from rdpgraph.structures.recursion.sparse_rules import SparseRules


def score(
    states: Tensor, unary: Tensor, lengths: Tensor, root: Tensor, rules: Rules, preterminals: int
) -> Tensor:
    """(R, B) log-potentials of trees, -inf for what is no tree; O(T^2) each.

    States (R, B, T, T), -1 off the tree; unary (B, T, T, C), lengths (B,), root (1 or B, C) and
    flat rules. The last ``preterminals`` states are for single words alone.
    """
    count, batch, total, _ = states.shape
    if not total:
        return unary.sum((1, 2, 3)).expand(count, batch)
    place = torch.arange(total, device=states.device)
    last = (lengths - 1).clamp(min=0)
    among = states >= 0
    wide = among & (place.unsqueeze(1) < place)
    words = among.diagonal(dim1=2, dim2=3)
    within = place < lengths.unsqueeze(1)
    fits = (words == within).all(2) & (wide.flatten(2).sum(2) == (lengths - 1).clamp(min=0))
    fits &= ~(among & (place.unsqueeze(1) > place)).flatten(2).any(2)
    real, i, j, parent, left, right = branches(states)
    known = unary.shape[3] - preterminals
    fits &= ((left >= 0) & (right >= 0) | ~real).all(2) & ((parent < known) | ~real).all(2)
    triple = (torch.where(parent < known, parent, 0), left, right)
    joint = rules.evaluate(*(part.clamp(min=0).transpose(0, 1).unsqueeze(3) for part in triple))
    joint = joint.reshape(batch, count, real.shape[2]).transpose(0, 1)
    item = torch.arange(batch, device=states.device).unsqueeze(1)
    spans = unary[item, i, j, parent.clamp(0, known - 1)]
    result = torch.where(real, spans + joint, 0.0).sum(2)
    tags = states.diagonal(dim1=2, dim2=3)
    if preterminals:
        fits &= (tags >= known).eq(within).all(2)
    leaves = unary[item, place, place, tags.clamp(min=0)]
    result = result + torch.where(within, leaves, 0.0).sum(2)
    item = item.squeeze(1)
    top = states[:, item, 0, last]
    fits &= (top >= 0) | (lengths == 0)
    roots = root.expand(batch, -1)[item, top.clamp(min=0)]
    result = result + torch.where(lengths > 0, roots, 0.0)
    return torch.where(fits, result, -math.inf)


def branches(states: Tensor) -> tuple[Tensor, ...]:
    """(R, B, T - 1) the inner nodes of trees (R, B, T, T): real, first and last word, three states.

    The states are those of a node and of its left and right part.
    """
    total = states.shape[-1]
    place = torch.arange(total, device=states.device)
    among = states >= 0
    wide = (among & (place.unsqueeze(1) < place)).flatten(2)
    # The left part of (i, j) is the widest constituent from i that ends before j.
    ends = torch.where(among, place, -1).cummax(3).values
    before = pad(ends[..., :-1], (1, 0), value=-1)
    nodes = wide.int().argsort(dim=2, descending=True, stable=True)[..., : max(total - 1, 0)]
    i, j = nodes // max(total, 1), nodes % max(total, 1)
    middle = torch.maximum(before.flatten(2).gather(2, nodes), i)
    flat = states.flatten(2)
    parts = i * total + middle, (middle + 1).clamp(max=total - 1) * total + j
    return wide.gather(2, nodes), i, j, flat.gather(2, nodes), *(flat.gather(2, p) for p in parts)


@dataclass(frozen=True, eq=False)
class Form:
    """The tensors of a hypertree in one batch dim."""

    tree: HypertreeFields

    @cached_property
    def batch(self) -> int:
        """B, the product of the batch dims."""
        return math.prod(self.tree.batch_shape)

    @property
    def states(self) -> int:
        """N, the number of states of spans of two words and more."""
        return self.tree.unary.shape[-1] - self.tree.preterminals

    @property
    def unary(self) -> Tensor:
        """(B, T, T, C) the potentials."""
        return self.tree.unary.reshape(self.batch, *self.tree.unary.shape[-3:])

    @cached_property
    def rules(self) -> Rules:
        """The rules in one batch dim, 1 or B."""
        return self.tree.rules.flat(self.tree.batch_shape)

    @cached_property
    def lengths(self) -> Tensor:
        """(B,) the numbers of words of the items."""
        return flat_lengths(self.tree.lengths, self.tree.unary.shape[:-2], self.tree.unary)

    @property
    def root(self) -> Tensor:
        """(1 or B, C), -inf for preterminals."""
        tree = self.tree
        root = tree.unary.new_zeros(self.states) if tree.root is None else tree.root
        return pad(flat(root, 1, tree.batch_shape), (0, tree.preterminals), value=-math.inf)

    def scored(self, states: Tensor, lead: Sequence[int]) -> Tensor:
        """(*lead, *batch) the scores of trees (*lead, *batch, T, T)."""
        tree = self.tree
        states = states.reshape(math.prod(lead), self.batch, *states.shape[-2:])
        scores = score(states, self.unary, self.lengths, self.root, self.rules, tree.preterminals)
        return scores.reshape([*lead, *tree.batch_shape])

    def flat(self, rules: Rules) -> HypertreeFields:
        """The hypertree with other rules, in one batch dim with a copy of them for each item."""
        tree, batch = self.tree, self.batch
        rules = rules.flat(tree.batch_shape)
        rules = rules.with_parts([part.expand(batch, *part.shape[1:]) for part in rules.parts])
        root = tree.root
        if root is not None:
            root = flat(root, 1, tree.batch_shape).expand(batch, -1)
        return replace(tree, unary=self.unary, rules=rules, root=root, lengths=self.lengths)


def scored(tree: HypertreeFields, rules: Rules) -> expectations.Scored:
    """A hypertree with other rules, as a function of its potentials, rules and root."""
    flat = Form(tree).flat(rules)
    many, root = len(flat.rules.parts), [] if flat.root is None else [flat.root]

    def made(parts: Sequence[Tensor]) -> HypertreeFields:
        filled = flat.rules.with_parts(parts[1 : 1 + many])
        return replace(flat, unary=parts[0], rules=filled, root=parts[-1] if root else None)

    return expectations.Scored([flat.unary, *flat.rules.parts, *root], made, _best)


def _best(tree: Structure) -> Tensor:
    """(B,) the score of the best tree."""
    assert isinstance(tree, HypertreeFields)
    tape = tree.to_tape(ranks=False, double=True)
    return goal(tape, up(tape, 0.0))


def entropy(tree: HypertreeFields) -> Tensor:
    """(*batch,) nats, with rules of low rank written out; `BudgetError` if too large."""
    rules = tree.rules
    if not isinstance(rules, NoRules | SparseRules):
        rules = DenseRules(rules.table(Form(tree).states, tree.unary.shape[-1]))
    return expectations.entropy(scored(tree, rules)).reshape(tree.batch_shape)


def cross_entropy(model: HypertreeFields, other: HypertreeFields) -> Tensor:
    """(*batch,) the mean under one hypertree of minus the log-probability in another, nats.

    Log Z of the other less the mean of its score, with rules written out.

    Raises:
        ModelError: the two differ in shape, preterminals or lengths.
        BudgetError: written out, the rules are too large.
    """
    if not isinstance(other, HypertreeFields):
        raise ModelError(f"A hypertree is compared with a hypertree; got {type(other).__name__}.")
    alike = model.unary.shape == other.unary.shape and model.preterminals == other.preterminals
    if not alike or not torch.equal(Form(model).lengths, Form(other).lengths):
        raise ModelError(
            "Hypertrees are compared if their shapes, preterminals and lengths agree; got "
            f"{tuple(model.unary.shape)} and {tuple(other.unary.shape)}, lengths "
            f"{Form(model).lengths.tolist()} and {Form(other).lengths.tolist()}."
        )
    one, two = model.rules, other.rules
    listed = isinstance(one, SparseRules) and isinstance(two, SparseRules) and one.is_like(two)
    first, second = (_written_out(tree, listed=listed) for tree in (model, other))
    nats = expectations.cross_entropy(first, second, other.log_partition().flatten())
    return nats.reshape(model.batch_shape)


def _written_out(tree: HypertreeFields, *, listed: bool) -> expectations.Scored:
    """A hypertree by its root and a table, or list, of rules in the dtype of the potentials."""
    form, unary, rules = Form(tree), tree.unary, tree.rules
    root = unary.new_zeros(form.states) if tree.root is None else tree.root
    if listed:
        rules = rules.with_parts([part.to(unary) for part in rules.parts])
    else:
        rules = DenseRules(rules.table(form.states, unary.shape[-1]).to(unary))
    return scored(replace(tree, root=root), rules)


@torch.no_grad()
def site_unary(tree: HypertreeFields) -> Tensor:
    """(*batch, T, T, C) potentials of spans, the root's added to the whole; -inf for no span."""
    form, total = Form(tree), tree.unary.shape[-2]
    values = tree.potentials(tree.unary).reshape(form.batch, *tree.unary.shape[-3:])
    place = torch.arange(total, device=values.device)
    allowed = (place.unsqueeze(1) <= place) & (place < form.lengths.reshape(-1, 1, 1))
    values = torch.where(allowed.unsqueeze(3), values, -math.inf)
    if total:
        item = torch.arange(form.batch, device=values.device)
        values[item, 0, (form.lengths - 1).clamp(min=0)] += form.root
    return values.reshape(tree.unary.shape)


@torch.no_grad()
def mean_values(tree: HypertreeFields, landmarks: int, generator: torch.Generator | None) -> Tensor:
    """(*batch, T, T, C) log mean rules of a state as a parent and as a part."""
    form, total = Form(tree), tree.unary.shape[-2]
    children = tree.unary.shape[-1]
    if isinstance(tree.rules, NoRules):
        return tree.unary.new_zeros((*tree.batch_shape, 1, 1, 1))
    if isinstance(form.rules, LowRankRules):
        parent, part = _means_by_rank(form.rules)
    elif isinstance(form.rules, SparseRules):
        parent, part = _means_of_list(form.rules)
    else:
        device = tree.unary.device
        where = device if generator is None else generator.device
        asked = [
            torch.randint(size, (1, landmarks), generator=generator, device=where).to(device)
            for size in (form.states, children, children)
        ]
        parent, part = _means(form.rules, asked, form.states, children)
    parent = pad(parent, (0, children - form.states))
    place = torch.arange(total, device=parent.device)
    wide = place.unsqueeze(1) < place
    whole = (place.unsqueeze(1) == 0) & (place == form.lengths.reshape(-1, 1, 1) - 1)
    above = torch.where(wide.unsqueeze(-1), parent[:, None, None], 0.0)
    below = torch.where(whole.unsqueeze(-1), 0.0, part[:, None, None])
    means = above + below
    return means.reshape(*(tree.batch_shape if len(means) == form.batch else ()), *means.shape[1:])


def _means_by_rank(rules: LowRankRules) -> tuple[Tensor, Tensor]:
    """(R, N) and (R, C), over all states, from ranks."""
    parent, left, right = (_log_mean(part, 1) for part in rules.parts)
    above = torch.logsumexp(rules.parent + left + right, 2)
    by_left = torch.logsumexp(rules.left + parent + right, 2)
    by_right = torch.logsumexp(rules.right + parent + left, 2)
    return above, torch.logaddexp(by_left, by_right) - math.log(2)


def _means_of_list(rules: SparseRules) -> tuple[Tensor, Tensor]:
    """(R, N) and (R, C), over all states, from listed rules."""
    (states, children), weights = rules.shape, rules.log_weights.mT
    parent, left, right = rules.triples.unbind(1)
    above = soft_scatter(weights, parent, states) - 2 * math.log(children)
    parts = (soft_scatter(weights, side, children) for side in (left, right))
    below = torch.logaddexp(*parts) - math.log(2 * states * children)
    return above.mT, below.mT


def _means(rules: Rules, asked: list[Tensor], states: int, children: int) -> tuple[Tensor, Tensor]:
    """(R, N) and (R, C), over grids of sampled parents, left and right parts, each (1, count)."""
    batch = max([len(part) for part in rules.parts], default=1)
    parents, left, right = (part.expand(batch, -1) for part in asked)
    every = torch.arange(children, device=left.device).expand(batch, -1)
    above = _log_mean(rules.evaluate(every[:, :states], left, right).flatten(2), 2)
    by_left = _log_mean(rules.evaluate(parents, every, right).transpose(1, 2).flatten(2), 2)
    by_right = _log_mean(rules.evaluate(parents, left, every).movedim(3, 1).flatten(2), 2)
    means = above.squeeze(2), torch.logaddexp(by_left, by_right).squeeze(2) - math.log(2)
    return means


def _log_mean(logs: Tensor, dim: int) -> Tensor:
    """Log of the mean of exponentials, the dim kept."""
    return logs.logsumexp(dim, keepdim=True) - math.log(max(1, logs.shape[dim]))
