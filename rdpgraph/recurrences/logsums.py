"""Log Z by torch in little time: log-sums that are differentiable once, and say if they are exact.

The interpreter computes them, over this semiring. A link is

    log(exp(x - peak) P') + peak,  with P the exponentials of a matrix, made once,

and nothing else is done in its step, so it takes a handful of calls of torch. Logs are in float64
so that long recurrences keep the digits of float32, exponentials and their products in the dtype of
the inputs. What is absent is `ABSENT`, a finite number so low that no sum of scores comes near it;
so nothing is NaN, and gradients of what is absent are exactly zero.

A matrix product may lose terms to underflow. Runs in which one may have, or whose scores are as low
as `ABSENT`, are not sound, and are left to exact log-sums, which are made in logs where they must
be. So are derivatives of derivatives.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rdpgraph.logspace.gradients import is_transformed, regradient
from rdpgraph.recurrences.evaluation import evaluate, run_of
from rdpgraph.recurrences.interpreter import RuleStep, Run
from rdpgraph.recurrences.named_tensors import Join, NamedTensor
from rdpgraph.recurrences.program import Program
from rdpgraph.recurrences.semirings import LogSum, Semiring

ABSENT = -1e250  # nats: what no sum of scores above _LOWEST comes near, and sums of it are finite
_LOWEST = -1e200  # finite scores of inputs below it are left to exact log-sums
_ALIKE = 16.0  # nats between the peaks of the rows of a matrix below which one serves all of them
_FAINT = 1e-8  # the largest number of an item, before it is made 1, is no smaller
_FEW = 8  # cells of a series that are read one by one
_SERIES = 3  # steps of which it is worth to make a series
_COLLECTED = 1 << 16  # how many numbers wait for a look at whether they have lost terms


_Note = tuple[Tensor, Tensor | None, float, Tensor | None]
"""Values, and the rows, floor and columns of `Sums.note`."""


class Sums(Semiring):
    """Log-sums in float64 by products of exponentials, with first derivatives alone.

    Attributes:
        dtype: of exponentials.
        hard: whether an input has scores of -inf.
        sound: whether no product that was looked at has lost anything; see `look`.
    """

    zero, one, wide = ABSENT, 0.0, torch.float64

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype, self.hard, self.sound = dtype, False, True
        limits = torch.finfo(dtype)
        self.tiny, self.least = limits.tiny, limits.tiny / limits.eps * 64
        # Exponentials of less are denormal numbers, which take a hundred times as long.
        self.lowest = math.log(limits.tiny) + 0.01
        # What was not looked at, of one least number and shape together.
        self._noted: dict[tuple[float, torch.Size], list[_Note]] = {}
        self._size = 0

    def lift(self, logs: Tensor) -> Tensor:
        least = float(logs.detach().amin()) if logs.numel() else 0.0
        if least > _LOWEST:
            return logs
        low, self.hard = logs.detach() < _LOWEST, True
        if logs.dtype == torch.float64 and bool((low & (logs.detach() > -math.inf)).any()):
            self.sound = False
        return logs.double().clamp(min=ABSENT)

    def multiply(self, one: Tensor, other: Tensor) -> Tensor:
        return one + other

    def sum(self, values: Tensor, dims: Sequence[int]) -> Tensor:
        return values.to(self.wide).logsumexp([*dims])

    def sum_products(self, one: Tensor, other: Tensor, dims: Sequence[int]) -> Tensor:
        return _SumProducts.apply(one, other, dims, self)  # pyright: ignore

    def add(self, values: Sequence[Tensor]) -> Tensor:
        total, *others = values
        for each in others:
            total = torch.logaddexp(total, each)
        return total

    def prepare(self, matrix: Tensor) -> "_Matrix":
        return self.prepare_each(matrix.unsqueeze(0))[0]

    def prepare_each(self, matrices: Tensor) -> "_Matrices":
        return _Matrices(self, matrices)

    def pair(self, rows: Tensor, columns: Tensor, *, balanced: bool) -> Tensor:
        """The product of rows and columns.

        If ``balanced`` all rows and all columns have a peak for each k, so that nothing is lost
        where the two change with k in opposite ways; else each row and each column has one.
        """
        dim = -2 if balanced else -1
        mine = rows.detach().amax(dim, keepdim=True)
        other = columns.detach().amax(dim, keepdim=True)
        peak = (mine + other).amax(-1, keepdim=True) if balanced else mine + other.mT
        shift = peak - mine if balanced else other
        total = self.exponentials(rows, mine) @ self.exponentials(columns, shift).mT
        self.note(total, self.least, rows, ABSENT / 2, columns)
        low = total.detach() < self.least
        return torch.where(low, ABSENT, torch.where(low, 1.0, total).log() + peak)

    def exponentials(self, logs: Tensor, peak: Tensor) -> Tensor:
        """The exponentials of logs less a peak, at least `tiny`; there without gradient."""
        return (logs - peak).to(self.dtype).clamp(min=self.lowest).exp()

    # ---- whether anything was lost ----

    def note(
        self, values: Tensor, least: float, rows: Tensor | None = None, floor: float = 0.0,
        columns: Tensor | None = None,
    ) -> None:  # fmt: skip
        """Note numbers that are at least so large, or else may be of a product that lost terms.

        Args:
            values: positive, or 0 where nothing is possible.
            least: what they should not be below.
            rows: ([lead,] m, k) of which values are products; None: what is above 0 is possible.
            floor: the number above which rows are possible; below 0: all is, without columns.
            columns: ([lead,] n, k) logs of what they were multiplied with.
        """
        key = least, values.shape
        self._noted.setdefault(key, []).append((values, rows, floor, columns))
        self._size += values.numel()
        if self._size > _COLLECTED:
            self.look()

    @torch.no_grad()
    def look(self) -> bool:
        """Look at all numbers since the last look; return whether the run is sound so far."""
        for (least, _), noted in self._noted.items() if self.sound else ():
            every = torch.stack([x for x, *_ in noted]) if len(noted) > 1 else noted[0][0]
            if every.numel() and not bool(every.amin() >= least):
                self.sound = self.sound and not any(self._is_lossy(least, *x) for x in noted)
        self._noted, self._size = {}, 0
        return self.sound

    def _is_lossy(
        self, least: float, values: Tensor, rows: Tensor | None, floor: float,
        columns: Tensor | None,
    ) -> bool:  # fmt: skip
        """Return whether numbers are low that are not those of nothing."""
        low = ~(values >= least)
        if not bool(low.any()):
            return False
        if rows is None or columns is None:
            return not self.hard or floor < 0 or bool((low & (values != 0)).any())
        there = (part.to(self.dtype) for part in (rows > floor, columns > ABSENT / 2))
        return bool((low & (next(there) @ next(there).mT > 0)).any())


class _SumProducts(torch.autograd.Function):
    """Log-sums of ``one + other`` over some dims, of exponentials in the dtype of the inputs."""

    @staticmethod
    def forward(ctx: Any, one: Tensor, other: Tensor, dims: Sequence[int], sums: Sums) -> Tensor:
        terms = one + other
        peak = terms.amax([*dims], keepdim=True)
        weights = torch.threshold_(sums.exponentials(terms, peak), 2 * sums.tiny, 0.0)
        total = weights.sum([*dims], keepdim=True)
        if ctx.needs_input_grad[0] or ctx.needs_input_grad[1]:
            ctx.save_for_backward(weights.div_(total))
        ctx.shapes, ctx.dims = (one.shape, other.shape), dims
        return (total.log() + peak).squeeze(tuple(dims)).double()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (shares,), (above,) = ctx.saved_tensors, gradients
        above = above.to(shares)
        for dim in sorted(ctx.dims):
            above = above.unsqueeze(dim)
        shares = shares * above
        return *(
            shares.sum_to_size(shape) if needed else None
            for shape, needed in zip(ctx.shapes, ctx.needs_input_grad, strict=False)
        ), None, None  # fmt: skip


class _Matrices(Sequence["_Matrix"]):
    """The exponentials of matrices (many, [lead,] n, k), ready to be multiplied many times.

    Attributes:
        turned: (many, [lead,] k, n) these.
        logs: (many, [lead,] n, k) without gradient.
        peaks: (many, [lead,] 1, n) what was taken off the logs of each row; None: ``top`` of all.
        top: their maximum.
        hard: whether there are zeros among the exponentials.
    """

    def __init__(self, sums: Sums, matrices: Tensor) -> None:
        self.logs = matrices.detach()
        peaks = self.logs.amax(-1, keepdim=True)
        self.top = peaks.amax()
        # Where rows are alike one peak serves all, which saves an addition in every link.
        alike = bool(self.top - peaks.amin() < _ALIKE)
        self.turned = sums.exponentials(matrices, self.top if alike else peaks).mT
        self.hard = bool((self.turned.detach() < 2 * sums.tiny).any())
        self.peaks = None if alike else peaks.mT
        rows = [self.top] * len(peaks) if self.peaks is None else self.peaks.unbind(0)
        each = zip(self.turned.unbind(0), self.logs.unbind(0), rows, strict=True)
        self._each = [_Matrix(sums, *parts, hard=self.hard) for parts in each]

    def __len__(self) -> int:
        return len(self._each)

    def __getitem__(self, number: int) -> "_Matrix":  # pyright: ignore
        return self._each[number]


class _Matrix:
    """One of some matrices, with what was taken off its logs."""

    def __init__(
        self, sums: Sums, turned: Tensor, logs: Tensor, taken: Tensor, *, hard: bool
    ) -> None:
        self.sums, self.turned, self.logs, self.taken, self.hard = sums, turned, logs, taken, hard

    def times(self, rows: Tensor) -> Tensor:
        """([lead,] m, k) as ([lead,] m, n), of logs."""
        sums, peak = self.sums, rows.detach().amax(-1, keepdim=True)
        total = sums.exponentials(rows, peak) @ self.turned
        sums.note(total.detach(), sums.least, rows, ABSENT / 2, self.logs)
        peak = peak + self.taken
        if not self.hard:
            return total.log() + peak
        low = total.detach() < sums.least
        return torch.where(low, ABSENT, torch.where(low, 1.0, total).log() + peak)


# ---- series of links ----


class _SeriesCells:
    """Values of a series of cells, exp(levels) times numbers, which are made logs when read."""

    def __init__(self, numbers: Tensor, levels: Tensor) -> None:
        self.numbers, self.levels, self._read = numbers, levels, 0
        self._each: Sequence[Tensor] = ()

    def at(self, step: int) -> tuple[Tensor, Tensor]:
        """The numbers and level of one."""
        self._read += 1
        if self._read < _FEW:  # a gradient is as large as all numbers
            return self.numbers[step], self.levels[step]
        self._each = self._each or self.numbers.unbind(0)
        return self._each[step], self.levels[step]


class _Late(NamedTuple):
    """One of some cells."""

    cells: _SeriesCells
    number: int


class LinkSeries:
    """Computes series of cells each of which is a link of the one before, all at once.

    With P the exponentials of the matrix and e those of a factor of each step, all 1 at most,

        row[s] = x[s] / peak[s],    total[s] = row[s] P,    x[s + 1] = total[s] * e[s],

    and what was taken off is added up at the end. States that are too far below the best one are
    lost; where the next totals are large enough, these had lost next to nothing.
    """

    def __init__(self, sums: Sums) -> None:
        self.sums = sums
        # Numbers below `tiny` are lost, next to a largest one of _FAINT at least.
        self.least = sums.least / _FAINT
        self._refused = set[int]()

    def fill(self, run: Run, term: RuleStep, table: str, first: int) -> bool:
        """Compute the cells of a table from a step on; return False where this is no series."""
        # What the steps multiply, unless there are few of them, or the rule is of another kind.
        last, sums = run.layout.series_end(term, table, first), self.sums
        if last - first < _SERIES or term.rule in self._refused:
            return False
        found = self._factors(run, term, first)
        if found is None:
            self._refused.add(term.rule)
            return False
        # The first cell as numbers, and what belongs to the steps of the series alone.
        join, matrices, weights, taken = found
        own, values = slice(first, last), run.values(table, first - 1)
        top = values.detach().amax([*range(1, values.ndim)], keepdim=True)
        numbers = sums.exponentials(values, top)
        if sums.hard:
            numbers = numbers.masked_fill(values.detach() < ABSENT / 2, 0.0)
        each = len(matrices) > 1
        turned, logs = (x[own] if each else x for x in (matrices.turned, matrices.logs))
        weights, taken = (x[own] if len(x) > 1 else x for x in (weights, taken))
        # All steps, and what says whether they have lost anything.
        least = self.least if matrices.hard or sums.hard else 0.0
        x, totals, peaks, rows = _Series.apply(  # pyright: ignore
            numbers, turned, weights, join, last - first, least
        )
        sums.note(peaks, _FAINT, floor=-1.0)
        sums.note(totals, self.least, rows, 0.0, logs)
        cells = _SeriesCells(x, top + (peaks.double().log() + taken).cumsum(0))
        run.done[table].update({first + k: _Late(cells, k) for k in range(last - first)})
        return True

    def _factors(
        self, run: Run, term: RuleStep, step: int
    ) -> "tuple[Join, _Matrices, Tensor, Tensor] | None":
        """How cells and the matrix are joined, the matrices and weights, and what these lack."""
        # A stand-in for the cell that is read, whose names and sizes say how it is multiplied.
        read = term.cell
        assert read is not None
        assert read.plain is not None
        shape = run.layout.shapes[read.table]
        cell = NamedTensor(run.like.new_empty(run.items, *shape.sizes), read.plain)
        factors = run.factors(term, step, cell)
        plan, others = run.plan(term, factors), [x for x in factors if x is not cell]
        if len(plan) not in (1, 2) or any(x.split or not x.is_matrix for x in others):
            return None
        # The first product is that with a matrix, and the second, if any, sums nothing.
        pair = [factors[plan[0].one], factors[plan[0].other]]
        if cell not in pair:
            return None
        (matrix,) = (x for x in pair if x is not cell)
        join = Join(cell, matrix, plan[0].summed)
        is_view = join.as_matrix and join.x.order is None and join.order is None
        if not is_view or join.items[1] > join.items[0]:
            return None
        matrices = run.products.prepared(matrix, join.y, self.sums.prepare_each)
        # The second product, or 1 where there is none.
        weights, names = run.like.new_ones(1, dtype=self.sums.dtype), join.names
        taken = matrices.top.unsqueeze(0)
        if len(plan) == 2:
            (other,) = (x for x in others if x is not matrix)
            result = NamedTensor(cell.values.new_empty(join.shape), names)
            second = Join(result, other, plan[1].summed)
            if plan[1].summed or not second.x.is_same or second.items[1] > second.items[0]:
                return None
            weights, peaks = run.products.prepared(other, second.y, self._weights)
            names, taken = second.names, peaks + taken
        if matrices.peaks is not None or names != shape.names or not len(weights):
            return None
        return join, matrices, weights, taken

    def _weights(self, every: Tensor) -> tuple[Tensor, Tensor]:
        """The exponentials of each of (many, items, ...) less its peak, and the peaks.

        None at all where a number may be taken for nothing that is something.
        """
        given = every.detach()
        peaks = given.amax([*range(2, every.ndim)], keepdim=True) if every.ndim > 2 else given
        weights = self.sums.exponentials(every, peaks)
        if self.sums.hard:
            weights = weights.masked_fill(given < ABSENT / 2, 0.0)
            lost = (weights.detach() < self.sums.tiny / self.least) & (given > ABSENT / 2)
            weights = weights[:0] if bool(lost.any()) else weights
        return weights, peaks

    def logs(self, x: _Late) -> Tensor:
        """The values as logs."""
        least, (numbers, level) = self.sums.least, x.cells.at(x.number)
        self.sums.note(numbers.detach(), least)
        low = numbers.detach() < least
        return torch.where(low, ABSENT, torch.where(low, 1.0, numbers).log() + level)


class _Series(torch.autograd.Function):
    """The steps of `LinkSeries`: x and totals of all, peaks and rows."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, turned: Tensor, weights: Tensor, join: Join, steps: int, least: float,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        # What each step multiplies.
        product = torch.mm if turned.ndim == 3 else torch.bmm
        matrices, factors = (
            part.unbind(0) if len(part) > 1 else [part[0]] * steps for part in (turned, weights)
        )
        dims, peak = [*range(1, x.ndim)], x.new_ones(len(x), *[1] * (x.ndim - 1))
        every, totals, peaks, rows = (list[Tensor]() for _ in range(4))
        for matrix, factor in zip(matrices, factors, strict=True):
            if every:  # the first has a peak of 1
                peak = x.amax(dims, keepdim=True)
                peak = peak.clamp_(min=torch.finfo(x.dtype).tiny) if least else peak
                x = x / peak
            row = join.x.of(x)
            total = product(row, matrix)
            if least:  # what is nothing stays nothing
                total = torch.threshold(total, least, 0.0)
            x = join.of_product(total) * factor
            every.append(x)
            totals.append(total)
            peaks.append(peak)
            rows.append(row)
        # All of it is kept for the gradient, of which only that in x is ever asked for.
        made = [torch.stack(part) for part in (every, totals, peaks, rows)]
        ctx.save_for_backward(turned, weights, *made[1:])
        ctx.join = join
        ctx.mark_non_differentiable(*made[1:])
        return tuple(made)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """With g[s] the gradient in x[s + 1]: that in total[s] is g[s] e[s], in row[s] that P'."""
        turned, weights, totals, peaks, rows = ctx.saved_tensors
        steps, shape = len(rows), gradients[0].shape
        product = torch.mm if turned.ndim == 3 else torch.bmm
        # What is nothing passes no gradient on, which might be of any size.
        sums = totals.view(shape)
        factors = torch.where(sums > 0, weights, 0.0).unbind(0)
        back = turned.mT.unbind(0) if len(turned) > 1 else [turned[0].mT] * steps
        above, each = gradients[0].unbind(0), peaks.unbind(0)
        whole, below = list[Tensor](), list[Tensor]()
        # From the last step to the first.
        g = above[-1]
        for step in range(steps - 1, -1, -1):
            whole.append(g)
            below.append((g * factors[step]).view(totals.shape[1:]))
            g = product(below[-1], back[step]).view(peaks.shape[1], *shape[2:]) / each[step]
            g = g.add_(above[step - 1]) if step else g
        # The gradients in matrices and weights, of all steps at once.
        after = torch.stack(below[::-1])
        if len(turned) > 1:
            matrix = rows.mT @ after
        else:  # all steps are rows of one product
            every = (part.movedim(0, -3).flatten(-3, -2) for part in (rows, after))
            matrix = (next(every).mT @ next(every)).unsqueeze(0)
        factor = (torch.stack(whole[::-1]) * sums).sum_to_size(weights.shape) if (
            weights.requires_grad
        ) else None  # fmt: skip
        return g, matrix, factor, None, None, None


# ---- log Z ----


def exact_log_partition(
    program: Program, inputs: Mapping[str, Tensor], lengths: Mapping[str, Tensor | int],
    sizes: Mapping[str, int],
) -> Tensor:  # fmt: skip
    """(items,) log Z in nats by exact log-sums, in float64 where there is one."""
    logs = {array.name: inputs[array.name] for array in program.inputs if not array.whole}
    dtype = next((x.dtype for x in logs.values()), torch.float64)
    if dtype.itemsize < 8 and all(x.device.type != "mps" for x in logs.values()):
        inputs = {**inputs, **{name: x.double() for name, x in logs.items()}}
    goal = evaluate(program, inputs, lengths, sizes, LogSum()).to(dtype)
    # Where no input has a part in it, as where all items are empty, its gradient is zero.
    for x in () if goal.requires_grad else (x for x in logs.values() if x.requires_grad):
        goal = torch.where(torch.ones_like(goal, dtype=torch.bool), goal, x.sum().to(goal))
    return goal


def log_partition(
    program: Program, inputs: Mapping[str, Tensor], lengths: Mapping[str, Tensor | int],
    sizes: Mapping[str, int],
) -> Tensor:  # fmt: skip
    """(items,) log Z in nats, with all derivatives: `evaluation.evaluate`, in far less time.

    Second derivatives are those of exact log-sums, and so is all that a matrix product may lose.
    """
    logs = {array.name: inputs[array.name] for array in program.inputs if not array.whole}

    def exact(*values: Tensor) -> Tensor:
        given = {**inputs, **dict(zip(logs, values, strict=True))}
        return exact_log_partition(program, given, lengths, sizes)

    # Real logs on a device that has float64, and no derivatives but those that are taken backwards.
    served = all(x.is_floating_point() and x.device.type != "mps" for x in logs.values())
    if not logs or not all(sizes.values()) or not served or is_transformed():
        return exact(*logs.values())
    tracked = torch.is_grad_enabled()
    leaves = [x.detach().requires_grad_(tracked and x.requires_grad) for x in logs.values()]
    given = {**inputs, **dict(zip(logs, leaves, strict=True))}
    # The fastest way that loses nothing.
    for in_series in (True, False):
        goal = _sound_goal(program, given, lengths, sizes, in_series=in_series)
        if goal is not None:
            break
    else:
        return exact(*logs.values())
    # What is absent is -inf, with a gradient of zero.
    possible = goal.detach() > ABSENT / 2
    value = torch.where(possible, goal.detach(), -math.inf).to(leaves[0].dtype)
    if not any(x.requires_grad for x in leaves):
        return value
    found: Tensor = _PassLogPartition.apply(exact, goal, possible, leaves, value, *logs.values())  # pyright: ignore
    return found


def _sound_goal(
    program: Program, inputs: Mapping[str, Tensor], lengths: Mapping[str, Tensor | int],
    sizes: Mapping[str, int], *, in_series: bool,
) -> Tensor | None:  # fmt: skip
    """(items,) the goal, or None where something may be lost; with links in series, or without."""
    dtypes = [x.dtype for x in inputs.values() if x.is_floating_point()]
    sums = Sums(functools.reduce(torch.promote_types, dtypes, torch.float32))
    with torch.set_grad_enabled(any(x.requires_grad for x in inputs.values())):
        links = LinkSeries(sums) if in_series else None
        run = run_of(program, inputs, lengths, sizes, sums, links=links)
        goal = run.goal().expand(run.items)
    return None if not sums.look() or bool(goal.isnan().any()) else goal


class _PassLogPartition(torch.autograd.Function):
    """A finished pass upwards, and its gradient; derivatives of that are those of exact sums."""

    @staticmethod
    def forward(
        ctx: Any, exact: Any, goal: Tensor, possible: Tensor, leaves: Sequence[Tensor],
        value: Tensor, *logs: Tensor,
    ) -> Tensor:  # fmt: skip
        ctx.exact, ctx.goal, ctx.possible, ctx.leaves = exact, goal, possible, leaves
        ctx.save_for_backward(*logs)
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (above,), logs = gradients, ctx.saved_tensors
        if torch.is_grad_enabled() or is_transformed(above):
            return *[None] * 5, *regradient(ctx.exact, logs, above)
        found = [torch.zeros_like(x) for x in ctx.leaves if x.requires_grad]
        if ctx.goal.requires_grad:
            given = torch.where(ctx.possible, above, 0.0).to(ctx.goal)
            wanted = [x for x in ctx.leaves if x.requires_grad]
            found = torch.autograd.grad(
                ctx.goal, wanted, given, retain_graph=True, allow_unused=True,
                materialize_grads=True,
            )  # fmt: skip
        if not all(bool(x.isfinite().all()) for x in found):
            return *[None] * 5, *regradient(ctx.exact, logs, above)
        each = iter(found)
        return *[None] * 5, *(next(each) if x.requires_grad else None for x in ctx.leaves)
