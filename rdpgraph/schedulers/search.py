"""Modes by search as a scheduler."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch

from rdpgraph._numbers import is_real
from rdpgraph.engines.search.solution import Limits, SearchSolution
from rdpgraph.engines.solution import Solution
from rdpgraph.errors import ModelError
from rdpgraph.model.graph import FactorGraph
from rdpgraph.plan.plan import Plan
from rdpgraph.schedulers.scheduler import (
    Scheduler,
    asked_plan,
    budget_of,
    reduced,
    require_budget,
    seed_of,
)


@dataclass(frozen=True)
class Search(Scheduler):
    """Modes and marginal modes where exact inference does not fit, by large neighbourhood search.

    Fixes a random cutset of the variables, finds the best states of all others exactly, and goes on
    from there with another cutset; where that brings nothing more the tables grow, and some fixed
    variables are changed at random. A configuration of probability 0 is never the answer. A mode is
    optimal for sure (`Posterior.mode_is_optimal`) once no variable had to be fixed, or its score
    meets a bound by mini-buckets, which takes a tenth of the seconds more. For a marginal mode the
    sums over the other variables must fit, given all that are asked for.

    Cost: a move visits every factor once, and its largest table has 2,048 to 4 million entries.

    Source: Shaw (1998), Using constraint programming and local search methods to solve vehicle
    routing problems (large neighbourhoods); Dechter (1999), Bucket elimination (each move).

    Args:
        seconds: for a question; all of it is used, unless the mode is proved before, or `patience`
            ends the search.
        memory: bytes for the tables of a move; None: 60% of what the machine has available.
        patience: the part of the seconds after which a search without a gain ends.
        generator: the randomness; None: the same for each question.

    Raises:
        ModelError: a number out of range.
    """

    seconds: float = 60.0
    memory: float | None = None
    patience: float = 1.0
    generator: torch.Generator | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        require_budget("Search", self.memory, self.seconds)
        if not (self.seconds < math.inf and is_real(self.patience) and self.patience > 0):
            raise ModelError(
                f"Search needs seconds > 0 and patience > 0; got {self.seconds!r}, "
                f"{self.patience!r:.80}."
            )

    def plan(self, graph: FactorGraph) -> tuple[Plan, Callable[[], Solution]]:
        """Evidence and hard zeros; each question searches again."""
        network = reduced(graph, self.seconds)
        budget = budget_of(self.memory, self.seconds)
        seed = seed_of(self.generator)
        limits = Limits(self.seconds, budget.memory_bytes, self.patience, seed)
        plan = asked_plan("search", "modes only, as asked for", network, budget)
        return plan, partial(SearchSolution, network, limits)
