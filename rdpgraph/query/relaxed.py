"""Relaxed draws on a few states of each site, for what is computed from them at that cost."""

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from rdpgraph.errors import ModelError
from rdpgraph.structures.relaxation import straight_through


@dataclass(frozen=True, eq=False)
class RelaxedStates:
    """States of every site with weights that sum to one, or to zero where there is no site.

    What a function of states becomes on a relaxed draw is the weighted mean of its values: `mean`
    of a table with a row for each state, `pick` of numbers that each site has for each state.
    Both cost O(K) for each site, however many states there are.

    Attributes:
        weights: (*lead, K) non-negative; differentiable in the potentials.
        states: (*lead, K) which states they are of; repeats stay separate. None: all, in order.
    """

    weights: Tensor
    states: Tensor | None = None

    def __post_init__(self) -> None:
        if self.states is not None and self.states.shape != self.weights.shape:
            raise ModelError(
                "RelaxedStates need weights and states of one shape (*lead, K); got "
                f"{tuple(self.weights.shape)} and {tuple(self.states.shape)}."
            )

    @staticmethod
    def of(states: Tensor, like: Tensor) -> "RelaxedStates":
        """States (*lead) that are certain, with one weight each; -1 has none.

        Args:
            states: integers.
            like: a tensor of the type of the weights.
        """
        present = states.unsqueeze(-1) >= 0
        return RelaxedStates(present.to(like), states.unsqueeze(-1).clamp(min=0))

    def hard(self) -> "RelaxedStates":
        """One state of each site, of the largest weight; gradients as of `straight_through`."""
        return RelaxedStates(straight_through(self.weights), self.states)

    def mean(self, table: Tensor) -> Tensor:
        """(*lead, d) the weighted mean of rows of a table (N, d); zeros where there is no site."""
        if self.states is None:
            return self.weights @ table
        lead, count = self.weights.shape[:-1], self.weights.shape[-1]
        embedded = functional.embedding_bag(
            self.states.reshape(-1, count), table, mode="sum",
            per_sample_weights=self.weights.reshape(-1, count),
        )  # fmt: skip
        return embedded.reshape(*lead, table.shape[-1])

    def pick(self, values: Tensor) -> Tensor:
        """(*lead) the weighted mean of values (*lead, N), one for each state of each site."""
        chosen = values if self.states is None else values.gather(-1, self.states)
        return (self.weights * chosen).sum(-1)
