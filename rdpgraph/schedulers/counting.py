"""Exact counts of models of clauses as a scheduler."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from rdpgraph.engines.counting.counter import has_counter, require_counter
from rdpgraph.engines.counting.solution import CountedSolution
from rdpgraph.engines.reduction.network import Network
from rdpgraph.engines.solution import Solution
from rdpgraph.errors import ModelError
from rdpgraph.model.graph import FactorGraph
from rdpgraph.plan.clock import Allowance
from rdpgraph.plan.plan import Plan
from rdpgraph.schedulers.scheduler import (
    Scheduler,
    asked_plan,
    budget_of,
    reduced,
    require_budget,
)

_HARD = 0.75
"""The part of the factors that are constraints alone from which `Auto` counts."""


@dataclass(frozen=True)
class Counting(Scheduler):
    """Exact log Z of models with many hard zeros, by a model counter, whatever the width.

    Evidence and hard zeros reduce the model; what is left becomes weighted clauses: a variable of
    two states is a literal, any other has one for each state, impossible configurations are
    clauses, and literals that hold for configurations of equal value carry its weight. `Or`,
    `Xor`, `Cardinality` and other automata are clauses without their tables. The counter (pyganak)
    branches, propagates, learns clauses and keeps the counts of components that it meets again,
    with 128 bits for weights. It runs in a process of its own, which the clock or its memory ends.

    Cost: unknown before; of planning problems with a thousand variables seconds to minutes, though
    their width is hundreds. Models without hard zeros are better contracted.

    Source: Chavira and Darwiche (2008), On probabilistic inference by weighted model counting;
    Sharma, Roy, Soos and Meel (2019), GANAK.

    Args:
        seconds: for an answer.
        memory: bytes for the counter; None: 60% of what the machine has available.

    Raises:
        ModelError: a limit that is no number above zero, or infinite seconds.
        UnsupportedError: (`plan`) pyganak is not installed.
    """

    seconds: float = 60.0
    memory: float | None = None

    def __post_init__(self) -> None:
        require_budget("Counting", self.memory, self.seconds)
        if self.seconds == math.inf:
            raise ModelError("Counting needs finite seconds; got inf.")

    def plan(self, graph: FactorGraph) -> tuple[Plan, Callable[[], Solution]]:
        """Evidence and hard zeros; a count begins when an answer is asked for."""
        require_counter()
        network = reduced(graph, self.seconds)
        budget = budget_of(self.memory, self.seconds)
        hard, joint = _constraints(network)
        why = (
            "log Z by a model counter, as asked for, in a time that is not predicted: "
            f"{hard:,} of {joint:,} factors are constraints alone"
        )
        plan = asked_plan("counting", why, network, budget)
        return plan, partial(_counted, network, budget.memory_bytes, self.seconds)


def _counted(network: Network, memory: float, seconds: float) -> CountedSolution:
    """Log Z of a reduced network, within bytes and seconds of the clock."""
    return CountedSolution(network, memory, Allowance(seconds))


def counting_of(network: Network, memory: float) -> tuple[Callable[[float], Solution] | None, str]:
    """Gives log Z from seconds, and why; None and nothing where there is no reason to count."""
    hard, joint = _constraints(network)
    if hard < _HARD * max(joint, 1):
        return None, ""
    why = f"{hard:,} of {joint:,} factors are constraints alone"
    if not has_counter():
        return None, f"estimated; pip install 'rdpgraph[counting]' to count it, as {why}"
    return partial(_counted, network, memory), f"counted first, as {why}"


def _constraints(network: Network) -> tuple[int, int]:
    """Factors of several variables that have hard zeros and one other value, and all of them."""
    hard = joint = 0
    for group in network.groups:
        count, dims = group.scopes.shape
        if dims == 1:
            continue
        tables = group.log_tables.detach().flatten(2)
        top = tables.amax(2, keepdim=True)
        zero = tables == -math.inf
        alone = ((zero | (tables == top)).all(2) & zero.any(2)).all(0)
        hard += count if len(alone) == 1 and alone[0] else 0
        if len(alone) > 1:
            hard += int((alone if group.rows is None else alone[group.rows]).sum())
        joint += count
    return hard, joint
