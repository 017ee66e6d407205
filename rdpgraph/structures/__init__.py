"""Structures with special recursions, and the table of those that are recognised in graphs.

A structure is imported when it is first declared, or when a graph may be one.
"""

from rdpgraph.interface.structure import REGISTRY
from rdpgraph.model.graph import FactorGraph


def _joins_pairs(graph: FactorGraph) -> bool:
    """Return whether factors are over one or two variables, as those of a chain are."""
    arities = {block.arity for block in graph.blocks}
    return {2} <= arities <= {1, 2}


def _has_structure(graph: FactorGraph) -> bool:
    """Return whether a `StructurePotential` is among the factors, by name, to import nothing."""
    return any(type(each.potential).__name__ == "StructurePotential" for each in graph.blocks)


def _has_automata(graph: FactorGraph) -> bool:
    """Return whether there are logical factors, such as `Xor` and `AtMostOne`."""
    return any(type(each.potential).__name__ == "Automaton" for each in graph.blocks)


_PLACE = "rdpgraph.structures"

REGISTRY.add_named(f"{_PLACE}.semimarkov.model:SemiMarkov", _joins_pairs)
REGISTRY.add_named(f"{_PLACE}.chain.model:Chain", _joins_pairs)
REGISTRY.add_named(f"{_PLACE}.grammar.model:Hypertree", _has_structure)
REGISTRY.add_named(f"{_PLACE}.dependency.trees:ProjectiveDependencies", _has_structure)
REGISTRY.add_named(f"{_PLACE}.dependency.trees:NonProjectiveDependencies", _has_structure)
REGISTRY.add_named(f"{_PLACE}.parity.model:ParityModel", _has_automata)
REGISTRY.add_named(f"{_PLACE}.matching.model:Matching", _has_automata)
