"""Kernels of factors whose potentials compute messages themselves, as logical factors do."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph._core.cache import cached_property
from rdpgraph.engines.loopy.arithmetic import share
from rdpgraph.engines.loopy.edges import Port
from rdpgraph.engines.loopy.kernels import FactorKernel, Ports
from rdpgraph.engines.reduction.network import HighOrderBlock, Network
from rdpgraph.errors import UnsupportedError
from rdpgraph.logspace.logmatrix import soft_sum
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.potentials.automaton import Automaton
from rdpgraph.plan import clock


def is_logical(graph: FactorGraph) -> bool:
    """Return whether some factor is an automaton, as logical factors are."""
    return any(isinstance(block.potential, Automaton) for block in graph.blocks)


@dataclass(frozen=True, eq=False)
class HighOrderKernel(FactorKernel):
    """A block of factors whose potential computes messages by its method `messages`."""

    block: HighOrderBlock  # its factors
    network: Network  # the model, whose variables may have lost states, or be settled
    weights: Tensor | None  # (F,) counting numbers; None: all one
    temperature: float  # 0 for maxima
    chosen: Tensor | None = None  # (n,) numbers of the batch items that it is for; None: all

    @property
    def count(self) -> int:
        return len(self.block.scopes)

    @cached_property
    def ports(self) -> tuple[Port, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """For each slot, a port for each number of states that its variables have left."""
        network, ports = self.network, list[Port]()
        sizes = network.counts
        every = torch.arange(self.count, device="cpu")
        active = network.active[self.block.scopes].T.contiguous()
        left = torch.where(active >= 0, sizes[active.clamp(min=0)] if len(sizes) else 0, 0)
        for slot, (numbers, own) in enumerate(zip(active, left, strict=True)):
            low, high = own.aminmax() if self.count else (0, 0)
            if low == high:  # the variables of all factors keep as many states
                if high:
                    ports.append(Port(slot, every, numbers, int(high)))
                continue
            for size in own.bincount().nonzero().flatten().tolist():
                rows = (own == size).nonzero().flatten()
                if size:
                    ports.append(Port(slot, rows, numbers[rows], size))
        return tuple(ports)

    @property
    def swept_operations(self) -> float:
        """The approximate operations of a sweep for a batch item, by compiled code."""
        potential = self.block.potential
        assert isinstance(potential, Automaton)
        step = tuning.SWEPT_STEP[self.temperature > 0]
        return step * potential.transitions.numel() * self.block.scopes.numel()

    @property
    def bounded(self) -> bool:
        """False, because messages of a potential may grow without bound."""
        return False

    @property
    def records(self) -> bool:
        """True if a gradient would reach the potential; a user's may hold parameters anywhere."""
        potential = self.block.potential
        return type(potential) is not Automaton or potential.log_accept.requires_grad

    @cached_property
    def states(self) -> tuple[Tensor, ...]:
        """For each port, the (n, K) states that are left."""
        return tuple(
            self.network.states_left(self.block.scopes[port.rows, port.slot], port.size).to(
                self.network.constant.device
            )
            for port in self.ports
            if port.rows is not None
        )

    @cached_property
    def _settled(self) -> tuple[Tensor, ...]:
        """For each slot (b, F, k) log-messages, uniform or of a settled variable's state."""
        like, messages = self.network.constant, list[Tensor]()
        settled = self.settled_states
        for slot, size in enumerate(self._slots):
            agrees = settled[:, :, slot].unsqueeze(-1) == torch.arange(size, device="cpu")
            messages.append(torch.where(agrees, 0.0, -math.inf).to(like))
        return tuple(messages)

    @property
    def settled_states(self) -> Tensor:
        """The (b, F, slots) states of settled variables."""
        settled = self.network.settled
        if self.chosen is not None and len(settled) > 1:
            settled = settled[self.chosen]
        return settled[:, self.block.scopes]

    @property
    def _slots(self) -> tuple[int, ...]:
        return self.block.potential.slots(self.block.scopes.shape[1])

    @property
    def log_accept(self) -> Tensor:
        """The (b, states, F or 1) log-values of an automaton, divided as in `equations`."""
        assert isinstance(self.block.potential, Automaton)
        logs = self.block.potential.log_accept.detach()
        ends = (*(logs.shape[-2:-1] or (1,)), logs.shape[-1])
        if self._each:
            logs = logs.expand(*self.network.graph.batch_shape, *ends)
        logs = self._picked(logs.reshape(-1, *ends)).transpose(1, 2)
        if self.weights is not None:
            logs = logs / self.weights
        return logs / self.temperature if self.temperature not in (0.0, 1.0) else logs

    def log_odds(self) -> Tensor | None:
        potential = self.block.potential
        if not isinstance(potential, Automaton) or self.weights is not None:
            return None
        if potential.transitions.tolist() != [[0, 1], [1, 0]]:
            return None
        even, odd = potential.log_accept.detach().unbind(-1)
        odds, ends = even - odd, even.shape[-1:] or (1,)
        if self._each:
            odds = odds.expand(*self.network.graph.batch_shape, *ends)
        odds = self._picked(odds.reshape(-1, *ends))
        return torch.where((self.settled_states == 1).sum(2) % 2 == 1, -odds, odds)

    def items(self, chosen: slice | Tensor) -> "HighOrderKernel":
        before = (
            torch.arange(self.network.batch, device="cpu") if self.chosen is None else self.chosen
        )
        return replace(self, chosen=before[chosen])

    @property
    def divisible(self) -> bool:
        """False if the potential differs between batch items, and so answers all at once."""
        return not self._each

    @cached_property
    def _each(self) -> bool:
        return math.prod(self.block.potential.lead(len(self._slots))[:-1]) > 1

    def _expanded(self, incoming: Sequence[Tensor]) -> list[Tensor]:
        """Return for each slot the (B, F, k) log-messages over all states."""
        messages = list(self._settled)
        for port, states, part in zip(self.ports, self.states, incoming, strict=True):
            assert port.rows is not None
            base = messages[port.slot].expand(len(part), -1, -1)
            rows = port.rows.to(part.device).unsqueeze(1)
            index = (torch.arange(len(part), device=part.device).reshape(-1, 1, 1), rows, states)
            messages[port.slot] = base.index_put(index, part.transpose(1, 2))
        return messages

    def _answers(self, expanded: list[Tensor]) -> list[Tensor]:
        """Return for each slot the (B, F, k) messages divided by counting numbers."""
        if self.weights is None:
            return self._asked(expanded, self.temperature)
        scale = self.weights.unsqueeze(1)
        temperature = self.temperature * self.weights if self.temperature else 0.0
        answers = self._asked([part * scale for part in expanded], temperature)
        return [part / scale for part in answers]

    def _asked(self, expanded: list[Tensor], temperature: float | Tensor) -> list[Tensor]:
        """Return for each slot the (B, F, k) messages of the potential, batch dims flattened."""
        batch = max(len(part) for part in expanded)
        if isinstance(temperature, Tensor) and temperature.ndim > 1:
            temperature = self._placed(temperature)
        expanded = [self._placed(part) for part in expanded]
        entries = sum(part.numel() for part in expanded)
        clock.count(tuning.AUTOMATON_SLOT * len(expanded) + tuning.AUTOMATON_ENTRY * entries)
        answers = self.block.potential.messages(expanded, temperature=temperature)
        messages = [self._picked(part.reshape(-1, *part.shape[-2:])) for part in answers]
        return [part.expand(max(batch, len(part)), self.count, -1) for part in messages]

    def _placed(self, values: Tensor) -> Tensor:
        """Give (B or 1, ...) values the batch dims of a potential that differs between items."""
        if not self._each:
            return values
        shape, items = self.network.graph.batch_shape, self.network.batch
        if self.chosen is not None:
            whole = values.new_ones(items, *values.shape[1:])
            values = values.expand(len(self.chosen), *values.shape[1:])
            values = whole.index_copy(0, self.chosen.to(values.device), values)
        return values.expand(items, *values.shape[1:]).reshape(*shape, *values.shape[1:])

    def _picked(self, values: Tensor) -> Tensor:
        """Select the values of the chosen batch items, flattened."""
        if self.chosen is None or len(values) == 1:
            return values
        return values[self.chosen.to(values.device)] if self._each else values

    def messages(
        self, incoming: Sequence[Tensor], *, rows: Tensor | None = None, wanted: Ports = None
    ) -> list[Tensor | None]:
        """Return the potential's messages; with ``rows`` a port holds its factors among these."""
        if rows is not None:
            return self._of(rows, incoming)
        answers = self._answers(self._expanded(incoming))
        messages: list[Tensor | None] = []
        for number, (port, states) in enumerate(zip(self.ports, self.states, strict=True)):
            if wanted is not None and number not in wanted:
                messages.append(None)
                continue
            assert port.rows is not None
            answer = answers[port.slot][:, port.rows.to(states.device)]
            messages.append(answer.gather(2, states.expand(len(answer), -1, -1)).transpose(1, 2))
        return messages

    def _of(self, rows: Tensor, incoming: Sequence[Tensor]) -> list[Tensor | None]:
        """Return the messages of some factors, of which a port may have none."""
        block, weights = self.block, self.weights
        scopes = block.scopes[rows]
        # The kernel of these factors alone, with weights of their own.
        potential = block.potential.select((self.count,), rows, scopes.shape[1])
        kernel = replace(
            self,
            block=replace(block, scopes=scopes, potential=potential),
            weights=None if weights is None else weights[rows],
        )
        messages: list[Tensor | None] = [None] * len(incoming)
        ports, left, some = list[Port](), list[Tensor](), list[int]()
        # Of each port, the factors asked for; ports that receive no message are left out.
        place = torch.full((self.count,), -1, device="cpu")
        place[rows] = torch.arange(len(rows), device="cpu")
        for number, (port, states) in enumerate(zip(self.ports, self.states, strict=True)):
            if incoming[number].shape[2]:
                assert port.rows is not None
                at = place[port.rows]
                asked = (at >= 0).nonzero().flatten()
                ports.append(Port(port.slot, at[asked], port.variables[asked], port.size))
                left.append(states[asked.to(states.device)])
                some.append(number)
        vars(kernel).update(ports=tuple(ports), states=tuple(left))
        answers = kernel.messages([incoming[number] for number in some])
        for number, answer in zip(some, answers, strict=True):
            messages[number] = answer
        return messages

    def log_partitions(self, incoming: Sequence[Tensor]) -> Tensor:
        expanded = self._expanded(incoming)
        joint = (self._answers(expanded)[0] + expanded[0]).transpose(1, 2)
        return soft_sum(joint, 1, self.temperature)

    def log_values_at(self, states: Tensor) -> Tensor:
        settled = self.settled_states.to(states.device)
        every = settled.expand(len(states), -1, -1).clone()
        for port, left in zip(self.ports, self.states, strict=True):
            assert port.rows is not None
            chosen = states[:, port.variables.to(states.device)]
            rows = torch.arange(len(left), device=states.device)
            every[:, port.rows.to(states.device), port.slot] = left[rows, chosen]
        slots = [self._placed(part).unsqueeze(-1) for part in every.unbind(2)]
        values = self.block.potential.evaluate(slots)
        values = self._picked(values.reshape(-1, *values.shape[-1 - len(slots) :]).flatten(1))
        values = values.expand(-1, self.count)
        return values if self.weights is None else values / self.weights

    def check_table(self) -> None:
        """Raise `UnsupportedError` if the tables of beliefs would be too large."""
        if math.prod(self._slots) * self.count > tuning.BLOCK:
            raise UnsupportedError(
                f"Beliefs of {type(self.block.potential).__name__} over {len(self._slots)} "
                "variables are not formed; ask for the marginals of its variables."
            )

    def _table(self) -> Tensor:
        """The (b, F or 1, *sizes) log-values; refused if they are too many."""
        self.check_table()
        logs = self.block.potential.table(len(self._slots))
        lead = logs.shape[: logs.ndim - len(self._slots)]
        factors = lead[-1] if lead else 1
        return self._picked(logs.reshape(-1, factors, *self._slots))

    def beliefs(self, incoming: Sequence[Tensor]) -> Tensor:
        """Return the (B, F, *all slots) beliefs from the dense table, refused if too large."""
        logs = self._table()
        if self.weights is not None:
            logs = logs / self.weights.reshape(1, -1, *(1,) * len(self._slots))
        for slot, part in enumerate(self._expanded(incoming)):
            shape = [1] * len(self._slots)
            shape[slot] = part.shape[2]
            logs = logs + part.reshape(*part.shape[:2], *shape)
        if self.temperature not in (0.0, 1.0):
            logs = logs / self.temperature
        flat = logs.flatten(2)
        rows = flat.reshape(-1, flat.shape[2])
        return share(rows, 0.0 if self.temperature == 0 else 1.0).reshape(logs.shape)

    def expected_log_value(self, incoming: Sequence[Tensor]) -> Tensor:
        """Return expected log-values: derivatives of ``log sum exp(s theta + messages)`` in s."""
        if self.temperature == 0:
            raise UnsupportedError(
                f"The expected score of {type(self.block.potential).__name__} at temperature 0 is "
                "not available; use a small temperature."
            )
        expanded = self._expanded(incoming)
        shape = (max(len(part) for part in expanded), self.count)
        weights = 1.0 if self.weights is None else self.weights
        recorded = torch.is_grad_enabled() and self._answers(expanded)[0].requires_grad
        with torch.enable_grad():
            scale = (expanded[0].new_ones(shape) / (self.temperature * weights)).requires_grad_()
            # With messages m / s at temperature 1 / s the potential itself is left alone.
            hot = [_times(part / self.temperature, 1 / scale.unsqueeze(2)) for part in expanded]
            first = self._asked(hot, 1 / scale)[0]
            logs = _times(first + hot[0], scale.unsqueeze(2)).transpose(1, 2)
            total = soft_sum(logs, 1, 1.0)
            total = torch.where(total.detach() > -math.inf, total, 0.0).sum()
            (derivative,) = torch.autograd.grad(total, scale, create_graph=recorded)
        return derivative.sum(1)


def _times(logs: Tensor, factor: Tensor) -> Tensor:
    """Multiply without a NaN in the gradient of the factor where logs are -inf."""
    alive = logs > -math.inf
    return torch.where(alive, torch.where(alive, logs, 0.0) * factor, -math.inf)
