"""The interface of a potential: the log-values of a factor, on demand."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rdpgraph.errors import ModelError


@dataclass(frozen=True)
class Decomposition:
    """A potential as a sum over one auxiliary variable of products of small tables.

    ``value(x) = sum_c prod_i exp(tables[i][c, x_i])``, and at most one c contributes to any x,
    so that it holds with a maximum in place of the sum too.

    Attributes:
        log_values: (*lead, C), a log-value for every state of the auxiliary variable.
        links: for every slot a (C, k) log-table.
    """

    log_values: Tensor
    links: tuple[Tensor, ...]


class Potential(ABC):
    """The log-values of a factor (nats); -inf marks an impossible configuration.

    A new kind of potential says its `shape` and how to `evaluate` itself; `rdpgraph.testing.
    check_potential` then checks it. Everything else has a default. Leading dims before the slots
    are batch dims, or one entry per factor of a `FactorBlock`; they broadcast.
    """

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """Leading dims, then the number of states of each slot."""

    @abstractmethod
    def evaluate(self, states: Sequence[Tensor]) -> Tensor:
        """The log-values on a grid of states.

        Args:
            states: per slot an int64 tensor (*lead, m_i): the states asked for, in any order and
                with repeats. The leads broadcast with each other and with the potential's own.

        Returns:
            (*lead, m_1, ..., m_n) log-values, differentiable in the potential's parameters.
        """

    def table(self, arity: int) -> Tensor:
        """All log-values: (*lead, k_1, ..., k_n)."""
        return self.evaluate([torch.arange(k, device=self.device) for k in self.slots(arity)])

    def slots(self, arity: int) -> tuple[int, ...]:
        """The number of states of each of the last ``arity`` dims."""
        return self.shape[len(self.shape) - arity :]

    def lead(self, arity: int) -> tuple[int, ...]:
        """The dims before the slots."""
        return self.shape[: len(self.shape) - arity]

    @property
    def dtype(self) -> torch.dtype:
        """The floating type of the log-values."""
        return torch.get_default_dtype()

    @property
    def device(self) -> torch.device:
        """Where the log-values live."""
        return torch.device("cpu")

    def select(self, block: tuple[int, ...], rows: Tensor | None, arity: int) -> "Potential":
        """The potential of some factors of a block.

        Args:
            block: the block's dims; the last ``len(block)`` leading dims broadcast to them.
            rows: (F,) positions in the flattened block, or None for all of them.
            arity: the number of slots.

        Returns:
            A potential with (*batch, F) leading dims, or (*batch, 1) if all share one.
        """
        if self.lead(arity):
            raise ModelError(
                f"{type(self).__name__} has leading dims {self.lead(arity)}; to be used in a "
                "FactorBlock it must implement select(block, rows, arity)."
            )
        return self

    def decompose(self) -> Decomposition | None:
        """An exact rewrite by an auxiliary variable, where a dense table would be large."""
        return None


def select_lead(
    values: Tensor, *, trailing: int, block: tuple[int, ...], rows: Tensor | None
) -> Tensor:
    """Flatten the block dims of a tensor and pick rows of them.

    ``values`` is (*batch, *block or broadcastable to it, *trailing); the result is
    (*batch, F, *trailing), or (*batch, 1, *trailing) if every factor shares one entry.
    """
    ends = values.shape[values.ndim - trailing :]
    lead = values.shape[: values.ndim - trailing]
    missing = max(len(block) - len(lead), 0)
    own = (1,) * missing + tuple(lead[max(len(lead) - len(block), 0) :])
    batch = tuple(lead[: max(len(lead) - len(block), 0)])
    shared = all(size == 1 for size in own)
    kept = own if shared else block
    flat = values.reshape([*batch, *own, *ends]).expand([*batch, *kept, *ends])
    flat = flat.reshape([*batch, math.prod(kept), *ends])
    if rows is None or flat.shape[len(batch)] == 1:
        return flat
    return flat.index_select(len(batch), rows.to(flat.device))
