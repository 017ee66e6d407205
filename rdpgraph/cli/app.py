"""The commands: infer, rank, explain, convert, draw, parse; fit and sample.

Commands import what they need, so that help does not wait for torch.
"""

import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from io import StringIO
from math import inf
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from rdpgraph.cli.advice import in_options
from rdpgraph.cli.learning import fit_command, sample_command
from rdpgraph.cli.options import (
    Device,
    Do,
    Encoding,
    EstimatorName,
    Evidence,
    Format,
    Json,
    Limit,
    Memory,
    Method,
    Model,
    Output,
    ParseFormat,
    ParseTask,
    ProposalName,
    Report,
    Settings,
    Soft,
    Style,
    Task,
    Time,
    Whole,
    size,
)
from rdpgraph.errors import in_a_line, printable

if TYPE_CHECKING:
    from rdpgraph.cli.answers import Answer
    from rdpgraph.cli.loading import GivenTexts
    from rdpgraph.model.graph import FactorGraph
    from rdpgraph.schedulers.auto import Auto


class _Commands(TyperGroup):
    """The group of commands; usage errors are printed on one line."""

    def make_context(self, *args: Any, **extra: Any) -> Any:
        """Parse the options before the command."""
        with _in_short():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: Any) -> Any:
        """Parse the options of the command, and run it."""
        with _in_short():
            return super().invoke(ctx)


@contextmanager
def _in_short() -> Generator[None]:
    try:
        yield
    except Exception as error:
        if isinstance(message := getattr(error, "message", None), str):
            message = in_a_line(message.removeprefix("Value error, "))  # that of pydantic
            error.message = message  # pyright: ignore[reportAttributeAccessIssue]
        raise


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Inference in discrete graphical models: exact, planned before it runs.",
)


@app.command("infer")
def infer_command(
    models: Annotated[
        list[Path],
        typer.Argument(
            metavar="MODEL",
            help="A .uai, .bif, .xdsl, .wcsp, ... file, or its .gz; of several, each in turn.",
        ),
    ],
    evidence: Evidence = None,
    settings: Settings = None,
    do: Do = None,
    soft: Soft = None,
    task: Annotated[
        Task, typer.Option(help="log Z, marginals, MAP, or marginal MAP over --query.")
    ] = Task.MAR,
    query: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME|FILE",
            help="Report only this variable; repeatable. For MMAP, also a query file of UAI.",
        ),
    ] = None,
    method: Annotated[Method, typer.Option(help="How to answer.")] = Method.AUTO,
    output: Output = None,
    style: Annotated[
        Format, typer.Option("--format", help="How to write the answer.")
    ] = Format.TABLE,
    _json: Json = None,
    memory_bytes: Memory = None,
    time_seconds: Time = "60s",  # pyright: ignore[reportArgumentType]
    limit: Limit = None,
    encoding: Encoding = None,
    damping: Annotated[
        float | None, typer.Option(help="Weight of the old message in each update (loopy, join).")
    ] = None,
    sweeps: Annotated[
        int | None, typer.Option(help="Limit on the number of sweeps (loopy, join).")
    ] = None,
    estimator: Annotated[
        EstimatorName, typer.Option(help="The whole model, or a few weighted states of each.")
    ] = EstimatorName.EXACT,
    keep: Annotated[
        float | None,
        typer.Option(
            parser=size,
            metavar="10%",
            help="How many states of each variable to keep (randomized).",
        ),
    ] = None,
    proposal: Annotated[
        ProposalName | None, typer.Option(help="Which states look likely (randomized).")
    ] = None,
    replicates: Annotated[
        int | None, typer.Option(max=10**6, help="Independent estimates, averaged (randomized).")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed of the draws of randomized estimators.")
    ] = None,
    device: Annotated[Device, typer.Option(help="Where to compute.")] = Device.CPU,
    strict: Annotated[  # noqa: FBT002
        bool, typer.Option("--strict", help="End with 3 where an answer has not converged.")
    ] = False,
) -> None:
    """Answer a question about a model, or about each of many.

    The answers of many are written into the folder --output, each as MODEL.TASK. Under torchrun
    its processes share the models between them, or a large one by --method loopy. Ctrl-C ends with
    the best answer so far and the exit code 130; a second one ends at once.
    """
    begin = monotonic()
    names = list(query or ())
    if task is Task.MMAP and not names:
        raise typer.BadParameter("MMAP needs the variables to maximise: --query NAME ... or FILE")
    if task is Task.PR and names:
        raise typer.BadParameter("PR is about the whole model and takes no --query")
    if style is Format.UAI and names and task is not Task.MMAP:
        raise typer.BadParameter(
            f"--format uai writes all variables for {task}; with --query use table or json"
        )
    from rdpgraph._core.progress_line import show_progress
    from rdpgraph.cli.answers import Answer, answer, rows_lacking, worth
    from rdpgraph.cli.loading import (
        GivenTexts,
        checked_target,
        load,
        queried,
        require_room_for_answers,
    )
    from rdpgraph.cli.solving import (
        PartialAnswer,
        about,
        answered_here,
        best_so_far,
        distributed_posterior,
        ending,
        estimator_of,
        overtime,
        place,
        posterior_of,
        scheduler_of,
        seeded,
        warn,
    )
    from rdpgraph.plan.clock import Allowance, now

    # Imports count as time of the first model.
    started = min(monotonic() - begin, 0.5 * time_seconds)
    ended, given = 0, GivenTexts(settings, do, soft)
    for model, target in answered_here(models, output, task, evidence):
        checked_target(target, model, evidence)
        shared = len(models) == 1 < place()[1]
        known: PartialAnswer[Answer] = PartialAnswer()
        with (
            about(model, models),
            ending(time_seconds, spent=started, known=known),
            show_progress("reading", time_seconds) as tell,
        ):
            scheduler = scheduler_of(method, memory_bytes, time_seconds, damping, sweeps, tell)
            rewrite = estimator_of(estimator, keep, proposal, replicates)
            generator = seeded(seed)
            allowance = Allowance(time_seconds)
            # All processes of one model must ask the same questions, whatever their clocks say.
            until = inf if shared else now() + time_seconds - started
            with allowance.spending():
                reading: Any = {
                    "limit": limit, "wait": time_seconds, "memory": memory_bytes,
                    "encoding": encoding,
                }  # fmt: skip
                graph = load(model, evidence, given, device, **reading)
            tell("planning")
            # Writing takes less than half as long as reading.
            allowance.spent = 1.5 * allowance.spent + started
            started = 0.0
            scheduler = replace(scheduler, seconds=allowance.left())
            asked = queried(graph, names)  # checked before planning
            require_room_for_answers(graph, task, asked, style, memory_bytes)
            with best_so_far(until - now() + overtime(time_seconds)) as stop:
                solve = partial(
                    posterior_of, scheduler=scheduler, estimator=rewrite, generator=generator
                )
                if shared:
                    posterior = distributed_posterior(graph, scheduler, rewrite, task)
                else:
                    posterior = solve(graph)
                tell("solving")
                sums = style is not Format.UAI
                options: Any = {"sums": sums, "until": until, "again": solve, "keep": known.keep}
                known.keep(answer(posterior, task, asked, **options))
        answered, interrupted = known.value, stop.asked
        assert answered is not None
        if interrupted:
            ended = 130
        elif not answered.status.converged:
            ended = 3 if strict else ended
            warn(f"{model}: not converged. {answered.status.remedy}")
        elif style is Format.UAI and not answered.status.exact:
            warn(f"{model}: {worth(answered)}; the uai format cannot express this")
        if lacking := rows_lacking(answered):
            warn(f"{model}: {lacking}")
        if len(models) == 1 and place()[0]:
            break  # only the first process writes
        with about(model, models):
            _write(answered, style, target, model if len(models) > 1 else None, time_seconds)
        if interrupted:
            break
    raise typer.Exit(ended)


def _write(
    answered: "Answer", style: Format, target: Path | None, model: Path | None, wait: float
) -> None:
    """Write or print an answer, under the name of its model where there are several."""
    from rdpgraph.cli.answers import as_text, plain, print_table
    from rdpgraph.io.text import write_text_atomically

    if style is Format.TABLE and target is None:
        console = plain(soft_wrap=not sys.stdout.isatty())
        if model is not None:
            console.print(f"{printable(str(model))}:")
        print_table(answered, console)
        return
    if style is Format.TABLE:
        console = plain(file=(lines := StringIO()), width=120)
        print_table(answered, console)
        text = lines.getvalue()
    else:
        text = as_text(answered, style)
    if target is None:
        sys.stdout.write(text)
    else:
        write_text_atomically(target, text, wait=wait)


@app.command("explain")
def explain_command(
    model: Model,
    evidence: Evidence = None,
    settings: Settings = None,
    do: Do = None,
    soft: Soft = None,
    memory_bytes: Memory = None,
    time_seconds: Time = "60s",  # pyright: ignore[reportArgumentType]
    limit: Limit = None,
    encoding: Encoding = None,
    style: Style = ParseFormat.TEXT,
    _json: Json = None,
) -> None:
    """Print the plan for a model, without running it."""
    from rdpgraph._core.progress_line import show_progress
    from rdpgraph.cli.answers import as_json
    from rdpgraph.cli.loading import GivenTexts
    from rdpgraph.cli.solving import ending
    from rdpgraph.infer import explain

    given = GivenTexts(settings, do, soft)
    with show_progress("planning", time_seconds), ending(time_seconds):
        graph, scheduler = _loaded_in_time(
            model, evidence, given, time_seconds, memory_bytes, limit=limit, encoding=encoding
        )
        plan = explain(graph, scheduler=scheduler)
    figures = plan.figures() | {"remedy": in_options(plan.remedy)}
    typer.echo(in_options(str(plan)) if style is ParseFormat.TEXT else as_json(figures))


@app.command("rank")
def rank_command(
    model: Model,
    target: Annotated[
        str, typer.Argument(metavar="NAME", help="The variable that you want to know.")
    ],
    evidence: Evidence = None,
    settings: Settings = None,
    do: Do = None,
    soft: Soft = None,
    query: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Rank only this test; repeatable."),
    ] = None,
    memory_bytes: Memory = None,
    time_seconds: Time = "60s",  # pyright: ignore[reportArgumentType]
    limit: Limit = None,
    encoding: Encoding = None,
    style: Style = ParseFormat.TEXT,
    _json: Json = None,
) -> None:
    """Rank tests: how much each other variable is expected to tell about one, in nats.

    The score of a test is its mutual information with NAME, given the evidence; variables that are
    observed are left out.
    """
    from rdpgraph._core.progress_line import show_progress
    from rdpgraph.cli.answers import print_ranking
    from rdpgraph.cli.loading import GivenTexts
    from rdpgraph.cli.solving import ending, posterior_of

    given = GivenTexts(settings, do, soft)
    with show_progress("solving", time_seconds), ending(time_seconds):
        graph, scheduler = _loaded_in_time(
            model, evidence, given, time_seconds, memory_bytes, limit=limit, encoding=encoding
        )
        print_ranking(posterior_of(graph, scheduler), target, list(query or ()), style)


def _loaded_in_time(
    model: Path, evidence: Path | None, given: "GivenTexts", seconds: float, memory: float | None,
    *, limit: float | None, encoding: str | None,
) -> "tuple[FactorGraph, Auto]":  # fmt: skip
    """Read a model. Returns it with the default scheduler, for the seconds that reading leaves."""
    from rdpgraph.cli.loading import load
    from rdpgraph.plan.clock import Allowance
    from rdpgraph.schedulers.auto import Auto

    allowance = Allowance(seconds)
    with allowance.spending():
        graph = load(
            model, evidence, given, limit=limit, wait=seconds, memory=memory, encoding=encoding
        )
    return graph, Auto(memory, allowance.left())


@app.command()
def convert(
    model: Model,
    target: Annotated[
        Path, typer.Argument(metavar="OUT", help="A name such as m.bif or m.xdsl.gz.")
    ],
    time_seconds: Whole = "10m",  # pyright: ignore[reportArgumentType]
    limit: Limit = None,
    encoding: Encoding = None,
    style: Report = ParseFormat.TEXT,
    _json: Json = None,
) -> None:
    """Read a model in one format and write it in another."""
    from rdpgraph.cli.answers import print_report
    from rdpgraph.cli.loading import checked_target, load
    from rdpgraph.cli.solving import ending
    from rdpgraph.io.files import text_of, write
    from rdpgraph.io.text import WAIT

    checked_target(target, model)
    text_of(target)  # checked before reading
    with ending(time_seconds):
        wait = min(WAIT, time_seconds)
        graph = load(model, limit=limit, wait=wait, encoding=encoding)
        write(graph, target)
    print_report(style, graph, target)


@app.command()
def draw(
    model: Model,
    output: Annotated[Path, typer.Option("--output", "-o", help="A .png, .svg or .pdf name.")],
    evidence: Evidence = None,
    settings: Settings = None,
    do: Do = None,
    soft: Soft = None,
    marginals: Annotated[  # noqa: FBT002
        bool,
        typer.Option(
            "--marginals/--no-marginals", help="Draw bars of marginals, if the model is small."
        ),
    ] = True,
    time_seconds: Whole = "10m",  # pyright: ignore[reportArgumentType]
    limit: Limit = None,
    encoding: Encoding = None,
    style: Report = ParseFormat.TEXT,
    _json: Json = None,
) -> None:
    """Draw a Bayesian network with its arrows, or the factor graph of any other model."""
    from rdpgraph._core.progress_line import show_progress
    from rdpgraph.cli.answers import print_report
    from rdpgraph.cli.loading import GivenTexts, checked_picture, load
    from rdpgraph.cli.solving import ending, posterior_of
    from rdpgraph.io.text import WAIT
    from rdpgraph.query.drawing import draw as draw_model
    from rdpgraph.schedulers.auto import Auto

    checked_picture(output, model, evidence)
    with show_progress("drawing"), ending(time_seconds):
        given = GivenTexts(settings, do, soft)
        wait = min(WAIT, time_seconds)
        graph = load(model, evidence, given, limit=limit, wait=wait, encoding=encoding)
        # Bars of more variables could not be read; they take half of the time at most.
        barred = marginals and graph.num_variables <= 40
        posterior = posterior_of(graph, Auto(seconds=0.5 * time_seconds)) if barred else None
        draw_model(posterior or graph, output)
    print_report(style, graph, output, marginals=barred)


@app.command("parse")
def parse_command(
    grammar: Annotated[
        Path, typer.Argument(metavar="GRAMMAR", help='Rules: 0.5 S -> NP VP, 1.0 N -> "dog".')
    ],
    sentences: Annotated[
        list[str], typer.Argument(metavar="SENTENCE", help="Words separated by blanks, in quotes.")
    ],
    task: Annotated[
        ParseTask, typer.Option(help="log Z, the best tree, the best spans, marginals, draws.")
    ] = ParseTask.VITERBI,
    count: Annotated[
        int | None,
        typer.Option(min=1, max=10**6, help="The number of draws, by default 1 (sample)."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of the draws (sample).")] = None,
    style: Style = ParseFormat.TEXT,
    _json: Json = None,
    output: Output = None,
    picture: Annotated[
        Path | None,
        typer.Option("--draw", metavar="FILE", help="Draw the first tree: .png, .svg or .pdf."),
    ] = None,
    limit: Limit = None,
    encoding: Encoding = None,
    memory_bytes: Memory = None,
    time_seconds: Whole = "10m",  # pyright: ignore[reportArgumentType]
) -> None:
    """Parse sentences by a weighted grammar."""
    # Contradictory options are refused before anything is read.
    if picture is not None and task in (ParseTask.LOGZ, ParseTask.MARGINALS):
        raise typer.BadParameter("--draw needs a task with trees: viterbi, mbr or sample")
    if count is not None and task is not ParseTask.SAMPLE:
        raise typer.BadParameter("--count is a number of draws and needs --task sample")
    from rdpgraph.cli.loading import checked_picture, checked_target
    from rdpgraph.cli.parse import answers, as_text, draw_tree, parsed
    from rdpgraph.cli.solving import ending, seeded
    from rdpgraph.io.grammar import MEMORY, read_grammar
    from rdpgraph.io.text import LIMIT, write_text_atomically

    # Targets are checked before the work, and written after it: a wrong name costs no time, and a
    # failure leaves no half of a file.
    checked_target(output, grammar)
    checked_picture(picture, grammar, output=output)
    generator = seeded(seed)
    draws, most = count or 1, int(limit or LIMIT)
    with ending(time_seconds):
        budget = memory_bytes or MEMORY
        rules = read_grammar(grammar, limit=most, memory_bytes=budget, encoding=encoding)
        parses = parsed(rules, sentences, task=task, draws=draws, memory_bytes=memory_bytes)
        rows = answers(parses, task, count=draws, generator=generator)
        text = as_text(rows, parses, style)
        if output is not None:
            write_text_atomically(output, text)
        if picture is not None:
            draw_tree(rows[0]["trees"][0]["tree"], picture)
    if output is None:
        sys.stdout.write(text)


app.command("fit")(fit_command)
app.command("sample")(sample_command)


def _print_version(asked: bool) -> None:  # noqa: FBT001
    if asked:
        typer.echo(f"rdpgraph {version('rdpgraph')}")
        from rdpgraph.recurrences.executor import LIBRARY  # loads torch, so after the first line

        typer.echo(f"Structures on the CPU: {LIBRARY.status}")
        raise typer.Exit


@app.callback()
def options(
    show_version: Annotated[  # noqa: FBT002
        bool,
        typer.Option(
            "--version",
            help="Print the version and what answers.",
            is_eager=True,
            callback=_print_version,
        ),
    ] = False,
) -> None:
    """Inference in discrete graphical models: exact, planned before it runs."""
    del show_version  # handled by its callback
