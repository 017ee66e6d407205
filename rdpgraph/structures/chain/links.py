"""The transitions between some states of some neighbouring steps, as masked chains read them."""

from dataclasses import dataclass

from torch import Tensor

from rdpgraph._cache import cached_property
from rdpgraph.model.potential import Potential
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
        return Table(table) if table.ndim == 2 else flattened(table, self.batch_shape)

    def __call__(self, item: Tensor, step: Tensor, before: Tensor, after: Tensor) -> Tensor:
        """(n, A, B) of states (n, A) at steps (n,) of items, and states (n, B) at the next."""
        table = self.table
        if isinstance(table, Potential):
            return table.evaluate([before, after]).double()
        item = item % len(table)
        pair = before.unsqueeze(2), after.unsqueeze(1)
        return table[item[:, None, None], step[:, None, None], *pair].double()
