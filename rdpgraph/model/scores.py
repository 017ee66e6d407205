"""Copies of a graph and its description, and log-values at given configurations."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from rdpgraph._core.notebook import circle, panel
from rdpgraph.errors import EvidenceError, ModelError
from rdpgraph.model.block import Block
from rdpgraph.model.domain import Domain, Entry
from rdpgraph.model.evidence import MISSING
from rdpgraph.model.potentials.potential import Potential
from rdpgraph.model.potentials.table import Table
from rdpgraph.model.variable import VariableArray

_SHOWN = 6  # entries of a list


def outliving(
    blocks: Iterable[Block], observed: Tensor | None
) -> tuple[tuple[Block, ...], Tensor | None]:
    """Copies of blocks and evidence made in inference mode, through which gradients may pass."""
    copies = tuple(
        replace(
            block,
            scopes=block.scopes.clone(),
            rows=None if block.rows is None else block.rows.clone(),
            declared=block.declared.clone(),
        )
        for block in blocks
    )
    return copies, None if observed is None else observed.clone()


def moved(potential: Potential, *args: Any) -> Potential:
    """A potential on another device or of another floating type."""
    if isinstance(potential, Table):
        return Table.from_logs(potential.log_values.to(*args))
    if not is_dataclass(potential):
        return potential
    changes: dict[str, Tensor] = {}
    for field in fields(potential):
        value = getattr(potential, field.name)
        if field.init and isinstance(value, Tensor):
            moved = torch.empty(0, dtype=value.dtype, device=value.device).to(*args)
            changes[field.name] = (
                value.to(*args) if value.is_floating_point() else value.to(moved.device)
            )
    return replace(potential, **changes)


def moved_blocks(blocks: Iterable[Block], *args: Any) -> list[Block]:
    """Blocks with their potentials on another device or of another floating type."""
    try:
        torch.empty(0, device="cpu").to(*args)
    except (AssertionError, RuntimeError, TypeError) as error:
        reason = str(error).partition("\n")[0]
        raise ModelError(f"FactorGraph.to needs a device or a type: {reason}") from None
    return [Block(b.scopes, moved(b.potential, *args), b.shape, b.rows, b.declared) for b in blocks]


def described(
    domain: Domain, blocks: Sequence[Block], observed: Tensor | None, batch_shape: tuple[int, ...]
) -> str:
    """Describe a `FactorGraph` as its `repr` does."""
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


def pictured(text: str, domain: Domain, blocks: Sequence[Block]) -> str:
    """A description as HTML, with a drawing of small graphs."""
    if not 0 < domain.count <= 24 or sum(block.count for block in blocks) > 100:
        return panel(text)
    names = [domain.variable(number).name for number in range(domain.count)]
    scopes = (scope for block in blocks for scope in block.scopes.tolist())
    return panel(text, circle(names, ([names[number] for number in scope] for scope in scopes)))


def _described(entry: Entry) -> str:
    if isinstance(entry, VariableArray):
        return f"{entry.name} {entry.shape} of {entry.size} states"
    if isinstance(entry.states, tuple) and len(entry.states) <= 4:
        return f"{entry.name} ({', '.join(map(str, entry.states))})"
    return f"{entry.name} ({entry.size} states)"


def _some(shown: Sequence[str], count: int) -> str:
    """The first parts of a list, and the number of others."""
    listed = "; ".join(shown) or "none"
    return listed if count == len(shown) else f"{listed}; and {count - len(shown):,} more"


def log_values_at(
    states: Tensor, domain: Domain, blocks: Sequence[Block], observed: Tensor | None,
    device: torch.device,
) -> tuple[Tensor, Iterator[Tensor], tuple[int, ...]]:  # fmt: skip
    """Log-values of a graph at configurations (*lead, V), -1 where a variable has no state.

    Returns:
        (..., V or 1) bool, True where a state contradicts the evidence; for each block (..., F)
        log-values of its factors, differentiable; the leading dims.
    """
    clash = torch.zeros(1, dtype=torch.bool, device=device)
    if observed is not None:
        seen, states = torch.broadcast_tensors(observed, states)
        clash = ((seen != MISSING) & (states != MISSING) & (seen != states)).to(device)
        states = torch.where(states == MISSING, seen, states)
    missing = states == MISSING
    lacking = (missing.flatten(0, -2).any(0) if missing.ndim > 1 else missing).nonzero()
    if len(lacking):
        name = domain.variable(int(lacking[0])).name
        raise EvidenceError(
            f"An assignment needs a state for every variable; {len(lacking)} have none, "
            f"such as {name!r}."
        )

    def values() -> Iterator[Tensor]:
        for block in blocks:
            chosen = states[..., block.scopes].to(device)
            slots = [chosen[..., slot].unsqueeze(-1) for slot in range(block.arity)]
            each = block.select().evaluate(slots)
            each = each.reshape(each.shape[: each.ndim - block.arity] or (1,))
            yield each.expand(*each.shape[:-1], block.count)

    return clash, values(), tuple(states.shape[:-1])
