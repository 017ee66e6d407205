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
from rdpgraph.model.factor import Factor, FactorBlock
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.potential import Decomposition, Potential
from rdpgraph.model.sparse import Sparse
from rdpgraph.model.support import Support
from rdpgraph.model.table import Table
from rdpgraph.model.variable import Variable, VariableArray
