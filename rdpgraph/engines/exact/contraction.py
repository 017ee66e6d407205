"""Exact inference by contraction: one pass up the tree, one pass down, one traceback.

The upward pass multiplies tables and eliminates variables; the downward pass gives every table the
product of all the others, summed onto its dims, which is the derivative of Z by that table
(Darwiche 2003, "A differential approach to inference in Bayesian networks"); the traceback visits
the steps from the roots and draws, or maximises over, what each step eliminated.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph.engines.exact.products import Value, from_logs, joined, multiply, reduce
from rdpgraph.engines.exact.program import BatchedStep, Operand, Program
from rdpgraph.engines.reduction.network import Group
from rdpgraph.logspace.logmatrix import safe_log
from rdpgraph.plan.clock import Watch


@dataclass(frozen=True, eq=False)
class Upward:
    """Tables of every pool after the upward pass; None where they were freed."""

    program: Program  # what was run
    pools: tuple[Value | None, ...]  # the tables
    spent: float  # seconds


def upward(
    program: Program,
    groups: Sequence[Group],
    *,
    maximise: bool = False,
    keep: bool = True,
    watch: Watch | None = None,
) -> Upward:
    """Run all steps of a program.

    Args:
        program: the steps.
        groups: the factors, one group per factor pool.
        maximise: every elimination is a maximum (else the program's steps decide).
        keep: keep all tables for a downward pass, instead of freeing operands after use.
        watch: looked at before every step.
    """
    watch = watch or Watch()
    leaves = [from_logs(group.log_tables, keep_logs=maximise).rows(group.rows) for group in groups]
    pools: list[Value | None] = [*leaves, *([None] * len(program.steps))]
    for number, step in enumerate(program.steps):
        watch.look(lambda: program.shares[number])  # noqa: B023
        left = _gathered(step.left, pools)
        largest = maximise or step.maximise
        if step.right is None:
            made = reduce(left, step.left_dims, step.out_dims, maximise=largest)
        else:
            right = _gathered(step.right, pools)
            made = multiply(
                left, step.left_dims, right, step.right_dims, step.out_dims, maximise=largest
            )
            del right
        pools[program.groups + number] = made
        del left
        if not keep:
            for operand in (step.left, step.right):
                for pool, _ in operand.pieces if operand else ():
                    if program.last_use[pool] == number:
                        pools[pool] = None
    return Upward(program, tuple(pools), watch.spent)


def log_total(up: Upward) -> Tensor:
    """(batch or 1,) float64 sum over components of the logs of their scalars."""
    total: Tensor | None = None
    for pool in up.program.roots:
        value = _stored(up.pools[pool])
        logs = value.values.double() if value.is_log else safe_log(value.values).double()
        logs = logs if value.is_log else logs + value.log_scale
        logs = logs.expand(-1, up.program.steps[pool - up.program.groups].count).sum(1)
        total = logs if total is None else total + logs
    return torch.zeros(1, dtype=torch.float64, device="cpu") if total is None else total


def downward(up: Upward, *, maximise: bool = False, watch: Watch | None = None) -> list[Value]:
    """Products of all other tables of the component, on the dims of each factor pool.

    Times the factor itself this is its unnormalised marginal, or if maximising its max-marginal.
    One matrix product per operand of each step.
    """
    program = up.program
    waiting: list[list[tuple[Tensor | None, Value]]] = [[] for _ in up.pools]
    for pool in program.roots:
        root = _stored(up.pools[pool]).values
        ones = root.new_full((1, program.steps[pool - program.groups].count), float(not maximise))
        none = torch.zeros_like(ones, dtype=torch.float64)
        waiting[pool].append((None, Value(ones, none, is_log=maximise)))
    for number in range(len(program.steps) - 1, -1, -1):
        if watch is not None:
            watch.look(lambda: 1.0 - program.shares[number + 1])  # noqa: B023
        step = program.steps[number]
        above = _assembled(waiting[program.groups + number])
        waiting[program.groups + number] = []
        if step.right is None:
            private = [d for d in step.left_dims if d not in step.out_dims]
            message = _reordered(above, step.out_dims, step.left_dims, private, up, step.left)
            _deposit(message, step.left, waiting)
            continue
        left, right = _gathered(step.left, up.pools), _gathered(step.right, up.pools)
        for target, dims, other, other_dims in (
            (step.left, step.left_dims, right, step.right_dims),
            (step.right, step.right_dims, left, step.left_dims),
        ):
            private = [d for d in dims if d not in other_dims and d not in step.out_dims]
            shown = tuple(d for d in dims if d not in private)
            message = multiply(above, step.out_dims, other, other_dims, shown, maximise=maximise)
            _deposit(_reordered(message, shown, dims, private, up, target), target, waiting)
    return [_assembled(parts) for parts in waiting[: program.groups]]


def traceback(
    up: Upward, batch: int, count: int, num_variables: int, *,
    generator: torch.Generator | None, noise: bool, only: frozenset[int] | None = None,
) -> Tensor:  # fmt: skip
    """(count, batch, active variables) states drawn (noise) or maximising, from the roots down.

    Each step reads only the entries of its operands that agree with the states decided before, so a
    draw costs the eliminated dims and not the tables. Exact and independent draws, by Gumbel-max on
    those entries; without noise the first maximum wins.
    """
    device = next((pool.values.device for pool in up.pools if pool is not None), "cpu")
    states = torch.zeros(count, batch, num_variables, dtype=torch.long, device=device)
    for step in reversed(up.program.steps):
        if not step.gone or (only is not None and not step.maximise):
            continue
        operands = [(_gathered(step.left, up.pools), step.left_dims)]
        if step.right is not None:
            operands.append((_gathered(step.right, up.pools), step.right_dims))
        _decide(step, operands, states, generator if noise else None, noise=noise)
    return states


def _decide(
    step: BatchedStep, operands: list[tuple[Value, tuple[int, ...]]], states: Tensor,
    generator: torch.Generator | None, *, noise: bool,
) -> None:  # fmt: skip
    sizes: dict[int, int] = {}
    for value, dims in operands:
        sizes.update(zip(dims, value.dims, strict=True))
    cells = math.prod(sizes[dim] for dim in step.gone)
    grids, left = dict[int, Tensor](), torch.arange(cells, device=states.device)
    for dim in reversed(step.gone):  # states of the eliminated variables in each cell
        grids[dim], left = left % sizes[dim], left // sizes[dim]
    block = 2 * tuning.BLOCK if noise else tuning.CACHE_BLOCK
    nodes = tuning.per_block(cells * states.shape[1], block)
    chunk = max(1, nodes // max(1, step.count))
    for first, start in product(range(0, step.count, nodes), range(0, states.shape[0], chunk)):
        part = states[start : start + chunk]
        variables = step.variables[first : first + nodes].to(states.device)
        logits = torch.zeros((), device=states.device)
        for value, dims in operands:
            block = value.rows(slice(first, first + nodes)) if nodes < step.count else value
            logits = logits + _entries(block, dims, grids, variables, part)
        if noise:
            uniform = torch.rand(
                (*part.shape[:2], len(variables), cells),
                generator=generator, dtype=torch.float64, device=states.device,
            )  # fmt: skip
            logits = logits - (-torch.log1p(-uniform)).log()
        best = logits.argmax(-1).expand(*part.shape[:2], len(variables))
        for dim, grid in grids.items():
            part[:, :, variables[:, dim]] = grid[best]


def _entries(
    value: Value, dims: tuple[int, ...], grids: dict[int, Tensor], variables: Tensor, states: Tensor
) -> Tensor:
    """(count, batch, nodes, cells) log-entries of an operand at the decided states."""
    batch, nodes = value.values.shape[:2]
    base = torch.zeros(*states.shape[:2], len(variables), dtype=torch.long, device=states.device)
    offset, stride = torch.zeros((), dtype=torch.long, device=states.device), 1
    for dim, size in zip(reversed(dims), reversed(value.dims), strict=True):
        if dim in grids:
            offset = offset + grids[dim] * stride
        else:
            base += states[:, :, variables[:, dim]] * stride
        stride *= size
    if nodes > 1:
        base += torch.arange(nodes, device=states.device) * stride
    if batch > 1:
        base += torch.arange(batch, device=states.device).unsqueeze(1) * (stride * nodes)
    picked = value.values.detach().reshape(-1)[base.unsqueeze(-1) + offset].double()
    return picked if value.is_log else picked.log()


def _gathered(operand: Operand, pools: Sequence[Value | None]) -> Value:
    parts = [_stored(pools[pool]).rows(rows) for pool, rows in operand.pieces]
    if len(parts) == 1 and operand.order is None:
        return parts[0]
    value = joined(parts, operand.counts)
    return value if operand.order is None else value.rows(operand.order)


def _deposit(
    message: Value, operand: Operand, waiting: list[list[tuple[Tensor | None, Value]]]
) -> None:
    """Send messages for an operand to the pools of its tables."""
    if operand.order is not None:
        message = message.rows(operand.inverse)
    start = 0
    for (pool, rows), count in zip(operand.pieces, operand.counts, strict=True):
        whole = count == message.values.shape[1]
        part = message if whole else message.rows(slice(start, start + count))
        waiting[pool].append((rows, part))
        start += count


def _assembled(parts: list[tuple[Tensor | None, Value]]) -> Value:
    """Messages for a whole pool, in the order of its rows."""
    if len(parts) == 1 and parts[0][0] is None:
        return parts[0][1]
    rows = [index for index, _ in parts if index is not None]
    value = joined([part for _, part in parts], tuple(len(index) for index in rows))
    return value.rows(torch.argsort(torch.cat(rows)))


def _reordered(
    message: Value, shown: Sequence[int], dims: Sequence[int], private: Sequence[int],
    up: Upward, target: Operand,
) -> Value:  # fmt: skip
    """A message in the order of its target's dims, broadcast over private ones."""
    tensor, wanted = message.values, [dim for dim in dims if dim in shown]
    if wanted != list(shown):
        tensor = tensor.permute(0, 1, *(2 + shown.index(dim) for dim in wanted))
    if private:
        sizes = _stored(up.pools[target.pieces[0][0]]).dims
        for place, dim in enumerate(dims):
            if dim in private:
                tensor = tensor.unsqueeze(place + 2)
        tensor = tensor.expand(*tensor.shape[:2], *sizes)
    return Value(tensor, message.log_scale, message.low, message.high, message.is_log)


def _stored(value: Value | None) -> Value:
    assert value is not None, "the tables of this pass were not kept"
    return value
