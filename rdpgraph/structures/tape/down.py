"""From the goal downwards: what all derivations through each entry are worth."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from rdpgraph.model.semiring import soft_scatter
from rdpgraph.structures.tape.steps import Leaf
from rdpgraph.structures.tape.tape import Tape
from rdpgraph.structures.tape.values import Reader, View, soft

_MOST = 16  # parts of an entry that wait to be summed at once


@torch.no_grad()
def down(
    tape: Tape, reader: Reader, temperature: float = 1.0, *, scores: bool = True
) -> list[Tensor]:
    """(B, P, K) of every step: the log-sum, or the best, of the derivations through each entry.

    An entry has the share of its parent that its alternative has in the parent's value: the
    log-value of the alternative less that of the parent, which is 0 at most.

    Args:
        tape: laid out.
        reader: the values at that temperature.
        temperature: 1.0 or 0.0.
        scores: whether what steps add is in the values.
    """
    batch = tape.batch
    given: list[list[Tensor]] = [[] for _ in reader.values]
    given[-1] = [reader.values[-1].expand(batch, 1, 1)]
    for number in range(len(tape.steps) - 1, -1, -1):
        step, own = tape.steps[number], reader.values[number]
        if not given[number]:
            given[number] = [own.new_full((batch, *own.shape[1:]), -math.inf)]
        given[number] = [_together(given[number], temperature)]
        if not isinstance(step, Leaf):
            above = given[number][0]
            for view, part in step.shares(reader, own, above, temperature, scores=scores):
                _give(given, view, part, temperature)
    return [above for (above,) in given]


def _together(parts: list[Tensor], temperature: float) -> Tensor:
    return parts[0] if len(parts) == 1 else soft(torch.stack(parts), 0, temperature)


def _give(given: list[list[Tensor]], view: View, part: Tensor, temperature: float) -> None:
    """Add (B, M, P, K) to the entries that a view reads."""
    for dim, size in ((1, view.ways), (2, view.places), (3, view.width)):
        if part.shape[dim] > size:
            part = soft(part, dim, temperature).unsqueeze(dim)
    if view.index is None:
        _add(given[view.pool[0].number], part.squeeze(1), temperature)
        return
    count = view.size + 1
    flat = part.flatten(1, 2)
    if view.index.ndim == 2:
        rows = flat.transpose(0, 1)
        sums = soft_scatter(rows, view.index.flatten(), count, temperature).transpose(0, 1)
    else:
        item = torch.arange(len(flat), device=flat.device).unsqueeze(1) * count
        groups = (item + view.index.flatten(1)).flatten()
        sums = soft_scatter(flat.flatten(0, 1), groups, len(flat) * count, temperature)
        sums = sums.unflatten(0, (len(flat), count))
    sizes = [*(value.places for value in view.pool), 1]
    for value, own in zip(view.pool, sums.split(sizes, 1), strict=False):
        _add(given[value.number], own, temperature)


def _add(parts: list[Tensor], part: Tensor, temperature: float) -> None:
    parts.append(part)
    if len(parts) == _MOST:
        parts[:] = [_together(parts, temperature)]


def of_sites(tape: Tape, values: Sequence[Tensor], temperature: float = 1.0) -> Tensor:
    """(*lead, *sites, K) what entries of the leaves say of the sites' states; -inf: nothing."""
    sites, width = math.prod(tape.site_shape), tape.unary.shape[-1]
    read = [
        (step.sites, values[number])
        for number, step in enumerate(tape.steps)
        if isinstance(step, Leaf) and step.sites is not None
    ]
    if not read:
        return torch.full_like(tape.unary, -math.inf)
    numbers = torch.cat([own for own, _ in read])
    rows = torch.cat([part for _, part in read], 1).transpose(0, 1)
    flat = soft_scatter(rows, numbers, sites, temperature).transpose(0, 1)
    return flat.reshape(*tape.lead, *tape.site_shape, width)
