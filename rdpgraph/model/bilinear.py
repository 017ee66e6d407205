"""Pairwise potentials from embeddings of the states."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rdpgraph._shapes import broadcast_shapes
from rdpgraph._types import ArrayLike
from rdpgraph.errors import ModelError
from rdpgraph.model.arrays import as_values, settle
from rdpgraph.model.potential import Potential, select_lead


@dataclass(frozen=True, eq=False)
class Bilinear(Potential):
    """The log-value of a pair of states is the inner product of their embeddings (nats).

    ``log value(i, j) = left[i] . right[j]``: Fu, Cunningham and Lapata 2022, eq. 31. On a few
    states, m of one slot and n of the other, it costs O(m n d) and forms no table of all states,
    neither forwards nor backwards; so it serves estimators that keep a few of a million states.

    Args:
        left: (*lead, N, d) embeddings of the first slot's states; leading dims are batch dims or
            factors of a block. Gradients flow to it.
        right: (*lead, M, d) those of the second slot's; the leads broadcast.

    Raises:
        ModelError: not floating, not finite, or the shapes do not fit each other.

    Example:
        >>> states = torch.tensor([[1.0, 0.0], [1.0, 1.0]])
        >>> Bilinear(states, states).table(2).tolist()
        [[1.0, 1.0], [1.0, 2.0]]
    """

    left: Tensor
    right: Tensor

    if TYPE_CHECKING:  # what the fields are made of

        def __init__(self, left: ArrayLike, right: ArrayLike) -> None: ...

    def __post_init__(self) -> None:
        settle(self, "left", "right")
        for name, values in (("left", self.left), ("right", self.right)):
            checked = as_values(f"Bilinear's {name}", values)
            if checked.ndim < 2:
                raise ModelError(
                    f"Bilinear needs floating embeddings (..., states, d); {name} is "
                    f"{tuple(values.shape)}."
                )
            if not bool(values.detach().isfinite().all()):
                raise ModelError(
                    f"Bilinear needs finite embeddings; {name} holds an infinity or NaN. Hard "
                    "zeros belong into a separate factor, such as a Sparse or a unary Table."
                )
        shapes = tuple(self.left.shape), tuple(self.right.shape)
        if shapes[0][-1] != shapes[1][-1]:
            raise ModelError(f"Bilinear needs embeddings of one length; got {shapes}.")
        if self.left.dtype != self.right.dtype or self.left.device != self.right.device:
            raise ModelError("Bilinear needs embeddings of one dtype, on one device.")
        try:
            broadcast_shapes(shapes[0][:-2], shapes[1][:-2])
        except RuntimeError:
            raise ModelError(f"Bilinear needs leading dims that broadcast; got {shapes}.") from None

    @property
    def shape(self) -> tuple[int, ...]:
        """Leading dims, then the number of states of each slot."""
        lead = broadcast_shapes(self.left.shape[:-2], self.right.shape[:-2])
        return (*lead, self.left.shape[-2], self.right.shape[-2])

    @property
    def dtype(self) -> torch.dtype:
        """The floating type of the embeddings."""
        return self.left.dtype

    @property
    def device(self) -> torch.device:
        """Where the embeddings live."""
        return self.left.device

    def table(self, arity: int) -> Tensor:
        """All log-values, (*lead, N, M)."""
        return self.left @ self.right.mT

    def evaluate(self, states: Sequence[Tensor]) -> Tensor:
        """The log-values on a grid of states: O(grid d) time, O(grid + states d) memory."""
        first, second = states
        return rows_of(self.left, first) @ rows_of(self.right, second).mT

    def select(self, block: tuple[int, ...], rows: Tensor | None, arity: int) -> "Bilinear":
        """The potentials of some factors of a block."""
        chosen = (
            select_lead(values, trailing=2, block=block, rows=rows)
            for values in (self.left, self.right)
        )
        return Bilinear(*chosen)

    def norms(self, slot: int) -> Tensor:
        """(*lead, states) L1 norms of the embeddings of a slot's states, without gradient."""
        return (self.left, self.right)[slot].detach().abs().sum(-1)


def rows_of(embeddings: Tensor, states: Tensor) -> Tensor:
    """(*lead, m, d) the embeddings of some states, the leads of both broadcast."""
    states = states.to(embeddings.device)
    if embeddings.shape[:-2].numel() == 1:
        return embeddings.reshape(embeddings.shape[-2:])[states]
    lead = broadcast_shapes(embeddings.shape[:-2], states.shape[:-1])
    index: list[Tensor] = []
    for dim, size in enumerate(lead):
        places = torch.arange(size, device=embeddings.device)
        index.append(places.reshape(-1, *(1,) * (len(lead) - dim)))
    expanded = embeddings.expand([*lead, *embeddings.shape[-2:]])
    return expanded[(*index, states)]
