"""Interfaces for user-defined classes, and the objects that they exchange.

Base classes of potentials, structures, estimators, schedulers and routes, and the registries of
structures, of file formats and of routes. A structure that is a dynamic program is an
`rdpgraph.Recurrence`. Interfaces of one algorithm are beside its choices:
`rdpgraph.loopy.Schedule`, `rdpgraph.randomized.Proposal`. `rdpgraph.testing` checks
implementations.
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
from rdpgraph.plan.planner import contraction_path
from rdpgraph.schedulers.route import ROUTES, Route, Shape, Task
from rdpgraph.schedulers.scheduler import Scheduler
from rdpgraph.structures.structure_potential import StructurePotential

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
    "Restriction",
    "Route",
    "Scheduler",
    "Shape",
    "Sites",
    "Solution",
    "Structure",
    "StructurePotential",
    "Support",
    "Task",
    "contraction_path",
    "register",
    "register_format",
    "register_route",
]
