"""infer() and explain(): the one place where the rooms meet."""

from functools import partial
from typing import TypeAlias, overload

import torch

from rdpgraph._cache import recording
from rdpgraph._portable import tensors_in
from rdpgraph.engines.recognised import plan_of
from rdpgraph.engines.status import Status
from rdpgraph.errors import ModelError
from rdpgraph.estimate.exact import Estimator, Exact, Model
from rdpgraph.estimate.lowrank import LowRankFactors
from rdpgraph.estimate.randomized import Randomized
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.structure import Structure
from rdpgraph.plan.plan import Plan
from rdpgraph.query.estimated import EstimatedPosterior, EstimatedSolution
from rdpgraph.query.estimated_structure import EstimatedStructuredPosterior
from rdpgraph.query.factorised import FactorisedSolution
from rdpgraph.query.posterior import Posterior
from rdpgraph.query.structured import Lazy, StructuredPosterior
from rdpgraph.schedulers import Auto, Loopy, Scheduler, exactly, require_fit, solved
from rdpgraph.schedulers.deferred import begun
from rdpgraph.schedulers.prepared import prepared
from rdpgraph.schedulers.scheduler import require_room_for_states

Answer: TypeAlias = Posterior | StructuredPosterior | EstimatedStructuredPosterior


@overload
def infer(
    model: FactorGraph,
    *,
    estimator: Randomized,
    scheduler: Scheduler | None = None,
    generator: torch.Generator | None = None,
) -> EstimatedPosterior: ...


@overload
def infer(
    model: FactorGraph,
    *,
    estimator: Estimator | None = None,
    scheduler: Scheduler | None = None,
    generator: torch.Generator | None = None,
) -> Posterior: ...


@overload
def infer(
    model: Structure,
    *,
    estimator: Exact | LowRankFactors | None = None,
    scheduler: Scheduler | None = None,
    generator: torch.Generator | None = None,
) -> StructuredPosterior: ...


@overload
def infer(
    model: Structure,
    *,
    estimator: Randomized,
    scheduler: Scheduler | None = None,
    generator: torch.Generator | None = None,
) -> EstimatedStructuredPosterior: ...


@overload
def infer(
    model: Model,
    *,
    estimator: Estimator | None = None,
    scheduler: Scheduler | None = None,
    generator: torch.Generator | None = None,
) -> Answer: ...


def infer(
    model: Model,
    *,
    estimator: Estimator | None = None,
    scheduler: Scheduler | None = None,
    generator: torch.Generator | None = None,
) -> Answer:
    """The posterior of a model.

    Args:
        model: a `FactorGraph`, evidence included, or a `Structure`.
        estimator: rewrites the model into a cheaper one; default `Exact()`, which does not.
        scheduler: default `Auto()`.
        generator: the randomness of the estimator.

    Returns:
        A `Posterior` (a `StructuredPosterior` for a structure); with `Randomized` an
        `EstimatedPosterior` (an `EstimatedStructuredPosterior`), about all states of the model
        as declared. Answers are computed when they are first asked for; the plan is made here,
        that of a small graph when it is first asked for.

    Raises:
        BudgetError: the plan does not fit its budget; the message says by how much, and what to do.
    """
    _require("a scheduler", scheduler, Scheduler, "an object such as Loopy()")
    _require("an estimator", estimator, Estimator, "an object such as Randomized.default(keep=0.1)")
    _require("a generator", generator, torch.Generator, "a torch.Generator")
    scheduler = scheduler or Auto()
    empty = isinstance(model, FactorGraph) and 0 in _checked(model).batch_shape
    if empty and not isinstance(scheduler, Loopy):
        raise ModelError(
            "A FactorGraph with a batch dim of 0 has no item to answer; Loopy() takes it."
        )

    read = model.blocks if isinstance(model, FactorGraph) else model
    with recording(lambda: tensors_in(read)):
        return _answer(model, estimator or Exact(), scheduler, generator)


def _answer(
    model: Model, estimator: Estimator, scheduler: Scheduler, generator: torch.Generator | None
) -> Answer:
    def solve(other: Model) -> Answer:
        return infer(other, scheduler=scheduler, generator=generator)

    problem = estimator.prepare(model, solve=solve, generator=generator)
    status = Status(exact=problem.exact, biased=not problem.exact)
    if isinstance(problem.model, Structure):
        inner = _structured(scheduler, status, problem.model)
        if problem.kept is None:
            return inner
        restricted = partial(_structured, scheduler, status)
        return EstimatedStructuredPosterior(problem.kept, inner, restricted)
    if problem.plain is None and problem.kept is None:
        graph = _checked(problem.model)
        planned, run = begun(scheduler, graph)
        return Posterior(graph, planned, status, run(), solve=exactly(scheduler).solve)
    plan, run = prepared(scheduler, _checked(problem.model), keep=False)
    require_fit(plan)
    solution = partial(solved, scheduler)
    if problem.plain is not None:
        rewritten = _checked(problem.model)
        answers = FactorisedSolution(problem.plain, run(), solution, rewritten)
        return Posterior(problem.plain, plan, status, answers, solve=exactly(scheduler).solve)
    assert problem.kept is not None
    original = _checked(problem.kept.original)
    estimate = EstimatedSolution(
        original, problem.model, run(), problem.kept, problem.exact, solution
    )
    return EstimatedPosterior(original, plan, status, estimate, solve=exactly(scheduler).solve)


def _structured(scheduler: Scheduler, status: Status, model: Model) -> StructuredPosterior:
    assert isinstance(model, Structure)
    general = Lazy(partial(_general, model, scheduler))
    return StructuredPosterior(model, plan_of(model), status, general)


def _general(model: Structure, scheduler: Scheduler) -> Answer:
    return infer(model.factor_graph(), scheduler=scheduler)


def explain(
    model: Model,
    *,
    estimator: Estimator | None = None,
    scheduler: Scheduler | None = None,
    generator: torch.Generator | None = None,
) -> Plan:
    """The plan for a model, without running it; print it.

    Reads the model's tables for hard zeros and searches for an order. `infer` of the same graph
    with an equal scheduler goes on from there, unless a table was written to in between.

    Args:
        model: as for `infer`.
        estimator: the plan is that of the model it makes; one with a pilot runs it for that.
        scheduler: as for `infer`.
        generator: the randomness of the estimator.
    """
    if estimator is not None:

        def solve(other: Model) -> Answer:
            return infer(other, scheduler=scheduler, generator=generator)

        model = estimator.prepare(model, solve=solve, generator=generator).model
    if isinstance(model, Structure):
        return plan_of(model)
    graph = _checked(model)
    with recording(lambda: tensors_in(graph.blocks)):
        return prepared(scheduler or Auto(), graph, keep=True)[0]


def _checked(model: object) -> FactorGraph:
    if not isinstance(model, FactorGraph):
        raise ModelError(
            f"infer and explain need a FactorGraph or a Structure; got {type(model).__name__}."
        )
    require_room_for_states(model)
    if any(part._version != version for block in model.blocks for part, version in block.copied):
        raise ModelError(
            "A table was changed in place, as by an optimizer, after the graph took a copy of it "
            "with others of its shape: declare the graph anew for each step, or hold the tables in "
            "one FactorBlock."
        )
    return model


def _require(name: str, value: object, kind: type, example: str) -> None:
    if value is not None and not isinstance(value, kind):
        raise ModelError(f"infer needs {name} as {example}; got {value!r:.80}.")
