"""Factor graphs to and from networkx, and structures to it."""

import itertools
import math
from collections.abc import Hashable, Sequence
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor

from rdpgraph.errors import ModelError, UnsupportedError
from rdpgraph.interface.structure import Structure
from rdpgraph.io.tables import all_variables, refuse_evidence, require_graph
from rdpgraph.model.factor import Factor
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.potentials.potential import Potential
from rdpgraph.model.potentials.table import Table
from rdpgraph.model.variable import State, Variable

Node: TypeAlias = Hashable
Scoped: TypeAlias = tuple[tuple[Node, ...], Potential]
_MOST_SITES = 4_000  # of a readable picture
_NO_STATES = "needs an attribute `states`: how many states it has, or their names"


def from_networkx(graph: Any) -> FactorGraph:
    """The factor graph that a networkx graph describes, in one of two forms.

    Bipartite (a node has the attribute ``bipartite``): variable nodes have ``bipartite=0`` and
    ``states``; factor nodes have ``bipartite=1`` and ``potential``; each edge joins the two kinds
    and has ``slot``, the place of the variable in the factor (needless for a single variable).

    Pairwise (otherwise): every node is a variable with ``states`` and maybe a unary
    ``potential``; every edge has a ``potential`` whose rows are the states of one end and whose
    columns those of the other. Rows and columns are, in this order: those of the edge's attribute
    ``order=(u, v)``; in a directed graph those of the tail and the head; in an undirected one, as
    its edges have no orientation, those of the end that was added to the graph first and of the
    other. The attribute ``potential`` of the graph is a constant.

    ``states`` may be missing where a potential gives the size. Potentials are log-values (nats):
    tensors and arrays keep their type, lists become float64, `Potential` objects stay as they are.
    A node that is no string becomes the variable named ``str(node)``.

    Raises:
        ModelError: an attribute that is missing or does not fit, or two nodes of one name.

    Example:
        >>> import networkx
        >>> graph = networkx.Graph()
        >>> graph.add_edge("a", "b", potential=[[0.0, -1.0, -2.0], [-1.0, 0.0, -1.0]])
        >>> [variable.size for variable in from_networkx(graph).variables]
        [2, 3]
    """
    if not hasattr(graph, "nodes"):
        raise ModelError(f"from_networkx needs a networkx graph; got {type(graph).__name__}.")
    attributes: dict[Node, dict[str, Any]] = dict(graph.nodes(data=True))
    if any("bipartite" in data for data in attributes.values()):
        nodes, scoped = _bipartite(graph, attributes)
    else:
        nodes, scoped = _pairwise(graph, attributes)
    states: dict[Node, Any] = {node: attributes[node].get("states") for node in nodes}
    for scope, potential in scoped:
        if len(potential.shape) < len(scope):
            raise ModelError(
                f"Factor over {[str(node) for node in scope]} needs a potential with a dim per "
                f"variable; got shape {tuple(potential.shape)}."
            )
        for node, size in zip(scope, potential.slots(len(scope)), strict=True):
            if states[node] is None:
                states[node] = size
    variables = {node: _variable(node, states[node]) for node in nodes}
    names: dict[str, Node] = {}
    for node, variable in variables.items():
        if variable.name in names:
            raise ModelError(
                f"Nodes {names[variable.name]!r} and {node!r} would both be variable "
                f"{variable.name!r}; relabel one of them."
            )
        names[variable.name] = node
    factors = [Factor(tuple(variables[v] for v in scope), table) for scope, table in scoped]
    return FactorGraph(factors, variables=variables.values())


def to_networkx(
    graph: FactorGraph | Structure, *, bipartite: bool = True, configuration: Any = None
) -> Any:
    """A factor graph as a ``networkx.Graph`` that `from_networkx` reads back.

    A structure becomes a ``networkx.DiGraph`` of its sites, with attributes ``state`` and
    ``place``, and the edges of a configuration: neighbours, a constituent and its parts, a head
    and its dependents; of a batch the first item.

    Args:
        graph: a graph without evidence; batch dims stay in front of its tables. Or a structure.
        configuration: of a structure, as its `mode` and `sample` give it.
        bipartite: a node for each variable, by its name, and one for each factor,
            ``("factor", number)``; or else the pairwise form, in which the factors on one scope
            are added up and each edge has its ``order``.

    Raises:
        UnsupportedError: evidence, or a factor of three variables in the pairwise form.
    """
    import networkx

    if isinstance(graph, Structure):
        return structure_graph(graph, configuration)
    require_graph("to_networkx", graph)
    refuse_evidence(graph)
    result: Any = networkx.Graph()
    for variable in all_variables(graph):
        kind = {"bipartite": 0} if bipartite else {}
        result.add_node(variable.name, states=variable.states, **kind)
    for number, factor in enumerate(graph.factors()):
        names = [variable.name for variable in factor.variables]
        table = factor.potential.table(len(names))
        if bipartite:
            result.add_node(("factor", number), bipartite=1, potential=table)
            for slot, name in enumerate(names):
                result.add_edge(name, ("factor", number), slot=slot)
        else:
            _add_pairwise(result, names, table)
    return result


def _add_pairwise(result: Any, names: list[str], table: Tensor) -> None:
    if len(names) > 2:
        raise UnsupportedError(
            f"The pairwise form holds factors of at most 2 variables; one is over {names}. "
            "Use to_networkx(graph, bipartite=True)."
        )
    data: dict[str, Any]
    if len(names) == 2:
        if not result.has_edge(*names):
            result.add_edge(*names, order=tuple(names))
        data = result.edges[tuple(names)]
        table = table if data["order"] == tuple(names) else table.transpose(-1, -2)
    else:
        data = result.nodes[names[0]] if names else result.graph
    data["potential"] = data["potential"] + table if "potential" in data else table


def _bipartite(
    graph: Any, attributes: dict[Node, dict[str, Any]]
) -> tuple[list[Node], list[Scoped]]:
    for node, data in attributes.items():
        if data.get("bipartite") not in (0, 1):
            raise ModelError(
                f"Node {node!r} needs bipartite=0 (a variable) or 1 (a factor), as other nodes "
                f"have; got {data.get('bipartite')!r}."
            )
    slots: dict[Node, list[tuple[Any, Node]]] = {
        node: [] for node, data in attributes.items() if data["bipartite"] == 1
    }
    for left, right, data in graph.edges(data=True):
        if (left in slots) == (right in slots):
            raise ModelError(f"Edge {left!r} - {right!r} needs a variable and a factor as ends.")
        factor, variable = (left, right) if left in slots else (right, left)
        slots[factor].append((data.get("slot"), variable))
    scoped: list[Scoped] = []
    for factor, ends in slots.items():
        places = [slot for slot, _ in ends]
        if places != [None] and set(places) != set(range(len(ends))):
            raise ModelError(
                f"The edges of factor {factor!r} need an attribute `slot`, 0 to {len(ends) - 1}, "
                f"each once; got {places}."
            )
        scope = tuple(node for _, node in sorted(ends, key=lambda end: end[0] or 0))
        scoped.append((scope, _potential(f"Factor {factor!r}", attributes[factor])))
    return [node for node in attributes if node not in slots], scoped


def _pairwise(
    graph: Any, attributes: dict[Node, dict[str, Any]]
) -> tuple[list[Node], list[Scoped]]:
    rank = {node: place for place, node in enumerate(attributes)}
    scoped: list[Scoped] = []
    if "potential" in graph.graph:
        scoped.append(((), _potential("The graph", graph.graph)))
    for node, data in attributes.items():
        if data.get("potential") is not None:
            scoped.append(((node,), _potential(f"Node {node!r}", data)))
    for left, right, data in graph.edges(data=True):
        name = f"Edge {left!r} - {right!r}"
        if left == right:
            raise ModelError(f"{name} is a loop; give the node a unary `potential` instead.")
        given = data.get("order")
        if given is not None:
            order = cast("tuple[Node, ...]", tuple(given))
            if len(order) != 2 or set(order) != {left, right}:
                raise ModelError(f"{name} needs its two ends as `order`; got {given!r}.")
        elif graph.is_directed():
            order = (left, right)
        else:
            order = tuple(sorted((left, right), key=rank.__getitem__))
        scoped.append((order, _potential(name, data)))
    return list(attributes), scoped


def _potential(name: str, data: dict[str, Any]) -> Potential:
    given = data.get("potential")
    if given is None:
        raise ModelError(f"{name} needs an attribute `potential` (log-values).")
    if isinstance(given, Potential):
        return given
    try:
        if not isinstance(given, Tensor) and hasattr(given, "__array__"):
            given = torch.as_tensor(given)
        values = given if isinstance(given, Tensor) else torch.tensor(given, dtype=torch.float64)
        return Table(values if values.is_floating_point() else values.double())
    except (ModelError, TypeError, ValueError, RuntimeError) as error:
        raise ModelError(f"{name}: its `potential` is not a table of log-values: {error}") from None


def _variable(node: Node, states: Any) -> Variable:
    if states is None:
        raise ModelError(f"Node {node!r} {_NO_STATES}.")
    if isinstance(states, str) or not isinstance(states, Sequence):
        try:
            whole = math.nan if isinstance(states, str) else float(states)
        except (TypeError, ValueError):
            whole = math.nan
        if not whole.is_integer():
            raise ModelError(f"Node {node!r} {_NO_STATES}; got {states!r}.")
        return Variable(str(node), int(whole))
    return Variable(str(node), tuple(cast("Sequence[State]", states)))


def structure_graph(structure: Structure, configuration: Any = None) -> Any:
    """The sites of a structure as a ``networkx.DiGraph``, and how a configuration joins them.

    A node is the position of a site, a number or a tuple. Its attributes are ``place``, where it
    is drawn, and ``state``, that in the configuration, None where it is not used. Edges lead from
    site to site: along a sequence, from a constituent to its parts, from a head to its dependents.
    Without a configuration they join sites that the factors of a chain join.

    Args:
        structure: of a batch the first item.
        configuration: as `mode` and `sample` give it; of several the first.
    """
    import networkx

    batch = structure.batch_shape
    shape = tuple(structure.states_shape[len(batch) :])
    count = math.prod(shape)
    if count > _MOST_SITES:
        raise UnsupportedError(
            f"A picture of {count:,} sites is not readable; at most {_MOST_SITES:,} are drawn."
        )
    result: Any = networkx.DiGraph()
    sites = list(itertools.product(*map(range, shape)))
    names = dict(zip(sites, ((s[0] if len(s) == 1 else s) for s in sites), strict=True))
    states: list[int | None] = [None] * count
    if configuration is not None:
        given = structure.site_states(configuration).reshape(-1, count)[0].tolist()
        states = [state if state >= structure.least_use else None for state in given]
    for site, state in zip(sites, states, strict=True):
        if (place := structure.place(site)) is not None:
            result.add_node(names[site], state=state, place=place)
    used = {site: state for site, state in zip(sites, states, strict=True) if state is not None}
    if configuration is None and len(shape) == 1:
        pairs = _neighbours(structure, count)
    else:
        pairs = [(names[one], names[other]) for one, other in structure.joined(used)]
    result.add_edges_from(pairs)
    return result


def _neighbours(structure: Structure, count: int) -> list[tuple[int, int]]:
    """The pairs of sites that share a factor, where the graph has a variable for each site."""
    try:
        graph = structure.factor_graph()
    except UnsupportedError:
        return []
    scopes = [block.scopes.tolist() for block in graph.blocks if block.arity == 2]
    return (
        [tuple(pair) for pair in itertools.chain(*scopes)] if graph.num_variables == count else []
    )
