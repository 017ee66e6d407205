"""Generalised arc consistency: states that no configuration allows are removed before planning."""

import torch
from torch import Tensor

from rdpgraph._core import tuning


class Possible:
    """Possible states of all variables: one flat mask.

    Attributes:
        starts: (V + 1,) first position of each variable's states.
        mask: (total states,) bool.
    """

    def __init__(self, sizes: Tensor) -> None:
        zero = torch.zeros(1, dtype=torch.long, device="cpu")
        self.starts = torch.cat([zero, sizes.cumsum(0)])
        with torch.inference_mode(mode=False):  # whose tensors count no writes
            self.mask = torch.ones(int(self.starts[-1]), dtype=torch.bool, device="cpu")
        self._left: tuple[int, Tensor] | None = None

    def left(self) -> Tensor:
        """Positions of the remaining states in the mask, in order."""
        version = self.mask._version
        if self._left is None or self._left[0] != version:
            self._left = version, self.mask.nonzero().flatten()
        return self._left[1]

    def places(self, numbers: Tensor, size: int) -> Tensor:
        """(*numbers, size) positions of the variables' states in the mask."""
        return self.starts[numbers].unsqueeze(-1) + torch.arange(size, device="cpu")

    def allow_only(self, number: int, states: Tensor) -> None:
        """Strike out all other states of a variable."""
        start, stop = int(self.starts[number]), int(self.starts[number + 1])
        keep = torch.zeros(stop - start, dtype=torch.bool, device="cpu")
        keep[states] = True
        self.mask[start:stop] &= keep

    def allow_these(self, numbers: Tensor, states: Tensor) -> None:
        """Strike out all states of variables (n,) except these, (batch, n)."""
        start, stop = self.starts[numbers], self.starts[numbers + 1]
        ends = torch.zeros(len(self.mask) + 1, dtype=torch.long, device="cpu")
        ends.index_add_(0, start, torch.ones_like(start))
        ends.index_add_(0, stop, -torch.ones_like(stop))
        keep = ends[:-1].cumsum(0) == 0
        keep[(start + states).reshape(-1)] = True
        self.mask &= keep

    def counts(self) -> Tensor:
        """(V,) number of remaining states of each variable."""
        total = torch.cat(
            [torch.zeros(1, dtype=torch.long, device="cpu"), self.mask.long().cumsum(0)]
        )
        return total[self.starts[1:]] - total[self.starts[:-1]]


def strike_impossible(
    possible: Possible, factors: list[tuple[Tensor, Tensor, Tensor | None]]
) -> None:
    """Strike out states that some factor rules out, until nothing changes.

    Exact: a struck state has probability zero. Hard zeros propagate from factor to factor as in a
    constraint network (Mackworth 1977, generalised to any arity); only factors next to a change are
    revised again.

    Args:
        possible: changed in place.
        factors: per block the scopes (F, n), the allowed configurations (U, *sizes) as bools, and
            the row of U that each factor has (None: U is 1 or F).
    """
    work = [_with_zeros(*factor) for factor in factors]
    sizes = possible.starts.diff()
    changed = torch.ones(len(possible.starts) - 1, dtype=torch.bool, device="cpu")
    while bool(changed.any()):
        struck, whole = torch.zeros_like(changed), possible.counts() == sizes
        for scopes, allowed, rows, supports in work:
            if not len(scopes):
                continue
            # A factor that allows every state strikes none while its variables keep all of theirs.
            idle = supports[rows] & whole[scopes].all(1)
            active = (changed[scopes].any(1) & ~idle).nonzero().flatten()
            if len(active):
                _revise(possible, scopes[active], allowed, rows[active], struck)
        changed = struck


def _with_zeros(
    scopes: Tensor, allowed: Tensor, rows: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The factors that rule something out, and (U,) whether some configuration has each state.

    Other factors never strike a state.
    """
    count = len(scopes)
    if rows is None:
        rows = torch.arange(count, device="cpu") if len(allowed) > 1 else scopes.new_zeros(count)
    chosen = (~allowed.flatten(1).all(1))[rows].nonzero().flatten()
    supports = torch.ones(len(allowed), dtype=torch.bool, device="cpu")
    for slot in range(1, allowed.ndim):
        others = [dim for dim in range(1, allowed.ndim) if dim != slot]
        supports &= (allowed.amax(others) if others else allowed).all(1)
    return scopes[chosen], allowed, rows[chosen], supports


def _revise(
    possible: Possible, scopes: Tensor, allowed: Tensor, rows: Tensor, struck: Tensor
) -> None:
    sizes = tuple(allowed.shape[1:])
    step = tuning.per_block(allowed[0].numel(), tuning.LARGE_BLOCK)
    for start in range(0, len(scopes), step):
        part = scopes[start : start + step]
        places = [possible.places(part[:, slot], size) for slot, size in enumerate(sizes)]
        joint = allowed[rows[start : start + step]]
        for slot, place in enumerate(places):
            dims = [len(part), *(1,) * len(sizes)]
            dims[slot + 1] = sizes[slot]
            joint = joint & possible.mask[place].reshape(dims)
        for slot, place in enumerate(places):
            others = [dim + 1 for dim in range(len(sizes)) if dim != slot]
            supported = joint.amax(others) if others else joint
            lost = possible.mask[place] & ~supported
            possible.mask[place[lost]] = False
            struck[part[lost.any(1), slot]] = True
