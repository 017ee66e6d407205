"""Parts of `RandomizedPruning`: likely questions, selections, masks, and its posterior.

A model that can be masked has yes-or-no questions (`Masks`): whether a span is a constituent, two
words are aligned, a step is in a state. A `Likely` chooses the questions that masks are made of,
and a `Selected` those whose answers each sweep holds. The estimator itself is
`rdpgraph.RandomizedPruning`.
"""

from rdpgraph.estimate.pruning.estimator import Everything, Given, Likely, LikelyBy, masks_of
from rdpgraph.estimate.pruning.sampler import Alternating, Selected
from rdpgraph.estimate.pruning.solution import PrunedSolution, sweeps_of
from rdpgraph.interface.masks import Draw, Expected, Masked, Masks

__all__ = [
    "Alternating",
    "Draw",
    "Everything",
    "Expected",
    "Given",
    "Likely",
    "LikelyBy",
    "Masked",
    "Masks",
    "PrunedSolution",
    "Selected",
    "masks_of",
    "sweeps_of",
]
