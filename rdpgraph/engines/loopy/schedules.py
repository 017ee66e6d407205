"""Schedules of message updates, and ways of damping them."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar, NoReturn, TypeAlias

import torch
from torch import Tensor

from rdpgraph._core.arguments import require_fields
from rdpgraph._core.cache import cached_property
from rdpgraph.engines.loopy.edges import Edges
from rdpgraph.errors import ModelError
from rdpgraph.logspace.logmatrix import finite, safe_log
from rdpgraph.model.potentials.table import settle
from rdpgraph.plan import clock
from rdpgraph.plan.tree import component_labels

Sets: TypeAlias = Iterator[Tensor | None]
"""Numbers of edges (n,) int64 to update at once, or None for all; one set after the other."""


class Schedule(ABC):
    """An order of message updates; subclasses implement `sweep`.

    A message goes from a factor to a variable; `edges.variable` holds the variable of each message.

    Attributes:
        looks_at_residuals: True if `sweep` calls ``residuals``. Batch items are then solved one by
            one.
        covers_all: True if every sweep updates every message. If not, the messages that a sweep
            left out are examined at its end.
    """

    looks_at_residuals: ClassVar[bool] = False
    covers_all: ClassVar[bool] = False

    @abstractmethod
    def sweep(self, edges: Edges, residuals: Callable[[], Tensor], number: int) -> Sets:
        """Yield the sets of messages to update, one set after the other.

        A sweep should update about as many messages as there are edges.

        Args:
            edges: the model's edges; they are numbered 0 to ``edges.count - 1``.
            residuals: a function that may be called before each set if `looks_at_residuals` is
                True. It returns (E,) for every message the largest change of its log-values if it
                were updated now, which is 0 where it agrees with the messages that come in.
            number: the number of the sweep, from 0.

        Yields:
            The numbers of edges as int64, or None for all of them.
        """


@dataclass(frozen=True)
class Flooding(Schedule):
    """Updates all messages at once, from those of the sweep before, with the fewest operations."""

    covers_all = True

    def sweep(self, edges: Edges, residuals: Callable[[], Tensor], number: int) -> Sets:
        """Yield one set of all messages."""
        yield None


@dataclass(frozen=True, eq=False)
class Sequential(Schedule):
    """Updates messages variable by variable from the newest ones, forwards and then backwards.

    Variables that no factor joins are updated together where that makes no difference, so that a
    grid in its natural order takes one step for each diagonal.

    Args:
        order: (V,) the place of each of the model's variables, as any number; variables of one
            place are updated together. None: a fixed random order, which takes about ten steps for
            a grid, and never updates two variables together that a factor joins.
    """

    order: Tensor | None = None
    covers_all = True

    def __post_init__(self) -> None:
        settle(self, "order")

    def sweep(self, edges: Edges, residuals: Callable[[], Tensor], number: int) -> Sets:
        """Yield the messages into each set of variables in turn."""
        steps = edges.remembered(self, self._steps)
        yield from steps if number % 2 == 0 else reversed(steps)

    def _steps(self, edges: Edges) -> list[Tensor]:
        if self.order is None:
            places = _colours(edges)
        else:
            order = torch.as_tensor(self.order, device="cpu")
            if order.shape != (edges.num_variables,):
                raise ModelError(
                    f"Sequential needs an order ({edges.num_variables},) of the graph's variables; "
                    f"got {tuple(order.shape)}."
                )
            last = order.max() + 1 if len(order) else torch.tensor(0, device="cpu")
            places = last.repeat(len(edges.home))  # auxiliary variables come last
            places[: len(edges.numbers)] = order[edges.numbers]
            places = _levels(edges, places)
        at = places[edges.variable]
        ranked = torch.argsort(at, stable=True)
        counts = torch.unique(at, return_counts=True)[1]
        return list(torch.split(ranked, counts.tolist()))


@dataclass(frozen=True)
class Residual(Schedule):
    """Updates the messages that would change most, in blocks (Elidan, McGraw, Koller 2006).

    Args:
        share: the fraction of the messages in a block. Smaller blocks need fewer updates, and more
            time for each.
    """

    share: float = 0.05
    looks_at_residuals = True

    def __post_init__(self) -> None:
        require_fields(self, share="(0, 1]")

    def sweep(self, edges: Edges, residuals: Callable[[], Tensor], number: int) -> Sets:
        """Yield blocks of the messages with the largest residuals."""
        count = max(1, round(float(self.share) * edges.count))
        for _ in range(0, edges.count, count):
            yield residuals().topk(count, sorted=False).indices


@dataclass(frozen=True, eq=False)
class RandomSubsets(Schedule):
    """Updates every message once in a sweep, in random sets.

    All runs of messages take the same sets, so that an answer does not depend on those before it.

    Args:
        share: the fraction of the messages in a set.
        generator: the randomness is its state at the first sweep, and it stays in that state. None:
            torch's global randomness.
    """

    share: float = 0.25
    generator: torch.Generator | None = None
    covers_all = True

    def __post_init__(self) -> None:
        require_fields(self, share="(0, 1]")

    def sweep(self, edges: Edges, residuals: Callable[[], Tensor], number: int) -> Sets:
        """Yield a random permutation in pieces."""
        size = max(1, round(float(self.share) * edges.count))
        drawn = torch.Generator("cpu").manual_seed(self._seed + number)
        yield from torch.split(torch.randperm(edges.count, generator=drawn, device="cpu"), size)

    @cached_property
    def _seed(self) -> int:
        if self.generator is None:
            return int(torch.randint(2**62, (), device="cpu"))
        drawn = torch.Generator(self.generator.device)
        drawn.set_state(self.generator.get_state())
        return int(torch.randint(2**62, (), generator=drawn, device=drawn.device))


def _colours(edges: Edges) -> Tensor:
    """Colour variables so that no kernel joins two of one colour (Jones, Plassmann 1993)."""
    count = len(edges.home)
    shuffled = torch.Generator().manual_seed(0)
    priority = torch.randperm(count, generator=shuffled, device="cpu")
    left, right = edges.pairs
    colour = torch.full((count,), -1, dtype=torch.long, device="cpu")
    number = 0
    while bool((colour < 0).any()):
        open_ones = torch.where(colour < 0, priority, -1)
        best = torch.full_like(priority, -1).scatter_reduce(0, right, open_ones[left], "amax")
        chosen = (colour < 0) & (priority > best)
        colour[chosen] = number
        number += 1
        keep = (colour[left] < 0) & (colour[right] < 0)
        left, right = left[keep], right[keep]
    return colour


def _levels(edges: Edges, places: Tensor) -> Tensor:
    """Return the first step of an order at which each variable can be updated."""
    left, right = edges.pairs
    level_with = places[left] == places[right]
    one, other = (side[level_with].numpy() for side in (left, right))
    group = torch.from_numpy(component_labels(one, other, len(places)))
    earlier = places[left] < places[right]
    followers: dict[int, list[int]] = {}
    links = torch.stack([group[left[earlier]], group[right[earlier]]], 1).unique(dim=0)
    for source, target in links.tolist():
        followers.setdefault(source, []).append(target)
    level = [0] * len(places)
    for variable in torch.argsort(places, stable=True).tolist():
        if int(group[variable]) == variable:
            for follower in followers.get(variable, ()):
                level[follower] = max(level[follower], level[variable] + 1)
    return torch.tensor(level, device="cpu")[group]


def sets_of(
    schedule: Schedule, edges: Edges, residuals: Callable[[], Tensor] | None, number: int,
    deadline: float,
) -> Sets:  # fmt: skip
    """Yield the sets of a schedule's sweep, checked, until the deadline on `clock.now`."""
    count, some = edges.count, False
    sets: object = schedule.sweep(edges, Residuals(residuals or unasked), number)
    if isinstance(sets, Tensor) or not isinstance(sets, Iterable):
        raise ModelError(
            f"{type(schedule).__name__}.sweep must yield sets of messages, one after the other; it "
            f"returned {sets!r:.80}."
        )
    # None stands for all messages, and is always in range.
    for chosen in sets:
        if chosen is not None:
            fits = isinstance(chosen, Tensor) and chosen.dtype == torch.int64 and chosen.ndim == 1
            if not fits or (
                len(chosen) and not 0 <= int(chosen.amin()) <= int(chosen.amax()) < count
            ):
                raise ModelError(
                    f"{type(schedule).__name__}.sweep must yield numbers of messages, (n,) int64 "
                    f"from 0 to {count - 1}, or None for all; got {chosen!r:.80}."
                )
            if not len(chosen):
                continue
        some = True
        yield chosen
        # A part of a sweep counts as a sweep where time is over; a set of all is one already.
        if chosen is not None and clock.now() > deadline:
            break
    # A schedule that sends nothing would never converge, nor say so.
    if not some:
        raise ModelError(
            f"{type(schedule).__name__}.sweep yielded no message; a sweep sends one at least."
        )


def _no_tensor(*_: object, **__: object) -> NoReturn:
    raise ModelError(
        "A Schedule's residuals are a function: residuals() gives (E,) how much each message would "
        "change now, where looks_at_residuals is True."
    )


class Residuals:
    """The function that a schedule calls for residuals; any use of it as a tensor is an error."""

    def __init__(self, ask: Callable[[], Tensor]) -> None:
        self._ask = ask

    def __call__(self) -> Tensor:
        """Return the (E,) residuals."""
        return self._ask()

    __getattr__ = __getitem__ = __len__ = __iter__ = __neg__ = __abs__ = _no_tensor
    __lt__ = __le__ = __gt__ = __ge__ = __add__ = __sub__ = __mul__ = __truediv__ = _no_tensor
    __torch_function__ = classmethod(_no_tensor)


def unasked() -> Tensor:
    """Raise an error where a schedule asks for residuals without having declared that it does."""
    raise ModelError("A Schedule that calls residuals() needs looks_at_residuals = True.")


class Damping(ABC):
    """A mean of the old message and the new one.

    Attributes:
        share: the weight of the old message; at 0 nothing is mixed.
    """

    share: float

    @abstractmethod
    def mix(self, new: Tensor, old: Tensor) -> Tensor:
        """Return (B, K, n) log-messages whose maximum is 0 or near 0."""


@dataclass(frozen=True)
class _MeanDamping(Damping):
    """Damping by a weighted mean of two messages."""

    share: float

    def __post_init__(self) -> None:
        require_fields(self, share="[0, 1)")


@dataclass(frozen=True)
class LogDamping(_MeanDamping):
    """A geometric mean: ``log m = (1 - share) log m_new + share log m_old``."""

    def mix(self, new: Tensor, old: Tensor) -> Tensor:
        """Return the weighted sum of logs; a hard zero in one of them is one in the result."""
        return new if self.share == 0 else ((1 - self.share) * new).add_(old, alpha=self.share)


DAMPED = LogDamping(0.5)
"""Damping of messages that have not converged, which ends oscillations."""


@dataclass(frozen=True)
class ProbabilityDamping(_MeanDamping):
    """An arithmetic mean: ``m = (1 - share) m_new + share m_old``, of messages with maximum 1."""

    def mix(self, new: Tensor, old: Tensor) -> Tensor:
        """Return the weighted sum of values; a hard zero of the new message stays one."""
        if self.share == 0:
            return new
        pair = torch.stack([new + math.log1p(-self.share), old + math.log(self.share)])
        shift = finite(pair.detach().amax(0))
        total = (pair - shift).exp().sum(0)
        return torch.where(new > -math.inf, safe_log(total) + shift, -math.inf)
