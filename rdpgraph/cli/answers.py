"""Answers as tables, as JSON, and in the format of the UAI competitions."""

import json
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor

from rdpgraph._core.numbers import ROUNDING
from rdpgraph.cli.advice import in_options
from rdpgraph.cli.options import Format, ParseFormat, Task
from rdpgraph.engines.solution import Status, of_answers
from rdpgraph.errors import BudgetError, ImpossibleEvidenceError, ModelError, printable
from rdpgraph.estimate.restriction import RestrictedSolution
from rdpgraph.io.evidence import format_map, format_mar, format_mmap, format_pr
from rdpgraph.model.domain import Entry
from rdpgraph.model.evidence import MISSING
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.variable import State
from rdpgraph.plan.clock import now
from rdpgraph.query.answers import Assignment, StateValues
from rdpgraph.query.posterior import Posterior

CONFIDENCE = 0.95  # of the intervals printed
_MOST_ROWS = 400  # printed to a terminal
_BAR = 24  # characters of a probability of one

OUT_OF_TIME = Status(
    exact=False,
    converged=False,
    remedy="the time ran out before log Z and the quality of the answer were known: raise --time",
)
"""The status of an answer that is given before its status is known."""

# Why a row has no answer.
_IMPOSSIBLE = "The evidence has probability zero", "The model has probability zero"
_NOTHING_KEPT = (
    "No configuration is possible with the states that were kept; give a larger --keep or more "
    "--replicates"
)
_NOT_FOUND = "No possible configuration was found: raise the time budget"


@dataclass(frozen=True)
class Answer:
    """Answers of a posterior as plain lists, one entry per evidence row.

    Attributes:
        states: the names of the variables' states, or None.
        log_partition: log Z, nats; NaN where it was not asked for.
        values: per variable the probabilities (MAR) or the state (MAP, MMAP).
        scores: log-scores of the configuration (MAP), or lower bounds on the log-mass (MMAP).
        numbers: the variables' places in the model.
        optimal: True where no configuration is known to be better (MAP, MMAP).
        mode_bounds: upper bounds on all scores, nats; +inf where none is known.
        bounds: certain bounds on log Z, nats; empty where not asked for.
        interval: bounds on log Z that hold with probability `CONFIDENCE`.
        lacking: for each row why it has no answer, or "" where it has one.
        errors: for each row the standard error of log Z, the effective sample size and the number
            of replicates; empty where there is one replicate.
        status: of the answer, and of log Z where it was asked for, once they are known.
    """

    posterior: Posterior
    task: Task
    names: tuple[str, ...]
    states: tuple[tuple[State, ...] | None, ...]
    log_partition: tuple[float, ...]
    values: tuple[tuple[Any, ...], ...]
    scores: tuple[float, ...]
    numbers: tuple[int, ...]
    optimal: tuple[bool, ...] = ()
    mode_bounds: tuple[float, ...] = ()
    bounds: tuple[tuple[float, float], ...] = ()
    interval: tuple[tuple[float, float], ...] = ()
    lacking: tuple[str, ...] = ()
    errors: tuple[tuple[float, float, int], ...] = ()
    status: Status = OUT_OF_TIME


def answer(
    posterior: Posterior,
    task: Task,
    query: Sequence[str],
    *,
    sums: bool = True,
    until: float = math.inf,
    again: Callable[[FactorGraph], Posterior] | None = None,
    keep: Callable[[Answer], None] = lambda _: None,
) -> Answer:
    """The answer of a posterior to a task about the query variables (all, if none are given).

    ``sums`` asks for log Z as well; after ``until`` on `clock.now` it is left out, as are proofs
    of a mode. Among several rows of evidence, those without an answer say why, and the others are
    answered; ``again`` gives a posterior of these alone, where a mode needs it. ``keep`` is called
    with the marginals or the configuration before log Z, proofs and the status are asked for.

    Raises:
        ImpossibleEvidenceError: a model without rows of evidence has probability zero, and the
            question is not log Z.
        BudgetError: no possible configuration of such a model was found.
    """
    graph = posterior.graph
    if graph.num_variables != len(graph.variables):
        raise ModelError(
            "The command line answers models of single variables only, and this one has arrays."
        )
    places = [graph.domain.place(name) for name in query] or list(range(len(graph.variables)))
    entries = [graph.variables[place] for place in places]
    mode, nothing = None, ""  # why no row has a configuration
    with warnings.catch_warnings(action="ignore"):  # an error, or a word to the row, follows
        try:
            # Before log Z, whose approximation could use up the time.
            mode = _mode(posterior, task, entries)
        except ImpossibleEvidenceError:
            nothing = why = _why_nothing(posterior)
            exists = torch.zeros(1).bool()
            if graph.batch_shape:
                exists = _mode_exists(posterior, task)
            if bool(exists.all()):
                raise
            if bool(exists.any()):
                chosen: list[bool] = exists.tolist()
                part = (again or posterior.again)(_rows_of(graph, exists))
                told = answer(
                    part, task, query, sums=sums, until=until,
                    keep=lambda known: keep(_among(known, chosen, why)),
                )  # fmt: skip
                return _among(told, chosen, why)
            _require_answer([why], graph, task)
        marginals = posterior.marginals() if task is Task.MAR else None
    known = Answer(
        posterior=posterior,
        task=task,
        names=tuple(entry.name for entry in entries),
        states=tuple(e.states if isinstance(e.states, tuple) else None for e in entries),
        numbers=tuple(places),
        **_asked_for(posterior, entries, mode, marginals, nothing),
    )
    _require_answer(known.lacking, graph, task)
    said = mode is not None or marginals is not None
    if said:
        keep(known)
    try:
        told = _completed(known, said=said, sums=sums, until=until)
    except BudgetError as error:
        if not said:
            raise
        return replace(known, status=replace(OUT_OF_TIME, remedy=str(error)))
    _require_answer(told.lacking, graph, task)
    return told


def _completed(known: Answer, *, said: bool, sums: bool, until: float) -> Answer:
    """The answer with log Z, its bounds, proofs and the status, as far as there is time.

    Args:
        known: the answer so far.
        said: whether it has an answer to the question that was asked. If not, log Z is the answer,
            or says why there is none.
        sums: whether log Z and bounds are wanted.
        until: the time, on `clock.now`, after which neither is begun.
    """
    posterior, task = known.posterior, known.task
    late = said and now() >= until
    sums = sums and not late
    log_z, lacking = known.log_partition, known.lacking
    if sums or not said:
        log_z = tuple(posterior.log_partition.reshape(-1).tolist())
        why, pairs = _why_nothing(posterior), zip(log_z, lacking, strict=True)
        lacking = tuple(why if value == -math.inf else before for value, before in pairs)
    optimal, ceilings = known.optimal, known.mode_bounds
    if task is Task.MAP and said:
        if sums:
            optimal = tuple(posterior.mode_is_optimal().reshape(-1).tolist())
            ceilings = tuple(posterior.mode_bound().reshape(-1).tolist())
        elif late:  # no time for a proof
            proved = posterior.solution.status_of("mode").exact
            optimal = (proved,) * len(known.scores)
            # The bound of a mode that is proved is its score, rounded upwards: no more is computed.
            ceilings = tuple(posterior.mode_bound().reshape(-1).tolist()) if proved else ()
    return replace(
        known,
        log_partition=log_z,
        lacking=lacking,
        optimal=optimal,
        mode_bounds=ceilings,
        bounds=_bounds(posterior, 1.0) if sums else (),
        interval=_bounds(posterior, CONFIDENCE) if sums else (),
        errors=_error_bars(posterior, log_z),
        status=_status(posterior, task, optimal, sums=sums or not said),
    )


def _status(posterior: Posterior, task: Task, optimal: Sequence[bool], *, sums: bool) -> Status:
    """The status of the answer to a task, and of log Z where it was asked for too."""
    parts = {"log Z": posterior.status_of("log_partition")} if sums else dict[str, Status]()
    proved = bool(optimal) and all(optimal)
    if task is Task.MAR:
        parts["marginals"] = posterior.status_of("marginals")
    if task is Task.MAP:
        found = posterior.solution.status_of("mode")  # without the time that a proof takes
        parts["modes"] = replace(found, exact=found.exact or proved)
    if task is Task.MMAP:
        parts["modes"] = Status(exact=proved, method="" if proved else "search")
    return of_answers(parts)


def _asked_for(
    posterior: Posterior,
    entries: Sequence[Entry],
    mode: Assignment | None,
    marginals: StateValues | None,
    nothing: str,
) -> dict[str, Any]:
    """What the question asks for, as fields of an `Answer`, without log Z and proofs."""
    graph = posterior.graph
    count = math.prod(graph.batch_shape)
    # What is not asked for keeps these values, one for each row of evidence.
    values, lacking, scores = [list[Any]()] * count, [nothing] * count, list[float]()
    fields: dict[str, Any] = {"log_partition": (math.nan,) * count, "optimal": ()}
    if marginals is not None:
        values = _rows([marginals[entry] for entry in entries], count, vectors=True)
        # A row has marginals if every variable has a state of positive probability.
        possible = torch.ones(graph.batch_shape, dtype=torch.bool, device="cpu")
        for marginal in marginals.values():
            possible &= marginal.detach().sum(-1).cpu() > 0
        if not bool(possible.all()):
            why = _why_nothing(posterior)
            lacking = ["" if one else why for one in possible.reshape(-1).tolist()]
    elif mode is not None:
        values = _rows([mode[entry] for entry in entries], count, vectors=False)
        # Search knows scores and proves bounds; elsewhere the states found are scored here, and
        # nothing is claimed about whether they are optimal.
        if mode.score is not None and mode.bound is not None and mode.optimal is not None:
            scores = mode.score.reshape(-1).tolist()
            fields["optimal"] = tuple(mode.optimal.reshape(-1).tolist())
            fields["mode_bounds"] = tuple(mode.bound.reshape(-1).tolist())
        else:
            none = torch.zeros(*graph.batch_shape, 0, dtype=torch.long, device=graph.device)
            states = torch.stack(tuple(mode.values()), -1) if mode else none
            scores = graph.score_states(states).reshape(-1).expand(count).tolist()
            lacking = ["" if score > -math.inf else _NOT_FOUND for score in scores]
            fields["optimal"] = (False,) * count
    return fields | {
        "values": tuple(map(tuple, values)), "lacking": tuple(lacking), "scores": tuple(scores)
    }  # fmt: skip


def _why_nothing(posterior: Posterior) -> str:
    """The reason why a row has no mass."""
    few = isinstance(posterior.solution, RestrictedSolution)
    if few and not posterior.status_of("log_partition").exact:
        return _NOTHING_KEPT
    return _IMPOSSIBLE[posterior.graph.observed is None]


def _mode(posterior: Posterior, task: Task, entries: Sequence[Entry]) -> Assignment | None:
    """The configuration asked for; None for other tasks."""
    if task is Task.MAP:
        return posterior.mode()
    return posterior.marginal_mode(entries) if task is Task.MMAP else None


def _mode_exists(posterior: Posterior, task: Task) -> Tensor:
    """(rows,) False where a row is known to have no possible configuration."""
    solution = posterior.solution
    # The search for a mode may have proved more than was known before.
    exists = solution.mode_is_possible() if task is Task.MAP else solution.mode_exists()
    exists = solution.possible() if exists is None else exists
    return exists.reshape(-1).cpu()


def _rows_of(graph: FactorGraph, chosen: Tensor) -> FactorGraph:
    """The graph with some of its rows of evidence."""
    assert graph.observed is not None  # models in files have no other batches
    observed = graph.observed.reshape(-1, graph.num_variables)[chosen]
    return FactorGraph.from_blocks(graph.domain, graph.blocks, observed)


def _among(answer: Answer, chosen: Sequence[bool], why: str) -> Answer:
    """The answer for all rows of an answer for some; it says why the others have none."""
    empty = {
        "log_partition": -math.inf, "values": (), "scores": -math.inf, "optimal": True,
        "mode_bounds": -math.inf, "bounds": (-math.inf, -math.inf),
        "interval": (-math.inf, -math.inf), "errors": (0.0, 0.0, 0), "lacking": why,
    }  # fmt: skip
    widened: dict[str, Any] = {}
    for name, filler in empty.items():
        rows = iter(known := getattr(answer, name))
        widened[name] = tuple(next(rows) if one else filler for one in chosen) if known else ()
    return replace(answer, **widened)


def _require_answer(lacking: Sequence[str], graph: FactorGraph, task: Task) -> None:
    """Raise an error where a model without rows of evidence has no answer."""
    if graph.batch_shape:
        return
    why = lacking[0]
    if why in _IMPOSSIBLE and task is not Task.PR:
        raise ImpossibleEvidenceError(f"{why}: nothing to infer.")
    if why == _NOTHING_KEPT:
        raise ImpossibleEvidenceError(f"{_NOTHING_KEPT}.")
    if why == _NOT_FOUND:
        raise BudgetError(f"{_NOT_FOUND}.")


def _bounds(posterior: Posterior, confidence: float) -> tuple[tuple[float, float], ...]:
    lower, upper = posterior.bounds(confidence=confidence)
    return tuple(zip(lower.reshape(-1).tolist(), upper.reshape(-1).tolist(), strict=True))


def as_text(answer: Answer, style: Format) -> str:
    """The answer in the ``uai`` or ``json`` format."""
    if style is Format.JSON:
        return _json(answer)
    if answer.task is not Task.PR and (why := answer.lacking[0]):
        raise ImpossibleEvidenceError(f"{why}: the uai format cannot express this; use json.")
    if answer.task is Task.PR:
        return format_pr(next(iter(answer.log_partition)) / math.log(10))
    if answer.task is Task.MAR:
        return format_mar(answer.values[0])
    if answer.task is Task.MAP:
        return format_map(answer.values[0])
    return format_mmap(answer.numbers, answer.values[0])


def plain(**options: Any) -> Console:
    """A console that prints markup, colons and numbers as plain text."""
    return Console(**options, markup=False, emoji=False, highlight=False)


def print_table(answer: Answer, console: Console) -> None:
    """Print the answer for people."""
    plan, status = answer.posterior.plan, answer.status
    for row, log_z in enumerate(answer.log_partition):
        if len(answer.log_partition) > 1:
            console.print(f"evidence row {row}")
        if why := answer.lacking[row]:
            console.print(why)
        if math.isnan(log_z):
            if not why:
                console.print("log Z is not known: the query used up the time budget")
        else:
            console.print(f"log Z = {_shown(log_z)} nats, log10 Z = {_shown(log_z / math.log(10))}")
        between = _between(answer.bounds, row)
        if between is not None:
            ends = zip(("at least", "at most"), between, strict=True)
            known = (f"{side} {_shown(end)}" for side, end in ends if math.isfinite(end))
            console.print(f"log Z is {' and '.join(known)} nats")
        likely = _between(answer.interval, row)
        if likely is not None and likely != between:
            least, most = map(_shown, likely)
            console.print(f"with confidence {CONFIDENCE:.0%} between {least} and {most} nats")
        if answer.errors and not why:
            error, size, count = answer.errors[row]
            told = f"{error:.2g} nats" if math.isfinite(error) else "NOT known"
            console.print(
                f"standard error {told}, from {count} replicates; effective sample size {size:.1f}"
            )
        if why:
            continue
        if answer.task is not Task.PR:
            console.print(_table(answer, row, console))
        if answer.scores:
            share = math.exp(min(answer.scores[row] - log_z, 0.0))
            probability = "" if math.isnan(log_z) else f", probability {share:.4g}"
            console.print(f"log-score = {_shown(answer.scores[row])} nats{probability}")
            gap = _gap(answer, row)
            if gap is not None:
                console.print(f"no configuration is better by more than {gap:.4g} nats")
        if answer.optimal and not answer.optimal[row]:
            console.print("the best configuration that was found; there may be better ones")
    route = _route(answer)
    route = route if " by " in route else f"by {route}"  # "log Z by loopy; modes by search"
    console.print(f"{worth(answer)}, {route} (width {plan.width:.1f})")
    if status.remedy:
        console.print(in_options(status.remedy))


def _route(answer: Answer) -> str:
    """What answered; where an estimator's model was solved exactly, how."""
    method = answer.status.method
    return method if method not in ("", "randomized") else answer.posterior.plan.route


def _between(ends: Sequence[tuple[float, float]], row: int) -> tuple[float, float] | None:
    """Bounds of log Z; None where it is exact, or nothing is known."""
    if not ends:
        return None
    lower, upper = ends[row]
    return None if lower == upper or (math.isinf(lower) and math.isinf(upper)) else (lower, upper)


def _gap(answer: Answer, row: int) -> float | None:
    """Nats from the score to its bound; None where none is known, or it is zero."""
    if not answer.mode_bounds or not math.isfinite(answer.mode_bounds[row]):
        return None
    gap = answer.mode_bounds[row] - answer.scores[row]
    return gap if gap > ROUNDING * max(1.0, abs(answer.scores[row])) else None


def _error_bars(
    posterior: Posterior, log_z: Sequence[float]
) -> tuple[tuple[float, float, int], ...]:
    """Standard error, effective size and number of replicates of each row, if there are several."""
    # Where log Z was left out, asking for its replicates would begin it now.
    if any(map(math.isnan, log_z)) or (count := posterior.replicates.count) < 2:
        return ()
    errors = posterior.standard_error.reshape(-1).tolist()
    sizes = posterior.effective_sample_size.reshape(-1).tolist()
    return tuple((error, size, count) for error, size in zip(errors, sizes, strict=True))


def worth(answer: Answer) -> str:
    """Return in a few words how much the answer can be relied on.

    It says that the answer is exact, or which kind of approximation it is.
    """
    status = answer.status
    kind = "exact" if status.exact else "approximate"
    if isinstance(answer.posterior.solution, RestrictedSolution) and not status.exact:
        kind = "estimated on a few states of each variable"
        if answer.task is Task.MAP:
            kind += ": the best assignment among these states, which need not be the best of all"
    if status.bound:
        kind += f", log Z {'an' if status.bound == 'upper' else 'a'} {status.bound} bound"
    if status.iterations is None:
        return kind if status.converged else f"{kind}, NOT converged"
    how = "converged in" if status.converged else "NOT converged after"
    return f"{kind}, {how} {status.iterations} sweeps"


def rows_lacking(answer: Answer) -> str:
    """A line about rows of evidence without an answer; empty where there are none."""
    rows = [row for row, why in enumerate(answer.lacking) if why]
    if not rows or not answer.posterior.graph.batch_shape or answer.task is Task.PR:
        return ""
    named = ", ".join(map(str, rows[:5])) + (", ..." if len(rows) > 5 else "")
    return f"{len(rows)} of {len(answer.lacking)} rows of evidence have no answer ({named})."


def _table(answer: Answer, row: int, console: Console) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("variable", overflow="fold")
    table.add_column("state", overflow="fold")
    if answer.task is Task.MAR:
        table.add_column("probability", justify="right")
        table.add_column("")
    block = "#" if "█".encode(console.encoding, "replace") == b"?" else "█"
    count = 0
    for name, states, value in zip(answer.names, answer.states, answer.values[row], strict=True):
        name, marginal = printable(name), answer.task is Task.MAR
        for state in range(len(value)) if marginal else (value,):
            cells = [name, printable(str(states[state] if states else state))]
            if marginal:
                cells += [f"{value[state]:.6f}", block * round(_BAR * value[state])]
            table.add_row(*cells)
            name, count = "", count + 1
        if count >= _MOST_ROWS and console.is_terminal:
            table.add_row("...", "truncated here; pipe the output, or use --query or --format json")
            break
    return table


def _json(answer: Answer) -> str:
    status = answer.status
    body: dict[str, Any] = {
        "task": answer.task.value,
        "exact": status.exact,
        "biased": status.biased,
        "converged": status.converged,
        "sweeps": status.iterations,
        "residual": status.residual,
        "remedy": in_options(status.remedy),
        "route": _route(answer),
    }
    rows = list[dict[str, Any]]()
    for row, log_z in enumerate(answer.log_partition):
        entry: dict[str, Any] = {
            "log_partition": _finite(log_z), "log10_partition": _finite(log_z / math.log(10))
        }  # fmt: skip
        if why := answer.lacking[row]:
            rows.append(entry | {"impossible": why in _IMPOSSIBLE, "message": f"{why}."})
            continue
        pairs = zip(answer.names, answer.states, answer.values[row], strict=False)
        if answer.task is Task.MAR:
            entry["marginals"] = {
                name: dict(zip(states, value, strict=True)) if states else value
                for name, states, value in pairs
            }
        elif answer.task is not Task.PR:
            entry["assignment"] = {
                name: states[value] if states else value for name, states, value in pairs
            }
        if answer.errors:
            error, size, count = answer.errors[row]
            told = {"effective_sample_size": size, "replicates": count}
            entry |= {"standard_error": _finite(error)} | told
        between = _between(answer.bounds, row)
        if between is not None:
            entry["lower_bound"], entry["upper_bound"] = map(_finite, between)
        likely = _between(answer.interval, row)
        if likely is not None and likely != between:
            entry["confidence"] = CONFIDENCE
            entry["confidence_lower"], entry["confidence_upper"] = map(_finite, likely)
        if answer.mode_bounds:
            entry["score_bound"] = _finite(answer.mode_bounds[row])
        if answer.optimal:
            entry["optimal"] = answer.optimal[row]
        if answer.scores:  # a configuration from messages may be impossible
            entry["log_score"] = _finite(answer.scores[row])
        rows.append(entry)
    if len(rows) == 1:
        return as_json({**body, **rows[0]}) + "\n"
    # Many are written by compiled code, which does not indent.
    lines = ",\n  ".join(map(json.JSONEncoder(allow_nan=False).encode, rows))
    start = as_json(body).removesuffix("\n}")
    return f'{start},\n "rows": [\n  {lines}\n ]\n}}\n'


def as_json(body: dict[str, Any]) -> str:
    """Return a JSON object as text; numbers that are not finite become null."""
    finite = {key: _finite(value) for key, value in body.items()}
    return json.dumps(finite, indent=1, allow_nan=False)


def print_report(style: ParseFormat, graph: FactorGraph, target: Path, **more: Any) -> None:
    """Print what a command wrote of a graph as JSON; nothing as text."""
    if style is ParseFormat.JSON:
        sizes = {"variables": graph.num_variables, "factors": graph.num_factors}
        typer.echo(as_json({"output": str(target), **sizes, **more}))


def print_ranking(
    posterior: Posterior, target: str, tests: Sequence[str], style: ParseFormat
) -> None:
    """Print how much each test is expected to tell about a variable, the most first.

    Raises:
        ImpossibleEvidenceError: the evidence has probability zero.
        ModelError: rows of evidence, an unknown variable, or one that is observed.
    """
    # Refuse what has no ranking: several rows, observed variables, impossible evidence.
    graph = posterior.graph
    if graph.batch_shape:
        raise ModelError(
            f"Tests are ranked given one row of evidence; got {math.prod(graph.batch_shape)} rows. "
            "Give a file of one row, or --set."
        )
    seen = set[str]()
    if graph.observed is not None:
        numbers = (graph.observed != MISSING).nonzero().flatten().tolist()
        seen = {graph.domain.variable(number).name for number in numbers}
    for name in (target, *tests):
        variable = graph.domain.variable(graph.domain.number(name)).name
        if variable in seen:
            raise ModelError(f"{name!r} is observed, and nothing tells more; rank what is not.")
    if bool((posterior.log_partition == -math.inf).any()):
        raise ImpossibleEvidenceError(f"{_why_nothing(posterior)}; check it.")
    # The target is ranked with the others: what it tells about itself is its entropy.
    ranked = posterior.information_about(target).ranked()
    entropy = dict(ranked)[target]
    chosen = {*(tests or (name for name, _ in ranked))} - seen - {target}
    found = {name: nats for name, nats in ranked if name in chosen}
    status = posterior.status_of("information_about")
    if style is ParseFormat.JSON:
        typer.echo(as_json({
            "variable": target, "entropy": entropy, "exact": status.exact,
            "information": found, "remedy": in_options(status.remedy),
        }))  # fmt: skip
        return
    # Shares are of that entropy, which is all that a test could tell.
    console = plain(soft_wrap=True)
    console.print(f"{printable(target)} has an entropy of {entropy:.4f} nats; expected to tell:")
    width = max((len(printable(name)) for name in found), default=0)
    for name, nats in found.items():
        share = nats / entropy if entropy > 0 else 0.0
        console.print(f"{printable(name):<{width}}  {nats:.4f}  {share:.1%}")
    if not status.exact:
        console.print(in_options(f"NOT exact: {status.remedy or 'marginals are approximate'}"))


def _finite(value: Any) -> Any:
    """The value; None for infinity, which JSON lacks."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _rows(tensors: list[Tensor], count: int, *, vectors: bool) -> list[list[Any]]:
    """Per evidence row the list of the variables' values."""
    if not tensors:
        return [[] for _ in range(count)]
    sizes = [tensor.shape[-1] if vectors else 1 for tensor in tensors]
    pairs = zip(tensors, sizes, strict=True)
    flat = torch.cat([part.detach().reshape(-1, n).expand(count, n) for part, n in pairs], 1)
    rows: list[list[Any]] = []
    for row in flat.tolist():
        at, parts = 0, []
        for size in sizes:
            parts.append(row[at : at + size] if vectors else row[at])
            at += size
        rows.append(parts)
    return rows


def _shown(value: float) -> str:
    """Six digits, and no minus sign before a zero."""
    return f"{round(value, 6) + 0.0:.6f}"
