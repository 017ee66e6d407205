"""Factors whose potential answers messages itself, such as logical ones."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rdpgraph._cache import cached_property
from rdpgraph.engines.loopy.arithmetic import share
from rdpgraph.engines.loopy.edges import Port
from rdpgraph.engines.loopy.kernels import Kernel
from rdpgraph.engines.network import Network, Whole
from rdpgraph.errors import UnsupportedError
from rdpgraph.model.semiring import soft_sum

_MOST_ENTRIES = 1 << 22


@dataclass(frozen=True, eq=False)
class WholeKernel(Kernel):
    """A block of factors by their potential's `messages`.

    Attributes:
        whole: the block.
        network: where it belongs: its variables may have lost states, or be settled.
        weights: (F,) counting numbers, or None.
        temperature: 0 for maxima.
        number: the only batch item, or None for all.
    """

    whole: Whole
    network: Network
    weights: Tensor | None
    temperature: float
    number: int | None = None

    @property
    def count(self) -> int:
        """The number of factors."""
        return len(self.whole.scopes)

    @property
    def ports(self) -> tuple[Port, ...]:
        """For every slot one port for each number of states that its variables have left."""
        return self._ports

    @cached_property
    def _ports(self) -> tuple[Port, ...]:
        network, found = self.network, list[Port]()
        sizes = torch.tensor(network.sizes, dtype=torch.long)
        for slot in range(self.whole.scopes.shape[1]):
            active = network.active[self.whole.scopes[:, slot]]
            left = torch.where(active >= 0, sizes[active.clamp(min=0)] if len(sizes) else 0, 0)
            for size in torch.unique(left).tolist():
                rows = (left == size).nonzero().flatten()
                if size:
                    found.append(Port(slot, rows, active[rows], size))
        return tuple(found)

    @property
    def bounded(self) -> bool:
        """No."""
        return False

    @property
    def records(self) -> bool:
        """Not known: a potential may hold parameters anywhere."""
        return True

    @cached_property
    def _states(self) -> tuple[Tensor, ...]:
        """Per port (n, K) the states left."""
        return tuple(
            self.network.states_left(self.whole.scopes[port.rows, port.slot], port.size).to(
                self.network.constant.device
            )
            for port in self.ports
            if port.rows is not None
        )

    @cached_property
    def _settled(self) -> tuple[Tensor, ...]:
        """Per slot (b, F, k) log-messages: nothing, but of settled variables their state."""
        like, found = self.network.constant, list[Tensor]()
        for slot, size in enumerate(self._slots):
            states = self.network.settled[:, self.whole.scopes[:, slot]].unsqueeze(-1)
            agrees = states == torch.arange(size)
            found.append(torch.where(agrees, 0.0, -math.inf).to(like))
        return tuple(found)

    @property
    def _row(self) -> int:
        """The row of the settled states that a single batch item looks at."""
        return min(self.number or 0, len(self.network.settled) - 1)

    @property
    def _slots(self) -> tuple[int, ...]:
        return self.whole.potential.slots(self.whole.scopes.shape[1])

    def weighted(self, weights: Tensor) -> "WholeKernel":
        """The kernel with counting numbers."""
        return replace(self, weights=weights)

    def item(self, number: int) -> "WholeKernel":
        """The kernel of one batch item."""
        return replace(self, number=number)

    def _spread(self, incoming: Sequence[Tensor]) -> list[Tensor]:
        """Per slot (B, F, k) log-messages over all states."""
        found = [
            part if self.number is None or len(part) == 1 else part[self.number : self.number + 1]
            for part in self._settled
        ]
        for port, states, part in zip(self.ports, self._states, incoming, strict=True):
            assert port.rows is not None
            base = found[port.slot].expand(len(part), -1, -1)
            rows = port.rows.to(part.device).unsqueeze(1)
            index = (torch.arange(len(part), device=part.device).reshape(-1, 1, 1), rows, states)
            found[port.slot] = base.index_put(index, part.transpose(1, 2))
        return found

    def _answers(self, spread: list[Tensor]) -> list[Tensor]:
        """Per slot (B, F, k): messages over counting numbers."""
        if self.weights is None:
            return self._asked(spread, self.temperature)
        scale = self.weights.unsqueeze(1)
        temperature = self.temperature * self.weights if self.temperature else 0.0
        found = self._asked([part * scale for part in spread], temperature)
        return [part / scale for part in found]

    def _asked(self, spread: list[Tensor], temperature: float | Tensor) -> list[Tensor]:
        """The potential's messages, batch dims flattened: per slot (B, F, k)."""
        batch = max(len(part) for part in spread)
        own = self.whole.potential.lead(len(spread))[:-1]
        each = math.prod(own) > 1  # the potential differs between batch items
        if each:
            shape, items = self.network.graph.batch_shape, self.network.batch
            spread = [part.expand(items, *part.shape[1:]) for part in spread]
            spread = [part.reshape(*shape, *part.shape[1:]) for part in spread]
            if isinstance(temperature, Tensor) and temperature.ndim > 1:
                temperature = temperature.expand(items, -1).reshape(*shape, -1)
        answers = self.whole.potential.messages(spread, temperature=temperature)
        found = [part.reshape(-1, *part.shape[-2:]) for part in answers]
        if each and self.number is not None:
            found = [part[self.number : self.number + 1] for part in found]
        return [part.expand(max(batch, len(part)), self.count, -1) for part in found]

    def messages(
        self, incoming: Sequence[Tensor], *, rows: Tensor | None = None, wanted: int | None = None
    ) -> list[Tensor | None]:
        """All factors' messages; ``rows`` is not looked at, since no port holds all factors."""
        answers = self._answers(self._spread(incoming))
        found: list[Tensor | None] = []
        for number, (port, states) in enumerate(zip(self.ports, self._states, strict=True)):
            if wanted not in (None, number):
                found.append(None)
                continue
            assert port.rows is not None
            answer = answers[port.slot][:, port.rows.to(states.device)]
            found.append(answer.gather(2, states.expand(len(answer), -1, -1)).transpose(1, 2))
        return found

    def log_partitions(self, incoming: Sequence[Tensor]) -> Tensor:
        """From the answer to the first slot."""
        spread = self._spread(incoming)
        joint = (self._answers(spread)[0] + spread[0]).transpose(1, 2)
        return soft_sum(joint, 1, self.temperature)

    def log_values_at(self, states: Tensor) -> Tensor:
        """By evaluation at the states, settled ones included."""
        settled = self.network.settled[self._row, self.whole.scopes]
        chosen = settled.unsqueeze(0).to(states.device)
        for port, left in zip(self.ports, self._states, strict=True):
            assert port.rows is not None
            own = states[0][port.variables.to(states.device)]
            rows = port.rows.to(states.device)
            chosen[0, rows, port.slot] = left.gather(1, own.unsqueeze(1))[:, 0]
        slots = [chosen[0, :, slot].unsqueeze(-1) for slot in range(chosen.shape[-1])]
        values = self.whole.potential.evaluate(slots)
        values = values.reshape(-1, self.count)
        values = values[min(self.number or 0, len(values) - 1)]
        return values if self.weights is None else values / self.weights

    def _table(self) -> Tensor:
        """(b, F or 1, *sizes), where that is not too large."""
        if math.prod(self._slots) * self.count > _MOST_ENTRIES:
            raise UnsupportedError(
                f"Beliefs of {type(self.whole.potential).__name__} over {len(self._slots)} "
                "variables are not formed; ask for the marginals of its variables."
            )
        logs = self.whole.potential.table(len(self._slots))
        lead = logs.shape[: logs.ndim - len(self._slots)]
        factors = lead[-1] if lead else 1
        logs = logs.reshape(-1, factors, *self._slots)
        if self.number is None or len(logs) == 1:
            return logs
        return logs[self.number : self.number + 1]

    def beliefs(self, incoming: Sequence[Tensor]) -> Tensor:
        """(B, F, *all slots) from the dense table; refused where that is large."""
        logs = self._table()
        if self.weights is not None:
            logs = logs / self.weights.reshape(1, -1, *(1,) * len(self._slots))
        for slot, part in enumerate(self._spread(incoming)):
            shape = [1] * len(self._slots)
            shape[slot] = part.shape[2]
            logs = logs + part.reshape(*part.shape[:2], *shape)
        if self.temperature not in (0.0, 1.0):
            logs = logs / self.temperature
        flat = logs.flatten(2)
        rows = flat.reshape(-1, flat.shape[2])
        return share(rows, 0.0 if self.temperature == 0 else 1.0).reshape(logs.shape)

    def expected_log_value(self, incoming: Sequence[Tensor]) -> Tensor:
        """The derivative of ``log sum exp(s theta + messages)`` in s."""
        if self.temperature == 0:
            raise UnsupportedError(
                f"The expected score of {type(self.whole.potential).__name__} at temperature 0 is "
                "not available; use a small temperature."
            )
        spread = self._spread(incoming)
        shape = (max(len(part) for part in spread), self.count)
        weights = 1.0 if self.weights is None else self.weights
        recorded = torch.is_grad_enabled() and self._answers(spread)[0].requires_grad
        with torch.enable_grad():
            scale = (spread[0].new_ones(shape) / (self.temperature * weights)).requires_grad_()
            # With messages m / s at temperature 1 / s the potential itself is left alone.
            hot = [_times(part / self.temperature, 1 / scale.unsqueeze(2)) for part in spread]
            first = self._asked(hot, 1 / scale)[0]
            logs = _times(first + hot[0], scale.unsqueeze(2)).transpose(1, 2)
            total = soft_sum(logs, 1, 1.0)
            total = torch.where(total.detach() > -math.inf, total, 0.0).sum()
            (found,) = torch.autograd.grad(total, scale, create_graph=recorded)
        return found.sum(1)


def _times(logs: Tensor, factor: Tensor) -> Tensor:
    """The product, with no NaN in the gradient of the factor where logs are -inf."""
    alive = logs > -math.inf
    return torch.where(alive, torch.where(alive, logs, 0.0) * factor, -math.inf)
