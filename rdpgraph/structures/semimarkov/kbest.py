"""The k best segmentations."""

import math

import torch
from torch import Tensor

from rdpgraph.structures.semimarkov.recursion import at_last
from rdpgraph.structures.semimarkov.transitions import after
from rdpgraph.structures.tape.descend import Drawn


@torch.no_grad()
def k_best(segments: Tensor, transition: Tensor, lengths: Tensor, k: int) -> Drawn:
    """The segments of k segmentations of each item, distinct, best first; none of what is missing.

    A list of k best prefixes is kept for every label that one ends or begins with: O(T k (D N +
    N^2)) time, O(T N k) integers kept, O(k N^2) memory for a step. Scores are summed in float64.

    Args:
        segments: (B, T, D, N).
        transition: (N, N), or (1 or B, T - 1, N, N).
        lengths: (B,).
        k: at least 1.
    """
    batch, steps, durations, labels = segments.shape
    device = segments.device
    none = torch.zeros(0, dtype=torch.long, device=device)
    used = [(none, none, none)]
    if not steps:
        return Drawn(*used[0])
    window = torch.full(
        (batch, durations, k, labels), -math.inf, dtype=torch.float64, device=device
    )
    window[:, 0, 0] = 0.0
    ending, lasting = list[Tensor](), list[Tensor]()
    coming = [torch.zeros_like(window[:, 0], dtype=torch.long)]
    for step, scores in enumerate(segments.double().unbind(1)):
        largest, ways = _largest((scores.unsqueeze(2) + window).flatten(1, 2), k)
        ending.append(largest.transpose(1, 2).flatten(1))
        lasting.append(ways)
        if step + 1 == steps:
            break
        onward = largest.unsqueeze(3) + after(transition, step).double().unsqueeze(-3)
        entering, sources = _largest(onward.flatten(1, 2), k)
        coming.append(sources)
        window = torch.cat([entering.unsqueeze(1), window[:, :-1]], 1)
    # What a list holds at a place and label: (duration, rank) before it, and (rank, label).
    lasted, came = torch.stack(lasting, 1), torch.stack(coming, 1)
    scores, chosen = _largest(at_last(torch.stack(ending, 1), lengths).unsqueeze(2), k)
    item = torch.arange(batch, device=device).repeat(k)
    current, rank = chosen.squeeze(2).T.flatten() // k, chosen.squeeze(2).T.flatten() % k
    place = torch.where(scores.squeeze(2).T.flatten() > -math.inf, lengths[item] - 1, -1)
    while True:
        rows = (place >= 0).nonzero().squeeze(1)
        if not len(rows):
            return Drawn(*map(torch.cat, zip(*used, strict=True)))
        way = lasted[item[rows], place[rows], rank[rows], current[rows]]
        start = place[rows] - way // k
        used.append((rows, place[rows] * durations + way // k, current[rows]))
        source = came[item[rows], start, way % k, current[rows]]
        rank[rows], current[rows] = source // labels, source % labels
        place[rows] = start - 1


def _largest(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """(B, k, N) the largest of (B, M, N), -inf where there are fewer, and which they are."""
    count = min(k, scores.shape[1])
    largest, ways = scores.topk(count, dim=1)
    if count == k:
        return largest, ways
    missing = (len(scores), k - count, scores.shape[2])
    return (
        torch.cat([largest, largest.new_full(missing, -math.inf)], 1),
        torch.cat([ways, ways.new_zeros(missing)], 1),
    )
