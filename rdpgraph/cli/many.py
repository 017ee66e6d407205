"""Several models in one run, shared between the processes that torchrun started."""

import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
import typer

from rdpgraph.cli.options import Task
from rdpgraph.errors import RdpgraphError
from rdpgraph.estimate.problem import Estimator
from rdpgraph.model.graph import FactorGraph
from rdpgraph.query.posterior import Posterior
from rdpgraph.schedulers import Loopy, Scheduler


def answered_here(
    models: Sequence[Path], output: Path | None, task: Task, evidence: Path | None
) -> list[tuple[Path, Path | None]]:
    """The models that this process answers, each with the file that its answer is written to.

    Of several processes each takes every so-manieth model. They say nothing to each other: a
    process that fails ends with its line, and torchrun ends the rest. One model is of all.
    """
    rank, ranks = place()
    if len(models) == 1:
        return [(models[0], output)]
    if evidence is not None:
        raise typer.BadParameter("--evidence is of one MODEL; several take --set NAME=STATE")
    if output is None and ranks > 1:
        raise typer.BadParameter("several processes write to a folder: --output FOLDER")
    if output is None:
        return [(model, None) for model in models]
    names = [f"{model.name}.{task}" for model in models]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise typer.BadParameter(f"two MODELs would be written to {sorted(twice)[0]}")
    output.mkdir(parents=True, exist_ok=True)
    pairs = [(model, output / name) for model, name in zip(models, names, strict=True)]
    return list(pairs[rank::ranks])


@contextmanager
def about(model: Path, models: Sequence[Path]) -> Generator[None]:
    """What goes wrong with one of several models begins with its name."""
    try:
        yield
    except RdpgraphError as error:
        if len(models) == 1 or str(error).startswith(str(model)):
            raise
        raise type(error)(f"{model}: {error}") from None


def place() -> tuple[int, int]:
    """Which process this is, and of how many."""
    rank, ranks = _number("RANK", 0), _number("WORLD_SIZE", 1)
    if not 0 <= rank < ranks:
        raise typer.BadParameter(f"RANK is from 0 to WORLD_SIZE - 1; got {rank} and {ranks}")
    return rank, ranks


def spread(
    graph: FactorGraph,
    scheduler: Scheduler,
    estimator: Estimator | None,
    task: Task,
) -> Posterior:
    """The posterior of one large model, by messages between its parts, one on each process."""
    simple = isinstance(scheduler, Loopy) and estimator is None
    if not simple or task not in (Task.PR, Task.MAR):
        raise typer.BadParameter(
            "one MODEL is spread over processes by --method loopy, for --task PR or MAR, without "
            "--estimator"
        )
    assert isinstance(scheduler, Loopy)
    from rdpgraph.distributed.cuts import partition
    from rdpgraph.distributed.group import group

    flooding = Loopy(sweeps=scheduler.sweeps, damping=scheduler.damping)
    with group(seconds=scheduler.seconds or 1.0) as mesh, torch.no_grad():
        return partition(graph, mesh).infer(flooding).posterior(graph)


def _number(name: str, default: int) -> int:
    """Of the environment, as torchrun sets it."""
    try:
        return int(os.environ.get(name, default))
    except ValueError:
        raise typer.BadParameter(f"{name} is a number; got {os.environ[name]!r}") from None
