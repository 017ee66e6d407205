"""A factor graph in a few lines: its variables, its factors and how many are observed."""

from collections.abc import Sequence

from torch import Tensor

from rdpgraph.model.block import Block
from rdpgraph.model.domain import Domain, Entry
from rdpgraph.model.evidence import MISSING
from rdpgraph.model.variable import VariableArray

_SHOWN = 6


def described(
    domain: Domain, blocks: Sequence[Block], observed: Tensor | None, batch_shape: tuple[int, ...]
) -> str:
    """What `repr` shows of a `FactorGraph`."""
    factors = sum(block.count for block in blocks)
    lines = [f"FactorGraph of {domain.count:,} variables and {factors:,} factors"]
    if batch_shape:
        lines[0] += f", batch {batch_shape}"
    lines.append(
        f"  variables: {_some(list(map(_described, domain.entries[:_SHOWN])), len(domain.entries))}"
    )
    kinds = [
        f"{b.count:,} of shape {b.sizes}{' (one table)' if b.shared and b.count > 1 else ''}"
        for b in blocks
    ]
    lines.append(f"  factors: {_some(kinds[:_SHOWN], len(kinds))}")
    if observed is not None:
        seen = (observed != MISSING).reshape(-1, domain.count).any(0)
        lines.append(f"  observed: {int(seen.sum()):,} variables")
    return "\n".join(lines)


def _described(entry: Entry) -> str:
    if isinstance(entry, VariableArray):
        return f"{entry.name} {entry.shape} of {entry.size} states"
    if isinstance(entry.states, tuple) and len(entry.states) <= 4:
        return f"{entry.name} ({', '.join(map(str, entry.states))})"
    return f"{entry.name} ({entry.size} states)"


def _some(shown: Sequence[str], count: int) -> str:
    """The first parts of several, and how many more there are."""
    listed = "; ".join(shown) or "none"
    return listed if count == len(shown) else f"{listed}; and {count - len(shown):,} more"
