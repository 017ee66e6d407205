"""Parts that models of words share: learned features of embeddings, and checks of tokens."""

import math

import torch
from torch import Tensor, nn

from rdpgraph.errors import EvidenceError, ModelError
from rdpgraph.model.potentials.features import RandomFeatures
from rdpgraph.model.potentials.lowrank import LowRank
from rdpgraph.model.potentials.table import as_states
from rdpgraph.structures.chain.constructors import checked_lengths
from rdpgraph.structures.chain.factors import inside


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


def checked_tokens(
    name: str, tokens: Tensor, lengths: Tensor | None, vocabulary: int | None = None
) -> tuple[Tensor, Tensor]:
    """Tokens (B, T), 0 beyond the lengths, and lengths (B,); errors name the model."""
    tokens = as_states(f"{name}'s tokens", tokens)
    if tokens.ndim != 2 or tokens.is_floating_point():
        raise EvidenceError(
            f"{name} needs integer tokens (B, T); got {tuple(tokens.shape)} of {tokens.dtype}."
        )
    batch, total = tokens.shape
    if lengths is None:
        lengths = torch.full((batch,), total, device=tokens.device)
    lengths = checked_lengths(lengths, tokens.unsqueeze(-1))
    tokens = torch.where(inside(lengths, total), tokens.long(), 0)
    if vocabulary is not None:
        require_known(f"{name} of {vocabulary} words", tokens, vocabulary)
    return tokens, lengths


def require_known(what: str, tokens: Tensor, vocabulary: int) -> None:
    """Raise an `EvidenceError` for a token out of range."""
    wrong = tokens[(tokens < 0) | (tokens >= vocabulary)]
    if len(wrong):
        raise EvidenceError(f"{what} got token {int(wrong[0])}; use 0 to {vocabulary - 1}.")
