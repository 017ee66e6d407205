"""The commands fit and sample: tables from rows, and rows from a model."""

import sys
from pathlib import Path
from time import monotonic
from typing import Annotated

import typer

from rdpgraph.cli.options import (
    Do,
    Encoding,
    Json,
    Limit,
    Model,
    Output,
    ParseFormat,
    Settings,
    Soft,
    Style,
    Whole,
)


def fit_command(
    model: Model,
    data: Annotated[
        Path, typer.Argument(metavar="DATA", help="A .csv file with a column for each variable.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The fitted .bif or .uai file.")],
    prior: Annotated[
        float, typer.Option(min=0.0, help="Pseudo-counts of every entry; 1 is Laplace's rule.")
    ] = 0.0,
    steps: Annotated[int, typer.Option(min=1, help="Of EM, at most.")] = 200,
    tolerance: Annotated[
        float, typer.Option(min=0.0, help="The gain in nats of a row at which EM ends.")
    ] = 1e-6,
    time_seconds: Whole = "10m",  # pyright: ignore[reportArgumentType]
    limit: Limit = None,
    encoding: Encoding = None,
    style: Style = ParseFormat.TEXT,
    _json: Json = None,
) -> None:
    """Fit the tables of a Bayesian network to rows with gaps, starting from those in the file.

    Zeros of the tables stay. Variables without a column are hidden; an empty field, ?, * and NaN
    are missing. At Ctrl-C, with the exit code 130, and at the end of the time the tables of the
    last step are written.
    """
    begin = monotonic()
    from rdpgraph._core.progress_line import show_progress
    from rdpgraph.cli.advice import in_options
    from rdpgraph.cli.answers import as_json
    from rdpgraph.cli.loading import checked_target, load, read_rows
    from rdpgraph.cli.solving import best_so_far, ending, warn
    from rdpgraph.io.files import text_of, write
    from rdpgraph.io.text import LIMIT
    from rdpgraph.learn import BayesianNetwork

    checked_target(output, model, data)
    text_of(output)  # refused before anything is read
    with show_progress("reading", time_seconds) as tell, ending(time_seconds):
        graph = load(model, limit=limit, wait=time_seconds, encoding=encoding)
        rows = read_rows(data, graph, int(limit or LIMIT), time_seconds, encoding)
        count = len(next(iter(rows.values())))
        network = BayesianNetwork(
            graph, prior=prior, limit=steps, tolerance=tolerance, progress=tell
        )
        with best_so_far(time_seconds - (monotonic() - begin)) as stop:
            network.fit(rows)
        write(network.graph_, output)
    fit = network.fit_
    if style is ParseFormat.JSON:
        body = {
            "log_likelihood": fit.log_likelihood, "rows": count, "steps": fit.steps,
            "converged": fit.status.converged, "remedy": in_options(fit.status.remedy),
        }  # fmt: skip
        typer.echo(as_json(body))
    else:
        likelihood = f"log-likelihood {fit.log_likelihood:.4f} nats"
        typer.echo(f"{likelihood}, {count} rows, {fit.steps} steps")
    if not fit.status.converged:
        warn(f"{output}: {fit.status.remedy}")
    raise typer.Exit(130 if stop.asked else 0)


def sample_command(
    model: Model,
    count: Annotated[int, typer.Option("--count", "-n", min=1, max=10**7, help="Rows.")] = 1,
    output: Output = None,
    settings: Settings = None,
    do: Do = None,
    soft: Soft = None,
    seed: Annotated[int | None, typer.Option(help="Of the draws.")] = None,
    time_seconds: Whole = "10m",  # pyright: ignore[reportArgumentType]
    limit: Limit = None,
    encoding: Encoding = None,
    style: Style = ParseFormat.TEXT,
    _json: Json = None,
) -> None:
    """Draw rows from a model, given what is set, as comma-separated values or JSON."""
    import torch

    from rdpgraph._core.progress_line import show_progress
    from rdpgraph.cli.loading import GivenTexts, checked_target, load
    from rdpgraph.cli.solving import ending, posterior_of, seeded
    from rdpgraph.errors import ModelError, UnsupportedError
    from rdpgraph.io.comma_separated import format_records, format_rows
    from rdpgraph.io.text import write_text_atomically
    from rdpgraph.schedulers.auto import Auto

    checked_target(output, model)
    generator = seeded(seed)
    with show_progress("drawing", time_seconds), ending(time_seconds):
        given = GivenTexts(settings, do, soft)
        graph = load(model, given=given, limit=limit, wait=time_seconds, encoding=encoding)
        posterior = posterior_of(graph, Auto(seconds=0.5 * time_seconds))
        if not graph.num_variables:
            raise ModelError(f"{model}: the model has no variable to draw.")
        try:
            draws = posterior.sample(count, generator)
        except UnsupportedError:  # messages have no joint distribution
            why = posterior.plan.why.split(";")[0]
            raise UnsupportedError(
                f"{model}: rows are drawn by exact inference, which does not fit ({why}): raise "
                "--time, or observe more variables by --set."
            ) from None
        states = torch.cat([draw.reshape(count, -1) for draw in draws.values()], 1)
        written = format_rows if style is ParseFormat.TEXT else format_records
        text = written(states, graph.domain)
        if output is not None:
            write_text_atomically(output, text)
    if output is None:
        sys.stdout.write(text)
