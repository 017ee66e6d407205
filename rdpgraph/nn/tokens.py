"""Checks of tokens that models of words share."""

import torch
from torch import Tensor

from rdpgraph.errors import EvidenceError
from rdpgraph.model.potentials.table import as_states
from rdpgraph.structures.chain.constructors import checked_lengths
from rdpgraph.structures.chain.factors import inside


def checked_tokens(name: str, tokens: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
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
    return torch.where(inside(lengths, total), tokens.long(), 0), lengths


def require_known(what: str, tokens: Tensor, vocabulary: int) -> None:
    """Raise an `EvidenceError` for a token out of range."""
    wrong = tokens[(tokens < 0) | (tokens >= vocabulary)]
    if len(wrong):
        raise EvidenceError(f"{what} got token {int(wrong[0])}; use 0 to {vocabulary - 1}.")
