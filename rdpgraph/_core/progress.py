"""Progress of long work: callbacks that may end it, and a line that shows it."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic
from typing import Any

from rdpgraph._core.arguments import typed
from rdpgraph.errors import ModelError


@dataclass(frozen=True)
class Progress:
    """Progress of estimates, sweeps of pruning, training and rates, as given to a callback.

    Attributes:
        work: the work, in words.
        number: steps done.
        value: after them: the estimate of log Z, the mean score, the bound or log-likelihood; nats.
        seconds: since the start.
    """

    work: str
    number: int
    value: float
    seconds: float

    def __str__(self) -> str:
        return f"{self.work}: {self.number}, {self.value:.4f}"


def goes_on(progress: Callable[[Any], object] | None, step: object) -> bool:
    """Report a step; False where the callback raises StopIteration to end the work."""
    if not (progress is None or callable(progress)):
        raise ModelError(f"progress is a function of a step, or None; got {progress!r:.80}.")
    if progress is not None:
        try:
            progress(step)
        except StopIteration:
            return False
    return True


@contextmanager
@typed()
def show_progress(
    doing: str = "working", seconds: float | None = None
) -> Generator[Callable[[object], None]]:
    """A line with the last step and the time left, on a terminal or in a notebook.

    The line is on standard error, and gone afterwards. Where that is neither, nothing is shown.

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
    if not (console.is_terminal or console.is_jupyter):
        yield lambda _: None
        return
    until = None if seconds is None else monotonic() + seconds

    class Left(bars.ProgressColumn):
        """The seconds that are left of the budget."""

        def render(self, task: bars.Task) -> Text:
            left = "" if until is None else f"{max(until - monotonic(), 0.0):.0f} s left"
            return Text(left, style="dim")

    text = bars.TextColumn("{task.description} ...", markup=False)
    columns: list[Any] = [bars.SpinnerColumn(), text, Left()]
    with bars.Progress(*columns, console=console, transient=True) as shown:
        task = shown.add_task(doing)
        yield lambda step: shown.update(task, description=str(step))
