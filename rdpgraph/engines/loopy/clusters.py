"""Clusters of factors, whose messages are over the variables that two clusters share."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rdpgraph._cache import cached_property
from rdpgraph.engines.loopy.arithmetic import neighbours
from rdpgraph.engines.loopy.edges import Port
from rdpgraph.engines.loopy.kernels import Kernel
from rdpgraph.engines.values import safe_log

_FAINT = 1e-100  # a product whose largest entry is below this is made again, rescaled on the way


@dataclass(frozen=True, eq=False)
class ClusterKernel(Kernel):
    """Clusters of like shape, in float64: sums of tables as products of scaled values.

    What is beyond the range of a float64 below the largest value of a cluster is lost.

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

    @property
    def ports(self) -> tuple[Port, ...]:
        """One for each separator."""
        return self._ports

    @cached_property
    def _ports(self) -> tuple[Port, ...]:
        return tuple(
            Port(slot, None, links, math.prod(self.sizes[dim] for dim in dims))
            for slot, (dims, links) in enumerate(zip(self.separators, self.links, strict=True))
        )

    @property
    def count(self) -> int:
        """The number of clusters."""
        return len(self.tables)

    @property
    def bounded(self) -> bool:
        """No: a message may underflow."""
        return False

    @property
    def records(self) -> bool:
        """If a table requires gradients."""
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
        dims = (1,) * len(self.sizes)
        total = torch.zeros(1, *dims, dtype=torch.float64, device=self.links_device)
        for table in tables:
            total = total + table.double()
        total = total.expand(-1, *self.sizes)
        peak = total.detach().flatten(1).amax(1)
        peak = torch.where(peak == -math.inf, torch.zeros_like(peak), peak)
        return (total - peak.reshape(-1, *dims)).exp(), peak

    @property
    def links_device(self) -> torch.device:
        """Where it computes."""
        return next((t.device for own in self.tables for t in own), torch.device("cpu"))

    @cached_property
    def narrow(self) -> bool:
        """Whether possible values of a cluster are lost to underflow."""
        for tables, values in zip(self.tables, self._scaled[0].unbind(1), strict=True):
            lost = values.detach() == 0
            if bool(lost.any()):
                for table in tables:
                    lost = lost & (table.detach() > -math.inf)
                if bool(lost.any()):
                    return True
        return False

    @cached_property
    def alive(self) -> Tensor:
        """(b, F) whether the tables of a cluster allow anything."""
        return (self._scaled[0].detach() > 0).flatten(2).any(2)

    def _spread(self, port: int, incoming: Tensor) -> Tensor:
        """(B, F, *sizes of the separator, and 1 elsewhere) values of log-messages (B, K, F)."""
        held = self.separators[port]
        shape = [size if dim in held else 1 for dim, size in enumerate(self.sizes)]
        return incoming.exp().transpose(1, 2).reshape(len(incoming), incoming.shape[2], *shape)

    def joint(
        self, incoming: Sequence[Tensor], rows: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """(B, F, *sizes) the tables times all messages, up to a scale (B, F) in logs."""
        table, scale = self._scaled
        if rows is not None:
            some = neighbours(rows)
            table, scale = table[:, some], scale[:, some]
        heard = [self._spread(port, part) for port, part in enumerate(incoming)]
        total = table
        for part in heard:
            total = total * part
        if not heard or not total.numel() or bool((_peak(total) >= _FAINT).all()):
            return total, scale
        total = table
        for part in heard:
            total = total * part
            peak = _peak(total)
            peak = torch.where(peak > 0, peak, 1.0)
            total = total / peak.reshape(*peak.shape, *(1,) * len(self.sizes))
            scale = scale + peak.log()
        return total, scale

    def messages(
        self,
        incoming: Sequence[Tensor],
        *,
        rows: Tensor | None = None,
        wanted: Sequence[int] | None = None,
    ) -> list[Tensor | None]:
        """The joint table summed over what the other cluster does not have, its own divided out."""
        total = self.joint(incoming, rows)[0]
        answers: list[Tensor | None] = [None] * len(incoming)
        for port in range(len(incoming)) if wanted is None else wanted:
            summed = self.marginal(total, self.separators[port]).flatten(2).transpose(1, 2)
            own = incoming[port]
            possible = own > -math.inf
            answers[port] = torch.where(
                possible, safe_log(summed) - torch.where(possible, own, 0.0), -math.inf
            )
        return answers

    def marginal(self, joint: Tensor, kept: Sequence[int]) -> Tensor:
        """(B, F, *sizes) summed over all dims but some."""
        gone = [dim + 2 for dim in range(len(self.sizes)) if dim not in kept]
        return joint.sum(gone) if gone else joint

    def log_partitions(self, incoming: Sequence[Tensor]) -> Tensor:
        """From the joint table."""
        joint, scale = self.joint(incoming)
        return safe_log(joint.flatten(2).sum(2)) + scale

    def beliefs(self, incoming: Sequence[Tensor]) -> Tensor:
        """The joint table, normalised; zero where nothing is possible."""
        joint = self.joint(incoming)[0]
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
        vars(own).update(_scaled=tuple(part[chosen] for part in self._scaled))
        return own


def _peak(total: Tensor) -> Tensor:
    """(B, F) the largest values."""
    return total.detach().flatten(2).amax(2)
