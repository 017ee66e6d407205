"""Goals of programs on torch: step by step, or cell by cell where places are data."""

from collections.abc import Mapping

from torch import Tensor

from rdpgraph.recurrences.interpreter import Run
from rdpgraph.recurrences.lists import fill_by_cells
from rdpgraph.recurrences.program import Program
from rdpgraph.recurrences.semirings import Semiring


def evaluate(
    program: Program, inputs: Mapping[str, Tensor], lengths: Mapping[str, Tensor | int],
    sizes: Mapping[str, int], semiring: Semiring,
) -> Tensor:  # fmt: skip
    """The goal of each item, (items,); `semiring.one` where its ends are before the first cells.

    Args:
        program: the recurrence.
        inputs: (items or 1, *dims) each; logs, or whole numbers inside of what they index.
        lengths: (items,) whole numbers, or one for all.
        sizes: of the inputs.
        semiring: log-sums, maxima or counts.
    """
    run = Run(program, inputs, lengths, sizes, semiring)
    fill(run)
    return run.goal()


def fill(run: Run) -> None:
    """Compute all tables of a run, as far as its goals need them."""
    if run.program.is_listed:
        fill_by_cells(run)
    else:
        run.fill()
