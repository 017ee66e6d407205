"""General graphs that are semi-Markov chains: their states count the steps of a segment."""

import math
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from rdpgraph.interface.structure import is_tracked
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.potentials.potential import Potential
from rdpgraph.model.potentials.table import Table
from rdpgraph.structures.chain.recognition import Recognised, recognised

_ROUNDINGS = 8.0  # of a log-value, by which the sum of a segment's and a transition's may be off


def recognised_segments(graph: FactorGraph) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
    """Segments, transitions, numbers of variables and numbers of states; or None.

    The graph is a chain, or are several of one length, in which a state has one successor that
    goes on with its segment, at most; all others that may follow it start a segment. The log-value
    of a start is one of the segment that ends plus one of the two labels, up to rounding. Tables
    of pairs that are trained are not looked at: each of their entries may change by itself.

    Returns:
        (*batch, T, D, N) log-potentials of segments, their transition, (T,) or (C, T) numbers of
        variables, and (S,) for each of their states ``age * N + label``.
    """
    pairs = [block.potential for block in graph.blocks if block.arity == 2]
    if is_tracked(pairs) or all(map(_is_dense, pairs)):
        return None
    chain = recognised(graph)
    if chain is None or chain.lengths is not None or not isinstance(chain.transition, Tensor):
        return None
    return _cut(chain) or _cut(_turned(chain, chain.transition))


def _is_dense(potential: Potential) -> bool:
    """Tell whether it is a table without hard zeros, by one pass over it."""
    values = potential.log_values if isinstance(potential, Table) else None
    return values is not None and values.numel() > 0 and bool(values.amin() > -math.inf)


def _turned(chain: Recognised, links: Tensor) -> Recognised:
    """The same chain from its other end."""
    links = links.mT if links.ndim == 2 else links.mT.flip(-3)
    return replace(
        chain, unary=chain.unary.flip(-2), transition=links, numbers=chain.numbers.flip(-1)
    )


def _cut(chain: Recognised) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
    """The chain as segments; None where its states are no ages of labels."""
    unary, links = chain.unary, chain.transition
    assert isinstance(links, Tensor)
    states = unary.shape[-1]
    allowed = (links > -math.inf).reshape(-1, states, states).any(0)
    starts = (unary[..., 0, :] > -math.inf).reshape(-1, states).any(0) | (allowed.sum(0) > 1)
    ages = _ages(allowed & ~starts, starts)
    if ages is None:
        return None
    durations = len(ages)
    known, ages = ages >= 0, ages.clamp(min=0)
    first = ages[0]
    parted = _parted(links[..., ages.unsqueeze(-1), first].masked_fill(
        ~known.unsqueeze(-1), -math.inf
    ))  # fmt: skip
    if parted is None:
        return None
    ends, transition = parted
    onward = links[..., ages[:-1], ages[1:]]
    onward = onward if links.ndim > 2 else onward.unsqueeze(-3)
    here = unary[..., ages].masked_fill(~known, -math.inf)
    # Along each segment, from its start: the states passed, and the steps between them.
    runs = [here[..., 0, :]]
    for age in range(1, durations):
        before = runs[-1][..., :-1, :] + onward[..., age - 1, :]
        runs.append(pad(before, (0, 0, 1, 0), value=-math.inf) + here[..., age, :])
    ends = ends if links.ndim > 2 else ends.unsqueeze(-3).expand(unary.shape[-2] - 1, -1, -1)
    segments = torch.stack(runs, -2) + pad(ends, (0, 0, 0, 0, 0, 1))
    place = torch.empty(states, dtype=torch.long, device=ages.device)
    place[ages[known]] = known.flatten().nonzero().flatten()
    return segments, transition, chain.numbers, place


def _ages(onward: Tensor, starts: Tensor) -> Tensor | None:
    """(D, N) the state of each age and label, -1 for none; None where there are no such."""
    if bool((onward.sum(0) > 1).any() | (onward.sum(1) > 1).any()):
        return None
    following = torch.where(onward.any(1), onward.long().argmax(1), -1)
    rows = [starts.nonzero().flatten()]
    if 2 * len(rows[0]) > len(starts):
        return None  # a chain is as quick
    while bool((rows[-1] >= 0).any()):
        rows.append(torch.where(rows[-1] >= 0, following[rows[-1]], -1))
    ages = torch.stack(rows[:-1])
    return ages if int((ages >= 0).sum()) == len(starts) else None


def _parted(cuts: Tensor) -> tuple[Tensor, Tensor] | None:
    """Log-values (..., D, N, N) as sums of two, (..., D, N) and (..., N, N), if they are that."""
    least = torch.zeros((), dtype=cuts.dtype, device=cuts.device)
    some = (cuts > -math.inf).any(-1)
    row = some.long().argmax(-2, keepdim=True).unsqueeze(-1)
    links = cuts.take_along_dim(row, -3).squeeze(-3)
    column = (links > -math.inf).long().argmax(-1, keepdim=True)
    top = links.take_along_dim(column, -1).squeeze(-1)
    ends = cuts.take_along_dim(column.unsqueeze(-3), -1).squeeze(-1)
    ends = ends - torch.where(top > -math.inf, top, least).unsqueeze(-2)
    both = ends.unsqueeze(-1) + links.unsqueeze(-3)
    scale = cuts.abs() + ends.abs().unsqueeze(-1) + links.abs().unsqueeze(-3)
    near = (both - cuts).abs() <= _ROUNDINGS * torch.finfo(cuts.dtype).eps * scale
    fits = (both == cuts) | (near & scale.isfinite())
    return (ends, links) if bool(fits.all()) else None
