"""The plan: what will be done, why, and what it costs; data that prints."""

from dataclasses import dataclass, field
from math import log2

from rdpgraph.plan.cost import ELEMENTS_PER_SECOND
from rdpgraph.plan.tree import ContractionTree

_PASSES = 3  # all marginals: one pass up and two products down for each step


@dataclass(frozen=True)
class Plan:
    """How a model will be solved.

    Attributes:
        route: ``"forest"``, ``"contraction"``, ``"structure"``, ``"join graph"``,
            ``"loopy"``, ``"search"`` or ``"mini-buckets"``.
        why: the reason, in a sentence.
        num_variables: variables left after evidence and hard zeros.
        num_factors: factors left.
        num_components: connected components; 0 where they were not counted.
        dropped_states: states that hard zeros made impossible.
        width: log2 of the largest table multiplied out.
        flops: multiply-adds of one pass.
        peak_bytes: for log Z alone.
        stored_bytes: for all marginals.
        slices: variables that are fixed in turn.
        num_slices: their configurations.
        seconds: predicted, for all marginals.
        planning_seconds: what making this plan took.
        fits: whether it keeps to its budget.
        remedy: if not, by how much, and what to do.
        memory: bytes that answers may take; None: what the machine has.
        tree: the order of contraction.
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

    def __str__(self) -> str:
        left = f"{self.num_variables:,} variables, {self.num_factors:,} factors"
        parts = "1 component" if self.num_components == 1 else f"{self.num_components:,} components"
        left += f" in {parts}" if self.num_components else ""
        lines = [f"Plan: {self.route}", f"  why        {self.why}", f"  left       {left}"]
        if self.dropped_states:
            lines.append(f"  dropped    {self.dropped_states:,} states that hard zeros rule out")
        lines.append(f"  width      {self.width:.1f} bits (log2 of the largest table)")
        lines.append(f"  work       {quantity(self.flops)}flop a pass")
        lines.append(
            f"  memory     {quantity(self.peak_bytes)}B for log Z, "
            f"{quantity(self.stored_bytes)}B for all marginals"
        )
        if self.num_slices > 1:
            lines.append(f"  slices     {self.num_slices:,} over {len(self.slices)} variables")
        lines.append(f"  time       about {duration(self.seconds)} predicted")
        if self.remedy:
            lines.append(f"  remedy     {self.remedy}")
        return "\n".join(lines)


def structure_plan(
    name: str, *, num_variables: int, states: int, flops: float = 0.0, element_bytes: int = 4
) -> Plan:
    """The plan of a structure, which has a recursion of its own.

    Args:
        name: of its type.
        num_variables: sites, those of all batch items.
        states: of every site.
        flops: multiply-adds of log Z; 0.0 where they are not known.
        element_bytes: 4 or 8.
    """
    own = float(num_variables * states * element_bytes)
    return Plan(
        route="structure",
        why=f"solved by the recursion of the structure {name}",
        num_variables=num_variables,
        width=2 * log2(states) if states else 0.0,
        flops=flops,
        peak_bytes=own,
        stored_bytes=2 * own,
        seconds=_PASSES * flops / ELEMENTS_PER_SECOND,
    )


def quantity(value: float) -> str:
    """A number with a unit prefix: 1.2 G."""
    for prefix, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= 1e15:
            return f"{value:.1e} "
        if value >= size:
            return f"{value / size:.1f} {prefix}"
    return f"{value:.0f} "


def duration(seconds: float) -> str:
    """A time that a person reads at a glance."""
    if seconds < 1e-3:
        return "1 ms"
    if seconds < 1:
        return f"{seconds * 1e3:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} minutes"
    return f"{seconds / 3600:.3g} hours"
