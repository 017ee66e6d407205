"""Learned positive features of embeddings."""

import math

import torch
from torch import Tensor, nn

from rdpgraph.errors import ModelError
from rdpgraph.model.potentials.features import RandomFeatures
from rdpgraph.model.potentials.lowrank import LowRank


class FeatureMap(nn.Module):
    """Positive features exp(x W) of embeddings, W learned.

    What low-rank models train instead of random features: no estimate of exp(x . y), but a
    different family of potentials, exact. W starts as orthogonal random directions. Chiu, Deng
    and Rush 2021 (arXiv:2201.02715), section 4.

    Example:
        >>> states = torch.randn(1000, 16)
        >>> feature_map = FeatureMap(16, 32)
        >>> feature_map.low_rank(states, states).shape
        (1000, 1000)

    Args:
        dimension: of the embeddings.
        features: how many, the rank.
        generator: of the initial W.

    Attributes:
        weight: (features, dimension).
    """

    def __init__(
        self, dimension: int, features: int, *, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        drawn = RandomFeatures(dimension, features, generator=generator)
        self.weight = nn.Parameter(drawn.directions.clone())

    def forward(self, embeddings: Tensor) -> Tensor:
        """(*lead, n, dimension) as log-features (*lead, n, features), nats.

        Raises:
            ModelError: embeddings of another dimension.
        """
        if embeddings.shape[-1] != self.weight.shape[1]:
            raise ModelError(
                f"FeatureMap of dimension {self.weight.shape[1]} got embeddings "
                f"{tuple(embeddings.shape)}."
            )
        return embeddings @ self.weight.mT - math.log(len(self.weight)) / 2

    def low_rank(self, left: Tensor, right: Tensor) -> LowRank:
        """The potential of value ``exp(x W) . exp(y W)``, embeddings (*lead, states, dimension)."""
        return LowRank(self(left), self(right))

    def extra_repr(self) -> str:
        return f"dimension={self.weight.shape[1]}, features={len(self.weight)}"
