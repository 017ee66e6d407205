"""Singleton consistency: states whose assumption hard zeros refute are removed before planning."""

import math
from dataclasses import dataclass, field
from itertools import accumulate

import torch

from rdpgraph._core import effort
from rdpgraph.engines.reduction.network import Network
from rdpgraph.plan import clock


def refuted_states(
    network: Network, *, seconds: float = effort.PROBED_SECONDS, deadline: float = math.inf
) -> list[tuple[int, list[int]]]:
    """Variables of the graph that lose states, and the states that they keep.

    Each state is assumed in turn and propagated: if all but one of the values of an impossible
    configuration hold, the last must not; if one state of a variable is left, it holds. An
    assumption that ends in a contradiction is false, which may refute others (Debruyne and Bessiere
    1997; on clauses, the failed literals of satisfiability solvers). Exact, like arc consistency,
    and stronger.

    Bounded by `PROBED_ZEROS` and `PROBED_LOOKS` of `effort`, in proportion to the time budget, and
    by a deadline on
    `clock.now`, at which the result so far is returned.
    """
    share = min(seconds / effort.PROBED_SECONDS, 1.0)
    zeros = _zeros(network, int(share * effort.PROBED_ZEROS))
    if zeros is None:
        return []
    search = _AssumptionSearch(network.sizes, zeros, int(share * effort.PROBED_LOOKS), deadline)
    struck = search.run()
    result: list[tuple[int, list[int]]] = []
    for active, number in enumerate(network.numbers.tolist()):
        size = network.sizes[active]
        kept = [state for state in range(size) if search.starts[active] + state not in struck]
        if len(kept) < size:
            states = network.states_left(torch.tensor([number], device="cpu"), size)[0]
            result.append(
                (number, states[torch.tensor(kept, dtype=torch.long, device="cpu")].tolist())
            )
    return result


def _zeros(network: Network, most: int) -> list[tuple[int, ...]] | None:
    """Impossible configurations, as flat numbers of variables' states; None if too many."""
    starts = list(accumulate(network.sizes, initial=0))
    zeros: set[tuple[int, ...]] = set()
    for group in network.groups:
        impossible = (group.each().detach() == -math.inf).all(0).cpu()
        if int(impossible.sum()) * max(len(group.scopes) // len(impossible), 1) > most:
            return None
        impossible = impossible.expand(len(group.scopes), *impossible.shape[1:])
        cells = impossible.nonzero()
        values = torch.tensor(starts, device="cpu")[group.scopes[cells[:, 0]]] + cells[:, 1:]
        zeros.update(map(tuple, values.tolist()))
        if len(zeros) > most:
            return None
    return list(zeros)


@dataclass
class _AssumptionSearch:
    """Propagation of assumptions, which can be undone."""

    sizes: tuple[int, ...]
    zeros: list[tuple[int, ...]]
    most_looks: int
    deadline: float
    starts: list[int] = field(init=False)
    looks: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.starts = list(accumulate(self.sizes, initial=0))
        self._owner = [v for v, size in enumerate(self.sizes) for _ in range(size)]
        self._truth: list[bool | None] = [None] * len(self._owner)
        self._left = list(self.sizes)
        self._held: list[list[tuple[int, ...]]] = [[] for _ in self._owner]
        for zero in self.zeros:
            for value in zero:
                self._held[value].append(zero)

    def run(self) -> set[int]:
        """Refuted values, as flat numbers of states."""
        truth = self._truth
        refuting = True
        while refuting:
            refuting = False
            for value in range(len(truth)):
                if truth[value] is not None or not self._held[value]:
                    continue
                trail: list[int] = []
                possible = self._follow(value, trail, holds=True)
                for tried in trail:
                    self._left[self._owner[tried]] += self._truth[tried] is False
                    self._truth[tried] = None
                if self.looks > self.most_looks or clock.now() > self.deadline:
                    return self._false()
                if possible:
                    continue
                refuting = True
                if not self._follow(value, [], holds=False):
                    return set(range(len(truth)))  # nothing is possible
        return self._false()

    def _false(self) -> set[int]:
        return {value for value, holds in enumerate(self._truth) if holds is False}

    def _follow(self, value: int, trail: list[int], *, holds: bool) -> bool:
        """Propagate a value's truth, recorded on the trail; False on a contradiction."""
        waiting = [(value, holds)]
        while waiting:
            value, holds = waiting.pop()
            known = self._truth[value]
            if known is not None:
                if known != holds:
                    return False
                continue
            self._truth[value] = holds
            trail.append(value)
            owner = self._owner[value]
            others = range(self.starts[owner], self.starts[owner + 1])
            # A value that holds rules out the others of its variable, and what factors forbid.
            if holds:
                waiting.extend((other, False) for other in others if other != value)
                if not self._ruled_out(value, waiting):
                    return False
                continue
            # The last value that is left of a variable holds.
            self._left[owner] -= 1
            if not self._left[owner]:
                return False
            if self._left[owner] == 1:
                last = next(other for other in others if self._truth[other] is not False)
                waiting.append((last, True))
        return True

    def _ruled_out(self, value: int, waiting: list[tuple[int, bool]]) -> bool:
        """Queue values ruled out by one value and others that hold; False if a whole zero holds."""
        truth = self._truth
        self.looks += len(self._held[value])
        for zero in self._held[value]:
            left = -1
            for other in zero:
                holds = truth[other]
                if holds is False or (holds is None and left >= 0):
                    break
                if holds is None:
                    left = other
            else:
                if left < 0:
                    return False
                waiting.append((left, False))
        return True
