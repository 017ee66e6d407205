"""Checks of lengths and of tables that are written out, with errors in one line."""

import math

from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph._core.numbers import outside
from rdpgraph.errors import BudgetError, ModelError
from rdpgraph.interface.structure import Structure
from rdpgraph.model.potentials.potential import WHOLE, Potential
from rdpgraph.model.potentials.table import Table


def lengths_within(
    owner: str, name: str, lengths: Tensor, batch: tuple[int, ...], most: int
) -> Tensor:
    """Lengths (*batch,) of 0 to ``most`` as int64."""
    whole = lengths.dtype in WHOLE or not lengths.numel()
    if not whole or tuple(lengths.shape) != batch:
        raise ModelError(
            f"{owner} needs integer {name} of shape {batch}, one for each item; got "
            f"{lengths.dtype} of shape {tuple(lengths.shape)}."
        )
    wrong = outside(lengths, 0, most)
    if wrong is not None:
        raise ModelError(f"{owner} needs {name} 0 to {most}; got {wrong}.")
    return lengths.long()


def settle_lengths(owner: Structure, **most: int) -> None:
    """Make lengths (*batch,) in fields of a structure int64 on its device; ``most`` bounds each."""
    for name, total in most.items():
        lengths: Tensor | None = getattr(owner, name)
        if lengths is not None:
            given = lengths_within(type(owner).__name__, name, lengths, owner.batch_shape, total)
            object.__setattr__(owner, name, given.to(owner.unary.device))


def written_out(owner: str, name: str, potential: Potential, dims: int) -> Tensor:
    """The table of a potential; `BudgetError` above `tuning.MOST_TABULATED` entries."""
    entries = math.prod(potential.shape)
    if entries > tuning.MOST_TABULATED and not isinstance(potential, Table):
        raise BudgetError(
            f"{owner}'s {name}, a {type(potential).__name__}, has {entries:,} entries and at "
            f"most {tuning.MOST_TABULATED:,} are written out; ask a question that needs no table, "
            "or give infer an estimator that keeps a few states."
        )
    return potential.table(dims)
