"""Bucket elimination in compiled code: log Z, marginals and expected counts of tables.

It serves small graphs, whose answers cost less than the calls of any other engine, and rows of
evidence, each over the variables that it lacks. The algorithm is in `native/kernels/rows.h`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch._utils import _flatten_dense_tensors  # pyright: ignore

from rdpgraph._core import tuning
from rdpgraph._core.cache import cached_property, differentiable_property, remembered
from rdpgraph.engines.solution import Solution, Supplemented
from rdpgraph.logspace.gradients import is_transformed, possible_alone, with_gradient
from rdpgraph.logspace.logmatrix import soft_scatter
from rdpgraph.model.evidence import MISSING
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.potentials.table import Table
from rdpgraph.native.library import available, function
from rdpgraph.plan.tree import Integers

if TYPE_CHECKING:
    from rdpgraph.plan.buckets import Buckets

_FLOATS = (torch.float64, torch.float32)


@dataclass(frozen=True, eq=False)
class Factors:
    """Factors whose tables lie in one flat array of entries, without the numbers of the tables.

    Variables may be fewer than those declared, and have fewer states.
    """

    scopes: Sequence[Integers]  # (F, arity) variables, of each group of factors
    offsets: Integers  # (F,) first entry of each factor's table, over all groups
    tables: Integers  # (F,) number of each factor's table
    starts: Integers  # (T,) first entry of each table
    entries: int  # number of entries of all tables
    sizes: Integers  # number of states of each variable
    # of the declared variables: the first state of each and the number of all states; the variable
    # that each one is here or -1; for each state declared, its number here or -1
    begins: Integers
    active: Integers
    left: Integers

    @cached_property
    def integers(self) -> Tensor:
        """The arrays in the order of `Tables` in rows.h."""
        arities = [scopes.shape[1] for scopes in self.scopes for _ in scopes]
        states = np.repeat(self.active, np.diff(self.begins))
        columns = np.flatnonzero((self.left >= 0) & (states >= 0))
        parts = (
            [len(self.sizes), len(arities), len(self.active), self.entries], self.sizes,
            np.cumsum([0, *arities]), *(scopes.ravel() for scopes in self.scopes), self.offsets,
            self.begins, self.active, self.left, np.cumsum(self.sizes) - self.sizes, columns,
        )  # fmt: skip
        return torch.from_numpy(np.concatenate(parts).astype(np.int64))

    @cached_property
    def owners(self) -> Integers:
        """(entries,) number of each entry's table."""
        counts = np.diff(self.starts, append=self.entries)
        return np.repeat(np.arange(len(counts)), counts)

    @cached_property
    def targets(self) -> Tensor:
        """(F,) place of each factor's counts, beside those of its table's entries."""
        return torch.from_numpy(self.offsets)

    @cached_property
    def nothing(self) -> Tensor:
        """(1, declared variables) evidence in which all are missing."""
        return torch.full((1, len(self.active)), MISSING, device="cpu")

    @cached_property
    def cells(self) -> float:
        """Cells of all buckets without evidence; infinite if too many for a small graph."""
        reals = torch.zeros(
            2 * self.entries + 2 * len(self.offsets), dtype=torch.float64, device="cpu"
        )
        cells = torch.zeros(1, 2, dtype=torch.float64, device="cpu")
        self.eliminate(
            reals, self.nothing, dtype=torch.float64, most=tuning.SMALL_CELLS, cells=cells
        )
        return float(cells[0, 0])

    @property
    def seconds(self) -> float:
        """Predicted seconds of log Z and marginals without evidence."""
        variables = tuning.BUCKETS_VARIABLE * len(self.sizes)
        return tuning.BUCKETS_CALL + variables + tuning.BUCKETS_CELL * self.cells

    @cached_property
    def buckets(self) -> "Buckets":
        """The buckets of an order, for derivatives of higher order."""
        from rdpgraph.plan.buckets import buckets_of  # few ask for it

        listed = [scope for scopes in self.scopes for scope in scopes.tolist()]
        return buckets_of(listed, self.offsets.tolist(), self.sizes.tolist())

    def reals(self, entries: Tensor) -> Tensor | None:
        """The numbers of all tables in the order of `Tables` in rows.h; None with inf or NaN.

        Tables come as logarithms and as probabilities relative to the largest entry of each.
        """
        logs = entries.detach().double().numpy()
        peaks = np.maximum.reduceat(logs, self.starts) if len(logs) else np.zeros(0)
        if not peaks.max(initial=-math.inf) < math.inf:
            return None
        peaks[peaks == -math.inf] = 0.0
        values = logs - peaks[self.owners]
        least = np.minimum.reduceat(np.where(values > -math.inf, values, 0.0), self.starts)
        np.exp(values, out=values)
        parts = logs, values, peaks[self.tables], np.exp(least)[self.tables]
        return torch.from_numpy(np.concatenate(parts))

    def eliminate(
        self, reals: Tensor, observed: Tensor, *, dtype: torch.dtype, most: float | None = None,
        marginals: Tensor | None = None, weights: Tensor | None = None,
        counts: Tensor | None = None, targets: Tensor | None = None, stride: int = 0,
        cells: Tensor | None = None, beside: float = 0.0, threads: int = 1,
    ) -> Tensor:  # fmt: skip
        """(rows,) log Z of rows of evidence. What is given besides is filled in.

        It is NaN for a row that lacks too many variables to be solved by itself.

        Args:
            reals: of `reals`.
            observed: (rows, declared variables) states, -1 where missing.
            dtype: of the marginals.
            most: the most cells of a row's buckets.
            marginals: (rows, declared states) probabilities, zeros before.
            weights: (rows,) of the rows in ``counts``.
            counts: expected counts of entries, summed over rows with their weights; with a
                ``stride`` those of each row, so far apart.
            targets: (F,) place of each factor's counts, -1 for none; default: `targets`.
            stride: 0: counts are summed.
            cells: (rows, 2) cells of all buckets and of the largest one; nothing else is computed.
            beside: the most cells of rows that a thread solves side by side.
            threads: number of threads.
        """
        log_z = torch.empty(len(observed), dtype=torch.float64, device="cpu")
        targets = self.targets if targets is None else targets
        given = self.integers, reals, targets, observed, weights, log_z, marginals, counts, cells
        pointers = [0 if part is None else part.data_ptr() for part in given]
        sizes = len(observed), 0 if counts is None else counts.numel(), stride
        most = tuning.LARGE_BLOCK if most is None else most
        function("rows", dtype)(*pointers, *sizes, most, beside, threads)
        return log_z


_Layout: TypeAlias = tuple[bytes, tuple[int, ...], int, bytes | None]


def small_factors(graph: FactorGraph) -> Factors | None:
    """The factors of a graph; None if it is not small, or its factors are not CPU tables."""
    if graph.batch_shape or graph.domain.total_states > tuning.SMALL_CELLS:
        return None
    layouts: list[_Layout] = []
    entries = factors = 0
    for block in graph.blocks:
        factors += block.count
        potential = block.potential
        if type(potential) is not Table or not _plain(values := potential.log_values):
            return None
        entries += values.numel()
        small = entries <= tuning.SMALL_CELLS and factors <= tuning.SMALL_FACTORS
        if not small or (layout := block.layout) is None:
            return None
        layouts.append(layout)
    if not factors or is_transformed() or not available(graph.dtype, "graphs"):
        return None
    return shaped(graph.domain.sizes.numpy().tobytes(), tuple(layouts))


def _plain(tensor: Tensor) -> bool:
    kinds = Tensor, torch.nn.Parameter
    return type(tensor) in kinds and tensor.is_cpu and tensor.dtype in _FLOATS


@remembered(32)
def shaped(sizes: bytes, layouts: tuple[_Layout, ...]) -> Factors | None:
    """Factors of blocks by their layouts; None if their buckets have too many cells."""
    states = np.frombuffer(sizes, np.int64)
    every, offsets, tables = list[Integers](), list[Integers](), list[Integers]()
    starts = list[Integers]()
    entries = number = 0
    for scopes, shape, count, rows in layouts:
        variables = np.frombuffer(scopes, np.int64).reshape(shape)
        if rows is not None:
            places = np.frombuffer(rows, np.int64)
        else:  # all factors have one table, or each its own
            places = np.arange(shape[0]) if count > 1 else np.zeros(shape[0], np.int64)
        each = int(np.prod(states[variables[0]])) if shape[0] else 1
        every.append(variables)
        offsets.append(entries + places * each)
        tables.append(number + places)
        starts.append(entries + np.arange(count) * each)
        entries, number = entries + count * each, number + count
    begins = np.cumsum([0, *states])
    left = np.arange(begins[-1]) - np.repeat(begins[:-1], states)
    factors = Factors(
        every, np.concatenate(offsets), np.concatenate(tables), np.concatenate(starts), entries,
        states, begins, np.arange(len(states)), left,
    )  # fmt: skip
    return factors if factors.cells <= tuning.SMALL_CELLS else None


@dataclass(frozen=True, eq=False)
class BucketsSolution(Supplemented):
    """Log Z and marginals of a small graph, in a few calls."""

    route: ClassVar[str] = "buckets"

    graph: FactorGraph  # the model, evidence included
    factors: Factors  # of the graph
    # solves it in general: all but log Z and marginals, and tables with inf or NaN
    general: Callable[[], Solution]
    again: Callable[[FactorGraph], Solution]  # solves a graph with other tables in general

    @property
    def _observed(self) -> Tensor:
        """(1, V) states, -1 where missing."""
        observed = self.graph.observed
        return self.factors.nothing if observed is None else observed.reshape(1, -1).contiguous()

    @differentiable_property
    def _entries(self) -> Tensor:
        tables: list[Any] = [block.potential for block in self.graph.blocks]
        return _flatten_dense_tensors([table.log_values for table in tables])

    @cached_property
    def _reals(self) -> Tensor | None:
        return self.factors.reals(self._entries)

    def log_partition(self) -> Tensor:
        """(1,) log Z in nats, twice differentiable."""
        return self._log_partition

    @differentiable_property
    def _log_partition(self) -> Tensor:
        reals, dtype = self._reals, self.graph.dtype
        if reals is None:
            return self._general.log_partition()
        value = self.factors.eliminate(reals, self._observed, dtype=dtype).to(dtype)
        if torch.is_grad_enabled() and self._entries.requires_grad:
            return with_gradient(value, self._entries, self._gradient, self._unrolled)
        return value

    def variable_marginals(self) -> Tensor:
        """(1, S) probabilities; their gradients are those of the general solution."""
        recorded = torch.is_grad_enabled() and self._entries.requires_grad
        return self._general.variable_marginals() if recorded else self._marginals

    @differentiable_property
    def _marginals(self) -> Tensor:
        reals, dtype = self._reals, self.graph.dtype
        if reals is None:
            return self._general.variable_marginals()
        flat = torch.zeros(1, self.graph.domain.total_states, dtype=dtype, device="cpu")
        self.factors.eliminate(reals, self._observed, dtype=dtype, marginals=flat)
        return flat

    def _gradient(self, outer: Tensor) -> Tensor:
        """(entries,) gradient of log Z, each entry's expected count, times a number."""
        reals = self._reals
        assert reals is not None
        counts = torch.zeros(self.factors.entries, dtype=torch.float64, device="cpu")
        weights = outer.double().contiguous()
        self.factors.eliminate(
            reals, self._observed, dtype=self.graph.dtype, weights=weights, counts=counts
        )
        return counts.to(self._entries.dtype)

    def _unrolled(self, entries: Tensor) -> Tensor:
        """(1,) log Z as torch operations on the entries, level by level of the buckets."""
        buckets, values = self.factors.buckets, entries.double()
        if len(buckets.levels) > tuning.BUCKET_LEVELS:
            return possible_alone(self.again(self._with_tables(entries)).log_partition())
        # A cell is the product of the entries that it reads; evidence rules out some cells.
        seen = self._observed[0, torch.from_numpy(buckets.variables)]
        against = (seen != MISSING) & (seen != torch.from_numpy(buckets.states))
        read = values[torch.from_numpy(buckets.entries)]
        logs = values.new_zeros(buckets.size).index_add(0, torch.from_numpy(buckets.cells), read)
        tables = list(logs.masked_fill(against, -math.inf).split(buckets.counts))
        log_z = values[torch.from_numpy(buckets.constants)].sum()
        for number, level in enumerate(buckets.levels):
            sums = soft_scatter(tables[number], torch.from_numpy(level.targets), level.count)
            for send in level.sends:
                received = sums[torch.from_numpy(send.messages)]
                cells = torch.from_numpy(send.cells)
                tables[send.level] = tables[send.level].index_add(0, cells, received)
            if len(level.roots):
                log_z = log_z + sums[torch.from_numpy(level.roots)].sum()
        return possible_alone(log_z.to(entries.dtype).reshape(1))

    def _with_tables(self, entries: Tensor) -> FactorGraph:
        """The graph with other entries in its tables."""
        shapes = [block.potential.shape for block in self.graph.blocks]
        parts = entries.split([math.prod(shape) for shape in shapes])
        blocks = [
            replace(block, potential=Table.from_logs(part.reshape(shape)))
            for block, part, shape in zip(self.graph.blocks, parts, shapes, strict=True)
        ]
        return FactorGraph.from_blocks(self.graph.domain, blocks, self.graph.observed)
