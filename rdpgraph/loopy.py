"""Options of `Loopy`: counting numbers, schedules, damping and gradients.

Counting numbers of factors (`Bethe`, `TreeReweighted`, `Fractional`, user-defined
`CountingNumbers`), the order of messages (`Flooding`, `Sequential`, `Residual`, `RandomSubsets`, a
user-defined `Schedule`), damping, and the gradient method. The scheduler is `rdpgraph.Loopy`.
"""

from rdpgraph.engines.loopy.network_equations import (
    Bethe,
    CountingNumbers,
    Fractional,
    TreeReweighted,
)
from rdpgraph.engines.loopy.propagation import FromBeliefs, Gradient, Implicit, Sweep, Unrolled
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
