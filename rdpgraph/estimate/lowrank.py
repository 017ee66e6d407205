"""Pairwise factors of low rank as two factors and a variable of the rank."""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch

from rdpgraph._numbers import is_whole
from rdpgraph.errors import ModelError
from rdpgraph.estimate.added import AddedVariables
from rdpgraph.estimate.lifted import Inexact
from rdpgraph.estimate.problem import Estimator, Model, Problem
from rdpgraph.model.bilinear import Bilinear
from rdpgraph.model.block import Block
from rdpgraph.model.domain import Domain
from rdpgraph.model.evidence import MISSING
from rdpgraph.model.features import RandomFeatures
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.lowrank import LowRank
from rdpgraph.model.structure import Structure
from rdpgraph.model.table import Table
from rdpgraph.model.variable import VariableArray


@dataclass(frozen=True)
class LowRankFactors(Estimator):
    """Every pairwise `LowRank` or `Bilinear` factor as two factors joined by a rank variable.

    In a graph, ``sum_k l(x, k) r(y, k)`` becomes the factors l and r over a new variable k, and
    the order of contraction does the rest: O(T N r) for a chain, O(N r deg) for a star, whose
    middle has deg factors of rank r. A structure keeps its shape, and gets a `LowRank` transition
    for its `Bilinear` one: one for each step of a `Chain`. A `SemiMarkov` of three steps and more
    takes one for all alone, and needs ``shared``.

    `LowRank` factors are rewritten exactly. `Bilinear` ones by `RandomFeatures`: with a map for
    every factor, drawn independently, the expectation of Z is the exact Z, on every graph, since
    Z is a sum of products of factors that are independent and right on average. With one map for
    all (``shared``), factors are right on average but their product is not, and Z is biased
    unless there is one factor; memory is then O(N r) and not O(F N r). log Z is too low on
    average in the first case.

    Answers are about the model's own variables. log Z, marginals and samples cost what is said
    above. A maximum over states is none over ranks, and the log of a sum over ranks no sum: modes,
    max-marginals, the entropy and the joints of rewritten factors have no such shortcut, and are
    those of the graph with its `LowRank` factors left whole.

    Args:
        features: how many random features for each `Bilinear` factor; needed where there is one.
        orthogonal: as for `RandomFeatures`.
        shared: one map for all factors.

    Raises:
        ModelError: fewer than one feature; or, without ``shared``, a structure with several factors
            that takes one low-rank potential for all.

    Source: Chiu 2021, "Random Fourier features for scaling MRFs", sections 3 to 5.
    """

    features: int | None = None
    orthogonal: bool = True
    shared: bool = False

    def __post_init__(self) -> None:
        if self.features is not None and not is_whole(self.features, 1):
            raise ModelError(f"LowRankFactors needs features >= 1; got {self.features!r:.80}.")

    def prepare(
        self, model: Model, *, solve: Callable[[Model], Any], generator: torch.Generator | None
    ) -> Problem:
        """The rewritten model; exact if every factor that was rewritten is a `LowRank`."""
        if isinstance(model, Structure):
            return self._structure(model, generator)
        exact = not any(isinstance(block.potential, Bilinear) for block in model.blocks)
        plain = model if exact else self._featured(model, generator)
        rewritten = _with_ranks(plain)
        if rewritten is model:
            return Problem(model)
        return Problem(rewritten, AddedVariables(plain, rewritten, solve, exact))

    def _structure(self, model: Structure, generator: torch.Generator | None) -> Problem:
        """A structure with low-rank potentials instead of bilinear ones.

        One for each step where the structure takes that: a field of three dims after the batch.
        """
        changed: dict[str, Any] = {}
        for part in fields(model) if is_dataclass(model) else ():
            value = getattr(model, part.name)
            if isinstance(value, Bilinear):
                lead, steps = value.lead(2), ()
                if part.metadata.get("dims") == 3:
                    apart = max(model.unary.shape[-1 - getattr(model, "site_dims", 1)] - 1, 1)
                    steps = lead[-1:] if math.prod(lead) > 1 else (apart,)
                changed[part.name] = self._low_rank(value, steps, generator)
        if not changed:
            return Problem(model)
        try:
            return Problem(replace(model, **changed), Inexact)
        except ModelError:
            if self.shared:
                raise
            raise ModelError(
                f"LowRankFactors draws a map for each factor, and {type(model).__name__} takes one "
                "LowRank for all; with LowRankFactors(..., shared=True) it has that, and Z is "
                "biased."
            ) from None

    def _low_rank(
        self, potential: Bilinear, maps: tuple[int, ...], generator: torch.Generator | None
    ) -> LowRank:
        if self.features is None:
            raise ModelError(
                "LowRankFactors needs a number of features for a Bilinear potential; give "
                "LowRankFactors(features=...)."
            )
        drawn = RandomFeatures(
            potential.left.shape[-1], self.features, orthogonal=self.orthogonal,
            maps=() if self.shared or math.prod(maps) == 1 else maps, generator=generator,
            dtype=potential.dtype,
        )  # fmt: skip
        return drawn.low_rank(potential.left, potential.right)

    def _featured(self, graph: FactorGraph, generator: torch.Generator | None) -> FactorGraph:
        """The graph with random features instead of `Bilinear` potentials."""
        blocks = list[Block]()
        for block in graph.blocks:
            potential = block.select()
            if isinstance(potential, Bilinear):
                low = self._low_rank(potential, (block.count,), generator)
                block = Block(block.scopes, low, low.lead(2)[-1:], None, block.declared)
            blocks.append(block)
        return FactorGraph.from_blocks(graph.domain, blocks, graph.observed)


def _with_ranks(graph: FactorGraph) -> FactorGraph:
    """Every block of `LowRank` potentials as two over new variables, which come last."""
    blocks, ranks, count = list[Block](), list[VariableArray](), graph.num_variables
    for number, block in enumerate(graph.blocks):
        potential = block.select()
        if not isinstance(potential, LowRank):
            blocks.append(block)
            continue
        ranks.append(VariableArray(f"rank {number}", (block.count,), potential.rank))
        rank = torch.arange(count, count + block.count, device="cpu")
        count += block.count
        for slot, values in enumerate((potential.log_left, potential.log_right)):
            values = values if values.ndim > 2 else values.unsqueeze(0)
            scopes = torch.stack([block.scopes[:, slot], rank], 1)
            shape = (values.shape[-3],)
            blocks.append(Block(scopes, Table.from_logs(values), shape, None, block.declared))
    if not ranks:
        return graph
    start, numbered = 0, list[Block]()
    for block in blocks:
        declared = torch.arange(start, start + block.count, device="cpu")
        numbered.append(replace(block, declared=declared))
        start += block.count
    observed = graph.observed
    if observed is not None:
        observed = torch.nn.functional.pad(
            observed, (0, count - graph.num_variables), value=MISSING
        )
    domain = Domain.of([*graph.variables, *ranks])
    return FactorGraph.from_blocks(domain, numbered, observed)
