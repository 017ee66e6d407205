"""Supports: a few states of a variable, with a log-weight each."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rdpgraph._shapes import broadcasts
from rdpgraph.errors import ModelError
from rdpgraph.model.semiring import soft_scatter


@dataclass(frozen=True, eq=False)
class Support:
    """The states kept of a variable, or of every member of an array, and their log-weights.

    Attributes:
        states: (*batch, *shape, kept) int64; repeats are allowed and stay separate entries.
        log_weights: the same shape, floating, nats; zero for a state kept as it is.
    """

    states: Tensor
    log_weights: Tensor

    def __post_init__(self) -> None:
        if self.states.shape != self.log_weights.shape or self.states.ndim < 1:
            raise ModelError(
                "A Support needs states and log-weights of one shape (..., kept); got "
                f"{tuple(self.states.shape)} and {tuple(self.log_weights.shape)}."
            )

    @property
    def kept(self) -> int:
        """How many states are kept."""
        return self.states.shape[-1]

    @staticmethod
    def plain(states: Tensor, like: Tensor) -> "Support":
        """States as they are, log-weights zero in the type of a tensor."""
        return Support(states, torch.zeros_like(states, dtype=like.dtype))

    @staticmethod
    def joined(parts: Sequence["Support"], dim: int = -1) -> "Support":
        """Several supports side by side: their entries, or along another dim."""
        return Support(
            torch.cat([part.states for part in parts], dim),
            torch.cat([part.log_weights for part in parts], dim),
        )

    def map(self, change: Callable[[Tensor], Tensor]) -> "Support":
        """The same entries, moved: what a function makes of the states and of the log-weights."""
        return Support(change(self.states), change(self.log_weights))

    def over(self, states: int) -> "Support":
        """The same over all of so many states: those not kept at -inf, repeats summed."""
        lead, rows = self.states.shape[:-1], self.states.flatten(0, -2)
        groups = rows + torch.arange(len(rows), device=rows.device).unsqueeze(1) * states
        logs = soft_scatter(self.log_weights.flatten(), groups.flatten(), len(rows) * states)
        every = torch.arange(states, device=rows.device).expand(*lead, states)
        return Support(every, logs.reshape(every.shape))

    def unweighted(self) -> "Support":
        """The same states, each counted as it is; one of -inf stays without weight."""
        possible = self.log_weights > -math.inf
        return Support(self.states, torch.where(possible, 0.0, -math.inf).to(self.log_weights))


def expanded(owner: str, support: Support, shape: tuple[int, ...]) -> Support:
    """A support with all of the dims (replicates, *batch, *shape, kept).

    Raises:
        ModelError: it does not broadcast to these.
    """
    given = tuple(support.states.shape)
    if given[:-1] == shape:
        return support
    if not broadcasts(given[:-1], shape):
        raise ModelError(
            f"The support of {owner} has dims {given}, which do not broadcast to (replicates, "
            f"*batch, *shape, kept), here ({', '.join(map(str, shape))}, {support.kept})."
        )
    return support.map(lambda part: part.expand(*shape, support.kept))


def gathered(
    owner: str, unary: Tensor, states: Tensor, log_weights: Tensor, *, sites: int
) -> Tensor:
    """(*replicates, *batch, *sites, kept) the potentials of the states kept, weights included.

    Arguments as for `check_support`.

    Raises:
        ModelError: shapes that do not fit, or a state out of range.
    """
    check_support(owner, unary, states, log_weights)
    lead, ends = states.shape[: states.ndim - sites - 1], unary.shape[unary.ndim - sites - 1 :]
    return unary.expand(*lead, *ends).gather(-1, states) + log_weights


def check_support(owner: str, unary: Tensor, states: Tensor, log_weights: Tensor) -> None:
    """Refuse states and weights that are not those of sites.

    Args:
        owner: whose, for the message.
        unary: (*batch, *sites, states) log-potentials, nats.
        states: (*replicates, *batch, *sites, kept).
        log_weights: of that shape.

    Raises:
        ModelError: shapes that do not fit, or a state out of range.
    """
    shape = tuple(unary.shape)
    if not (isinstance(states, Tensor) and isinstance(log_weights, Tensor)):
        raise ModelError(
            f"{owner}.restrict needs states and log_weights as tensors; got {states!r:.40} and "
            f"{log_weights!r:.40}."
        )
    if states.dtype != torch.long:
        raise ModelError(f"{owner}.restrict needs states as int64; got {states.dtype}.")
    fits = states.shape == log_weights.shape and states.ndim >= len(shape)
    if not fits or tuple(states.shape[-len(shape) : -1]) != shape[:-1]:
        raise ModelError(
            f"{owner}.restrict needs states and log_weights (*replicates, *{shape[:-1]}, kept); "
            f"got {tuple(states.shape)} and {tuple(log_weights.shape)}."
        )
    if states.numel() and (int(states.min()) < 0 or int(states.max()) >= shape[-1]):
        raise ModelError(f"{owner}.restrict of {shape[-1]} states got one out of range.")
