"""Structures as factors over all of their sites, and graphs of such a factor."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph._core.types import broadcast_shapes
from rdpgraph.errors import ModelError, UnsupportedError
from rdpgraph.interface.structure import Structure
from rdpgraph.model.factor import Factor, FactorBlock
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.potentials.potential import Potential
from rdpgraph.model.potentials.table import Table
from rdpgraph.model.variable import VariableArray
from rdpgraph.structures.chain.recognition import unary_sum


@dataclass(frozen=True, eq=False)
class StructurePotential(Potential):
    """The scores of a structure as one factor over its sites, such as that heads form a tree.

    The slots are the sites, row by row. Where a site may be in no state, as the span of a tree,
    its variable has one more state than the structure, the last. A graph of this factor and of
    factors over one variable each is answered by the structure (Smith and Eisner 2008). Beside
    larger factors the scores of all configurations are written out, 2^20 at most.

    Args:
        structure: one that scores configurations; its potentials are part of the scores.

    Example:
        >>> import rdpgraph as rg
        >>> heads = rg.VariableArray("head", (2,), 3)
        >>> tree = StructurePotential(rg.ProjectiveDependencies(torch.zeros(2, 3)))
        >>> graph = rg.FactorGraph([rg.Factor([*heads], tree)])
        >>> rg.infer(graph).log_partition.exp()  # two trees with one root
        tensor(2.0000)
    """

    structure: Structure
    _shared: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """(*batch, states of each site)."""
        batch, optional = self.structure.batch_shape, self.structure.optional_sites
        *sites, states = self.structure.unary.shape[len(batch) :]
        return (*batch, *(1,) * self._shared, *(states + optional,) * math.prod(sites))

    @property
    def dtype(self) -> torch.dtype:
        """The type of the structure's log-values."""
        return self.structure.unary.dtype

    @property
    def device(self) -> torch.device:
        """The structure's device."""
        return self.structure.unary.device

    def evaluate(self, states: Sequence[Tensor]) -> Tensor:
        """The scores of all combinations of states.

        Raises:
            UnsupportedError: they are more than 2^20.
        """
        sizes, arity = [part.shape[-1] for part in states], len(states)
        shape = self.structure.unary.shape
        batch = self.structure.batch_shape
        lead = broadcast_shapes(self.lead(arity), *(part.shape[:-1] for part in states))
        if math.prod(lead) * math.prod(sizes) > tuning.MOST_ENUMERATED:
            raise UnsupportedError(
                f"A {type(self.structure).__name__} as a factor over {arity} variables would be "
                f"written out to {math.prod(lead) * math.prod(sizes):,} scores, more than the "
                f"limit of {tuning.MOST_ENUMERATED:,}. The structure's own recursion is used where "
                "all other factors are over one variable."
            )
        grid = [
            part.reshape(*part.shape[:-1], *(1,) * slot, sizes[slot], *(1,) * (arity - slot - 1))
            for slot, part in enumerate(states)
        ]
        every = torch.stack([part.expand(*lead, *sizes) for part in grid], -1).to(self.device)
        every = torch.where(every < shape[-1], every, -1).flatten(len(lead), -2)
        # All but the batch dims in front of them.
        split, shared = len(lead) - len(batch) - self._shared, int(self._shared)
        every = every.movedim(-2, 0)
        every = every.movedim(1 + split + len(batch), 1) if shared else every
        sites = shape[len(batch) : -1]
        scores = self.structure.score(every.reshape(*every.shape[:-1], *sites))
        scores = scores.movedim(1, -1) if shared else scores
        return scores.movedim(0, -1).reshape(*lead, *sizes)

    def select(
        self, block: tuple[int, ...], rows: Tensor | None, arity: int
    ) -> "StructurePotential":
        """The potential of a factor, or of several that share a structure without batch dims."""
        if block and self.lead(arity):
            raise ModelError(
                "A StructurePotential with batch dims needs a Factor, not a FactorBlock."
            )
        return replace(self, _shared=True) if self.lead(arity) else self


def structure_graph(structure: Structure, unary: Tensor) -> FactorGraph:
    """The graph of a structure: unary (*batch, *sites, states), and one factor over all sites."""
    shape = tuple(unary.shape[len(structure.batch_shape) : -1])
    sites = VariableArray("site", shape, unary.shape[-1])
    if not math.prod(shape):
        empty = Factor((), Table(unary.new_zeros(structure.batch_shape)))
        return FactorGraph([empty], variables=[sites])
    bare = StructurePotential(structure.with_unary(torch.zeros_like(structure.unary)))
    members = [sites[place] for place in itertools.product(*map(range, shape))]
    each = FactorBlock((sites,), Table.from_logs(unary))
    return FactorGraph([each, Factor(members, bare)])  # pyright: ignore[reportArgumentType]


def recognised_factor(
    kind: type[Structure], graph: FactorGraph
) -> tuple[Any, Tensor, Tensor] | None:
    """The structure of a class that is the graph's one factor over more than one variable, or None.

    Returns:
        The structure, (*batch, *sites, states) the summed potentials of the variables, and
        (*sites) their numbers.
    """
    joint = [block for block in graph.blocks if type(block.potential) is StructurePotential]
    if len(joint) != 1:
        return None
    (block,), potential = joint, joint[0].potential
    rest = [other for other in graph.blocks if other is not block]
    if any(other.arity != 1 for other in rest):
        return None
    assert isinstance(potential, StructurePotential)
    structure: Any = potential.structure
    batch, dims = graph.batch_shape, structure.batch_shape
    fits = dims == batch or (not dims and getattr(structure, "lengths", 0) is None)
    if type(structure) is not kind or not fits or len(block.scopes) != 1:
        return None
    numbers = block.scopes[0]
    if len(numbers) != graph.num_variables:
        return None
    others = FactorGraph.from_blocks(graph.domain, rest)
    unary = unary_sum(others, torch.argsort(numbers), len(numbers)).to(structure.unary)
    sites = structure.unary.shape[len(dims) : -1]
    return structure, unary.expand(*batch, -1, -1).unflatten(-2, sites), numbers.reshape(sites)
