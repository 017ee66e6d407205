"""Entropies of chains with a table for each step of each item, by a kernel of their own.

These are the chains on some states of each step that an estimator keeps. A table is read once for
the entropy, and once for its gradient, where autograd would make a dozen tensors as large as all of
the tables. This kernel stays because the rules of chains take ten times as long
for such tables, for their gradients too, at 10, 32 and 64 states.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from rdpgraph.logspace.gradients import is_transformed, with_gradient
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
    given = [part.detach().contiguous() for part in (unary, scored.to(unary), tables, lengths)]
    kept = given[0].new_empty(batch, total, 3, unary.shape[2])
    levels = torch.empty(batch, total, dtype=torch.float64, device="cpu")
    values = torch.empty(batch, dtype=torch.float64, device="cpu")
    threads = library.threads(tables.numel(), batch)

    def call(name: str, *results: Tensor | None) -> bool:
        """Fill the results; return whether no item is in doubt."""
        doubts = torch.empty(batch, dtype=torch.int64, device="cpu")
        parts = *given, kept, levels, *results, doubts
        places = [None if part is None else part.data_ptr() for part in parts]
        library.function(name, unary.dtype)(*places, *unary.shape, threads)
        return not bool(doubts.any())

    def gradient(above: Tensor) -> tuple[Tensor, Tensor | None] | None:
        sites = torch.empty_like(given[0])
        links = torch.empty_like(given[2]) if tables.requires_grad else None
        sure = call("pullback", above.double().contiguous(), sites, links)
        return (sites, links) if sure else None

    if not call("entropy", values):
        return None
    if least is not None:
        values.clamp_(min=least)
    return with_gradient(values.to(unary), (unary, tables), gradient, again)
