"""Small models: log Z, marginals and the gradient from flat arrays, in a few dozen calls.

Calls cost more than arithmetic in small models. A circuit is made once for the shape of a graph;
evidence and hard zeros are zeros in its cells. Tables are converted to float64. Beliefs come from
messages up and down a tree of cliques (Lauritzen and Spiegelhalter 1988, with the division of
Jensen, Lauritzen and Olesen 1990).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch._utils import _flatten_dense_tensors  # pyright: ignore

from rdpgraph._core import tuning
from rdpgraph._core.cache import cached_property, differentiable_property, remembered
from rdpgraph._core.numbers import LOG_RANGE
from rdpgraph.engines.solution import Solution, Supplemented
from rdpgraph.logspace.gradients import is_transformed, possible_alone, with_gradient
from rdpgraph.logspace.logmatrix import safe_log
from rdpgraph.model.evidence import MISSING
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.potentials.table import Table
from rdpgraph.plan.circuit import Circuit, Scopes, circuit

Floats: TypeAlias = npt.NDArray[np.float64]

_Layout: TypeAlias = tuple[bytes, tuple[int, ...], int, bytes | None]
_FLOATS = (torch.float64, torch.float32)


@dataclass(frozen=True, eq=False)
class Upward:
    """Result of a pass up the cliques."""

    log_partition: float  # in nats
    cells: Floats  # of the cliques' tables, times the incoming messages
    messages: Floats  # to the parents, and the sum of each root
    peaks: Floats  # log-scale subtracted from each clique


def circuit_of(graph: FactorGraph) -> Circuit | None:
    """Circuit of a graph; None if it is not small, or its factors are not CPU tables."""
    if graph.batch_shape or graph.domain.total_states > tuning.CIRCUIT_CELLS:
        return None
    layouts: list[_Layout] = []
    entries = factors = 0
    for block in graph.blocks:
        factors += block.count
        potential = block.potential
        if type(potential) is not Table or not _plain(values := potential.log_values):
            return None
        entries += values.numel()
        small = entries <= tuning.CIRCUIT_CELLS and factors <= tuning.CIRCUIT_FACTORS
        if not small or (layout := block.layout) is None:
            return None
        layouts.append(layout)
    if not factors or is_transformed():
        return None
    return shaped(graph.domain.sizes.numpy().tobytes(), tuple(layouts))


def _plain(tensor: Tensor) -> bool:
    kinds = Tensor, torch.nn.Parameter
    return type(tensor) in kinds and tensor.is_cpu and tensor.dtype in _FLOATS


@remembered(32)
def shaped(sizes: bytes, layouts: tuple[_Layout, ...]) -> Circuit | None:
    """Circuit of blocks by their layouts; without tables of factors, all have one or their own."""
    blocks: list[Scopes] = []
    for scopes, shape, tables, rows in layouts:
        if rows is not None:
            places = np.frombuffer(rows, np.int64)
        else:
            places = np.arange(shape[0]) if tables > 1 else np.zeros(shape[0], np.int64)
        blocks.append(Scopes(np.frombuffer(scopes, np.int64).reshape(shape), places, tables))
    return circuit(blocks, np.frombuffer(sizes, np.int64))


@dataclass(frozen=True, eq=False)
class CircuitSolution(Supplemented):
    """Answers for a small graph."""

    route: ClassVar[str] = "circuit"

    graph: FactorGraph  # the model, evidence included
    circuit: Circuit  # of the graph
    # solves it by contraction, for all but log Z and marginals, and tables of wide range
    general: Callable[[], Solution]

    @property
    def _evidence(self) -> list[tuple[int, int]]:
        observed = self.graph.observed
        if observed is None:
            return []
        return [(v, state) for v, state in enumerate(observed.tolist()) if state != MISSING]

    @differentiable_property
    def _entries(self) -> Tensor:
        tables: list[Any] = [block.potential for block in self.graph.blocks]
        return _flatten_dense_tensors([table.log_values for table in tables])

    @cached_property
    def _upward(self) -> Upward | None:
        return upward(self.circuit, self._entries.detach().numpy(), self._evidence)

    @cached_property
    def _cells(self) -> Floats:
        assert self._upward is not None
        return downward(self.circuit, self._upward)

    def log_partition(self) -> Tensor:
        """(1,) log Z in nats, twice differentiable."""
        return self._log_partition

    @differentiable_property
    def _log_partition(self) -> Tensor:
        if self._upward is None:
            return self._general.log_partition()
        log_z, dtype = self._upward.log_partition, self.graph.dtype
        value = torch.full((1,), log_z, dtype=dtype, device="cpu")
        if torch.is_grad_enabled() and self._entries.requires_grad:
            return with_gradient(value, self._entries, self.gradient, self.unrolled)
        return value

    def variable_marginals(self) -> Tensor:
        """(1, S) probabilities; their gradients are those of contraction."""
        if self._upward is None or (torch.is_grad_enabled() and self._entries.requires_grad):
            return self._general.variable_marginals()
        kind = np.float32 if self.graph.dtype == torch.float32 else np.float64
        return torch.from_numpy(self._marginals.astype(kind)[None])

    @cached_property
    def _marginals(self) -> Floats:
        layout = self.circuit
        values = np.add.reduceat(self._cells.take(layout.states.cells), layout.states.starts)
        totals = np.add.reduceat(values, layout.variables)
        if totals[0] > 0:
            values /= totals.take(layout.variable)
        return values

    def gradient(self, outer: Tensor) -> Tensor:
        """(entries,) gradient of log Z, each entry's probability, times a number."""
        layout = self.circuit
        weights = self._cells.take(layout.entry)
        gradient = np.bincount(layout.factors.cells, weights, minlength=layout.entries + 1)
        return (outer.double() * torch.from_numpy(gradient[:-1])).to(self._entries.dtype)

    def unrolled(self, entries: Tensor) -> Tensor:
        """(1,) log Z as torch operations on the entries."""
        assert self._upward is not None
        layout, first = self.circuit, self._upward
        padded = torch.nn.functional.pad(entries.double(), (0, 1))
        logs = _summed(padded[_index(layout.factors.cells)], layout.entry, len(layout.owners))
        shown = np.ones_like(first.cells)
        _apply(layout, self._evidence, shown)
        cells = (logs - torch.from_numpy(first.peaks.take(layout.owners))).exp()
        cells = cells * torch.from_numpy(shown)
        messages, begin = cells, 0
        for level in reversed(layout.levels):
            block = cells[level.cells]
            for pull in level.pulls:
                pulled = block[: len(pull)] * messages[_index(pull) - begin]
                block = torch.cat([pulled, block[len(pull) :]])
            messages, begin = _summed(block, level.targets, len(level.starts)), level.messages.start
        log_z = safe_log(messages).sum() + float(first.peaks.sum())
        return possible_alone(log_z.to(entries.dtype).reshape(1))


def upward(
    circuit: Circuit, entries: npt.NDArray[Any], evidence: Sequence[tuple[int, int]]
) -> Upward | None:
    """Pass up the cliques; None if tables hold NaN, or a range too wide for float64 products."""
    padded = np.zeros(len(entries) + 1)
    padded[:-1] = entries
    logs = np.add.reduceat(padded.take(circuit.factors.cells), circuit.factors.starts)
    allowed = logs != -math.inf
    peaks = np.maximum.reduceat(logs, circuit.cliques)
    peaks[peaks == -math.inf] = 0.0
    with np.errstate(invalid="ignore"):  # +inf, written into a table
        logs -= peaks.take(circuit.owners)
    lowest = np.minimum.reduceat(np.where(allowed, logs, 0.0), circuit.cliques)
    if not float(lowest.sum()) > circuit.log_cells - LOG_RANGE:
        return None
    cells = np.exp(logs, out=logs)
    _apply(circuit, evidence, cells)
    messages = np.empty(circuit.num_messages)
    for level in reversed(circuit.levels):
        block = cells[level.cells]
        for pull in level.pulls:
            block[: len(pull)] *= messages.take(pull)
        np.add.reduceat(block, level.starts, out=messages[level.messages])
    totals = messages[circuit.levels[0].messages]
    possible = float(totals.min()) > 0
    log_z = float(np.log(totals).sum() + peaks.sum()) if possible else -math.inf
    return Upward(log_z, cells, messages, peaks)


def _apply(circuit: Circuit, evidence: Sequence[tuple[int, int]], cells: Floats) -> None:
    """Zero the cells that evidence rules out, in one clique of each variable."""
    for v, state in evidence:
        place, shape = circuit.places[v]
        view = cells[place].reshape(shape)
        view[:, :state] = 0.0
        view[:, state + 1 :] = 0.0


def downward(circuit: Circuit, up: Upward) -> Floats:
    """Probability of each cell of the cliques; zeros where log Z is -inf."""
    if up.log_partition == -math.inf:
        return np.zeros_like(up.cells)
    inverse = np.where(up.messages > 0, up.messages, math.inf)
    np.divide(1.0, inverse, out=inverse)
    probabilities = np.empty_like(up.cells)
    for level in circuit.levels:
        factor = inverse[level.messages]
        if len(level.above.cells):
            factor *= np.add.reduceat(probabilities.take(level.above.cells), level.above.starts)
        np.multiply(
            up.cells[level.cells], factor.take(level.targets), out=probabilities[level.cells]
        )
    return probabilities


def _index(places: npt.NDArray[np.int64]) -> Tensor:
    return torch.from_numpy(places)


def _summed(values: Tensor, into: npt.NDArray[np.int64], count: int) -> Tensor:
    return values.new_zeros(count).index_add(0, _index(into), values)
