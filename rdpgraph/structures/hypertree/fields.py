"""What a hypertree is made of: its potentials, checked, and its recursion over spans."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from rdpgraph.model.arrays import settle
from rdpgraph.structures.hypertree.charts import kept_layout
from rdpgraph.structures.hypertree.checks import (
    checked_root,
    checked_rules,
    checked_unary,
    settle_lengths,
)
from rdpgraph.structures.hypertree.rules import NoRules, Rules
from rdpgraph.structures.tape.recursion import Recursion
from rdpgraph.structures.tape.tape import Tape
from rdpgraph.structures.tape.values import Value, View


@dataclass(frozen=True, eq=False)
class HypertreeFields(Recursion):
    """The fields of a `Hypertree`, described there: what the files behind its questions read."""

    rules: Rules = field(default_factory=NoRules)
    root: Tensor | None = field(default=None, kw_only=True, metadata={"dims": 1})
    preterminals: int = field(default=0, kw_only=True)
    lengths: Tensor | None = field(default=None, kw_only=True, metadata={"dims": 0})

    site_dims = 2

    def __post_init__(self) -> None:
        settle(self, "unary", "root", whole=("lengths",))
        checked_unary(self.unary)
        checked_rules(self.rules, self.unary, self.preterminals)
        checked_root(self.root, self.unary, self.preterminals)
        settle_lengths(self, lengths=self.unary.shape[-2])

    def potentials(self, unary: Tensor) -> Tensor:
        """-inf for preterminals of two words and more, and for others of one, if there are any."""
        if not self.preterminals:
            return unary
        count, total = unary.shape[-1], unary.shape[-2]
        word = torch.eye(total, dtype=torch.bool, device=unary.device).unsqueeze(-1)
        single = torch.arange(count, device=unary.device) >= count - self.preterminals
        return torch.where(word == single, unary, -torch.inf)

    def recursion(self, tape: Tape) -> Value:
        """By width, from all splits."""
        words, device = tape.site_shape[0], tape.device
        lengths = tape.lengths(self.lengths, words).unsqueeze(1)
        rows = list[Value]()
        for first, last, left, right in _rows(words, device):
            row = tape.sites[first, last]
            if rows:
                pool = tuple(rows)
                parts = View(pool, left, full=True), View(pool, right, full=True)
                row = tape.total((row, tape.join(*parts, self.rules, to=row)))
            rows.append(row)
        empty = tape.allowed(lengths == 0)
        if not rows:
            return empty
        width = (lengths - 1).clamp(min=0)
        last = _start(width, words).unsqueeze(2)
        whole = tape.total(tape.view(rows, torch.where(lengths.unsqueeze(2) > 0, last, -1)))
        if self.root is not None or self.preterminals:
            root = self.unary.new_zeros(self.unary.shape[-1] - self.preterminals)
            root = root if self.root is None else self.root
            root = pad(root, (0, self.preterminals), value=-torch.inf)
            whole = tape.total((whole, tape.lookup(root, whole)))
        return tape.total(tape.sum(whole), empty)


def _start(width: int | Tensor, words: int) -> Any:
    """Where the spans of a width start, among those of all widths."""
    return width * words - width * (width - 1) // 2


@kept_layout
def _rows(words: int, device: torch.device) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Of all widths the first and last words of spans; and places of the parts, (splits, spans)."""
    rows = list[tuple[Tensor, Tensor, Tensor, Tensor]]()
    for width in range(words):
        first = torch.arange(words - width, device=device)
        split = torch.arange(width, device=device).unsqueeze(1)
        left = _start(split, words) + first
        right = _start(width - 1 - split, words) + first + split + 1
        rows.append((first, first + width, left, right))
    return rows
