"""What `Loopy` is made of: counting numbers, schedules, damping and gradients.

Here belongs each choice that belief propagation leaves open: how often each factor is counted
(`Bethe`, `TreeReweighted`, `Fractional`, `CountingNumbers` of your own), which messages are
computed next (`Flooding`, `Sequential`, `Residual`, `RandomSubsets`, a `Schedule` of your own), how
much of the old message is kept, and how the gradient is found. The scheduler itself is
`rdpgraph.Loopy`.
"""

from rdpgraph.engines.loopy.counting import Bethe, CountingNumbers, Fractional, TreeReweighted
from rdpgraph.engines.loopy.gradients import FromBeliefs, Gradient, Implicit, Unrolled
from rdpgraph.engines.loopy.propagation import Sweep
from rdpgraph.engines.loopy.schedules import (
    Damping,
    Flooding,
    LogDamping,
    ProbabilityDamping,
    RandomSubsets,
    Residual,
    Schedule,
    Sequential,
)

__all__ = [
    "Bethe",
    "CountingNumbers",
    "Damping",
    "Flooding",
    "Fractional",
    "FromBeliefs",
    "Gradient",
    "Implicit",
    "LogDamping",
    "ProbabilityDamping",
    "RandomSubsets",
    "Residual",
    "Schedule",
    "Sequential",
    "Sweep",
    "TreeReweighted",
    "Unrolled",
]
