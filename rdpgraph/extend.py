"""Interfaces for user-defined classes, and the objects that they exchange.

Base classes of potentials, structures, recursions, estimators and schedulers, the tape on which a
recursion is written, and the registries of structures and of file formats. Interfaces of one
algorithm are beside its choices: `rdpgraph.loopy.Schedule`, `rdpgraph.randomized.Proposal`.
`rdpgraph.testing` checks implementations.
"""

from rdpgraph.engines.solution import Solution
from rdpgraph.estimate.estimator import Estimator, Problem
from rdpgraph.estimate.lowrank import AddedVariables
from rdpgraph.estimate.redrawn import Inexact, Lifted
from rdpgraph.estimate.restriction import Restriction
from rdpgraph.interface.sites import Sites
from rdpgraph.interface.structure import REGISTRY, Match, Structure
from rdpgraph.io.files import FORMATS, FileFormat
from rdpgraph.model.potentials.potential import Decomposition, Part, Potential
from rdpgraph.model.restriction import Support
from rdpgraph.plan.scheduler import contraction_path
from rdpgraph.schedulers import Scheduler
from rdpgraph.structures.potential import StructurePotential
from rdpgraph.structures.recursion.tape import Tape
from rdpgraph.structures.recursion.values import Value, View
from rdpgraph.structures.recursions import Recursion

register = REGISTRY.add
register_format = FORMATS.add

__all__ = [
    "FORMATS",
    "REGISTRY",
    "AddedVariables",
    "Decomposition",
    "Estimator",
    "FileFormat",
    "Inexact",
    "Lifted",
    "Match",
    "Part",
    "Potential",
    "Problem",
    "Recursion",
    "Restriction",
    "Scheduler",
    "Sites",
    "Solution",
    "Structure",
    "StructurePotential",
    "Support",
    "Tape",
    "Value",
    "View",
    "contraction_path",
    "register",
    "register_format",
]
