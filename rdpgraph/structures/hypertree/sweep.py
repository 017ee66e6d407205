"""The inside recursion by scaled products, and its gradient, whatever the rules are.

All spans of a width at once. With Y the sum over splits and rules, the inside value of a span is
alpha_k = exp(phi_k) Y_k. Values are relative to the largest of their span, whose log is kept apart.
The gradient is the outside recursion, on the values that the way up has kept; where that is to be
differentiated in turn, the way up is gone again in operations that autograd records.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rdpgraph.model.gradients import regradient
from rdpgraph.model.semiring import safe_log
from rdpgraph.structures.hypertree.charts import (
    Chart,
    Grown,
    HypertreeTensors,
    limit,
    lowest_log,
    peak,
    rescaled,
)


class Sweep(ABC):
    """The spans of one hypertree, upwards and then downwards: what rules make of two parts.

    Args:
        parts: the hypertree.
        recorded: whether autograd is to differentiate the way up.

    Attributes:
        charts: what is kept of parts; ``"scales"`` are their log-scales.
        rows: what is kept of spans by width; ``"divisors"``, from width 1, (B, S, 1): what values
            were divided by.
        lows: the logs of the smallest values of parts.
        top: log-scale of the rules.
        low: the smallest log of them, less the scale.
    """

    top: Tensor | float
    low: Tensor | float

    def __init__(self, parts: HypertreeTensors, *, recorded: bool = False) -> None:
        self.parts, self.recorded = parts, recorded
        self.charts: dict[str, Chart | Grown] = {"scales": self.chart()}
        self.rows: dict[str, list[Tensor]] = {"divisors": []}
        self.lows = self.chart()

    def chart(self, *dims: int, fill: float = 0.0) -> Chart | Grown:
        """An empty one, (B, T, T, *dims)."""
        return Grown() if self.recorded else Chart.of(self.parts.leaves, *dims, fill=fill)

    @abstractmethod
    def put(self, width: int, value: Tensor, scale: Tensor) -> Tensor | None:
        """Keep the values (B, S, N) of a width; gives the lowest log of what was made of them."""

    @abstractmethod
    def sums(self, width: int, weights: Tensor) -> Tensor:
        """(B, S, N) Y of the spans of a width, given the weights (B, S, w) of their splits."""

    @abstractmethod
    def value(self, width: int) -> Tensor:
        """(B, S, N) the values of a width."""

    @abstractmethod
    def above(self, width: int) -> Tensor:
        """(B, S, N) the gradient of the values of a width, given by all wider spans."""

    @abstractmethod
    def below(self, width: int, sums: Tensor, weights: Tensor) -> None:
        """Give to the parts of a width's spans, and to the rules, from the gradient of Y."""

    @abstractmethod
    def of_rules(self) -> Sequence[Tensor]:
        """The gradients of the rules, when all spans have given theirs."""

    def forward(self) -> tuple[Tensor, Tensor]:
        """(B, N) logs of the values of whole sentences, and (B,) whether underflow may matter."""
        parts, firsts = self.parts, list[Tensor]()
        base = peak(parts.leaves)
        logs = parts.leaves - base
        words, _, scale = rescaled(logs.exp(), base)
        least = limit(parts.spans.dtype)
        doubtful = (lowest_log(logs) < least).any(1)
        worst = self.put(0, words, scale)
        if worst is not None:
            doubtful |= ((worst < least) & parts.inside(0)).any(1)
        for width in range(1, parts.leaves.shape[1]):
            logs = self._scales(width)
            top = peak(logs)
            weights = logs - top
            low = None if self.recorded else self._lowest(width, weights)
            phi = parts.phi(width)
            high = peak(phi)
            raw = self.sums(width, weights.exp()) * (phi - high).exp()
            value, divisor, scale = rescaled(raw, top + high + self.top)
            self.rows["divisors"].append(divisor)
            firsts += [value[:, 0], scale[:, :1]]
            worst = self.put(width, value, scale)
            if low is not None:
                low = low + self.low + lowest_log(phi - high).clamp(max=0.0)
                low = low if worst is None else torch.minimum(low, worst)
                doubtful |= ((low < least) & parts.inside(width)).any(1)
        item = torch.arange(len(words), device=words.device)
        width = (parts.lengths - 2).clamp(min=0)
        values, scales = (torch.stack(firsts[side::2])[width, item] for side in (0, 1))
        root = safe_log(values) + scales
        return torch.where((parts.lengths > 1).unsqueeze(1), root, -math.inf), doubtful

    def _scales(self, width: int) -> Tensor:
        """(B, S, w) the log-scales of the splits of spans."""
        scales = self.charts["scales"]
        return scales.left_parts(width, 0, width) + scales.right_parts(width, 0, width)

    def _lowest(self, width: int, logs: Tensor) -> Tensor:
        """(B, S) the lowest product of two parts, given the logs of the weights of splits."""
        lows = self.lows.left_parts(width, 0, width) + self.lows.right_parts(width, 0, width)
        return torch.where(logs > -math.inf, logs + lows, 0.0).amin(-1)

    def backward(self, gradient: Tensor, doubtful: Tensor) -> list[Tensor]:
        """Gradients of leaves, spans and rules, given that of whole sentences, (B, N)."""
        parts, spans = self.parts, torch.zeros_like(self.parts.spans)
        # What is in doubt is solved again by others, and has no gradient here.
        sure = ~doubtful.reshape(-1, 1, 1)
        for width in range(parts.leaves.shape[1] - 1, 0, -1):
            value = self.value(width)
            alive = (value > 0) & sure
            marginals = torch.where(alive, self.above(width) * value, 0.0)
            whole = (parts.lengths == width + 1).unsqueeze(1) & alive[:, 0]
            marginals[:, 0] += torch.where(whole, gradient, 0.0)
            spans.diagonal(offset=width, dim1=1, dim2=2).copy_(marginals.mT)
            phi = parts.phi(width)
            gain = (phi - peak(phi)).exp() / self.rows["divisors"][width - 1]
            sums = torch.where(alive, marginals / torch.where(alive, value, 1.0) * gain, 0.0)
            scales = self._scales(width)
            self.below(width, sums, (scales - peak(scales)).exp())
        words = self.value(0)
        leaves = torch.where(words > 0, self.above(0) * words, 0.0)
        return [leaves, spans, *self.of_rules()]

    def saved(self) -> list[Tensor]:
        """All that the way down reads."""
        charts = [part for chart in self.charts.values() for part in chart.tensors]
        return [*charts, *(part for rows in self.rows.values() for part in rows)]

    def restore(self, saved: Sequence[Tensor], counts: Sequence[int]) -> None:
        """What was saved, given how many there were in each of the rows."""
        left = iter(saved)
        self.charts = {name: Chart(next(left), next(left)) for name in self.charts}
        self.rows = {
            name: [next(left) for _ in range(count)]
            for name, count in zip(self.rows, counts, strict=True)
        }


def log_roots(kind: type[Sweep], parts: HypertreeTensors) -> tuple[Tensor, Tensor]:
    """(B, N) the log inside values of whole sentences, and (B,) whether underflow may have hurt.

    Twice differentiable.
    """
    return _Swept.apply(kind, parts, *parts.tensors)  # pyright: ignore


class _Swept(torch.autograd.Function):
    @staticmethod
    def forward(  # pyright: ignore
        ctx: Any, kind: type[Sweep], parts: HypertreeTensors, *tensors: Tensor
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)  # pyright: ignore
        sweep = kind(parts)
        root, doubtful = sweep.forward()
        ctx.kind, ctx.rules, ctx.split = kind, type(parts.rules), parts.split
        ctx.many, ctx.counts = len(tensors), [len(rows) for rows in sweep.rows.values()]
        ctx.save_for_backward(parts.lengths, doubtful, *tensors, *sweep.saved())
        ctx.mark_non_differentiable(doubtful)
        return root, doubtful

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None, _: Tensor | None) -> Any:  # pyright: ignore
        if gradient is None:
            return (None,) * (ctx.many + 2)
        lengths, doubtful, *saved = ctx.saved_tensors
        leaves, spans, *rules = saved[: ctx.many]
        parts = HypertreeTensors(leaves, spans, ctx.rules(*rules), lengths, ctx.split)
        if torch.is_grad_enabled():
            sure = (~doubtful).nonzero().squeeze(1)

            def again(*tensors: Tensor) -> Tensor:
                alike = parts.with_tensors(tensors)
                alike = alike if len(sure) == len(doubtful) else alike.rows(sure)
                return ctx.kind(alike, recorded=True).forward()[0]

            return None, None, *regradient(again, parts.tensors, gradient[sure])
        sweep: Sweep = ctx.kind(parts)
        sweep.restore(saved[ctx.many :], ctx.counts)
        return None, None, *sweep.backward(gradient, doubtful)
