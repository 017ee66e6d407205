"""rdpgraph: declare a discrete graphical model, see the plan, get answers with gradients."""

from rdpgraph.errors import (
    BudgetError,
    EvidenceError,
    FileFormatError,
    ImpossibleEvidenceError,
    ModelError,
    RdpgraphError,
    UnsupportedError,
)
from rdpgraph.estimate.exact import Estimator, Exact, Problem
from rdpgraph.infer import Auto, Contraction, Scheduler, explain, infer
from rdpgraph.io import from_networkx, read, to_networkx, write
from rdpgraph.model.factor import Factor, FactorBlock
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.potential import Decomposition, Potential
from rdpgraph.model.sparse import Sparse
from rdpgraph.model.structure import REGISTRY, Match, Structure
from rdpgraph.model.support import Support
from rdpgraph.model.table import Table
from rdpgraph.model.variable import Variable, VariableArray
from rdpgraph.plan.plan import Plan
from rdpgraph.query.posterior import Posterior
from rdpgraph.query.status import Status
from rdpgraph.query.structured import StructuredPosterior

register = REGISTRY.add

__all__ = [
    "REGISTRY",
    "Auto",
    "BudgetError",
    "Contraction",
    "Decomposition",
    "Estimator",
    "EvidenceError",
    "Exact",
    "Factor",
    "FactorBlock",
    "FactorGraph",
    "FileFormatError",
    "ImpossibleEvidenceError",
    "Match",
    "ModelError",
    "Plan",
    "Posterior",
    "Potential",
    "Problem",
    "RdpgraphError",
    "Scheduler",
    "Sparse",
    "Status",
    "Structure",
    "StructuredPosterior",
    "Support",
    "Table",
    "UnsupportedError",
    "Variable",
    "VariableArray",
    "explain",
    "from_networkx",
    "infer",
    "read",
    "register",
    "to_networkx",
    "write",
]
