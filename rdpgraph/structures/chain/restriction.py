"""Chains on a few states of each step."""

from dataclasses import dataclass

from torch import Tensor

from rdpgraph.errors import ModelError
from rdpgraph.model.lowrank import LowRank
from rdpgraph.model.potential import Potential
from rdpgraph.model.table import Table


@dataclass(frozen=True, eq=False)
class Restricted:
    """The potentials of a chain on a few states.

    Attributes:
        unary: (*replicates, *batch, T, K), weights included.
        transition: (*replicates, *batch, T - 1, K, K), as a table or of low rank.
    """

    unary: Tensor
    transition: Tensor | LowRank


def restricted(
    unary: Tensor, transition: Tensor | Potential, states: Tensor, log_weights: Tensor
) -> Restricted:
    """See `Chain.restrict`."""
    shape = tuple(unary.shape)
    if states.shape != log_weights.shape or tuple(states.shape[-len(shape) : -1]) != shape[:-1]:
        raise ModelError(
            f"Chain.restrict needs states and log_weights (*replicates, *{shape[:-1]}, kept); "
            f"got {tuple(states.shape)} and {tuple(log_weights.shape)}."
        )
    if states.numel() and (int(states.min()) < 0 or int(states.max()) >= shape[-1]):
        raise ModelError(f"Chain.restrict of {shape[-1]} states got one out of range.")
    few = unary.expand(*states.shape[:-2], *shape[-2:]).gather(-1, states) + log_weights
    potential = transition if isinstance(transition, Potential) else Table(transition)
    ends = states[..., :-1, :], states[..., 1:, :]
    if isinstance(potential, LowRank) and 2 * potential.rank <= states.shape[-1]:
        return Restricted(few, potential.rows(*ends))
    return Restricted(few, potential.evaluate(ends))
