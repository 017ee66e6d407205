"""Scheduler of modes by search."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from rdpgraph._core.numbers import is_real
from rdpgraph.engines.loopy.propagation import Sweep
from rdpgraph.engines.search.configurations import best_of, likeliest
from rdpgraph.engines.search.neighbourhoods import Move
from rdpgraph.engines.search.solution import Limits, SearchSolution
from rdpgraph.engines.solution import Solution
from rdpgraph.errors import ModelError
from rdpgraph.model.graph import FactorGraph
from rdpgraph.plan import clock
from rdpgraph.plan.plan import Plan
from rdpgraph.schedulers.loopy import ForMessages, Loopy
from rdpgraph.schedulers.scheduler import (
    Scheduler,
    asked_plan,
    budget_of,
    reduced,
    require_budget,
    require_function,
    seed_of,
)

_SUMS = 0.4
"""Part of the messages' time for those that sum."""


@dataclass(frozen=True)
class Search(Scheduler):
    """Modes and marginal modes where exact inference does not fit, by large neighbourhood search.

    A mode begins with the best configuration that loopy messages give, in two fifths of the seconds
    at most. A move fixes a random cutset of the variables, finds the best states of all others
    exactly, and the next goes on from there with another cutset; when that gains no more the tables
    grow, and some fixed variables are changed at random. A configuration of probability 0 is never
    the answer. A mode is proved optimal (`Posterior.mode_is_optimal`) once no variable had to be
    fixed, or its score meets a bound by mini-buckets, which takes a tenth of the seconds more. For
    a marginal mode the sums over the other variables must fit, given all that are asked for.

    Cost: a move visits every factor once, and its largest table has 2,048 to 4 million entries.

    Source: Shaw (1998), Using constraint programming and local search methods to solve vehicle
    routing problems (large neighbourhoods); Dechter (1999), Bucket elimination (each move).

    Args:
        seconds: for a question; all of it is used, unless the mode is proved before, or `patience`
            ends the search.
        memory: bytes for the tables of a move; None: 60% of what the machine has available.
        patience: the part of the seconds after which a search without a gain ends.
        generator: the randomness; None: the same for each question.
        progress: called with a `Sweep` of the messages, and a `Move` after every move.

    Raises:
        ModelError: a number out of range.
    """

    seconds: float = 60.0
    memory: float | None = None
    patience: float = 1.0
    generator: torch.Generator | None = field(default=None, compare=False)
    progress: Callable[[Sweep | Move], None] | None = field(
        default=None, metadata={"elsewhere": None}
    )

    def __post_init__(self) -> None:
        require_budget("Search", self.memory, self.seconds)
        require_function("Search", self.progress)
        if not (self.seconds < math.inf and is_real(self.patience) and self.patience > 0):
            raise ModelError(
                f"Search needs seconds > 0 and patience > 0; got {self.seconds!r}, "
                f"{self.patience!r:.80}."
            )

    def plan(self, graph: FactorGraph) -> tuple[Plan, Callable[[], Solution]]:
        network = reduced(graph, self.seconds)
        budget = budget_of(self.memory, self.seconds)
        seed = seed_of(self.generator)
        limits = Limits(
            self.seconds, budget.memory_bytes, self.patience, seed, progress=self.progress
        )
        plan = asked_plan("search", "modes only, as asked for", network, budget)
        start = partial(_by_messages, ForMessages(network, None), self.progress)
        return plan, partial(SearchSolution, network, limits, start)


def _by_messages(
    for_messages: ForMessages, progress: Callable[[Sweep], None] | None, seconds: float
) -> Tensor:
    """(B, V) best states by plain messages: maxima, and with hard zeros also sums."""
    begin, network, every = clock.now(), for_messages.network, list[Tensor]()
    if network.possible is not None:
        sums = Loopy(seconds=_SUMS * seconds, progress=progress)
        every.append(likeliest(sums.solution(network), network.graph))
    left = max(seconds - (clock.now() - begin), _SUMS * seconds)
    every.append(Loopy(seconds=left, progress=progress).solution(network).mode())
    return best_of(for_messages.reduced, every).states
