"""Log Z of hypertrees: by scaled products, in doubles where those may underflow, else in logs."""

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

from rdpgraph.model.semiring import soft_sum
from rdpgraph.structures.hypertree import dense, plain, ranked
from rdpgraph.structures.hypertree.charts import HypertreeTensors
from rdpgraph.structures.hypertree.rules import DenseRules
from rdpgraph.structures.hypertree.sparse_rules import SparseRules


def log_partition(parts: HypertreeTensors, root: Tensor) -> Tensor:
    """(B,) log Z in nats; 0 for items of length 0.

    Args:
        parts: the hypertree.
        root: (1 or B, C) log-potentials of the state of the whole sentence.
    """
    total = soft_sum(log_roots(parts) + root, 1)
    return torch.where(parts.lengths > 0, total, 0.0)


def log_roots(parts: HypertreeTensors) -> Tensor:
    """(B, C) log inside values of whole sentences, single words included."""
    words = parts.children - parts.spans.shape[3]
    batch, total = parts.leaves.shape[:2]
    if not total or not batch:
        return parts.spans.sum((1, 2, 3)).unsqueeze(1).expand(-1, parts.children)
    if total > 1:
        wide = _wide(parts)
    else:  # there is none
        never = torch.zeros_like(parts.lengths, dtype=torch.bool).unsqueeze(1)
        wide = torch.where(never, parts.spans[:, 0, 0], -math.inf)
    if parts.split:
        return pad(wide, (0, words), value=-math.inf)
    return torch.where((parts.lengths == 1).unsqueeze(1), parts.leaves[:, 0], wide)


def _wide(parts: HypertreeTensors) -> Tensor:
    """(B, N) of items of two words and more."""
    if parts.spans.dtype not in (torch.float32, torch.float64):
        return _wide(parts.to(torch.float32)).to(parts.spans.dtype)
    if isinstance(parts.rules, SparseRules):
        return plain.log_roots(parts)
    kernel = dense if isinstance(parts.rules, DenseRules) else ranked
    roots, doubtful = kernel.log_roots(parts)
    if not bool(doubtful.any()):
        return roots
    rows = doubtful.nonzero().squeeze(1)
    other = parts.rows(rows)
    if parts.spans.dtype == torch.float32:
        better = _wide(other.to(torch.float64)).to(roots.dtype)
    else:
        better = plain.log_roots(other)
    return roots.index_copy(0, rows, better)


@torch.no_grad()
def charts(parts: HypertreeTensors) -> list[Tensor]:
    """By width (B, T - width, C) log inside values of all spans, in doubles, without gradient."""
    parts = parts.to(torch.float64)
    if parts.spans.shape[1] < 2:
        return plain.with_leaves(parts, [])
    if isinstance(parts.rules, SparseRules):
        return plain.with_leaves(parts, plain.exact(parts))
    kernel = dense if isinstance(parts.rules, DenseRules) else ranked
    _, doubtful = kernel.log_roots(parts)
    rows = plain.exact(parts) if bool(doubtful.any()) else plain.scaled(parts)
    return plain.with_leaves(parts, rows)
