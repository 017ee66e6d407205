"""Best sequences of chains: the best one, the k best, and the best through every state.

The recurrences of chains answer, with two exceptions that stay here. Maxima over sums of ranks are
over the values of all pairs of states, which are formed in blocks where their table would not fit:
a recurrence reads inputs as they are in memory. And the k best of bands beside low rank are found
among the states that max-marginals leave, as a pair of states within a band is linked in two ways.
"""

import math

import torch
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph._core.types import Paths, Unary
from rdpgraph.model.potentials.lowrank import LowRank
from rdpgraph.model.potentials.operators import Banded, Monarch
from rdpgraph.structures.chain import recursion, rules
from rdpgraph.structures.chain.parts import AnyChain, Parts, between, inside, masked
from rdpgraph.structures.chain.paths import score, states_of, traceback


@torch.no_grad()
def best_states(parts: AnyChain) -> Paths:
    """(B, T) the best sequence of each item; -1 beyond a length, and where nothing is possible."""
    if _is_by_pairs(parts):
        sent = masked(parts.unary, parts.lengths) + _arriving(parts, backwards=False)
    elif (bound := rules.bound(parts, maxima=True)).is_compiled:
        return states_of(parts, bound.states_of("unary", None, None)[0])[0]
    else:  # all states of a step take one call
        sent = recursion.forward(parts, best=True)
    return traceback(sent, parts, count=1, noise=None)[0]


def k_best(parts: AnyChain, k: int) -> tuple[Paths, Tensor]:
    """The k best sequences of each item, distinct, (k, B, T), and their scores in nats, (k, B).

    If there are fewer than k, the rest have states -1 and score -inf. The gradient of a score is
    the sequence's one-hots. Lazy lists of derivations take O(T N (N + k)) on a CPU (Huang and
    Chiang 2005, algorithm 3).
    """
    with torch.no_grad():
        states = _k_best_states(parts, k)
    known = states.clamp(min=0)
    links = between(parts.transition, known[..., :-1], known[..., 1:])
    scores = score(parts.unary, parts.lengths, links, states)
    repeated = (torch.arange(k, device=states.device) > 0).unsqueeze(1) & (parts.lengths == 0)
    scores = torch.where(repeated, -math.inf, scores)
    scores, order = scores.sort(dim=0, descending=True, stable=True)
    return states.gather(0, order.unsqueeze(-1).expand_as(states)), scores


def _k_best_states(parts: AnyChain, k: int) -> Tensor:
    """(k, B, T) states; -1 beyond the length, and where there are fewer."""
    if not parts.unary.numel():
        return torch.full((k, *parts.unary.shape[:2]), -1, device=parts.unary.device)
    link = parts.transition
    if isinstance(link, Tensor) or (isinstance(link, Banded | Monarch) and link.additive):
        return states_of(parts, rules.bound(parts, maxima=True).k_best_states_of("unary", k)[0])
    # Each of the k best has max-marginals that are not below the k-th best score; and the largest
    # max-marginals of a step are scores of sequences that differ at that step.
    wide = parts.double()
    best = max_marginals(wide)
    most = best.topk(min(k, best.shape[2]), 2).values
    bar = most[..., -1].amax(1) if best.shape[2] >= k else best.new_full((len(best),), -math.inf)
    bar = (bar - 1e-9 * bar.abs()).reshape(-1, 1, 1)
    wanted = (best >= bar) & (best > -math.inf)
    width = int(wanted.sum(2).amax().clamp(min=1))
    from rdpgraph.plan.plan import require_room  # few chains need it

    pairs = parts.lengths.numel() * parts.unary.shape[1] * width**2
    require_room(16.0 * pairs, f"{pairs:,} pairs of states among the {k:,} best of Chain")
    among = torch.where(wanted, best, -math.inf).topk(width, 2).indices
    unary = torch.where(wanted, wide.unary, -math.inf).gather(2, among)
    assert isinstance(wide.transition, LowRank | Banded)
    links = wide.transition.evaluate([among[:, :-1], among[:, 1:]])
    few = Parts(unary, links, parts.lengths)
    found = _k_best_states(few, k)
    picked = among.expand(k, *among.shape).gather(3, found.clamp(min=0).unsqueeze(3)).squeeze(3)
    return torch.where(found >= 0, picked, -1)


def max_marginals(parts: AnyChain) -> Unary:
    """(B, T, N) the score in nats of the best sequence through each state; -inf beyond the length.

    The gradient of an entry is the one-hots of the best sequence through it, or the mean of those
    of several, and zero where the entry is -inf; ranks and operators have none.
    """
    unary, link, lengths = parts.unary, parts.transition, parts.lengths
    if not unary.numel():
        return unary
    watched = isinstance(link, Tensor) and (unary.requires_grad or link.requires_grad)
    watched = watched and torch.is_grad_enabled()
    # Gradients pass through the best prefixes and suffixes, which torch finds too where there is no
    # compiled code; all else is answered by the rules, if these have the transition.
    by_rows = watched
    if not watched and not _is_by_pairs(parts):
        bound = rules.bound(parts, maxima=True)
        by_rows = isinstance(link, Tensor) and not bound.is_compiled
        if not by_rows:
            return bound.max_marginals("unary")["unary"].reshape(unary.shape).to(unary)
    # The best sequence through a state is its best prefix and its best suffix, of many steps: in
    # float64.
    wide = parts.double()
    with torch.set_grad_enabled(watched):
        if by_rows:
            through = recursion.forward(wide, best=True) + recursion.backward(wide, best=True)
        else:
            through = _arriving(wide, backwards=False) + _arriving(wide, backwards=True)
            through = through + masked(wide.unary, lengths)
        alive = (through > -math.inf) & inside(lengths, unary.shape[1]).unsqueeze(2)
        return torch.where(alive, through, -math.inf).to(unary)


# ---- pairs of states in blocks ----


def _is_by_pairs(parts: AnyChain) -> bool:
    """Return whether maxima are over the values of all pairs of states, formed in blocks."""
    link = parts.transition
    return not isinstance(link, Tensor | Monarch) and not (
        isinstance(link, Banded) and link.maximises
    )


def _arriving(parts: AnyChain, *, backwards: bool) -> Tensor:
    """(B, T, N) the best scores of prefixes before each state, or of suffixes after it; float64."""
    unary, link, lengths = parts.unary, parts.transition, parts.lengths
    assert isinstance(link, LowRank | Banded)
    scores, total = masked(unary, lengths).double().unbind(1), unary.shape[1]
    every = torch.arange(unary.shape[2], device=unary.device)
    width = tuning.per_block(unary[:, 0].numel(), tuning.CACHE_BLOCK)

    def into(some: Tensor, step: int) -> Tensor:
        """(N, B or 1, width) values of some states and all those that they are reached from."""
        here = link.replaced([x[:, step] if x.ndim > 3 else x for x in link.tensors])
        values = here.evaluate([some, every] if backwards else [every, some])
        values = values if backwards else values.mT
        return values.reshape(-1, *values.shape[-2:]).movedim(2, 0).double()

    made = [torch.zeros_like(scores[0])]
    for step in range(total - 2, -1, -1) if backwards else range(total - 1):
        sent = (made[-1] + scores[step + backwards]).mT.unsqueeze(2)
        best = torch.cat([(sent + into(some, step)).amax(0) for some in every.split(width)], 1)
        made.append(torch.where((step + 1 < lengths).unsqueeze(1), best, 0.0))
    return torch.stack(made[::-1] if backwards else made, 1)
