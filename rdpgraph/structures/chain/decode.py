"""Best sequences of chains: the best one, the k best, and the best through every state.

Messages are maxima, shifted so that the largest of a step is 0, which keeps sequences of 10,000
steps distinct in float32. Scores are summed again along the sequences found (Viterbi 1967; the k
best by lists, Seshadri and Sundberg 1994). Arguments are as for `recursion.log_partition`.

Compiled rules answer where they serve. The loops here stay for what rules cannot say, maxima over
sums of ranks, whose values of pairs are formed in blocks, and gradients of max-marginals; and for
tables and operators on GPUs, where all states of a step take one call.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph._core.types import Lengths, LogZ, Paths, Transition, Unary
from rdpgraph.structures.chain import operators, rules
from rdpgraph.structures.chain.factors import inside, masked, peak
from rdpgraph.structures.chain.paths import score, traceback
from rdpgraph.structures.chain.steps import Steps, as_steps


@dataclass(frozen=True)
class KBest:
    """The most probable sequences, best first.

    Attributes:
        states: (k, *batch, T) state indices; -1 beyond the length, and throughout where there are
            fewer than k sequences.
        scores: (k, *batch) nats, unnormalised, differentiable; -inf where there are fewer.
    """

    states: Tensor
    scores: Tensor


def viterbi(unary: Unary, transition: Transition | Steps, lengths: Lengths) -> tuple[Paths, LogZ]:
    """The best sequence of each item, (B, T), and its score in nats, (B,).

    States are -1 beyond the length, and throughout an impossible item, whose score is -inf. The
    gradient of a score is the sequence's one-hots. O(T N^2) time; O(T N) is stored.
    """
    states = best_states(unary, transition, lengths)
    return states, score(unary, transition, lengths, states)


@torch.no_grad()
def best_states(unary: Unary, transition: Transition | Steps, lengths: Lengths) -> Paths:
    """The states of `viterbi` alone, (B, T)."""
    if isinstance(transition, Tensor) and rules.serves(unary, transition):
        return rules.best_states(unary, transition, lengths)
    if operators.serves(unary, transition, maxima=True):
        return operators.best_states(unary, transition, lengths)
    values = _levelled(unary, lengths)
    messages = values + _arriving(values, as_steps(transition), lengths, backwards=False)
    return traceback(messages, transition, lengths, count=1, noise=None)[0]


def k_best(
    unary: Unary, transition: Transition | Steps, lengths: Lengths, k: int
) -> tuple[Paths, Tensor]:
    """The k best sequences of each item, distinct, (k, B, T), and their scores in nats, (k, B).

    If there are fewer than k, the rest have states -1 and score -inf. The gradient of a score is
    the sequence's one-hots. On a CPU lazy lists of prefixes take O(T N (N + k)) (Huang and Chiang
    2005, algorithm 3); else the k best prefixes of each state at most O(T N (N
    log k + k^2)).
    """
    with torch.no_grad():
        states = _k_best_states(unary, transition, lengths, k)
    scores = score(unary, transition, lengths, states)
    repeated = (torch.arange(k, device=unary.device) > 0).unsqueeze(1) & (lengths == 0)
    scores = torch.where(repeated, -math.inf, scores)
    scores, order = scores.sort(dim=0, descending=True, stable=True)
    return states.gather(0, order.unsqueeze(-1).expand_as(states)), scores


def _k_best_states(unary: Tensor, transition: Tensor | Steps, lengths: Tensor, k: int) -> Tensor:
    """(k, B, T) states; -1 beyond the length, and where there are fewer."""
    if isinstance(transition, Tensor):
        values, table = unary.double(), transition.double()
        if rules.serves(values, table):
            return rules.k_best(values, table, lengths, k)
    elif operators.serves(unary, transition, maxima=True):
        found = operators.k_best(unary, transition, lengths, k)
        if found is not None:
            return found
    return _best_lists(_levelled(unary, lengths), as_steps(transition), lengths, k)


def max_marginals(unary: Unary, transition: Transition | Steps, lengths: Lengths) -> Unary:
    """(B, T, N) the score in nats of the best sequence through each state; -inf beyond the length.

    The gradient of an entry is the one-hots of one best sequence through it, and zero where the
    entry is -inf; ranks have none. Two passes of O(T N^2) time, O(T N) stored.
    """
    tabulated = isinstance(transition, Tensor)
    watched = tabulated and (unary.requires_grad or transition.requires_grad)
    watched = watched and torch.is_grad_enabled()
    if isinstance(transition, Tensor) and not watched and rules.serves(unary, transition):
        return rules.max_marginals(unary, transition, lengths)
    if operators.serves(unary, transition, maxima=True):
        return operators.max_marginals(unary, transition, lengths)
    with torch.set_grad_enabled(watched):
        values, steps = _levelled(unary, lengths), as_steps(transition)
        through = values + _arriving(values, steps, lengths, backwards=False)
        through = through + _arriving(values, steps, lengths, backwards=True)
        with torch.no_grad():
            best = viterbi(unary, transition, lengths)[1].reshape(-1, 1, 1)
            shift = torch.where(best > -math.inf, best - peak(through, (2,)), 0.0)
        alive = (through > -math.inf) & (best > -math.inf)
        alive = alive & inside(lengths, unary.shape[1]).unsqueeze(2)
        return torch.where(alive, through + shift, -math.inf)


def _levelled(unary: Tensor, lengths: Tensor) -> Tensor:
    """Unary potentials less the largest of each step, and 0 beyond the length."""
    unary = masked(unary, lengths)
    return unary - peak(unary.detach(), (2,))


def _arriving(unary: Tensor, steps: Steps, lengths: Tensor, *, backwards: bool) -> Tensor:
    """(B, T, N) the best score of prefixes before each state, up to a constant in each row.

    Or, backwards, of suffixes after it; 0 where there are none. The gradient goes to one best
    sequence, by one look-up for all steps: each look-up has a gradient of the size of all
    transitions.
    """
    total = unary.shape[1]
    if not total:
        return unary
    steps, way = (steps.turned(), -1) if backwards else (steps, 1)
    values, numbers = unary.unbind(1)[::way], range(total - 1)[::way]
    ends = set(lengths.tolist()) if backwards else set[int]()
    watched = torch.is_grad_enabled()
    parts = [torch.zeros_like(values[0])]
    chosen: list[Tensor] = []

    def levelled(best: Tensor, number: int) -> Tensor:
        best = best if number % tuning.LEVELLED_STEPS else best - peak(best.detach(), (1,))
        if number + 1 not in ends:
            return best
        return best.masked_fill((lengths == number + 1).unsqueeze(1), 0.0)

    # The values, and if they are differentiated the state before each that is best.
    with torch.no_grad():
        for score, number in zip(values[:-1], numbers, strict=True):
            known = steps.best((parts[-1] + score).unsqueeze(2), number)
            sums = () if known else _sums(parts[-1] + score, steps, number)
            if known or watched:
                pairs = [block.max(0) for block in sums]
                best = known[0].squeeze(2) if known else _concatenated([each for each, _ in pairs])
                sources = known[1].squeeze(2) if known else _concatenated([at for _, at in pairs])
                chosen += [sources] if watched else []
            else:
                best = _concatenated([block.amax(0) for block in sums])
            parts.append(levelled(best, number))
    # The same sums again along the best states, with gradients, by one look-up of all transitions.
    if chosen:
        before = torch.stack(chosen[::way], 1).movedim(2, 0)
        after = torch.arange(len(before), device=before.device).reshape(-1, 1, 1)
        edges = steps.values(before, after.expand(before.shape))
        edges = edges.movedim(0, 2).unbind(1)[::way]
        for step, (number, sources) in enumerate(zip(numbers, chosen, strict=True)):
            best = (parts[step] + values[step]).gather(1, sources) + edges[step]
            parts[step + 1] = levelled(best, number)
    return torch.stack(parts[::way], 1)


def _sums(state: Tensor, steps: Steps, step: int) -> Iterator[Tensor]:
    """``state_i + value_ij`` in blocks of columns, (N, B, width): maxima are over whole rows."""
    width, state = tuning.per_block(state.numel(), tuning.CACHE_BLOCK), state.mT.unsqueeze(2)
    for block in steps.blocks(step, width):
        yield state + (block.unsqueeze(1) if block.ndim == 2 else block.transpose(0, 1))


def _concatenated(blocks: list[Tensor]) -> Tensor:
    return blocks[0] if len(blocks) == 1 else torch.cat(blocks, 1)


def _best_lists(unary: Unary, steps: Steps, lengths: Lengths, k: int) -> Tensor:
    """(k, B, T) the states of the k best sequences, the best first."""
    batch, total, states = unary.shape
    device = unary.device
    if total == 0:
        return torch.full((k, batch, 0), -1, device=device)
    best = unary.new_full((batch, states, k), -math.inf)
    best[..., 0] = unary[:, 0]
    pointers: list[Tensor] = []
    for step in range(total - 1):
        longer, came_from = _extended(best, steps, step)
        longer = longer + unary[:, step + 1].unsqueeze(2)
        longer = longer - peak(longer, (1, 2))
        best = torch.where((step + 1 < lengths).reshape(-1, 1, 1), longer, best)
        pointers.append(came_from.to(torch.int32))
    values, place = best.flatten(1).topk(k)
    possible = values > -math.inf
    result = torch.full((batch, k, total), -1, device=device)
    for step in range(total - 1, -1, -1):
        if step + 1 < total:
            before = pointers[step].flatten(1).gather(1, place).long()
            place = torch.where((step + 1 < lengths).unsqueeze(1), before, place)
        kept = possible & (step < lengths).unsqueeze(1)
        result[..., step] = torch.where(kept, place // k, -1)
    return result.transpose(0, 1)


def _extended(best: Tensor, steps: Steps, step: int) -> tuple[Tensor, Tensor]:
    """The k best ways into each state, (B, N, k), and the entry of ``best`` each extends."""
    batch, states, k = best.shape
    if known := steps.best(best, step):
        return known
    width = min(k, states)
    items = torch.arange(batch, device=best.device).reshape(-1, 1, 1)
    columns = tuning.per_block(batch * max(states, width * k), tuning.CACHE_BLOCK)
    values: list[Tensor] = []
    pointers: list[Tensor] = []
    for block in steps.blocks(step, columns):
        into = block.mT.expand(batch, -1, -1)
        sources = (best[:, None, :, 0] + into).topk(width).indices
        ways = best[items, sources] + into.gather(2, sources).unsqueeze(3)
        top, place = ways.flatten(2).topk(k)
        values.append(top)
        pointers.append(sources.gather(2, place // k) * k + place % k)
    return torch.cat(values, 1), torch.cat(pointers, 1)
