"""Best sequences of chains: the best one, the k best, and the best through every state.

Messages are maxima, shifted at each step so that their largest is 0: in float32 they tell
sequences of 10,000 steps apart as well as short ones. Scores are summed again along the sequences
found (Viterbi 1967; the k best by lists, Seshadri and Sundberg 1994).
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rdpgraph._types import Lengths, LogZ, Paths, Transition, Unary
from rdpgraph.structures.chain import array_paths, arrays, deviations, native
from rdpgraph.structures.chain.factors import finite, step_of
from rdpgraph.structures.chain.paths import score, traceback

_CELLS = 1 << 20  # elements of a block of sums
_MOST_PLACES = 2**31  # in the lists of a step


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


def viterbi(unary: Unary, transition: Transition, lengths: Lengths) -> tuple[Paths, LogZ]:
    """The best sequence of each item, (B, T), and its score in nats, (B,).

    States are -1 beyond the length. An item without a possible sequence has states -1 and score
    -inf; an empty one has score 0. The gradient of a score is the sequence's one-hots. Costs
    O(T N^2) time; O(T N) is stored, and the N x N sums of a step are formed in blocks.

    Args:
        unary: (B, T, N) in nats; -inf allowed.
        transition: (N, N), or (1 or B, T-1, N, N) per step; [from, to]; -inf allowed.
        lengths: (B,) int64.
    """
    states = best_states(unary, transition, lengths)
    return states, score(unary, transition, lengths, states)


@torch.no_grad()
def best_states(unary: Unary, transition: Transition, lengths: Lengths) -> Paths:
    """The states of `viterbi` alone, (B, T), which cost less than the score where they are few."""
    messages = prefixes(unary, transition, lengths)
    return traceback(messages, transition, lengths, count=1, noise=None)[0]


@torch.no_grad()
def prefixes(unary: Unary, transition: Transition, lengths: Lengths) -> Unary:
    """(B, T, N) the best score of what ends in each state, less a constant for each step."""
    if native.applies(unary, transition):
        return native.prefixes(unary, transition, lengths)
    values = _levelled(unary, lengths)
    if unary.shape[1] and arrays.applies(unary, transition):
        return array_paths.prefixes(values, transition)
    return values + _before(values, transition, _linked(values, lengths))


def k_best(unary: Unary, transition: Transition, lengths: Lengths, k: int) -> tuple[Paths, Tensor]:
    """The k best sequences of each item, (k, B, T), and their scores in nats, (k, B).

    Distinct, the best first. Where there are fewer than k possible ones, the rest have states -1
    and score -inf; the one sequence of an empty item has score 0. The gradient of a score is the
    sequence's one-hots. Costs O(T N (N + k)) time on a CPU where there is one transition for all
    steps, and O(T N (N log k + k^2)) at most elsewhere; O(T N k) numbers are stored.

    On a CPU a next best sequence deviates from a better one: see `deviations`. Where there are many
    short ones, and elsewhere, a list of k best prefixes is kept for each state. The list of a next
    state draws on the k sources whose best prefix continues best, for each of those outdoes every
    prefix of the others.

    Args:
        unary: (B, T, N) in nats; -inf allowed.
        transition: (N, N), or (1 or B, T-1, N, N) per step; [from, to]; -inf allowed.
        lengths: (B,) int64.
        k: at least 1.
    """
    with torch.no_grad():
        states = _k_best_states(unary, transition, lengths, k)
    scores = score(unary, transition, lengths, states)
    repeated = (torch.arange(k, device=unary.device) > 0).unsqueeze(1) & (lengths == 0)
    scores = torch.where(repeated, -math.inf, scores)
    scores, order = scores.sort(dim=0, descending=True, stable=True)
    return states.gather(0, order.unsqueeze(-1).expand_as(states)), scores


def _k_best_states(unary: Tensor, transition: Tensor, lengths: Tensor, k: int) -> Tensor:
    """(k, B, T) by the quickest of three ways."""
    compiled = native.applies(unary, transition) and k * unary.shape[-1] < _MOST_PLACES
    if (
        transition.ndim == 2
        and unary.device.type == "cpu"
        and not torch.compiler.is_compiling()
        and deviations.quicker(unary.shape, k, compiled=compiled)
    ):
        wide = transition.double()
        messages = prefixes(unary.double(), wide, lengths)
        best = traceback(messages, wide, lengths, count=1, noise=None)[0]
        return deviations.k_best(messages, wide, lengths, best, k)
    if compiled:
        return native.k_best(unary, transition, lengths, k)
    return _best_lists(_levelled(unary, lengths), transition, lengths, k)


def max_marginals(unary: Unary, transition: Transition, lengths: Lengths) -> Unary:
    """(B, T, N) the score in nats of the best sequence through each state; -inf beyond the length.

    Not normalised: the largest of each step is the score of `viterbi`. The gradient of an entry
    is the one-hots of one best sequence through it, and zero where the entry is -inf. Costs two
    passes of O(T N^2) time, O(T N) stored.

    Args:
        unary: (B, T, N) in nats; -inf allowed.
        transition: (N, N), or (1 or B, T-1, N, N) per step; [from, to]; -inf allowed.
        lengths: (B,) int64.
    """
    values, linked = _levelled(unary, lengths), _linked(unary, lengths)
    # What follows each state is what leads to it in the reversed sequence.
    flipped = transition.mT.contiguous() if transition.ndim == 2 else transition.mT.flip(1)
    follows = torch.cat([linked[:, 1:], torch.zeros_like(linked[:, :1])], 1)
    after = _before(values.flip(1), flipped, follows.flip(1)).flip(1)
    through = values + _before(values, transition, linked) + after
    with torch.no_grad():
        best = viterbi(unary, transition, lengths)[1].reshape(-1, 1, 1)
        shift = torch.where(best > -math.inf, best - _peak(through), 0.0)
    steps = torch.arange(unary.shape[1], device=unary.device)
    alive = (steps < lengths.unsqueeze(1)).unsqueeze(2) & (through > -math.inf) & (best > -math.inf)
    return torch.where(alive, through + shift, -math.inf)


def _linked(unary: Tensor, lengths: Tensor) -> Tensor:
    """(B, T) whether a step, and one before it, are within the length."""
    steps = torch.arange(unary.shape[1], device=unary.device)
    return (steps > 0) & (steps < lengths.unsqueeze(1))


def _levelled(unary: Tensor, lengths: Tensor) -> Tensor:
    """Unary potentials less the largest of each step, and 0 beyond the length."""
    steps = torch.arange(unary.shape[1], device=unary.device)
    unary = torch.where((steps < lengths.unsqueeze(1)).unsqueeze(2), unary, 0.0)
    return unary - _peak(unary.detach())


def _before(unary: Tensor, transition: Tensor, linked: Tensor) -> Tensor:
    """(B, T, N) the best score of what leads to each state, less a constant in each row.

    Where a step is not linked to the one before it, (B, T) bool, nothing does, and it is 0. The
    gradient goes to one best sequence. The transition is indexed once, for all steps: each
    indexing has a gradient of the transition's size.
    """
    if unary.shape[1] == 0:
        return unary
    values = unary.unbind(1)
    starts = (~linked).unsqueeze(2).unbind(1)
    watched = torch.is_grad_enabled() and (unary.requires_grad or transition.requires_grad)
    parts = [torch.zeros_like(values[0])]
    chosen: list[Tensor] = []
    with torch.no_grad():
        for step in range(1, len(values)):
            state, matrix = parts[-1] + values[step - 1], step_of(transition, step - 1)
            if watched:
                best, sources = _largest(state, matrix)
                chosen.append(sources)
            else:
                best = _maxima(state, matrix)
            parts.append((best - _peak(best)).masked_fill(starts[step], 0.0))
    if chosen:
        edges = _entries(transition, torch.stack(chosen, 1)).unbind(1)
        for step, sources in enumerate(chosen, 1):
            best = (parts[step - 1] + values[step - 1]).gather(1, sources) + edges[step - 1]
            parts[step] = (best - _peak(best.detach())).masked_fill(starts[step], 0.0)
    return torch.stack(parts, 1)


def _entries(transition: Tensor, sources: Tensor) -> Tensor:
    """The transitions from a source (B, T - 1, N) of each state at each step but the first."""
    batch, count, states = sources.shape
    targets = torch.arange(states, device=sources.device)
    if transition.ndim == 2:
        return transition[sources, targets]
    items = torch.arange(batch, device=sources.device) % transition.shape[0]
    steps = torch.arange(count, device=sources.device).unsqueeze(1)
    return transition[items.reshape(-1, 1, 1), steps, sources, targets]


def _peak(logs: Tensor) -> Tensor:
    """The largest of each row, (..., 1), or 0 where nothing is possible."""
    return finite(logs.amax(-1, keepdim=True))


def _maxima(state: Tensor, matrix: Tensor) -> Tensor:
    """``max_i(state_i + matrix_ij)``, (B, N), in blocks of rows."""
    if state.numel() * state.shape[1] <= _CELLS:
        return (state.unsqueeze(2) + matrix).amax(1)
    best = torch.full_like(state, -math.inf)
    for start, stop in _blocks(state):
        block = (state[:, start:stop, None] + matrix[..., start:stop, :]).amax(1)
        best = torch.maximum(best, block)
    return best


def _largest(state: Tensor, matrix: Tensor) -> tuple[Tensor, Tensor]:
    """The same, and the first i of each; a few times slower."""
    best, sources = torch.full_like(state, -math.inf), torch.zeros_like(state, dtype=torch.long)
    for start, stop in _blocks(state):
        block, places = (state[:, start:stop, None] + matrix[..., start:stop, :]).max(1)
        sources = torch.where(block > best, places + start, sources)
        best = torch.maximum(best, block)
    return best, sources


def _blocks(state: Tensor) -> list[tuple[int, int]]:
    states = state.shape[1]
    rows = max(1, _CELLS // max(1, state.numel()))
    return [(start, min(start + rows, states)) for start in range(0, states, rows)]


def _best_lists(unary: Unary, transition: Transition, lengths: Lengths, k: int) -> Tensor:
    """(k, B, T) the states of the k best sequences, the best first."""
    batch, total, states = unary.shape
    device = unary.device
    if total == 0:
        return torch.full((k, batch, 0), -1, device=device)
    best = unary.new_full((batch, states, k), -math.inf)
    best[..., 0] = unary[:, 0]
    pointers: list[Tensor] = []
    for step in range(total - 1):
        longer, came_from = _extended(best, step_of(transition, step))
        longer = longer + unary[:, step + 1].unsqueeze(2)
        longer = longer - _peak(longer.flatten(1)).unsqueeze(2)
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


def _extended(best: Tensor, matrix: Tensor) -> tuple[Tensor, Tensor]:
    """The k best ways into each state, (B, N, k), and which entry of ``best`` each goes on from."""
    batch, states, k = best.shape
    width = min(k, states)
    items = torch.arange(batch, device=best.device).reshape(-1, 1, 1)
    columns = max(1, _CELLS // max(1, batch * max(states, width * k)))
    values: list[Tensor] = []
    pointers: list[Tensor] = []
    for block in matrix.split(columns, -1):
        into = block.mT.expand(batch, -1, -1)
        sources = (best[:, None, :, 0] + into).topk(width).indices
        ways = best[items, sources] + into.gather(2, sources).unsqueeze(3)
        top, place = ways.flatten(2).topk(k)
        values.append(top)
        pointers.append(sources.gather(2, place // k) * k + place % k)
    return torch.cat(values, 1), torch.cat(pointers, 1)
