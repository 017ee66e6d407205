"""Goals of programs on torch: step by step, or cell by cell where places are data."""

from collections.abc import Mapping

from torch import Tensor

from rdpgraph._core.shards import LocalPart
from rdpgraph.errors import UnsupportedError
from rdpgraph.recurrences.interpreter import Links, Run
from rdpgraph.recurrences.lists import ListedRun
from rdpgraph.recurrences.program import Program
from rdpgraph.recurrences.semirings import Semiring


def run_of(
    program: Program, inputs: Mapping[str, Tensor], lengths: Mapping[str, Tensor | int],
    sizes: Mapping[str, int], semiring: Semiring, parts: Mapping[str, LocalPart] | None = None,
    links: Links | None = None,
) -> Run:  # fmt: skip
    """All tables of a program, as far as its goals need them; arguments are those of `Run`."""
    kind = ListedRun if program.is_listed else Run
    run = kind(program, inputs, lengths, sizes, semiring, parts, links)
    run.fill()
    return run


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
    return run_of(program, inputs, lengths, sizes, semiring, parts).goal()
