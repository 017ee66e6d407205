"""Beam sampling of a chain (Van Gael, Saatci, Teh and Ghahramani 2008), with soft counts.

A sweep draws a level below each transition of the present path, and sums and draws over the paths
whose transitions are all above their levels: a mask of transitions rather than of states.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class BeamSampler:
    """The sampler of one chain.

    Attributes:
        unary: (T, N) log-potentials of states.
        transition: (N, N) their transitions, exponentials of log-potentials.
    """

    unary: Tensor
    transition: Tensor

    def sweep(self, path: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """(T, N) marginals given the levels of a path (T,), and the next path."""
        steps = len(self.unary)
        weights = (self.unary - self.unary.amax(1, keepdim=True)).exp()
        levels = self.transition[path[:-1], path[1:]] * torch.rand(steps - 1, generator=generator)
        forward = [weights[0] / weights[0].sum()]
        for step in range(1, steps):
            above = (self.transition > levels[step - 1]).to(weights)
            own = weights[step] * (forward[-1] @ above)
            forward.append(own / own.sum())
        drawn = [torch.multinomial(forward[-1], 1, generator=generator)]
        chances, behind = [forward[-1]], torch.ones_like(weights[0])
        for step in range(steps - 1, 0, -1):
            above = self.transition > levels[step - 1]
            options = forward[step - 1] * above[:, drawn[-1]].squeeze(1)
            drawn.append(torch.multinomial(options, 1, generator=generator))
            behind = above.to(weights) @ (weights[step] * behind)
            behind = behind / behind.max()
            own = forward[step - 1] * behind
            chances.append(own / own.sum())
        return torch.stack(chances[::-1]), torch.cat(drawn[::-1])
