"""Factor graphs to and from objects of networkx, pgmpy and pyAgrum; structures to networkx."""

import itertools
import math
from collections.abc import Hashable, Sequence
from contextlib import suppress
from typing import Any, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor

from rdpgraph._core.portable import optional_module
from rdpgraph.errors import ModelError, UnsupportedError
from rdpgraph.interface.structure import Structure
from rdpgraph.io.tables import (
    all_variables,
    graph_of,
    probabilities,
    refuse_evidence,
    require_graph,
)
from rdpgraph.io.text import encoded
from rdpgraph.model.factor import Factor
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.potentials.potential import Potential
from rdpgraph.model.potentials.table import Table
from rdpgraph.model.variable import State, Variable, names_of

Node: TypeAlias = Hashable
Scoped: TypeAlias = tuple[tuple[Node, ...], Potential]
_MOST_SITES = 4_000  # of a readable picture


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
    # Either form gives the nodes that are variables, and scopes with potentials.
    attributes: dict[Node, dict[str, Any]] = dict(graph.nodes(data=True))
    read = _bipartite if any("bipartite" in data for data in attributes.values()) else _pairwise
    nodes, scoped = read(graph, attributes)
    # A size that no node says is that of the first potential over it.
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
    # Nodes of any type become names, which have to stay different.
    names: dict[str, Node] = {}
    for node, variable in variables.items():
        if names.setdefault(variable.name, node) is not node:
            raise ModelError(
                f"Nodes {names[variable.name]!r} and {node!r} would both be variable "
                f"{variable.name!r}; relabel one of them."
            )
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
        return _structure_graph(graph, configuration)
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
    # Which nodes are factors, and the slots of their edges.
    slots: dict[Node, list[tuple[Any, Node]]] = {}
    for node, data in attributes.items():
        if data.get("bipartite") not in (0, 1):
            raise ModelError(
                f"Node {node!r} needs bipartite=0 (a variable) or 1 (a factor), as other nodes "
                f"have; got {data.get('bipartite')!r}."
            )
        if data["bipartite"]:
            slots[node] = []
    for left, right, data in graph.edges(data=True):
        if (left in slots) == (right in slots):
            raise ModelError(f"Edge {left!r} - {right!r} needs a variable and a factor as ends.")
        factor, variable = (left, right) if left in slots else (right, left)
        slots[factor].append((data.get("slot"), variable))
    scoped: list[Scoped] = []
    for factor, ends in slots.items():
        # A scope is its variables in the order of their slots, each slot once.
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
        # The axes of the table: as said, along the arrow, or as nodes come in the graph.
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
    if isinstance(states, Sequence) and not isinstance(states, str):
        return Variable(str(node), tuple(cast("Sequence[State]", states)))
    with suppress(TypeError, ValueError):
        if not isinstance(states, str) and float(states).is_integer():
            return Variable(str(node), int(states))
    raise ModelError(
        f"Node {node!r} needs an attribute `states`: how many states it has, or their names; got "
        f"{states!r}."
    )


def _structure_graph(structure: Structure, configuration: Any = None) -> Any:
    """The sites of a structure, and how a configuration joins them; without one, the factors do."""
    import networkx

    shape = tuple(structure.states_shape[len(structure.batch_shape) :])
    count = math.prod(shape)
    if count > _MOST_SITES:
        raise UnsupportedError(
            f"A picture of {count:,} sites is not readable; at most {_MOST_SITES:,} are drawn."
        )
    result: Any = networkx.DiGraph()
    sites = list(itertools.product(*map(range, shape)))
    names = {site: site[0] if len(site) == 1 else site for site in sites}
    states: list[int | None] = [None] * count
    if configuration is not None:
        given = structure.site_states(configuration).reshape(-1, count)[0].tolist()
        states = [state if state >= structure.least_use else None for state in given]
    for site, state in zip(sites, states, strict=True):
        if (place := structure.place(site)) is not None:
            result.add_node(names[site], state=state, place=place)
    if configuration is not None or len(shape) > 1:
        used = {site: state for site, state in zip(sites, states, strict=True) if state is not None}
        result.add_edges_from((names[one], names[two]) for one, two in structure.joined(used))
        return result
    with suppress(UnsupportedError):  # a variable is a site where there are as many
        graph = structure.factor_graph()
        for block in graph.blocks if graph.num_variables == count else ():
            result.add_edges_from(block.scopes.tolist() if block.arity == 2 else ())
    return result


def from_pgmpy(model: Any) -> FactorGraph:
    """The factor graph of a discrete Bayesian network, Markov network or factor graph of pgmpy.

    Variables and states keep their names; a node that is no string becomes ``str(node)``. Factors
    of a network are over (x, *parents).

    Raises:
        ModelError: another object, a variable without a table, tables that name a variable's
            states differently, or two nodes of one name.
    """
    given: Any = getattr(model, "get_cpds", None) or getattr(model, "get_factors", None)
    if given is None or not hasattr(model, "nodes"):
        raise ModelError(
            "from_pgmpy needs a discrete Bayesian network, Markov network or factor graph of "
            f"pgmpy; got {type(model).__name__}."
        )
    tables = list(given())
    states: dict[Any, list[Any]] = {}
    for table in tables:
        if not hasattr(table, "state_names"):
            raise ModelError(f"from_pgmpy needs tables of values; got a {type(table).__name__}.")
        for node in table.variables:
            named = list(table.state_names[node])
            if states.setdefault(node, named) != named:
                raise ModelError(
                    f"Variable {node!r} has the states {states[node]!r:.80} in one table and "
                    f"{named!r:.80} in another; name them alike."
                )
    # The nodes of pgmpy's factor graphs include the factors.
    factors = set(map(id, tables))
    nodes = [node for node in model.nodes if id(node) not in factors]
    lacking = [node for node in nodes if node not in states]
    if lacking:
        raise ModelError(f"Variable {lacking[0]!r} needs a table, which says its states.")
    if len({str(node) for node in nodes}) < len(nodes):
        raise ModelError("Nodes need names that differ as text; relabel those that do not.")
    named = {}
    for node in nodes:
        count = len(states[node])
        named[str(node)] = count if states[node] == list(range(count)) else tuple(states[node])
    scopes = (tuple(map(str, table.variables)) for table in tables)
    return graph_of(named, zip(scopes, (torch.as_tensor(t.values) for t in tables), strict=True))


def to_pgmpy(graph: FactorGraph) -> Any:
    """A ``DiscreteBayesianNetwork`` of pgmpy where the graph is one, else a Markov network.

    A factor over no variable is multiplied into another one, and variables without a factor get one
    of ones.

    Raises:
        ModelError: no FactorGraph.
        UnsupportedError: a batch, evidence, or values beyond the range of float64; or pgmpy is not
            installed.
    """
    require_graph("to_pgmpy", graph)
    tables, directed = probabilities(graph, "pgmpy")
    kinds = optional_module("pgmpy.models", "to_pgmpy", "pgmpy")
    parts = optional_module("pgmpy.factors.discrete", "to_pgmpy", "pgmpy")
    names = {v.name: list(names_of(v.states)) for v in all_variables(graph)}
    model = kinds.DiscreteBayesianNetwork() if directed else kinds.DiscreteMarkovNetwork()
    model.add_nodes_from(names)
    for scope, values in tables:
        words, sizes = [variable.name for variable in scope], list(values.shape)
        held = {name: names[name] for name in words}
        if directed:
            (*above, child), (*many, size) = words, sizes
            model.add_edges_from((parent, child) for parent in above)
            rows = values.reshape(-1, size).T
            model.add_cpds(parts.TabularCPD(child, size, rows, above, many, state_names=held))
        else:
            model.add_edges_from((one, two) for one in words for two in words if one < two)
            model.add_factors(parts.DiscreteFactor(words, sizes, values, state_names=held))
    return model


def from_pyagrum(model: Any) -> FactorGraph:
    """The factor graph of a ``BayesNet`` or a ``MarkovRandomField`` of pyAgrum.

    Variables and states keep their names. Factors of a network are over (*parents, x).

    Raises:
        ModelError: another object.
    """
    if not hasattr(model, "nodes"):
        tables = None
    elif hasattr(model, "cpt"):
        tables = [model.cpt(node) for node in model.nodes()]
    elif hasattr(model, "factors") and hasattr(model, "factor"):
        tables = [model.factor(scope) for scope in model.factors()]
    else:
        tables = None
    if tables is None:
        raise ModelError(
            "from_pyagrum needs a BayesNet or a MarkovRandomField of pyAgrum; got "
            f"{type(model).__name__}."
        )
    variables = map(model.variable, sorted(model.nodes()))
    return graph_of(
        {variable.name(): tuple(variable.labels()) for variable in variables},
        # pyAgrum's arrays have the first variable as the last dim.
        [(table.names[::-1], torch.from_numpy(table.toarray().copy())) for table in tables],
    )


def to_pyagrum(graph: FactorGraph) -> Any:
    """A ``BayesNet`` of pyAgrum where the graph is one, else a ``MarkovRandomField``.

    States are named as text. Factors over the same variables are multiplied together, constants are
    multiplied into another factor, and variables without a factor get one of ones.

    Raises:
        ModelError: no FactorGraph.
        UnsupportedError: a batch, evidence, or values beyond the range of float64; or pyAgrum is
            not installed.
    """
    require_graph("to_pyagrum", graph)
    tables, directed = probabilities(graph, "pyAgrum")
    pyagrum = optional_module("pyagrum", "to_pyagrum", "pyagrum")
    model = pyagrum.BayesNet() if directed else pyagrum.MarkovRandomField()
    for variable in all_variables(graph):
        labels = [str(state) for state in names_of(variable.states)]
        encoded("".join([variable.name, *labels]), "to_pyagrum")  # or pyAgrum crashes
        model.add(pyagrum.LabelizedVariable(variable.name, variable.name, labels))
    tensors: dict[frozenset[str], Any] = {}
    for scope, values in tables:
        words = [variable.name for variable in scope]
        key = frozenset(words)
        if directed:
            for parent in words[:-1]:
                model.addArc(parent, words[-1])
            tensors[key] = model.cpt(words[-1])
        elif key not in tensors:
            tensors[key] = model.addFactor(words)
            tensors[key].fillWith(1)
        order = [words.index(name) for name in tensors[key].names[::-1]]
        values, before = np.transpose(values, order), tensors[key].toarray()
        product = np.ascontiguousarray(values if directed else values * before)
        held = (product > 0) & (product < np.inf)
        if not directed and (held != ((values > 0) & (before > 0))).any():
            raise UnsupportedError(f"The product of all factors over {words} is out of range.")
        tensors[key][:] = product
    return model
