"""Expectations under chains: entropy, cross-entropy, joint probabilities of neighbours.

They are means over derivations of the rules, in float64: of tables and of operators whose scores
are sums of parameters, where a derivation is a sequence; and of bands beside one rank, with scores
for the two ways through a band whose mean is that of the pair. Beside or without bands, a
derivation by several ranks has one of these at each step, and a score below that of its sequence.
The means of such pairs of states are taken here, in blocks of the values of all pairs.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from rdpgraph._core import tuning
from rdpgraph.logspace.gradients import (
    by_autograd,
    expectations,
    is_transformed,
    with_gradient,
)
from rdpgraph.logspace.logmatrix import LogMatrix, finite
from rdpgraph.model.potentials.lowrank import LowRank
from rdpgraph.model.potentials.operators import Banded, PairOperator
from rdpgraph.native import library
from rdpgraph.structures.chain import recursion, rules
from rdpgraph.structures.chain.parts import AnyChain, ChainTensors, Parts, masked


@by_autograd
def entropy(parts: AnyChain, log_base: Tensor | None = None) -> Tensor:
    """(B,) nats; 0 for an impossible item. Differentiable.

    The expectation of ``log_base`` (*batch, T, N), without gradient, is added. Several ranks cost
    O(T N^2) products too, and O(N^2 r) for the values, in blocks.
    """
    unary, link, lengths = parts.unary, parts.transition, parts.lengths
    if not unary.numel():
        return unary.sum((1, 2))
    base = None if log_base is None else finite(log_base.detach()).reshape(unary.shape)
    least = 0.0 if base is None else None
    if isinstance(link, Tensor) and link.ndim > 2:
        scored = finite(unary.detach())
        scored = masked(scored if base is None else scored - base, lengths)

        def again(unary: Tensor, tables: Tensor) -> Tensor:
            return _entropy(Parts(unary, tables, lengths), base)

        table = ChainTensors(unary, link, lengths)
        values = _by_tables(table, scored, again, least=least)
        if values is not None:
            return values
    values = _entropy(parts, base)
    return values if least is None else values.clamp(min=least)


def _entropy(parts: AnyChain, base: Tensor | None) -> Tensor:
    """Log Z less the mean score, less ``base`` of each state, if it is given; in float64."""
    link = parts.transition
    by_pairs = isinstance(link, LowRank) or (isinstance(link, Banded) and not link.maximises)
    if base is None and not by_pairs and _scored_link(link) is link:
        return rules.bound(parts, alike=False).entropy()
    wide = parts.double()
    link = wide.transition
    if isinstance(link, Banded) and link.rest is not None and link.maximises:
        # The score of a way by a band varies where the rest does.
        band = link.log_values.expand(link.largest.shape)
        wide = Parts(wide.unary, link.replaced([band, *link.tensors[1:]]), wide.lengths)
    unary = wide.unary if base is None else wide.unary - base
    scored = Parts(unary, _scored_link(link), wide.lengths)
    bound = rules.bound(wide, alike=False)
    scores = [finite(values) for values in rules.bound(scored, alike=False).logs().values()]
    if by_pairs:
        scores[1:] = [torch.zeros_like(values) for values in scores[1:]]
    log_z, means = bound.mean_score(scores)
    if by_pairs:
        means = means + _pair_means(parts).double()
    return torch.where(log_z > -math.inf, log_z - means, 0.0).to(parts.unary)


def _scored_link(link: Tensor | LowRank | PairOperator) -> Tensor | LowRank | PairOperator:
    """The transition whose entries are the scores of ways, with the mean of those of pairs.

    A pair (i, j) of the band at offset j - i goes by the band with a share 1 / (1 + e^g) of its
    probability, and by the rest with e^g / (1 + e^g), where g = l_i + r_j - b_ij. The rest scores
    l_i + r_j, as for all pairs, and the pair is to score v = log(e^b + e^(l + r)) in the mean. So
    the band scores v + (v - l_i - r_j) e^g, and v - l_i - r_j = log(1 + e^-g).
    """
    if not isinstance(link, Banded) or link.rest is None or not link.maximises:
        return link
    both = (link.log_values > -math.inf) & (link.beside > -math.inf)
    gap = torch.where(both, link.beside - link.log_values, 0.0).clamp(-700.0, 40.0)
    lift = torch.where(both, torch.nn.functional.softplus(-gap) * gap.exp(), 0.0)
    return link.replaced([finite(link.largest) + lift, *link.tensors[1:]])


def _pair_means(parts: AnyChain) -> Tensor:
    """(B,) the mean sums of the log-values of neighbours, whose values are made in blocks.

    Given a state j, the one before is i with a probability in proportion to e^(f_i + v_ij), where f
    are the forward messages: the mean of v_ij is a ratio of two products with matrices.
    """
    unary, link = parts.unary, parts.transition
    _, total, states = unary.shape
    assert isinstance(link, LowRank | Banded)
    if total < 2:
        return unary.new_zeros(len(unary))
    sent = recursion.forward(parts)
    if isinstance(link, LowRank):
        chances = recursion.probabilities(sent + recursion.backward(parts))
    else:
        chances = rules.bound(parts, alike=False).marginals()["unary"]
    before, chances = sent[:, :-1], chances[:, 1:]
    every = torch.arange(states, device=unary.device)
    lead, sums = link.lead(2), link.sums(before)

    def means(some: Tensor) -> Tensor:
        values = link.evaluate([every, some]).mT
        possible = values > -math.inf
        # Values from 1 on have logs.
        least = torch.where(possible, values.detach(), math.inf).amin()
        least = torch.where(least < math.inf, least, 0.0) - 1.0
        logs = torch.where(possible, values - least, 1.0).log()
        rows = before.unsqueeze(2) if lead else before
        scored = LogMatrix.of(values + logs).times(rows)
        scored, whole = scored.squeeze(2) if lead else scored, sums[..., some]
        reached = whole.detach() > -math.inf
        ratio = torch.where(reached, scored, 0.0) - torch.where(reached, whole, 0.0)
        mean = torch.where(reached, least + ratio.exp(), 0.0)
        return (mean * chances[..., some]).sum((1, 2))

    width = tuning.per_block(states * max(1, math.prod(lead)), tuning.LARGE_BLOCK)
    result = torch.zeros_like(unary[:, 0, 0])
    for some in every.split(width):
        # Blocks are made again for the gradient, so that one is held at a time.
        again = width < states and torch.is_grad_enabled()
        part: Tensor = checkpoint(means, some, use_reentrant=False) if again else means(some)  # pyright: ignore
        result = result + part
    return result


def alike(parts: AnyChain, other: AnyChain) -> bool:
    """Return whether the scores of both are sums of the same parameters."""
    one, two = parts.transition, other.transition
    if not isinstance(one, PairOperator) or not isinstance(two, PairOperator):
        return False
    return one.additive and one.comparable(two)


@by_autograd
def cross_entropy(parts: AnyChain, other: AnyChain, *, divergence: bool = False) -> Tensor:
    """(B,) nats: the expectation under one chain of minus the log-probability in another.

    Of tables, or of chains that are `alike`. For a ``divergence`` less the entropy. +inf, without
    gradient, where the other forbids what the first allows; 0 for an impossible item.
    Differentiable. O(B T N^2) in matrix products.
    """
    if not parts.unary.numel():
        return parts.unary.sum((1, 2))
    one, two = parts.double(), other.double()
    if one.transition.shape != two.transition.shape:  # tables of either for each step
        batch, total, states = one.unary.shape
        one, two = (
            Parts(
                each.unary, each.transition.expand(batch, total - 1, states, states), each.lengths
            )
            for each in (one, two)
            if isinstance(each.transition, Tensor)
        )
    ours, theirs = rules.bound(one, alike=False), rules.bound(two, alike=False)
    ask = ours.kl_divergence if divergence else ours.cross_entropy
    return ask(theirs).to(parts.unary)


def edge_marginals(parts: ChainTensors, *, summed: bool = False) -> Tensor:
    """(B, T - 1, N, N) joint probabilities of neighbours, or their sums over the steps, (B, N, N).

    Differentiable. O(B T N^2), and (B, N, N) memory for sums by one table of all steps.
    """
    unary, transition, lengths = parts.unary, parts.transition, parts.lengths
    batch, total, states = unary.shape
    # The derivative of log Z in a transition of each item, which rules of recurrences sum over
    # steps as they go, without a table for each.
    steps = 1 if summed and transition.ndim == 2 else max(total - 1, 0)
    if total < 2 or not unary.numel():
        uses = unary.new_zeros(batch, steps, states, states)
    else:
        tracked = unary.requires_grad or transition.requires_grad
        each = transition.expand(batch, steps, states, states)
        if tracked and torch.is_grad_enabled():
            _, (uses,) = expectations(
                lambda table: recursion.log_partition(Parts(unary, table, lengths)), [each],
                tracked=True,
            )  # fmt: skip
        else:
            (uses,) = rules.bound(Parts(unary, each, lengths)).sums().expected_uses(["transition"])
    return uses.reshape(batch, steps, states, states).sum(1) if summed else uses


# ---- a table for each step of each item ----
#
# These are the chains on some states of each step that an estimator keeps. A kernel reads each
# table once for the entropy, and once for its gradient, where autograd would make a dozen tensors
# as large as all of the tables. It stays because rules take ten times as long for such tables, for
# their gradients too, at 10, 32 and 64 states.


def _by_tables(
    parts: ChainTensors, scored: Tensor, again: Callable[[Tensor, Tensor], Tensor], *,
    least: float | None = None,
) -> Tensor | None:  # fmt: skip
    """(B,) log Z less the expectation of the transitions and of ``scored`` in place of the unary.

    Differentiable in the unary and the transitions, with ``scored`` moving as the unary does. None
    where the kernel does not serve: without a table for each step and item, and where an item is
    impossible or its probabilities are too far apart for products.

    Args:
        parts: (B, T, N), (B, T - 1, N, N) and (B,).
        scored: (B, T, N) finite; without gradient.
        again: the same of unary and transitions, for derivatives of higher order.
        least: a bound of values that rounding may have put below it, as where one sequence has all
            the mass.
    """
    unary, tables, lengths = parts.unary, parts.transition, parts.lengths
    batch, total = unary.shape[:2]
    served = tables.ndim == 4 and len(tables) == batch and total > 1 and unary.numel() > 0
    served = served and unary.is_cpu and unary.dtype == tables.dtype and not is_transformed()
    if not served or not library.available(unary.dtype, "entropies"):
        return None
    given = [part.detach().contiguous() for part in (unary, scored.to(unary), tables, lengths)]
    kept = given[0].new_empty(batch, total, 3, unary.shape[2])
    levels = torch.empty(batch, total, dtype=torch.float64, device="cpu")
    values = torch.empty(batch, dtype=torch.float64, device="cpu")
    threads = library.threads(tables.numel(), batch)

    def call(name: str, *results: Tensor | None) -> bool:
        """Fill the results; return whether no item is in doubt."""
        doubts = torch.empty(batch, dtype=torch.int64, device="cpu")
        parts = *given, kept, levels, *results, doubts
        places = [None if part is None else part.data_ptr() for part in parts]
        library.function(name, unary.dtype)(*places, *unary.shape, threads)
        return not bool(doubts.any())

    def gradient(above: Tensor) -> tuple[Tensor, Tensor | None] | None:
        sites = torch.empty_like(given[0])
        links = torch.empty_like(given[2]) if tables.requires_grad else None
        sure = call("pullback", above.double().contiguous(), sites, links)
        return (sites, links) if sure else None

    if not call("entropy", values):
        return None
    if least is not None:
        values.clamp_(min=least)
    return with_gradient(values.to(unary), (unary, tables), gradient, again)
