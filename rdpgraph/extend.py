"""What code of your own is built on: the interfaces, and the objects that they pass around.

Here belong the base classes of potentials, structures, recursions, estimators and schedulers, the
tape on which a recursion is written, and the registry of structures that are recognised in graphs.
Interfaces of one algorithm are beside its choices: `rdpgraph.loopy.Schedule`,
`rdpgraph.randomized.Proposal`. The checks for what you write are in `rdpgraph.testing`.
"""

from rdpgraph.estimate.exact import Estimator, Kept, Problem
from rdpgraph.estimate.sites import Sites
from rdpgraph.model.potential import Decomposition, Part, Potential
from rdpgraph.model.structure import REGISTRY, Match, Structure
from rdpgraph.model.support import Support
from rdpgraph.schedulers import Scheduler
from rdpgraph.structures.tape.recursion import Recursion
from rdpgraph.structures.tape.tape import Tape
from rdpgraph.structures.tape.values import Value, View

register = REGISTRY.add

__all__ = [
    "REGISTRY",
    "Decomposition",
    "Estimator",
    "Kept",
    "Match",
    "Part",
    "Potential",
    "Problem",
    "Recursion",
    "Scheduler",
    "Sites",
    "Structure",
    "Support",
    "Tape",
    "Value",
    "View",
    "register",
]
