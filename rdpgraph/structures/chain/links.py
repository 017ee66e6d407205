"""Masks of the labels of steps, and the transitions between some of them."""

import math
from dataclasses import dataclass

from torch import Tensor

from rdpgraph._cache import cached_property
from rdpgraph.model.masks import StructureMasks
from rdpgraph.model.potential import Potential
from rdpgraph.model.structure import Structure
from rdpgraph.model.table import Table
from rdpgraph.structures.chain.tensors import flattened, table_of


@dataclass(frozen=True, eq=False)
class Transitions:
    """Log-values of the transitions of a chain, looked up in doubles, without gradients.

    Args:
        given: (N, N), (*batch, T - 1, N, N), or a potential of such a shape.
        batch_shape: of the chain.
    """

    given: Tensor | Potential
    batch_shape: tuple[int, ...]

    @cached_property
    def table(self) -> Potential | Tensor:
        """A potential that all steps share, or (1 or B, T - 1, N, N) log-values."""
        given = self.given
        if isinstance(given, Potential) and len(given.shape) == 2:
            return given
        table = table_of(given).detach()
        return Table.from_logs(table) if table.ndim == 2 else flattened(table, self.batch_shape)

    def __call__(self, item: Tensor, step: Tensor, before: Tensor, after: Tensor) -> Tensor:
        """(n, A, B) of states (n, A) at steps (n,) of items, and states (n, B) at the next."""
        table = self.table
        if isinstance(table, Potential):
            return table.evaluate([before, after]).double()
        item = item % len(table)
        pair = before.unsqueeze(2), after.unsqueeze(1)
        return table[item[:, None, None], step[:, None, None], *pair].double()


@dataclass(frozen=True, eq=False)
class LabelMasks(StructureMasks):
    """Questions of the steps of a sequence and the labels that they may have.

    Args:
        model: of the sequence.
        transition: its own.
        lengths: its own.
    """

    model: Structure
    transition: Tensor | Potential
    lengths: Tensor | None

    @property
    def questions(self) -> tuple[int, ...]:
        """(T, N): whether each step has each label."""
        return self.sites[0], self.sites[-1]

    @cached_property
    def ends(self) -> Tensor:
        """(B,) the lengths."""
        return self.flat_lengths(self.lengths, self.sites[0])

    @cached_property
    def values(self) -> Transitions:
        """The log-values of transitions."""
        return Transitions(self.transition, self.batch_shape)

    def left(self, possible: Tensor, required: Tensor, forbidden: Tensor) -> Tensor:
        """(I, T, N) bool: of the labels that are possible, (B, T, N), those that a mask leaves."""
        lead = tuple(required.shape[:-2])
        shape = math.prod(lead), *self.questions
        required = required.reshape(shape)
        # A step has one label: of two that are required none is left.
        held = required.sum(2, keepdim=True)
        kept = possible.repeat(self.chains(lead), 1, 1) & ~forbidden.reshape(shape)
        return kept & ((required & (held == 1)) | (held == 0))
