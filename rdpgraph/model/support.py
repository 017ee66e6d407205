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
