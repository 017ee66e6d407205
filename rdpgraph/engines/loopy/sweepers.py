"""Sweepers: the fastest ways to carry out a schedule's sweeps in a model."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from functools import partial

import torch
from torch import Tensor

from rdpgraph.engines.loopy.arithmetic import neighbours, rescaled, take
from rdpgraph.engines.loopy.clusters import ClusterKernel
from rdpgraph.engines.loopy.compiled import compiled_messages, is_served
from rdpgraph.engines.loopy.edges import Edges
from rdpgraph.engines.loopy.equations import Equations, Messages
from rdpgraph.engines.loopy.high_order import HighOrderKernel
from rdpgraph.engines.loopy.kernels import TableKernel
from rdpgraph.engines.loopy.log_odds import CompiledOdds, LogOdds, ParityMessages
from rdpgraph.engines.loopy.schedules import (
    Damping,
    Flooding,
    LogDamping,
    ProbabilityDamping,
    Schedule,
    unasked,
)
from rdpgraph.engines.loopy.subsets import (
    KernelCall,
    candidates,
    incoming,
    refreshed,
    subset_of,
    written,
)


class Sweeper(ABC):
    """What carries out the sweeps of a schedule."""

    divides = True  # it is faster on fewer items, by `Equations.part`

    def __init__(self, equations: Equations, damping: Damping) -> None:
        self.equations, self.damping = equations, damping
        self.updates = 0  # number of messages updated so far

    def sweep_items(
        self, messages: Messages, sets: Iterable[Tensor | None], places: Tensor, most: int,
        tolerance: float,
    ) -> tuple[Messages, Tensor, Tensor]:  # fmt: skip
        """Sweep once, or ``most`` times where that is as well, until items are within a tolerance.

        Args:
            messages: those of all items.
            sets: the edges that a sweep updates, one set after the other.
            places: (n,) the items that matter; others may be swept too.
            most: the most sweeps.
            tolerance: the change at which an item ends.

        Returns:
            The messages; (sweeps, n) float64 largest changes; (n,) how many sweeps each item took.
        """
        del most, tolerance
        messages, change = self.sweep(messages, sets)
        changes = change.cpu().double()[places].unsqueeze(0)
        return messages, changes, torch.ones_like(places)

    @property
    def operations(self) -> float:
        """The approximate operations of a sweep for an item, unless kernels count them."""
        return self.equations.operations

    @abstractmethod
    def sweep(self, messages: Messages, sets: Iterable[Tensor | None]) -> tuple[Messages, Tensor]:
        """Return the messages after one sweep of these sets, and the (B,) largest changes."""

    def finish(self, messages: Messages) -> Messages:
        """Return the messages in the form that all sweepers share. Sweeps may go on after this."""
        return messages

    def best_states(self, messages: Messages) -> Tensor:
        """Return the (B, V) best states of all variables by the present messages."""
        return self.equations.best_states(self.equations.beliefs(self.finish(messages)))

    def residuals(self) -> Tensor:
        """Return (E,) how much messages of the only batch item would change now, within a sweep."""
        return unasked()

    def _mixed(self, new: Tensor, old: Tensor) -> Tensor:
        """Return damped messages, rescaled."""
        if self.damping.share == 0:
            return new
        return rescaled(self.damping.mix(new, old), vanishing=self.equations.vanishing)[0]


def sweeper_for(equations: Equations, schedule: Schedule, damping: Damping) -> Sweeper:
    """Return the fastest sweeper for a model and a schedule."""
    floods = isinstance(schedule, Flooding)
    plain = floods and not (torch.is_grad_enabled() and equations.records)
    if plain and isinstance(damping, LogDamping):
        if CompiledOdds.applies(equations):
            return _Held(equations, damping, CompiledOdds)
        if (even := ParityMessages.evens(equations)) is not None:
            return _Held(equations, damping, partial(ParityMessages, even))
        if LogOdds.applies(equations):
            return _Held(equations, damping, LogOdds)
    if serves(equations, damping):
        return _Compiled(equations, damping, schedule)
    blind = not floods and not schedule.looks_at_residuals
    if blind and all(isinstance(kernel, ClusterKernel) for kernel in equations.kernels):
        return _Paired(equations, damping)
    if not blind or equations.unary_device.type != "cpu":
        return _Masked(equations, damping, looks=schedule.looks_at_residuals)
    return _InTurn(equations, damping)


class _Held(Sweeper):
    """Floods with messages in another form, which are converted at the end."""

    def __init__(
        self, equations: Equations, damping: Damping,
        form: Callable[[Equations, Messages], CompiledOdds | LogOdds | ParityMessages],
    ) -> None:  # fmt: skip
        super().__init__(equations, damping)
        self._form = form
        self.divides = form is not CompiledOdds  # which sweeps the items that matter alone
        self._state: CompiledOdds | LogOdds | ParityMessages | None = None

    @property
    def operations(self) -> float:
        served = self._form is CompiledOdds and self.equations.temperature == 0
        return _of_maxima(self.equations) if served else self.equations.operations

    def sweep_items(
        self, messages: Messages, sets: Iterable[Tensor | None], places: Tensor, most: int,
        tolerance: float,
    ) -> tuple[Messages, Tensor, Tensor]:  # fmt: skip
        state = self._held(messages)
        if not isinstance(state, CompiledOdds):
            return super().sweep_items(messages, sets, places, most, tolerance)
        changes, counts = state.sweeps(places, most, tolerance, self.damping.share)
        self.updates += len(changes) * self.equations.edges.count
        return messages, changes, counts

    def _held(self, messages: Messages) -> CompiledOdds | LogOdds | ParityMessages:
        if self._state is None:
            self._state = self._form(self.equations, messages)
        return self._state

    def sweep(self, messages: Messages, sets: Iterable[Tensor | None]) -> tuple[Messages, Tensor]:
        del sets
        largest = self._held(messages).step(self.damping.share)
        self.updates += self.equations.edges.count
        return messages, largest

    def finish(self, messages: Messages) -> Messages:
        return messages if self._state is None else self._state.messages()


def _of_maxima(equations: Equations) -> float:
    """Return the approximate operations of a sweep of maxima by compiled code, for an item."""
    kernels = (k for k in equations.kernels if isinstance(k, TableKernel | HighOrderKernel))
    return sum(kernel.swept_operations for kernel in kernels)


def serves(equations: Equations, damping: Damping) -> bool:
    """Return whether compiled code carries out the sweeps of any schedule."""
    if torch.is_grad_enabled() and equations.records:
        return False
    if damping.share and type(damping) not in (LogDamping, ProbabilityDamping):
        return False
    return is_served(equations)


class _Compiled(Sweeper):
    """Sweeps by compiled code, which holds the messages until `finish`."""

    divides = False

    def __init__(self, equations: Equations, damping: Damping, schedule: Schedule) -> None:
        super().__init__(equations, damping)
        self._compiled = compiled_messages(equations)
        self._floods = isinstance(schedule, Flooding)
        self._looks = schedule.looks_at_residuals
        self._messages: Tensor | None = None
        self._sums: Tensor | None = None  # of messages at variables, in schedules of sets
        self._residuals: Tensor | None = None  # of the only item, where a schedule looks at them

    @property
    def operations(self) -> float:
        if self.equations.temperature == 0:
            return _of_maxima(self.equations)
        high_order = (k for k in self.equations.kernels if isinstance(k, HighOrderKernel))
        return self.equations.operations + sum(kernel.swept_operations for kernel in high_order)

    def sweep_items(
        self, messages: Messages, sets: Iterable[Tensor | None], places: Tensor, most: int,
        tolerance: float,
    ) -> tuple[Messages, Tensor, Tensor]:  # fmt: skip
        if not self._floods:
            return super().sweep_items(messages, sets, places, most, tolerance)
        changes, counts = self._compiled.sweep(
            self._flat(messages), places, most, tolerance, *self._mixing
        )
        self.updates += len(changes) * self.equations.edges.count
        return messages, changes, counts

    def sweep(self, messages: Messages, sets: Iterable[Tensor | None]) -> tuple[Messages, Tensor]:
        flat, edges, changes = self._flat(messages), self.equations.edges, list[Tensor]()
        if self._sums is None:
            self._sums = self._compiled.beliefs(flat)
        for chosen in sets:
            some = torch.arange(edges.count, device="cpu") if chosen is None else chosen
            changes.append(
                self._compiled.update(flat, self._sums, self._residuals, some.cpu(), *self._mixing)
            )
            self.updates += len(some)
        if self._looks:
            return messages, self.residuals().amax().reshape(1)
        return messages, torch.stack(changes).amax(0)

    def residuals(self) -> Tensor:
        assert self._messages is not None
        if self._sums is None:
            self._sums = self._compiled.beliefs(self._messages)
        if self._residuals is None:
            self._residuals = self._compiled.residuals(self._messages, self._sums)
        return self._residuals.clone()  # which changes with the next set

    @property
    def _mixing(self) -> tuple[float, bool]:
        """The share of old messages, and whether values are mixed and not logs."""
        return self.damping.share, isinstance(self.damping, ProbabilityDamping)

    def best_states(self, messages: Messages) -> Tensor:
        return self._compiled.best_states(self._flat(messages))

    def _flat(self, messages: Messages) -> Tensor:
        if self._messages is None:
            self._messages = self._compiled.flat(messages)
        return self._messages

    def finish(self, messages: Messages) -> Messages:
        return messages if self._messages is None else self._compiled.by_class(self._messages)


class _Masked(Sweeper):
    """Computes all messages and takes those of a set, for flooding, residuals and devices."""

    _current: Messages
    _updated: Messages | None

    def __init__(self, equations: Equations, damping: Damping, *, looks: bool) -> None:
        super().__init__(equations, damping)
        self._looks = looks

    def sweep(self, messages: Messages, sets: Iterable[Tensor | None]) -> tuple[Messages, Tensor]:
        equations, edges = self.equations, self.equations.edges
        self._current, self._updated = messages, None
        changes: list[Tensor] = []
        for chosen in sets:
            current = self._current
            pairs = list(zip(self._updates(), current, strict=True))
            self._updated = None
            mixed = tuple(self._mixed(new, old) for new, old in pairs)
            # All messages, or those of the set alone, whose others stay.
            if chosen is None:
                deltas = [equations.change(new, old) for new, old in pairs]
                changes.append(
                    _largest(deltas) if edges.count else torch.zeros(equations.batch, device="cpu")
                )
                self._current = mixed
                self.updates += edges.count
                continue
            asked = torch.zeros(edges.count, dtype=torch.bool, device="cpu")
            asked[chosen] = True
            masks = torch.split(asked.to(equations.unary_device), [c.count for c in edges.classes])
            parts = zip(masks, pairs, strict=True)
            changes.append(
                _largest([torch.where(m, equations.change(*pair), 0.0) for m, pair in parts])
            )
            self._current = tuple(
                torch.where(mask, new, old)
                for mask, new, old in zip(masks, mixed, current, strict=True)
            )
            self.updates += len(chosen)
        if self._looks:
            return self._current, self.residuals().amax().reshape(1)
        return self._current, torch.stack(changes).amax(0)

    def residuals(self) -> Tensor:
        pairs = zip(self._updates(), self._current, strict=True)
        return torch.cat([self.equations.change(new, old)[0] for new, old in pairs]).cpu()

    def _updates(self) -> Messages:
        """Return all messages updated from the current ones; residuals and a set share them."""
        if self._updated is None:
            self._updated = self.equations.update(self._current)
        return self._updated


class _Paired(Sweeper):
    """Sweeps over clusters whose separators join two each, in schedules that read no residuals.

    What one cluster sent is what the other receives. Messages are held edge by edge until `finish`.
    """

    def __init__(self, equations: Equations, damping: Damping) -> None:
        super().__init__(equations, damping)
        self._held: list[Tensor] | None = None  # per class (B, E, K)

    def sweep(self, messages: Messages, sets: Iterable[Tensor | None]) -> tuple[Messages, Tensor]:
        edges = self.equations.edges
        if self._held is None:
            self._held = [message.transpose(1, 2).contiguous() for message in messages]
        largest = messages[0].new_zeros(len(messages[0]))
        for chosen in sets:
            subset = subset_of(edges, chosen)
            every = candidates(self.equations, subset, self._incoming)
            for part, new in zip(subset.parts, every, strict=True):
                held = self._held[edges.segments[part.segment].size_class]
                places = neighbours(part.places)
                old = held[:, places].transpose(1, 2)
                largest = torch.maximum(largest, self.equations.change(new, old).amax(1))
                held[:, places] = self._mixed(new, old).transpose(1, 2)
            self.updates += edges.count if chosen is None else len(chosen)
        return messages, largest

    def _incoming(self, asked: KernelCall) -> list[Tensor]:
        """Return for each port the (B, K, n) incoming messages of some clusters."""
        assert self._held is not None
        edges, incoming = self.equations.edges, list[Tensor]()
        partners = edges.remembered("partners", _partners)
        for segment in (edges.segments[number] for number in edges.by_kernel[asked.kernel]):
            others = partners[segment.size_class][segment.start : segment.stop][asked.rows]
            incoming.append(self._held[segment.size_class][:, others].transpose(1, 2))
        return incoming

    def finish(self, messages: Messages) -> Messages:
        if self._held is None:
            return messages
        return tuple(held.transpose(1, 2).contiguous() for held in self._held)


def _partners(edges: Edges) -> list[Tensor]:
    """Return for each class the (E,) other edges at the edges' variables."""
    partners: list[Tensor] = []
    for c in edges.classes:
        first, second = c.variable.argsort(stable=True).reshape(-1, 2).T
        other = torch.empty_like(c.variable)
        other[first], other[second] = second, first
        partners.append(other)
    return partners


class _InTurn(Sweeper):
    """Updates messages set by set, in schedules that see no residuals."""

    def sweep(self, messages: Messages, sets: Iterable[Tensor | None]) -> tuple[Messages, Tensor]:
        equations, edges = self.equations, self.equations.edges
        messages = tuple(message.clone() for message in messages)
        sums = equations.sums(messages)
        largest: list[Tensor] = []
        for chosen in sets:
            selected = subset_of(edges, chosen)
            new = candidates(equations, selected, partial(incoming, equations, messages, sums))
            mixed: list[Tensor] = []
            changes: list[Tensor] = []
            for part, values in zip(selected.parts, new, strict=True):
                number = edges.segments[part.segment].size_class
                old = take(messages[number], part.places)
                changes.append(equations.change(values, old))
                mixed.append(self._mixed(values, old))
            messages = written(equations, messages, selected, mixed)
            sums = refreshed(equations, messages, sums, selected)
            largest.append(_largest(changes))
            self.updates += edges.count if chosen is None else len(chosen)
        return messages, torch.stack(largest).amax(0)


@torch.no_grad()
def residual_of_all(equations: Equations, messages: Messages) -> Tensor:
    """Return the (B,) largest change of a message if all messages were updated now."""
    pairs = zip(equations.update(messages), messages, strict=True)
    return _largest([equations.change(new, old) for new, old in pairs])


def _largest(parts: list[Tensor]) -> Tensor:
    """Return the (B,) largest of changes (B, n), of which some may be empty."""
    largest = [part.amax(1) for part in parts if part.shape[1]]
    return largest[0] if len(largest) == 1 else torch.stack(largest).amax(0)
