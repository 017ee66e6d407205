"""Circuits of clauses: compiled, evaluated for any weights, and written as d-DNNF."""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rdpgraph._core import effort, tuning
from rdpgraph.engines.counting.counter import circuit_text, has_counter
from rdpgraph.engines.counting.encoding import Clause, Encoding
from rdpgraph.errors import BudgetError
from rdpgraph.logspace.gradients import differentiable_once
from rdpgraph.native.library import call, serves_graphs
from rdpgraph.plan import clock
from rdpgraph.plan.orders import min_weight, primal_graph
from rdpgraph.plan.plan import Recent


@dataclass(frozen=True, eq=False)
class Circuit:
    """Products and sums of literals: deterministic and decomposable.

    Nodes 0 to 2 n - 1 are the literals, in the order of weights; the others come after their
    children, and the last one is the root. Unless the circuit is smooth, the parts of a sum may
    leave out variables, which have any value there: weights are scaled so that both literals of a
    variable sum to one, or have a maximum of one, and the scale is added at the root.
    """

    literals: int  # n
    # per level the children of its products and the product that each belongs to, the number of
    # products, and its sums (m, 2); products come before sums
    levels: tuple[tuple[Tensor, Tensor, int, Tensor], ...]
    impossible: bool  # the clauses have no model
    smooth: bool = True  # all parts of a sum have the same variables

    @property
    def size(self) -> int:
        """Number of nodes."""
        return 2 * self.literals + sum(count + len(sums) for _, _, count, sums in self.levels)

    def up(self, log_weights: Tensor, *, maximum: bool = False) -> Tensor:
        """(N, B) log-sum, or maximum, over the models of each node, for log-weights (B, 2 n)."""
        values = log_weights.new_empty(self.size, len(log_weights))
        at, scales = 2 * self.literals, 0.0
        values[:at] = log_weights.T
        if not self.smooth:
            pairs = log_weights.unflatten(1, (-1, 2))
            tops = pairs.amax(2) if maximum else pairs.logsumexp(2)
            scales = tops.sum(1)
            tops = torch.where(tops > -math.inf, tops, 0.0)
            values[:at] = (pairs - tops.unsqueeze(2)).flatten(1).T
        for children, owners, count, sums in self.levels:
            products = values.new_zeros(count, values.shape[1])
            values[at : at + count] = products.index_add_(0, owners, values[children])
            at += count
            pair = values[sums[:, 0]], values[sums[:, 1]]
            join = torch.maximum if maximum else torch.logaddexp
            values[at : at + len(sums)] = join(*pair)
            at += len(sums)
        values[-1] += scales
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
        shown = flows[: 2 * self.literals]
        if self.smooth:
            return shown
        free = flows[-1] - shown.unflatten(0, (-1, 2)).sum(1)
        shares = values[: 2 * self.literals].exp()
        return shown + free.clamp(min=0.0).repeat_interleave(2, 0) * shares

    def descend(self, values: Tensor, generator: torch.Generator | None, *, best: bool) -> Tensor:
        """(2 n, B) bool literals of one model: the best, or a draw."""
        chosen = torch.zeros_like(values, dtype=torch.bool)
        chosen[-1] = True
        at = len(values)
        for children, owners, count, sums in reversed(self.levels):
            at -= len(sums)
            # A sum that is chosen chooses one of its two parts.
            one, other = values[sums[:, 0]], values[sums[:, 1]]
            if best:
                first = one >= other
            else:
                draws = torch.rand(one.shape, generator=generator, dtype=one.dtype, device="cpu")
                first = draws.to(one.device) < torch.sigmoid(one - other)
            here = chosen[at : at + len(sums)]
            for child, taken in ((sums[:, 0], here & first), (sums[:, 1], here & ~first)):
                chosen.index_put_((child,), taken, accumulate=True)
            # A product that is chosen chooses all of its parts.
            at -= count
            chosen.index_put_((children,), chosen[at : at + count][owners], accumulate=True)
        pairs = chosen[: 2 * self.literals].unflatten(0, (-1, 2))
        if not self.smooth:
            # A variable that the chosen parts do not mention has either value.
            positive, negative = values[: 2 * self.literals].unflatten(0, (-1, 2)).unbind(1)
            first = positive >= negative
            if not best:
                draws = torch.rand(
                    first.shape, generator=generator, dtype=positive.dtype, device="cpu"
                )
                first = draws.to(positive.device) < positive.exp()
            free = ~pairs.any(1)
            pairs = pairs | torch.stack([free & first, free & ~first], 1)
        return pairs.flatten(0, 1)


class CircuitLogSum(torch.autograd.Function):
    """Root of a circuit (B,) from log-weights (B, 2 n), whose gradient is that of `shares`."""

    @staticmethod
    def forward(ctx: Any, log_weights: Tensor, circuit: Circuit) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        if not ctx.needs_input_grad[0]:
            return circuit.roots(log_weights)
        shares = circuit.shares(log_weights)
        ctx.save_for_backward(shares, log_weights)
        return shares[:, 0].clone()

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return ctx.saved_tensors[0][:, 1:] * grads[0].unsqueeze(1), None


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


Places: TypeAlias = NDArray[np.int64]

_circuits: Recent[Circuit] = Recent(4)

_PRODUCT, _TRUE, _DEAD = -3, -2, -1
"""Kinds of nodes in the text of d4, and nodes that are always or never true."""


def compiled(
    encoding: Encoding,
    *,
    seconds: float,
    memory: float,
    alone: bool = False,
) -> Circuit:
    """Circuit of an encoding's clauses; cached. It may take a quarter of the memory (bytes).

    The library's compiler is alone, or has a part of the time before d4, if that is installed.
    Raises `BudgetError` if it does not fit.
    """
    key = encoding.count, encoding.clauses, encoding.hidden
    if (known := _circuits.get(key)) is not None:
        return known
    end, others = clock.now() + seconds, not alone and compiles(encoding)
    # The library's own compiler comes first, as it starts no process.
    if serves_graphs():
        part = effort.CIRCUIT_BEFORE_D4 * seconds if others else seconds
        circuit = _compiled(encoding, part, memory)
        if circuit is not None:
            return _circuits.put(key, circuit)
    # Text of d4 is read only where the circuit that it describes fits.
    if others:
        with suppress(BudgetError):
            left = max(end - clock.now(), 0.0)
            text = circuit_text(encoding, seconds=left, memory=memory)
            if tuning.NNF_BYTES * len(text) <= memory:
                return _circuits.put(key, parsed_nnf(text, encoding.count))
    raise BudgetError(
        f"No circuit of {encoding.count:,} literals and {len(encoding.clauses):,} clauses was "
        f"compiled in {seconds:.3g} s and {memory / 1e9:.3g} GB; "
        f"{clock.ways_out(seconds, 'time or memory', 'use an approximate method')}."
    )


def compiles(encoding: Encoding) -> bool:
    """Return whether d4 is installed, and compiles these clauses: it hides no variables."""
    return has_counter("d4") and not encoding.hidden


def _compiled(encoding: Encoding, seconds: float, memory: float) -> Circuit | None:
    count, clauses, hidden = encoding.count, encoding.clauses, encoding.hidden
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
    arrays, left = (literals, starts, order, out, answer), max(end - clock.now(), 0.0)
    call("circuit_compile", *arrays, count, len(clauses), capacity, left)
    return None if answer[0] == -2 else _listed(count, out[: answer[1]], int(answer[0]))


def _listed(literals: int, listed: Any, root: int) -> Circuit:
    """Circuit of the compiler's nodes: each one's kind, the number of its operands, and these."""
    if root < 0:
        return Circuit(literals, (), impossible=True)
    flat, at, first = listed.tolist(), 0, 2 * literals
    level, is_sum, operands, sizes = [-1] * first, list[bool](), list[int](), list[int]()
    while at < len(flat):
        kind, count = flat[at], flat[at + 1]
        below = flat[at + 2 : at + 2 + count]
        level.append(1 + max((level[node] for node in below), default=-1))
        is_sum.append(bool(kind))
        operands += below
        sizes.append(count)
        at += 2 + count
    owners, kinds = np.repeat(np.arange(len(sizes)), sizes), np.array(is_sum, np.bool_)
    depths, below = np.array(level[first:], np.int64), np.array(operands, np.int64)
    return _levelled(literals, depths, kinds, below, owners, [root], smooth=True)


def _levelled(
    literals: int, level: Places, is_sum: NDArray[np.bool_], operands: Places, owners: Places,
    root: list[int], *, smooth: bool,
) -> Circuit:  # fmt: skip
    """Circuit of nodes with operands, each of an owner: literals, or 2 n and the node's number."""
    first, order = 2 * literals, np.lexsort((is_sum, level))
    place = np.arange(first + len(order))
    place[first + order] = first + np.arange(len(order))
    operands, owners = place[operands], place[first + owners]
    rising = np.argsort(owners, kind="stable")
    operands, owners = operands[rising], owners[rising]
    at, levels = first, list[tuple[Tensor, Tensor, int, Tensor]]()
    for sums in np.split(is_sum[order], np.flatnonzero(np.diff(level[order])) + 1):
        width, size = int((~sums).sum()), len(sums)
        begin, middle, end = np.searchsorted(owners, (at, at + width, at + size))
        below, pairs = operands[begin:middle], operands[middle:end].reshape(-1, 2)
        local = torch.from_numpy(owners[begin:middle] - at)
        levels.append((torch.from_numpy(below), local, width, torch.from_numpy(pairs)))
        at += size
    last, none = torch.from_numpy(place[root]), torch.zeros(0, 2).long()
    levels.append((last, torch.zeros_like(last), 1, none))  # a product, alone in its level
    return Circuit(literals, tuple(levels), impossible=False, smooth=smooth)


def circuit_of(
    clauses: list[Clause], count: int, hidden: int, seconds: float, memory: float
) -> Circuit:
    """The circuit of clauses over ``count`` variables, numbered from 1; as `compiled`.

    The last ``hidden`` ones are in no node.
    """
    weights, literals = torch.zeros(1, 2 * count), tuple((-x, x) for x in range(1, count + 1))
    encoding = Encoding(literals, tuple(sorted(set(clauses))), weights, torch.zeros(1), hidden)
    return compiled(encoding, seconds=seconds, memory=memory)


def parsed_nnf(text: bytes, literals: int) -> Circuit:
    """Circuit of d4's text, which has a line for each node and each edge.

    A node is a letter, its number and 0: "o" for a sum, "a" for a product, and "t" and "f" for the
    leaves true and false. An edge is a line with both nodes, the literals that hold along it, and
    0; all edges of a node come after those of its children.
    """
    # Letters become numbers below zero, so that all lines are read at once and end at zeros.
    for letter, code in ((b"o", -4), (b"a", _PRODUCT), (b"t", _TRUE), (b"f", _DEAD)):
        text = text.replace(letter, str(code).encode())
    tokens = np.fromstring(text.decode(), np.int32, sep=" ")
    ends = np.flatnonzero(tokens == 0)
    starts = np.concatenate([[0], ends[:-1] + 1])
    declared = tokens[starts] < 0
    kind = np.zeros(int(tokens[starts[declared] + 1].max()) + 1, np.int32)
    kind[tokens[starts[declared] + 1]] = tokens[starts[declared]]
    starts, ends = starts[~declared], ends[~declared]
    # Edges by the place of their node's last one: all those of its children come before.
    last = np.zeros(len(kind), np.int64)
    np.maximum.at(last, tokens[starts], np.arange(len(starts)))
    order = np.argsort(last[tokens[starts]], kind="stable")
    starts, ends = starts[order], ends[order]
    parents, children = tokens[starts], tokens[starts + 1]
    nodes = _CircuitNodes(
        kind.tolist(), parents.tolist(), children.tolist(), (ends - starts - 2).tolist()
    )
    return nodes.circuit(tokens, starts + 2, literals)


class _CircuitNodes:
    """Products, each of a range of edges, and sums of two nodes, from edges in order."""

    def __init__(
        self, kind: list[int], parents: list[int], children: list[int], sizes: list[int]
    ) -> None:
        self.children, self.sizes = children, sizes  # nodes below edges, and literals along them
        self.number = [_TRUE if code == _TRUE else _DEAD for code in kind]  # of each node of d4
        self.level, self.is_sum = list[int](), list[bool]()
        self.parts = list[tuple[int, int]]()  # the range of edges, or the nodes of a sum
        at = 0
        for parent, group in itertools.groupby(parents):
            end = at + len(list(group))
            alive = [i for i in range(at, end) if self.number[children[i]] != _DEAD]
            if kind[parent] == _PRODUCT:
                made = self._product(at, end) if len(alive) == end - at else _DEAD
            else:
                operands = [self._along(i) for i in alive]
                made = operands[0] if operands else _DEAD
                for other in operands[1:]:
                    made = self._new((made, other), (made, other), is_sum=True)
            self.number[parent], at = made, end
        self.root = self.number[parents[-1]] if parents else self.number[-1]

    def _new(self, parts: tuple[int, int], below: Iterable[int], *, is_sum: bool) -> int:
        self.level.append(1 + max((self.level[x] for x in below if x >= 0), default=-1))
        self.parts.append(parts)
        self.is_sum.append(is_sum)
        return len(self.parts) - 1

    def _product(self, start: int, end: int) -> int:
        below = (self.number[child] for child in self.children[start:end])
        return self._new((start, end), below, is_sum=False)

    def _along(self, edge: int) -> int:
        child = self.number[self.children[edge]]
        return child if child >= 0 and not self.sizes[edge] else self._product(edge, edge + 1)

    def circuit(self, tokens: NDArray[np.int32], starts: Places, count: int) -> Circuit:
        """The circuit over so many literals; ``starts`` are those of literals of edges."""
        if self.root == _DEAD:
            return Circuit(count, (), impossible=True)
        level, is_sum = np.array(self.level, np.int64), np.array(self.is_sum, np.bool_)
        parts = np.array(self.parts, np.int64).reshape(-1, 2)
        products, sums = np.flatnonzero(~is_sum), np.flatnonzero(is_sum)
        lengths = parts[products, 1] - parts[products, 0]
        edges, owners = _ranges(parts[products, 0], lengths), np.repeat(products, lengths)
        below = np.array(self.number, np.int64)[np.array(self.children, np.int64)[edges]]
        sizes = np.array(self.sizes, np.int64)[edges]
        along = tokens[_ranges(starts[edges], sizes)].astype(np.int64)
        nodes = 2 * count + np.concatenate([below[below >= 0], parts[sums].ravel()])
        operands = np.concatenate([nodes, 2 * abs(along) - 2 + (along < 0)])
        owners = np.concatenate([owners[below >= 0], np.repeat(sums, 2), np.repeat(owners, sizes)])
        root = [] if self.root == _TRUE else [2 * count + self.root]
        return _levelled(count, level, is_sum, operands, owners, root, smooth=False)


def _ranges(starts: Places, lengths: Places) -> Places:
    """Numbers from each start on, as many as its length."""
    before = np.cumsum(lengths) - lengths
    return np.repeat(starts - before, lengths) + np.arange(lengths.sum())
