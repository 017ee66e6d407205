"""Decode layer by layer: variables that share no factor are decided together, given those before.

A variable takes the best state of its belief. In that, each factor's message is recomputed as the
maximum over its other variables, of which undecided ones have their messages, and decided ones are
held in their states. If the layers go outwards from one variable of every connected part, this is
the traceback of a tree. On other graphs it is a guess, which costs as much as one sweep. If all
variables are decided already, it is coordinate ascent.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph._core.numbers import ROUNDING
from rdpgraph.engines.loopy.arithmetic import rescaled
from rdpgraph.engines.loopy.equations import Equations, Messages
from rdpgraph.engines.loopy.high_order import HighOrderKernel
from rdpgraph.engines.loopy.kernels import FactorKernel
from rdpgraph.engines.loopy.orders import Layer, Order
from rdpgraph.plan import clock


def traced(
    equations: Equations, messages: Messages, states: Tensor, free: Tensor, order: Order, end: float
) -> Tensor:
    """Decide the free variables (B, V) in order while the others are held; return (B, V) states.

    It stops when the time is over.
    """
    logs = [rescaled(part, vanishing=True)[0] for part in equations.cavities(messages)]
    states = states.clone()
    for number, c in enumerate(equations.edges.classes):
        open_ = free[:, c.variables[c.variable]].unsqueeze(1)
        logs[number] = torch.where(open_, logs[number], _held(equations, number, states))
    _decide(equations, logs, states, free, order, end)
    return states


def ascended(
    equations: Equations, states: Tensor, order: Order, passes: Tensor, end: float
) -> Tensor:
    """Improve (B, V) states one variable at a time, in at most (B,) passes (coordinate ascent).

    Ties among best states are broken at random, so that plateaus are crossed.
    """
    generator = torch.Generator().manual_seed(0)
    most = max(c.size for c in equations.edges.classes)
    rows, every = torch.arange(equations.batch, device="cpu"), states.clone()
    for number in range(int(passes.amax())):
        luck = torch.rand(
            most, states.shape[1], generator=generator, dtype=torch.float64, device="cpu"
        )
        going = (passes[rows] > number).nonzero().flatten()
        if len(going) < len(rows):
            rows, equations = rows[going], equations.items(going)
        moved = every[rows]
        logs = [_held(equations, place, moved) for place in range(len(equations.edges.classes))]
        _decide(equations, logs, moved, torch.ones_like(moved, dtype=torch.bool), order, end, luck)
        every[rows] = moved
    return every


def _held(equations: Equations, number: int, states: Tensor) -> Tensor:
    """Return the (B, K, E) messages from the variables of a class, each held in its state."""
    c = equations.edges.classes[number]
    return _only(states[:, c.variables[c.variable]], c.size, equations.unary[number])


def _only(chosen: Tensor, size: int, like: Tensor) -> Tensor:
    """Return (B, K, n) log-messages that are 0 at one state and -inf elsewhere."""
    others = torch.arange(size, device=chosen.device).reshape(-1, 1) != chosen.unsqueeze(1)
    return torch.zeros(others.shape, dtype=like.dtype, device=like.device).masked_fill_(
        others, -math.inf
    )


def _decide(
    equations: Equations, logs: list[Tensor], states: Tensor, free: Tensor, order: Order,
    end: float, luck: Tensor | None = None,
) -> None:  # fmt: skip
    """Decide layers in order; write ``states``, and decided variables' messages to ``logs``."""
    weights = [None] * len(logs) if equations.weights is None else equations.weights
    for number in order.numbers[free.any(0).cpu()].unique().tolist():
        if clock.now() > end:
            return
        layer = order.layers[number]
        totals = [
            _Total.of(unary.index_select(2, variables).expand(equations.batch, -1, -1))
            for unary, variables in zip(equations.unary, layer.variables, strict=True)
        ]
        # Add to the own potentials what the variables that were decided before send.
        for part in layer.arrivals:
            incoming = [
                logs[c][:, :, :0] if part.wanted == slot else logs[c].index_select(2, at)
                for slot, (c, at) in enumerate(part.incoming)
            ]
            answers = equations.kernels[part.kernel].messages(
                incoming, rows=part.rows, wanted=None if part.wanted is None else (part.wanted,)
            )
            for port, c, which, places, target in part.ports:
                answer = answers[port]
                assert answer is not None
                answer = answer if which is None else answer.index_select(2, which)
                weight = weights[c]
                weight = None if weight is None else weight[places]
                totals[c].add(answer.expand(equations.batch, -1, -1), target, weight)
        # Decide the layer, and write what its variables send from now on.
        sent = _chosen(equations, layer, totals, states, free, luck)
        for part in layer.arrivals:
            for _, c, _, places, target in part.ports:
                logs[c].index_copy_(2, places, sent[c].index_select(2, target))


def _chosen(
    equations: Equations, layer: Layer, totals: Sequence["_Total"], states: Tensor, free: Tensor,
    luck: Tensor | None,
) -> list[Tensor]:  # fmt: skip
    """Write the best states of a layer's free variables; return their messages for each class."""
    sent: list[Tensor] = []
    for c, local, summed in zip(equations.edges.classes, layer.variables, totals, strict=True):
        variables, total = c.variables[local], summed.of_fewest()
        if luck is not None and len(local):
            peak = total.amax(1, keepdim=True)
            near = total >= peak - ROUNDING * peak.abs().clamp(min=1.0)
            total = torch.where(near, luck[: c.size, variables.cpu()].to(total), -1.0)
        best = torch.where(free[:, variables], total.max(1).indices, states[:, variables])
        states[:, variables] = best
        sent.append(_only(best, c.size, equations.unary[0]))
    return sent


@dataclass(frozen=True, eq=False)
class _Total:
    """Sums of log-messages at variables in float64, in which hard zeros are counted, not added."""

    finite: Tensor  # (B, K, n) sum of the finite ones
    zeros: Tensor  # (B, K, n) number of -inf

    @classmethod
    def of(cls, logs: Tensor) -> Self:
        """Return sums that begin with log-values (B, K, n)."""
        zeros = logs == -math.inf
        return cls(logs.double().masked_fill(zeros, 0.0), zeros.long())

    def add(self, logs: Tensor, places: Tensor, weight: Tensor | None) -> None:
        """Add weighted log-values (B, K, m) at places (m,)."""
        zeros = logs == -math.inf
        finite = logs.masked_fill(zeros, 0.0).double()
        self.finite.index_add_(2, places, finite if weight is None else finite * weight)
        self.zeros.index_add_(2, places, zeros.long())

    def of_fewest(self) -> Tensor:
        """Return (B, K, n) sums of the states with the fewest hard zeros, and -inf for others."""
        return self.finite.masked_fill(self.zeros > self.zeros.amin(1, keepdim=True), -math.inf)


def costs_one_by_one(equations: Equations) -> tuple[float, float]:
    """Return the cost of a pass by compiled code for one item, and a negligible cost, in sweeps.

    A factor is evaluated once for each of its variables.
    """
    sweep = through = 0.0
    for kernel in equations.kernels:
        sizes = [float(port.size) for port in kernel.ports]
        wide = isinstance(kernel, HighOrderKernel)
        once = sum(sizes) if wide else math.prod(sizes)
        slots = float(kernel.block.scopes.shape[1] if wide else len(sizes))
        through += kernel.count * slots * once
        sweep += kernel.count * once + tuning.MESSAGES_BEGIN
    return through / sweep, tuning.LITTLE_WORK / sweep


def costs(equations: Equations, orders: Sequence[Order]) -> tuple[list[float], float]:
    """Return the cost of a pass through each order for one item, and a negligible cost, in sweeps.

    It is estimated from the multiplications and the overhead of each computation.
    """
    work, begins, starts = 0.0, 0.0, list[float]()
    for kernel in equations.kernels:
        sizes = [float(port.size) for port in kernel.ports]
        wide = isinstance(kernel, HighOrderKernel)
        numbers = kernel.count * len(sizes) * (sum(sizes) if wide else math.prod(sizes))
        work += numbers
        begins += tuning.POTENTIALS_BEGIN if wide else tuning.MESSAGES_BEGIN
        starts.append(tuning.POTENTIALS_BEGIN if wide else tuning.LAYER_BEGINS)
    sweep = work + begins
    through = [
        work + sum(starts[part.kernel] for layer in order.layers for part in layer.arrivals)
        for order in orders
    ]
    return [cost / sweep for cost in through], tuning.LITTLE_WORK / sweep


def scores(equations: Equations, states: Tensor) -> Tensor:
    """Score (B, V) states; return (B, 2) minus the number of hard zeros, and the sum of other logs.

    The scores are in float64, without the model's constant. Larger is better, in lexicographic
    order.
    """
    result = torch.zeros(equations.batch, 2, dtype=torch.float64, device=states.device)
    for c, unary in zip(equations.edges.classes, equations.unary, strict=True):
        chosen = states[:, c.variables].unsqueeze(1)
        _count(result, unary.expand(equations.batch, -1, -1).gather(1, chosen).flatten(1), None)
    for number, kernel in enumerate(equations.kernels):
        assert isinstance(kernel, FactorKernel)
        weight = None if equations.factor_weights is None else equations.factor_weights[number]
        _count(result, kernel.log_values_at(states), weight)
    return result


def _count(result: Tensor, logs: Tensor, weight: Tensor | None) -> None:
    """Add weighted log-values (B, n) to scores (B, 2)."""
    zeros = logs == -math.inf
    finite = logs.double().masked_fill(zeros, 0.0)
    result[:, 0] -= zeros.sum(1)
    result[:, 1] += (finite if weight is None else finite * weight).sum(1)


def better(new: Tensor, known: Tensor) -> Tensor:
    """Return (B,) whether scores (B, 2) are better than others."""
    (zeros, score), (least, most) = new.unbind(1), known.unbind(1)
    return (zeros > least) | ((zeros == least) & (score > most))
