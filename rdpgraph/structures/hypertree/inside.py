"""Log Z of hypertrees: by scaled products where those keep their digits, else by tape."""

import math
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from rdpgraph.model.semiring import soft_sum
from rdpgraph.structures.hypertree.charts import HypertreeTensors
from rdpgraph.structures.hypertree.dense import DenseSweep
from rdpgraph.structures.hypertree.fields import HypertreeFields
from rdpgraph.structures.hypertree.form import Form
from rdpgraph.structures.hypertree.ranked import RankedSweep
from rdpgraph.structures.hypertree.rules import DenseRules, NoRules
from rdpgraph.structures.hypertree.sparse_rules import SparseRules
from rdpgraph.structures.hypertree.sweep import log_roots
from rdpgraph.structures.tape import machine
from rdpgraph.structures.tape.up import log_sum


def log_partition(tree: HypertreeFields) -> Tensor:
    """(B,) log Z in nats, all batch dims in one; 0 for items of length 0."""
    form, rules = Form(tree), tree.rules
    if not form.batch or tree.unary.shape[-2] < 2 or isinstance(rules, NoRules | SparseRules):
        return _by_tape(tree)
    if not tree.preterminals and machine.serves(tree.unary, tree.unary.dtype):
        return _by_tape(tree)
    parts = form.parts
    total, doubtful = _by_kernel(parts, form.root)
    if bool(doubtful.any()):
        rows = doubtful.nonzero().squeeze(1)
        some, surely = form.items(rows), _by_tape
        if parts.spans.dtype != torch.float64:
            some, surely = _in_doubles(some), log_partition
        total = total.index_copy(0, rows, surely(some).to(total))
    return total


def span_sums(tree: HypertreeFields) -> list[Tensor] | None:
    """(B, S, C) log inside values of the spans of two words, of three and so on, in doubles.

    None where the kernel may lose some of them, or has none of all labels.
    """
    form = Form(tree)
    if not form.batch or tree.unary.shape[-2] < 2 or not isinstance(tree.rules, DenseRules):
        return None
    sweep = DenseSweep(form.parts.to(torch.float64))
    if bool(sweep.forward()[1].any()):
        return None
    widths = range(1, tree.unary.shape[-2])
    logs = (sweep.value(w).log() + sweep.charts["scales"].left(w).unsqueeze(2) for w in widths)
    return [pad(row, (0, tree.preterminals), value=-math.inf) for row in logs]


def _by_tape(tree: HypertreeFields) -> Tensor:
    """(B,) exact at any range."""
    half = tree.unary.dtype not in (torch.float32, torch.float64)
    tape = tree.to_tape(double=half)
    return log_sum(tape).to(tree.unary).flatten()


def _in_doubles(tree: HypertreeFields) -> HypertreeFields:
    rules = tree.rules.with_parts([part.double() for part in tree.rules.parts])
    root = None if tree.root is None else tree.root.double()
    return replace(tree, unary=tree.unary.double(), rules=rules, root=root)


def _by_kernel(parts: HypertreeTensors, root: Tensor) -> tuple[Tensor, Tensor]:
    """(B,) log Z of sequences of two words and more at most, and whether it is in doubt."""
    dtype = parts.spans.dtype
    if dtype not in (torch.float32, torch.float64):
        total, doubtful = _by_kernel(parts.to(torch.float32), root.float())
        return total.to(dtype), doubtful
    kind = DenseSweep if isinstance(parts.rules, DenseRules) else RankedSweep
    roots, doubtful = log_roots(kind, parts)
    if parts.split:
        roots = pad(roots, (0, parts.leaves.shape[2]), value=-math.inf)
    else:
        roots = torch.where((parts.lengths == 1).unsqueeze(1), parts.leaves[:, 0], roots)
    total = soft_sum(roots + root, 1)
    return torch.where(parts.lengths > 0, total, 0.0), doubtful
