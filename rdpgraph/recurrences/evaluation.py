"""Goals of programs on torch: step by step, or cell by cell where places are data."""

from collections.abc import Mapping

from torch import Tensor

from rdpgraph._core.shards import LocalPart
from rdpgraph.errors import UnsupportedError
from rdpgraph.recurrences.interpreter import Run
from rdpgraph.recurrences.lists import fill_by_cells
from rdpgraph.recurrences.program import Program
from rdpgraph.recurrences.semirings import Semiring


def evaluate(
    program: Program, inputs: Mapping[str, Tensor], lengths: Mapping[str, Tensor | int],
    sizes: Mapping[str, int], semiring: Semiring, parts: Mapping[str, LocalPart] | None = None,
) -> Tensor:  # fmt: skip
    """The goal of each item, (items,); `semiring.one` where its ends are before the first cells.

    Args:
        program: the recurrence.
        inputs: (items or 1, *dims) each; logs, or whole numbers inside of what they index.
        lengths: (items,) whole numbers, or one for all.
        sizes: of the inputs.
        semiring: log-sums, maxima or counts.
        parts: of inputs that are split between processes, each of which has some labels.
    """
    if parts and program.is_listed:
        raise UnsupportedError(
            f"{program.name} reads tables at places that are data, for which no input may be split "
            f"between processes; got a DTensor of {next(iter(parts))}: take its full_tensor()."
        )
    run = Run(program, inputs, lengths, sizes, semiring, parts or {})
    fill(run)
    return run.goal()


def fill(run: Run) -> None:
    """Compute all tables of a run, as far as its goals need them."""
    if run.program.is_listed:
        fill_by_cells(run)
    else:
        run.fill()
