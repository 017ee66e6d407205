"""When loopy messages choose their states anew, and by what."""

from dataclasses import dataclass, field

import torch

from rdpgraph.errors import ModelError
from rdpgraph.estimate.randomized import Randomized


@dataclass(frozen=True)
class Redrawn:
    """States of every variable drawn anew, at some sweeps, from the beliefs so far.

    The first states are those of the estimator. At each of the sweeps every factor's message is
    taken one step further, from the states kept to all states of the variable that it goes to: in
    O(K N) for a pair of variables with N states of which K are kept. The beliefs so formed choose
    the next states, and the messages at those are where the sweeps go on.

    Args:
        estimator: chooses states; its replicates run side by side, and the beliefs are their mean.
        at: the numbers of sweeps after which states are drawn anew, increasing.
        share: the part of the beliefs in the proposal, the rest being the estimator's own.
        generator: all the randomness there is.
    """

    estimator: Randomized
    at: tuple[int, ...] = (5, 10)
    share: float = 0.5
    generator: torch.Generator | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "at", tuple(self.at))
        steps = [after - before for before, after in zip((0, *self.at), self.at, strict=False)]
        if not all(step >= 1 for step in steps) or not 0.0 < self.share <= 1.0:
            raise ModelError(
                "Redrawn needs increasing numbers of sweeps >= 1 and a share in (0, 1]; got "
                f"{self.at} and {self.share}."
            )
