"""Hypertrees from what other fields call their parts."""

import torch
from torch import Tensor
from torch.nn.functional import pad

from rdpgraph.errors import ModelError
from rdpgraph.structures.hypertree.rules import Rules


def pcfg_unary(root: Tensor, rules: Rules, terms: Tensor) -> Tensor:
    """(*batch, T, T, NT + PT) span potentials of a grammar: those of its words, else zero.

    Raises:
        ModelError: shapes that do not fit.
    """
    if rules.shape is None or terms.ndim < 2 or root.ndim < 1:
        raise ModelError(
            "Hypertree.pcfg needs rules of a size, root (*batch, NT) and terms (*batch, T, PT)."
        )
    parents, children = rules.shape
    if children - parents != terms.shape[-1] or root.shape[-1] != parents:
        raise ModelError(
            f"Hypertree.pcfg with rules of {parents} parents and {children} children needs "
            f"root (*batch, {parents}) and terms (*batch, T, {children - parents}); got "
            f"{tuple(root.shape)} and {tuple(terms.shape)}."
        )
    words = pad(terms, (parents, 0))
    diagonal = torch.eye(terms.shape[-2], dtype=torch.bool, device=terms.device).unsqueeze(-1)
    zero = torch.zeros((), dtype=words.dtype, device=words.device)
    return torch.where(diagonal, words.unsqueeze(-3), zero)
