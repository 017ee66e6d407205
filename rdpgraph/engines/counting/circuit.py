"""Circuits of clauses, evaluated level by level for any weights, or written as d-DNNF."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rdpgraph._core import tuning


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
        pairs = chosen[: 2 * self.literals].unflatten(0, (-1, 2))
        if not self.smooth:
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
