"""Kernels: the messages and beliefs of factors of one kind and shape."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph._core.cache import cached_property
from rdpgraph.engines.loopy.arithmetic import (
    Contract,
    log_sum,
    maximum,
    product,
    share,
    take,
)
from rdpgraph.engines.loopy.edges import Port
from rdpgraph.engines.reduction.network import Group
from rdpgraph.logspace.logmatrix import finite, safe_log, soft_sum

Ports: TypeAlias = Sequence[int] | None
"""Numbers of ports; None: all."""


class MessageKernel(ABC):
    """Factors of one kind and shape; messages are logs (B, K, n), the factors of a port last."""

    @property
    @abstractmethod
    def ports(self) -> tuple[Port, ...]:
        """The slots that take part, with the active variables at them."""

    @property
    @abstractmethod
    def count(self) -> int:
        """The number of factors."""

    @property
    @abstractmethod
    def bounded(self) -> bool:
        """True if outgoing messages cannot grow without bound."""

    @property
    @abstractmethod
    def records(self) -> bool:
        """True if a gradient would reach the potential."""

    @abstractmethod
    def items(self, chosen: slice | Tensor) -> "MessageKernel":
        """Return the kernel of some batch items, given as a range or by their numbers."""

    @property
    def entries(self) -> int:
        """The number of table entries of a batch item that are not shared with others."""
        return 0

    @property
    def operations(self) -> float:
        """The approximate operations of a sweep for a batch item; 0 if `messages` counts them."""
        return 0.0

    @property
    def divisible(self) -> bool:
        """True if the kernel of n batch items costs about n times that of one."""
        return True

    @abstractmethod
    def messages(
        self, incoming: Sequence[Tensor], *, rows: Tensor | None = None, wanted: Ports = None
    ) -> list[Tensor | None]:
        """Return the outgoing messages.

        Args:
            incoming: for each port (B, K, n) log-messages whose maximum over states is 0 or -inf.
            rows: the factors asked for, where every port holds all factors; None: all of them.
            wanted: the ports asked for.

        Returns:
            For each port the (B, K, n) soft maxima over the other slots, up to a constant for each
            factor; None for ports that are not wanted.
        """

    def log_odds(self) -> Tensor | None:
        """Return the (b, F) log-odds that the parity of binary ports is even.

        Returns None if the factors depend on more than the parity.
        """
        return None

    @abstractmethod
    def log_partitions(self, incoming: Sequence[Tensor]) -> Tensor:
        """Return the (B, F) logs of the sums of factors' beliefs, which messages do not hold."""

    @abstractmethod
    def beliefs(self, incoming: Sequence[Tensor]) -> Tensor:
        """Return (B, F, *sizes of the ports' slots) probabilities of factors' configurations."""


class FactorKernel(MessageKernel):
    """A kernel whose ports are variables of the model."""

    @abstractmethod
    def log_values_at(self, states: Tensor) -> Tensor:
        """Return (B, F) log-values divided by counting numbers, at (B, V) states of variables."""

    @abstractmethod
    def expected_log_value(self, incoming: Sequence[Tensor]) -> Tensor:
        """Return the (B,) sums of the expected log-values under the factors' beliefs."""


@dataclass(frozen=True, eq=False)
class TableKernel(FactorKernel):
    """Dense tables, multiplied as scaled values, and again in logs where these underflow."""

    group: Group  # the factors
    weights: Tensor | None  # (F,) counting numbers; None: all one
    temperature: float  # 0 for maxima

    @cached_property
    def ports(self) -> tuple[Port, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        sizes = self.group.log_tables.shape[2:]
        return tuple(
            Port(slot, None, self.group.scopes[:, slot], size) for slot, size in enumerate(sizes)
        )

    @property
    def count(self) -> int:
        return len(self.group.scopes)

    @property
    def operations(self) -> float:
        shape = self.group.log_tables.shape[2:]
        each = tuning.MESSAGE_ENTRY * sum(shape) + len(shape) * math.prod(shape)
        return tuning.MESSAGES_BEGIN + each * self.count

    @property
    def swept_operations(self) -> float:
        """The approximate operations of a sweep of maxima for a batch item, by compiled code."""
        shape = self.group.log_tables.shape[2:]
        return tuning.SWEPT_CELL * len(shape) * math.prod(shape) * self.count

    @property
    def records(self) -> bool:
        return self.group.log_tables.requires_grad

    def log_odds(self) -> Tensor | None:
        tables = self.group.each().detach()
        if {*tables.shape[2:]} != {2}:
            return None
        places = torch.arange(2 ** len(self.ports), device=tables.device)
        odd = sum((places >> slot & 1 for slot in range(len(self.ports))), places * 0) % 2 == 1
        flat = tables.flatten(2)
        even, other = flat[..., :1], flat[..., 1:2]
        alike = torch.where(odd, other, even) == flat
        return (even - other)[..., 0].expand(-1, self.count) if bool(alike.all()) else None

    @cached_property
    def logs(self) -> Tensor:
        """The (b, *sizes, f) log-values, divided by counting number and temperature."""
        with torch.enable_grad():  # sweeps without gradients share it with one that records them
            logs = self.group.each()
            if self.weights is not None:
                weights = self.weights.to(logs).reshape(1, -1, *(1,) * (logs.ndim - 2))
                logs = logs / weights
            if self.temperature not in (0.0, 1.0):
                logs = logs / self.temperature
            return logs.movedim(1, -1).contiguous()

    @cached_property
    def _peak(self) -> Tensor:
        """The (b, f) largest log-value of each factor; 0 if all are -inf."""
        return finite(self.logs.detach().flatten(1, -2).amax(1))

    @cached_property
    def scaled(self) -> Tensor:
        """(b, *sizes, f) values whose maximum is one, for sums; log-values, for maxima."""
        shift = self._peak.reshape(-1, *(1,) * (self.logs.ndim - 2), self._peak.shape[-1])
        with torch.enable_grad():
            logs = self.logs - shift
            if self.temperature == 0:
                return logs
            return logs.exp() if logs.requires_grad else logs.exp_()

    @cached_property
    def bounded(self) -> bool:  # pyright: ignore[reportIncompatibleMethodOverride]
        """True if no product can leave the range of the floating type: none is checked."""
        tables, most = self.group.log_tables.detach(), -math.log(self._least)
        if not tables.numel():
            return True
        low, high = self.group.extent
        if self.weights is not None:
            tables = self.logs.detach().movedim(-1, 1)
            low, high = map(float, tables.aminmax())
        elif self.temperature:
            most *= self.temperature
        if high - low < most:
            return True
        flat = tables.flatten(2)
        return low > -math.inf and bool((flat.amax(2) - flat.amin(2)).amax() < most)

    @cached_property
    def _least(self) -> float:
        """Products above this number have lost nothing to underflow."""
        info = torch.finfo(self.group.log_tables.dtype)
        return info.tiny / info.eps

    def log_values_at(self, states: Tensor) -> Tensor:
        logs, device = self.logs, states.device
        chosen = states[:, self.group.scopes.to(device)]
        factors = torch.arange(self.count if logs.shape[-1] > 1 else 1, device=device)
        items = torch.arange(len(logs), device=device).unsqueeze(1)
        return logs[(items, *chosen.unbind(2), factors)]

    def log_partitions(self, incoming: Sequence[Tensor]) -> Tensor:
        first = self.messages(incoming, wanted=(0,))[0]
        assert first is not None
        total = soft_sum(first + incoming[0], 1, self.temperature)
        return total + self._peak * (self.temperature or 1.0)

    def messages(
        self, incoming: Sequence[Tensor], *, rows: Tensor | None = None, wanted: Ports = None
    ) -> list[Tensor | None]:
        """Return products of scaled values, repaired in logs; at temperature 0, sums of logs."""
        table = self.scaled
        if rows is not None and table.shape[-1] > 1:
            table = _columns(table, rows)
        scale = self.temperature
        if scale == 0:
            return _exchanged(table, list(incoming), maximum, wanted)
        vectors = [(part if scale == 1 else part / scale).exp() for part in incoming]
        products = _exchanged(table, vectors, product, wanted)
        logs = [None if part is None else safe_log(part) for part in products]
        if not self.bounded:
            logs = self._repaired(incoming, rows, wanted, products, logs)
        return [part if scale == 1 or part is None else part * scale for part in logs]

    def _repaired(
        self, incoming: Sequence[Tensor], rows: Tensor | None, wanted: Ports,
        products: list[Tensor | None], logs: list[Tensor | None],
    ) -> list[Tensor | None]:  # fmt: skip
        """Return log-messages, computed again in logs for factors that underflowed."""
        low = [(part.detach() < self._least).any(1).any(0) for part in products if part is not None]
        bad = torch.stack(low).any(0).nonzero().flatten()
        if not len(bad):
            return logs
        table, shift = self.logs, self._peak
        if table.shape[-1] > 1:
            columns = bad if rows is None else rows[bad]
            table, shift = _columns(table, columns), shift[:, columns]
        table = table - shift.reshape(-1, *(1,) * (table.ndim - 2), shift.shape[-1])
        scale = self.temperature
        again = _exchanged(table, [take(part, bad) / scale for part in incoming], log_sum, wanted)
        return [
            None if part is None or new is None else part.index_copy(2, bad, new)
            for part, new in zip(logs, again, strict=True)
        ]

    def beliefs(self, incoming: Sequence[Tensor]) -> Tensor:
        """Return the softmax of log-values plus messages, uniform over maxima at temperature 0."""
        logs = self.logs
        scale = self.temperature
        for slot, part in enumerate(incoming):
            shape = [1] * len(incoming)
            shape[slot] = part.shape[1]
            logs = logs + (part / (scale or 1.0)).reshape(part.shape[0], *shape, part.shape[2])
        values = share(logs.flatten(1, -2), 0.0 if scale == 0 else 1.0).reshape(logs.shape)
        return values.movedim(-1, 1)

    def expected_log_value(self, incoming: Sequence[Tensor]) -> Tensor:
        belief = self.beliefs(incoming)
        logs = torch.where(belief > 0, self.group.each(), 0.0)
        return (belief * logs).flatten(1).sum(1)

    @property
    def entries(self) -> int:
        return self.group.log_tables[0].numel() if len(self.group.log_tables) > 1 else 0

    def items(self, chosen: slice | Tensor) -> "TableKernel":
        """Return the kernel of some batch items, with their part of the tables prepared so far.

        What is not prepared yet is prepared for them alone, and freed with them: allocations beyond
        some 32 MB are new memory each time, which costs more than the arithmetic. Where gradients
        are recorded, all is prepared, because it is needed anyway.
        """
        tables = self.group.log_tables
        if len(tables) == 1:
            return self
        kernel = replace(self, group=replace(self.group, log_tables=tables[chosen]))
        for name in ("logs", "_peak", "scaled"):
            if self.records or name in vars(self):
                vars(kernel)[name] = getattr(self, name)[chosen]
        if vars(self).get("bounded"):
            vars(kernel)["bounded"] = True
        return kernel


def _columns(table: Tensor, rows: Tensor) -> Tensor:
    """Select the (b, *sizes, n) tables of some factors of (b, *sizes, F)."""
    flat = table.reshape(-1, table.shape[-1]).index_select(1, rows)
    return flat.reshape(*table.shape[:-1], len(rows))


def _exchanged(
    table: Tensor, vectors: list[Tensor], contract: Contract, wanted: Ports
) -> list[Tensor | None]:
    """Contract a table (b, *sizes, f) for each slot with the vectors (B, size, F) of the others.

    Slots are divided in halves recursively, so that a table is read twice for any number of slots,
    and nothing is divided out.
    """
    count = len(vectors)
    if count == 1:
        return [table]
    # The table as a matrix between two halves of the slots.
    sizes = table.shape[1:-1]
    half = _balanced(sizes)
    left, right = math.prod(sizes[:half]), math.prod(sizes[half:])
    matrix = table.reshape(table.shape[0], left, right, table.shape[-1])
    wanted = range(count) if wanted is None else wanted
    one, other = (vectors[:half], sizes[:half], 0), (vectors[half:], sizes[half:], half)
    sides = (matrix, one, other[0]), (matrix.transpose(1, 2), other, one[0])
    results: list[Tensor | None] = []
    for table, (kept, dims, first), others in sides:
        asked = [w - first for w in wanted if first <= w < first + len(kept)]
        if not asked:
            results += [None] * len(kept)
            continue
        # One half is contracted away once, for all slots of the other.
        part = contract(table, _joint(others, contract))
        part = part.reshape(part.shape[0], *dims, part.shape[-1])
        results += _exchanged(part, kept, contract, asked)
    return results


def _balanced(sizes: Sequence[int]) -> int:
    """Return the position that splits the sizes into two products that are as equal as possible."""
    total = math.prod(sizes)
    cuts = range(1, len(sizes))
    return min(cuts, key=lambda cut: max(left := math.prod(sizes[:cut]), total // left))


def _joint(vectors: Sequence[Tensor], contract: Contract) -> Tensor:
    """Return the (B, product of sizes, F) products of all combinations of the vectors' entries."""
    joint = vectors[0]
    for vector in vectors[1:]:
        left, right = joint.unsqueeze(2), vector.unsqueeze(1)
        pairs = left * right if contract is product else left + right
        joint = pairs.flatten(1, 2)
    return joint
