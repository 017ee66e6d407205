"""What `Randomized` is made of: proposals and selections.

A `Proposal` says how much each state of a variable is expected to weigh; a `Selection` decides
which states are kept and with which weights, so that Z stays unbiased. Here belong those that are
built in, and the interfaces of your own. The estimator itself is `rdpgraph.Randomized`.
"""

from rdpgraph.estimate.lowrank import LowRankPilot
from rdpgraph.estimate.pilot import Pilot
from rdpgraph.estimate.proposals import (
    Global,
    Landmark,
    Local,
    LocalGlobal,
    Mixture,
    Oracle,
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
