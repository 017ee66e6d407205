"""Models to and from objects of pyAgrum."""

import importlib
from typing import Any

import numpy as np
import torch

from rdpgraph.errors import ModelError, UnsupportedError
from rdpgraph.io.tables import all_variables, graph_of, probabilities, require_graph
from rdpgraph.io.text import encoded
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.variable import names_of


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
            for parent in words[1:]:
                model.addArc(parent, words[0])
            tensors[key] = model.cpt(words[0])
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
