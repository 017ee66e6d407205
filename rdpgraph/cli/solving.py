"""From options to a posterior."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from time import monotonic

import torch
import typer
from rich.console import Console
from rich.progress import Progress, ProgressColumn, SpinnerColumn, TextColumn
from rich.progress import Task as RichTask
from rich.text import Text

from rdpgraph.cli.options import Method
from rdpgraph.engines.loopy.propagation import Sweep
from rdpgraph.engines.loopy.schedules import Sequential
from rdpgraph.engines.search.neighbourhoods import Move
from rdpgraph.errors import BudgetError, in_a_line
from rdpgraph.estimate.problem import Estimator
from rdpgraph.infer import explain, infer
from rdpgraph.model.graph import FactorGraph
from rdpgraph.query.posterior import Posterior
from rdpgraph.schedulers import Auto, Contraction, JoinGraph, Loopy, Scheduler


def scheduler_of(
    method: Method,
    memory_bytes: float | None,
    time_seconds: float,
    damping: float | None,
    sweeps: int | None,
    tell: Callable[[str], None],
) -> Auto | Contraction | JoinGraph | Loopy:
    """The scheduler that the options ask for, which tells of its sweeps."""
    iterative = method in (Method.LOOPY, Method.JOIN)
    if not iterative and (damping is not None or sweeps is not None):
        raise typer.BadParameter("--damping and --sweeps need --method loopy or --method join")

    def report(step: Sweep | Move) -> None:
        if isinstance(step, Move):
            tell(f"search: move {step.number}, best score {step.score:.4f}")
        else:
            tell(f"messages: sweep {step.number}, residual {step.residual:.1e}")

    if method is Method.LOOPY:
        return Loopy(
            schedule=Sequential(),
            damping=0.0 if damping is None else damping,
            sweeps=1000 if sweeps is None else sweeps,
            seconds=time_seconds,
            progress=report,
            memory=memory_bytes,
        )
    if method is Method.JOIN:
        return JoinGraph(
            memory_bytes,
            time_seconds,
            damping=0.0 if damping is None else damping,
            sweeps=1000 if sweeps is None else sweeps,
            progress=report,
        )
    if method is Method.AUTO:
        return Auto(memory_bytes, time_seconds, report)
    return Contraction(memory_bytes, time_seconds)


def posterior_of(
    graph: FactorGraph,
    scheduler: Scheduler,
    estimator: Estimator | None = None,
    generator: torch.Generator | None = None,
) -> Posterior:
    """The posterior; where exact inference does not fit, its plan is printed first."""
    try:
        posterior = infer(graph, estimator=estimator, scheduler=scheduler, generator=generator)
    except BudgetError:
        if estimator is None:
            typer.echo(str(explain(graph, scheduler=scheduler)), err=True)
        raise
    assert isinstance(posterior, Posterior)
    return posterior


def warn(message: str) -> None:
    """Say in a line on standard error what an answer is worth."""
    typer.echo(in_a_line(f"Warning: {message}"), err=True)


@contextmanager
def progress(what: str, seconds: float = 0.0) -> Generator[Callable[[str], None]]:
    """A spinner, what is done and the time left on a terminal's standard error; else nothing.

    What it gives takes what is done next.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    text = TextColumn("{task.description} ...", markup=False)
    left = (_Left(monotonic() + seconds),) if seconds else ()
    with Progress(SpinnerColumn(), text, *left, console=console, transient=True) as shown:
        task = shown.add_task(what)
        yield lambda doing: shown.update(task, description=doing)


class _Left(ProgressColumn):
    """The seconds that are left of the budget."""

    def __init__(self, until: float) -> None:
        super().__init__()
        self.until = until

    def render(self, task: RichTask) -> Text:
        return Text(f"{max(self.until - monotonic(), 0.0):.0f} s left", style="dim")
