"""The types of answers, which questions to posteriors and structures return.

Here belong states and values of all variables of a graph, lists of the k best configurations of
each structure, relaxed draws, and estimates with their errors.
`Posterior`, `Plan`, `Status` and `Segmentation` are names of `rdpgraph`.
"""

from rdpgraph.estimate.control import ControlledEstimate
from rdpgraph.estimate.replicates import Replicates
from rdpgraph.model.features import FeatureError
from rdpgraph.query.answers import Assignment, Bounds, JointTable, StateValues
from rdpgraph.query.relaxed import RelaxedStates
from rdpgraph.structures.chain.model import KBest
from rdpgraph.structures.hypertree.dependencies import KBestDependencies
from rdpgraph.structures.hypertree.derivations import KBestDerivations
from rdpgraph.structures.hypertree.trees import KBestTrees
from rdpgraph.structures.semimarkov import KBestSegmentations
from rdpgraph.structures.tape.recursion import KBestConfigurations

__all__ = [
    "Assignment",
    "Bounds",
    "ControlledEstimate",
    "FeatureError",
    "JointTable",
    "KBest",
    "KBestConfigurations",
    "KBestDependencies",
    "KBestDerivations",
    "KBestSegmentations",
    "KBestTrees",
    "RelaxedStates",
    "Replicates",
    "StateValues",
]
