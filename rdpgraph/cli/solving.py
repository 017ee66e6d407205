"""From options to a posterior."""

from contextlib import AbstractContextManager, nullcontext

import torch
import typer
from rich.console import Console
from rich.status import Status as RichStatus

from rdpgraph.cli.options import Method
from rdpgraph.engines.loopy.propagation import Sweep
from rdpgraph.engines.loopy.schedules import Sequential
from rdpgraph.errors import BudgetError
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
    shown: RichStatus | None,
) -> Auto | Contraction | JoinGraph | Loopy:
    """The scheduler that the options ask for; one that sweeps reports to the spinner."""
    iterative = method in (Method.LOOPY, Method.JOIN)
    if not iterative and (damping is not None or sweeps is not None):
        raise typer.BadParameter("--damping and --sweeps need --method loopy or --method join")

    def report(sweep: Sweep) -> None:
        if shown is not None:
            shown.update(f"sweep {sweep.number}, residual {sweep.residual:.1e} ...")

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
        )
    return (Auto if method is Method.AUTO else Contraction)(memory_bytes, time_seconds)


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


def progress(what: str) -> AbstractContextManager[RichStatus | None]:
    """A spinner on a terminal's standard error, nothing elsewhere."""
    console = Console(stderr=True)
    return console.status(f"{what} ...") if console.is_terminal else nullcontext()
