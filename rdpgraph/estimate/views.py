"""The view of a model: a graph's, or a structure's."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rdpgraph._cache import cached_property
from rdpgraph.errors import ModelError
from rdpgraph.estimate.evidence import opened
from rdpgraph.estimate.exact import Model, Supports
from rdpgraph.estimate.graph_view import GraphView
from rdpgraph.estimate.sites import Sites
from rdpgraph.estimate.view import View
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.structure import Structure
from rdpgraph.model.support import Support


def view_of(model: Model, generator: torch.Generator | None) -> View:
    """The view of a model.

    Raises:
        ModelError: a structure that no states can be chosen for.
    """
    if isinstance(model, Structure):
        if type(model).restrict is Structure.restrict:
            raise ModelError(
                f"{type(model).__name__} implements no restrict(states, log_weights), which "
                "randomized estimators need; give infer its factor_graph() instead, if it has one."
            )
        return StructureView(model, generator)
    return GraphView(opened(model), generator)


@dataclass(frozen=True, eq=False)
class StructureView(View):
    """A structure: one group, its sites."""

    structure: Structure
    generator: torch.Generator | None

    @cached_property
    def _graph(self) -> FactorGraph | None:
        return self.structure.proposal_graph()

    @property
    def groups(self) -> tuple[Sites, ...]:
        """The sites, (*batch, *sites, states)."""
        return self._groups

    @cached_property
    def _groups(self) -> tuple[Sites, ...]:
        unary = self.structure.proposal_unary().detach()
        return (Sites(unary, lambda: self._graph, None, self.generator, self.structure),)

    def supports(self, chosen: Supports) -> tuple[Support | None, ...]:
        """The one support."""
        return tuple(chosen)

    def restrict(self, supports: Supports) -> Structure:
        """The structure on the support of its sites."""
        (support,) = supports
        if support is None:
            return self.structure
        return self.structure.restrict(support.states, support.log_weights)

    def masses(self, chosen: Sequence[Support]) -> tuple[Tensor, ...] | None:
        """Those of the structure, if it has any."""
        (support,) = chosen
        found = self.structure.log_masses(support.states, support.log_weights)
        return None if found is None else (found,)

    def marginals(self, answer: Any) -> tuple[Tensor, ...]:
        """(*lead, *batch, *sites, kept)."""
        return (answer.marginals(),)

    @property
    def num_tables(self) -> int:
        """The sites, batch items counted."""
        return max(1, math.prod(self.structure.unary.shape[:-1]))
