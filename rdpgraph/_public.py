"""The public names of the package, loaded on first access.

At the top are those of ordinary tasks; the rest is in the modules that come first.
"""

from typing import TYPE_CHECKING

from rdpgraph import answers as answers
from rdpgraph import distributions as distributions
from rdpgraph import errors as errors
from rdpgraph import extend as extend
from rdpgraph import loopy as loopy
from rdpgraph import pruning as pruning
from rdpgraph import randomized as randomized
from rdpgraph import trees as trees
from rdpgraph.engines.solution import Status
from rdpgraph.estimate.estimator import Exact
from rdpgraph.estimate.lowrank import LowRankFactors
from rdpgraph.estimate.pruning.estimator import RandomizedPruning
from rdpgraph.estimate.randomized import Randomized, controlled
from rdpgraph.estimate.redrawn import Redrawn
from rdpgraph.infer import explain, infer
from rdpgraph.io.files import read, write
from rdpgraph.io.graphs import (
    from_networkx,
    from_pgmpy,
    from_pyagrum,
    to_networkx,
    to_pgmpy,
    to_pyagrum,
)
from rdpgraph.model.factor import Factor, FactorBlock
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.potentials.automaton import (
    And,
    AtMostOne,
    Automaton,
    Cardinality,
    ExactlyOne,
    Or,
    Xor,
)
from rdpgraph.model.potentials.features import RandomFeatures
from rdpgraph.model.potentials.lowrank import Bilinear, LowRank
from rdpgraph.model.potentials.operators import Banded, Monarch
from rdpgraph.model.potentials.sparse import Sparse
from rdpgraph.model.potentials.table import Table
from rdpgraph.model.variable import Variable, VariableArray
from rdpgraph.plan.clock import interruptible
from rdpgraph.plan.plan import Plan
from rdpgraph.query.drawing import draw
from rdpgraph.query.posterior import Posterior
from rdpgraph.query.structured import StructuredPosterior
from rdpgraph.recurrences import Input, Lengths
from rdpgraph.schedulers.auto import Auto
from rdpgraph.schedulers.contraction import Contraction
from rdpgraph.schedulers.counting import Counting
from rdpgraph.schedulers.loopy import JoinGraph, Loopy
from rdpgraph.schedulers.minibuckets import MiniBuckets
from rdpgraph.schedulers.search import Search
from rdpgraph.structures.alignment import Alignment
from rdpgraph.structures.bitext.mixed import MixedBitext
from rdpgraph.structures.bitext.model import Bitext
from rdpgraph.structures.chain.model import Chain
from rdpgraph.structures.chain.rank_hmm import LowRankHMM
from rdpgraph.structures.dependency.trees import NonProjectiveDependencies, ProjectiveDependencies
from rdpgraph.structures.derivations.model import Derivations
from rdpgraph.structures.draws import straight_through
from rdpgraph.structures.grammar.model import Hypertree
from rdpgraph.structures.matching.model import Matching
from rdpgraph.structures.parity.model import ParityModel
from rdpgraph.structures.recurrence import Recurrence
from rdpgraph.structures.semimarkov import Segmentation, SemiMarkov

if TYPE_CHECKING:  # each is loaded when it is asked for
    from rdpgraph import decoding as decoding
    from rdpgraph import distributed as distributed
    from rdpgraph import gp as gp
    from rdpgraph import learn as learn
    from rdpgraph import nn as nn
    from rdpgraph import testing as testing

__all__ = [
    "Alignment",
    "And",
    "AtMostOne",
    "Auto",
    "Automaton",
    "Banded",
    "Bilinear",
    "Bitext",
    "Cardinality",
    "Chain",
    "Contraction",
    "Counting",
    "Derivations",
    "Exact",
    "ExactlyOne",
    "Factor",
    "FactorBlock",
    "FactorGraph",
    "Hypertree",
    "Input",
    "JoinGraph",
    "Lengths",
    "Loopy",
    "LowRank",
    "LowRankFactors",
    "LowRankHMM",
    "Matching",
    "MiniBuckets",
    "MixedBitext",
    "Monarch",
    "NonProjectiveDependencies",
    "Or",
    "ParityModel",
    "Plan",
    "Posterior",
    "ProjectiveDependencies",
    "RandomFeatures",
    "Randomized",
    "RandomizedPruning",
    "Recurrence",
    "Redrawn",
    "Search",
    "Segmentation",
    "SemiMarkov",
    "Sparse",
    "Status",
    "StructuredPosterior",
    "Table",
    "Variable",
    "VariableArray",
    "Xor",
    "answers",
    "controlled",
    "decoding",
    "distributed",
    "distributions",
    "draw",
    "errors",
    "explain",
    "extend",
    "from_networkx",
    "from_pgmpy",
    "from_pyagrum",
    "gp",
    "infer",
    "interruptible",
    "learn",
    "loopy",
    "nn",
    "pruning",
    "randomized",
    "read",
    "straight_through",
    "testing",
    "to_networkx",
    "to_pgmpy",
    "to_pyagrum",
    "trees",
    "write",
]
