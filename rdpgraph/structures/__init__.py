"""Structures with recursions of their own; importing them registers those that are recognised."""

from rdpgraph.model.structure import REGISTRY
from rdpgraph.structures.chain.model import Chain
from rdpgraph.structures.hypertree.derivations import Derivations
from rdpgraph.structures.hypertree.model import Hypertree
from rdpgraph.structures.hypertree.nonprojective import NonProjectiveDependencies
from rdpgraph.structures.hypertree.projective import ProjectiveDependencies
from rdpgraph.structures.semimarkov.model import SemiMarkov

for _structure in (
    SemiMarkov, Chain, Hypertree, ProjectiveDependencies, NonProjectiveDependencies, Derivations,
):  # fmt: skip
    REGISTRY.add(_structure)
