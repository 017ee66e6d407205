"""Products of a few rows with a tall factor, in panels that fit a cache."""

from torch import Tensor

from rdpgraph.structures.chain.factors import product

_PANEL = 1024
_MOST_ROWS = 64


def to_ranks(state: Tensor, factor: Tensor) -> Tensor:
    """(B, N) times (N, r) or (1 or B, N, r): (B, r)."""
    count = _panels(state, factor)
    if not count:
        return product(state, factor)
    main = count * _PANEL
    rows = state[:, :main].unflatten(1, (count, _PANEL)).transpose(0, 1)
    total = (rows @ factor[:main].unflatten(0, (count, _PANEL))).sum(0)
    return total if main == len(factor) else total + state[:, main:] @ factor[main:]


def to_states(rank: Tensor, factor: Tensor) -> Tensor:
    """(B, r) times the transpose of (N, r) or (1 or B, N, r): (B, N), a tensor of its own."""
    count = _panels(rank, factor)
    if not count:
        return product(rank, factor.mT)
    main = count * _PANEL
    panels = factor[:main].unflatten(0, (count, _PANEL))
    products = rank.new_empty(len(rank), len(factor))
    parts = rank.expand(count, *rank.shape) @ panels.mT
    products[:, :main].unflatten(1, (count, _PANEL)).copy_(parts.transpose(0, 1))
    if main < len(factor):
        products[:, main:] = rank @ factor[main:].mT
    return products


def _panels(rows: Tensor, factor: Tensor) -> int:
    """How many, 0 where one product of all is as quick."""
    tall = factor.ndim == 2 and rows.device.type == "cpu" and len(rows) <= _MOST_ROWS
    return len(factor) // _PANEL if tall and len(factor) >= 8 * _PANEL else 0
