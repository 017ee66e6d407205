"""The public names of the package, which has them from here when one is first asked for."""

from rdpgraph import distributions as distributions
from rdpgraph import nn as nn
from rdpgraph.engines.loopy.counting import Bethe, Counting, Fractional, TreeReweighted
from rdpgraph.engines.loopy.damping import Damping, LogDamping, ProbabilityDamping
from rdpgraph.engines.loopy.gradients import FromBeliefs, Gradient, Implicit, Unrolled
from rdpgraph.engines.loopy.propagation import Sweep
from rdpgraph.engines.loopy.schedules import (
    Flooding,
    RandomSubsets,
    Residual,
    Schedule,
    Sequential,
)
from rdpgraph.engines.status import Status
from rdpgraph.errors import (
    BudgetError,
    EvidenceError,
    FileFormatError,
    ImpossibleEvidenceError,
    ModelError,
    RdpgraphError,
    UnknownVariableError,
    UnsupportedError,
)
from rdpgraph.estimate.control import ControlledEstimate, controlled
from rdpgraph.estimate.exact import Estimator, Exact, Kept, Problem
from rdpgraph.estimate.lowrank import LowRankFactors
from rdpgraph.estimate.lowrank_pilot import LowRankPilot
from rdpgraph.estimate.pilot import Pilot
from rdpgraph.estimate.proposal import Mixture, Proposal
from rdpgraph.estimate.proposals import (
    Global,
    Landmark,
    Local,
    LocalGlobal,
    Oracle,
    SoftmaxGlobal,
    Uniform,
)
from rdpgraph.estimate.randomized import Randomized
from rdpgraph.estimate.redrawn import Redrawn
from rdpgraph.estimate.selection import Selection
from rdpgraph.estimate.selections import Threshold, Top, TopSystematic, TopTail
from rdpgraph.estimate.sites import Sites
from rdpgraph.infer import explain, infer
from rdpgraph.io import from_networkx, read, to_networkx, write
from rdpgraph.io.grammar import Grammar, parse_grammar, read_grammar
from rdpgraph.model.automaton import Automaton
from rdpgraph.model.bilinear import Bilinear
from rdpgraph.model.factor import Factor, FactorBlock
from rdpgraph.model.features import FeatureError, RandomFeatures
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.logical import And, AtMostOne, Cardinality, ExactlyOne, Or, Xor
from rdpgraph.model.lowrank import LowRank
from rdpgraph.model.potential import Decomposition, Part, Potential
from rdpgraph.model.sparse import Sparse
from rdpgraph.model.structure import REGISTRY, Match, Structure
from rdpgraph.model.support import Support
from rdpgraph.model.table import Table
from rdpgraph.model.variable import Variable, VariableArray
from rdpgraph.plan.plan import Plan
from rdpgraph.query.estimated import EstimatedPosterior
from rdpgraph.query.estimated_structure import EstimatedStructuredPosterior
from rdpgraph.query.posterior import Posterior
from rdpgraph.query.structured import StructuredPosterior
from rdpgraph.schedulers import Auto, Contraction, JoinGraph, Loopy, Scheduler
from rdpgraph.structures.alignment import Alignment
from rdpgraph.structures.bitext import Bitext
from rdpgraph.structures.chain.model import Chain, KBest
from rdpgraph.structures.chain.rank_hmm import LowRankHMM
from rdpgraph.structures.hypertree.dependencies import KBestDependencies
from rdpgraph.structures.hypertree.derivations import Derivations, KBestDerivations
from rdpgraph.structures.hypertree.model import Hypertree
from rdpgraph.structures.hypertree.nonprojective import NonProjectiveDependencies
from rdpgraph.structures.hypertree.projective import ProjectiveDependencies
from rdpgraph.structures.hypertree.rules import (
    DenseRules,
    FactorisedRules,
    LowRankRules,
    NoRules,
    Rules,
)
from rdpgraph.structures.hypertree.trees import KBestTrees, Trees
from rdpgraph.structures.relaxation import straight_through
from rdpgraph.structures.semimarkov import KBestSegmentations, Segmentation, SemiMarkov
from rdpgraph.structures.tape.recursion import KBestConfigurations, Recursion
from rdpgraph.structures.tape.tape import Tape
from rdpgraph.structures.tape.values import Value, View

register = REGISTRY.add

__all__ = [
    "REGISTRY",
    "Alignment",
    "And",
    "AtMostOne",
    "Auto",
    "Automaton",
    "Bethe",
    "Bilinear",
    "Bitext",
    "BudgetError",
    "Cardinality",
    "Chain",
    "Contraction",
    "ControlledEstimate",
    "Counting",
    "Damping",
    "Decomposition",
    "DenseRules",
    "Derivations",
    "EstimatedPosterior",
    "EstimatedStructuredPosterior",
    "Estimator",
    "EvidenceError",
    "Exact",
    "ExactlyOne",
    "Factor",
    "FactorBlock",
    "FactorGraph",
    "FactorisedRules",
    "FeatureError",
    "FileFormatError",
    "Flooding",
    "Fractional",
    "FromBeliefs",
    "Global",
    "Gradient",
    "Grammar",
    "Hypertree",
    "Implicit",
    "ImpossibleEvidenceError",
    "JoinGraph",
    "KBest",
    "KBestConfigurations",
    "KBestDependencies",
    "KBestDerivations",
    "KBestSegmentations",
    "KBestTrees",
    "Kept",
    "Landmark",
    "Local",
    "LocalGlobal",
    "LogDamping",
    "Loopy",
    "LowRank",
    "LowRankFactors",
    "LowRankHMM",
    "LowRankPilot",
    "LowRankRules",
    "Match",
    "Mixture",
    "ModelError",
    "NoRules",
    "NonProjectiveDependencies",
    "Or",
    "Oracle",
    "Part",
    "Pilot",
    "Plan",
    "Posterior",
    "Potential",
    "ProbabilityDamping",
    "Problem",
    "ProjectiveDependencies",
    "Proposal",
    "RandomFeatures",
    "RandomSubsets",
    "Randomized",
    "RdpgraphError",
    "Recursion",
    "Redrawn",
    "Residual",
    "Rules",
    "Schedule",
    "Scheduler",
    "Segmentation",
    "Selection",
    "SemiMarkov",
    "Sequential",
    "Sites",
    "SoftmaxGlobal",
    "Sparse",
    "Status",
    "Structure",
    "StructuredPosterior",
    "Support",
    "Sweep",
    "Table",
    "Tape",
    "Threshold",
    "Top",
    "TopSystematic",
    "TopTail",
    "TreeReweighted",
    "Trees",
    "Uniform",
    "UnknownVariableError",
    "Unrolled",
    "UnsupportedError",
    "Value",
    "Variable",
    "VariableArray",
    "View",
    "Xor",
    "controlled",
    "distributions",
    "explain",
    "from_networkx",
    "infer",
    "nn",
    "parse_grammar",
    "read",
    "read_grammar",
    "register",
    "straight_through",
    "to_networkx",
    "write",
]
