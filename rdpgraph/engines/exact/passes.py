"""Exact inference by contraction: one pass up the tree, one pass down, one traceback.

The upward pass multiplies tables and eliminates variables; the downward pass gives every table the
product of all the others, summed onto its dims, which is the derivative of Z by that table
(Darwiche 2003, "A differential approach to inference in Bayesian networks"); the traceback visits
the steps from the roots and draws, or maximises over, what each step eliminated.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import torch
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph.engines.exact.batched_steps import BatchedStep, ContractionProgram, Operand, Side
from rdpgraph.engines.exact.products import Value, from_logs, joined, multiply, reduce
from rdpgraph.engines.reduction.network import Group
from rdpgraph.logspace.logmatrix import finite, safe_log
from rdpgraph.plan.clock import Watch


@dataclass(frozen=True, eq=False)
class UpwardTables:
    """Tables of every pool after the upward pass; None where they were freed."""

    program: ContractionProgram  # what was run
    pools: tuple[Value | None, ...]  # the tables
    spent: float  # seconds


def upward(
    program: ContractionProgram,
    groups: Sequence[Group],
    *,
    maximise: bool = False,
    keep: bool = True,
    watch: Watch | None = None,
) -> UpwardTables:
    """Run all steps of a program.

    Args:
        program: the steps.
        groups: the factors, one group per factor pool.
        maximise: every elimination is a maximum (else the program's steps decide).
        keep: keep all tables for a downward pass, instead of freeing operands after use.
        watch: looked at before every step.
    """
    watch = watch or Watch()
    leaves = [
        replace(from_logs(group.log_tables, keep_logs=maximise), shared=group.rows)
        for group in groups
    ]
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
        # Log Z alone frees every table after the last step that reads it.
        if not keep:
            for operand in (step.left, step.right):
                for pool, _ in operand.pieces if operand else ():
                    if program.last_use[pool] == number:
                        pools[pool] = None
    return UpwardTables(program, tuple(pools), watch.spent)


def log_total(up: UpwardTables) -> Tensor:
    """(batch or 1,) float64 sum over components of the logs of their scalars."""
    total: Tensor | None = None
    for pool in up.program.roots:
        value = stored(up.pools[pool])
        logs = value.values.double() if value.is_log else safe_log(value.values).double()
        logs = logs if value.is_log else logs + value.log_scale
        logs = logs.expand(-1, up.program.steps[pool - up.program.groups].count).sum(1)
        total = logs if total is None else total + logs
    return torch.zeros(1, dtype=torch.float64, device="cpu") if total is None else total


@dataclass(frozen=True, eq=False)
class Downward:
    """What the pass down gives for every step.

    The message to a factor is not among it, because messages to all factors would be as large as
    all joint marginals: `to_factors` makes those of one group.
    """

    up: UpwardTables
    maximise: bool
    # per step the product of all tables of the component outside of its result, on its dims
    above: tuple[Value, ...]
    # (variables (n,), (batch or 1, n, states) unnormalised marginals, or max-marginals)
    marginals: tuple[tuple[Tensor, Value], ...]
    # messages to operands with small tables that were made on the way, by step and side
    kept: Mapping[tuple[int, int], tuple[Value, tuple[int, ...]]]

    def to_factors(self, wanted: Mapping[int, Tensor | None]) -> dict[int, Value]:
        """Products of all other tables of the component, on the dims of some factors.

        Times the factor itself this is its unnormalised marginal, or if maximising its
        max-marginal.

        Args:
            wanted: per group the rows (n,) of it, each once; None for the whole group.
        """
        parts = {group: list[tuple[Tensor | None, Value]]() for group in wanted}
        for number, (step, above) in enumerate(zip(self.up.program.steps, self.above, strict=True)):
            for place, side in enumerate(step.sides):
                asked = {pool for pool, _ in side.operand.pieces if pool in wanted}
                if not asked:
                    continue
                if all(wanted[group] is None for group in asked):
                    message = self.kept.get((number, place)) or _message(
                        side, step, above, self.up, maximise=self.maximise
                    )
                    for pool, rows, part in _pieces(
                        _expanded(*message, side, self.up), side.operand
                    ):
                        if pool in asked:
                            parts[pool].append((rows, part))
                    continue
                # Messages of those steps alone, of the ones that run as one, that read such a row.
                for group, members, rows in side.operand.members():
                    if group in asked:
                        found = _places(rows, wanted[group])
                        chosen = members[found >= 0]
                        if len(chosen):
                            message = _message(
                                side, step, above, self.up, maximise=self.maximise, members=chosen
                            )
                            part = _expanded(*message, side, self.up)
                            parts[group].append((found[found >= 0], part))
        return {group: _assembled(each) for group, each in parts.items()}


def _places(rows: Tensor, wanted: Tensor | None) -> Tensor:
    """The place of each row among those wanted (None: all), -1 where it is not among them."""
    if wanted is None:
        return rows
    place = torch.full((int(max(rows.max(), wanted.max())) + 1,), -1, device="cpu")
    place[wanted] = torch.arange(len(wanted), device="cpu")
    return place[rows]


def downward(up: UpwardTables, *, maximise: bool = False, watch: Watch | None = None) -> Downward:
    """Pass messages from the roots to every step, and read the marginal of every variable.

    Each variable is read at the step that eliminates it, off the smaller operand that has it: the
    messages to large factors, whose size is that of a joint marginal, are never made. At most one
    matrix product per operand of each step.
    """
    program = up.program
    # What has come down to each pool, in pieces of its rows; the roots get ones.
    waiting: list[list[tuple[Tensor | None, Value]]] = [[] for _ in up.pools]
    for pool in program.roots:
        root = stored(up.pools[pool]).values
        ones = root.new_full((1, program.steps[pool - program.groups].count), float(not maximise))
        none = torch.zeros_like(ones, dtype=torch.float64)
        waiting[pool].append((None, Value(ones, none, is_log=maximise)))
    every: list[Value] = []
    marginals: list[tuple[Tensor, Value]] = []
    kept: dict[tuple[int, int], tuple[Value, tuple[int, ...]]] = {}
    for number in range(len(program.steps) - 1, -1, -1):
        if watch is not None:
            watch.look(lambda: 1.0 - program.shares[number + 1])  # noqa: B023
        step = program.steps[number]
        above = _assembled(waiting[program.groups + number])
        waiting[program.groups + number] = []
        every.append(above)
        for place, side in enumerate(step.sides):
            inner = any(pool >= program.groups for pool, _ in side.operand.pieces)
            if not inner and not side.read:
                continue
            message, shown = _message(side, step, above, up, maximise=maximise)
            value = _gathered(side.operand, up.pools)
            if math.prod(value.dims) < tuning.CORE_BLOCK and not maximise:
                kept[number, place] = message, shown
            # Small messages are kept for the marginals of factors. Variables are read off here, and
            # operands that steps made get the message, on their way to the leaves.
            if side.read:
                each = _marginals(side, value, message, shown, maximise=maximise)
                marginals += [(step.variables[:, label], part) for label, part in each.items()]
            if inner:
                message = _expanded(message, shown, side, up)
                for pool, rows, part in _pieces(message, side.operand):
                    if pool >= program.groups:
                        waiting[pool].append((rows, part))
    return Downward(up, maximise, tuple(reversed(every)), tuple(marginals), kept)


def _marginals(
    side: Side, value: Value, message: Value, shown: tuple[int, ...], *, maximise: bool
) -> dict[int, Value]:
    """Unnormalised marginals of the variables that are read off an operand, by label."""
    # Where one table stands for all steps, and where a variable is in no other table, their product
    # would be larger than both.
    large = set(shown) != set(side.dims) or value.values.shape[1] < message.values.shape[1]
    if large:
        return {
            label: multiply(value, side.dims, message, shown, (label,), maximise=maximise)
            for label in side.read
        }
    joint = multiply(value, side.dims, message, shown, side.dims, maximise=maximise)
    return {label: reduce(joint, side.dims, (label,), maximise=maximise) for label in side.read}


def expected_scores(down: Downward, number: int, group: Group) -> Tensor:
    """(batch or 1,) float64 expectation of the summed log-values of a group with large tables.

    For a factor f whose message from all else is m, the expectation of log f is

        E[log f] = c - sum_x f m (c - log f) / sum_x f m,    c = 1 + max log f,

    in which both sums have positive terms only. Neither the message nor the joint marginal is made:
    see `_total`.
    """
    up, tables = down.up, group.layout[1]
    assert tables is not None
    total = torch.zeros(1, dtype=torch.float64, device="cpu")
    last: tuple[int, Value] | None = None
    for step, above in zip(up.program.steps, down.above, strict=True):
        for side in step.sides:
            (pool, rows), *_ = side.operand.pieces
            if pool != number:
                continue
            # Steps that run as one share their large table.
            table = tables[0 if rows is None else int(rows[0])]
            leaf = _in_double(_gathered(side.operand, up.pools))
            logs = group.log_tables[:, table : table + 1]
            if last is None or last[0] != table:
                last = table, _times_gap(leaf, logs)
            gaps = _ratio(
                _total(side, step, above, last[1], up), _total(side, step, above, leaf, up)
            )
            total = total + (_top(logs) - gaps).expand(-1, step.count).sum(1)
    return total


def _total(side: Side, step: BatchedStep, above: Value, value: Value, up: UpwardTables) -> Value:
    """Sums of an operand times all else, which is multiplied in turn, the smaller part last."""
    above, out = _in_double(above), step.out_dims
    if side.other is None:
        return multiply(above, out, value, side.dims, ())
    other = _in_double(_gathered(side.other, up.pools))
    pairs = (value, side.dims), (other, side.other_dims)
    (large, large_dims), (small, small_dims) = sorted(
        pairs, key=lambda pair: math.prod(pair[0].dims), reverse=True
    )
    shown = tuple(d for d in small_dims if d in large_dims or d in out)
    onto_small = multiply(above, out, large, large_dims, shown)
    return multiply(onto_small, shown, small, small_dims, ())


def _top(log_tables: Tensor) -> Tensor:
    """(batch or 1, tables) float64: 1 above the largest log-value of each table."""
    return finite(log_tables.detach().flatten(2).amax(-1)).double() + 1.0


def _times_gap(leaf: Value, log_tables: Tensor) -> Value:
    """Tables times the gap, at least 1, between `_top` and their log-values; 0 where they are."""
    top = _top(log_tables).to(log_tables)
    top = top.reshape(*top.shape, *(1,) * (log_tables.ndim - 2))
    gap = torch.where(log_tables > -math.inf, top - log_tables, 1.0)
    if leaf.is_log:
        return replace(leaf, values=leaf.values + gap.double().log())
    return replace(
        leaf, values=leaf.values * gap, high=leaf.high + math.log(float(gap.detach().amax()))
    )


def _in_double(value: Value) -> Value:
    """Logs in double precision: two sums of large logs are going to be subtracted."""
    return replace(value, values=value.values.double()) if value.is_log else value


def _ratio(above: Value, below: Value) -> Tensor:
    """(batch or 1, count or 1) float64 quotients of scalars; 0 where the divisor is 0."""
    logs, divisor = (
        each.values.double() if each.is_log else safe_log(each.values.double()) + each.log_scale
        for each in (above, below)
    )
    possible = divisor > -math.inf
    difference = logs - torch.where(possible, divisor, 0.0)
    return torch.where(possible, torch.where(possible, difference, 0.0).exp(), 0.0)


def _message(
    side: Side, step: BatchedStep, above: Value, up: UpwardTables, *, maximise: bool,
    members: Tensor | None = None,
) -> tuple[Value, tuple[int, ...]]:  # fmt: skip
    """The product of all tables outside of an operand, on those of its dims that others have.

    ``members`` are some of the steps that run as one; None: all of them.
    """
    above = above.rows(members)
    if side.other is None:
        return above, step.out_dims
    shown = tuple(d for d in side.dims if d in side.other_dims or d in step.out_dims)
    other = _gathered(side.other, up.pools).rows(members)
    message = multiply(above, step.out_dims, other, side.other_dims, shown, maximise=maximise)
    return message, shown


def traceback(
    up: UpwardTables, batch: int, count: int, num_variables: int, *,
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
    parts = [stored(pools[pool]).rows(rows) for pool, rows in operand.pieces]
    if len(parts) == 1 and operand.order is None:
        return parts[0]
    value = joined(parts, operand.counts)
    return value if operand.order is None else value.rows(operand.order)


def _pieces(message: Value, operand: Operand) -> Iterator[tuple[int, Tensor | None, Value]]:
    """The pool, the rows of it, and the messages for each piece of an operand."""
    if operand.order is not None:
        message = message.rows(operand.inverse)
    start = 0
    for (pool, rows), count in zip(operand.pieces, operand.counts, strict=True):
        whole = count == message.values.shape[1]
        yield pool, rows, message if whole else message.rows(slice(start, start + count))
        start += count


def _assembled(parts: list[tuple[Tensor | None, Value]]) -> Value:
    """Messages for a whole pool, in the order of its rows."""
    if len(parts) == 1 and parts[0][0] is None:
        return parts[0][1]
    rows = [index for index, _ in parts if index is not None]
    value = joined([part for _, part in parts], tuple(len(index) for index in rows))
    return value.rows(torch.argsort(torch.cat(rows)))


def _expanded(message: Value, shown: Sequence[int], side: Side, up: UpwardTables) -> Value:
    """A message in the order of its operand's dims, broadcast over those that no other has."""
    tensor, wanted = message.values, [dim for dim in side.dims if dim in shown]
    if wanted != list(shown):
        tensor = tensor.permute(0, 1, *(2 + list(shown).index(dim) for dim in wanted))
    if len(wanted) < len(side.dims):
        sizes = stored(up.pools[side.operand.pieces[0][0]]).dims
        for place, dim in enumerate(side.dims):
            if dim not in shown:
                tensor = tensor.unsqueeze(place + 2)
        tensor = tensor.expand(*tensor.shape[:2], *sizes)
    return Value(tensor, message.log_scale, message.low, message.high, message.is_log)


def stored(value: Value | None) -> Value:
    """The tables of a pool."""
    assert value is not None, "the tables of this pass were not kept"
    return value
