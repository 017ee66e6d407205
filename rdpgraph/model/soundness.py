"""Refusal of models without an answer: NaN, +inf or overflow, items of probability zero."""

import math
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from rdpgraph._core.portable import tensors_in
from rdpgraph.errors import ImpossibleEvidenceError, ModelError
from rdpgraph.model.block import Block
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.potentials.table import Table

_NAMED = 5
"""Maximum number of batch items named in an error."""


def refuse_unsound(model: Any) -> None:
    """Raise a `ModelError` where a graph or structure holds NaN, +inf, or values that overflow.

    Called only where log Z is not finite, as it reads all tables.
    """
    total = 0.0
    if isinstance(model, FactorGraph):
        for block in model.blocks:
            for values in tensors_of(block.potential):
                _refuse_wrong(f"A factor over {_names(model, block)}", values)
                total += block.count * _largest(values)
        return _refuse_overflow(total, model.dtype)
    for field in fields(model):
        for values in tensors_of(getattr(model, field.name)):
            _refuse_wrong(f"The {field.name} of {type(model).__name__}", values)
            total += model.unary.numel() * _largest(values)
    return _refuse_overflow(total / max(model.unary.shape[-1], 1), model.unary.dtype)


def require_possible(lacking: str, possible: Tensor) -> None:
    """Raise `ImpossibleEvidenceError` unless every batch item is possible, (*batch) bool."""
    if bool(possible.all()):
        return
    if not possible.ndim:
        raise ImpossibleEvidenceError(
            f"{lacking}: the evidence, or the model, has probability zero; check what was "
            "observed, and the hard zeros."
        )
    raise ImpossibleEvidenceError(
        f"{lacking}: no configuration is possible in {items_named(~possible)}; leave them out, or "
        "check what was observed in them, and their hard zeros."
    )


def items_named(chosen: Tensor) -> str:
    """The chosen batch items (*batch) as text: "2 of 5 batch items (1, 4)"."""
    items = chosen.nonzero().tolist()
    names = [str(item[0] if len(item) == 1 else tuple(item)) for item in items[:_NAMED]]
    more = ["..."] if len(items) > _NAMED else []
    return f"{len(items)} of {chosen.numel()} batch items ({', '.join(names + more)})"


def holds_numbers(model: Any) -> bool:
    """Test if the tensors of a structure are below +inf and not NaN."""
    return all(bool(part.amax() < math.inf) for part in tensors_of(model) if part.numel())


def tensors_of(value: object) -> Iterator[Tensor]:
    """The floating tensors of a potential, or of a field of a structure."""
    return (part.detach() for part in tensors_in(value) if part.is_floating_point())


def _refuse_wrong(name: str, values: Tensor) -> None:
    if values.numel() and not bool((values < math.inf).all()):
        kind = "NaN" if bool(values.isnan().any()) else "+inf"
        raise ModelError(
            f"{name} holds {kind}, which was written into its tensor after the factor was "
            "declared; log-values must be finite or -inf."
        )


def _refuse_overflow(total: float, dtype: torch.dtype) -> None:
    if total > torch.finfo(dtype).max:
        way = "scale them down" if dtype == torch.float64 else "use float64, or scale them down"
        raise ModelError(
            f"The log-values of this model may add up to {total:.2g}, beyond what {dtype} holds; "
            f"{way}."
        )


def _largest(values: Tensor) -> float:
    """The largest finite absolute value."""
    if not values.numel():
        return 0.0
    return float(values.masked_fill(values.isinf() | values.isnan(), 0.0).abs().amax())


def _names(graph: FactorGraph, block: Block) -> list[str]:
    """The variables of the first faulty factor of a block, or of its first factor."""
    row = 0
    if isinstance(block.potential, Table) and not block.shared:
        tables = block.select().table(block.arity)
        wrong = ~(tables < math.inf)
        for _ in range(block.arity):
            wrong = wrong.any(-1)
        rows = wrong.reshape(-1, wrong.shape[-1]).any(0).nonzero()
        row = int(rows[0]) if len(rows) else 0
    scope = block.scopes[row].tolist() if block.count else []
    return [graph.domain.variable(number).name for number in scope]
