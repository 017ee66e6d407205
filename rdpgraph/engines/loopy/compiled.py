"""Messages in compiled code, on the CPU and without gradients.

`kernels/messages/sweep.h` does what `Equations` says, for tables and automata, in one pass over the
factors. Graphs that it does not serve are left to torch.
"""

import ctypes
import math
from array import array
from collections.abc import Iterable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph._core.numbers import ROUNDING
from rdpgraph.engines.loopy.arithmetic import BOTTOM, FLOOR
from rdpgraph.engines.loopy.edges import Edges
from rdpgraph.engines.loopy.equations import Equations, Messages
from rdpgraph.engines.loopy.high_order import HighOrderKernel
from rdpgraph.engines.loopy.kernels import MessageKernel, TableKernel
from rdpgraph.engines.loopy.records import RECORDS, Class, KernelRecord, Model
from rdpgraph.model.potentials.automaton import Automaton
from rdpgraph.native import building
from rdpgraph.native.loading import TypedLibrary
from rdpgraph.native.records import numbers

_POINTER, _SIZE, _REAL, _FLAG = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double, ctypes.c_int
_SIGNATURES = {
    "lay_out": (None, [_POINTER, _FLAG]),
    "sweep": (None, [*[_POINTER] * 5, *[_SIZE] * 2, *[_REAL] * 2, *[_FLAG] * 2]),
    "gather": (None, [*[_POINTER] * 3, _FLAG]),
    "update": (None, [*[_POINTER] * 6, _SIZE, _REAL, *[_FLAG] * 2]),
    "partition": (None, [*[_POINTER] * 3, _FLAG]),
    "layers": (None, [*[_POINTER] * 6, _FLAG]),
    "decide": (None, [*[_POINTER] * 6, _REAL, _FLAG]),
    "best": (None, [*[_POINTER] * 3, _FLAG]),
    "chain": (None, [*[_POINTER] * 2, _SIZE, _POINTER, _FLAG]),
    "score": (None, [*[_POINTER] * 3, _FLAG]),
    "flood": (None, [*[_POINTER] * 4, *[_SIZE] * 2, *[_REAL] * 2, _FLAG]),
    "sort_edges": (None, [_POINTER, _SIZE, _SIZE, _POINTER, _POINTER]),
}
"""The result and the arguments of each function, of which there is one for each dtype."""
_MOST_SLOTS, _FEW = 16, 7
"""The most slots of a table, and the states of variables up to which messages are laid out for
factors side by side; as `kMostSlots` and `kFew` in `sweep.h`."""
_SIDE_BY_SIDE, _PANEL_BYTES = 16, 128
"""The most tables that stand side by side, which fill a vector of the widest kind, and the bytes of
a row of a panel there, as in `panels.h`."""

Ints = npt.NDArray[np.int32]


LIBRARY = TypedLibrary(building.MESSAGES, _SIGNATURES, RECORDS)
_function = LIBRARY.function


def is_served(equations: Equations) -> bool:
    """Return whether compiled code passes the messages of a graph, without gradients."""
    if equations.boundary is not None or equations.in_values or not equations.unary:
        return False
    if equations.unary_device.type != "cpu" or not any(c.count for c in equations.edges.classes):
        return False
    fits = all(_serves(kernel) for kernel in equations.kernels)
    # Places are 32-bit numbers.
    places = sum(c.size * max(c.count, len(c.variables)) for c in equations.edges.classes)
    return fits and places < 2**31 and LIBRARY.available(equations.dtype)


def _serves(kernel: MessageKernel) -> bool:
    if isinstance(kernel, TableKernel):
        shape = kernel.group.log_tables.shape[2:]
        small = math.prod(shape) <= tuning.SWEPT_TABLE and len(shape) <= _MOST_SLOTS
        return (small or len(shape) == 2) and kernel.group.extent[1] < math.inf  # False for NaN
    # A subclass may answer in a way of its own.
    return isinstance(kernel, HighOrderKernel) and type(kernel.block.potential) is Automaton


def log_partition(equations: Equations, messages: Messages) -> Tensor:
    """Return `Equations.log_partition`, by compiled code where no gradient is recorded."""
    recorded = equations.records or any(message.requires_grad for message in messages)
    if (recorded and torch.is_grad_enabled()) or not is_served(equations):
        return equations.log_partition(messages)
    compiled = compiled_messages(equations)
    return compiled.log_partition(compiled.flat(messages))


def compiled_messages(equations: Equations) -> "CompiledMessages":
    """Return the messages of a graph in compiled form, made once for some equations."""
    known = _KNOWN.get(equations)
    if known is None:
        known = _KNOWN[equations] = CompiledMessages(equations)
    return known


_KNOWN: WeakKeyDictionary[Equations, "CompiledMessages"] = WeakKeyDictionary()


class CompiledMessages:
    """The messages of a graph in the form of compiled code, and what it needs of the equations.

    Messages are one tensor (B, entries), the size classes one after the other.
    """

    def __init__(self, equations: Equations) -> None:
        # The equations themselves are not held: this is forgotten with them.
        self._edges, self._dtype = equations.edges, equations.dtype
        self._layout, self._kept = equations.edges.remembered("compiled", _Layout), list[Any]()
        self._width = self._layout.beliefs * (1 + equations.vanishing)
        self._items = equations.batch
        # The active number of each variable, class by class.
        self._active = torch.cat([c.variables for c in equations.edges.classes])
        self._address = self._keep(array("q", numbers(self._model(equations))))
        self._laid_out = False

    def flat(self, messages: Messages) -> Tensor:
        """Return messages by class as one tensor, a copy."""
        parts = [
            (message.transpose(1, 2) if c.state_step == 1 else message).flatten(1)
            for message, c in zip(messages, self._layout.classes, strict=True)
        ]
        return torch.cat(parts, 1).detach().contiguous()

    def by_class(self, flat: Tensor) -> Messages:
        """Return one tensor of messages by class, as a copy."""
        classes, result = self._layout.classes, list[Tensor]()
        parts = flat.split([c.states * c.edges for c in classes], 1)
        for part, c in zip(parts, classes, strict=True):
            if c.state_step == 1:
                part = part.unflatten(1, (c.edges, c.states)).transpose(1, 2)
            else:
                part = part.unflatten(1, (c.states, c.edges))
            result.append(part.clone(memory_format=torch.contiguous_format))
        return tuple(result)

    def _prepared(self) -> int:
        """Return the address of the model, whose tables have the form in which they multiply."""
        if not self._laid_out:
            _function("lay_out", self._dtype)(self._address, self._threads(self._items))
            self._laid_out = True
        return self._address

    def sweep(
        self, flat: Tensor, items: Tensor, most: int, tolerance: float, keep: float,
        in_values: bool,  # noqa: FBT001
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Update all messages of some items at once, ``most`` times or until within a tolerance.

        Returns:
            (sweeps, n) largest changes of each item in each sweep, and (n,) its number of sweeps.
        """
        changes = torch.zeros(most, len(items), dtype=torch.float64, device="cpu")
        done = torch.zeros(len(items), dtype=torch.long, device="cpu")
        _function("sweep", self._dtype)(
            self._prepared(), flat.data_ptr(), items.data_ptr(), changes.data_ptr(),
            done.data_ptr(), len(items), most, tolerance, keep, in_values,
            self._threads(len(items)),
        )  # fmt: skip
        return changes[: int(done.amax())], done

    def beliefs(self, flat: Tensor) -> Tensor:
        """Return the sums of messages at all variables, which `update` reads and keeps right."""
        sums = flat.new_empty(len(flat), self._width)
        _function("gather", self._dtype)(
            self._address, flat.data_ptr(), sums.data_ptr(), self._threads(1)
        )
        return sums

    def update(
        self, flat: Tensor, sums: Tensor, residuals: Tensor | None, chosen: Tensor, keep: float,
        in_values: bool,  # noqa: FBT001
    ) -> Tensor:  # fmt: skip
        """Update some edges of all items at once; return the (B,) largest changes.

        The sums of messages are kept right, and so are the `residuals` of a single item.
        """
        changes = torch.zeros(len(flat), dtype=torch.float64, device="cpu")
        chosen = chosen.contiguous()
        _function("update", self._dtype)(
            self._prepared(), flat.data_ptr(), sums.data_ptr(), chosen.data_ptr(),
            changes.data_ptr(), None if residuals is None else residuals.data_ptr(), len(chosen),
            keep, in_values, self._threads(len(flat)),
        )  # fmt: skip
        return changes

    def residuals(self, flat: Tensor, sums: Tensor) -> Tensor:
        """Return (E,) how much each message of the only item would change now."""
        residuals = torch.zeros(self._edges.count, dtype=torch.float64, device="cpu")
        _function("update", self._dtype)(
            self._prepared(), flat.data_ptr(), sums.data_ptr(), None, None,
            residuals.data_ptr(), 0, 0.0, 0, self._threads(1),
        )  # fmt: skip
        return residuals

    def log_partition(self, flat: Tensor) -> Tensor:
        """Return the (B,) approximate log Z in float64: `Equations.log_partition`."""
        totals = torch.zeros(len(flat), dtype=torch.float64, device="cpu")
        _function("partition", self._dtype)(
            self._prepared(), flat.data_ptr(), totals.data_ptr(), self._threads(len(flat))
        )
        return totals

    def layers(self, *, peels: bool) -> tuple[Tensor, Tensor, Tensor | None, list[int]]:
        """Return the (V,) layers of variables in three orders, and the number of layers of each.

        They are those of `orders` and of `peeled` in `orders.py`; the latter is None unless asked
        for.
        """
        layers = [torch.zeros(len(self._active), dtype=torch.long, device="cpu") for _ in range(3)]
        counts = torch.zeros(3, dtype=torch.long, device="cpu")
        _function("layers", self._dtype)(
            self._address, self._active.data_ptr(), *(layer.data_ptr() for layer in layers),
            counts.data_ptr(), peels,
        )  # fmt: skip
        outwards, colours, peeled = layers
        return outwards, colours, peeled if peels else None, counts.tolist()

    def traced(self, flat: Tensor, states: Tensor, free: Tensor, layers: Tensor) -> Tensor:
        """Decide the free variables (B, V) in an order of layers; return (B, V) states."""
        free = free[:, self._active].contiguous()
        return self._decided(states, layers, flat=flat.data_ptr(), free=free.data_ptr())

    def ascended(self, states: Tensor, layers: Tensor, passes: Tensor) -> Tensor:
        """Improve (B, V) states one variable at a time in (B,) passes, with ties at random."""
        passes = passes.contiguous()
        return self._decided(states, layers, passes=passes.data_ptr())

    def _decided(
        self, states: Tensor, layers: Tensor, *, flat: int = 0, free: int = 0, passes: int = 0
    ) -> Tensor:
        mine = states[:, self._active].contiguous()
        order = layers[self._active].argsort(stable=True)
        _function("decide", self._dtype)(
            self._address, flat, mine.data_ptr(), free, order.data_ptr(), passes, ROUNDING,
            self._threads(len(mine)),
        )  # fmt: skip
        return torch.empty_like(mine).index_copy_(1, self._active, mine)

    def chained(self, states: Tensor, slots: float) -> tuple[Tensor, int]:
        """Improve (B, V) states by chains of changes that read so many slots of factors at most.

        Returns:
            The states, and how many slots were read for all items.
        """
        mine = states[:, self._active].contiguous()
        spent = torch.zeros(len(mine), dtype=torch.long, device="cpu")
        _function("chain", self._dtype)(
            self._address, mine.data_ptr(), int(min(slots, 2.0**62)), spent.data_ptr(),
            self._threads(len(mine)),
        )  # fmt: skip
        return torch.empty_like(mine).index_copy_(1, self._active, mine), int(spent.sum())

    def best_states(self, flat: Tensor) -> Tensor:
        """Return the (B, V) best states of all variables, the first one where several are equal."""
        mine = torch.zeros(len(flat), len(self._active), dtype=torch.long, device="cpu")
        _function("best", self._dtype)(
            self._address, flat.data_ptr(), mine.data_ptr(), self._threads(len(flat))
        )
        return torch.empty_like(mine).index_copy_(1, self._active, mine)

    def scores(self, states: Tensor) -> Tensor:
        """Return the (B, 2) scores of (B, V) states, as `traceback.scores` does."""
        mine = states[:, self._active].contiguous()
        result = torch.zeros(len(mine), 2, dtype=torch.float64, device="cpu")
        _function("score", self._dtype)(
            self._address, mine.data_ptr(), result.data_ptr(), self._threads(len(mine))
        )
        return result

    def _threads(self, items: int) -> int:
        work = items * self._layout.entries
        return max(1, min(torch.get_num_threads(), work // tuning.SWEPT_ENTRIES))

    def _keep(self, values: Any) -> int:
        """Keep an array or tensor as long as this object; return its address."""
        self._kept.append(values)
        if isinstance(values, Tensor):
            return values.data_ptr()
        return values.ctypes.data if isinstance(values, np.ndarray) else values.buffer_info()[0]

    def _model(self, equations: Equations) -> Model:
        layout, edges = self._layout, self._edges
        # Records of size classes and of blocks of factors, one after the other in flat arrays.
        classes = array("q", [n for c in layout.classes for n in numbers(c)])
        records = [self._kernel(number, kernel) for number, kernel in enumerate(equations.kernels)]
        kernels = array("q", [n for record in records for n in numbers(record)])
        # Potentials of single variables, state by state as the beliefs are laid out.
        items = max(len(unary) for unary in equations.unary)
        unary = torch.cat(
            [u.detach().expand(items, -1, -1).transpose(1, 2).flatten(1) for u in equations.unary],
            1,
        ).contiguous()
        # Counting numbers, of edges in the order in which variables read them, and of variables.
        shares, variables = 0, [count.detach() for count in equations.variable_counts()]
        if equations.weights is not None:
            shares = self._keep(torch.cat(list(equations.weights))[layout.order].contiguous())
        # What a belief of a state that is absent is taken to be, and the lowest message.
        seen = BOTTOM if equations.bounded or equations.forest else FLOOR
        lowest = max(equations.lowest, torch.finfo(equations.dtype).min)
        return Model(
            batch=equations.batch,
            class_count=len(layout.classes),
            classes=self._keep(classes),
            kernel_count=len(records),
            kernels=self._keep(kernels),
            variables=len(edges.home),
            factors=sum(edges.factors),
            edges=edges.count,
            entries=layout.entries,
            beliefs=layout.beliefs,
            unary=self._keep(unary),
            unary_item=layout.beliefs if items > 1 else 0,
            incident_starts=self._keep(layout.starts),
            incident=self._keep(layout.incident),
            shares=shares,
            counts=self._keep(torch.cat(variables).contiguous()),
            owners=self._keep(layout.owners),
            slots=self._keep(layout.slots),
            ends=self._keep(layout.ends),
            first_factors=self._keep(layout.first_factors),
            vanishing=int(equations.vanishing),
            bounded=int(equations.bounded),
            reals=self._keep(array("d", [equations.temperature, lowest, seen])),
        )

    def _kernel(self, number: int, kernel: MessageKernel) -> KernelRecord:
        assert isinstance(kernel, TableKernel | HighOrderKernel)
        weights = kernel.weights
        shared = {
            "factors": kernel.count,
            "weights": 0 if weights is None else self._keep(weights.contiguous()),
        }
        if isinstance(kernel, TableKernel):
            return self._tables(number, kernel, shared)
        return self._automata(number, kernel, shared)

    def _places(self, number: int, slots: int, sizes: Sequence[int]) -> dict[str, int]:
        """The fields of a block's record that say where its messages are."""
        entries = np.concatenate([[0], np.cumsum(sizes)])
        edges, variables, homes = self._layout.places(number, slots)
        return {
            "slots": slots,
            "edges": self._keep(edges),
            "variables": self._keep(variables),
            "homes": self._keep(homes),
            "sizes": self._keep(array("q", sizes)),
            "entries": self._keep(array("q", entries.tolist())),
            "all_entries": int(entries[-1]),
        }

    def _tables(self, number: int, kernel: TableKernel, shared: dict[str, int]) -> KernelRecord:
        # Tables as they were given, unless they are divided by something.
        group, rows = kernel.group, 0
        logs = group.log_tables.detach()
        if kernel.weights is not None or kernel.temperature not in (0.0, 1.0):
            logs = kernel.logs.detach().movedim(-1, 1)
        elif group.rows is not None:
            rows = self._keep(group.rows.to(torch.int32))
        logs = logs.contiguous()
        items, tables, *shape = logs.shape
        cells = math.prod(shape)
        # Room for tables in the form of `tables.h`: one that all factors share as its cells or as
        # panels for both directions, others as matrices or side by side, where vectors are filled.
        is_pairs = len(shape) == 2 and max(shape) > _FEW
        each = cells * tables
        if is_pairs and tables == 1:
            wide = _PANEL_BYTES // logs.element_size()
            each = sum(-(-one // wide) * wide * other for one, other in (shape, shape[::-1]))
        elif not is_pairs and tables > 1:
            each = cells * -(-kernel.count // _SIDE_BY_SIDE) * _SIDE_BY_SIDE
        return KernelRecord(
            is_automaton=0,
            is_pairs=int(is_pairs),
            **self._places(number, len(shape), shape),
            **shared,
            left=0,
            settled=0,
            settled_item=0,
            logs=self._keep(logs),
            logs_item=cells * tables if items > 1 else 0,
            logs_table=cells,
            logs_cell=1,
            tables=tables,
            rows=rows,
            values=self._keep(logs.new_empty(items, each)),
            values_item=each if items > 1 else 0,
            peaks=self._keep(logs.new_empty(items, tables)),
            lows=self._keep(logs.new_empty(items, tables)),
            cells=cells,
            states=0,
            transitions=0,
            steps=0,
            spread=1,
        )

    def _automata(
        self, number: int, kernel: HighOrderKernel, shared: dict[str, int]
    ) -> KernelRecord:
        potential = kernel.block.potential
        assert isinstance(potential, Automaton)
        logs = kernel.log_accept.to(self._dtype)
        # Transitions between states that lie on a way to an accepted one; others carry nothing.
        slots, size = potential.arity, potential.transitions.shape[1]
        steps = _live_steps(potential.transitions, (logs > -math.inf).any(0).any(-1))
        leaving = np.bincount(steps[:, 0], minlength=1).max(initial=1)
        entering = np.bincount(steps[:, 2], minlength=1).max(initial=1)
        # The states of slots whose variables have one state left.
        settled = kernel.settled_states.transpose(1, 2).to(torch.int32).contiguous()
        return KernelRecord(
            is_automaton=1,
            is_pairs=0,
            **self._places(number, slots, [size] * slots),
            **shared,
            left=self._left(number, kernel, slots, size),
            settled=self._keep(settled),
            settled_item=slots * kernel.count if len(settled) > 1 else 0,
            logs=self._keep(logs.contiguous()),
            logs_item=math.prod(logs.shape[1:]) if len(logs) > 1 else 0,
            logs_table=1,
            logs_cell=logs.shape[-1],
            tables=logs.shape[-1],
            rows=0,
            values=0,
            values_item=0,
            peaks=0,
            lows=0,
            cells=0,
            states=len(potential.transitions),
            transitions=self._keep(np.ascontiguousarray(steps)),
            steps=len(steps),
            spread=int(max(leaving, entering)),
        )

    def _left(self, number: int, kernel: HighOrderKernel, slots: int, size: int) -> int:
        """The states that are left at each slot of each factor; 0 where all are."""
        if all(port.size == size for port in self._edges.ports[number]):
            return 0
        left = np.zeros((slots, kernel.count, size), np.int32)
        for port, states in zip(kernel.ports, kernel.states, strict=True):
            assert port.rows is not None
            left[port.slot, port.rows.numpy(), : port.size] = states.numpy()
        return self._keep(left)


def _live_steps(transitions: Tensor, accepted: Tensor) -> Ints:
    """Return (n, 3) steps between states on a way from the start to an accepted state."""
    following, ends = transitions.cpu().numpy(), accepted.cpu().numpy()
    count, size = following.shape
    reached = np.zeros(count, bool)
    reached[0] = True
    # Each round marks all neighbours, so that `count` rounds reach every state.
    for _ in range(count):
        before = int(reached.sum()) + int(ends.sum())
        reached[following[reached].reshape(-1)] = True
        ends = ends | ends[following].any(1)
        if int(reached.sum()) + int(ends.sum()) == before:
            break
    source, read = (part.reshape(-1) for part in np.indices((count, size)))
    steps = np.stack([source, read, following.reshape(-1)], 1)
    live = reached & ends
    return steps[live[steps[:, 0]] & live[steps[:, 2]]].astype(np.int32)


class _Layout:
    """Places of messages and beliefs; the same for all equations on some edges."""

    def __init__(self, edges: Edges) -> None:
        self._edges, self.classes = edges, list[Class]()
        message = belief = variable = 0
        for c in edges.classes:
            steps = (1, c.count) if c.size <= _FEW else (c.size, 1)
            self.classes.append(
                Class(c.size, len(c.variables), c.count, variable, c.first, message, belief, *steps)
            )
            message += c.size * c.count
            belief += c.size * len(c.variables)
            variable += len(c.variables)
        self.entries, self.beliefs = message, belief
        pairs = list(zip(self.classes, edges.classes, strict=True))
        places = [np.arange(c.edges) * c.edge_step + c.message for c, _ in pairs]
        ends = [own.variable.numpy() + c.variable for c, own in pairs]
        self.ends = _joined(ends, np.int32)
        # The edges of each variable one after the other.
        order = self.ends.argsort(kind="stable")
        self.order = torch.from_numpy(order)
        self.incident = _joined(places, np.int32)[order]
        counts = np.bincount(self.ends, minlength=variable)
        self.starts = np.concatenate([[0], counts.cumsum()]).astype(np.int64)
        self.first_factors = np.concatenate([[0], np.cumsum(edges.factors)]).astype(np.int64)
        self.owners, self.slots = np.zeros((2, edges.count), np.int32)
        for segment in edges.segments:
            first = edges.first_edge(segment)
            rows = self._rows(segment.kernel, segment.port) + self.first_factors[segment.kernel]
            here = slice(first, first + segment.stop - segment.start)
            self.owners[here] = rows
            self.slots[here] = edges.ports[segment.kernel][segment.port].slot

    def _rows(self, kernel: int, port: int) -> npt.NDArray[np.int64]:
        rows = self._edges.ports[kernel][port].rows
        return np.arange(self._edges.factors[kernel]) if rows is None else rows.numpy()

    def places(self, kernel: int, slots: int) -> tuple[Ints, Ints, Ints]:
        """Return (slots, factors) places of messages, -1 where settled, of beliefs, and classes."""
        edges = self._edges
        shape = slots, edges.factors[kernel]
        messages, beliefs = np.full(shape, -1, np.int32), np.zeros(shape, np.int32)
        homes = np.zeros(shape, np.int32)
        for port, number in enumerate(edges.by_kernel[kernel]):
            segment, rows = edges.segments[number], self._rows(kernel, port)
            c, slot = self.classes[segment.size_class], edges.ports[kernel][port].slot
            own = edges.classes[segment.size_class].variable[segment.start : segment.stop].numpy()
            places = np.arange(segment.start, segment.stop)
            messages[slot, rows] = c.message + places * c.edge_step
            beliefs[slot, rows] = c.belief + own * c.states
            homes[slot, rows] = segment.size_class
        return messages, beliefs, homes


def _joined(parts: Iterable[npt.NDArray[Any]], kind: type) -> npt.NDArray[Any]:
    return np.concatenate([*parts, np.zeros(0, int)]).astype(kind)
