"""Plans with their costs, as data that prints; budgets; a cache of the last plans."""

import os
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass, field, fields
from math import inf, log2, prod
from pathlib import Path
from threading import Lock
from typing import Any, Generic, TypeVar

from rdpgraph._core import tuning
from rdpgraph._core.notebook import panel
from rdpgraph._core.units import duration, quantity
from rdpgraph.errors import BudgetError
from rdpgraph.plan.bids import Bids
from rdpgraph.plan.tree import ContractionTree

Value = TypeVar("Value")

_ALIKE = 1.25  # ratio of memory within which budgets have the same plan


@dataclass(frozen=True)
class Budget:
    """Limits for a plan."""

    memory_bytes: float  # for the tables of one run
    seconds: float = 60.0  # predicted run time, planning not counted
    # the memory is what the machine had available, which changes all the time
    measured: bool = False

    def key(self) -> tuple[float | None, float]:
        """Cache key of plans; measured memory is compared by `resembles`."""
        return None if self.measured else self.memory_bytes, self.seconds

    def resembles(self, other: "Budget") -> bool:
        """Return whether a plan for one budget also serves the other, when their keys are equal.

        Measured memory then differs little, and memory that was given not at all.
        """
        ratio = self.memory_bytes / other.memory_bytes
        return 1 / _ALIKE <= ratio <= _ALIKE

    @staticmethod
    def of_machine(seconds: float = 60.0) -> "Budget":
        """Budget of 60% of the memory that this machine, or its container, has available."""
        return Budget(tuning.AVAILABLE_SHARE * _available(), seconds, measured=True)


def require_room(
    needed: float,
    what: str,
    memory: float | None = None,
    *,
    remedy: str = "ask for fewer variables, states, batch items or draws",
) -> None:
    """Refuse allocations that do not fit the memory.

    Args:
        needed: bytes.
        what: would take them; the beginning of the message.
        memory: bytes that may be taken; None: 60% of what this machine has available.
        remedy: the end of the message, without its full stop.

    Raises:
        BudgetError: they do not fit.
    """
    if needed <= (tuning.SMALL_BYTES if memory is not None else tuning.LITTLE_BYTES):
        return
    room = Budget.of_machine().memory_bytes
    room = room if memory is None else min(memory, room)
    if needed > room:
        have = "are available" if memory is None else "is the budget"
        raise BudgetError(
            f"{what} would take {_gigabytes(needed)}, and {_gigabytes(room)} {have}; {remedy}."
        )


def _gigabytes(size: float) -> str:
    return f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{size / 1e6:,.0f} MB"


def _available() -> float:
    """Bytes that the machine, its container and ``ulimit -v`` leave."""
    free, failures = list[float](), (ImportError, OSError, ValueError, IndexError)
    with suppress(*failures):
        lines = Path("/proc/meminfo").read_text().splitlines()
        free += [float(x.split()[1]) * 1024 for x in lines if x.startswith("MemAvailable:")]
    with suppress(*failures):
        parts = [Path(f"/sys/fs/cgroup/memory.{name}") for name in ("max", "current")]
        limit, used = (part.read_text().strip() for part in parts)
        free += [] if limit == "max" else [max(float(limit) - float(used), 1.0)]
    with suppress(*failures):
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        free += [] if limit == resource.RLIM_INFINITY else [max(float(limit) - used, 1.0)]
    return min(free) if free else float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))


@dataclass(frozen=True)
class Cost:
    """Cost of running a tree once, for a whole batch."""

    flops: int  # sum over steps of the product of the sizes in the union of the operands' scopes
    # elements of all intermediates without leaves, held from a forward to a backward pass
    stored: int
    peak: int  # most intermediate elements alive at once when operands are freed after use
    width: float  # log2 of the largest table multiplied out in a step (for one batch item)
    groups: int  # number of batched launches: steps of one level and one shape pattern are one
    seconds: float  # predicted; inf when too large for a float


def cost(tree: ContractionTree, *, batch: int = 1) -> Cost:
    """Cost of `tree` for `batch` items, computed in a few microseconds per step."""
    sizes, scopes, levels = tree.topology.sizes, tree.scopes, tree.levels
    leaves = tree.topology.num_tensors
    volumes = [prod([sizes[v] for v in scope]) for scope in tree.topology.scopes]
    flops = stored = live = peak = widest = quick = 0
    groups: set[tuple[object, ...]] = set()
    for made, (left, right, scope) in enumerate(tree.steps, leaves):
        place: dict[int, int] = {}
        names = scopes[left] if right < 0 else scopes[left] + scopes[right]
        pattern = tuple([place.setdefault(v, len(place)) for v in names])
        dims = tuple([sizes[v] for v in place])
        result = tuple([place[v] for v in scope])
        groups.add((levels[made], len(scopes[left]), pattern, dims, result))
        table = prod(dims)
        volume = prod([sizes[v] for v in scope])
        volumes.append(volume)
        flops += table
        # A large table times vectors is read once, and no table is copied or written.
        given = [volumes[left]] if right < 0 else [volumes[left], volumes[right]]
        if (
            table >= tuning.CORE_BLOCK
            and tuning.VECTOR_SHARE * (sum(given) - max(given) + volume) <= table
        ):
            quick += table
        stored += volume
        live += volume
        widest = max(widest, table)
        peak = max(peak, live)
        live -= sum(volumes[each] for each in (left, right) if each >= leaves)
    return Cost(
        flops=flops * batch,
        stored=stored * batch,
        peak=peak * batch,
        width=log2(widest) if widest else 0.0,
        groups=len(groups),
        seconds=predicted_seconds(flops * batch, len(groups), quick * batch),
    )


def predicted_seconds(flops: int, groups: int, quick: int = 0) -> float:
    """Predicted seconds of one run without a backward pass.

    ``quick`` of the operations are those of large tables with vectors.
    """
    try:
        slow = (flops - quick) / tuning.OPERATIONS_PER_SECOND
        return slow + quick / tuning.VECTOR_OPERATIONS + groups * tuning.SECONDS_PER_GROUP
    except OverflowError:
        return inf


PASSES = 3
"""Cost of all marginals, in passes: one pass up and two products down for each step."""


@dataclass(frozen=True)
class Plan:
    """Route by which a model will be solved, and its cost.

    Attributes:
        route: ``"forest"``, ``"contraction"``, ``"structure"``, ``"join graph"``, ``"loopy"``,
            ``"counting"``, ``"search"``, ``"mini-buckets"``, or the name of a route that was
            registered. Where `Auto` may try several kinds of messages it is that of the first;
            ``why`` says when others answer, and `Status.method` which did.
        why: the reason, in a sentence.
        num_variables: variables left after evidence and hard zeros; under an estimator those
            declared that are not observed.
        num_factors: factors left; under an estimator those declared.
        num_components: connected components; 0 where they were not counted.
        dropped_states: states that hard zeros made impossible.
        width: log2 of the largest table multiplied out.
        flops: multiply-adds of one pass.
        peak_bytes: for log Z alone, beside the tensors that the model has: copies of its tables,
            tables that are computed from potentials, and results of steps. 0 with a scheduler that
            takes as much as it is given.
        stored_bytes: the same for all marginals.
        slices: variables that are fixed in turn.
        num_slices: their configurations.
        seconds: predicted, for all marginals.
        planning_seconds: time that making this plan took.
        fits: whether it keeps to its budget of memory and time. The model's own tables count
            towards the memory if they take more than 16 MB.
        remedy: if not, by how much, and what to do.
        memory: bytes that answers may take; None: what the machine has.
        tree: the order of contraction.
        bids: the offers of all routes that `Auto` or `Contraction` asked; print it to see why this
            one answers. Empty with any other scheduler.
    """

    route: str
    why: str
    num_variables: int = 0
    num_factors: int = 0
    num_components: int = 0
    dropped_states: int = 0
    width: float = 0.0
    flops: float = 0.0
    peak_bytes: float = 0.0
    stored_bytes: float = 0.0
    slices: tuple[int, ...] = ()
    num_slices: int = 1
    seconds: float = 0.0
    planning_seconds: float = field(default=0.0, compare=False)
    fits: bool = True
    remedy: str = ""
    memory: float | None = field(default=None, compare=False)
    tree: ContractionTree | None = field(default=None, repr=False, compare=False)
    bids: Bids = field(default=Bids(), repr=False, compare=False)

    def __str__(self) -> str:
        left = f"{self.num_variables:,} variables, {self.num_factors:,} factors"
        parts = "1 component" if self.num_components == 1 else f"{self.num_components:,} components"
        left += f" in {parts}" if self.num_components else ""
        lines = [f"Plan: {self.route}", f"  why        {self.why}", f"  left       {left}"]
        if self.dropped_states:
            lines.append(f"  dropped    {self.dropped_states:,} states that hard zeros rule out")
        lines.append(f"  width      {self.width:.1f} bits (log2 of the largest table)")
        lines.append(f"  work       {quantity(self.flops)}flop a pass")
        if self.stored_bytes or self.memory is None:
            lines.append(
                f"  memory     {quantity(self.peak_bytes)}B for log Z, "
                f"{quantity(self.stored_bytes)}B for all marginals"
            )
        else:
            lines.append(f"  memory     not predicted; at most {quantity(self.memory)}B are taken")
        if self.num_slices > 1:
            lines.append(f"  slices     {self.num_slices:,} over {len(self.slices)} variables")
        lines.append(f"  time       about {duration(self.seconds)} predicted")
        if self.remedy:
            lines.append(f"  remedy     {self.remedy}")
        return "\n".join(lines)

    def figures(self) -> dict[str, Any]:
        """The attributes by name, except the order of contraction and the bids."""
        left_out = ("tree", "bids")
        names = (each.name for each in fields(self) if each.name not in left_out)
        return {name: getattr(self, name) for name in names}

    def _repr_html_(self) -> str:
        return panel(str(self))


class Recent(Generic[Value]):
    """A cache of the values of the keys that were asked for last. Threads share it."""

    def __init__(self, most: int) -> None:
        self._most, self._values, self._lock = most, OrderedDict[object, Value](), Lock()

    def get(self, key: object) -> Value | None:
        """Return the value of a key, or None."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
            return self._values.get(key)

    def put(self, key: object, value: Value) -> Value:
        """Store and return a value; the oldest ones beyond ``most`` are dropped."""
        with self._lock:
            self._values[key] = value
            while len(self._values) > self._most:
                self._values.popitem(last=False)
        return value
