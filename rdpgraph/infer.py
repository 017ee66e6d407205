"""The functions infer() and explain(), which connect schedulers, estimators and posteriors."""

from collections.abc import Callable, Mapping
from dataclasses import is_dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, overload

import torch

from rdpgraph._core.cache import recording
from rdpgraph._core.compiler import opaque
from rdpgraph._core.portable import tensors_in
from rdpgraph.engines.solution import Solution
from rdpgraph.errors import ModelError
from rdpgraph.estimate.estimator import Estimator, Exact, Model, Problem
from rdpgraph.interface.structure import Structure
from rdpgraph.model.graph import FactorGraph
from rdpgraph.plan.plan import Plan
from rdpgraph.query.posterior import Posterior
from rdpgraph.schedulers.auto import Auto
from rdpgraph.schedulers.preparing import begun, prepared
from rdpgraph.schedulers.scheduler import Scheduler, require_room_for_states

if TYPE_CHECKING:
    from rdpgraph.model.graph import Evidence
    from rdpgraph.query.structured import StructuredPosterior


@overload
def infer(
    model: FactorGraph,
    scheduler: Scheduler | None = None,
    *,
    evidence: "Evidence | None" = None,
    estimator: Estimator | None = None,
    generator: torch.Generator | None = None,
) -> Posterior: ...


@overload
def infer(
    model: Structure,
    scheduler: Scheduler | None = None,
    *,
    estimator: Estimator | None = None,
    generator: torch.Generator | None = None,
) -> "StructuredPosterior": ...


@overload
def infer(
    model: Model,
    scheduler: Scheduler | None = None,
    *,
    evidence: "Evidence | None" = None,
    estimator: Estimator | None = None,
    generator: torch.Generator | None = None,
) -> "Posterior | StructuredPosterior": ...


@opaque
def infer(
    model: Model,
    scheduler: Scheduler | None = None,
    *,
    evidence: "Evidence | None" = None,
    estimator: Estimator | None = None,
    generator: torch.Generator | None = None,
) -> "Posterior | StructuredPosterior":
    """Return the posterior of a model.

    Args:
        model: a `FactorGraph`, evidence included, or a `Structure`.
        scheduler: how a graph is solved, as in ``infer(graph, Loopy())``; default `Auto()`. For a
            structure it is used only for questions that the structure leaves to its factor graph.
        evidence: of a graph, as for `FactorGraph.condition`: ``infer(graph, evidence=seen)`` is
            ``infer(graph.condition(seen))``.
        estimator: rewrites the model into a cheaper one; default `Exact()`, which does not.
        generator: the randomness of the estimator.

    Returns:
        A `Posterior` of a graph and a `StructuredPosterior` of a structure, about all states of
        the model as declared, whatever the estimator. Answers are computed when they are first
        asked for. Large graphs are planned here; plans of small graphs and of structures, and of
        messages between clusters, are made with the first answer that needs them.

    Raises:
        BudgetError: the plan does not fit its budget; the message says by how much, and what to do.
            It comes from the answer where the plan is made with that.
        EvidenceError: evidence that does not fit the graph.
        UnknownVariableError: evidence on a variable that the graph does not have.
        ModelError: something else than a model, an estimator, a scheduler or a generator; evidence
            on a structure; or a table that was changed in place after the graph had stacked it
            with others of its shape.
    """
    if not (estimator is scheduler is generator is None):
        _require_choices("infer", estimator, scheduler, generator)
    if evidence is not None:
        model = _conditioned("infer", model, evidence)
    scheduler = scheduler or _DEFAULT
    # Structures are an abstract class, of which Python asks `isinstance` in several calls.
    is_structure = not isinstance(model, FactorGraph) and isinstance(model, Structure)
    empty = not is_structure and 0 in _checked(model).batch_shape
    if empty and not scheduler.takes_no_items:
        raise ModelError(
            "A FactorGraph with a batch dim of 0 has no items to answer for; Loopy() returns empty "
            "answers."
        )

    read = model.blocks if isinstance(model, FactorGraph) else model
    with recording(lambda: tensors_in(read)):
        solve = partial(infer, scheduler=scheduler, generator=generator)
        problem = Problem(model)
        if estimator is not None:
            problem = _prepared(estimator, model, scheduler, solve, generator)
        graph = structured = None
        if not isinstance(problem.model, FactorGraph) and isinstance(problem.model, Structure):
            from rdpgraph.engines.recognised import StructureSolution, plan_of

            planned = partial(plan_of, problem.model)
            solution = structured = StructureSolution(problem.model, solve)
        else:
            graph = problem.model if problem.model is model else _checked(problem.model)
            planned, run = begun(scheduler, graph)
            solution = run()
        if problem.lift is not None:
            solution = problem.lift(solution)
            planned = partial(_under(estimator, model), planned)
        elif problem.model is not model:
            raise ModelError(
                f"{type(estimator).__name__}.prepare returned another model without a lift. "
                "Return Problem(model, lift), where lift turns its solution into one of the "
                "declared model."
            )
    if isinstance(model, FactorGraph):
        exactly = partial(_solve_exactly, scheduler)
        return Posterior(planned, solution, model, graph, exactly, solve)
    from rdpgraph.query.structured import StructuredPosterior

    return StructuredPosterior(planned, solution, model, structured)


def _solve_exactly(scheduler: Scheduler, graph: FactorGraph) -> Solution:
    """Solution of a graph by contraction, within the budget of another scheduler."""
    from rdpgraph.schedulers.contraction import Contraction  # few ask for it

    if isinstance(scheduler, Contraction):
        return scheduler.solve(graph)
    given = scheduler if is_dataclass(scheduler) else None
    memory, seconds = getattr(given, "memory", None), getattr(given, "seconds", None)
    return Contraction(memory, seconds or 60.0).solve(graph)


@opaque
def explain(
    model: Model,
    scheduler: Scheduler | None = None,
    *,
    evidence: "Evidence | None" = None,
    estimator: Estimator | None = None,
    generator: torch.Generator | None = None,
) -> Plan:
    """Return the plan for a model without running it; print it to read it.

    Reads the model's tables for hard zeros and searches for an order. A plan over its budget has
    ``fits`` False, where `infer` raises `BudgetError`. `infer` of the same graph
    with an equal scheduler reuses both, unless a table was changed in between.

    Args:
        model: as for `infer`.
        scheduler: as for `infer`.
        evidence: as for `infer`.
        estimator: the costs are those of the smaller model; an estimator with a pilot runs the
            pilot.
        generator: the randomness of the estimator.

    Raises:
        EvidenceError: evidence that does not fit the graph.
        UnknownVariableError: evidence on a variable that the graph does not have.
        ModelError: something else than a model, an estimator, a scheduler or a generator; or
            evidence on a structure.
    """
    _require_choices("explain", estimator, scheduler, generator)
    model = _conditioned("explain", model, evidence)
    solve = partial(infer, scheduler=scheduler, generator=generator)
    problem = _prepared(estimator or Exact(), model, scheduler, solve, generator)
    if isinstance(problem.model, Structure):
        from rdpgraph.engines.recognised import plan_of

        plan = plan_of(problem.model)
    else:
        graph = _checked(problem.model)
        with recording(lambda: tensors_in(graph.blocks)):
            plan = prepared(scheduler or Auto(), graph, keep=True)[0]
    return plan if problem.lift is None else _under(estimator, model)(plan)


def _conditioned(asked: str, model: Model, evidence: "Evidence | None") -> Model:
    """The model, or the graph given some evidence."""
    if evidence is None:
        return model
    if isinstance(model, Structure):
        raise ModelError(
            f"{asked} takes evidence= on a FactorGraph; a {type(model).__name__} has none: give "
            "its unary log-potentials -inf in the states that were not seen, or ask "
            f"{asked}(structure.factor_graph(), evidence=...)."
        )
    return _checked(model).condition(evidence)


def _prepared(
    estimator: Estimator,
    model: Model,
    scheduler: Scheduler | None,
    solve: Callable[[Model], Any],
    generator: torch.Generator | None,
) -> Problem:
    """What an estimator makes of a model, checked: estimators may be users' own."""
    by_default = scheduler is None or isinstance(scheduler, Auto)
    if estimator.takes_structures and by_default and isinstance(model, FactorGraph):
        from rdpgraph.estimate.recognised import prepared_as_structure

        found = prepared_as_structure(estimator, model, solve=solve, generator=generator)
        if found is not None:
            return found
    problem: object = estimator.prepare(model, solve=solve, generator=generator)
    if not isinstance(problem, Problem):
        raise ModelError(
            f"{type(estimator).__name__}.prepare must return a Problem; got "
            f"{type(problem).__name__}. Problem(model, lift) says which model is solved, and how "
            "its solution becomes one of the declared model."
        )
    return problem


def _under(
    estimator: Estimator | None, model: Model
) -> Callable[[Plan | Callable[[], Plan]], Plan]:
    """A function from the plan of the model that an estimator made to that of its answers."""
    name = type(estimator).__name__
    counts = "".join(
        f", {count} {what}"
        for what in ("replicates", "sweeps")
        if isinstance(count := getattr(estimator, what, None), int) and count > 1
    )
    if isinstance(model, FactorGraph):
        from rdpgraph.interface.sites import free_variables

        declared = int(free_variables(model).sum()), model.num_factors
    else:
        from rdpgraph.engines.recognised import plan_of

        declared = plan_of(model).num_variables, 0
    # The model and the estimator stay out of it, so that posteriors can be pickled.
    return partial(_estimated, name, counts, declared)


def _estimated(
    name: str, counts: str, declared: tuple[int, int], planned: Plan | Callable[[], Plan]
) -> Plan:
    """The plan of answers by an estimator, from the plan of the smaller model that it made.

    The variables and factors are those of the model as declared, ``declared``, and the costs are
    those of the smaller model. Its plan may say "exact", which is true of the smaller model alone,
    so that word is left out. ``counts`` follows the estimator's name, as in " with 8 replicates".
    """
    plan = planned if isinstance(planned, Plan) else planned()
    passes = "the factor graph has no cycles: two passes are exact"
    how = plan.why.replace(passes, "two passes over a graph without cycles")
    how = how.replace("exact, in", "solved in")
    why = (
        f"by the estimator {name}{counts}; width, work and time describe the model that {name} made"
    )
    return replace(
        plan, why=f"{why}: {how}", num_variables=declared[0], num_factors=declared[1],
        num_components=0, dropped_states=0,
    )  # fmt: skip


def _checked(model: object) -> FactorGraph:
    if not isinstance(model, FactorGraph):
        raise ModelError(
            f"infer and explain need a FactorGraph or a Structure; got {type(model).__name__}. "
            "rg.read gives the graph of a file."
        )
    require_room_for_states(model)
    for block in model.blocks:
        for part, version in block.copied:
            if part._version != version:
                raise ModelError(
                    "A table was changed in place, as by an optimizer, after the graph had copied "
                    "it together with others of its shape. Declare the graph anew in each step, or "
                    "put the tables into one FactorBlock."
                )
    return model


_DEFAULT = Auto()


def _require_choices(asked: str, estimator: object, scheduler: object, generator: object) -> None:
    choices = {
        "scheduler": (scheduler, Scheduler, "a scheduler as an object such as Loopy()"),
        "estimator": (
            estimator, Estimator, "an estimator as an object such as Randomized.default(keep=0.1)"
        ),
        "generator": (generator, torch.Generator, "a generator as a torch.Generator"),
    }  # fmt: skip
    for value, kind, wanted in choices.values():
        if value is not None and not isinstance(value, kind):
            meant = [name for name, (_, other, _) in choices.items() if isinstance(value, other)]
            hint = f"; give it as {meant[0]}=" if meant else ""
            hint = "; evidence is given as evidence=" if isinstance(value, Mapping) else hint
            raise ModelError(f"{asked} needs {wanted}; got {value!r:.80}{hint}.")
