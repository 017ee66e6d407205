"""How much memory and time a plan may take."""

import os
from dataclasses import dataclass
from pathlib import Path

from rdpgraph.errors import BudgetError, ModelError

SHARE = 0.6
"""The part of the machine's available memory that a plan takes by default."""

_ALIKE = 1.25


@dataclass(frozen=True)
class Budget:
    """Limits for a plan.

    Attributes:
        memory_bytes: for the tables of one run.
        seconds: predicted run time, planning not counted.
        measured: the memory is what the machine had available, which changes all the time.
    """

    memory_bytes: float
    seconds: float = 60.0
    measured: bool = False

    def __post_init__(self) -> None:
        if not self.memory_bytes > 0 or not self.seconds > 0:
            raise ModelError(
                f"A budget needs memory and seconds above zero; got {self.memory_bytes} bytes and "
                f"{self.seconds} s."
            )

    def key(self) -> tuple[float | None, float]:
        """What plans are remembered by; measured memory is compared by `resembles`."""
        return None if self.measured else self.memory_bytes, self.seconds

    def resembles(self, other: "Budget") -> bool:
        """Whether a plan for one will do for the other, of equal keys."""
        ratio = self.memory_bytes / other.memory_bytes
        return 1 / _ALIKE <= ratio <= _ALIKE

    @staticmethod
    def of_machine(seconds: float = 60.0) -> "Budget":
        """60% of the memory that this machine, or its container, has available."""
        return Budget(SHARE * _available(), seconds, measured=True)


def require_room(needed: float, what: str, memory: float | None = None) -> None:
    """Refuse what does not fit the memory, before it is made.

    Args:
        needed: bytes.
        what: what would take them, at the beginning of the message.
        memory: bytes that may be taken; None: 60% of what this machine has available.

    Raises:
        BudgetError: it does not fit.
    """
    if needed <= (SMALL if memory is not None else _LITTLE):
        return
    room = Budget.of_machine().memory_bytes
    room = room if memory is None else min(memory, room)
    if needed > room:
        have = "are available" if memory is None else "is the budget"
        raise BudgetError(
            f"{what} would take {_gigabytes(needed)}, and {_gigabytes(room)} {have}; ask "
            "for fewer variables, states, batch items or draws."
        )


SMALL = 2.0**24
"""Bytes that are taken whatever the budget."""

_LITTLE = 2**28  # bytes that any machine has


def _gigabytes(size: float) -> str:
    return f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{size / 1e6:,.0f} MB"


def _available() -> float:
    free = [_from_meminfo(), _from_cgroup(), _from_limit()]
    known = [value for value in free if value is not None]
    if known:
        return min(known)
    return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))


def _from_meminfo() -> float | None:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return float(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        return None
    return None


def _from_limit() -> float | None:
    """What a limit on the address space of this process leaves, as ``ulimit -v`` sets it."""
    try:
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit == resource.RLIM_INFINITY:
            return None
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        return max(float(limit) - pages * resource.getpagesize(), 1.0)
    except (ImportError, OSError, ValueError, IndexError):
        return None


def _from_cgroup() -> float | None:
    root = Path("/sys/fs/cgroup")
    try:
        limit = (root / "memory.max").read_text().strip()
        used = (root / "memory.current").read_text().strip()
        return None if limit == "max" else max(float(limit) - float(used), 1.0)
    except (OSError, ValueError):
        return None
