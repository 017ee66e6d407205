"""What proposals ask of a hypertree: which states of which spans look likely."""

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

from rdpgraph.logspace.logmatrix import soft_scatter
from rdpgraph.structures.grammar.batched import Form
from rdpgraph.structures.grammar.spans import HypertreeFields
from rdpgraph.structures.recursion.rules import LowRankRules, NoRules, Rules
from rdpgraph.structures.recursion.sparse_rules import SparseRules


@torch.no_grad()
def unary(tree: HypertreeFields) -> Tensor:
    """(*batch, T, T, C) potentials of spans within the length, the root's added to the whole.

    -inf where no tree has the state: below the diagonal and beyond the length too.
    """
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
    """(R, N) and (R, C), over all states."""
    parent, left, right = (_log_mean(part, 1) for part in rules.parts)
    above = torch.logsumexp(rules.parent + left + right, 2)
    by_left = torch.logsumexp(rules.left + parent + right, 2)
    by_right = torch.logsumexp(rules.right + parent + left, 2)
    return above, torch.logaddexp(by_left, by_right) - math.log(2)


def _means_of_list(rules: SparseRules) -> tuple[Tensor, Tensor]:
    """(R, N) and (R, C), over all states."""
    (states, children), weights = rules.shape, rules.log_weights.mT
    parent, left, right = rules.triples.unbind(1)
    above = soft_scatter(weights, parent, states) - 2 * math.log(children)
    parts = (soft_scatter(weights, side, children) for side in (left, right))
    below = torch.logaddexp(*parts) - math.log(2 * states * children)
    return above.mT, below.mT


def _means(rules: Rules, asked: list[Tensor], states: int, children: int) -> tuple[Tensor, Tensor]:
    """(R, N) and (R, C), over the grids of some parents, left and right parts, each (1, count)."""
    batch = max([len(part) for part in rules.parts], default=1)
    parents, left, right = (part.expand(batch, -1) for part in asked)
    every = torch.arange(children, device=left.device).expand(batch, -1)
    above = _log_mean(rules.evaluate(every[:, :states], left, right).flatten(2), 2)
    by_left = _log_mean(rules.evaluate(parents, every, right).transpose(1, 2).flatten(2), 2)
    by_right = _log_mean(rules.evaluate(parents, left, every).movedim(3, 1).flatten(2), 2)
    means = above.squeeze(2), torch.logaddexp(by_left, by_right).squeeze(2) - math.log(2)
    return means


def _log_mean(logs: Tensor, dim: int) -> Tensor:
    """Of the exponentials, the dim kept."""
    return logs.logsumexp(dim, keepdim=True) - math.log(max(1, logs.shape[dim]))
