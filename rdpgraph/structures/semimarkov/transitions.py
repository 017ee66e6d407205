"""The transition between segments: one for all positions, or one for each.

It is a table (N, N), or tables (1 or B, T - 1, N, N), of which number t lies between a segment
that ends at position t and one that starts at t + 1.
"""

from collections.abc import Sequence

from torch import Tensor

from rdpgraph.model.potential import Potential
from rdpgraph.model.table import Table
from rdpgraph.structures.semimarkov.coupling import Coupling


def after(transition: Tensor, place: int) -> Tensor:
    """(N, N), or (B, N, N) where items differ: the table between a position and the next."""
    if transition.ndim == 2:
        return transition
    return transition[0, place] if len(transition) == 1 else transition[:, place]


def tables(transition: Tensor, steps: int) -> Sequence[Coupling]:
    """The T - 1 tables, prepared for products."""
    if transition.ndim == 2:
        return [Coupling.of(transition)] * (steps - 1)
    return [Coupling.of(after(transition, place)) for place in range(steps - 1)]


def potential_after(potential: Potential, place: int) -> Potential:
    """The potential between a position and the next, on the labels of each item."""
    if isinstance(potential, Table) and len(potential.shape) > 2:
        return Table(after(potential.log_values, place))
    return potential
