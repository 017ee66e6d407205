"""From the goal downwards: what the best derivation through each entry is worth."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rdpgraph.logspace.logmatrix import soft_scatter
from rdpgraph.structures.recursion import machine
from rdpgraph.structures.recursion.reader import Reader
from rdpgraph.structures.recursion.replay import whole
from rdpgraph.structures.recursion.steps import Leaf
from rdpgraph.structures.recursion.tape import Tape
from rdpgraph.structures.recursion.up import up
from rdpgraph.structures.recursion.values import Value, View

_MOST = 16  # parts of an entry that wait to be compared at once


@torch.no_grad()
def max_marginals(tape: Tape) -> Tensor:
    """(*lead, *sites, K) the best score with each state of each site; -inf: none."""
    done = machine.values_of(tape, best=True)
    if done is not None:
        return done.most().to(tape.unary).reshape(tape.unary.shape)
    tape = whole(tape)
    return of_sites(tape, down(tape, up(tape, 0.0)))


@torch.no_grad()
def down(tape: Tape, reader: Reader, *, scores: bool = True) -> list[Tensor]:
    """(B, P, K) of every step: the best of the derivations through each entry.

    An entry has the share of its parent that its alternative has in the parent's value: the
    log-value of the alternative less that of the parent, which is 0 at most.

    Args:
        tape: laid out.
        reader: the values, maxima.
        scores: whether what steps add is in the values.
    """
    batch = tape.batch
    given = _Given([[] for _ in reader.values])
    given.parts[-1] = [reader.values[-1].expand(batch, 1, 1)]
    result = list(reader.values)
    for number in range(len(tape.steps) - 1, -1, -1):
        step, own = tape.steps[number], reader.value(number)
        above = given.all_of(number)
        if above is None:
            above = own.new_full((batch, *own.shape[1:]), -math.inf)
        # What is not kept on the way up is not kept here.
        result[number] = above if number not in reader.remade else above[:, :0].clone()
        if isinstance(step, Leaf):
            # As wide as the potentials are: those of long sequences are many.
            result[number] = above.to(tape.unary.dtype)
        else:
            for view, part in step.shares(reader, own, above, scores=scores):
                given.give(view, part)
    return result


@dataclass(frozen=True, eq=False)
class _Given:
    """What has been given to the entries of values that are still to come.

    Attributes:
        parts: of each value, (B, P, K) each.
        pools: what the values of a pool were given together, by the first of them.
        slices: of each value its own of that.
    """

    parts: list[list[Tensor]]
    pools: dict[int, tuple[tuple[Value, ...], Tensor]] = field(
        default_factory=dict[int, tuple[tuple[Value, ...], Tensor]]
    )
    slices: dict[int, list[Tensor]] = field(default_factory=dict[int, list[Tensor]])

    def all_of(self, number: int) -> Tensor | None:
        """(B, P, K) of one value; None: nothing."""
        parts = [*self.parts[number], *self.slices.get(number, ())]
        self.parts[number] = []
        return _together(parts) if parts else None

    def give(self, view: View, part: Tensor) -> None:
        """Add (B, M, P, K) to the entries that a view reads."""
        sizes = view.ways, view.places, view.width
        if part.shape[1:] != sizes:
            for dim, size in enumerate(sizes, 1):
                if part.shape[dim] > size:
                    part = part.amax(dim, keepdim=True)
        if view.index is None:
            flat = part.squeeze(2 if view.across else 1)
            places = [value.places for value in view.pool]
            parts = [flat] if view.whole else flat.split_with_sizes(places, 1)
            for value, own in zip(view.pool, parts, strict=True):
                self._add(value, own)
            return
        count = view.size + 1
        flat = part.flatten(1, 2)
        if view.index.ndim == 2:
            rows = flat.transpose(0, 1)
            sums = soft_scatter(rows, view.index.flatten(), count, 0.0).transpose(0, 1)
        else:
            item = torch.arange(len(flat), device=flat.device).unsqueeze(1) * count
            groups = (item + view.index.flatten(1)).flatten()
            sums = soft_scatter(flat.flatten(0, 1), groups, len(flat) * count, 0.0)
            sums = sums.unflatten(0, (len(flat), count))
        self._add_to_pool(view.pool, sums[:, :-1])

    def _add_to_pool(self, pool: tuple[Value, ...], sums: Tensor) -> None:
        """Add to a pool that shrinks by one value at a time; to others value by value."""
        known, total = self.pools.get(pool[0].number, ((), None))
        if total is not None and known[: len(pool)] == pool:
            own = total[:, : sums.shape[1]]
            torch.maximum(own, sums, out=own)
            return
        for value, part in zip(pool, sums.split([v.places for v in pool], 1), strict=True):
            if total is None:
                self.slices.setdefault(value.number, []).append(part)
            else:
                self._add(value, part)
        if total is None:
            self.pools[pool[0].number] = pool, sums

    def _add(self, value: Value, part: Tensor) -> None:
        parts = self.parts[value.number]
        parts.append(part)
        if len(parts) == _MOST:
            parts[:] = [_together(parts)]


def _together(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.stack(parts).amax(0)


def of_sites(tape: Tape, values: Sequence[Tensor]) -> Tensor:
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
    rows = torch.cat([part for _, part in read], 1)
    if bool((numbers.bincount() <= 1).all()):
        flat = tape.unary.new_full((tape.batch, sites, width), -math.inf)
        flat.index_copy_(1, numbers, rows.to(flat))
    else:
        rows = rows.transpose(0, 1)
        flat = soft_scatter(rows, numbers, sites, 0.0).transpose(0, 1).to(tape.unary)
    return flat.reshape(*tape.lead, *tape.site_shape, width)
