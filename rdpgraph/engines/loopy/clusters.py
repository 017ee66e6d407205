"""Clusters of factors, whose messages are over the variables that two clusters share."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rdpgraph._core.cache import cached_property
from rdpgraph.engines.loopy.arithmetic import finite_peak, neighbours
from rdpgraph.engines.loopy.edges import Port
from rdpgraph.engines.loopy.kernels import CALL, Kernel, Ports
from rdpgraph.logspace.logmatrix import safe_log
from rdpgraph.plan import clock

_PASSES = 6.0
"""Operations for each entry of a table and separator."""
_DEEP = 650.0
"""Nats below the largest value of a cluster at which a product might underflow."""


@dataclass(frozen=True, eq=False)
class ClusterKernel(Kernel):
    """Clusters of like shape, in float64: sums of tables as products of scaled values.

    Those whose values and messages together might underflow are summed in logs.

    Attributes:
        sizes: of the clusters' variables.
        separators: per port the dims that its messages are over.
        links: per port (F,) the number of the separator, which stands for a variable here.
        tables: per cluster the log-tables of its factors, (b, *sizes) or broadcastable to it.
    """

    sizes: tuple[int, ...]
    separators: tuple[tuple[int, ...], ...]
    links: tuple[Tensor, ...]
    tables: tuple[tuple[Tensor, ...], ...]

    @cached_property
    def ports(self) -> tuple[Port, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return tuple(
            Port(slot, None, links, math.prod(self.sizes[dim] for dim in dims))
            for slot, (dims, links) in enumerate(zip(self.separators, self.links, strict=True))
        )

    @property
    def count(self) -> int:
        return len(self.tables)

    @property
    def bounded(self) -> bool:
        """No: a message may underflow."""
        return False

    @property
    def records(self) -> bool:
        return any(table.requires_grad for own in self.tables for table in own)

    @cached_property
    def _scaled(self) -> tuple[Tensor, Tensor]:
        """(b, F, *sizes) values with a maximum of one, and (b, F) the logs taken off."""
        with torch.enable_grad():  # sweeps without gradients share it with one that records them
            pairs = [self._made(own) for own in self.tables]
            batch = max(len(values) for values, _ in pairs)
            values = [part.expand(batch, *self.sizes) for part, _ in pairs]
            return torch.stack(values, 1), torch.stack([p.expand(batch) for _, p in pairs], 1)

    def prepare(self) -> None:
        """Make the tables now."""
        _ = self._scaled

    def _made(self, tables: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        total = self._total(tables)
        peak = finite_peak(total.detach().flatten(1).amax(1))
        return (total - peak.reshape(-1, *(1,) * len(self.sizes))).exp(), peak

    def _total(self, tables: tuple[Tensor, ...]) -> Tensor:
        """(b, *sizes) the log-table of a cluster."""
        dims = (1,) * len(self.sizes)
        total = torch.zeros(1, *dims, dtype=torch.float64, device=self.links_device)
        for table in tables:
            total = total + table.double()
        return total.expand(-1, *self.sizes)

    @property
    def links_device(self) -> torch.device:
        """Where it computes."""
        return next((t.device for own in self.tables for t in own), torch.device("cpu"))

    @cached_property
    def _lows(self) -> Tensor:
        """(F,) the logs of the smallest possible values, below the largest."""
        with torch.no_grad():
            values = self._scaled[0]
            lows = torch.where(values > 0, values, 1.0).flatten(2).amin((0, 2)).log()
            for row in (values == 0).flatten(2).any(2).any(0).nonzero().flatten().tolist():
                total = self._total(self.tables[row])
                if bool(((values[:, row] == 0) & (total > -math.inf)).any()):
                    lows[row] = -math.inf
        return lows

    def _deep(self, incoming: Sequence[Tensor], rows: Tensor | None) -> Tensor:
        """Places among some rows of clusters where a product might underflow."""
        low = self._lows if rows is None else self._lows[neighbours(rows)]
        for message in incoming:
            logs = message.detach()
            low = low + torch.where(logs > -math.inf, logs, 0.0).amin((0, 1))
        return (low < -_DEEP).nonzero().flatten()

    def _spread(self, port: int, incoming: Tensor) -> Tensor:
        """(B, F, *sizes of the separator, and 1 elsewhere) log-messages (B, K, F)."""
        held = self.separators[port]
        shape = [size if dim in held else 1 for dim, size in enumerate(self.sizes)]
        return incoming.transpose(1, 2).reshape(len(incoming), incoming.shape[2], *shape)

    def _product(self, incoming: Sequence[Tensor], rows: Tensor | None) -> Tensor:
        """(B, F, *sizes) the scaled tables times all messages."""
        total = self._scaled[0]
        if rows is not None:
            total = total[:, neighbours(rows)]
        for port, part in enumerate(incoming):
            total = total * self._spread(port, part.exp())
        return total

    def _logs(self, incoming: Sequence[Tensor], rows: Tensor | None, places: Tensor) -> Tensor:
        """(B, n, *sizes) the log-tables at some places plus all messages."""
        chosen = places if rows is None else rows[places]
        own = [self._total(self.tables[row]) for row in chosen.tolist()]
        batch = max(len(table) for table in own)
        total = torch.stack([table.expand(batch, *self.sizes) for table in own], 1)
        for port, part in enumerate(incoming):
            total = total + self._spread(port, part[..., places])
        return total

    def _joint(self, incoming: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """(B, F, *sizes) the tables times all messages, up to a scale (B, F) in logs."""
        total = self._product(incoming, None)
        scale = self._scaled[1].expand(total.shape[:2])
        places = self._deep(incoming, None)
        if len(places):
            logs = self._logs(incoming, None, places)
            peak = finite_peak(logs.detach().flatten(2).amax(2))
            values = (logs - peak.reshape(*peak.shape, *(1,) * len(self.sizes))).exp()
            total = total.index_copy(1, places, values.expand(len(total), *values.shape[1:]))
            scale = scale.index_copy(1, places, peak.expand(len(total), -1))
        return total, scale

    def messages(
        self, incoming: Sequence[Tensor], *, rows: Tensor | None = None, wanted: Ports = None
    ) -> list[Tensor | None]:
        """The joint table summed over what the other cluster does not have, its own divided out."""
        total = self._product(incoming, rows)
        clock.count(CALL + _PASSES * len(incoming) * total.numel())
        places = self._deep(incoming, rows)
        logs = self._logs(incoming, rows, places) if len(places) else None
        answers: list[Tensor | None] = [None] * len(incoming)
        for port in range(len(incoming)) if wanted is None else wanted:
            sums = safe_log(self.marginal(total, self.separators[port]).flatten(2).transpose(1, 2))
            if logs is not None:
                below = self._log_marginal(logs, self.separators[port]).flatten(2).transpose(1, 2)
                sums = sums.index_copy(2, places, below.expand(len(sums), -1, -1))
            own = incoming[port]
            possible = own > -math.inf
            answers[port] = torch.where(possible, sums - torch.where(possible, own, 0.0), -math.inf)
        return answers

    def _gone(self, kept: Sequence[int]) -> list[int]:
        return [dim + 2 for dim in range(len(self.sizes)) if dim not in kept]

    def _log_marginal(self, logs: Tensor, kept: Sequence[int]) -> Tensor:
        """(B, n, *sizes) the logs of sums over all dims but some."""
        gone = self._gone(kept)
        if not gone:
            return logs
        peak = finite_peak(logs.detach().amax(gone, keepdim=True))
        return safe_log((logs - peak).exp().sum(gone)) + peak.squeeze(gone)

    def marginal(self, joint: Tensor, kept: Sequence[int]) -> Tensor:
        """(B, F, *sizes) summed over all dims but some."""
        gone = self._gone(kept)
        return joint.sum(gone) if gone else joint

    def log_partitions(self, incoming: Sequence[Tensor]) -> Tensor:
        joint, scale = self._joint(incoming)
        return safe_log(joint.flatten(2).sum(2)) + scale

    def beliefs(self, incoming: Sequence[Tensor]) -> Tensor:
        """The joint table, normalised; zero where nothing is possible."""
        joint = self._joint(incoming)[0]
        total = joint.flatten(2).sum(2)
        total = torch.where(total > 0, total, 1.0)
        return joint / total.reshape(*total.shape, *(1,) * len(self.sizes))

    @property
    def entries(self) -> int:
        """The numbers of all tables, if they differ between batch items."""
        batch = max((len(table) for own in self.tables for table in own), default=1)
        return self.count * math.prod(self.sizes) if batch > 1 else 0

    def items(self, chosen: slice | Tensor) -> "ClusterKernel":
        """The kernel of some batch items, with what has been prepared of the tables."""
        if not self.entries:
            return self
        tables = tuple(
            tuple(table if len(table) == 1 else table[chosen] for table in own)
            for own in self.tables
        )
        own = replace(self, tables=tables)
        vars(own).update(_scaled=tuple(part[chosen] for part in self._scaled), _lows=self._lows)
        return own
