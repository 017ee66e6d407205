"""Expectations under chains: entropy, cross-entropy, joint probabilities of neighbours.

Of tables, and of operators whose scores are sums of parameters, these are means over derivations of
the rules. The means by messages stay for ranks, and for bands beside low rank: a derivation goes by
one rank, so that the entropy of derivations is above that of sequences. With one rank these read
the pairs of states within bands alone. Without a compiled library they are also those of tables.
"""

import math
from functools import partial

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from rdpgraph._core import tuning
from rdpgraph.logspace.gradients import ONCE, by_autograd, expectations, mean_scores, once
from rdpgraph.logspace.logmatrix import LogMatrix, finite, log_products, soft_sum
from rdpgraph.model.potentials.operators import Banded
from rdpgraph.structures.chain import entropies, recursion, rules
from rdpgraph.structures.chain.factors import inside, masked, peak, steps_of
from rdpgraph.structures.chain.recursion import ChainMessages
from rdpgraph.structures.chain.steps import (
    ChainTensors,
    OperatorSteps,
    RankSteps,
    RankTensors,
    as_steps,
)


def entropy(parts: ChainTensors | RankTensors, log_base: Tensor | None = None) -> Tensor:
    """(B,) nats; 0 for an impossible item. Differentiable once; of tables any number of times.

    The `cross_entropy` with itself; the expectation of ``log_base`` (*batch, T, N), without
    gradient, is added. Ranks cost O(T N^2) products too, and O(N^2 r) for the values, in blocks.
    """
    if alike(parts, parts):
        return _by_scores(parts, None, log_base)
    if isinstance(parts.transition, Tensor):
        table = ChainTensors(parts.unary, parts.transition, parts.lengths)
        base = 0.0 if log_base is None else finite(log_base).reshape(parts.unary.shape)

        def again(unary: Tensor, tables: Tensor) -> Tensor:
            return _entropy(ChainTensors(unary, tables, parts.lengths), log_base)

        scored = masked(finite(parts.unary.detach()) - base, parts.lengths)
        values = entropies.entropy(table, scored, again, least=0.0 if log_base is None else None)
        if values is not None:
            return values
    return _entropy(parts, log_base)


def _entropy(parts: ChainTensors | RankTensors, log_base: Tensor | None) -> Tensor:
    """`entropy` by the recurrence, or by messages."""
    if log_base is None and isinstance(parts.transition, Tensor):
        table = ChainTensors(parts.unary, parts.transition, parts.lengths)
        values = rules.losses(table, table, divergence=False)
        if values is not None:
            return values
    sent, scored = recursion.messages(*parts), parts.unary.detach()
    if log_base is not None:
        scored = scored - finite(log_base).reshape(scored.shape)
    # The gradient in the second argument is zero where both are equal.
    with torch.no_grad():
        ratios = _log_ratios(parts, sent)
    return _nats(parts, sent, ratios, scored)


def cross_entropy(
    parts: ChainTensors | RankTensors,
    other: ChainTensors | RankTensors,
    *,
    divergence: bool = False,
) -> Tensor:
    """(B,) nats: the expectation under one chain of minus the log-probability in another.

    Of tables, or of chains that are `alike`. For a ``divergence`` less the entropy. +inf, without
    gradient, where the other forbids what the first allows; 0 for an impossible item.
    Differentiable as `entropy`. O(B T N^2) in matrix products.
    """
    if isinstance(parts.transition, Tensor) and isinstance(other.transition, Tensor):
        ours = ChainTensors(parts.unary, parts.transition, parts.lengths)
        theirs = ChainTensors(other.unary, other.transition, other.lengths)
        values = rules.losses(ours, theirs, divergence=divergence)
        if values is not None:
            return values
    return _by_scores(parts, other, divergence=divergence)


def alike(parts: ChainTensors | RankTensors, other: ChainTensors | RankTensors) -> bool:
    """Return whether the scores of both are sums of the same parameters."""
    one, two = (
        each.transition.potential if isinstance(each.transition, OperatorSteps) else None
        for each in (parts, other)
    )
    return one is not None and two is not None and one.additive and one.comparable(two)


@by_autograd
def _by_scores(
    parts: ChainTensors | RankTensors, compared: ChainTensors | RankTensors | None,
    log_base: Tensor | None = None, *, divergence: bool = False,
) -> Tensor:  # fmt: skip
    """`cross_entropy` of chains whose scores are sums of parameters, by their means; in float64.

    None to compare with: the entropy.
    """
    other = parts if compared is None else compared
    link, theirs = parts.transition, other.transition
    if not parts.unary.shape[1]:
        return parts.unary.sum((1, 2))

    def log_z(unary: Tensor, *tensors: Tensor) -> Tensor:
        kind = link.potential if isinstance(link, OperatorSteps) else None
        steps = tensors[0] if kind is None else OperatorSteps(kind.replaced(tensors))
        return recursion.log_partition(unary, steps, parts.lengths)

    base = 0.0 if log_base is None else finite(log_base).reshape(parts.unary.shape)
    scored = masked(other.unary - base, other.lengths)
    # Pair each parameter with the score that it has in the other chain.
    sides = [(each,) if isinstance(each, Tensor) else each.sides for each in (link, theirs)]
    shared = [torch.broadcast_tensors(*pair) for pair in zip(*sides, strict=True)]
    pairs = [(one.double(), two.double()) for one, two in [(parts.unary, scored), *shared]]
    leaves, scores = zip(*pairs, strict=True)
    # The mean of the scores, by the derivative of log Z in their direction.
    gaps = [finite(two) - finite(one) if divergence else finite(two) for one, two in pairs]
    total, means = mean_scores(log_z, leaves, gaps)
    if compared is None:
        return once(torch.where(total > -math.inf, total - means, 0.0).to(parts.unary), ONCE)
    log_ratio = log_z(*scores) - total if divergence else log_z(*scores)
    values = torch.where(total > -math.inf, log_ratio - means, 0.0)
    # What the other chain forbids and this one does not makes it infinite.
    gone = [((one > -math.inf) & (two == -math.inf)).double() for one, two in pairs]
    if any(bool(part.any()) for part in gone):
        with torch.no_grad():
            _, lost = mean_scores(log_z, leaves, gone)
        values = torch.where(lost > 0, math.inf, values)
    return once(values.to(parts.unary), ONCE)


def _nats(
    parts: ChainTensors | RankTensors, sent: ChainMessages, ratios: Tensor, scored: Tensor
) -> Tensor:
    """Minus the expectation of the log-probability, whose own gradient is left out.

    Given log Z as ``ratios`` (B, T) by step, and unary potentials ``scored`` (B, T, N).
    """
    total = parts.unary.shape[1]
    if not total:
        return parts.unary.sum((1, 2))
    chances = _shares(sent.log_forward + sent.log_backward, (2,))
    terms = ratios - (chances * finite(scored)).sum(-1)
    if total > 1:
        first, later = terms.split((1, total - 1), 1)
        terms = torch.cat([first, later - _pair_means(parts, sent, chances)], 1)
    counted = inside(parts.lengths, total) & _possible(parts, sent).unsqueeze(1)
    # Forbidden terms are not finite, and have no gradient.
    counted = counted & (terms.detach().abs() < math.inf)
    values = torch.where(counted, terms, 0.0).double().sum(1).to(terms.dtype)
    return once(values, ONCE)


def edge_counts(parts: ChainTensors) -> Tensor:
    """(B, N, N) the expected number of steps with each pair of neighbours.

    O(B T N^2), and (B, N, N) memory; differentiable.
    """
    unary, transition, lengths = parts
    # Sequences without a step have no pairs.
    if unary.shape[1] < 2 or not len(unary):
        return unary.new_zeros(len(unary), unary.shape[2], unary.shape[2])
    tracked = torch.is_grad_enabled() and (unary.requires_grad or transition.requires_grad)
    # Counts are the derivative of log Z in a transition of each item; rules of recurrences sum it
    # over steps as they go, without a table for each.
    if transition.ndim == 2 and rules.serves(unary, transition):
        if not tracked:
            return rules.edge_counts(unary.detach(), transition.detach(), lengths)
        each = transition.expand(len(unary), 1, *transition.shape)
        solve = partial(rules.log_partition, unary, lengths=lengths)
        return expectations(solve, [each], tracked=True)[1][0].squeeze(1)
    # Otherwise from messages, step by step: shares of forward + link + backward. With gradients
    # each step is computed again on the way back, so that one (B, N, N) is kept and not T.
    sent = recursion.messages(*parts)
    before, after = sent.log_forward[:, :-1], (unary + sent.log_backward)[:, 1:]
    counts = unary.new_zeros(len(unary), *transition.shape[-2:])

    def of_step(before: Tensor, link: Tensor, after: Tensor) -> Tensor:
        return _shares(before.unsqueeze(2) + link + after.unsqueeze(1), (1, 2))

    for step in zip(
        before.unbind(1), steps_of(transition, before.shape[1]), after.unbind(1), strict=True
    ):
        more: Tensor = (
            checkpoint(of_step, *step, use_reentrant=False) if tracked else of_step(*step)
        )  # pyright: ignore
        counts = counts + more
    return counts


def _log_ratios(parts: ChainTensors | RankTensors, sent: ChainMessages) -> Tensor:
    """(B, T): log Z of the first t + 1 steps less that of the first t; O(T N), or O(T N r)."""
    unary, link, _ = parts
    if not unary.shape[1]:
        return unary.new_zeros(unary.shape[:2])
    alive = (sent.log_forward > -math.inf).any(-1, keepdim=True)
    forward = torch.where(alive, sent.log_forward, 0.0)
    first = soft_sum(unary[:, 0], 1).unsqueeze(1)
    # p(x_t | prefix) = exp(unary + arriving - ratio): solve for the ratio at one likely state.
    best = forward[:, 1:].argmax(-1, keepdim=True)
    columns = as_steps(link).columns(best.squeeze(2)[None], first=0)[0]
    arriving = soft_sum(forward[:, :-1] + columns, 2)
    reached = unary[:, 1:].gather(2, best) - forward[:, 1:].gather(2, best)
    return torch.cat([first, arriving + reached.squeeze(2)], 1)


def _pair_means(parts: ChainTensors | RankTensors, sent: ChainMessages, chances: Tensor) -> Tensor:
    """(B, T - 1) the means of log-values of neighbours, with 0 in place of -inf."""
    link, before, after = parts[1], sent.log_forward[:, :-1], chances[:, 1:]
    if isinstance(link, OperatorSteps):
        potential = link.potential
        if isinstance(potential, Banded) and potential.rest is not None and potential.maximises:
            return _band_means(potential, before, chances)
    # Columns of the table of pairs are made as many at a time as a block has room for.
    states = width = before.shape[2]
    sums = None
    if isinstance(link, RankSteps):
        sums = link.between(before)
        each = max(math.prod(side.shape[:-2]) for side in link.sides)
        width = tuning.per_block(states * each, tuning.LARGE_BLOCK)
    elif isinstance(link, OperatorSteps):
        each = math.prod(link.potential.lead(2))
        width = tuning.per_block(states * each, tuning.LARGE_BLOCK)

    def means(here: slice) -> Tensor:
        columns = _into(link, here)
        values, matrix = finite(columns.detach()), LogMatrix.of(columns)
        known = None if sums is None else sums[..., here]
        scores = values, matrix.weights * values
        if scores[1].ndim == 2:
            each = matrix.means(before, None, scores, sums=known)
        else:
            known = None if known is None else known.unsqueeze(2)
            each = matrix.means(before.unsqueeze(2), None, scores, sums=known).squeeze(2)
        return (each * after[..., here]).sum(-1)

    total = torch.zeros_like(after[..., 0])
    for start in range(0, states, width):
        here = slice(start, start + width)
        # Blocks are made again for the gradient, so that one is held at a time.
        again = width < states and torch.is_grad_enabled()
        part: Tensor = checkpoint(means, here, use_reentrant=False) if again else means(here)  # pyright: ignore
        total = total + part
    return total


def _band_means(potential: Banded, before: Tensor, chances: Tensor) -> Tensor:
    """`_pair_means` of bands beside a rest of one rank, in O(T N D).

    The value of a pair (i, j) is l_i + r_j, and that of a pair within a band w_ij instead. So with
    the probabilities p_ij of pairs within bands, which the messages give,

        E = sum_ij p_ij w_ij + sum_i (p_i - sum_j p_ij) l_i + sum_j (p_j - sum_i p_ij) r_j.

    Given the forward messages ``before`` every step but the first, (B, T - 1, N), and the
    probabilities of all states, (B, T, N).
    """
    rest, offsets = potential.rest, potential.offsets
    assert rest is not None
    states = before.shape[2]
    leaving, entering = chances[:, :-1], chances[:, 1:]
    # p_ij = p_j exp(f_i + w_ij - a_j), where a_j is the log-sum of f_i + w_ij over all i.
    arriving = potential.sums(before)
    reached = (entering > 0) & (arriving.detach() > -math.inf)
    share = torch.where(reached, entering, 0.0), torch.where(reached, arriving, 0.0)
    total = torch.zeros_like(before[..., 0])
    place = torch.arange(states, device=before.device)
    for offset, within in zip(offsets, potential.largest.unbind(-1), strict=True):
        there = (place + offset >= 0) & (place + offset < states)
        weight, level = (part.roll(-offset, -1) for part in share)
        likely = there & (weight.detach() > 0)
        logs = torch.where(likely, before + within - level, -math.inf)
        pairs = torch.where(likely, weight, 0.0) * logs.exp()
        total = total + (pairs * finite(within.detach())).sum(-1)
        leaving, entering = leaving - pairs, entering - pairs.roll(offset, -1)
    for left, side in ((leaving, rest.log_left), (entering, rest.log_right)):
        total = total + (left * finite(side.detach().squeeze(-1))).sum(-1)
    return total


def _into(link: Tensor | RankSteps | OperatorSteps, here: slice) -> Tensor:
    """(n, N), or (1 or B, T - 1, n, N): the log-values into some states from all."""
    if isinstance(link, OperatorSteps):
        every = torch.arange(link.potential.shape[-1], device=link.potential.device)
        return link.turned().potential.evaluate([every[here], every])
    if isinstance(link, RankSteps):
        return log_products(link.right[..., here, :], link.left)
    return link.mT[..., here, :]


def _shares(logs: Tensor, dims: tuple[int, ...]) -> Tensor:
    """Exponentials that sum to one over some dims, or to zero where nothing is possible."""
    values = (logs - peak(logs.detach(), dims)).exp()
    total = values.sum(dims, keepdim=True)
    return values / torch.where(total > 0, total, 1.0)


def _possible(parts: ChainTensors | RankTensors, sent: ChainMessages) -> Tensor:
    """(B,) whether any sequence is possible."""
    dead = ~(sent.log_forward > -math.inf).any(-1)
    return ~(dead & inside(parts.lengths, dead.shape[1])).any(1)


def edge_marginals(parts: ChainTensors) -> Tensor:
    """(B, T - 1, N, N) joint probabilities of neighbours; differentiable."""
    unary, transition, lengths = parts
    batch, total, states = unary.shape
    shape = (batch, max(total - 1, 0), states, states)
    if total < 2:
        return unary.new_zeros(shape)
    tracked = unary.requires_grad or transition.requires_grad
    _, (gradient,) = expectations(
        lambda steps: recursion.log_partition(unary, steps, lengths), [transition.expand(shape)],
        tracked=tracked,
    )  # fmt: skip
    return gradient
