"""The XMLBIF format of Bayesian networks, and XDSL, that of GeNIe and SMILE."""

import math
from collections.abc import Iterable, Sequence
from functools import partial
from graphlib import TopologicalSorter
from typing import NoReturn
from xml.etree import ElementTree
from xml.sax.saxutils import escape, quoteattr

import torch

from rdpgraph._core import tuning
from rdpgraph.errors import ModelError, UnsupportedError
from rdpgraph.io.tables import all_variables, conditional_tables, graph_of, values_of
from rdpgraph.io.text import Bytes, decoded, fail, shown
from rdpgraph.io.tokens import MOST_BY_DEFAULT, non_negative
from rdpgraph.model.block import no_factors
from rdpgraph.model.conditional import SumsOff, cycle_of
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.variable import names_of

Definition = tuple[str, tuple[str, ...], Sequence[float]]
"""A variable, its parents, and values over (*parents, variable)."""

_DECISIONS = ("decision", "utility", "mau")
_HEAD = '<?xml version="1.0"?>\n<BIF VERSION="0.3">\n<NETWORK>\n<NAME>unknown</NAME>\n'


def parse_xmlbif(
    text: str | Bytes, *, source: str = "<text>", dtype: torch.dtype = torch.float64
) -> FactorGraph:
    """The network of an XMLBIF file's text, factors over (*parents, x); properties are ignored.

    Decisions, utilities and declarations of entities are refused.
    """
    networks = xml_root(text, source, "BIF").findall("NETWORK")
    if len(networks) != 1:
        fail(source, f"expected BIF with one NETWORK; got {len(networks) or 'none'}.")
    network = networks[0]
    variables: list[tuple[str, tuple[str, ...]]] = []
    for each in network.iter("VARIABLE"):
        name = _words(source, each, "NAME", 1)[0]
        kind = each.get("TYPE", "nature").strip().lower()
        if kind in _DECISIONS:
            _refuse_decision(source, name, kind, 'a VARIABLE of TYPE "nature"')
        variables.append((name, _words(source, each, "OUTCOME")))
    definitions: list[Definition] = []
    for given in network.iter("DEFINITION"):
        (child,), (table,) = (_words(source, given, tag, 1) for tag in ("FOR", "TABLE"))
        parents = _words(source, given, "GIVEN")
        definitions.append((child, parents, numbers_of(source, table, child)))
    return network_of(source, variables, definitions, dtype)


def _refuse_decision(source: str, name: str, kind: str, chance: str) -> NoReturn:
    """Raise an error about a decision or a utility, which is no random variable."""
    way = (
        f"make it {chance} with a table, such as a uniform one, and set it by --do or `do`"
        if kind == "decision"
        else "leave it out, and take expectations of it under the marginals"
    )
    fail(source, f"expected nodes of chance only; {shown(name)} is a {kind} node: {way}.")


def xml_root(text: str | Bytes, source: str, tag: str) -> ElementTree.Element:
    """The root of an XML text with this tag; refuses declarations of entities."""
    text = decoded(text)
    if "<!ENTITY" in text:
        fail(
            source, "expected no <!ENTITY> declarations; got one: write the text out in its place."
        )
    try:
        root = ElementTree.fromstring(text)
    except (ElementTree.ParseError, ValueError) as error:
        fail(source, f"expected XML; {str(error).splitlines()[0]:.200}.")
    if root.tag != tag:
        fail(source, f"expected {tag}; got {shown(root.tag)}.")
    return root


def numbers_of(source: str, text: str, child: str) -> list[float]:
    """The numbers of a table; refuses other words, and what is no finite number >= 0."""
    values = non_negative([word.encode() for word in text.split()])
    if values is None or not len(values):
        fail(source, f"expected numbers >= 0 as table of {shown(child)}; got {shown(text)}.")
    return values.tolist()


def network_of(
    source: str,
    variables: Iterable[tuple[str, tuple[str, ...]]],
    definitions: Iterable[Definition],
    dtype: torch.dtype,
) -> FactorGraph:
    """The network of variables with states, and of a table over (*parents, child) for each."""
    states: dict[str, tuple[str, ...]] = {}
    for name, outcomes in variables:
        # The states of each variable.
        if name in states or not outcomes or len(set(outcomes)) < len(outcomes):
            fail(
                source,
                f"expected distinct variables with one or more distinct states; got {shown(name)}.",
            )
        states[name] = outcomes
    scopes: dict[str, tuple[str, ...]] = {}
    tables: list[tuple[tuple[str, ...], torch.Tensor]] = []
    off = SumsOff()
    for child, parents, values in definitions:
        # One table for each variable, of as many values as its states and its parents' make.
        scope = (*parents, child)
        strange = [name for name in scope if name not in states]
        most = tuning.MOST_DIMS
        if strange or len(set(scope)) < len(scope) or child in scopes or len(scope) > most:
            fail(
                source,
                f"expected one table of each variable, given up to {most - 1} others; "
                f"got {shown(strange[0] if strange else child)}.",
            )
        scopes[child] = parents
        shape = [len(states[name]) for name in scope]
        if len(values) != math.prod(shape):
            fail(
                source, f"expected {math.prod(shape)} values of {shown(child)}; got {len(values)}."
            )
        table = torch.tensor(values, dtype=torch.float64).reshape(shape)
        off.add([len(tables)], table.sum(-1).reshape(1, -1).numpy())
        tables.append((scope, table))
    # All variables have one, and no variable is its own ancestor.
    if len(scopes) < len(states):
        lacking = next(name for name in states if name not in scopes)
        fail(source, f"expected a table for each variable; {shown(lacking)} has none.")
    cycle = cycle_of(scopes)
    if cycle is not None:
        path = " - ".join(map(repr, cycle[:8]))
        fail(source, f"expected parents without a cycle; got {path}.")
    off.warn(source, list(scopes).__getitem__)
    try:
        graph = graph_of(states, ((scope, values.to(dtype)) for scope, values in tables))
    except ModelError as error:
        fail(source, str(error))
    return graph if tables else FactorGraph.from_blocks(graph.domain, [no_factors(dtype)])


def _words(
    source: str, element: ElementTree.Element, tag: str, count: int | None = None
) -> tuple[str, ...]:
    words = tuple((each.text or "").strip() for each in element.findall(tag))
    if "" in words or (count is not None and len(words) != count):
        fail(source, f"expected {element.tag} with {count or 'every'} {tag}; got {words!r:.80}.")
    return words


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
    for scope, log_values in conditional_tables(graph):
        values = values_of(scope, log_values, "XMLBIF")
        *above, child = (_escaped(variable.name) for variable in scope)
        given = "".join(f"<GIVEN>{parent}</GIVEN>" for parent in above)
        parts.append(
            f"<DEFINITION><FOR>{child}</FOR>{given}"
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


_XDSL_HEAD = '<?xml version="1.0" encoding="UTF-8"?>\n<smile version="1.0" id="network">\n<nodes>\n'


def parse_xdsl(
    text: str | Bytes, *, source: str = "<text>", dtype: torch.dtype = torch.float64
) -> FactorGraph:
    """The network of an XDSL file's text, factors over (*parents, x).

    Nodes are ``cpt``, ``deterministic`` or ``noisymax``, whose tables are written out; decisions,
    utilities, other noisy gates and dynamic networks are refused, and pictures, properties and
    cases passed over.
    """
    root = xml_root(text, source, "smile")
    nodes = root.find("nodes")
    if nodes is None or len(root.findall("nodes")) > 1 or root.find("dynamic") is not None:
        fail(
            source,
            "expected <smile> with one <nodes> element and no <dynamic> element; got another "
            "number of them.",
        )
    states = {
        _id(source, node): tuple(_id(source, s) for s in node.iter("state")) for node in nodes
    }
    variables = [(name, states[name]) for name in map(partial(_id, source), nodes)]
    definitions: list[Definition] = []
    cells = 0
    for node in nodes:
        name = _id(source, node)
        parents = tuple(_text(source, node, "parents", name).split())
        if node.tag in _DECISIONS:
            _refuse_decision(source, name, node.tag, "a General node")
        if node.tag == "cpt":
            values = numbers_of(source, _text(source, node, "probabilities", name), name)
            definitions.append((name, parents, values))
            continue
        # The other kinds stand for tables that are much longer than their text.
        sizes = [len(states.get(one, ())) for one in (*parents, name)]
        if 0 in sizes:  # an unknown parent, or no state, which the network refuses
            definitions.append((name, parents, ()))
            continue
        cells += math.prod(sizes)
        if cells > MOST_BY_DEFAULT:
            fail(
                source,
                f"expected functions and gates that stand for tables of up to {MOST_BY_DEFAULT} "
                f"entries in all; got {cells:,} with {shown(name)}. Give it fewer parents.",
            )
        if node.tag == "deterministic":
            results = _text(source, node, "resultingstates", name).split()
            if not set(results) <= set(states[name]):
                fail(source, f"expected resulting states of {shown(name)} that it has; got others.")
            values = [float(state == result) for result in results for state in states[name]]
        elif node.tag == "noisymax":
            values = _noisy_max(source, node, name, sizes)
        else:
            fail(
                source,
                f"expected nodes that are cpt, deterministic or noisymax; {shown(name)} is "
                f"{shown(node.tag)}. Change its type to General in GeNIe.",
            )
        definitions.append((name, parents, values))
    return network_of(source, variables, definitions, dtype)


def _noisy_max(
    source: str, node: ElementTree.Element, name: str, sizes: Sequence[int]
) -> Sequence[float]:
    """The table (*parents, states) of a noisy-MAX node: the strongest state of all causes is seen.

    Each parent causes a state by itself, and a leak does. States are listed from the strongest to
    the weakest, so that the cause of the lowest index decides. ``parameters`` holds a distribution
    over the states for each state of each parent, in the order of ``strengths`` (from the
    strongest, the natural order if there are none), and that of the leak at the end. The weakest
    state of a parent causes the weakest state.
    """
    *parents, size = sizes
    rows = sum(parents) + 1
    given = numbers_of(source, _text(source, node, "parameters", name), name)
    words = _text(source, node, "strengths", name).split()
    order = words or [str(state) for count in parents for state in range(count)]
    if len(given) != rows * size or len(order) != rows - 1:
        fail(
            source,
            f"expected {rows * size} parameters of noisymax {shown(name)}, a distribution for each "
            f"state of its parents and one of the leak, and {rows - 1} strengths; got "
            f"{len(given)} and {len(order)}.",
        )
    shares = torch.tensor(given, dtype=torch.float64).reshape(rows, size)
    table, at = shares[-1], 0
    for place, count in enumerate(parents):
        part, at = shares[at : at + count], at + count
        strengths = order[at - count : at]
        if sorted(strengths) != sorted(map(str, range(count))):
            fail(
                source,
                f"expected strengths of noisymax {shown(name)} that order the {count} states of "
                f"parent {place}; got {shown(' '.join(strengths))}.",
            )
        if bool((part[-1, :-1] > 0).any()):
            fail(
                source,
                f"expected the weakest state of parent {place} of noisymax {shown(name)} to give "
                "its last state probability one.",
            )
        by_state = torch.empty_like(part)
        by_state[torch.tensor([int(state) for state in strengths])] = part
        # P(min(A, B) = j) = P(A = j) P(B >= j) + P(A > j) P(B = j), for indices A and B.
        weaker = table.flip(-1).cumsum(-1).flip(-1)[..., 1:]
        weaker = torch.nn.functional.pad(weaker, (0, 1)).unsqueeze(-2)
        at_most = by_state.flip(-1).cumsum(-1).flip(-1)
        table = table.unsqueeze(-2) * at_most + weaker * by_state
    return table.reshape(-1).tolist()


def _id(source: str, element: ElementTree.Element) -> str:
    name = element.get("id", "").strip()
    if not name or len(name.split()) > 1:
        fail(source, f"expected {shown(element.tag)} with an id of one word; got {shown(name)}.")
    return name


def _text(source: str, node: ElementTree.Element, tag: str, name: str) -> str:
    parts = node.findall(tag)
    if len(parts) > 1:
        fail(source, f"expected {tag} of {shown(name)} once; got {len(parts)} times.")
    return (parts[0].text or "") if parts else ""


def format_xdsl(graph: FactorGraph) -> str:
    """The text of a Bayesian network in the XDSL format, parents before their children.

    Unnamed states are "State0", "State1", ..., as in GeNIe.
    """
    every = {scope[-1]: (scope, log_values) for scope, log_values in conditional_tables(graph)}
    place = {variable: at for at, variable in enumerate(every)}
    if any(place[parent] > place[child] for child in every for parent in every[child][0]):
        parents_of = {child: scope[:-1] for child, (scope, _) in every.items()}
        every = {child: every[child] for child in TopologicalSorter(parents_of).static_order()}
    parts = [_XDSL_HEAD]
    for child, (scope, log_values) in every.items():
        values = values_of(scope, log_values, "XDSL")
        named = not isinstance(child.states, int)
        states = [str(s) if named else f"State{s}" for s in names_of(child.states)]
        parts.append(f"<cpt id={_quoted(child.name)}>\n")
        parts += [f"<state id={_quoted(state)}/>\n" for state in states]
        if len(scope) > 1:
            parents = " ".join(_quoted(parent.name)[1:-1] for parent in scope[:-1])
            parts.append(f"<parents>{parents}</parents>\n")
        numbers = " ".join(map(repr, values.ravel().tolist()))
        parts.append(f"<probabilities>{numbers}</probabilities>\n</cpt>\n")
    parts.append('</nodes>\n<extensions>\n<genie version="1.0" app="rdpgraph" name="network">\n')
    for name in (_quoted(child.name) for child in every):  # pyAgrum asks for this part
        parts.append(f"<node id={name}><name>{name[1:-1]}</name></node>\n")
    return "".join([*parts, "</genie>\n</extensions>\n</smile>\n"])


def _quoted(name: str) -> str:
    if name.split() != [name] or not name.isprintable():
        raise UnsupportedError(f"Name {name!r:.80} is no single word, which XDSL needs. Rename it.")
    return quoteattr(name)
