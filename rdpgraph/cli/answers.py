"""Answers as tables, as JSON, and in the format of the UAI competitions."""

import json
import math
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor

from rdpgraph._core.numbers import ROUNDING
from rdpgraph.cli.options import Format, ParseFormat, Task
from rdpgraph.errors import BudgetError, ImpossibleEvidenceError, ModelError, printable
from rdpgraph.estimate.restriction import RestrictedSolution
from rdpgraph.io.evidence import format_map, format_mar, format_mmap, format_pr
from rdpgraph.model.domain import Entry
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.variable import State
from rdpgraph.plan.clock import now
from rdpgraph.query.answers import Assignment, StateValues
from rdpgraph.query.posterior import Posterior

CONFIDENCE = 0.95  # of the intervals printed
_MOST_ROWS = 400  # printed to a terminal
_BAR = 24  # characters of a probability of one


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
    """

    posterior: Posterior
    task: Task
    names: tuple[str, ...]
    states: tuple[tuple[State, ...] | None, ...]
    log_partition: tuple[float, ...]
    values: tuple[tuple[Any, ...], ...]
    scores: tuple[float, ...]
    numbers: tuple[int, ...]
    optimal: tuple[bool, ...]
    mode_bounds: tuple[float, ...] = ()
    bounds: tuple[tuple[float, float], ...] = ()
    interval: tuple[tuple[float, float], ...] = ()


def answer(
    posterior: Posterior,
    task: Task,
    query: Sequence[str],
    *,
    sums: bool = True,
    until: float = math.inf,
) -> Answer:
    """The answer of a posterior to a task about the query variables (all, if none are given).

    ``sums`` asks for log Z as well; after ``until`` on `clock.now` it is left out, as are proofs
    of a mode. Raises `ImpossibleEvidenceError` where the evidence has probability zero.
    """
    graph = posterior.graph
    if graph.num_variables != len(graph.variables):
        raise ModelError("The command line answers models of single variables.")
    places = [graph.domain.place(name) for name in query] or list(range(len(graph.variables)))
    entries = [graph.variables[place] for place in places]
    # Before log Z, whose approximation could use up the time.
    with warnings.catch_warnings(action="ignore"):  # an error follows the warning
        mode = _mode(posterior, task, entries)
        marginals = posterior.marginals() if task is Task.MAR else None
    said = mode is not None or (marginals is not None and _are_possible(marginals))
    late = said and now() >= until
    sums = sums and not late
    if sums or not said:
        log_z = _log_partitions(posterior)
    else:
        log_z = [math.nan] * math.prod(graph.batch_shape)
    values: list[list[Any]] = [list[Any]() for _ in log_z]
    if (asked := marginals if mode is None else mode) is not None:
        values = _rows([asked[entry] for entry in entries], len(log_z), vectors=mode is None)
    scores, optimal, ceilings = list[float](), list[bool](), list[float]()
    if task is Task.MAP and mode is not None:
        states = torch.stack(tuple(mode.values()), -1)
        scores = graph.score_states(states).reshape(-1).expand(len(log_z)).tolist()
        if -math.inf in scores:
            raise BudgetError("No possible configuration was found: raise the time budget.")
        if sums:
            optimal = posterior.mode_is_optimal().reshape(-1).tolist()
            ceilings = posterior.mode_bound().reshape(-1).tolist()
        elif late:  # no time for a proof
            optimal = [posterior.status.exact] * len(log_z)
            ceilings = scores if posterior.status.exact else []
    elif mode is not None and mode.optimal is not None:
        assert mode.score is not None
        assert mode.bound is not None
        optimal = mode.optimal.reshape(-1).tolist()
        scores = mode.score.reshape(-1).tolist()
        ceilings = mode.bound.reshape(-1).tolist()
    return Answer(
        posterior=posterior,
        task=task,
        names=tuple(entry.name for entry in entries),
        states=tuple(e.states if isinstance(e.states, tuple) else None for e in entries),
        log_partition=tuple(log_z),
        values=tuple(tuple(row) for row in values),
        scores=tuple(scores),
        numbers=tuple(places),
        optimal=tuple(optimal),
        mode_bounds=tuple(ceilings),
        bounds=_bounds(posterior, 1.0) if sums else (),
        interval=_bounds(posterior, CONFIDENCE) if sums else (),
    )


def _mode(posterior: Posterior, task: Task, entries: Sequence[Entry]) -> Assignment | None:
    """The configuration asked for; None for other tasks, and where none is possible."""
    with suppress(ImpossibleEvidenceError):
        if task is Task.MAP:
            return posterior.mode()
        if task is Task.MMAP:
            return posterior.marginal_mode(entries)
    return None


def _bounds(posterior: Posterior, confidence: float) -> tuple[tuple[float, float], ...]:
    lower, upper = posterior.bounds(confidence=confidence)
    return tuple(zip(lower.reshape(-1).tolist(), upper.reshape(-1).tolist(), strict=True))


def _are_possible(marginals: StateValues) -> bool:
    """Test if marginals have mass, as they do where the evidence is possible."""
    return all(bool((marginal.detach().sum(-1) > 0).all()) for marginal in marginals.values())


def _log_partitions(posterior: Posterior) -> list[float]:
    graph = posterior.graph
    log_z = posterior.log_partition.reshape(-1).tolist()
    if all(value > -math.inf for value in log_z):
        return log_z
    if isinstance(posterior.solution, RestrictedSolution) and not posterior.status.exact:
        raise ImpossibleEvidenceError(
            "Nothing is possible on the states kept; give a larger --keep or more --replicates."
        )
    which = "The evidence" if graph.observed is not None else "The model"
    rows = [str(row) for row, value in enumerate(log_z) if value == -math.inf]
    where = f" (row {', '.join(rows[:5])})" if len(log_z) > 1 else ""
    raise ImpossibleEvidenceError(f"{which} has probability zero{where}: nothing to infer.")


def as_text(answer: Answer, style: Format) -> str:
    """The answer in the ``uai`` or ``json`` format."""
    if style is Format.JSON:
        return _json(answer)
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
    plan, status = answer.posterior.plan, answer.posterior.status
    bars = _error_bars(answer)
    for row, log_z in enumerate(answer.log_partition):
        if len(answer.log_partition) > 1:
            console.print(f"evidence row {row}")
        if math.isnan(log_z):
            console.print("log Z is not known: the time budget was used for the question asked")
        else:
            console.print(f"log Z = {_shown(log_z)} nats, log10 Z = {_shown(log_z / math.log(10))}")
        between = _between(answer.bounds, row)
        if between is not None:
            least, most = between
            console.print(f"log Z is at least {_shown(least)} and at most {_shown(most)} nats")
        likely = _between(answer.interval, row)
        if likely is not None and likely != between:
            least, most = map(_shown, likely)
            console.print(f"with confidence {CONFIDENCE:.0%} between {least} and {most} nats")
        if bars:
            error, size, count = bars[row]
            told = f"{error:.2g} nats" if math.isfinite(error) else "NOT known"
            console.print(
                f"standard error {told}, from {count} replicates; effective sample size {size:.1f}"
            )
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
    console.print(f"{worth(answer)}, by {status.method or plan.route} (width {plan.width:.1f})")
    if status.remedy:
        console.print(status.remedy)


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


def _error_bars(answer: Answer) -> list[tuple[float, float, int]]:
    """Standard error, effective size and number of replicates of each row, if there are several."""
    posterior = answer.posterior
    # Where log Z was left out, asking for its replicates would begin it now.
    if any(map(math.isnan, answer.log_partition)) or (count := posterior.replicates.count) < 2:
        return []
    errors = posterior.standard_error.reshape(-1).tolist()
    sizes = posterior.effective_sample_size.reshape(-1).tolist()
    return [(error, size, count) for error, size in zip(errors, sizes, strict=True)]


def worth(answer: Answer) -> str:
    """The quality of the answer: exact, or the kind of approximation."""
    status = answer.posterior.status
    kind = "exact" if status.exact else "approximate"
    if isinstance(answer.posterior.solution, RestrictedSolution) and not status.exact:
        kind = "estimated on a few states of each variable"
        if answer.task is Task.MAP:
            kind += ": the best assignment of these, which need not be the best of all"
    if status.bound:
        kind += f", log Z {'an' if status.bound == 'upper' else 'a'} {status.bound} bound"
    if status.iterations is None:
        return kind if status.converged else f"{kind}, NOT converged"
    how = "converged in" if status.converged else "NOT converged after"
    return f"{kind}, {how} {status.iterations} sweeps"


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
    status = answer.posterior.status
    body: dict[str, Any] = {
        "task": answer.task.value,
        "exact": status.exact,
        "biased": status.biased,
        "converged": status.converged,
        "sweeps": status.iterations,
        "residual": status.residual,
        "remedy": status.remedy,
        "route": status.method or answer.posterior.plan.route,
    }
    rows, bars = list[dict[str, Any]](), _error_bars(answer)
    for row, log_z in enumerate(answer.log_partition):
        entry: dict[str, Any] = dict.fromkeys(("log_partition", "log10_partition"))
        if not math.isnan(log_z):
            entry = {"log_partition": log_z, "log10_partition": log_z / math.log(10)}
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
        if bars:
            error, size, count = bars[row]
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
    """A JSON object, in which numbers that are not finite are null."""
    finite = {key: _finite(value) for key, value in body.items()}
    return json.dumps(finite, indent=1, allow_nan=False)


def print_report(style: ParseFormat, graph: FactorGraph, target: Path, **more: Any) -> None:
    """Print what a command wrote of a graph as JSON; nothing as text."""
    if style is ParseFormat.JSON:
        sizes = {"variables": graph.num_variables, "factors": graph.num_factors}
        typer.echo(as_json({"output": str(target), **sizes, **more}))


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
