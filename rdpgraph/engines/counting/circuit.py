"""Compiled circuits of clauses, evaluated level by level for any weights, or written as d-DNNF."""

import ctypes
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rdpgraph._core import effort, tuning
from rdpgraph._core.recent import Recent
from rdpgraph.engines.counting.encoding import Clause, Encoding
from rdpgraph.errors import BudgetError
from rdpgraph.plan import clock
from rdpgraph.plan.orders import min_weight, primal_graph

_circuits: "Recent[Circuit]" = Recent(16)


@dataclass(frozen=True, eq=False)
class Circuit:
    """Products and sums of literals: smooth, deterministic and decomposable.

    Nodes 0 to 2 n - 1 are the literals, in the order of weights; the others come after their
    children, and the last one is the root.
    """

    literals: int  # n
    # per level the children of its products and the product that each belongs to, the number of
    # products, and its sums (m, 2); products come before sums
    levels: tuple[tuple[Tensor, Tensor, int, Tensor], ...]
    impossible: bool  # the clauses have no model

    @property
    def size(self) -> int:
        """Number of nodes."""
        return 2 * self.literals + sum(count + len(sums) for _, _, count, sums in self.levels)

    def up(self, log_weights: Tensor, *, maximum: bool = False) -> Tensor:
        """(N, B) log-sum, or maximum, over the models of each node, for log-weights (B, 2 n)."""
        values = log_weights.new_empty(self.size, len(log_weights))
        at = 2 * self.literals
        values[:at] = log_weights.T
        for children, owners, count, sums in self.levels:
            products = values.new_zeros(count, values.shape[1])
            values[at : at + count] = products.index_add_(0, owners, values[children])
            at += count
            pair = values[sums[:, 0]], values[sums[:, 1]]
            join = torch.maximum if maximum else torch.logaddexp
            values[at : at + len(sums)] = join(*pair)
            at += len(sums)
        return values

    def by_rows(self, log_weights: Tensor, answer: Callable[[Tensor], Tensor]) -> Tensor:
        """Answers (B, ...) of log-weights (B, 2 n), from blocks of rows whose nodes fit memory."""
        step = tuning.per_block(self.size, tuning.LARGE_BLOCK)
        return torch.cat([answer(rows) for rows in log_weights.split(step)])

    def roots(self, log_weights: Tensor, *, maximum: bool = False) -> Tensor:
        """(B,) log-sum, or maximum, over all models."""
        return self.by_rows(log_weights, lambda rows: self.up(rows, maximum=maximum)[-1])

    def shares(self, log_weights: Tensor) -> Tensor:
        """(B, 1 + 2 n) log-sum over all models, and the probability of each literal."""

        def both(rows: Tensor) -> Tensor:
            values = self.up(rows)
            return torch.cat([values[-1:], self._down(values)]).T

        return self.by_rows(log_weights, both)

    def _down(self, values: Tensor) -> Tensor:
        """(2 n, B) gradient of the root in each literal's log-weight; 0 where none is possible."""
        flows = torch.zeros_like(values)
        flows[-1] = values[-1] > -math.inf
        at = len(values)
        for children, owners, count, sums in reversed(self.levels):
            at -= len(sums)
            for child in sums.T:
                share = (values[child] - values[at : at + len(sums)]).exp()
                share = torch.where(values[child] > -math.inf, share, 0.0)
                flows.index_add_(0, child, share * flows[at : at + len(sums)])
            at -= count
            flows.index_add_(0, children, flows[at : at + count][owners])
        return flows[: 2 * self.literals]

    def descend(self, values: Tensor, generator: torch.Generator | None, *, best: bool) -> Tensor:
        """(2 n, B) bool literals of one model: the best, or a draw."""
        chosen = torch.zeros_like(values, dtype=torch.bool)
        chosen[-1] = True
        at = len(values)
        for children, owners, count, sums in reversed(self.levels):
            at -= len(sums)
            one, other = values[sums[:, 0]], values[sums[:, 1]]
            if best:
                first = one >= other
            else:
                draws = torch.rand(one.shape, generator=generator, dtype=one.dtype, device="cpu")
                first = draws.to(one.device) < torch.sigmoid(one - other)
                first = torch.where(other == -math.inf, one > -math.inf, first)
            here = chosen[at : at + len(sums)]
            for child, taken in ((sums[:, 0], here & first), (sums[:, 1], here & ~first)):
                chosen.index_put_((child,), taken, accumulate=True)
            at -= count
            chosen.index_put_((children,), chosen[at : at + count][owners], accumulate=True)
        return chosen[: 2 * self.literals]


class LogSum(torch.autograd.Function):
    """Root of a circuit (B,) from log-weights (B, 2 n), whose gradient is that of `shares`."""

    @staticmethod
    def forward(ctx: Any, log_weights: Tensor, circuit: Circuit) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        if not ctx.needs_input_grad[0]:
            return circuit.roots(log_weights)
        shares = circuit.shares(log_weights)
        ctx.save_for_backward(shares)
        return shares[:, 0].clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return ctx.saved_tensors[0][:, 1:] * grads[0].unsqueeze(1), None


def compiled(
    encoding: Encoding, compiler: Callable[..., None], *, seconds: float, memory: float
) -> Circuit:
    """Circuit of an encoding's clauses; cached. It may take a quarter of the memory (bytes).

    Raises `BudgetError` if it does not fit.
    """
    key = encoding.count, encoding.clauses, encoding.hidden
    if (known := _circuits.get(key)) is not None:
        return known
    count, clauses, hidden = key
    end = clock.now() + seconds
    scopes = tuple(tuple({abs(x) - 1 for x in clause}) for clause in clauses)
    elimination = min_weight(
        primal_graph(scopes, (2,) * count),
        limit=tuning.BRANCHED_CELLS,
        deadline=clock.now() + effort.CIRCUIT_ORDER * seconds,
    )
    order = np.zeros(count, np.int32)
    if elimination is not None:
        order[elimination] = np.arange(count)
    order[count - hidden :] = -1
    literals = np.array([x for clause in clauses for x in clause], np.int32)
    starts = np.cumsum([0, *map(len, clauses)], dtype=np.int64)
    capacity = int(min(memory / 16, 2**31 - 1))
    out, answer = np.empty(capacity, np.int32), np.zeros(2, np.int64)
    places = (ctypes.c_void_p(each.ctypes.data) for each in (literals, starts, order, out, answer))
    compiler(*places, count, len(clauses), capacity, max(end - clock.now(), 0.0))
    if answer[0] == -2:
        raise BudgetError(
            f"No circuit of {count:,} literals and {len(clauses):,} clauses was compiled in "
            f"{seconds:.3g} s and {memory / 1e9:.3g} GB; "
            f"{clock.ways_out(seconds, 'time or memory', 'use an approximate method')}."
        )
    return _circuits.put(key, _levelled(count, out[: answer[1]], int(answer[0])))


def _levelled(literals: int, listed: Any, root: int) -> Circuit:
    """Nodes that the root needs, in levels."""
    if root < 0:
        return Circuit(literals, (), impossible=True)
    flat, at, nodes = listed.tolist(), 0, list[tuple[int, list[int]]]()
    while at < len(flat):
        kind, count = flat[at], flat[at + 1]
        nodes.append((kind, flat[at + 2 : at + 2 + count]))
        at += 2 + count
    first = 2 * literals
    needed, level = bytearray(first + len(nodes)), [0] * (first + len(nodes))
    needed[root] = 1
    for number in range(len(nodes) - 1, -1, -1):
        if needed[first + number]:
            for child in nodes[number][1]:
                needed[child] = 1
    by_level: dict[int, tuple[list[int], list[int]]] = {}
    for number, (kind, children) in enumerate(nodes, first):
        if needed[number]:
            level[number] = 1 + max((level[child] for child in children), default=0)
            by_level.setdefault(level[number], ([], []))[kind].append(number)
    if root < first or nodes[root - first][0]:  # the root is a product, alone in its level
        nodes.append((0, [root]))
        level.append(level[root] + 1)
        by_level[level[root] + 1] = ([first + len(nodes) - 1], [])
    place = [*range(first), *[0] * len(nodes)]
    count, levels = first, list[tuple[Tensor, Tensor, int, Tensor]]()
    for _, (products, sums) in sorted(by_level.items()):
        operands = [[place[child] for child in nodes[number - first][1]] for number in products]
        for number in (*products, *sums):
            place[number] = count
            count += 1
        owners = np.repeat(np.arange(len(operands)), [len(children) for children in operands])
        pairs = [[place[child] for child in nodes[number - first][1]] for number in sums]
        below = torch.tensor([child for children in operands for child in children]).long()
        both = torch.tensor(pairs).long().reshape(-1, 2)
        levels.append((below, torch.from_numpy(owners).long(), len(operands), both))
    return Circuit(literals, tuple(levels), impossible=False)


def circuit_of(
    clauses: list[Clause], count: int, hidden: int, compiler: Callable[..., None], seconds: float,
    memory: float,
) -> Circuit:  # fmt: skip
    """The circuit of clauses over ``count`` variables, numbered from 1; as `compiled`.

    The last ``hidden`` ones are in no node.
    """
    weights, literals = torch.zeros(1, 2 * count), tuple((-x, x) for x in range(1, count + 1))
    encoding = Encoding(literals, tuple(sorted(set(clauses))), weights, torch.zeros(1), hidden)
    return compiled(encoding, compiler, seconds=seconds, memory=memory)


def format_nnf(circuit: Circuit) -> str:
    """The text of a circuit: a line for each node, children before parents, the root last."""
    nodes = ["O 0 0"] if circuit.impossible else list(_lines(circuit))
    edges = (
        0
        if circuit.impossible
        else sum(len(children) + 2 * len(sums) for children, _, _, sums in circuit.levels)
    )
    return "\n".join([f"nnf {len(nodes)} {edges} {circuit.literals}", *nodes]) + "\n"


def _lines(circuit: Circuit) -> Iterator[str]:
    for x in range(1, circuit.literals + 1):
        yield from (f"L {x}", f"L {-x}")
    for children, owners, count, sums in circuit.levels:
        products: list[list[int]] = [[] for _ in range(count)]
        for child, owner in zip(children.tolist(), owners.tolist(), strict=True):
            products[owner].append(child)
        yield from (" ".join(map(str, ("A", len(operands), *operands))) for operands in products)
        yield from (f"O 0 2 {one} {other}" for one, other in sums.tolist())
