"""Carrying out the sweeps of a schedule: which of several equal ways is quickest."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from rdpgraph.engines.loopy.arithmetic import change, normalised, take
from rdpgraph.engines.loopy.binary import LogOdds
from rdpgraph.engines.loopy.damping import Damping, LogDamping
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
from rdpgraph.plan import clock


def sweeper_for(field: Field, schedule: Schedule, damping: Damping) -> "Sweeper":
    """The quickest way for a field and a schedule."""
    if _by_log_odds(field, schedule, damping):
        return _ByLogOdds(field, schedule, damping)
    elsewhere = field.unary_device.type != "cpu"
    if isinstance(schedule, Flooding) or field.vanishing or elsewhere:
        return _Masked(field, schedule, damping)
    if schedule.looks_at_residuals:
        return _ByResidual(field, schedule, damping)
    return _InTurn(field, schedule, damping)


class Sweeper(ABC):
    """Carries out the sweeps of a schedule."""

    def __init__(self, field: Field, schedule: Schedule, damping: Damping) -> None:
        self.field = field
        self.schedule = schedule
        self.damping = damping
        self.updates = 0
        self.deadline = math.inf  # on `clock.now`, for what takes a sweep in many parts
        self.cut = False  # the last sweep ended at the deadline, before its end

    @abstractmethod
    def sweep(self, messages: Messages, number: int) -> tuple[Messages, Tensor]:
        """The messages after one sweep, and (B,) the largest change."""

    def _chosen(self, residuals: Callable[[], Tensor], number: int) -> Iterator[Tensor | None]:
        """What the schedule chooses, checked."""
        count, some = self.field.edges.count, False
        for chosen in self.schedule.sweep(self.field.edges, residuals, number):
            if chosen is not None:
                fits = isinstance(chosen, Tensor) and chosen.dtype == torch.int64
                if not fits or (
                    len(chosen) and not 0 <= int(chosen.amin()) <= int(chosen.amax()) < count
                ):
                    raise ModelError(
                        f"{type(self.schedule).__name__}.sweep yields numbers of messages, int64 "
                        f"from 0 to {count - 1}, or None for all; got {chosen!r:.80}."
                    )
                if not len(chosen):
                    continue
            some = True
            yield chosen
        if not some:
            raise ModelError(f"{type(self.schedule).__name__}.sweep yielded no message.")

    def _mixed(self, new: Tensor, old: Tensor) -> Tensor:
        """Damped, and normalised again."""
        if self.damping.share == 0:
            return new
        return normalised(self.damping.mix(new, old), vanishing=self.field.vanishing)[0]

    def finish(self, messages: Messages) -> Messages:
        """The messages at the end, where `sweep` has held them in another form."""
        return messages


def _by_log_odds(field: Field, schedule: Schedule, damping: Damping) -> bool:
    if not isinstance(schedule, Flooding) or not isinstance(damping, LogDamping):
        return False
    if field.batch > 1:
        return False  # finished items of a batch are held still, which log-odds are not made for
    return not (torch.is_grad_enabled() and field.records) and LogOdds.applies(field)


class _ByLogOdds(Sweeper):
    """Flooding in binary pairwise models."""

    def __init__(self, field: Field, schedule: Schedule, damping: Damping) -> None:
        super().__init__(field, schedule, damping)
        self._state: LogOdds | None = None

    def sweep(self, messages: Messages, number: int) -> tuple[Messages, Tensor]:
        del number
        if self._state is None:
            self._state = LogOdds(self.field, messages)
        largest = self._state.step(self.damping.share)
        self.updates += self.field.edges.count
        return messages, largest

    def finish(self, messages: Messages) -> Messages:
        return messages if self._state is None else self._state.messages()


class _Masked(Sweeper):
    """All messages computed, those of a set taken: for flooding, careful equations, devices."""

    def sweep(self, messages: Messages, number: int) -> tuple[Messages, Tensor]:
        field, edges = self.field, self.field.edges
        current = messages

        def residuals() -> Tensor:
            pairs = zip(field.update(current), current, strict=True)
            return torch.cat([change(new, old, field.seen)[0] for new, old in pairs]).cpu()

        looks = self.schedule.looks_at_residuals
        changes: list[Tensor] = []
        for chosen in self._chosen(residuals if looks else _none, number):
            found = field.update(current)
            pairs = list(zip(found, current, strict=True))
            mixed = tuple(self._mixed(new, old) for new, old in pairs)
            if chosen is None:
                changes.append(_largest([change(new, old, field.seen) for new, old in pairs]))
                current = mixed
                self.updates += edges.count
                continue
            here = torch.zeros(edges.count, dtype=torch.bool)
            here[chosen] = True
            masks = torch.split(here.to(field.unary_device), [c.count for c in edges.classes])
            parts = zip(masks, pairs, strict=True)
            changes.append(
                _largest([torch.where(m, change(*pair, field.seen), 0.0) for m, pair in parts])
            )
            current = tuple(
                torch.where(mask, new, old)
                for mask, new, old in zip(masks, mixed, current, strict=True)
            )
            self.updates += len(chosen)
        if looks:
            return current, residuals().amax().reshape(1)
        return current, torch.stack(changes).amax(0)


class _InTurn(Sweeper):
    """Schedules that are blind to the messages."""

    def __init__(self, field: Field, schedule: Schedule, damping: Damping) -> None:
        super().__init__(field, schedule, damping)
        self._selections: dict[int, tuple[Tensor, Selection]] = {}
        self._held = 0

    def sweep(self, messages: Messages, number: int) -> tuple[Messages, Tensor]:
        field, edges = self.field, self.field.edges
        messages = _own(messages)
        beliefs = list(field.beliefs(messages))
        changes: list[Tensor] = []
        for chosen in self._chosen(_none, number):
            everything = torch.arange(edges.count) if chosen is None else chosen
            messages, beliefs, here = self._some(messages, beliefs, everything)
            changes.append(here)
            self.updates += len(everything)
            if clock.now() > self.deadline:
                self.cut = True
                break
        return messages, torch.stack(changes).amax(0)

    def _some(
        self, messages: Messages, beliefs: list[Tensor], chosen: Tensor
    ) -> tuple[Messages, list[Tensor], Tensor]:
        field = self.field
        known = self._selections.get(id(chosen))
        if known is None:
            known = (chosen, selection(field.edges, chosen))
            self._held += len(chosen)
            if self._held <= 4 * field.edges.count:  # sets that never recur are not all kept
                self._selections[id(chosen)] = known
        selected = known[1]
        new = candidates(field, messages, beliefs, selected)
        mixed: list[Tensor] = []
        changes: list[Tensor] = []
        for part, values in zip(selected.parts, new, strict=True):
            number = field.edges.segments[part.segment].size_class
            old = take(messages[number], part.places)
            changes.append(change(values, old, field.seen))
            mixed.append(self._mixed(values, old))
        messages = written(field, messages, selected, mixed)
        beliefs = refreshed(field, messages, beliefs, selected)
        return messages, beliefs, _largest(changes)


class _ByResidual(Sweeper):
    """Schedules that look at how much every message would change; one batch item."""

    def __init__(self, field: Field, schedule: Schedule, damping: Damping) -> None:
        super().__init__(field, schedule, damping)
        self._state: tuple[Messages, list[Tensor], Messages, Tensor] | None = None

    def sweep(self, messages: Messages, number: int) -> tuple[Messages, Tensor]:
        field, edges = self.field, self.field.edges
        if self._state is None:
            messages = _own(messages)
            beliefs = list(field.beliefs(messages))
            ready = _own(field.update(messages))
            changes = zip(ready, messages, strict=True)
            residual = torch.cat([change(new, old, field.seen)[0] for new, old in changes])
        else:
            messages, beliefs, ready, residual = self._state

        def residuals() -> Tensor:
            return residual

        for chosen in self._chosen(residuals, number):
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
            residual[places + c.first] = change(take(new, places), take(old, places), field.seen)[0]
    return residual


def _own(messages: Messages) -> Messages:
    """Copies that may be written to."""
    return tuple(message.clone() for message in messages)


def _none() -> Tensor:
    raise ModelError("A Schedule that calls residuals() must say so in looks_at_residuals.")


@torch.no_grad()
def residual_of_all(field: Field, messages: Messages) -> Tensor:
    """(B,) the largest change that any message would make now."""
    pairs = zip(field.update(messages), messages, strict=True)
    return _largest([change(new, old, field.seen) for new, old in pairs])


def _largest(parts: list[Tensor]) -> Tensor:
    """(B,) the largest of changes (B, n), of which some may be empty."""
    found = [part.amax(1) for part in parts if part.shape[1]]
    return found[0] if len(found) == 1 else torch.stack(found).amax(0)
