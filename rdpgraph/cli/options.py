"""Types and parsers of the options, without torch."""

import math
import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

_BYTES = {"": 1, "b": 1, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_BINARY = {"k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_SECONDS = {"ms": 1e-3, "": 1, "s": 1, "m": 60, "min": 60, "h": 3600}
_MOST_BYTES = 2.0**62  # an int of 64 bits
_LEAST_BARE = 2**20  # bytes; a smaller number lacks its unit
_MOST_SECONDS = 1e9  # thirty years


# Questions about a model, and formats of the answers.
Task = StrEnum("Task", {"PR": "PR", "MAR": "MAR", "MAP": "MAP", "MMAP": "MMAP"})
Format = StrEnum("Format", ["TABLE", "UAI", "JSON"])
# Questions about sentences; formats of their answers, of plans and of reports.
ParseTask = StrEnum("ParseTask", ["LOGZ", "VITERBI", "MBR", "MARGINALS", "SAMPLE"])
ParseFormat = StrEnum("ParseFormat", ["TEXT", "JSON"])

Method = StrEnum("Method", ["AUTO", "EXACT", "LOOPY", "JOIN"])
Device = StrEnum("Device", ["CPU", "CUDA"])
EstimatorName = StrEnum("EstimatorName", ["EXACT", "RANDOMIZED"])


class ProposalName(StrEnum):
    """Proposals of likely states."""

    DEFAULT = "default"
    UNIFORM = "uniform"
    LOCAL = "local"
    GLOBAL = "global"
    LOCAL_GLOBAL = "local-global"
    LANDMARK = "landmark"
    PILOT = "pilot"


def memory(text: str) -> float:
    """Bytes of ``4GB``, ``512MiB``, ``1e9``; a number without a unit is a MiB at least."""
    match = re.fullmatch(r"\s*([0-9.]+(?:e[0-9]+)?)\s*([kmgt]?)(i?)b?\s*", text, re.IGNORECASE)
    unit = match[2].lower() if match else ""
    factor = _BINARY[unit] if match and match[3] and unit else _BYTES[unit]
    amount = _amount(text, match, factor, _MOST_BYTES, "an amount such as 4GB or 512MiB")
    if amount < _LEAST_BARE and not text.strip()[-1].isalpha():
        raise typer.BadParameter(
            f"{text!r} has no unit and would be {amount:g} bytes; expected an amount such as 4GB "
            "or 512MiB (or 4B for bytes)"
        )
    return amount


def seconds(text: str) -> float:
    """Read a time such as ``60s``, ``2m``, ``500ms`` or ``60``, in seconds."""
    match = re.fullmatch(r"\s*([0-9.]+(?:e[0-9]+)?)\s*(ms|s|min|m|h|)\s*", text, re.IGNORECASE)
    factor = _SECONDS[match[2].lower()] if match else 1.0
    return _amount(text, match, factor, _MOST_SECONDS, "a time such as 60s or 2m")


def size(text: str) -> int | float:
    """A number of states, ``100``, or a share of them: ``10%``, ``0.1``."""
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*(%?)\s*", text, re.ASCII)
    if match is None or len(match[1]) > 18:
        raise typer.BadParameter(f"expected a number of states or a share like 10%; got {text!r}")
    if not match[2] and match[1].isdigit():
        return int(match[1])
    return float(match[1]) / (100 if match[2] else 1)


def _amount(
    text: str, match: re.Match[str] | None, factor: float, most: float, expected: str
) -> float:
    try:
        value = float(match[1]) * factor if match else math.nan
    except ValueError:
        value = math.nan
    if not 0 < value <= most:
        raise typer.BadParameter(f"expected {expected}, at most {most:.3g}; got {text!r}")
    return value


Model = Annotated[
    Path, typer.Argument(metavar="MODEL", help="A .uai, .bif, .xdsl, .wcsp, ... file, or its .gz.")
]
Evidence = Annotated[
    Path | None,
    typer.Option(
        "--evidence",
        help="A UAI evidence file, or a .csv file with a column for each observed variable.",
    ),
]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="NAME=STATE", help="Evidence; repeatable.")
]
Do = Annotated[
    list[str] | None,
    typer.Option("--do", metavar="NAME=STATE", help="Interventions; repeatable."),
]
Soft = Annotated[
    list[str] | None,
    typer.Option(
        "--soft",
        metavar="NAME=STATE:WEIGHT,...",
        help="Soft evidence, a likelihood of each state; repeatable.",
    ),
]
Memory = Annotated[
    float | None,
    typer.Option("--memory", parser=memory, metavar="4GB", help="Budget for the tables."),
]
Time = Annotated[
    float,
    typer.Option(
        "--time", parser=seconds, metavar="60s", help="Budget for the run, reading included."
    ),
]
Whole = Annotated[
    float, typer.Option("--time", parser=seconds, metavar="10m", help="Hard limit on the time.")
]
Limit = Annotated[
    float | None,
    typer.Option(
        "--limit", parser=memory, metavar="2GiB", help="Limit on the text read from a file."
    ),
]
Encoding = Annotated[
    str | None,
    typer.Option(
        "--encoding", metavar="NAME", help="Encoding of the files read, where they name none."
    ),
]
Style = Annotated[ParseFormat, typer.Option("--format", help="How to write it.")]

Report = Annotated[
    ParseFormat, typer.Option("--format", help="What to print: nothing, or what was written.")
]


def _as_json(context: typer.Context, asked: bool | None) -> None:  # noqa: FBT001
    if asked:
        context.default_map = {"style": "json"}


Json = Annotated[
    bool | None,
    typer.Option(
        "--json", help="The same as --format json.", is_eager=True, expose_value=False,
        callback=_as_json,
    ),
]  # fmt: skip
Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="The file to write, atomically, instead of printing."),
]
