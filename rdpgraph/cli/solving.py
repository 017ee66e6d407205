"""Schedulers and estimators of the options, the time limit, and several processes."""

import math
import os
import signal
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic, process_time
from typing import Any, Generic, TypeVar

import torch
import typer

from rdpgraph._core import effort
from rdpgraph.cli.advice import in_options
from rdpgraph.cli.options import EstimatorName, Method, ProposalName, Task
from rdpgraph.engines.loopy.schedules import Sequential
from rdpgraph.errors import BudgetError, ModelError, RdpgraphError, in_a_line
from rdpgraph.estimate.estimator import Estimator
from rdpgraph.estimate.proposals import (
    Global,
    Landmark,
    Local,
    LocalGlobal,
    Pilot,
    Proposal,
    Uniform,
)
from rdpgraph.estimate.randomized import Randomized
from rdpgraph.estimate.selections import Size
from rdpgraph.infer import explain, infer
from rdpgraph.model.graph import FactorGraph
from rdpgraph.plan.clock import Stop, interruptible, raise_swallowed
from rdpgraph.query.posterior import Posterior
from rdpgraph.schedulers.auto import Auto
from rdpgraph.schedulers.contraction import Contraction
from rdpgraph.schedulers.loopy import JoinGraph, Loopy
from rdpgraph.schedulers.scheduler import Scheduler

_REPLICATES = 16  # by default
Value = TypeVar("Value")


_PROPOSALS: dict[ProposalName, Callable[[], Proposal]] = {
    ProposalName.UNIFORM: Uniform,
    ProposalName.LOCAL: Local,
    ProposalName.GLOBAL: Global,
    ProposalName.LOCAL_GLOBAL: LocalGlobal,
    ProposalName.LANDMARK: Landmark,
    ProposalName.PILOT: Pilot,
}


def scheduler_of(
    method: Method,
    memory_bytes: float | None,
    time_seconds: float,
    damping: float | None,
    sweeps: int | None,
    report: Callable[[object], None],
) -> Auto | Contraction | JoinGraph | Loopy:
    """Return the scheduler that the options ask for. It reports its sweeps by ``report``."""
    iterative = method in (Method.LOOPY, Method.JOIN)
    if not iterative and (damping is not None or sweeps is not None):
        raise typer.BadParameter("--damping and --sweeps need --method loopy or --method join")
    sweeps = 1000 if sweeps is None else sweeps
    messages: Any = {"damping": damping, "sweeps": sweeps, "progress": report}
    if method is Method.LOOPY:
        budget: Any = {"memory": memory_bytes, "seconds": time_seconds}
        return Loopy(schedule=Sequential(), **budget, **messages)
    if method is Method.JOIN:
        return JoinGraph(memory_bytes, time_seconds, **messages | {"damping": damping or 0.0})
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
            typer.echo(in_options(str(explain(graph, scheduler=scheduler))), err=True)
        raise
    assert isinstance(posterior, Posterior)
    return posterior


def warn(message: str) -> None:
    """Print a warning on one line of standard error."""
    typer.echo(in_options(in_a_line(f"Warning: {message}")), err=True)


def estimator_of(
    name: EstimatorName, keep: Size | None, proposal: ProposalName | None, replicates: int | None
) -> Estimator | None:
    """Return the estimator that the options ask for; None: exact inference."""
    if name is EstimatorName.EXACT:
        if keep is not None or proposal is not None or replicates is not None:
            raise typer.BadParameter(
                "--keep, --proposal and --replicates need --estimator randomized"
            )
        return None
    many = _REPLICATES if replicates is None else replicates
    estimator = Randomized.default(keep=0.1 if keep is None else keep, replicates=many)
    if proposal is None or proposal is ProposalName.DEFAULT:
        return estimator
    return replace(estimator, proposal=_PROPOSALS[proposal]())


def seeded(seed: int | None) -> torch.Generator:
    """A generator of a seed; without one, of a seed that is new in each run."""
    if seed is None:
        generator = torch.Generator()
        generator.seed()
        return generator
    if not -(2**63) <= seed < 2**64:
        raise ModelError(f"--seed needs a whole number of 64 bits; got {seed}.")
    return torch.Generator().manual_seed(seed)


def answered_here(
    models: Sequence[Path], output: Path | None, task: Task, evidence: Path | None
) -> list[tuple[Path, Path | None]]:
    """The models that this process answers, each with its output file.

    Several processes split the models between them; a single model is answered by all.
    """
    rank, ranks = place()
    # A single model is answered by all processes together, into the output itself.
    if len(models) == 1:
        return [(models[0], output)]
    if evidence is not None:
        raise typer.BadParameter(
            "--evidence needs a single MODEL; with several, use --set NAME=STATE"
        )
    if output is None and ranks > 1:
        raise typer.BadParameter("several processes need a folder: give --output FOLDER")
    if output is None:
        return [(model, None) for model in models]
    # Several models are written to a folder, under names that must differ.
    names = [f"{model.name}.{task}" for model in models]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise typer.BadParameter(f"two MODELs would be written to {sorted(twice)[0]}")
    output.mkdir(parents=True, exist_ok=True)
    # Each process takes every so-many-th model.
    pairs = [(model, output / name) for model, name in zip(models, names, strict=True)]
    return list(pairs[rank::ranks])


@contextmanager
def about(model: Path, models: Sequence[Path]) -> Generator[None]:
    """Prefix errors with the model's name where there are several models."""
    try:
        yield
    except RdpgraphError as error:
        if len(models) == 1 or str(error).startswith(str(model)):
            raise
        raise type(error)(f"{model}: {error}") from None


def place() -> tuple[int, int]:
    """The rank of this process, and the number of processes."""
    rank, ranks = _number("RANK", 0), _number("WORLD_SIZE", 1)
    if not 0 <= rank < ranks:
        raise typer.BadParameter(
            f"RANK must be from 0 to WORLD_SIZE - 1; got RANK {rank} and WORLD_SIZE {ranks}"
        )
    return rank, ranks


def distributed_posterior(
    graph: FactorGraph, scheduler: Scheduler, estimator: Estimator | None, task: Task
) -> Posterior:
    """The posterior of one large model by messages between parts, one on each process."""
    simple = isinstance(scheduler, Loopy) and estimator is None
    if not simple or task not in (Task.PR, Task.MAR):
        raise typer.BadParameter(
            "with several processes, one MODEL needs --method loopy, and --task PR or MAR, without "
            "--estimator"
        )
    assert isinstance(scheduler, Loopy)
    from rdpgraph.distributed.collectives import group
    from rdpgraph.distributed.cuts import partition

    flooding = Loopy(sweeps=scheduler.sweeps, damping=scheduler.damping)
    with group(seconds=scheduler.seconds or 1.0) as mesh, torch.no_grad():
        return partition(graph, mesh).infer(flooding).posterior(graph)


def _number(name: str, default: int) -> int:
    """An integer of the environment, as torchrun sets it."""
    try:
        return int(os.environ.get(name, default))
    except ValueError:
        raise typer.BadParameter(
            f"{name} must be a whole number; got {os.environ[name]!r}"
        ) from None


@contextmanager
def best_so_far(seconds: float = math.inf) -> Generator[Stop]:
    """End work inside at Ctrl-C, or after some seconds, with the best answer so far.

    Raises:
        KeyboardInterrupt: Ctrl-C came, and there is none; or it came twice.
    """
    with interruptible(seconds) as stop:
        try:
            yield stop
        except RdpgraphError:
            if stop.asked:
                raise KeyboardInterrupt from None
            raise
    if stop.asked:
        warn("stopped: this is the best answer so far.")


def overtime(seconds: float) -> float:
    """The seconds beyond the time budget after which work is asked to stop.

    They are half of those after which `ending` stops it. Work that keeps to its budget ends before;
    what may end after it are answers that get some seconds however late they begin.
    """
    return 0.5 * ((effort.COMMAND_LATE - 1.0) * seconds + effort.COMMAND_MORE)


class _Rung(BaseException):
    """Signal of the end of time; no handler of errors catches it."""


@dataclass(eq=False)
class PartialAnswer(Generic[Value]):
    """What is known of an answer so far, for when the time ends before the rest is."""

    value: Value | None = None

    def keep(self, value: Value) -> None:
        """Keep an answer in place of earlier ones."""
        self.value = value


@contextmanager
def ending(
    seconds: float, *, spent: float = 0.0, known: PartialAnswer[Any] | None = None
) -> Generator[None]:
    """Leave the block after 1.2 times the seconds plus one.

    The block is left by a signal. If ``known`` holds an answer by then, it goes on after the block;
    otherwise `BudgetError` is raised. This is a last resort for code that does not watch the clock,
    such as reading a file, and has no effect in threads and on Windows. Where no answer is known
    and other processes slow this one down, its processor time counts in place of the clock, up to
    three times as many seconds in all.

    Args:
        seconds: the time budget.
        spent: seconds used before the block; they are taken off, up to half of the budget.
        known: holds the answer so far.
    """
    raise_swallowed()
    ours = threading.current_thread() is threading.main_thread()
    if not ours or not hasattr(signal, "setitimer"):
        yield
        return
    begin, used = monotonic(), process_time()
    most = effort.COMMAND_LATE * seconds + effort.COMMAND_MORE - min(spent, 0.5 * seconds)

    def ring(*_: object) -> None:
        owed = min(
            most - (process_time() - used), effort.COMMAND_WAITS * most - (monotonic() - begin)
        )
        if owed > effort.COMMAND_OWED * most and (known is None or known.value is None):
            signal.setitimer(signal.ITIMER_REAL, owed)
        else:
            raise _Rung

    before = signal.signal(signal.SIGALRM, ring)
    left, interval = signal.setitimer(signal.ITIMER_REAL, most)
    try:
        yield
    except _Rung:
        if known is None or known.value is None:
            raise BudgetError(
                f"There is no answer well after the time budget of {seconds:g} s; raise --time, or "
                "ask for less."
            ) from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
        if left:  # restore an earlier alarm
            signal.setitimer(signal.ITIMER_REAL, max(left - (monotonic() - begin), 1e-3), interval)
