"""A line that shows the progress of long work."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from time import monotonic
from typing import Any

from rdpgraph._core import tuning
from rdpgraph._core.arguments import typed


@contextmanager
@typed()
def show_progress(
    doing: str = "working", seconds: float | None = None
) -> Generator[Callable[[object], None]]:
    """Show the last step, its age and the time left in a line, on a terminal or in a notebook.

    The line is written to standard error and removed at the end. Where standard error is neither a
    terminal nor a notebook, nothing is shown.

    Args:
        doing: the text until the first step.
        seconds: the budget, for the time left; None: none is shown.

    Yields:
        A function of a step, or of a text, for any ``progress=``.

    Example:
        >>> import torch
        >>> import rdpgraph as rg
        >>> field = rg.VariableArray("x", (20, 20), 2)
        >>> tie = rg.Table(torch.eye(2))
        >>> graph = rg.FactorGraph(
        ...     [rg.FactorBlock((field[1:], field[:-1]), tie),
        ...      rg.FactorBlock((field[:, 1:], field[:, :-1]), tie)])
        >>> with rg.answers.show_progress("messages") as show:
        ...     posterior = rg.infer(graph, rg.Loopy(progress=show))
    """
    from rich import progress as bars
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True)
    # Redirected output is left alone: no control sequences reach a file.
    if not (console.is_terminal or console.is_jupyter):
        yield lambda _: None
        return
    last = monotonic()
    until = None if seconds is None else last + seconds

    class Left(bars.ProgressColumn):
        """The seconds since the last step, if it is old, and those left of the budget."""

        def render(self, task: bars.Task) -> Text:
            now = monotonic()
            parts = [f"for {now - last:.0f} s"] if now - last > tuning.QUIET_SECONDS else []
            if until is not None:
                parts.append(f"{max(until - now, 0.0):.0f} s left")
            return Text(", ".join(parts), style="dim")

    # A step is plain text: brackets in names are no markup of rich.
    text = bars.TextColumn("{task.description} ...", markup=False)
    columns: list[Any] = [bars.SpinnerColumn(), text, Left()]
    with bars.Progress(*columns, console=console, transient=True) as shown:
        task = shown.add_task(doing)

        def show(step: object) -> None:
            nonlocal last
            last = monotonic()
            shown.update(task, description=str(step))

        yield show
