"""Models to and from objects of pgmpy and pyAgrum."""

import importlib
from typing import Any

import numpy as np
import torch

from rdpgraph.errors import ModelError, UnsupportedError
from rdpgraph.io.tables import all_variables, graph_of, probabilities, require_graph
from rdpgraph.io.text import encoded
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.variable import names_of


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
    return graph_of(
        {
            str(node): len(states[node])
            if states[node] == list(range(len(states[node])))
            else tuple(states[node])
            for node in nodes
        },
        [(tuple(map(str, table.variables)), torch.as_tensor(table.values)) for table in tables],
    )


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
    kinds: Any = importlib.import_module("pgmpy.models")
    parts: Any = importlib.import_module("pgmpy.factors.discrete")
    variables = all_variables(graph)
    names = {variable.name: list(names_of(variable.states)) for variable in variables}
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
    if hasattr(model, "cpt"):
        tables = [model.cpt(node) for node in model.nodes()]
    elif hasattr(model, "factors") and hasattr(model, "factor"):
        tables = [model.factor(scope) for scope in model.factors()]
    else:
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

    States are named as text. Factors over the same variables are multiplied, those over none into
    another one, and variables without a factor get one of ones.

    Raises:
        ModelError: no FactorGraph.
        UnsupportedError: a batch, evidence, or values beyond the range of float64.
    """
    require_graph("to_pyagrum", graph)
    tables, directed = probabilities(graph, "pyAgrum")
    pyagrum: Any = importlib.import_module("pyagrum")
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
