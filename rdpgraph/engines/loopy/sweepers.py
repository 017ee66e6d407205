"""Carrying out the sweeps of a schedule: which of several equal ways is fastest."""

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor

from rdpgraph.engines.loopy.arithmetic import take
from rdpgraph.engines.loopy.binary import LogOdds
from rdpgraph.engines.loopy.damping import Damping, LogDamping
from rdpgraph.engines.loopy.edges import Edges
from rdpgraph.engines.loopy.equations import Equations, Messages, Sums
from rdpgraph.engines.loopy.paired import Paired
from rdpgraph.engines.loopy.partial import (
    EdgeSubsets,
    affected,
    candidates,
    edge_subset,
    refreshed,
    written,
)
from rdpgraph.engines.loopy.schedules import Flooding, Schedule
from rdpgraph.engines.loopy.sweeper import Residuals, Sweeper, unasked
from rdpgraph.errors import ModelError
from rdpgraph.plan import clock


def sweeper_for(
    equations: Equations, schedule: Schedule, damping: Damping, known: EdgeSubsets
) -> Sweeper:
    """The fastest way for a model and a schedule."""
    if _by_log_odds(equations, schedule, damping):
        return _ByLogOdds(equations, damping)
    blind = not isinstance(schedule, Flooding) and not schedule.looks_at_residuals
    if blind and Paired.applies(equations):
        return Paired(equations, damping, known)
    if isinstance(schedule, Flooding) or equations.unary_device.type != "cpu":
        return _Masked(equations, damping, looks=schedule.looks_at_residuals)
    if schedule.looks_at_residuals:
        return _ByResidual(equations, damping)
    return _InTurn(equations, damping, known)


def sets_of(
    schedule: Schedule, edges: Edges, residuals: Callable[[], Tensor] | None, number: int
) -> Iterator[Tensor | None]:
    """What a schedule chooses in a sweep, checked; without ``residuals`` it must be blind."""
    count, some = edges.count, False
    sets: object = schedule.sweep(edges, Residuals(residuals or unasked), number)
    if isinstance(sets, Tensor) or not isinstance(sets, Iterable):
        raise ModelError(
            f"{type(schedule).__name__}.sweep yields sets of messages, one after the other; it "
            f"returned {sets!r:.80}."
        )
    for chosen in sets:
        if chosen is not None:
            fits = isinstance(chosen, Tensor) and chosen.dtype == torch.int64 and chosen.ndim == 1
            if not fits or (
                len(chosen) and not 0 <= int(chosen.amin()) <= int(chosen.amax()) < count
            ):
                raise ModelError(
                    f"{type(schedule).__name__}.sweep yields numbers of messages, (n,) int64 "
                    f"from 0 to {count - 1}, or None for all; got {chosen!r:.80}."
                )
            if not len(chosen):
                continue
        some = True
        yield chosen
    if not some:
        raise ModelError(f"{type(schedule).__name__}.sweep yielded no message.")


def _by_log_odds(equations: Equations, schedule: Schedule, damping: Damping) -> bool:
    if not isinstance(schedule, Flooding) or not isinstance(damping, LogDamping):
        return False
    return not (torch.is_grad_enabled() and equations.records) and LogOdds.applies(equations)


class _ByLogOdds(Sweeper):
    """Flooding in binary pairwise models."""

    def __init__(self, equations: Equations, damping: Damping) -> None:
        super().__init__(equations, damping)
        self._state: LogOdds | None = None

    def sweep(self, messages: Messages, sets: Iterable[Tensor | None]) -> tuple[Messages, Tensor]:
        del sets
        if self._state is None:
            self._state = LogOdds(self.equations, messages)
        largest = self._state.step(self.damping.share)
        self.updates += self.equations.edges.count
        return messages, largest

    def residuals(self) -> Tensor:
        return unasked()

    def finish(self, messages: Messages) -> Messages:
        return messages if self._state is None else self._state.messages()


class _Masked(Sweeper):
    """All messages computed, those of a set taken: for flooding, and devices."""

    _current: Messages

    def __init__(self, equations: Equations, damping: Damping, *, looks: bool) -> None:
        super().__init__(equations, damping)
        self._looks = looks

    def sweep(self, messages: Messages, sets: Iterable[Tensor | None]) -> tuple[Messages, Tensor]:
        equations, edges = self.equations, self.equations.edges
        self._current = messages
        changes: list[Tensor] = []
        for chosen in sets:
            current = self._current
            updated = equations.update(current)
            pairs = list(zip(updated, current, strict=True))
            mixed = tuple(self._mixed(new, old) for new, old in pairs)
            if chosen is None:
                own = [equations.change(new, old) for new, old in pairs]
                changes.append(_largest(own) if edges.count else _nothing(equations))
                self._current = mixed
                self.updates += edges.count
                continue
            here = torch.zeros(edges.count, dtype=torch.bool, device="cpu")
            here[chosen] = True
            masks = torch.split(here.to(equations.unary_device), [c.count for c in edges.classes])
            parts = zip(masks, pairs, strict=True)
            changes.append(
                _largest([torch.where(m, equations.change(*pair), 0.0) for m, pair in parts])
            )
            self._current = tuple(
                torch.where(mask, new, old)
                for mask, new, old in zip(masks, mixed, current, strict=True)
            )
            self.updates += len(chosen)
            if clock.now() > self.deadline:
                self.cut = not self._looks
                break
        if self._looks:
            return self._current, self.residuals().amax().reshape(1)
        return self._current, torch.stack(changes).amax(0)

    def residuals(self) -> Tensor:
        equations, current = self.equations, self._current
        pairs = zip(equations.update(current), current, strict=True)
        return torch.cat([equations.change(new, old)[0] for new, old in pairs]).cpu()


class _InTurn(Sweeper):
    """Schedules that are blind to the messages."""

    def __init__(self, equations: Equations, damping: Damping, known: EdgeSubsets) -> None:
        super().__init__(equations, damping)
        self._known = known

    def sweep(self, messages: Messages, sets: Iterable[Tensor | None]) -> tuple[Messages, Tensor]:
        equations, edges = self.equations, self.equations.edges
        messages = _copies(messages)
        sums = equations.sums(messages)
        largest: list[Tensor] = []
        for chosen in sets:
            selected = self._known.of(edges, chosen)
            new = candidates(equations, messages, sums, selected)
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
            if clock.now() > self.deadline:
                self.cut = True
                break
        return messages, torch.stack(largest).amax(0)

    def residuals(self) -> Tensor:
        return unasked()


class _ByResidual(Sweeper):
    """Schedules that look at how much every message would change; one batch item."""

    _residual: Tensor

    def __init__(self, equations: Equations, damping: Damping) -> None:
        super().__init__(equations, damping)
        self._state: tuple[list[Sums], Messages] | None = None

    def sweep(self, messages: Messages, sets: Iterable[Tensor | None]) -> tuple[Messages, Tensor]:
        equations, edges = self.equations, self.equations.edges
        if self._state is None:
            messages = _copies(messages)
            sums, ready = equations.sums(messages), _copies(equations.update(messages))
            changes = zip(ready, messages, strict=True)
            self._residual = torch.cat([equations.change(new, old)[0] for new, old in changes])
        else:
            sums, ready = self._state
        for chosen in sets:
            everything = torch.arange(edges.count, device="cpu") if chosen is None else chosen
            selected = edge_subset(edges, everything)
            mixed: list[Tensor] = []
            for part in selected.parts:
                place = edges.segments[part.segment].size_class
                new = take(ready[place], part.places)
                old = take(messages[place], part.places)
                mixed.append(self._mixed(new, old))
            messages = written(equations, messages, selected, mixed)
            sums = refreshed(equations, messages, sums, selected)
            self.updates += len(everything)
            again = torch.zeros(edges.count, dtype=torch.bool, device="cpu")
            again[affected(edges, selected)] = True
            behind = edge_subset(edges, again.nonzero().flatten())
            ready = written(equations, ready, behind, candidates(equations, messages, sums, behind))
            again[everything] = True
            self._residual = _renewed(equations, self._residual, again, ready, messages)
            if clock.now() > self.deadline:
                break  # the residuals are those of all messages, also of those not updated
        self._state = sums, ready
        return messages, self._residual.amax().reshape(1)

    def residuals(self) -> Tensor:
        return self._residual


def _renewed(
    equations: Equations, residual: Tensor, again: Tensor, ready: Messages, messages: Messages
) -> Tensor:
    """Residuals of some edges, recomputed."""
    residual = residual.clone()
    for c, new, old in zip(equations.edges.classes, ready, messages, strict=True):
        places = again[c.first : c.first + c.count].nonzero().flatten()
        if len(places):
            residual[places + c.first] = equations.change(take(new, places), take(old, places))[0]
    return residual


def _copies(messages: Messages) -> Messages:
    """Copies that may be written to."""
    return tuple(message.clone() for message in messages)


@torch.no_grad()
def residual_of_all(equations: Equations, messages: Messages) -> Tensor:
    """(B,) the largest change that any message would make now."""
    pairs = zip(equations.update(messages), messages, strict=True)
    return _largest([equations.change(new, old) for new, old in pairs])


def _nothing(equations: Equations) -> Tensor:
    """(B,) the change of no message: of a part of a model that has none."""
    return torch.zeros(equations.batch, device="cpu")


def _largest(parts: list[Tensor]) -> Tensor:
    """(B,) the largest of changes (B, n), of which some may be empty."""
    largest = [part.amax(1) for part in parts if part.shape[1]]
    return largest[0] if len(largest) == 1 else torch.stack(largest).amax(0)
