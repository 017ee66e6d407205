"""The equations of message passing on a model's edges, for all counting numbers and temperatures.

With counting numbers c_f, temperature t, unary log-potentials u and messages m from factors to
variables:

    belief_i   = u_i + sum_f c_f m_fi
    cavity_if  = belief_i - m_fi
    m_fi(x_i)  = t log sum_{x_f without x_i} exp((theta_f / c_f + sum_{j != i} cavity_jf) / t)
    log Z      = sum_f c_f log Z_f + sum_i (1 - sum_f c_f) log Z_i

where Z_f and Z_i normalise the beliefs of factors and of variables. With all c = 1 this is the
Bethe approximation (Yedidia, Freeman, Weiss 2005). With the probabilities that a random spanning
tree holds an edge as c it is tree-reweighted, and log Z an upper bound (Wainwright, Jaakkola,
Willsky 2005). With t = 0 it is max-product.

On the CPU and without gradients, `kernels/messages/sweep.h` of the compiled code does the same: a
change here is one there (`compiled.py`).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph._core.cache import cached_property
from rdpgraph.engines.loopy.arithmetic import BOTTOM, FLOOR, change, floored, rescaled, share, take
from rdpgraph.engines.loopy.edges import Boundary, Edges, Port, SizeClass
from rdpgraph.engines.loopy.kernels import FactorKernel, MessageKernel
from rdpgraph.logspace.logmatrix import soft_sum

Messages: TypeAlias = tuple[Tensor, ...]
"""Per size class (B, K, E) log-messages whose maximum over states is 0."""


@dataclass(frozen=True, eq=False)
class MessageSums:
    """Sums of log-messages at the variables of a class, in which hard zeros are counted apart."""

    total: Tensor  # (B, K, n) sum of the finite logs
    zeros: Tensor | None  # (B, K, n) number of -inf; None if there can be none

    def logs(self) -> Tensor:
        """The (B, K, n) sums, -inf where a hard zero is among the terms."""
        if self.zeros is None:
            return self.total
        return torch.where(self.zeros > 0.5, -math.inf, self.total)

    def less(self, message: Tensor, at: Tensor) -> Tensor:
        """Return the (B, K, n) sums at variables ``at``, each without one of its messages."""
        if self.zeros is None:
            return take(self.total, at) - message
        dead = message == -math.inf
        rest = take(self.total, at) - torch.where(dead, 0.0, message)
        others = take(self.zeros, at) - dead.to(rest)
        return torch.where(others > 0.5, -math.inf, rest)


def sums_of(unary: Tensor, arrive: Callable[[Tensor], Tensor], logs: Tensor) -> MessageSums:
    """Add up unary logs and the messages ``logs`` by ``arrive``; both may have -inf."""
    dead, base_dead = logs == -math.inf, unary == -math.inf
    total = torch.where(base_dead, 0.0, unary) + arrive(torch.where(dead, 0.0, logs))
    return MessageSums(total, base_dead.to(total) + arrive(dead.to(total)))


@dataclass(frozen=True, eq=False)
class Equations:
    """A model in message-passing form."""

    edges: Edges  # index of the messages
    kernels: tuple[MessageKernel, ...]  # the factors
    unary: tuple[Tensor, ...]  # per size class (b, K, n) log-potentials of the variables
    # per size class (E,) counting number of each edge's factor; None: all one
    weights: tuple[Tensor, ...] | None
    factor_weights: tuple[Tensor, ...] | None  # per kernel (F,) counting numbers; None: all one
    temperature: float  # 0 for max-product
    batch: int  # number of items
    # a message may hold a hard zero. If all batch items share their hard zeros none can: the states
    # that they rule out have been dropped.
    vanishing: bool
    lowest: float  # bound from below on log-messages other than -inf
    forest: bool = False  # the factor graph is known to have no cycle
    # terms of the other parts, if these equations are of a part of the model
    boundary: Boundary | None = None
    in_values: bool = False  # messages are compared as values with a maximum of one, not as logs

    def flat_messages(self) -> Messages:
        """Return uniform messages on all edges, which share one number: they are not written to."""
        return tuple(
            unary.new_zeros(()).expand(self.batch, c.size, c.count)
            for unary, c in zip(self.unary, self.edges.classes, strict=True)
        )

    def beliefs(self, messages: Messages) -> tuple[Tensor, ...]:
        """Return for each class the (B, K, n) unnormalised log-beliefs of its variables."""
        parts = zip(self.unary, self.edges.classes, self._weighted(messages), strict=True)
        beliefs = tuple(unary + arriving(c, message) for unary, c, message in parts)
        return beliefs if self.boundary is None else self.boundary.joined(beliefs)

    def best_states(self, beliefs: Sequence[Tensor]) -> Tensor:
        """Return the (B, V) best states of all variables, the first one where several are equal."""
        states = torch.zeros(
            self.batch, len(self.edges.home), dtype=torch.long, device=self.unary_device
        )
        for c, belief in zip(self.edges.classes, beliefs, strict=True):
            states[:, c.variables] = belief.max(1).indices  # the first; argmax is slow
        return states

    def _weighted(self, messages: Messages) -> Messages:
        if self.weights is None:
            return messages
        return tuple(w * message for w, message in zip(self.weights, messages, strict=True))

    def cavities(self, messages: Messages) -> tuple[Tensor, ...]:
        """Return for each class (B, K, E) beliefs of edges' variables less edges' messages."""
        parts = zip(self.sums(messages), messages, self.edges.classes, strict=True)
        return tuple(belief.less(message, c.variable) for belief, message, c in parts)

    def sums(self, messages: Messages) -> list[MessageSums]:
        """Return for each class the sums of messages and unary log-potentials at its variables."""
        if not self.vanishing:
            return [MessageSums(belief, None) for belief in self.beliefs(messages)]
        parts = zip(self.unary, self.edges.classes, self._weighted(messages), strict=True)
        sums = [sums_of(unary, partial(arriving, c), message) for unary, c, message in parts]
        return sums if self.boundary is None else _joined(sums, self.boundary)

    def update(self, messages: Messages) -> Messages:
        """Update all messages at once, without damping."""
        return tuple(self.message(new) for new in self.outgoing(self._prepared(messages)[0]))

    def message(self, logs: Tensor) -> Tensor:
        """Turn a kernel's answer into a message: rescaled, and clamped if it might grow."""
        logs = rescaled(logs, vanishing=self.vanishing)[0]
        return logs if self.bounded else floored(logs, self.lowest)

    @cached_property
    def bounded(self) -> bool:
        """True if no message can grow without bound, so that none is clamped."""
        if self.boundary is not None:
            return self.boundary.bounded
        return not self.vanishing and all(kernel.bounded for kernel in self.kernels)

    def change(self, new: Tensor, old: Tensor) -> Tensor:
        """Return the (B, n) change between messages (B, K, n)."""
        if self.in_values:
            with torch.no_grad():
                return (new.exp() - old.exp()).abs_().amax(1)
        return change(new, old, BOTTOM if self.bounded or self.forest else FLOOR)

    def outgoing(self, cavities: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return for each class the (B, K, E) answers of the kernels, which are not rescaled."""
        edges = self.edges
        by_class: list[list[Tensor]] = [[] for _ in edges.classes]
        answers: dict[int, list[Tensor | None]] = {}
        for number, kernel in enumerate(self.kernels):
            answers[number] = kernel.messages(self.at(number, cavities))
        for segment in edges.segments:
            part = answers[segment.kernel][segment.port]
            assert part is not None
            by_class[segment.size_class].append(part)
        return tuple(
            torch.cat(parts, 2) if parts else cavity
            for parts, cavity in zip(by_class, cavities, strict=True)
        )

    def at(self, kernel: int, values: Sequence[Tensor]) -> list[Tensor]:
        """Return the values of the edges at each port of a kernel, given values by class."""
        segments = [self.edges.segments[number] for number in self.edges.by_kernel[kernel]]
        return [values[s.size_class][:, :, s.start : s.stop] for s in segments]

    def normalised_beliefs(self, messages: Messages) -> tuple[Tensor, ...]:
        """Return for each class the (B, K, n) probabilities of its variables."""
        return tuple(share(belief, self.temperature) for belief in self.beliefs(messages))

    def factor_beliefs(self, kernel: int, messages: Messages) -> Tensor:
        """Return the (B, F, *sizes) probabilities of the configurations of a kernel's factors."""
        return self.kernels[kernel].beliefs(self.at(kernel, self.incoming(messages)))

    def expected_log_value(self, kernel: int, messages: Messages) -> Tensor:
        """Return the (B,) sums of the expected log-values of a kernel's factors."""

        def expected(equations: Equations, part: Messages) -> Tensor:
            factors = equations.kernels[kernel]
            assert isinstance(factors, FactorKernel)
            return factors.expected_log_value(equations.at(kernel, equations.incoming(part)))

        return self._in_ranges(expected, messages)

    def factor_scores(
        self, kernel: int, incoming: Sequence[Tensor], states: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the (B, F) log-beliefs of factors at (B, V) states, and their (B, F) maxima."""
        parts = self.at(kernel, incoming)
        factors = self.kernels[kernel]
        assert isinstance(factors, FactorKernel)
        taken = factors.log_values_at(states).to(incoming[0])
        for port, part in zip(factors.ports, parts, strict=True):
            chosen = states[:, port.variables.to(states.device)].unsqueeze(1)
            taken = added_rows(taken, port, part.gather(1, chosen)[:, 0])
        return taken, factors.log_partitions(parts)

    def incoming(self, messages: Messages) -> list[Tensor]:
        """Return for each class the (B, K, E) messages from variables to factors, rescaled."""
        return self._prepared(messages)[0]

    def _prepared(
        self, messages: Messages, sums: Sequence[MessageSums] | None = None
    ) -> tuple[list[Tensor], list[Tensor]]:
        sums = self.sums(messages) if sums is None else sums
        pairs = [
            rescaled(belief.less(message, c.variable), vanishing=self.vanishing)
            for belief, message, c in zip(sums, messages, self.edges.classes, strict=True)
        ]
        return [pair[0] for pair in pairs], [pair[1] for pair in pairs]

    def log_partition(self, messages: Messages) -> Tensor:
        """Return the (B,) approximate log Z in float64.

        At a fixed point it is stationary in the messages. Its gradient in the potentials is
        therefore the whole gradient even if the messages are constants.
        """
        return self._in_ranges(Equations._log_partition, messages)

    def _log_partition(self, messages: Messages) -> Tensor:
        sums = self.sums(messages)
        cavities, shifts = self._prepared(messages, sums)
        total = torch.zeros(self.batch, dtype=torch.float64, device=self.unary_device)
        dead = torch.zeros_like(total, dtype=torch.bool)
        for number, kernel in enumerate(self.kernels):
            incoming = self.at(number, cavities)
            logs = kernel.log_partitions(incoming)
            for port, shift in zip(kernel.ports, self.at(number, shifts), strict=True):
                logs = added_rows(logs, port, shift[:, 0])
            if self.factor_weights is not None:
                logs = logs * self.factor_weights[number]
            total, dead = _added(total, dead, logs)
        counts = self.variable_counts()
        for belief, count in zip(sums, counts, strict=True):
            logs = soft_sum(belief.logs(), 1, self.temperature)
            total, dead = _added(total, dead, logs, count)
        if self.boundary is not None:
            total, dead = self.boundary.total(total), self.boundary.largest(dead.to(total)) > 0
        return torch.where(dead, -math.inf, total)

    @property
    def dtype(self) -> torch.dtype:
        """The floating type of the messages."""
        return self.unary[0].dtype

    @property
    def records(self) -> bool:
        """True if a gradient would reach the potentials."""
        if self.boundary is not None:
            return self.boundary.records
        return any(u.requires_grad for u in self.unary) or any(k.records for k in self.kernels)

    @property
    def unary_device(self) -> torch.device:
        """The device of the messages."""
        return self.unary[0].device if self.unary else torch.device("cpu")

    def variable_counts(self) -> list[Tensor]:
        """For each class, (n,) one minus the counting numbers of each variable's factors."""
        counts: list[Tensor] = []
        for number, (c, unary) in enumerate(zip(self.edges.classes, self.unary, strict=True)):
            weights = unary.new_ones(c.count) if self.weights is None else self.weights[number]
            counted = 1.0 if self.boundary is None else self.boundary.counted(number)
            counts.append(counted - arriving(c, weights.reshape(1, 1, -1)).reshape(-1))
        return counts

    def with_unary(self, unary: tuple[Tensor, ...]) -> "Equations":
        """Return the equations with other unary log-potentials, which may hold hard zeros."""
        return replace(self, unary=unary, vanishing=True)

    def items(self, chosen: slice | Tensor) -> "Equations":
        """Return the equations of some batch items, given as a range or by their numbers."""
        return replace(
            self,
            kernels=tuple(kernel.items(chosen) for kernel in self.kernels),
            unary=tuple(u if len(u) == 1 else u[chosen] for u in self.unary),
            batch=len(range(self.batch)[chosen]) if isinstance(chosen, slice) else len(chosen),
        )

    def part(self, messages: Messages, chosen: slice | Tensor) -> tuple["Equations", Messages]:
        """Return equations and messages of some batch items, given as a range or by numbers."""
        if isinstance(chosen, Tensor) and len(chosen) == self.batch:
            return self, messages
        return self.items(chosen), tuple(message[chosen] for message in messages)

    def _in_ranges(
        self, compute: Callable[["Equations", Messages], Tensor], messages: Messages
    ) -> Tensor:
        """Apply ``compute`` to the `ranges` of the batch, and concatenate the (B, ...) results."""
        recorded = self.records or any(message.requires_grad for message in messages)
        if self.at_once >= self.batch or (recorded and torch.is_grad_enabled()):
            return compute(self, messages)
        parts = (self.part(messages, part) for part in self.ranges(self.at_once))
        return torch.cat([compute(*part) for part in parts])

    def ranges(self, size: int) -> list[slice]:
        """Return ranges of the batch, of ``size`` items each."""
        return [slice(at, min(at + size, self.batch)) for at in range(0, self.batch, size)]

    @cached_property
    def at_once(self) -> int:
        """How many items fit the processor's cache; all if a part costs as much as all."""
        if not self.unary or not self.divisible or self.unary_device.type != "cpu":
            return max(self.batch, 1)
        messages = sum(c.size * c.count for c in self.edges.classes)
        numbers = 6 * messages + sum(kernel.entries for kernel in self.kernels)
        each = numbers * torch.finfo(self.dtype).bits / 8
        return max(1, int(16 * tuning.CORE_BLOCK / max(each, 1.0)))

    @cached_property
    def operations(self) -> float:
        """The approximate number of operations of a sweep for a batch item."""
        return sum(kernel.operations for kernel in self.kernels)

    @property
    def divisible(self) -> bool:
        """True if a sweep of n batch items costs about n times that of one."""
        return self.boundary is None and all(kernel.divisible for kernel in self.kernels)


def added_rows(total: Tensor, port: Port, values: Tensor) -> Tensor:
    """Add a port's (B, n) values to the (B, F) values at its factors."""
    if port.rows is None:
        return total + values
    return total.expand(len(values), -1).index_add(1, port.rows.to(values.device), values)


def arriving(c: SizeClass, values: Tensor) -> Tensor:
    """Return the (B, K, n) sums of edge values (B, K, E) at the variables."""
    total = values.new_zeros(*values.shape[:2], len(c.variables))
    if values.requires_grad or c.count <= tuning.CACHED_EDGES:
        return total.index_add(2, c.variable, values)
    # The variables of all edges of a large graph are not written into one tensor.
    for places, variables in c.each():
        total.index_add_(2, variables, values[:, :, places])
    return total


def _joined(sums: Sequence[MessageSums], boundary: Boundary) -> list[MessageSums]:
    """Add up sums over all parts; hard zeros are counted apart."""
    pairs = [(s.total, s.zeros) for s in sums if s.zeros is not None]
    both = boundary.joined([torch.cat(pair, 1) for pair in pairs])
    halves = (values.split(values.shape[1] // 2, 1) for values in both)
    return [MessageSums(total, zeros) for total, zeros in halves]


def _added(
    total: Tensor, dead: Tensor, logs: Tensor, count: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    gone = logs.detach() == -math.inf
    kept = torch.where(gone, 0.0, logs).double()
    if count is not None:
        kept = kept * count
    return total + kept.sum(1), dead | gone.any(1)
