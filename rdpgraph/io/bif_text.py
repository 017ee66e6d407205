"""The BIF format of Bayesian networks: writing."""

import itertools
import re

from rdpgraph.errors import UnsupportedError
from rdpgraph.io.bif_tokens import PLAIN_NAME
from rdpgraph.io.tables import Conditional, all_variables, conditional_tables, values_of
from rdpgraph.io.text import PathLike, write_text_atomically
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.variable import Variable, names_of

_QUOTABLE = re.compile(r'[^"\x00-\x1f\x7f]*')


def write_bif(graph: FactorGraph, path: PathLike) -> None:
    """Write a Bayesian network in the BIF format; unnamed states are named "0", "1", ....

    Args:
        graph: an unbatched graph whose factors are P(x | parents), one per variable, x first in
            every scope (as `read_bif` gives them) or last in every one.
        path: the file, replaced in one step; gzipped if it ends in ``.gz``.

    Raises:
        UnsupportedError: another kind of graph, or a name that holds a quote or a line's end.
    """
    write_text_atomically(path, format_bif(graph))


def format_bif(graph: FactorGraph) -> str:
    """The text of a Bayesian network in the BIF format, which `write_bif` writes."""
    parts = ["network unknown {\n}"]
    for variable in all_variables(graph):
        states = ", ".join(_state_names(variable))
        parts.append(
            f"variable {_quoted(variable.name)} {{\n"
            f"  type discrete [ {variable.size} ] {{ {states} }};\n}}"
        )
    parts.extend(_probability(conditional) for conditional in conditional_tables(graph))
    return "\n".join(parts) + "\n"


def _probability(conditional: Conditional) -> str:
    scope = (conditional.child, *conditional.parents)
    values = values_of(scope, conditional.log_values, "BIF").reshape(conditional.child.size, -1)
    child, parents = _quoted(scope[0].name), ", ".join(_quoted(v.name) for v in scope[1:])
    rows = [", ".join(map(repr, row)) for row in values.T.tolist()]
    if not parents:
        return f"probability ( {child} ) {{\n  table {rows[0]};\n}}"
    labels = itertools.product(*(_state_names(parent) for parent in conditional.parents))
    lines = [f"  ({', '.join(label)}) {row};" for label, row in zip(labels, rows, strict=True)]
    return "\n".join([f"probability ( {child} | {parents} ) {{", *lines, "}"])


def _state_names(variable: Variable) -> list[str]:
    return [_quoted(str(state)) for state in names_of(variable.states)]


def _quoted(name: str) -> str:
    if PLAIN_NAME.fullmatch(name):
        return name
    if not _QUOTABLE.fullmatch(name):
        raise UnsupportedError(
            f"Name {name!r} holds a quote or a control character, which BIF cannot say. Rename it."
        )
    return f'"{name}"'
