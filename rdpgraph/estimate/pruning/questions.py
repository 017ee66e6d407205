"""The masks that a model can have."""

from collections.abc import Callable
from typing import Any

from rdpgraph.errors import ModelError
from rdpgraph.estimate.pruning.graphs import GraphMasks
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.masks import Masks
from rdpgraph.model.structure import Structure


def masks_of(model: object, solve: Callable[[Any], Any]) -> Masks:
    """The questions that a model can be masked by.

    Raises:
        ModelError: something else than a model.
        UnsupportedError: a structure without masks.
    """
    if isinstance(model, Structure):
        return model.masks()
    if isinstance(model, FactorGraph):
        return GraphMasks(model, solve)
    raise ModelError(
        f"RandomizedPruning needs a FactorGraph or a Structure; got {type(model).__name__}."
    )
