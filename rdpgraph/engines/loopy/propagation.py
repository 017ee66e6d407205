"""Sweeps of messages until they stop changing."""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import field as dataclass_field

import torch
from torch import Tensor

from rdpgraph.engines.loopy.arithmetic import change, normalised, take
from rdpgraph.engines.loopy.binary import LogOdds
from rdpgraph.engines.loopy.field import Field, Messages
from rdpgraph.engines.loopy.partial import (
    Selection,
    affected,
    candidates,
    refreshed,
    selection,
    written,
)
from rdpgraph.engines.loopy.schedules import Flooding, Schedule
from rdpgraph.errors import ModelError


class Damping(ABC):
    """How an old message and a new one are mixed.

    Attributes:
        share: of the old one; at 0 nothing is mixed.
    """

    share: float

    @abstractmethod
    def mix(self, new: Tensor, old: Tensor) -> Tensor:
        """(B, K, n) log-messages whose maximum is 0 or near it."""


def _checked(share: float) -> None:
    if not 0 <= share < 1:
        raise ModelError(f"Damping keeps a share of the old message, 0 <= share < 1; got {share}.")


@dataclass(frozen=True)
class LogDamping(Damping):
    """A geometric mean: ``log m = (1 - share) log m_new + share log m_old``."""

    share: float

    def __post_init__(self) -> None:
        _checked(self.share)

    def mix(self, new: Tensor, old: Tensor) -> Tensor:
        """Weighted sum of logs; a hard zero in either is one in the result."""
        return new if self.share == 0 else (1 - self.share) * new + self.share * old


@dataclass(frozen=True)
class ProbabilityDamping(Damping):
    """An arithmetic mean: ``m = (1 - share) m_new + share m_old``, messages scaled to maximum 1."""

    share: float

    def __post_init__(self) -> None:
        _checked(self.share)

    def mix(self, new: Tensor, old: Tensor) -> Tensor:
        """Weighted sum of values; a hard zero of the new message is one at once."""
        if self.share == 0:
            return new
        pair = torch.stack([new + math.log1p(-self.share), old + math.log(self.share)])
        peak = pair.detach().amax(0)
        shift = torch.where(peak == -math.inf, torch.zeros_like(peak), peak)
        total = (pair - shift).exp().sum(0)
        alive = (total > 0) & (new > -math.inf)
        return torch.where(alive, torch.where(alive, total, 1.0).log() + shift, -math.inf)


@dataclass(frozen=True)
class Sweep:
    """What a progress callback sees after every sweep.

    Attributes:
        number: sweeps done.
        residual: the largest change of a log-message in it, relative beyond one nat.
        seconds: since the start.
        updates: messages updated since the start, of one batch item.
    """

    number: int
    residual: float
    seconds: float
    updates: int


@dataclass(frozen=True)
class Limits:
    """How messages are updated, and when it ends.

    Attributes:
        schedule: the order of updates.
        damping: of every update.
        sweeps: at most.
        tolerance: on the largest change of a log-message, relative beyond one nat.
        seconds: at most, or None.
        progress: called after every sweep.
    """

    schedule: Schedule
    damping: Damping
    sweeps: int
    tolerance: float
    seconds: float | None = None
    progress: Callable[[Sweep], None] | None = None


@dataclass(frozen=True, eq=False)
class Outcome:
    """Where the messages ended.

    Attributes:
        messages: per size class.
        converged: (B,) whether the residual came under the tolerance.
        residual: (B,) in the last sweep.
        trace: the largest residual of every sweep.
        updates: messages updated, of one batch item.
    """

    messages: Messages
    converged: Tensor
    residual: Tensor
    trace: tuple[float, ...]
    updates: int = dataclass_field(default=0)


def propagate(field: Field, start: Messages, limits: Limits) -> Outcome:
    """Run sweeps until every batch item has converged; a finished item changes no more."""
    sweeper: _Sweeper
    if limits.schedule.looks_at_residuals:
        sweeper = _ByResidual(field, limits)
    elif _by_log_odds(field, limits):
        sweeper = _ByLogOdds(field, limits)
    else:
        sweeper = _InTurn(field, limits)
    begin = time.perf_counter()
    messages = start
    residual = torch.full((field.batch,), math.inf)
    done = torch.zeros(field.batch, dtype=torch.bool)
    if not field.edges.count:
        return Outcome(messages, ~done, torch.zeros(field.batch), ())
    trace: list[float] = []
    any_done = False
    for number in range(limits.sweeps):
        before = messages
        messages, largest = sweeper.sweep(messages, number)
        if any_done:
            keep = done.to(messages[0].device).reshape(-1, 1, 1)
            pairs = zip(messages, before, strict=True)
            messages = tuple(torch.where(keep, old, new) for new, old in pairs)
            largest = torch.where(done, residual, largest.cpu().double())
        residual = largest.cpu().double()
        worst = float(residual.amax())
        trace.append(worst)
        if worst <= limits.tolerance or field.batch > 1:
            done = residual <= limits.tolerance
            any_done = bool(done.any())
        spent = time.perf_counter() - begin
        if limits.progress is not None:
            limits.progress(Sweep(number + 1, worst, spent, sweeper.updates))
        if worst <= limits.tolerance or (limits.seconds is not None and spent > limits.seconds):
            break
    messages = sweeper.finish(messages)
    return Outcome(messages, done, residual, tuple(trace), sweeper.updates)


class _Sweeper(ABC):
    """Carries out the sweeps of a schedule."""

    def __init__(self, field: Field, limits: Limits) -> None:
        self.field = field
        self.limits = limits
        self.updates = 0

    @abstractmethod
    def sweep(self, messages: Messages, number: int) -> tuple[Messages, Tensor]:
        """The messages after one sweep, and (B,) the largest change."""

    def _mixed(self, new: Tensor, old: Tensor) -> Tensor:
        """Damped, and normalised again."""
        damping = self.limits.damping
        if damping.share == 0:
            return new
        return normalised(damping.mix(new, old), vanishing=self.field.vanishing)[0]

    def finish(self, messages: Messages) -> Messages:
        """The messages at the end, where `sweep` has held them in another form."""
        return messages


def _by_log_odds(field: Field, limits: Limits) -> bool:
    if not isinstance(limits.schedule, Flooding) or not isinstance(limits.damping, LogDamping):
        return False
    if field.batch > 1 or any(unary.requires_grad for unary in field.unary):
        return False  # finished items of a batch are held still, which log-odds are not made for
    return not (torch.is_grad_enabled() and field.records) and LogOdds.applies(field)


class _ByLogOdds(_Sweeper):
    """Flooding in binary pairwise models."""

    def __init__(self, field: Field, limits: Limits) -> None:
        super().__init__(field, limits)
        self._state: LogOdds | None = None

    def sweep(self, messages: Messages, number: int) -> tuple[Messages, Tensor]:
        del number
        if self._state is None:
            self._state = LogOdds(self.field, messages)
        assert isinstance(self.limits.damping, LogDamping)
        largest = self._state.step(self.limits.damping.share)
        self.updates += self.field.edges.count
        return messages, largest

    def finish(self, messages: Messages) -> Messages:
        return messages if self._state is None else self._state.messages()


class _InTurn(_Sweeper):
    """Schedules that are blind to the messages."""

    def __init__(self, field: Field, limits: Limits) -> None:
        super().__init__(field, limits)
        self._selections: dict[int, tuple[Tensor, Selection]] = {}

    def sweep(self, messages: Messages, number: int) -> tuple[Messages, Tensor]:
        field, edges = self.field, self.field.edges
        largest: Tensor | None = None
        sets = self.limits.schedule.sweep(edges, _no_residuals, number)
        beliefs: list[Tensor] | None = None
        for chosen in sets:
            if chosen is None or field.vanishing:
                messages, here = self._all(messages, chosen)
                beliefs = None
            else:
                if beliefs is None:
                    messages = _own(messages)
                    beliefs = list(field.beliefs(messages))
                messages, beliefs, here = self._some(messages, beliefs, chosen)
            largest = here if largest is None else torch.maximum(largest, here)
            self.updates += edges.count if chosen is None else len(chosen)
        assert largest is not None
        return messages, largest

    def _all(self, messages: Messages, chosen: Tensor | None) -> tuple[Messages, Tensor]:
        """Every message, or those of a set where hard zeros ask for the careful equations."""
        field = self.field
        found = field.update(messages)
        if chosen is None:
            pairs = list(zip(found, messages, strict=True))
            return (
                tuple(self._mixed(new, old) for new, old in pairs),
                _largest([change(new, old) for new, old in pairs]),
            )
        changes: list[Tensor] = []
        result: list[Tensor] = []
        for c, new, old in zip(field.edges.classes, found, messages, strict=True):
            mixed = self._mixed(new, old)
            here = torch.zeros(c.count, dtype=torch.bool)
            own = chosen[(chosen >= c.first) & (chosen < c.first + c.count)] - c.first
            here[own] = True
            mixed = torch.where(here.to(old.device), mixed, old)
            new = torch.where(here.to(old.device), new, old)
            changes.append(change(new, old))
            result.append(mixed)
        return tuple(result), _largest(changes)

    def _some(
        self, messages: Messages, beliefs: list[Tensor], chosen: Tensor
    ) -> tuple[Messages, list[Tensor], Tensor]:
        field = self.field
        known = self._selections.get(id(chosen))
        if known is None:
            known = (chosen, selection(field.edges, chosen))
            if len(self._selections) < 4096:
                self._selections[id(chosen)] = known
        selected = known[1]
        new = candidates(field, messages, beliefs, selected)
        mixed: list[Tensor] = []
        changes: list[Tensor] = []
        for part, values in zip(selected.parts, new, strict=True):
            number = field.edges.segments[part.segment].size_class
            old = take(messages[number], part.places)
            changes.append(change(values, old))
            mixed.append(self._mixed(values, old))
        messages = written(field, messages, selected, mixed)
        beliefs = refreshed(field, messages, beliefs, selected)
        return messages, beliefs, _largest(changes)


class _ByResidual(_Sweeper):
    """Schedules that look at how much every message would change; one batch item."""

    def __init__(self, field: Field, limits: Limits) -> None:
        super().__init__(field, limits)
        self._state: tuple[Messages, list[Tensor], Messages, Tensor] | None = None

    def sweep(self, messages: Messages, number: int) -> tuple[Messages, Tensor]:
        field, edges = self.field, self.field.edges
        if self._state is None:
            messages = _own(messages)
            beliefs = list(field.beliefs(messages))
            ready = _own(field.update(messages))
            changes = zip(ready, messages, strict=True)
            residual = torch.cat([change(new, old)[0] for new, old in changes])
        else:
            messages, beliefs, ready, residual = self._state

        def residuals() -> Tensor:
            return residual

        for chosen in self.limits.schedule.sweep(edges, residuals, number):
            everything = torch.arange(edges.count) if chosen is None else chosen
            selected = selection(edges, everything)
            mixed: list[Tensor] = []
            for part in selected.parts:
                place = edges.segments[part.segment].size_class
                new = take(ready[place], part.places)
                old = take(messages[place], part.places)
                mixed.append(self._mixed(new, old))
            messages = written(field, messages, selected, mixed)
            beliefs = refreshed(field, messages, beliefs, selected)
            self.updates += len(everything)
            again = torch.zeros(edges.count, dtype=torch.bool)
            again[affected(edges, selected)] = True
            if field.vanishing:
                ready = field.update(messages)
            else:
                behind = selection(edges, again.nonzero().flatten())
                ready = written(field, ready, behind, candidates(field, messages, beliefs, behind))
            again[everything] = True
            residual = _renewed(field, residual, again, ready, messages)
        self._state = messages, beliefs, ready, residual
        return messages, residual.amax().reshape(1)


def _renewed(
    field: Field, residual: Tensor, again: Tensor, ready: Messages, messages: Messages
) -> Tensor:
    """Residuals of some edges anew."""
    residual = residual.clone()
    for c, new, old in zip(field.edges.classes, ready, messages, strict=True):
        places = again[c.first : c.first + c.count].nonzero().flatten()
        if len(places):
            residual[places + c.first] = change(take(new, places), take(old, places))[0]
    return residual


def _own(messages: Messages) -> Messages:
    """Copies that may be written to."""
    return tuple(message.clone() for message in messages)


def _no_residuals() -> Tensor:
    raise ModelError("A Schedule that calls residuals() must say so in looks_at_residuals.")


def _largest(parts: list[Tensor]) -> Tensor:
    """(B,) the largest of changes (B, n), of which some may be empty."""
    found = [part.amax(1) for part in parts if part.shape[1]]
    return found[0] if len(found) == 1 else torch.stack(found).amax(0)
