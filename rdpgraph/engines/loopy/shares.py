"""Sweeps over a batch, a few items at a time: as many as the processor's cache holds.

Swept together, a large batch would stream every array through memory in every operation, and be
slower than its items one after the other. The items keep step: each share of them makes one sweep,
then the next share. An item that has converged is swept no more.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from rdpgraph.engines.loopy.damping import Damping
from rdpgraph.engines.loopy.edges import Edges
from rdpgraph.engines.loopy.equations import Equations, Messages
from rdpgraph.engines.loopy.partial import EdgeSubsets
from rdpgraph.engines.loopy.schedules import Schedule
from rdpgraph.engines.loopy.sweepers import Sweeper, sets_of, sweeper_for


@dataclass(eq=False)
class Share:
    """Some items of a batch.

    Attributes:
        items: (n,) their numbers in the batch.
        places: (m,) those of them, by their number here, that have not converged.
        equations: of the items.
        sweeper: carries out the sweeps.
        messages: of the items, after the last sweep.
    """

    items: Tensor
    places: Tensor
    equations: Equations
    sweeper: Sweeper
    messages: Messages

    @property
    def running(self) -> Tensor:
        """(m,) the numbers in the batch of the items that have not converged."""
        return self.items[self.places]


class Shares:
    """A batch in shares, and what has become of its items."""

    def __init__(
        self,
        equations: Equations,
        start: Messages,
        schedule: Schedule,
        damping: Damping,
        deadline: float,
    ) -> None:
        self._field = equations
        self._start = start
        self._schedule = schedule
        self._damping = damping
        self._deadline = deadline
        self._known = equations.edges.remembered("selections", _nothing_selected)
        self._ended: list[tuple[Tensor, Messages]] = []
        self.updates = 0
        size = items_at_once(equations, schedule)
        every = torch.arange(equations.batch, device="cpu")
        self._shares = [
            self._share(part, equations, start)
            if size >= equations.batch
            else self._share(part, *_some(equations, start, slice(int(part[0]), int(part[-1]) + 1)))
            for part in (every.split(size) if equations.batch else ())
        ]

    def _share(self, items: Tensor, equations: Equations, messages: Messages) -> Share:
        sweeper = sweeper_for(equations, self._schedule, self._damping, self._known)
        sweeper.deadline = self._deadline
        return Share(items, torch.arange(len(items), device="cpu"), equations, sweeper, messages)

    def sweep(self, number: int) -> Iterator[tuple[Share, Tensor]]:
        """Every share after its sweep, and (n,) float64 the largest change of its messages."""
        edges, looks = self._field.edges, self._schedule.looks_at_residuals
        # Sets that look at no messages are the same for all items, though they may be random.
        blind = [] if looks else list(sets_of(self._schedule, edges, None, number))
        for share in list(self._shares):
            own = share.sweeper
            sets = sets_of(self._schedule, edges, own.residuals, number) if looks else blind
            share.messages, largest = own.sweep(share.messages, sets)
            self.updates = max(self.updates, own.updates)
            yield share, largest.cpu().double()

    def retire(self, share: Share, done: Tensor) -> None:
        """Keep the messages of the items that are done, (n,) bool; sweep on the others."""
        ended, rest = share.places[done[share.places]], share.places[~done[share.places]]
        if not len(ended):
            return
        share.messages, sweeper = share.sweeper.finish(share.messages), share.sweeper
        self._ended.append((share.items[ended], _rows(share.messages, ended)))
        share.places = rest
        if not len(rest):
            self._shares.remove(share)
        elif share.equations.divisible and 2 * len(rest) <= len(share.items):
            left = self._share(share.running, *_some(share.equations, share.messages, rest))
            left.sweeper.updates = sweeper.updates
            self._shares[self._shares.index(share)] = left

    def messages(self) -> Messages:
        """Where the messages of every item are, or ended."""
        parts = [
            (share.running, _rows(share.sweeper.finish(share.messages), share.places))
            for share in self._shares
        ]
        parts += self._ended
        if len(parts) == 1:
            return parts[0][1]
        order = torch.cat([items for items, _ in parts]).argsort()
        columns = zip(*(messages for _, messages in parts), strict=True)
        return tuple(torch.cat(column)[order.to(column[0].device)] for column in columns)


def _nothing_selected(edges: Edges) -> EdgeSubsets:
    del edges
    return EdgeSubsets()


def items_at_once(equations: Equations, schedule: Schedule) -> int:
    """How many items make a share."""
    if schedule.looks_at_residuals:
        return 1
    return equations.at_once


def _some(
    equations: Equations, messages: Messages, chosen: slice | Tensor
) -> tuple[Equations, Messages]:
    return equations.items(chosen), tuple(message[chosen] for message in messages)


def _rows(messages: Messages, rows: Tensor) -> Messages:
    if not messages or len(rows) == len(messages[0]):
        return messages
    return tuple(message[rows.to(message.device)] for message in messages)
