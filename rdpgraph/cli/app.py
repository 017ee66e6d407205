"""The commands: infer, explain, convert, draw, parse."""

import os
import sys
from importlib.metadata import version
from io import StringIO
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from rdpgraph.cli.answers import answer, as_text, print_table
from rdpgraph.cli.arguments import Device, Format, Method, Task, load, memory, seconds
from rdpgraph.cli.drawing import draw as draw_graph
from rdpgraph.cli.estimation import EstimatorName, ProposalName, estimator_of, seeded, size
from rdpgraph.cli.parse import parse_command
from rdpgraph.cli.solving import posterior_of, progress, scheduler_of
from rdpgraph.errors import RdpgraphError
from rdpgraph.infer import explain
from rdpgraph.io.files import read, write
from rdpgraph.io.text import write_text_atomically
from rdpgraph.schedulers import Auto

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Inference in discrete graphical models: exact, planned before it runs.",
)

Model = Annotated[Path, typer.Argument(metavar="MODEL", help="A .uai or .bif file, or its .gz.")]
Evidence = Annotated[Path | None, typer.Option("--evidence", help="A UAI evidence file.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="NAME=STATE", help="Evidence; repeatable.")
]
Memory = Annotated[
    float | None,
    typer.Option("--memory", parser=memory, metavar="4GB", help="Budget for the tables."),
]
Time = Annotated[
    float, typer.Option("--time", parser=seconds, metavar="60s", help="Budget for the run.")
]


@app.command("infer")
def infer_command(
    model: Model,
    evidence: Evidence = None,
    settings: Settings = None,
    task: Annotated[
        Task, typer.Option(help="log Z, marginals, MAP, or marginal MAP over --query.")
    ] = Task.MAR,
    query: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Report these only; repeatable.")
    ] = None,
    method: Annotated[Method, typer.Option(help="How to answer.")] = Method.AUTO,
    output: Annotated[
        Path | None, typer.Option(help="Write here, whole or not at all, instead of printing.")
    ] = None,
    style: Annotated[Format, typer.Option("--format", help="How to write it.")] = Format.TABLE,
    memory_bytes: Memory = None,
    time_seconds: Time = "60s",  # pyright: ignore[reportArgumentType]
    damping: Annotated[
        float | None, typer.Option(help="Share of the old message kept (loopy, join).")
    ] = None,
    sweeps: Annotated[int | None, typer.Option(help="At most (loopy, join).")] = None,
    estimator: Annotated[
        EstimatorName, typer.Option(help="The whole model, or a few weighted states of each.")
    ] = EstimatorName.EXACT,
    keep: Annotated[
        float | None,
        typer.Option(parser=size, metavar="10%", help="States kept of each variable (randomized)."),
    ] = None,
    proposal: Annotated[
        ProposalName | None, typer.Option(help="Which states look likely (randomized).")
    ] = None,
    replicates: Annotated[
        int | None, typer.Option(help="Independent estimates, averaged (randomized).")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of randomized estimators.")] = None,
    device: Annotated[Device, typer.Option(help="Where to compute.")] = Device.CPU,
) -> None:
    """Answer a question about a model."""
    if task is Task.MMAP and not query:
        raise typer.BadParameter("MMAP needs the variables to maximise: --query NAME ...")
    names = list(query or ())
    with progress("solving") as shown:
        scheduler = scheduler_of(method, memory_bytes, time_seconds, damping, sweeps, shown)
        rewrite = estimator_of(estimator, keep, proposal, replicates)
        graph = load(model, evidence, settings or (), device)
        posterior = posterior_of(graph, scheduler, rewrite, seeded(seed))
        whole = style is Format.UAI and task is not Task.MMAP
        found = answer(posterior, task, [] if whole else names)
    if style is Format.TABLE:
        if output is None:
            print_table(found, Console(highlight=False, soft_wrap=not sys.stdout.isatty()))
            return
        console = Console(file=(lines := StringIO()), width=120, highlight=False)
        print_table(found, console)
        write_text_atomically(output, lines.getvalue())
        return
    text = as_text(found, style)
    if output is None:
        sys.stdout.write(text)
    else:
        write_text_atomically(output, text)


@app.command("explain")
def explain_command(
    model: Model,
    evidence: Evidence = None,
    settings: Settings = None,
    memory_bytes: Memory = None,
    time_seconds: Time = "60s",  # pyright: ignore[reportArgumentType]
) -> None:
    """Print the plan for a model, without running it."""
    with progress("planning"):
        graph = load(model, evidence, settings or ())
        plan = explain(graph, scheduler=Auto(memory_bytes, time_seconds))
    typer.echo(str(plan))


@app.command()
def convert(
    model: Model,
    target: Annotated[Path, typer.Argument(metavar="OUT", help="A .uai or .bif name, or its .gz.")],
) -> None:
    """Read a model in one format and write it in another."""
    write(read(model), target)


@app.command()
def draw(
    model: Model,
    output: Annotated[Path, typer.Option("--output", "-o", help="A .png, .svg or .pdf name.")],
    evidence: Evidence = None,
    settings: Settings = None,
    marginals: Annotated[  # noqa: FBT002
        bool, typer.Option("--marginals/--no-marginals", help="Bars where the model is small.")
    ] = True,
) -> None:
    """Draw a model's factor graph."""
    with progress("drawing"):
        graph = load(model, evidence, settings or ())
        posterior = posterior_of(graph, Auto()) if marginals and graph.num_variables <= 40 else None
        draw_graph(graph, output, posterior)


app.command("parse")(parse_command)


def _print_version(asked: bool) -> None:  # noqa: FBT001
    if asked:
        typer.echo(f"rdpgraph {version('rdpgraph')}")
        raise typer.Exit


@app.callback()
def options(
    show_version: Annotated[  # noqa: FBT002
        bool,
        typer.Option(
            "--version", help="Print the version.", is_eager=True, callback=_print_version
        ),
    ] = False,
) -> None:
    """Inference in discrete graphical models: exact, planned before it runs."""
    del show_version  # its callback has acted on it


def main() -> None:
    """Run the command line: exit code 0 answered, 1 a one-line error, 2 usage."""
    try:
        app()
    except RdpgraphError as error:
        _fail(str(error))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        name = f"{error.filename}: " if error.filename else ""
        _fail(f"{name}{error.strerror or error}.")
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "memory" not in str(error).lower():
            raise
        _fail("Out of memory; ask for less at once, or lower --memory.")


def _fail(message: str) -> None:
    typer.echo(f"Error: {' '.join(message.split())}", err=True)
    sys.exit(1)
