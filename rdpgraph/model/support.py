"""Supports: a few states of a variable, with a log-weight each."""

from dataclasses import dataclass

from torch import Tensor

from rdpgraph.errors import ModelError


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


def gathered(
    owner: str, unary: Tensor, states: Tensor, log_weights: Tensor, *, sites: int
) -> Tensor:
    """(*replicates, *batch, *sites, kept) the potentials of the states kept, weights included.

    Args:
        owner: whose, for the message.
        unary: (*batch, *sites, states) log-potentials, nats.
        states: (*replicates, *batch, *sites, kept).
        log_weights: of that shape.
        sites: how many dims the sites have.

    Raises:
        ModelError: shapes that do not fit, or a state out of range.
    """
    shape = tuple(unary.shape)
    fits = states.shape == log_weights.shape and states.ndim >= len(shape)
    if not fits or tuple(states.shape[-len(shape) : -1]) != shape[:-1]:
        raise ModelError(
            f"{owner}.restrict needs states and log_weights (*replicates, *{shape[:-1]}, kept); "
            f"got {tuple(states.shape)} and {tuple(log_weights.shape)}."
        )
    if states.numel() and (int(states.min()) < 0 or int(states.max()) >= shape[-1]):
        raise ModelError(f"{owner}.restrict of {shape[-1]} states got one out of range.")
    lead = states.shape[: states.ndim - sites - 1]
    return unary.expand(*lead, *shape[len(shape) - sites - 1 :]).gather(-1, states) + log_weights
