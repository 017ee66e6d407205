"""What `explain` planned and reduced is carried out by the answer that is asked for next."""

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, TypeAlias

from torch import Tensor

from rdpgraph._portable import tensors_in
from rdpgraph.engines.solution import Solution
from rdpgraph.model.graph import FactorGraph
from rdpgraph.plan.plan import Plan
from rdpgraph.schedulers.scheduler import Scheduler

_NAME = "_prepared"
_Stamp: TypeAlias = tuple[tuple[int, int], ...]


def prepared(
    scheduler: Scheduler, graph: FactorGraph, *, keep: bool
) -> tuple[Plan, Callable[[], Solution]]:
    """The scheduler's plan for a graph, and what carries it out.

    With ``keep``, or where the plan does not fit, both stay with the graph for the next call, which
    neither reads the tables nor plans if the scheduler is equal and no table has been written to.
    They are taken once: gradients pass through what was read from the tables once only.
    """
    earlier: _Prepared | None = graph.__dict__.pop(_NAME, None)
    if earlier is None or earlier.scheduler != scheduler or earlier.stamp != _stamp(graph):
        earlier = None
    plan, run = scheduler.plan(graph) if earlier is None else (earlier.plan, earlier.run)
    if keep or not plan.fits:
        stamp = _stamp(graph)
        if stamp is not None:
            graph.__dict__[_NAME] = _Prepared(scheduler, stamp, plan, run)
    return plan, run


@dataclass(frozen=True, eq=False)
class _Prepared:
    scheduler: Scheduler
    stamp: _Stamp
    plan: Plan
    run: Callable[[], Solution]

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[()]]:
        return type(None), ()  # neither copied nor pickled with the graph


def _stamp(graph: FactorGraph) -> _Stamp | None:
    """Changes when a table is written to; None where that cannot be seen."""
    if not all(_is_seen(block.potential) for block in graph.blocks):
        return None
    parts = list(tensors_in(graph.blocks))
    if any(part.is_inference() for part in parts):
        return None
    return tuple((part.data_ptr(), part._version) for part in parts)


def _is_seen(value: object) -> bool:
    """Whether `tensors_in` finds all that a potential depends on."""
    if isinstance(value, tuple | list):
        return all(map(_is_seen, value))
    if is_dataclass(value):
        return all(_is_seen(getattr(value, part.name)) for part in fields(value))
    return value is None or isinstance(value, Tensor | int | float | str)
