"""Interfaces for user-defined classes, and the objects that they exchange.

Base classes of potentials, structures, recursions, estimators, schedulers and routes, the tape on
which a recursion is written, and the registries of structures, of file formats and of routes.
Interfaces of one algorithm are beside its choices: `rdpgraph.loopy.Schedule`,
`rdpgraph.randomized.Proposal`. `rdpgraph.testing` checks implementations.
"""

from rdpgraph.engines.solution import PartialSolution, Question, Solution
from rdpgraph.estimate.estimator import Estimator, Problem
from rdpgraph.estimate.lowrank import AddedVariables
from rdpgraph.estimate.redrawn import Inexact, Lifted
from rdpgraph.estimate.restriction import Restriction
from rdpgraph.interface.sites import Sites
from rdpgraph.interface.structure import REGISTRY, Match, Structure
from rdpgraph.io.files import FORMATS, FileFormat
from rdpgraph.model.potentials.potential import Decomposition, Part, Potential
from rdpgraph.model.restriction import Support
from rdpgraph.plan.bids import Bid, Exactness
from rdpgraph.plan.plan import Budget
from rdpgraph.plan.scheduler import contraction_path
from rdpgraph.schedulers import Scheduler
from rdpgraph.schedulers.route import ROUTES, Route, Shape, Task
from rdpgraph.structures.potential import StructurePotential
from rdpgraph.structures.recursion.tape import Tape
from rdpgraph.structures.recursion.values import Value, View
from rdpgraph.structures.recursions import Recursion

register = REGISTRY.add
register_format = FORMATS.add
register_route = ROUTES.add

__all__ = [
    "FORMATS",
    "REGISTRY",
    "ROUTES",
    "AddedVariables",
    "Bid",
    "Budget",
    "Decomposition",
    "Estimator",
    "Exactness",
    "FileFormat",
    "Inexact",
    "Lifted",
    "Match",
    "Part",
    "PartialSolution",
    "Potential",
    "Problem",
    "Question",
    "Recursion",
    "Restriction",
    "Route",
    "Scheduler",
    "Shape",
    "Sites",
    "Solution",
    "Structure",
    "StructurePotential",
    "Support",
    "Tape",
    "Task",
    "Value",
    "View",
    "contraction_path",
    "register",
    "register_format",
    "register_route",
]
