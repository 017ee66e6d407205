"""Programs and their tensors: the answers, for the entries of every input."""

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph._core.cache import Kept, cached_property
from rdpgraph._core.numbers import outside
from rdpgraph._core.shards import is_sharded, part_of, require_alike
from rdpgraph._core.types import broadcast_shapes
from rdpgraph.errors import ModelError, UnsupportedError
from rdpgraph.logspace.gradients import by_autograd, expectations, is_transformed, mean_scores
from rdpgraph.logspace.logmatrix import finite
from rdpgraph.model.potentials.potential import checked_log_values
from rdpgraph.model.potentials.table import as_values, as_whole
from rdpgraph.recurrences import derivations, executor, logsums, rows
from rdpgraph.recurrences.affine import Affine, evaluate_form
from rdpgraph.recurrences.derivations import Derived
from rdpgraph.recurrences.evaluation import evaluate
from rdpgraph.recurrences.potentials import sizes_of
from rdpgraph.recurrences.program import Array, Lookup, Program, Row, Rule
from rdpgraph.recurrences.semirings import Count, LogSum, Max, Most, Semiring


class Bound:
    """A program and the tensors that it is given, which answer every question by the program.

    Answers about derivations are in uses: how often a derivation uses each entry of each input of
    logs, in a dictionary by the names of the inputs.

    Attributes:
        program: the recurrence.
        given: the inputs by name, and lengths, None for those of full length.

    Raises:
        ModelError: in one line, for tensors that do not fit.
    """

    def __init__(
        self, program: Program, given: Mapping[str, Any], *, checked: bool = False
    ) -> None:
        """Bind a program to tensors; logs that are ``checked`` are read by the answers alone."""
        self.program, self._checked = program, checked
        self.given: dict[str, Any] = {name: given.get(name) for name in program.names}
        self._settle_tensors(program)
        self._shapes = shapes_of(program, self.given)
        self.check_whole()

    @classmethod
    def settled(cls, program: Program, given: Mapping[str, Any]) -> Self:
        """Bind a program to tensors that are known to fit, of one dtype and on one device."""
        bound = cls.__new__(cls)
        bound.program, bound._checked, bound._split = program, True, None
        bound.given = {name: given.get(name) for name in program.names}
        bound._like = bound.given[program.logs[0]]
        bound._shapes = shapes_of(program, bound.given)
        return bound

    def with_inputs(self, **tensors: Tensor) -> Self:
        """The same with other tensors for some inputs."""
        return type(self)(self.program, self.given | tensors, checked=self._checked)

    def double(self) -> Self:
        """The same with logs in float64."""
        given = {
            name: x.double() if isinstance(x, Tensor) and x.is_floating_point() else x
            for name, x in self.given.items()
        }
        if self._split is not None:
            return type(self)(self.program, given, checked=self._checked)
        return self.settled(self.program, given) if self.program.logs else self

    @property
    def sizes(self) -> Mapping[str, int]:
        """The sizes of the inputs by name."""
        return self._shapes.sizes

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """The batch dims: all that the inputs and lengths have, broadcast."""
        return self._shapes.batch

    # ---- checks ----

    def _settle_tensors(self, program: Program) -> None:
        """Make every input a tensor, those of logs of one dtype, lengths int64, on one device."""
        given, owner = self.given, program.name
        # The name of an input that is a DTensor, and one of logs.
        self._split: str | None = None
        self._like: Tensor | None = None
        dtypes: set[torch.dtype] = set()
        for array in program.inputs:
            value = given[array.name]
            if value is None:
                lacking = [array.name for array in program.inputs if given[array.name] is None]
                raise ModelError(f"{owner} needs {', '.join(lacking)}.")
            name = f"{owner}'s {array.name}"
            if array.whole:
                given[array.name] = as_whole(name, value).long()
                continue
            if is_sharded(value):  # which answers check, as all processes have to take part
                self._split = array.name
            else:
                value = given[array.name] = as_values(name, value)
                if not self._checked:
                    checked_log_values(name, _once(value))
            dtypes.add(value.dtype)
        if dtypes and dtypes != {torch.float32} and dtypes != {torch.float64}:
            dtype = functools.reduce(torch.promote_types, dtypes, torch.float32)
            for name in program.logs:
                given[name] = given[name].to(dtype)
        for name, _ in program.lengths:
            if given[name] is not None:
                given[name] = as_whole(f"{owner}'s {name}", given[name]).long()
        if program.logs:
            self._like = given[program.logs[0]]
        devices = {value.device for value in given.values() if value is not None}
        if len(devices) > 1:
            raise ModelError(
                f"{owner} needs its tensors on one device; got {sorted(map(str, devices))}."
            )

    def check_again(self) -> None:
        """Check tensors whose shapes, or whose whole numbers, may have been changed in place."""
        self._shapes = shapes_of(self.program, self.given)
        self.check_whole()

    def check_whole(self) -> None:
        """Check that lengths and indices that are data fit.

        Indices that were seen and not written to since are not read again.
        """
        program, ends = self.program, self._shapes.ends
        for name, most in program.lengths:
            if self.given[name] is not None:
                end = ends[name]
                wrong = outside(self.given[name], 0, end)
                if wrong is not None:
                    raise ModelError(
                        f"{program.name} needs {name} from 0 to {most} = {end}; got {wrong}."
                    )
        if len(program.logs) == len(program.inputs):
            return
        # Data are read where they are new, or were written to since they were seen.
        data = tuple(self.given[array.name] for array in program.inputs if array.whole)
        seen = _FITTING.get(self._shapes)
        if seen is not None and seen.is_current(data):
            return
        self._check_data(program)
        kept = Kept.of(None, data)
        # What counts no writes, as in inference mode, is read every time.
        if kept is not None:
            _FITTING[self._shapes] = kept
        while len(_FITTING) > _MOST_FITTING:
            _FITTING.pop(next(iter(_FITTING)), None)

    def _check_data(self, program: Program) -> None:
        for factor, k, name in program.lookups:
            array, data, at = program.by_name[factor.array], self.given[name], factor.index[k]
            assert isinstance(at, Lookup)
            # Of an index that is a number, as in data[v, 0], that part is read and no other.
            lead = data.ndim - len(at.index)
            parts = [slice(None) if one.terms else one.constant for one in at.index]
            fixed = zip(parts, data.shape[lead:], strict=True)
            if all(isinstance(one, slice) or 0 <= one < size for one, size in fixed):
                data = data[(..., *parts)]
            dims = array.dims if isinstance(array, Array) else array.sizes
            size = dims[k].evaluate(self.sizes)
            wrong = data[(data < 0) | (data >= size)]
            if len(wrong):
                raise ModelError(
                    f"{self.program.name} needs {name} from 0 to {size - 1}, as an index of "
                    f"{factor.array}; got {int(wrong[0])}: put 0 where it pads."
                )
        for row, size in _rows_of(program):
            self._check_rows(row, size.evaluate(self.sizes))
        for rule, at, axis in program.earlier:
            self._check_earlier(rule, at, axis)

    def _check_rows(self, row: Row, size: int) -> None:
        """Check that a list has rows one after the other, in every item."""
        rows = self.given[row.array]
        rows = rows.reshape(-1, rows.shape[-1])
        wrong = (rows.diff(dim=1) < 0).any(1) | ((rows < 0) | (rows > size)).any(1)
        if bool(wrong.any()):
            raise ModelError(
                f"{self.program.name} needs {row.array} to ascend from 0 to at most {size}, the "
                f"length of its list; got {rows[wrong][0].tolist()!s:.60}."
            )

    def _check_earlier(self, rule: Rule, at: Lookup, axis: str) -> None:
        """Check that a rule reads cells below its own, for all values of the variables."""
        data = self._flat_data(at.array)
        # Every variable is a dim of its own, but in a list each entry has the cell of its row,
        # which may be another one in each item.
        values: dict[str, Any] = dict(self.sizes)
        row = next((row for row in rule.rows if axis in row.at.names), None)
        names = sorted({*at.names & {*self.program.ranges}, row.variable if row else axis})
        for k, name in enumerate(names):
            count = self.program.ranges[name].evaluate(self.sizes)
            every = torch.arange(count, device=data.device)
            values[name] = every.view(-1, *[1] * (len(names) - 1 - k))
        if row is not None:
            begins, entries = self._flat_data(row.array), values[row.variable]
            every = entries.reshape(-1).expand(len(begins), -1).contiguous()
            number = torch.searchsorted(begins, every, right=True) - 1
            apart = (number < 0) | (number == begins.shape[1] - 1)
            number = torch.where(apart, self.program.ranges[axis].evaluate(self.sizes), number)
            lead = len(begins), *[1] * (len(names) - entries.ndim)  # also without entries
            number = number.view(*lead, *entries.shape)
            values[axis] = number - (row.at - axis).evaluate(self.sizes)
        # Entries outside of the data are read by no rule.
        index = [
            torch.as_tensor(evaluate_form(one, values), device=data.device) for one in at.index
        ]
        dims = data.shape[1:]
        holds = torch.ones((), dtype=torch.bool, device=data.device)
        for one, size in zip(index, dims, strict=True):
            holds = holds & (one >= 0) & (one < size)
        # Nor are cells read where a condition of the rule does not hold.
        for form in rule.guards:
            if form.names <= values.keys():
                holds = holds & torch.as_tensor(evaluate_form(form, values) >= 0)
        kept = [one.clamp(0, max(0, size - 1)) for one, size in zip(index, dims, strict=True)]
        item = torch.arange(len(data), device=data.device).view(-1, *[1] * len(names))
        late = holds & (data[(item, *kept)] >= values[axis]) if data.numel() else ~holds & holds
        if bool(late.any()):
            raise ModelError(
                f"{self.program.name} needs {at} below {axis}, so that a cell is there when it is "
                f"read, in {rule.text}"
            )

    def _flat_data(self, name: str) -> Tensor:
        """Whole numbers as `_flat` has them."""
        array = self.program.by_name[name]
        assert isinstance(array, Array)
        place = self.program.inputs.index(array)
        return self._shapes.flattened(self.given[name], place).contiguous()

    # ---- answers ----

    def _flat(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Inputs with one batch dim, of size 1 where all items share an input.

        Where there are no items one of zeros stands for them.
        """
        shapes = self._shapes
        return {
            array.name: x if how is None else shapes.flattened(x, place)
            for place, (array, how) in enumerate(zip(self.program.inputs, shapes.flat, strict=True))
            for x in (tensors[array.name],)
        }

    def _items_in(self, tensors: Mapping[str, Tensor]) -> list[Tensor]:
        """Inputs with as many items as those of `_flat`, but in their shapes, if they can be."""
        shapes = self._shapes
        return [
            tensors[array.name]
            if how is None or (how.batch is None and how.count)
            else shapes.flattened(tensors[array.name], place)
            for place, (array, how) in enumerate(zip(self.program.inputs, shapes.flat, strict=True))
        ]

    def _flat_lengths(self) -> dict[str, Tensor | int]:
        made: dict[str, Tensor | int] = {}
        for name, end in self._shapes.ends.items():
            lengths = self.given[name]
            if lengths is None:
                made[name] = end
            else:
                flat = lengths.expand(self.batch_shape).reshape(self._items)
                made[name] = flat if self._items else flat.new_zeros(1)
        return made

    @property
    def is_compiled(self) -> bool:
        """Whether compiled code answers; else torch does."""
        return self._layout() is not None

    def _layout(self) -> executor.CallLayout | None:
        """How compiled code answers; None where torch does."""
        shapes, like = self._shapes, self._like
        if like is None or not like.is_cpu or self._split is not None or is_transformed():
            return None
        executable = shapes.executable
        if executable is None or not executor.LIBRARY.available(like.dtype):
            return None
        return executable.kept_layout(shapes.counts, self._flat_lengths(), shapes.sizes, like.dtype)

    def _evaluated(self, tensors: Mapping[str, Tensor], semiring: Semiring) -> Tensor:
        """(*batch,) the goal of some inputs, whole numbers among them."""
        if self._split is not None:
            return self._evaluated_in_parts(tensors, semiring)
        layout = self._layout() if isinstance(semiring, LogSum | Max) else None
        if layout is None:
            flat = self._flat(tensors)
            self._check_written(flat)
            goal = self._interpreted(flat, semiring)
        elif isinstance(semiring, LogSum):
            goal = executor.log_partition(layout, self._items_in(tensors))
        else:
            goal = executor.run_up(layout, self._items_in(tensors), best=True).value
        return self._batched(goal, 0)

    def _interpreted(self, flat: Mapping[str, Tensor], semiring: Semiring) -> Tensor:
        """(items,) the goal of inputs from `_flat` by torch."""
        lengths = self._flat_lengths()
        if isinstance(semiring, LogSum):
            return logsums.log_partition(self.program, flat, lengths, self.sizes)
        return evaluate(self.program, flat, lengths, self.sizes, semiring)

    def _evaluated_in_parts(self, tensors: Mapping[str, Tensor], semiring: Semiring) -> Tensor:
        """`_evaluated` where some inputs are DTensors, each process computing with its parts."""
        name, split = self.program.name, {k: x for k, x in tensors.items() if is_sharded(x)}
        parts = {k: part_of(f"{name}'s {k}", x) for k, x in split.items()}  # pyright: ignore
        lengths = self._flat_lengths()
        whole = {array.name: tensors[array.name] for array in self.program.inputs}
        whole = {k: x for k, x in whole.items() if k not in split}
        require_alike(name, [*parts.values()], {**whole, **lengths})
        flat = self._flat({**tensors, **{k: part.held for k, part in parts.items()}})
        # Logs of sums are in float64, and parts, which are large, in their own type.
        wide = {k: flat[k].double() if flat[k].is_floating_point() else flat[k] for k in whole}
        parts = {k: part for k, part in parts.items() if part.shard.group is not None}
        goal = evaluate(self.program, {**flat, **wide}, lengths, self.sizes, semiring, parts)
        dtype = next(iter(split.values())).dtype
        return self._batched(goal.to(dtype) if isinstance(semiring, LogSum | Max) else goal, 0)

    def _check_written(self, flat: Mapping[str, Tensor]) -> None:
        """Refuse NaN and +inf that were written into inputs since they were given."""
        for array in self.program.inputs:
            if not array.whole:
                checked_log_values(f"{self.program.name}'s {array.name}", flat[array.name])

    @property
    def _items(self) -> int:
        return self._shapes.items

    def logs(self) -> dict[str, Tensor]:
        """The inputs of logs by name."""
        return {name: self.given[name] for name in self.program.logs}

    @property
    def _is_tracked(self) -> bool:
        """Whether gradients in some input are recorded."""
        if not torch.is_grad_enabled():
            return False
        return any(self.given[name].requires_grad for name in self.program.logs)

    def _log_partition_of(self, *logs: Tensor) -> Tensor:
        """(*batch,) log Z for other logs of the inputs, in their order."""
        return self._evaluated(self.given | dict(zip(self.logs(), logs, strict=True)), LogSum())

    def _exact_log_partition_of(self, *logs: Tensor) -> Tensor:
        """`_log_partition_of` by exact log-sums on torch, of which second derivatives are taken."""
        flat = self._flat(self.given | dict(zip(self.logs(), logs, strict=True)))
        self._check_written(flat)
        goal = logsums.exact_log_partition(self.program, flat, self._flat_lengths(), self.sizes)
        return self._batched(goal, 0)

    def log_partition(self) -> Tensor:
        """(*batch,) log Z in nats; -inf where nothing is possible. All derivatives exist."""
        return self._evaluated(self.given, LogSum())

    @torch.no_grad()
    def best_score(self) -> Tensor:
        """(*batch,) the score in nats of the best derivation; -inf where there is none."""
        return self._evaluated(self.given, Max())

    def rows(self, table: str, *, best: bool = False) -> Tensor:
        """(*batch, steps, labels) the log-sums of all cells of a table, each step up to a shift.

        The labels of a step are in one dim. All derivatives exist; shifts have no gradient.

        Args:
            table: of one axis beside its labels, whose cells are computed in the order of the axis,
                and of which the rules write the whole of each step but the first.
            best: whether to take maxima in place of sums; in float64, without a shift.
        """
        inputs, lengths = [*self._flat(self.given).values()], self._flat_lengths()
        if best:
            found = rows.best_rows(self.program, inputs, lengths, self.sizes, table)
        else:
            asked = rows.Asked(self.program, lengths, self.sizes, table)
            found = rows.rows_of(asked, inputs, self._layout())
        return self._batched(found, 0)

    @torch.no_grad()
    def count(self) -> Tensor:
        """(*batch,) the number of derivations that are possible, in float64: exact up to 2^53."""
        return self._evaluated(self.given, Count())

    def _with_batch(self, names: Iterable[str]) -> Self:
        """The same with all batch dims in some inputs."""
        dims = {array.name: len(array.dims) for array in self.program.inputs}
        whole = {
            name: x.expand(*self.batch_shape, *x.shape[x.ndim - dims[name] :])
            for name in names
            for x in (self.given[name],)
        }
        if all(x.shape == self.given[name].shape for name, x in whole.items()):
            return self
        return self.with_inputs(**whole)

    @by_autograd
    def marginals(self) -> dict[str, Tensor]:
        """How often a random derivation is expected to use each entry of each input of logs.

        (*batch, *dims) each: the gradients of every item's log Z, zero for impossible items.
        Differentiable again.
        """
        whole = self._with_batch(self.logs())
        full = whole.logs()
        tracked = any(values.requires_grad for values in full.values())
        _, gradients = expectations(whole._log_partition_of, [*full.values()], tracked=tracked)
        return dict(zip(full, gradients, strict=True))

    def max_marginals(self, only: str | None = None) -> dict[str, Tensor]:
        """The best score in nats of a derivation that uses each entry of each input of logs.

        (*batch, *dims) each; -inf where no derivation that is possible does.

        Args:
            only: the name of the input that is asked for; None: all.
        """
        number = None if only is None else self.program.names.index(only)
        found = self._by_name(executor.best_with(self._run_up(best=True), number), 0)
        return found if only is None else {only: found[only]}

    @by_autograd
    def entropy(self) -> Tensor:
        """(*batch,) nats, of derivations; 0 where nothing is possible. Differentiable.

        By compiled code the mean of minus the log of a derivation's share, summed term by term;
        else log Z less the mean of what a derivation's entries add up to, in float64.
        """
        layout = self._layout()
        if layout is not None:
            found = executor.entropy(layout, self._items_in(self.given))
            return self._batched(found, 0).clamp(min=0.0)
        wide = self.double()
        log_z, mean = wide.mean_score([finite(values) for values in wide.logs().values()])
        # Where log Z is -inf, the mean is 0.
        return (log_z - mean).clamp(min=0.0).to(next(iter(self.logs().values())))

    @by_autograd
    def cross_entropy(self, other: Self) -> Tensor:
        """(*batch,) nats: the mean of minus the log-probability of a derivation in another model.

        +inf where the other forbids what is possible here; 0 where nothing is. Differentiable in
        both.

        Raises:
            ModelError: the other is of another class, or its tensors have other shapes.
        """
        return self._compared(other, divergence=False)

    @by_autograd
    def kl_divergence(self, other: Self) -> Tensor:
        """(*batch,) nats: `cross_entropy` less `entropy`; 0 where nothing is possible here.

        Raises:
            ModelError: as for `cross_entropy`.
        """
        return self._compared(other, divergence=True)

    def _compared(self, other: Self, *, divergence: bool) -> Tensor:
        """The mean of minus the log-probability in another model; or of the ratio to it."""
        parts = self.logs(), other.logs() if type(other) is type(self) else {}
        shapes = [{name: x.shape for name, x in each.items()} for each in parts]
        alike = shapes[0].keys() == shapes[1].keys() and self.sizes == other.sizes
        if not alike or self.batch_shape != other.batch_shape:
            raise ModelError(
                f"{self.program.name} is compared with another of its class and shapes; got "
                f"{type(other).__name__} of {[tuple(shape) for shape in shapes[1].values()]}."
            )
        # An input that all items share in one of them alone gets all batch dims in both.
        apart = [name for name in shapes[0] if shapes[0][name] != shapes[1][name]]
        if apart:
            wide = other._with_batch(apart)
            return self._with_batch(apart)._compared(wide, divergence=divergence)
        own, logs = ([*each.values()] for each in parts)
        scores = [finite(values) for values in logs]
        if divergence:
            # The mean of a difference keeps the digits that the difference of two means loses.
            scores = [two - finite(one) for one, two in zip(own, scores, strict=True)]
        log_z, mean = self.mean_score(scores)
        crossed = other.log_partition() - (log_z if divergence else 0.0) - mean
        pairs = [(one.detach(), two == -torch.inf) for one, two in zip(own, logs, strict=True)]
        if any(bool(((one > -torch.inf) & forbidden).any()) for one, forbidden in pairs):
            # How many entries a derivation uses that the other forbids.
            with torch.no_grad():
                _, beyond = self.mean_score([forbidden.to(one) for one, forbidden in pairs])
            crossed = torch.where(beyond > 0, torch.inf, crossed)
        return torch.where(log_z > -torch.inf, crossed, 0.0)

    def mean_score(self, scores: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """(*batch,) log Z, and the mean over derivations of the sum of scores of the entries used.

        Both are differentiable, the mean in the scores, too.

        Args:
            scores: finite, one tensor in the shape of each input of logs.
        """
        logs = [*self.logs().values()]
        if self._split is not None:
            return mean_scores(self._log_partition_of, logs, scores)
        layout = self._layout()
        if layout is None:
            return self._mean_by_torch(logs, scores)
        inputs = self._items_in(self.given)
        every = self._items_in(self.given | dict(zip(self.program.logs, scores, strict=True)))
        said = [x for x, array in zip(every, self.program.inputs, strict=True) if not array.whole]
        found = executor.mean_score(layout, inputs, said)
        return self._batched(found[0], 0), self._batched(found[1], 0)

    def _mean_by_torch(
        self, logs: Sequence[Tensor], scores: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """What `mean_score` gives, where compiled code does not serve."""
        tracked = torch.is_grad_enabled() and any(x.requires_grad for x in (*logs, *scores))
        flat = self._flat(self.given).values()
        entries = self._items * sum(x[0].numel() for x in flat if len(x))
        if tracked or entries > tuning.LARGE_BLOCK:
            return mean_scores(self._exact_log_partition_of, logs, scores)
        # By the uses of all entries by each item, which need no derivatives of derivatives.
        whole, lead = self._with_batch(self.logs()), len(self.batch_shape)
        log_z, uses = expectations(whole._log_partition_of, [*whole.logs().values()], tracked=False)
        mean = torch.zeros_like(log_z)
        for use, score in zip(uses, scores, strict=True):
            own = (use * score).reshape(*self.batch_shape, use.shape[lead:].numel())
            mean = mean + own.sum(lead)
        return log_z, torch.where(log_z > -torch.inf, mean, 0.0)

    def mode(self) -> dict[str, Tensor]:
        """How often one best derivation uses each entry of each input of logs.

        (*batch, *dims) whole numbers each, zeros for items without a derivation.
        """
        return {name: uses[0] for name, uses in self.uses_of(None, None)[0].items()}

    def sample(self, count: int, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """How often each of some independent exact draws uses each entry of each input of logs.

        (count, *batch, *dims) whole numbers each, zeros for items without a derivation.
        """
        return self.uses_of(count, generator)[0]

    def k_best(self, count: int) -> tuple[dict[str, Tensor], Tensor]:
        """The best derivations, best first: how often each uses each entry, and their scores.

        By lazy lists of cells (Huang and Chiang 2005, algorithm 3). No derivation is there twice;
        two that use the same entries are two. Where an item has fewer, scores are -inf and uses
        zero from its last one on. They are found in the dtype of the inputs, so that of scores
        that differ by less than its rounding either may be the last one, and are put in the order
        of scores in float64.

        Args:
            count: how many derivations of each item.

        Returns:
            For each input of logs (count, *batch, *dims) whole numbers, and (count, *batch) scores
            in nats, each the sum of the entries that are used, and differentiable in these.

        Raises:
            ModelError: ``count`` is below 1.
        """
        up, reads, scores = self._best(count)
        return self._by_name(executor.count_uses(up, reads, count), 1), scores

    def _best(self, count: int) -> tuple[executor.Upward | Derived, Tensor, Tensor]:
        """A pass of maxima, what the best derivations read, and their scores (count, *batch)."""
        if count < 1:
            raise ModelError(f"{self.program.name} lists 1 derivation or more; got {count = }.")
        up = self._run_up(best=True)
        reads, found = executor.best_derivations(up, count)
        inputs = [*self._flat(self.given).values()]
        scores = executor.score_reads(inputs, reads, count, len(found))
        lacking = torch.arange(count, device=found.device).unsqueeze(1) >= found
        reads, scores = executor.in_order(reads, scores.masked_fill(lacking, -torch.inf))
        logs = next(x for x in inputs if x.is_floating_point())
        return up, reads, self._batched(scores.to(logs.dtype), 1)

    def uses_of(
        self, count: int | None, generator: torch.Generator | None
    ) -> tuple[dict[str, Tensor], Tensor]:
        """How often derivations use each entry, and whether each item has a derivation.

        (draws, *batch, *dims) of each input of logs, and (*batch,).

        Args:
            count: how many draws; None: the best one.
            generator: of the draws.
        """
        up = self._run_up(best=count is None)
        reads = executor.derivations(up, count, generator)
        uses = executor.count_uses(up, reads, 1 if count is None else count)
        return self._by_name(uses, 1), self._batched(up.possible, 0)

    def sums(self) -> "SumPass":
        """A pass of log-sums, of which several answers are read."""
        up = self._run_up(best=False)
        parts = functools.partial(self._expected_uses, up), functools.partial(self._entries_in, up)
        return SumPass(self._batched(up.value, 0), *parts)

    def _expected_uses(self, up: executor.Upward | Derived, names: Sequence[str]) -> list[Tensor]:
        given = [self.given[name] for name in names]
        if not self._items:
            return [torch.zeros_like(x) for x in given]
        if isinstance(up, executor.Upward):
            every = [array.name for array in self.program.inputs]
            wanted = [name in names for name in every]
            found = executor.run_down(up, torch.ones_like(up.value), wanted)
            uses = {name: x for name, x in zip(every, found, strict=True) if x is not None}
            return [uses[name].view_as(x) for name, x in zip(names, given, strict=True)]

        def log_partition(*values: Tensor) -> Tensor:
            return self._evaluated(self.given | dict(zip(names, values, strict=True)), LogSum())

        return expectations(log_partition, given, tracked=False)[1]

    def _run_up(self, *, best: bool) -> executor.Upward | Derived:
        """A pass from which derivations are read: by compiled code where that serves."""
        if self._split is not None:
            raise UnsupportedError(
                f"{self.program.name} finds modes, draws and max-marginals in one process alone; "
                f"its {self._split} is a DTensor: take its full_tensor(), or ask for log Z, "
                "gradients or marginals."
            )
        flat, layout = self._flat(self.given), self._layout()
        if layout is not None:
            return executor.run_up(layout, [*flat.values()], best=best, keep=not best)
        self._check_written(flat)
        lengths = self._flat_lengths()
        return derivations.run_up(self.program, [*flat.values()], lengths, self.sizes, best=best)

    def _batched(self, values: Tensor, dim: int) -> Tensor:
        """Values whose dim of items is replaced by the batch dims."""
        batch = self._shapes.batch
        if len(batch) == 1 and values.shape[dim] == batch[0]:
            return values
        before, after = values.shape[:dim], values.shape[dim + 1 :]
        every = values.expand(*before, self._items, *after)
        return every.reshape((*before, *batch, *after))

    def _by_name(self, values: Sequence[Tensor | None], dim: int) -> dict[str, Tensor]:
        """What the executor says of each input of logs, by name and with the batch dims."""
        pairs = zip(self.program.inputs, values, strict=True)
        return {array.name: self._batched(x, dim) for array, x in pairs if x is not None}

    def states_of(
        self, name: str, count: int | None, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        """(draws, *batch, *sites) the last index of the entries that derivations use of an input.

        Each derivation uses one entry at most of each place that the other indices give; -1 where
        it uses none. And (*batch,) log Z, or the best score, in nats: -inf where there is none.

        Args:
            name: of the input, which has all batch dims.
            count: how many draws; None: the best one.
            generator: of the draws.
        """
        up = self._run_up(best=count is None)
        if isinstance(up, executor.Upward):
            number = self.program.names.index(name)
            states = self._batched(executor.states(up, number, count, generator), 1)
        else:
            reads = executor.derivations(up, count, generator)
            states = self._states_read(name, up, reads, 1 if count is None else count)
        return states, self._batched(up.value, 0)

    def perturbed_states_of(self, name: str, noise: Tensor) -> Tensor | None:
        """(draws, *batch, *sites) as `states_of`, where noise decides; None without compiled code.

        The noise (draws, *batch, *sites, width) is added to log-sums where an entry of the input is
        chosen, and the largest is taken: draws, where it is Gumbel's. Of recurrences in which one
        label is chosen at a time, as in chains.
        """
        flat, layout = self._flat(self.given), self._layout()
        if layout is None:
            return None
        up = executor.run_up(layout, [*flat.values()], best=False)
        noise = noise.flatten(1, len(self.batch_shape))
        return self._batched(executor.states(up, [*flat].index(name), len(noise), None, noise), 1)

    def k_best_states_of(self, name: str, count: int) -> tuple[Tensor, Tensor]:
        """The best derivations as `states_of` gives them, and scores (count, *batch) as `k_best`.

        Where an item has fewer derivations, their states are -1.
        """
        if not self._is_tracked and count > 0:
            up = self._run_up(best=True)
            if isinstance(up, executor.Upward):
                number = self.program.names.index(name)
                states, scores = executor.best_states(up, number, count)
                return self._batched(states, 1), self._batched(scores.to(up.dtype), 1)
        up, reads, scores = self._best(count)
        return self._states_read(name, up, reads, count), scores

    def entries_of(
        self, name: str, count: int | None, generator: torch.Generator | None
    ) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor]:
        """What `states_of` gives, as a list of the entries that derivations use, in any order.

        The number of the draw and item, draw * items + item, the place among all that the other
        indices give, and the last index, (entries,) each; and whether each item has a derivation.
        """
        return self._entries_in(self._run_up(best=count is None), name, count, generator)

    def _entries_in(
        self, up: executor.Upward | Derived, name: str, count: int | None,
        generator: torch.Generator | None,
    ) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor]:  # fmt: skip
        reads = executor.derivations(up, count, generator)
        return self._entries_read(name, up, reads), self._batched(up.possible, 0)

    def k_best_entries_of(
        self, name: str, count: int
    ) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor]:
        """The best derivations as `entries_of` gives them, and scores as `k_best`."""
        up, reads, scores = self._best(count)
        return self._entries_read(name, up, reads), scores

    def _entries_read(
        self, name: str, up: executor.Upward | Derived, reads: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        number = self.program.names.index(name)
        width = up.inputs[number].shape[-1]
        own = reads[reads[:, 2] == number + 1] if self._items else reads[:0]
        derivation, item, _, at = own.T
        return derivation * len(up.value) + item, at // width, at % width

    def _states_read(
        self, name: str, up: executor.Upward | Derived, reads: Tensor, many: int
    ) -> Tensor:
        number = self.program.names.index(name)
        *sites, _ = up.inputs[number].shape[1:]
        items, places = len(up.value), math.prod(sites)
        row, place, state = self._entries_read(name, up, reads)
        states = torch.full((many * items * places,), -1, device=reads.device)
        states[row * places + place] = state
        return self._batched(states.reshape(many, items, *sites), 1)

    def log_sum_of_most(self, name: str, wanted: Tensor) -> Tensor:
        """(*batch,) the log-sum of derivations that use a wanted number of entries of an input.

        Of an input that has a single entry that is possible at each place, of which a derivation
        uses each once at most; ``wanted`` (*batch,) is the number of these that are used. -inf
        where no derivation uses so many. Differentiable.
        """
        logs, zero = self.logs(), torch.zeros_like
        ones = {key: torch.ones_like(x) if key == name else zero(x) for key, x in logs.items()}
        with torch.no_grad():
            log_z, used = self.mean_score([*ones.values()])
            # Where all derivations use as many, there are no others to leave out.
            lacking = (used - wanted).abs() > _ROUNDING * (1 + wanted)
            alone = not bool(((log_z > -torch.inf) & lacking).any())
        if alone:
            return self.log_partition()
        counted = {**logs, name: torch.complex(logs[name], ones[name])} if name in logs else logs
        if self._split is not None:
            goal = self._evaluated_in_parts(self.given | counted, Most())
        else:
            flat, lengths = self._flat(self.given | counted), self._flat_lengths()
            goal = evaluate(self.program, flat, lengths, self.sizes, Most())
            goal = self._batched(goal, 0)
        enough = (goal.imag.detach() == wanted) & (goal.real.detach() > -torch.inf)
        return torch.where(enough, goal.real, -torch.inf)


@dataclass(frozen=True, eq=False)
class Shapes:
    """What follows from the shapes of a program's tensors.

    Attributes:
        program: the recurrence.
        sizes: of the inputs, by name.
        batch: the dims to which all tensors broadcast, and ``items`` their product.
        flat: how each input gets one batch dim, by `flattened`; None: it has that.
        counts: how many items each has then: all, or 1 where they share it.
        ends: the largest lengths, by name.
    """

    program: Program
    sizes: Mapping[str, int]
    batch: tuple[int, ...]
    items: int
    flat: tuple["Flattening | None", ...]
    counts: tuple[int, ...]
    ends: Mapping[str, int]

    @cached_property
    def executable(self) -> executor.Executable | None:
        """The compiled program, if there is one at these sizes."""
        return executor.serves(self.program, self.sizes)

    def flattened(self, values: Tensor, place: int) -> Tensor:
        """An input with one batch dim, of size 1 where items share it, or where there are none."""
        how = self.flat[place]
        if how is None:
            return values
        own = values.shape[values.ndim - how.dims :]  # of a part of a DTensor fewer than of all
        if how.batch is not None:
            values = values.expand(*how.batch, *own)
        values = values.reshape(how.count, *own)
        return values if how.count else values.sum(0, keepdim=True)


@dataclass(frozen=True)
class Flattening:
    """How an input gets one batch dim.

    Attributes:
        dims: how many it has after those of the batch.
        batch: the batch dims that it is expanded to; None: it has them, or shares all items.
        count: how many items it has then.
    """

    dims: int
    batch: tuple[int, ...] | None
    count: int


def shapes_of(program: Program, given: Mapping[str, Any]) -> Shapes:
    """What follows from the shapes of tensors, kept for each program.

    Args:
        program: the recurrence.
        given: its inputs and lengths in order; None for lengths that are full.

    Raises:
        ModelError: sizes that do not agree, or batch dims that do not broadcast.
    """
    key = tuple([None if x is None else x.shape for x in given.values()])
    found = program.shapes.get(key)
    if found is None:
        sizes = _checked_sizes(program, given)
        batch = _checked_batch(program, given)
        items = math.prod(batch)
        flat: list[Flattening | None] = []
        counts: list[int] = []
        for array in program.inputs:
            lead, dims = _lead(array, given), len(array.dims)
            shared = all(size == 1 for size in lead)
            if len(lead) == 1 and items and lead[0] in (1, items):
                flat.append(None)
            elif shared:
                flat.append(Flattening(dims, None, 1))
            else:
                flat.append(Flattening(dims, None if lead == batch else batch, items))
            counts.append(1 if shared else max(items, 1))
        if len(program.shapes) >= _MOST_SHAPES:
            program.shapes.clear()
        ends = {name: most.evaluate(sizes) for name, most in program.lengths}
        found = Shapes(program, sizes, batch, items, tuple(flat), tuple(counts), ends)
        program.shapes[key] = found
    return found


def _checked_sizes(program: Program, given: Mapping[str, Any]) -> dict[str, int]:
    """The sizes by name, the same in every input."""
    sizes = sizes_of(program.inputs, given)
    for array in program.inputs:
        shape = tuple(given[array.name].shape)
        own = shape[len(shape) - len(array.dims) :] if len(shape) >= len(array.dims) else None
        if own is None or any(
            dim.evaluate(sizes) != size for dim, size in zip(array.dims, own, strict=True)
        ):
            known = ", ".join(f"{name} = {size}" for name, size in sizes.items())
            where = f" where {known}" if own is not None and known else ""
            raise ModelError(
                f"{program.name} needs {array}, after batch dims{where}; got a tensor of shape "
                f"{shape}."
            )
    return sizes


def _checked_batch(program: Program, given: Mapping[str, Any]) -> tuple[int, ...]:
    """The batch dims, to which all tensors broadcast."""
    shapes = {array.name: _lead(array, given) for array in program.inputs}
    for name, _ in program.lengths:
        if given[name] is not None:
            shapes[name] = tuple(given[name].shape)
    try:
        return broadcast_shapes(*shapes.values())
    except RuntimeError:
        said = ", ".join(f"{shape} of {name}" for name, shape in shapes.items() if shape)
        raise ModelError(f"{program.name} needs batch dims that broadcast; got {said}.") from None


def _lead(array: Array, given: Mapping[str, Any]) -> tuple[int, ...]:
    """The batch dims of an input."""
    shape = tuple(given[array.name].shape)
    return shape[: len(shape) - len(array.dims)]


@dataclass(frozen=True, eq=False)
class SumPass:
    """What is read of one pass of log-sums.

    Attributes:
        log_partition: (*batch,) nats, without gradient; -inf where nothing is possible.
        expected_uses: given names of inputs, how often derivations are expected to use each entry,
            in their shapes: the sum over items that share an input, and zero for impossible items.
        entries_of: given the name of an input, how many draws, and a generator, the entries that
            exact draws use, as from `Bound.entries_of`.
    """

    log_partition: Tensor
    expected_uses: Callable[[Sequence[str]], list[Tensor]]
    entries_of: Callable[
        [str, int, torch.Generator | None], tuple[tuple[Tensor, Tensor, Tensor], Tensor]
    ]


def _rows_of(program: Program) -> list[tuple[Row, Affine]]:
    """The rows that rules go through, and how long each list is."""
    return [(row, program.ranges[row.variable]) for rule in program.rules for row in rule.rows]


def _once(values: Tensor) -> Tensor:
    """Values without those that an expanded tensor repeats."""
    if values.is_contiguous():
        return values
    for dim in range(values.ndim):
        if values.stride(dim) == 0 and values.shape[dim] > 1:
            values = values.narrow(dim, 0, 1)
    return values


_FITTING: dict[Shapes, Kept[None]] = {}
"""Data that were checked, of some programs and shapes, until they are written to."""
_MOST_FITTING = 16  # sets of data, which stay in memory
_MOST_SHAPES = 4096  # of the tensors of a program: kilobytes each
_ROUNDING = 1e-12  # of an expected number of entries, for each of them
