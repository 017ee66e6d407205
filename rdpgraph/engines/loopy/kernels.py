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


class Kernel(ABC):
    """Factors of one kind and shape; messages are logs (B, K, n), the n factors of a port last."""

    @property
    @abstractmethod
    def ports(self) -> tuple[Port, ...]:
        """Slots that take part, with the active variables at them."""

    @property
    @abstractmethod
    def count(self) -> int:
        """Number of factors."""

    @property
    @abstractmethod
    def bounded(self) -> bool:
        """True if outgoing messages cannot grow without bound."""

    @property
    @abstractmethod
    def records(self) -> bool:
        """True if a gradient would reach the potential."""

    @abstractmethod
    def items(self, chosen: slice | Tensor) -> "Kernel":
        """Kernel of some batch items: a range of them, or their numbers."""

    @property
    def entries(self) -> int:
        """Number of table entries that are not shared between batch items, per item."""
        return 0

    @property
    def operations(self) -> float:
        """Approximate operations of a sweep per batch item; 0 if `messages` counts them."""
        return 0.0

    @property
    def divisible(self) -> bool:
        """True if the kernel of n batch items costs about n times that of one."""
        return True

    @abstractmethod
    def messages(
        self, incoming: Sequence[Tensor], *, rows: Tensor | None = None, wanted: Ports = None
    ) -> list[Tensor | None]:
        """Outgoing messages.

        Args:
            incoming: per port (B, K, n) log-messages whose maximum over states is 0 (or -inf).
            rows: only these factors (every port then holds all its factors); None: all.
            wanted: the ports asked for.

        Returns:
            Per port (B, K, n): the soft maximum over the other slots, up to one constant per
            factor; None for ports that are not wanted.
        """

    def log_odds(self) -> Tensor | None:
        """(b, F) log-odds that the parity of binary ports is even; None: not by parity alone."""
        return None

    @abstractmethod
    def log_partitions(self, incoming: Sequence[Tensor]) -> Tensor:
        """(B, F) log of the sum of each factor's belief; messages carry no such scale."""

    @abstractmethod
    def beliefs(self, incoming: Sequence[Tensor]) -> Tensor:
        """(B, F, *sizes of the ports' slots) probabilities of the factors' configurations."""


class FactorKernel(Kernel):
    """Kernel whose ports are variables of the model."""

    @abstractmethod
    def log_values_at(self, states: Tensor) -> Tensor:
        """(B, F) log-values over counting numbers, at (B, V) states of all active variables."""

    @abstractmethod
    def expected_log_value(self, incoming: Sequence[Tensor]) -> Tensor:
        """(B,) expected log-values under the factors' beliefs, summed."""


@dataclass(frozen=True, eq=False)
class TableKernel(FactorKernel):
    """Dense tables: sums are products of scaled values, redone in logs where they underflow."""

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
    def _logs(self) -> Tensor:
        """(b, *sizes, f) log-values over counting number and temperature, factors last."""
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
        """(b, f) largest log-value of each factor; 0 if all are -inf."""
        return finite(self._logs.detach().flatten(1, -2).amax(1))

    @cached_property
    def scaled(self) -> Tensor:
        """(b, *sizes, f): values scaled to a maximum of one (sums), or log-values (maxima)."""
        shift = self._peak.reshape(-1, *(1,) * (self._logs.ndim - 2), self._peak.shape[-1])
        with torch.enable_grad():
            logs = self._logs - shift
            if self.temperature == 0:
                return logs
            return logs.exp() if logs.requires_grad else logs.exp_()

    @cached_property
    def bounded(self) -> bool:  # pyright: ignore[reportIncompatibleMethodOverride]
        """True if no product can leave the range of the floating type, so that none is checked."""
        tables, most = self.group.log_tables.detach(), -math.log(self._least)
        if not tables.numel():
            return True
        low, high = self.group.extent
        if self.weights is not None:
            tables = self._logs.detach().movedim(-1, 1)
            low, high = map(float, tables.aminmax())
        elif self.temperature:
            most *= self.temperature
        if high - low < most:
            return True
        flat = tables.flatten(2)
        return low > -math.inf and bool((flat.amax(2) - flat.amin(2)).amax() < most)

    @cached_property
    def _least(self) -> float:
        """Products above this have lost nothing to underflow."""
        info = torch.finfo(self.group.log_tables.dtype)
        return info.tiny / info.eps

    def log_values_at(self, states: Tensor) -> Tensor:
        logs, device = self._logs, states.device
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
        """Scaled products, repaired in logs; sums of logs at temperature 0."""
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
        """Log-messages with those of underflowed factors recomputed in logs."""
        low = [(part.detach() < self._least).any(1).any(0) for part in products if part is not None]
        bad = torch.stack(low).any(0).nonzero().flatten()
        if not len(bad):
            return logs
        table, shift = self._logs, self._peak
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
        """Softmax of the log-values plus messages; at temperature 0, uniform over the maxima."""
        logs = self._logs
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
        """Kernel of some batch items, with their part of the tables prepared so far.

        The rest is prepared for them alone and freed with them: allocations beyond some 32 MB are
        new memory each time, which costs more than the arithmetic. Where gradients are recorded the
        whole is needed anyway.
        """
        tables = self.group.log_tables
        if len(tables) == 1:
            return self
        kernel = replace(self, group=replace(self.group, log_tables=tables[chosen]))
        for name in ("_logs", "_peak", "scaled"):
            if self.records or name in vars(self):
                vars(kernel)[name] = getattr(self, name)[chosen]
        if vars(self).get("bounded"):
            vars(kernel)["bounded"] = True
        return kernel


def _columns(table: Tensor, rows: Tensor) -> Tensor:
    """(b, *sizes, n) tables of some factors of (b, *sizes, F)."""
    flat = table.reshape(-1, table.shape[-1]).index_select(1, rows)
    return flat.reshape(*table.shape[:-1], len(rows))


def _exchanged(
    table: Tensor, vectors: list[Tensor], contract: Contract, wanted: Ports
) -> list[Tensor | None]:
    """Contract a table (b, *sizes, f) with the vectors (B, size, F) of all slots but one, per slot.

    Slots are halved recursively: a table is read twice however many slots it has, without division.
    """
    count = len(vectors)
    if count == 1:
        return [table]
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
        part = contract(table, _joint(others, contract))
        part = part.reshape(part.shape[0], *dims, part.shape[-1])
        results += _exchanged(part, kept, contract, asked)
    return results


def _balanced(sizes: Sequence[int]) -> int:
    """Position that splits the sizes into two products as equal as possible."""
    total = math.prod(sizes)
    cuts = range(1, len(sizes))
    return min(cuts, key=lambda cut: max(left := math.prod(sizes[:cut]), total // left))


def _joint(vectors: Sequence[Tensor], contract: Contract) -> Tensor:
    """(B, product of sizes, F) combinations of the vectors' entries."""
    joint = vectors[0]
    for vector in vectors[1:]:
        left, right = joint.unsqueeze(2), vector.unsqueeze(1)
        pairs = left * right if contract is product else left + right
        joint = pairs.flatten(1, 2)
    return joint
