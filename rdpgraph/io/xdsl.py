"""The XDSL format of GeNIe and SMILE: Bayesian networks."""

from graphlib import TopologicalSorter
from xml.etree import ElementTree
from xml.sax.saxutils import quoteattr

import torch

from rdpgraph.errors import UnsupportedError
from rdpgraph.io.tables import conditional_tables, values_of
from rdpgraph.io.text import Bytes, fail, shown
from rdpgraph.io.tokens import MOST_BY_DEFAULT
from rdpgraph.io.xmlbif import Definition, network_of, numbers_of, xml_root
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.variable import names_of

_HEAD = '<?xml version="1.0" encoding="UTF-8"?>\n<smile version="1.0" id="network">\n<nodes>\n'


def parse_xdsl(
    text: str | Bytes, *, source: str = "<text>", dtype: torch.dtype = torch.float64
) -> FactorGraph:
    """The network of an XDSL file's text, factors over (*parents, x).

    Nodes are ``cpt`` or ``deterministic``; decisions, noisy gates and dynamic networks are refused,
    and pictures, properties and cases passed over.
    """
    root = xml_root(text, source, "smile")
    nodes = root.find("nodes")
    if nodes is None or len(root.findall("nodes")) > 1 or root.find("dynamic") is not None:
        fail(source, "expected smile with one list of nodes, and nothing dynamic; got another.")
    variables: list[tuple[str, tuple[str, ...]]] = []
    definitions: list[Definition] = []
    cells = 0
    for node in nodes:
        name, states = _id(source, node), tuple(_id(source, each) for each in node.iter("state"))
        parents = tuple(_text(source, node, "parents", name).split())
        variables.append((name, states))
        if node.tag == "cpt":
            values = numbers_of(source, _text(source, node, "probabilities", name), name)
        elif node.tag == "deterministic":
            results = _text(source, node, "resultingstates", name).split()
            cells += len(results) * len(states)
            if cells > MOST_BY_DEFAULT or not set(results) <= set(states):
                fail(
                    source,
                    f"expected resulting states of {shown(name)} that it has, and tables of up to "
                    f"{MOST_BY_DEFAULT} entries; got another.",
                )
            values = [float(state == result) for result in results for state in states]
        else:
            fail(
                source,
                f"expected nodes that are cpt or deterministic; {shown(name)} is "
                f"{shown(node.tag)}. Change its type to General in GeNIe.",
            )
        definitions.append((name, parents, values))
    return network_of(source, variables, definitions, dtype)


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
    every = {each.child: each for each in conditional_tables(graph)}
    place = {variable: at for at, variable in enumerate(every)}
    if any(place[parent] > place[v] for v in every for parent in every[v].parents):
        parents_of = {variable: each.parents for variable, each in every.items()}
        every = {v: every[v] for v in TopologicalSorter(parents_of).static_order()}
    parts = [_HEAD]
    for child, each in every.items():
        values = values_of((child, *each.parents), each.log_values, "XDSL")
        named = not isinstance(child.states, int)
        states = [str(s) if named else f"State{s}" for s in names_of(child.states)]
        parts.append(f"<cpt id={_quoted(child.name)}>\n")
        parts += [f"<state id={_quoted(state)}/>\n" for state in states]
        if each.parents:
            parents = " ".join(_quoted(parent.name)[1:-1] for parent in each.parents)
            parts.append(f"<parents>{parents}</parents>\n")
        numbers = " ".join(map(repr, values.reshape(child.size, -1).T.ravel().tolist()))
        parts.append(f"<probabilities>{numbers}</probabilities>\n</cpt>\n")
    parts.append('</nodes>\n<extensions>\n<genie version="1.0" app="rdpgraph" name="network">\n')
    for name in (_quoted(child.name) for child in every):  # pyAgrum asks for this part
        parts.append(f"<node id={name}><name>{name[1:-1]}</name></node>\n")
    return "".join([*parts, "</genie>\n</extensions>\n</smile>\n"])


def _quoted(name: str) -> str:
    if name.split() != [name] or not name.isprintable():
        raise UnsupportedError(f"Name {name!r:.80} is no single word, which XDSL needs. Rename it.")
    return quoteattr(name)
