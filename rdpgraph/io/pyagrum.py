"""Models to and from objects of pyAgrum."""

import importlib
from typing import Any

import numpy as np
import torch

from rdpgraph.errors import ModelError, UnsupportedError
from rdpgraph.io.tables import all_variables, graph_of, probabilities, require_graph
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
    another one.

    Raises:
        ModelError: no FactorGraph.
        UnsupportedError: a batch, evidence, or values beyond the range of float64; a variable whose
            states have like names as text.
    """
    require_graph("to_pyagrum", graph)
    tables, directed = probabilities(graph, "pyAgrum")
    pyagrum: Any = importlib.import_module("pyagrum")
    model = pyagrum.BayesNet() if directed else pyagrum.MarkovRandomField()
    for variable in all_variables(graph):
        labels = [str(state) for state in names_of(variable.states)]
        if len(set(labels)) < len(labels):
            raise UnsupportedError(
                f"Variable {variable.name!r} has states that are named alike as text; rename them."
            )
        model.add(pyagrum.LabelizedVariable(variable.name, variable.name, labels))
    tensors: dict[frozenset[str], Any] = {}
    constant = 1.0
    for scope, values in tables:
        words = [variable.name for variable in scope]
        if not words:
            constant *= float(values)
            continue
        key = frozenset(words)
        if directed:
            for parent in words[1:]:
                model.addArc(parent, words[0])
            tensors[key] = model.cpt(words[0])
        elif key not in tensors:
            tensors[key] = model.addFactor(words)
            tensors[key].fillWith(1)
        order = [words.index(name) for name in tensors[key].names[::-1]]
        before = 1.0 if directed else tensors[key].toarray()
        tensors[key][:] = np.ascontiguousarray(np.transpose(values, order) * before)
    for tensor in list(tensors.values())[:1] if constant != 1.0 else ():
        tensor[:] = tensor.toarray() * constant
    return model
