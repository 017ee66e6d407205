"""Checks of the fields of hypertrees, of lengths and of tables, with errors in one line."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph._core.numbers import outside
from rdpgraph._core.types import broadcasts
from rdpgraph.errors import BudgetError, EvidenceError, ModelError
from rdpgraph.interface.structure import Structure
from rdpgraph.model.potentials.potential import WHOLE, Potential
from rdpgraph.model.potentials.table import Table, checked_log_table, checked_log_values

if TYPE_CHECKING:
    from rdpgraph.structures.grammar.rules import Rules


def checked_unary(unary: Tensor) -> None:
    """Check log-potentials (*batch, T, T, N)."""
    checked_log_values("Hypertree's unary", unary)
    shape = tuple(unary.shape)
    if len(shape) < 3 or shape[-2] != shape[-3] or not shape[-1]:
        raise ModelError(
            "Hypertree needs unary potentials of shape (*batch, T, T, N), [first, last, state], "
            f"N >= 1; got {shape}."
        )


def checked_rules(rules: "Rules", unary: Tensor, preterminals: int) -> None:
    """Check rules against the states of the unary potentials."""
    states, batch = unary.shape[-1], tuple(unary.shape[:-3])
    if not 0 <= preterminals < states:
        raise ModelError(
            f"Hypertree of {states} states needs 0 to {states - 1} preterminals; got "
            f"{preterminals}."
        )
    wanted = (states - preterminals, states)
    if rules.shape is not None and rules.shape != wanted:
        raise ModelError(
            f"Hypertree of {states} states, {preterminals} of them preterminals, needs rules of "
            f"(N, C) = {wanted} parents and children; got {rules.shape}."
        )
    if math.prod(rules.batch_shape) != 1 and not broadcasts(rules.batch_shape, batch):
        raise ModelError(f"Hypertree of batch {batch} got rules of batch {rules.batch_shape}.")
    if any(part.device != unary.device for part in rules.parts):
        raise ModelError("Hypertree needs its potentials on one device.")


def checked_root(root: Tensor | None, unary: Tensor, preterminals: int) -> None:
    """Check the root's log-potentials (*batch, N)."""
    if root is None:
        return
    checked_log_table("Hypertree's root", root)
    states = unary.shape[-1] - preterminals
    fits = root.ndim >= 1 and root.shape[-1] == states
    if not fits or not broadcasts(root.shape[:-1], unary.shape[:-3]):
        raise ModelError(
            f"Hypertree needs root log-potentials of shape (*batch, {states}); got "
            f"{tuple(root.shape)}."
        )


def checked_trees(states: Tensor, shape: Sequence[int]) -> tuple[int, ...]:
    """The dims in front of trees (*lead, *batch, T, T), given the shape (*batch, T, T, N)."""
    lead = tuple(states.shape[: max(states.ndim - len(shape) + 1, 0)])
    wanted = tuple(shape[:-1])
    if tuple(states.shape[len(lead) :]) != wanted or states.dtype != torch.int64:
        raise EvidenceError(
            f"Hypertree needs trees as int64 states of shape (*lead, *{wanted}); got "
            f"{states.dtype} of shape {tuple(states.shape)}."
        )
    if states.numel() and int(states.max()) >= shape[-1]:
        raise EvidenceError(
            f"Hypertree of {shape[-1]} states got a tree with state {int(states.max())}."
        )
    return lead


def checked_mask(allowed: Tensor, shape: Sequence[int]) -> None:
    """Check allowed spans, which broadcast to (*batch, T, T), given the shape (*batch, T, T, N)."""
    if allowed.dtype != torch.bool or not broadcasts(allowed.shape, shape[:-1]):
        raise ModelError(
            f"masked needs allowed spans as bool (*batch, T, T), to fit "
            f"{tuple(shape[:-1])}; got {allowed.dtype} of shape "
            f"{tuple(allowed.shape)}."
        )


def settle_lengths(owner: Structure, **most: int) -> None:
    """Make lengths (*batch,) in fields of a structure int64 on its device; ``most`` bounds each."""
    name, batch = type(owner).__name__, owner.batch_shape
    for field, total in most.items():
        lengths: Tensor | None = getattr(owner, field)
        if lengths is None:
            continue
        whole = lengths.dtype in WHOLE or not lengths.numel()
        if not whole or tuple(lengths.shape) != batch:
            raise ModelError(
                f"{name} of batch shape {batch} needs integer lengths of that shape; got "
                f"{lengths.dtype} of shape {tuple(lengths.shape)}."
            )
        wrong = outside(lengths, 0, total)
        if wrong is not None:
            raise ModelError(f"{name} needs {field} 0 to {total}; got {wrong}.")
        object.__setattr__(owner, field, lengths.to(owner.unary.device, torch.long))


def written_out(owner: str, name: str, potential: Potential, dims: int) -> Tensor:
    """The table of a potential; `BudgetError` above `tuning.MOST_TABULATED` entries."""
    entries = math.prod(potential.shape)
    if entries > tuning.MOST_TABULATED and not isinstance(potential, Table):
        raise BudgetError(
            f"{owner}'s {name}, a {type(potential).__name__}, has {entries:,} entries and at "
            f"most {tuning.MOST_TABULATED:,} are written out; ask a question that needs no table, "
            "or give infer an estimator that keeps a few states."
        )
    return potential.table(dims)
