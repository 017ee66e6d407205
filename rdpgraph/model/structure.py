"""Structures: model types with a recursion of their own, and the registry that recognises them."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from torch import Tensor

from rdpgraph.errors import ModelError
from rdpgraph.model.graph import FactorGraph


@dataclass(frozen=True, eq=False)
class Structure(ABC):
    """A model type that is solved by its own recursion.

    One user declares it directly; another declares a graph that the registry recognises. Sites
    are its variables in a fixed shape: `unary` holds a log-potential for every state of every
    site, (*batch, *sites, states), and is a field of the dataclass, so that the default marginals
    are the gradient of log Z in it.

    `rdpgraph.testing.check_structure` holds an implementation against its own `factor_graph`.
    """

    unary: Tensor

    @abstractmethod
    def log_partition(self) -> Tensor:
        """(*batch,) log Z in nats, differentiable in every potential."""

    @abstractmethod
    def factor_graph(self) -> FactorGraph:
        """The same model as a general graph, its sites in one `VariableArray` named ``"site"``."""

    @classmethod
    def recognise(cls, graph: FactorGraph) -> "Match | None":
        """The structure that a graph is, or None; the default recognises nothing."""
        return None

    def with_unary(self, unary: Tensor) -> Self:
        """The same structure with other unary potentials."""
        return replace(self, unary=unary)

    def restrict(self, states: Tensor, log_weights: Tensor) -> "Structure":
        """The structure on some states of each site, (*batch, *sites, kept), weights added.

        Raises:
            ModelError: this structure does not implement it.
        """
        raise ModelError(
            f"{type(self).__name__} implements no restrict(states, log_weights), which estimators "
            "other than Exact need."
        )


@dataclass(frozen=True, eq=False)
class Match:
    """A recognised structure.

    Attributes:
        structure: the instance.
        numbers: (*sites,) the graph's number of the variable at each site.
    """

    structure: Structure
    numbers: Tensor


class Registry:
    """The structures that graphs are matched against, in order of registration."""

    def __init__(self) -> None:
        self._known: dict[str, type[Structure]] = {}

    def add(self, structure: type[Structure]) -> None:
        """Register a structure.

        Raises:
            ModelError: one of that name is registered already.
        """
        name = structure.__name__
        if name in self._known:
            raise ModelError(f"A structure named {name!r} is registered already.")
        self._known[name] = structure

    def remove(self, structure: type[Structure]) -> None:
        """Take a structure out again.

        Raises:
            ModelError: it is not registered.
        """
        if self._known.get(structure.__name__) is not structure:
            raise ModelError(f"No structure {structure.__name__!r} is registered.")
        del self._known[structure.__name__]

    @property
    def known(self) -> Mapping[str, type[Any]]:
        """The registered structures by name."""
        return dict(self._known)

    def recognise(self, graph: FactorGraph) -> Match | None:
        """The first structure that recognises a graph."""
        for structure in self._known.values():
            match = structure.recognise(graph)
            if match is not None:
                return match
        return None


REGISTRY = Registry()
