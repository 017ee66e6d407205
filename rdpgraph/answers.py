"""Types of the answers that posteriors and structures return.

States and values of all variables of a graph, lists of the k best configurations of each structure,
relaxed draws, estimates with their errors, the progress of long work, and a line that shows it.
`Posterior`, `Plan`, `Status` and `Segmentation` are names of `rdpgraph`.
"""

from rdpgraph._core.progress import Progress
from rdpgraph._core.progress_line import show_progress
from rdpgraph.engines.search.neighbourhoods import Move
from rdpgraph.estimate.feature_errors import PartitionError
from rdpgraph.estimate.randomized import ControlledEstimate
from rdpgraph.estimate.replicates import Replicates
from rdpgraph.estimate.signed import SignedEstimate
from rdpgraph.model.potentials.features import FeatureError
from rdpgraph.query.answers import Assignment, Bounds, Information, JointTable, StateValues
from rdpgraph.query.structured import RelaxedStates
from rdpgraph.structures.chain.model import KBest
from rdpgraph.structures.dependency.trees import KBestDependencies
from rdpgraph.structures.derivations.model import KBestDerivations
from rdpgraph.structures.draws import KBestConfigurations
from rdpgraph.structures.grammar.trees import KBestTrees
from rdpgraph.structures.semimarkov import KBestSegmentations

__all__ = [
    "Assignment",
    "Bounds",
    "ControlledEstimate",
    "FeatureError",
    "Information",
    "JointTable",
    "KBest",
    "KBestConfigurations",
    "KBestDependencies",
    "KBestDerivations",
    "KBestSegmentations",
    "KBestTrees",
    "Move",
    "PartitionError",
    "Progress",
    "RelaxedStates",
    "Replicates",
    "SignedEstimate",
    "StateValues",
    "show_progress",
]
