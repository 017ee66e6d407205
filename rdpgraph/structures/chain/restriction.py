"""Chains on a few states of each step."""

from torch import Tensor

from rdpgraph.model.lowrank import LowRank
from rdpgraph.model.potential import Potential
from rdpgraph.model.support import gathered
from rdpgraph.model.table import Table


def restrict_chain(
    unary: Tensor, transition: Tensor | Potential, states: Tensor, log_weights: Tensor
) -> tuple[Tensor, Tensor | LowRank]:
    """The potentials of a chain on some states of each step, with weights, for `Chain.restrict`.

    A transition of low rank stays one where that is cheaper than its values on those states.

    Returns:
        Unary potentials (*replicates, *batch, T, K), weights included, and a transition
        (*replicates, *batch, T - 1, K, K), as a table or of low rank.
    """
    few = gathered("Chain", unary, states, log_weights, sites=1)
    potential = transition if isinstance(transition, Potential) else Table(transition)
    ends = states[..., :-1, :], states[..., 1:, :]
    if isinstance(potential, LowRank) and 2 * potential.rank <= states.shape[-1]:
        return few, potential.rows(*ends)
    return few, potential.evaluate(ends)
