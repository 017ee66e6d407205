"""Parts of `Randomized`: proposals and selections.

A `Proposal` scores how much each state of a variable is expected to weigh; a `Selection` chooses
the states to keep and their weights, so that Z stays unbiased. The estimator itself is
`rdpgraph.Randomized`.
"""

from rdpgraph.estimate.lowrank import LowRankPilot
from rdpgraph.estimate.proposals import (
    Global,
    Landmark,
    Local,
    LocalGlobal,
    Mixture,
    Oracle,
    Pilot,
    Proposal,
    SoftmaxGlobal,
    Uniform,
)
from rdpgraph.estimate.selections import (
    Inversion,
    Selection,
    Threshold,
    Top,
    TopSystematic,
    TopTail,
)

__all__ = [
    "Global",
    "Inversion",
    "Landmark",
    "Local",
    "LocalGlobal",
    "LowRankPilot",
    "Mixture",
    "Oracle",
    "Pilot",
    "Proposal",
    "Selection",
    "SoftmaxGlobal",
    "Threshold",
    "Top",
    "TopSystematic",
    "TopTail",
    "Uniform",
]
