"""Copies of what a graph holds: numbers that gradients may pass; another device or type."""

from collections.abc import Iterable
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from rdpgraph.errors import ModelError
from rdpgraph.model.block import Block
from rdpgraph.model.potential import Potential
from rdpgraph.model.table import Table


def outliving(
    blocks: Iterable[Block], observed: Tensor | None
) -> tuple[tuple[Block, ...], Tensor | None]:
    """The same with numbers that gradients may pass, which those of inference mode are not."""
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
    """A potential with its tensors on another device, and floating ones of another type."""
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
    """Blocks with their potentials on another device or of another floating type.

    Raises:
        ModelError: torch has no such device, or no such type.
    """
    try:
        torch.empty(0, device="cpu").to(*args)
    except (AssertionError, RuntimeError, TypeError) as error:
        reason = str(error).partition("\n")[0]
        raise ModelError(f"FactorGraph.to needs a device or a type: {reason}") from None
    return [Block(b.scopes, moved(b.potential, *args), b.shape, b.rows, b.declared) for b in blocks]
