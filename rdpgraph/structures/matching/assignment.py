"""The best matching of a component as an assignment problem, and the k best by Murty's algorithm.

They take polynomial time, however many vertices a sweep would have open. Murty's algorithm (1968,
doi:10.1287/opre.16.3.682) describes a matching by the edge of every row, or none (-1). Matchings
other than the best one are split by the first row in which they differ from it, and the best of
each part is one more assignment problem.
"""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rdpgraph.errors import UnsupportedError
from rdpgraph.plan.plan import require_room
from rdpgraph.structures.matching.pairs import Flags, Integers

Choice = tuple[int, ...]
"""The edge of every row, or -1."""
NONE = -1
"""The choice of a row that is alone."""


@dataclass(frozen=True, eq=False)
class AssignmentProblem:
    """The matchings of a component that keep the choices of some rows, and avoid others."""

    ends: Integers  # (E, 2) the row and the column of each edge, both counted from 0
    off: NDArray[np.float64]  # (E,) log-potentials of the two states of each edge
    on: NDArray[np.float64]
    rows: Flags  # (R,), (C,) whether each is required
    columns: Flags
    fixed: Choice = ()  # of the first rows
    barred: frozenset[int] = field(default_factory=frozenset)  # choices of the row after these

    def best(self) -> tuple[float, Choice] | None:
        """The score and the choices of one best matching; None if none is possible."""
        first = len(self.fixed)
        open_rows, required = self.rows.copy(), self.columns.copy()
        there = self.on > -math.inf
        taken = [edge for edge in self.fixed if edge != NONE]
        # Rows that are fixed lose their edges, and so do the columns of the edges that they keep.
        there &= self.ends[:, 0] >= first
        there &= ~np.isin(self.ends[:, 1], self.ends[taken, 1])
        required[self.ends[taken, 1]] = False
        there[[edge for edge in self.barred if edge != NONE]] = False
        if first < len(open_rows) and NONE in self.barred:
            open_rows[first] = True
        gains = self._gains()
        found = _assigned(self.ends[there] - [first, 0], gains[there], open_rows[first:], required)
        if found is None:
            return None
        edges = there.nonzero()[0]
        chosen = [*self.fixed, *(edges[at] if at >= 0 else NONE for at in found)]
        rows = tuple(int(edge) for edge in chosen)
        picked = np.zeros(len(gains), dtype=np.bool_)
        picked[[edge for edge in rows if edge != NONE]] = True
        score = float(np.where(picked, self.on, self.off).sum())
        return (score, rows) if score > -math.inf else None

    def _gains(self) -> NDArray[np.float64]:
        """What each edge adds when it is taken; a large number where it has to be."""
        must, there = self.off == -math.inf, self.on > -math.inf
        gains = np.where(there, self.on, 0.0) - np.where(must | ~there, 0.0, self.off)
        # More than all of them together, so that as many as can be are taken.
        large = 1.0 + 2.0 * float(np.abs(gains).sum())
        return gains + np.where(must, large, 0.0)

    def others(self, choice: Choice) -> list["AssignmentProblem"]:
        """The parts of the matchings other than the best one."""
        parts = list[AssignmentProblem]()
        for row in range(len(self.fixed), len(choice)):
            barred = self.barred if row == len(self.fixed) else frozenset[int]()
            parts.append(replace(self, fixed=choice[:row], barred=barred | {choice[row]}))
        return parts


def k_best(problem: AssignmentProblem, k: int) -> list[tuple[float, Choice]]:
    """At most k best matchings, best first, all different."""
    found, heap, count = list[tuple[float, Choice]](), list[Any](), 0
    parts = [problem]
    while len(found) < k:
        for part in parts:
            best = part.best()
            if best is not None:
                count += 1
                heapq.heappush(heap, (-best[0], count, best[1], part))
        if not heap:
            break
        loss, _, choice, part = heapq.heappop(heap)
        found.append((-loss, choice))
        parts = part.others(choice) if len(found) < k else []
    return found


def merged(
    first: Sequence[tuple[float, Any]], second: Sequence[tuple[float, Any]], k: int
) -> list[tuple[float, tuple[Any, Any]]]:
    """The k best sums of one from each of two lists, which are sorted, best first."""
    heap = [(-first[0][0] - second[0][0], 0, 0)] if first and second else []
    seen, found = {(0, 0)}, list[tuple[float, tuple[Any, Any]]]()
    while heap and len(found) < k:
        loss, one, other = heapq.heappop(heap)
        found.append((-loss, (first[one][1], second[other][1])))
        for place in ((one + 1, other), (one, other + 1)):
            if place not in seen and place[0] < len(first) and place[1] < len(second):
                seen.add(place)
                heapq.heappush(heap, (-first[place[0]][0] - second[place[1]][0], *place))
    return found


def _assigned(
    ends: Integers, gains: NDArray[np.float64], rows: Flags, columns: Flags
) -> list[int] | None:
    """The place of the edge of each row, or -1, in a matching of most gain; None: there is none.

    Each row that need not be matched has a column of its own that costs nothing, and each column a
    row; those meet each other at no cost.
    """
    solve = _solver()
    height, width = len(rows), len(columns)
    whole = bool(columns.any())  # else all rows fit into the columns and their own
    shape = (height + width * whole, width + height)
    require_room(
        16.0 * shape[0] * shape[1], f"The assignment of {height} rows to {width} columns",
        remedy="gate the pairs, so that components are smaller",
    )  # fmt: skip
    cost = np.full(shape, np.inf)
    place = np.full((height, width), -1)
    order = np.argsort(gains, kind="stable")  # of parallel edges the last one written is the best
    one, other = ends[order].T
    cost[one, other], place[one, other] = -gains[order], order
    every = np.arange(height)
    cost[every, width + every] = np.where(rows, np.inf, 0.0)
    if whole:
        every = np.arange(width)
        cost[height + every, every] = np.where(columns, np.inf, 0.0)
        cost[height:, width:] = 0.0
    try:
        row, column = solve(cost)
    except ValueError:  # no assignment is possible
        return None
    found = np.full(height, -1)
    taken = (row < height) & (column < width)
    found[row[taken]] = place[row[taken], column[taken]]
    return found.tolist()


def _solver() -> Any:
    """SciPy's solver of assignment problems.

    Raises:
        UnsupportedError: scipy is not installed.
    """
    try:
        from scipy.optimize import linear_sum_assignment  # pyright: ignore
    except ImportError:
        raise UnsupportedError(
            "Matching needs scipy for the k best, and for modes where no sweep fits: pip install "
            "scipy."
        ) from None
    return linear_sum_assignment
