"""Scheduler of modes by search."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from rdpgraph._core import effort
from rdpgraph._core.arguments import require_fields
from rdpgraph._core.progress import Progress
from rdpgraph.engines.configurations import best_of, likeliest
from rdpgraph.engines.loopy.propagation import Sweep
from rdpgraph.engines.search.neighbourhoods import Move
from rdpgraph.engines.search.solution import SearchLimits, SearchSolution
from rdpgraph.model.graph import FactorGraph
from rdpgraph.plan import clock
from rdpgraph.schedulers.loopy import ForMessages, Loopy
from rdpgraph.schedulers.scheduler import (
    Planned,
    Scheduler,
    asked_plan,
    budget_of,
    reduced,
    reported,
    seed_of,
)


@dataclass(frozen=True)
class Search(Scheduler):
    """Modes and marginal modes where exact inference does not fit, by large neighbourhood search.

    A mode begins with the best configuration that messages give: tree-reweighted ones where all
    factors have one or two variables, whose bound may prove it at once, and loopy ones, in two
    fifths of the seconds at most. Pairs of binary variables begin with a minimum cut. It is the
    mode where pairs attract, or do once the states of some variables are exchanged; else the states
    that it decides are those of some mode, and the search is for the others. A move fixes a random
    cutset of the variables, finds the best states of all others exactly, and the next goes on from
    there with another cutset; when that gains no more the tables grow, and some fixed variables are
    changed at random. A configuration of probability 0 is never the answer. A mode is proved
    optimal (`Posterior.mode_is_optimal`) once no variable had to be fixed, or its score meets a
    bound by messages or mini-buckets, which takes a tenth of the seconds more.

    A marginal mode begins with short searches from random configurations and those of messages and
    bounds; two that differ are joined to the best of all their mixtures, as far as tables allow,
    and the best goes on. The sums over the other variables must fit, given all that are asked for.

    Cost: a move visits every factor once, and its largest table has 2,048 (compiled: 32,768) to 4
    million entries.

    Source: Kolmogorov (2006), Convergent tree-reweighted message passing for energy minimization;
    Boykov and Kolmogorov (2004), An experimental comparison of min-cut/max-flow algorithms; Boros
    and Hammer (2002), Pseudo-Boolean optimization (the states that a cut decides);
    Shaw (1998), Using constraint programming and local search methods to solve vehicle routing
    problems (large neighbourhoods); Dechter (1999), Bucket elimination (each move); Tinos, Whitley
    and Chicano (2015), Partition crossover for pseudo-Boolean optimization (joining).

    Args:
        seconds: for a question; all of it is used, unless the mode is proved before, or `patience`
            ends the search.
        memory: bytes for the tables of a move; None: 60% of what the machine has available.
        patience: the part of the seconds after which a search without a gain ends.
        generator: the randomness; None: the same for each question.
        progress: called with a `Sweep` of the messages, a `Move` after every move, and a `Progress`
            every two seconds in which there is none of these.

    Raises:
        ModelError: a number out of range.
    """

    seconds: float = 60.0
    memory: float | None = None
    patience: float = 1.0
    generator: torch.Generator | None = field(default=None, compare=False)
    progress: Callable[[Sweep | Move | Progress], None] | None = field(
        default=None, metadata={"elsewhere": None}
    )

    def __post_init__(self) -> None:
        require_fields(self, memory="(0, inf]", seconds="(0, inf)", patience="(0, inf]")

    def plan(self, graph: FactorGraph) -> Planned:
        return reported(self._planned, graph, self.progress)

    def _planned(self, graph: FactorGraph) -> Planned:
        network = reduced(graph, self.seconds)
        budget = budget_of(self.memory, self.seconds)
        seed = seed_of(self.generator)
        limits = SearchLimits(
            self.seconds, budget.memory_bytes, self.patience, seed, progress=self.progress
        )  # fmt: skip
        plan = asked_plan("search", "modes only, as asked for", network, budget)
        start = partial(_by_messages, ForMessages(network, None), self)
        return plan, partial(SearchSolution, network, limits, start)


def _by_messages(for_messages: ForMessages, search: Search, seconds: float) -> Tensor:
    """(B, V) best states by plain messages: maxima, and with hard zeros also sums."""
    progress = search.progress  # which a search that was pickled has lost
    begin, network, every = clock.now(), for_messages.network, list[Tensor]()
    if network.possible is not None:
        sums = Loopy(seconds=effort.SEARCH_SUMS * seconds, progress=progress)
        every.append(likeliest(sums.solution(network), network.graph))
    left = max(seconds - (clock.now() - begin), effort.SEARCH_SUMS * seconds)
    every.append(Loopy(seconds=left, progress=progress).solution(network).mode())
    return best_of(for_messages.reduced, every).states
