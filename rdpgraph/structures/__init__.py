"""Structures with special recursions; importing them registers those that are recognised."""

from rdpgraph.interface.structure import REGISTRY
from rdpgraph.structures.chain.model import Chain
from rdpgraph.structures.dependency.trees import NonProjectiveDependencies, ProjectiveDependencies
from rdpgraph.structures.derivations.model import Derivations
from rdpgraph.structures.grammar.model import Hypertree
from rdpgraph.structures.matching.model import Matching
from rdpgraph.structures.parity.model import ParityModel
from rdpgraph.structures.semimarkov.model import SemiMarkov

for _structure in (
    SemiMarkov, Chain, Hypertree, ProjectiveDependencies, NonProjectiveDependencies, Derivations,
    ParityModel, Matching,
):  # fmt: skip
    REGISTRY.add(_structure)
