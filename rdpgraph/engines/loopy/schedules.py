"""Which messages are updated when."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from rdpgraph.engines.loopy.edges import Edges, components
from rdpgraph.errors import ModelError


class Schedule(ABC):
    """An order of message updates; yours needs one method.

    A message is that of a factor to a variable; `edges.variable` holds the variable of each.
    """

    @abstractmethod
    def sweep(
        self, edges: Edges, residuals: Callable[[], Tensor], number: int
    ) -> Iterator[Tensor | None]:
        """The sets of messages to update at once, one set after the other.

        A sweep should update about as many messages as there are edges.

        Args:
            edges: the model's edges; they are numbered 0 to ``edges.count - 1``.
            residuals: a function: ``residuals()`` gives (E,), for every message the largest
                change of its log-values if it were updated now, 0 where it agrees with those that
                come in. Only where `looks_at_residuals`; between two sets it may be called again.
            number: of the sweep, from 0.

        Yields:
            Numbers of edges (int64), or None for all of them.
        """

    @property
    def looks_at_residuals(self) -> bool:
        """Whether `sweep` calls ``residuals``; batch items are then solved one at a time."""
        return False

    @property
    def covers_all(self) -> bool:
        """Whether every sweep updates every message; else all are looked at before it ends."""
        return False


@dataclass(frozen=True)
class Flooding(Schedule):
    """All messages at once, from those of the sweep before: the fewest operations per message."""

    @property
    def covers_all(self) -> bool:
        """True: every sweep updates every message."""
        return True

    def sweep(
        self, edges: Edges, residuals: Callable[[], Tensor], number: int
    ) -> Iterator[Tensor | None]:
        """One set of all."""
        yield None


@dataclass(frozen=True, eq=False)
class Sequential(Schedule):
    """Variable by variable, each from the newest messages; forwards, then backwards.

    Variables that no factor joins are updated together where that changes nothing, so that a grid
    in its natural order takes one step per diagonal.

    Args:
        order: (V,) for each of the model's variables its place, any numbers; equal ones are
            updated together. None: few colours such that no factor joins two variables of one
            colour (two or three steps for a grid).
    """

    order: Tensor | None = None

    @property
    def covers_all(self) -> bool:
        """True: every sweep updates every message."""
        return True

    def sweep(
        self, edges: Edges, residuals: Callable[[], Tensor], number: int
    ) -> Iterator[Tensor | None]:
        """The messages into each set of variables in turn."""
        steps = edges.remembered(self, self._steps)
        yield from steps if number % 2 == 0 else reversed(steps)

    def _steps(self, edges: Edges) -> list[Tensor]:
        if self.order is None:
            places = _colours(edges)
        else:
            if len(self.order) != edges.num_variables:
                raise ModelError(
                    f"Sequential needs an order of the graph's {edges.num_variables} variables; "
                    f"got {len(self.order)}."
                )
            last = self.order.max() + 1 if len(self.order) else torch.tensor(0, device="cpu")
            places = last.repeat(len(edges.home))  # auxiliary variables come last
            places[: len(edges.numbers)] = self.order[edges.numbers]
            places = _levels(edges, places)
        at = places[edges.variable]
        ranked = torch.argsort(at, stable=True)
        counts = torch.unique(at, return_counts=True)[1]
        return list(torch.split(ranked, counts.tolist()))


@dataclass(frozen=True)
class Residual(Schedule):
    """The messages that would change most, in blocks (Elidan, McGraw, Koller 2006).

    Args:
        share: how many of the messages make a block. Small blocks need fewer updates, and more
            time for each.
    """

    share: float = 0.05

    def __post_init__(self) -> None:
        _checked_share("Residual", self.share)

    def sweep(
        self, edges: Edges, residuals: Callable[[], Tensor], number: int
    ) -> Iterator[Tensor | None]:
        """Blocks of the largest residuals."""
        count = max(1, round(self.share * edges.count))
        for _ in range(0, edges.count, count):
            yield residuals().topk(count, sorted=False).indices

    @property
    def looks_at_residuals(self) -> bool:
        """True: `sweep` calls ``residuals``."""
        return True


@dataclass(frozen=True, eq=False)
class RandomSubsets(Schedule):
    """Every message once a sweep, in random sets.

    Args:
        share: how many of the messages make a set.
        generator: the randomness.
    """

    share: float = 0.25
    generator: torch.Generator | None = None

    def __post_init__(self) -> None:
        _checked_share("RandomSubsets", self.share)

    @property
    def covers_all(self) -> bool:
        """True: every sweep updates every message."""
        return True

    def sweep(
        self, edges: Edges, residuals: Callable[[], Tensor], number: int
    ) -> Iterator[Tensor | None]:
        """A random permutation in pieces."""
        size = max(1, round(self.share * edges.count))
        yield from torch.split(
            torch.randperm(edges.count, generator=self.generator, device="cpu"), size
        )


def _checked_share(name: str, share: float) -> None:
    if not 0 < share <= 1:
        raise ModelError(
            f"{name} needs a share of the messages above 0 and at most 1; got {share}."
        )


def _colours(edges: Edges) -> Tensor:
    """Colours such that no kernel joins two variables of one colour (Jones, Plassmann 1993)."""
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
    """For an order, the first step at which each variable can be updated."""
    left, right = edges.pairs
    level_with = places[left] == places[right]
    group = components(left[level_with], right[level_with], len(places))
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
