"""The XMLBIF format of Bayesian networks."""

import math
import re
from xml.etree import ElementTree
from xml.sax.saxutils import escape

import torch

from rdpgraph.errors import ModelError, UnsupportedError
from rdpgraph.io.tables import all_variables, conditional_tables, graph_of, values_of
from rdpgraph.io.text import Bytes, decoded, fail, shown
from rdpgraph.model.conditional import cycle_of
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.variable import names_of

_NUMBERS = re.compile(r"[-+.0-9eE\s]*")
_MOST_SLOTS = 60
_HEAD = '<?xml version="1.0"?>\n<BIF VERSION="0.3">\n<NETWORK>\n<NAME>unknown</NAME>\n'


def parse_xmlbif(
    text: str | Bytes, *, source: str = "<text>", dtype: torch.dtype = torch.float64
) -> FactorGraph:
    """The network of an XMLBIF file's text, factors over (*parents, x); properties are ignored.

    Declarations of entities are refused.
    """
    text = text if isinstance(text, str) else decoded(text)
    if "<!ENTITY" in text:
        fail(source, "expected no declarations of entities; got some.")
    try:
        root = ElementTree.fromstring(text)
    except (ElementTree.ParseError, ValueError) as error:
        fail(source, f"expected XML; {str(error).splitlines()[0]:.200}.")
    network = root.find("NETWORK")
    if root.tag != "BIF" or network is None:
        fail(source, f"expected BIF with a NETWORK; got {shown(root.tag)}.")
    states: dict[str, tuple[str, ...]] = {}
    for variable in network.iter("VARIABLE"):
        (name,) = _words(source, variable, "NAME", 1) or ("",)
        outcomes = _words(source, variable, "OUTCOME")
        if name in states or not outcomes or len(set(outcomes)) < len(outcomes):
            fail(source, f"expected variables that differ, of states that do; got {shown(name)}.")
        states[name] = outcomes
    scopes: dict[str, tuple[str, ...]] = {}
    tables: list[tuple[tuple[str, ...], torch.Tensor]] = []
    for given in network.iter("DEFINITION"):
        (child,) = _words(source, given, "FOR", 1)
        scope = (*_words(source, given, "GIVEN"), child)
        strange = [name for name in scope if name not in states]
        if strange or len(set(scope)) < len(scope) or child in scopes or len(scope) > _MOST_SLOTS:
            fail(
                source,
                f"expected one DEFINITION of each variable, given up to {_MOST_SLOTS - 1} others; "
                f"got {shown(strange[0] if strange else child)}.",
            )
        scopes[child] = scope[:-1]
        shape = [len(states[name]) for name in scope]
        values = _values(source, given, child)
        if len(values) != math.prod(shape):
            fail(
                source,
                f"expected {math.prod(shape)} values of {shown(child)}; got {len(values)}.",
            )
        tables.append((scope, torch.tensor(values, dtype=torch.float64).reshape(shape)))
    if not states or len(scopes) < len(states):
        lacking = next((name for name in states if name not in scopes), "no variable")
        fail(source, f"expected a DEFINITION for each variable; {shown(lacking)} has none.")
    cycle = cycle_of(scopes)
    if cycle is not None:
        path = " - ".join(map(repr, cycle[:8]))
        fail(source, f"expected parents without a cycle; got {path}.")
    try:
        graph = graph_of(states, ((scope, values.to(dtype)) for scope, values in tables))
    except ModelError as error:
        fail(source, str(error))
    return graph


def _words(
    source: str, element: ElementTree.Element, tag: str, count: int | None = None
) -> tuple[str, ...]:
    words = tuple((each.text or "").strip() for each in element.findall(tag))
    if "" in words or (count is not None and len(words) != count):
        fail(source, f"expected {element.tag} with {count or 'every'} {tag}; got {words!r:.80}.")
    return words


def _values(source: str, given: ElementTree.Element, child: str) -> list[float]:
    (table,) = _words(source, given, "TABLE", 1)
    values: list[float] = []
    if _NUMBERS.fullmatch(table):
        try:
            values = [float(word) for word in table.split()]
        except ValueError:
            values = []
    if not values or not all(0 <= value < math.inf for value in values):
        fail(source, f"expected numbers >= 0 as TABLE of {shown(child)}; got {shown(table)}.")
    return values


def format_xmlbif(graph: FactorGraph) -> str:
    """The text of a Bayesian network in the XMLBIF format; unnamed states are "0", "1", ...."""
    parts = [_HEAD]
    for variable in all_variables(graph):
        outcomes = [
            f"<OUTCOME>{_escaped(str(state))}</OUTCOME>" for state in names_of(variable.states)
        ]
        parts.append(
            f'<VARIABLE TYPE="nature"><NAME>{_escaped(variable.name)}</NAME>'
            f"{''.join(outcomes)}</VARIABLE>\n"
        )
    for each in conditional_tables(graph):
        scope = (each.child, *each.parents)
        values = values_of(scope, each.log_values, "XMLBIF").reshape(each.child.size, -1).T
        given = "".join(f"<GIVEN>{_escaped(parent.name)}</GIVEN>" for parent in each.parents)
        parts.append(
            f"<DEFINITION><FOR>{_escaped(each.child.name)}</FOR>{given}"
            f"<TABLE>{' '.join(map(repr, values.ravel().tolist()))}</TABLE></DEFINITION>\n"
        )
    return "".join([*parts, "</NETWORK>\n</BIF>\n"])


def _escaped(name: str) -> str:
    if (
        not name
        or name != name.strip()
        or not all(c >= " " and c not in "\x7f\ufffe\uffff\r" for c in name)
    ):
        raise UnsupportedError(
            f"Name {name!r:.80} is blank at an end or holds a control character, which XMLBIF "
            "cannot say. Rename it."
        )
    return escape(name)
