"""Entropies of chains with a table for each step of each item, by a kernel of their own.

These are the chains on some states of each step that an estimator keeps. A table is read once for
the entropy, and once for its gradient, where autograd would make a dozen tensors as large as all of
the tables. This kernel stays because the rules of chains (`rules.losses`) take ten times as long
for such tables, for their gradients too, at 10, 32 and 64 states.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from rdpgraph.logspace.gradients import is_transformed, regradient
from rdpgraph.native import library
from rdpgraph.structures.chain.parts import ChainTensors


def entropy(
    parts: ChainTensors, scored: Tensor, again: Callable[[Tensor, Tensor], Tensor], *,
    least: float | None = None,
) -> Tensor | None:  # fmt: skip
    """(B,) log Z less the expectation of the transitions and of ``scored`` in place of the unary.

    Differentiable in the unary and the transitions, with ``scored`` moving as the unary does. None
    where the kernel does not serve: without a table for each step and item, and where an item is
    impossible or its probabilities are too far apart for products.

    Args:
        parts: (B, T, N), (B, T - 1, N, N) and (B,).
        scored: (B, T, N) finite; without gradient.
        again: the same of unary and transitions, for derivatives of higher order.
        least: a bound of values that rounding may have put below it, as where one sequence has all
            the mass.
    """
    unary, tables, lengths = parts.unary, parts.transition, parts.lengths
    batch, total = unary.shape[:2]
    served = tables.ndim == 4 and len(tables) == batch and total > 1 and unary.numel() > 0
    served = served and unary.is_cpu and unary.dtype == tables.dtype and not is_transformed()
    if not served or not library.available(unary.dtype, "entropies"):
        return None
    given = unary, tables, scored.to(unary), lengths
    run = _EntropyPass(*(part.detach().contiguous() for part in given))
    if run.doubtful:
        return None
    if least is not None:
        run.values.clamp_(min=least)
    return _Entropy.apply(run, again, unary, tables)  # pyright: ignore


class _EntropyPass:
    """The entropies of some chains, and what their gradients need."""

    def __init__(self, unary: Tensor, tables: Tensor, scored: Tensor, lengths: Tensor) -> None:
        batch, steps, states = self.shape = tuple(unary.shape)
        self.inputs = unary, scored, tables, lengths
        self.kept = unary.new_empty(batch, steps, 3, states)
        self.levels = torch.empty(batch, steps, dtype=torch.float64, device="cpu")
        self.values = torch.empty(batch, dtype=torch.float64, device="cpu")
        self.threads = library.threads(tables.numel(), batch)
        doubts = torch.empty(batch, dtype=torch.int64, device="cpu")
        self._call("entropy", self.values, doubts)
        self.doubtful = bool(doubts.any())

    def gradients(self, pull: Tensor, *, links: bool) -> tuple[Tensor, Tensor | None] | None:
        """Gradients in the unary and, if asked, in the tables, (B,) times; None where in doubt."""
        unary, _, tables, _ = self.inputs
        sites, extra = torch.empty_like(unary), torch.empty_like(tables) if links else None
        doubts = torch.empty(len(unary), dtype=torch.int64, device="cpu")
        self._call("pullback", pull.double().contiguous(), sites, extra, doubts)
        return None if bool(doubts.any()) else (sites, extra)

    def _call(self, name: str, *results: Tensor | None) -> None:
        parts = *self.inputs, self.kept, self.levels, *results
        places = [None if part is None else part.data_ptr() for part in parts]
        library.function(name, self.kept.dtype)(*places, *self.shape, self.threads)


class _Entropy(Function):
    @staticmethod
    def forward(
        ctx: Any, run: _EntropyPass, again: Callable[[Tensor, Tensor], Tensor], unary: Tensor,
        tables: Tensor,
    ) -> Tensor:  # fmt: skip
        ctx.save_for_backward(unary, tables)
        ctx.run, ctx.again = run, again
        return run.values.to(unary).detach()  # not those that are kept for the gradient

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        inputs, (gradient,) = ctx.saved_tensors, gradients  # refused if they have been changed
        if not torch.is_grad_enabled() and not is_transformed(gradient):
            found = ctx.run.gradients(gradient, links=ctx.needs_input_grad[3])
            if found is not None:
                return None, None, *found
        with torch.enable_grad():
            return None, None, *regradient(ctx.again, inputs, gradient)
