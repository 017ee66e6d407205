"""Checks of potentials against their tables."""

import math
from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from rdpgraph._core.types import broadcast_shapes
from rdpgraph.infer import infer
from rdpgraph.model.factor import Factor
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.potentials.potential import Decomposition, Potential
from rdpgraph.model.variable import Variable
from rdpgraph.schedulers.contraction import Contraction
from rdpgraph.testing.enumeration import agree, close, seeded


def check_potential(potential: Potential, arity: int | None = None) -> None:
    """Check a potential against its table, and against a dense one in an exact answer.

    Args:
        potential: small enough to tabulate; float64 for the gradient checks to run.
        arity: its slots; default: all dims of its shape.
    """
    arity = len(potential.shape) if arity is None else arity
    table = potential.table(arity)
    sizes = potential.slots(arity)
    agree(
        tuple(table.shape) == potential.shape,
        f"table() has the potential's shape {potential.shape}; it has {tuple(table.shape)}",
    )
    agree(bool((table < math.inf).all()), "log-values are below +inf and not NaN")
    agree(
        table.dtype == potential.dtype,
        f"the potential's dtype, {potential.dtype}, is that of evaluate(), {table.dtype}",
    )
    # evaluate() at repeated states in another order, against rows of the table.
    asked = [torch.tensor([size - 1, *range(size), 0], device=table.device) for size in sizes]
    expected = table
    for slot, states in enumerate(asked):
        expected = expected.index_select(table.ndim - arity + slot, states)
    close(potential.evaluate(asked), expected, "evaluate() on repeated and permuted states")
    # evaluate() with leading dims, of which one may be 0.
    lead = potential.lead(arity)
    if not lead and arity:
        rows = [torch.stack([torch.arange(n), torch.arange(n).flip(0)]) for n in sizes]
        rows = [states.to(table.device) for states in rows]
        flipped = table.flip(tuple(range(arity)))
        close(
            potential.evaluate(rows), torch.stack([table, flipped]), "evaluate() with leading dims"
        )
        none = potential.evaluate([states[:0] for states in rows])
        agree(
            none.shape == (0, *sizes),
            "evaluate() of states with a leading dim of 0 returns values with that dim",
        )
    # Every other way to the same numbers: a decomposition, messages, and an exact answer.
    rebuilt = potential.decompose()
    if rebuilt is not None:
        close(_rebuilt(rebuilt, arity, maximise=False), table, "decompose(), summed")
        close(_rebuilt(rebuilt, arity, maximise=True), table, "decompose(), maximised")
    for temperature in (1.0, 0.0):
        _check_messages(potential, table, arity, temperature)
    variables = tuple(Variable(f"x{slot}", size) for slot, size in enumerate(sizes))
    dense = table.reshape(math.prod(lead), -1) if arity else table.reshape(-1, 1)
    answer = infer(FactorGraph([Factor(variables, potential)]), scheduler=Contraction())
    close(answer.log_partition.reshape(-1), dense.logsumexp(1), "log Z of the potential alone")
    _check_gradients(potential, arity)


def _check_gradients(potential: Potential, arity: int) -> None:
    """Check the gradient of log Z in the floating tensors of a dataclass potential."""
    if not is_dataclass(potential):
        return
    names = [
        field.name
        for field in fields(potential)
        if isinstance(value := getattr(potential, field.name), Tensor)
        and value.dtype == torch.float64
        and bool(value.isfinite().all())
    ]
    if not names:
        return

    def log_z(*tensors: Tensor) -> Tensor:
        changed: Any = replace(potential, **dict(zip(names, tensors, strict=True)))
        return changed.table(arity).flatten().logsumexp(0)

    inputs = tuple(getattr(potential, name).detach().requires_grad_() for name in names)
    agree(
        torch.autograd.gradcheck(log_z, inputs, fast_mode=True), f"gradients in {', '.join(names)}"
    )


def _check_messages(potential: Potential, table: Tensor, arity: int, temperature: float) -> None:
    """Check messages against the table, some incoming ones -inf."""
    generator = seeded()
    lead = potential.lead(arity)
    incoming: list[Tensor] = []
    for slot, size in enumerate(potential.slots(arity)):
        # Leads: none, the potential's, and that with a dim in front.
        shape = ((3, *lead, size), (size,), (*lead, size))[slot % 3]
        message = torch.randn(shape, generator=generator, dtype=table.dtype).to(table.device)
        message[..., slot % size] = -math.inf if size > 1 else 0.0
        if slot % 3 == 0:
            message[-1] = -math.inf
        incoming.append(message.requires_grad_())
    outgoing = potential.messages(incoming, temperature=temperature)
    what = f"messages() at temperature {temperature}"
    joint = broadcast_shapes(lead, *(message.shape[:-1] for message in incoming))
    for slot, message in enumerate(outgoing):
        total = table
        for other, values in enumerate(incoming):
            if other != slot:
                total = total + values.detach().reshape(
                    *values.shape[:-1], *(1,) * other, values.shape[-1], *(1,) * (arity - other - 1)
                )
        others = [dim - arity for dim in range(arity) if dim != slot]
        if others:
            total = total.logsumexp(others) if temperature else total.amax(others)
        close(message, total, f"{what}, to slot {slot}")
        agree(message.shape == (*joint, incoming[slot].shape[-1]), f"{what} have the joint lead")
    if arity > 1:
        finite = torch.cat([message[message > -math.inf] for message in outgoing]).sum()
        gradients = torch.autograd.grad(finite, incoming, allow_unused=True, materialize_grads=True)
        agree(
            not any(bool(gradient.isnan().any()) for gradient in gradients),
            f"{what} have no NaN in their gradient",
        )


def _rebuilt(split: Decomposition, arity: int, *, maximise: bool) -> Tensor:
    """The table of a decomposition, by eliminating its auxiliary variables."""
    joint, held = torch.zeros(()), list[int]()
    for place, part in enumerate(split.parts):
        union = [*held, *(variable for variable in part.variables if variable not in held)]
        joint = _aligned(joint, held, union) + _aligned(part.log_values, part.variables, union)
        later = {variable for other in split.parts[place + 1 :] for variable in other.variables}
        gone = [variable for variable in union if variable >= arity and variable not in later]
        held = [variable for variable in union if variable not in gone]
        dims = [union.index(variable) - len(union) for variable in gone]
        if dims:
            joint = joint.amax(dims) if maximise else joint.logsumexp(dims)
    return _aligned(joint, held, range(arity))


def _aligned(values: Tensor, variables: Sequence[int], order: Sequence[int]) -> Tensor:
    """Values (*lead, sizes) over variables, permuted and expanded to the dims of ``order``."""
    lead = values.ndim - len(variables)
    dims = [lead + variables.index(variable) for variable in order if variable in variables]
    moved = values.permute([*range(lead), *dims])
    sizes = iter(moved.shape[lead:])
    expanded = [next(sizes) if variable in variables else 1 for variable in order]
    return moved.reshape([*moved.shape[:lead], *expanded])
