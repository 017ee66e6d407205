"""Bids of routes, and the table of all bids for a model, as data that prints."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property, partial
from typing import Any, overload

from rdpgraph._core.notebook import panel
from rdpgraph._core.units import duration, quantity

QUESTIONS = {
    "log_partition": "log Z",
    "variable_marginals": "marginals",
    "max_marginals": "max-marginals",
    "mode": "mode",
    "marginal_mode": "marginal modes",
    "sample": "draws",
}
"""The questions that routes bid for, by their methods of `Solution`. Every other question of a
posterior goes to the route that answers the one of these which takes the same pass."""


class Exactness(IntEnum):
    """How much is known of the error of an answer: what is known more of comes first in an auction.

    Attributes:
        MESSAGES: nothing; messages between single factors.
        CLUSTERS: nothing; messages between clusters of factors, which are more accurate.
        ESTIMATE: an estimate with a standard error.
        BOUNDED: an answer within certain bounds.
        EXACT: there is none, up to rounding.
    """

    MESSAGES = 0
    CLUSTERS = 1
    ESTIMATE = 2
    BOUNDED = 3
    EXACT = 4


@dataclass(frozen=True)
class Bid:
    """What a route offers for a question.

    Attributes:
        exactness: how much will be known of the answer's error.
        seconds: predicted, for the answer.
        memory: predicted, bytes; or the limit that the route keeps to, if ``memory_is_limit``.
        why: one line: what is done, and what speaks for it.
        refused: one line: why this bid must not be taken, as when it exceeds the budget in a way
            that seconds and memory do not tell; empty where nothing speaks against it.
        remedy: how to get a better answer, for the status of what answers in place of this bid.
        note: a clause for the reason that the plan gives, where approximate routes are combined.
        memory_is_limit: how much the route will take is not predicted, only that it takes no more
            than ``memory``. The table says "up to" in front of it.
        work: what the route has computed for the bid, such as an order of elimination, and goes on
            with in `Route.run`.
    """

    exactness: Exactness
    seconds: float
    memory: float = 0.0
    why: str = ""
    refused: str = ""
    remedy: str = ""
    note: str = ""
    memory_is_limit: bool = False
    work: Any = field(default=None, repr=False, compare=False)

    @property
    def rank(self) -> tuple[int, float]:
        """The key by which bids are sorted, the best first: exactness, then predicted seconds."""
        return -self.exactness, self.seconds


@dataclass(frozen=True)
class Offer:
    """A row of the table of bids: a route, what it bids, and what became of it.

    Attributes:
        route: its name.
        bids: its bids, by question; empty where it made none.
        outcome: "taken", "stands by", "refused", "no bid" or "not asked".
        taken_for: the questions that it answers.
        note: the reason for the outcome.
    """

    route: str
    bids: dict[str, Bid] = field(default_factory=dict[str, Bid])
    outcome: str = "no bid"
    taken_for: tuple[str, ...] = ()
    note: str = ""

    @property
    def best(self) -> Bid | None:
        """The bid that is taken, or else the one for marginals, or the best for something else."""
        names = [*self.taken_for, "variable_marginals", *self.bids]
        return next((self.bids[name] for name in names if name in self.bids), None)


class Bids(Sequence[Offer]):
    """All offers for a model, in the order in which the routes were asked; prints as a table."""

    def __init__(self, rows: Callable[[], Sequence[Offer]] = tuple) -> None:
        self._make = rows  # until they are asked for: a table takes longer than a small auction

    @cached_property
    def _rows(self) -> tuple[Offer, ...]:
        return tuple(self._make())

    def __reduce__(self) -> tuple[Callable[..., "Bids"], tuple[Callable[..., Any]]]:
        return Bids, (partial(tuple, self._rows),)

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> Offer: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Offer, ...]: ...

    def __getitem__(self, index: int | slice) -> Offer | tuple[Offer, ...]:
        return self._rows[index]

    @property
    def taken(self) -> dict[str, str]:
        """The route that answers each question, by the names of `Solution`'s methods."""
        return {question: offer.route for offer in self for question in offer.taken_for}

    def __str__(self) -> str:
        head = ("route", "outcome", "exactness", "time", "memory", "why")
        rows: list[tuple[str, ...]] = [head]
        for offer in self:
            outcome, bid = offer.outcome, offer.best
            if offer.taken_for and len(offer.taken_for) < len(QUESTIONS):
                outcome += f": {', '.join(QUESTIONS[name] for name in offer.taken_for)}"
            if bid is None:
                rows.append((offer.route, outcome, "", "", "", offer.note))
                continue
            limit = "up to " if bid.memory_is_limit else ""
            costs = (
                duration(bid.seconds) if math.isfinite(bid.seconds) else "-",
                f"{limit}{quantity(bid.memory)}B" if math.isfinite(bid.memory) else "-",
            )
            why = offer.note or bid.why
            rows.append((offer.route, outcome, bid.exactness.name.lower(), *costs, why))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return panel(str(self))
