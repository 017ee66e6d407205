"""Binary trees as a recursion over spans: what estimators restrict."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from rdpgraph._cache import remembered
from rdpgraph.structures.hypertree.fields import HypertreeFields
from rdpgraph.structures.hypertree.rules import Rules
from rdpgraph.structures.tape.recursion import Recursion
from rdpgraph.structures.tape.tape import Tape
from rdpgraph.structures.tape.values import Value, View


@dataclass(frozen=True, eq=False)
class HypertreeRecursion(Recursion):
    """The trees of a `Hypertree`, laid out on a tape.

    Args:
        unary: (*batch, T, T, N) log-potentials, [first, last, state]; those of preterminals are
            -inf at spans of two words and more, and of others at single words, if there are any.
        rules: log-weights of a state given those of its two parts.
        root: (*batch, N - preterminals), or None.
        preterminals: how many of the states are for single words alone.
        lengths: (*batch,), or None.
    """

    rules: Rules
    root: Tensor | None = None
    preterminals: int = 0
    lengths: Tensor | None = field(default=None, metadata={"dims": 0})

    site_dims = 2

    @classmethod
    def of(cls, tree: HypertreeFields) -> "HypertreeRecursion":
        """The trees of a hypertree."""
        unary, words = tree.unary, tree.preterminals
        if words:
            # Single words have preterminals, and nothing else has.
            count, total = unary.shape[-1], unary.shape[-2]
            word = torch.eye(total, dtype=torch.bool, device=unary.device).unsqueeze(-1)
            single = torch.arange(count, device=unary.device) >= count - words
            unary = torch.where(word == single, unary, -torch.inf)
        return cls(unary, tree.rules, tree.root, words, tree.lengths)

    @property
    def name(self) -> str:
        """The name of the structure, for error messages."""
        return "Hypertree"

    def recursion(self, tape: Tape) -> Value:
        """By width, from all splits."""
        words, device = tape.site_shape[0], tape.device
        lengths = tape.lengths(self.lengths, words).unsqueeze(1)
        rows = list[Value]()
        for first, last, left, right in _rows(words, device):
            row = tape.sites[first, last]
            if rows:
                pool = tuple(rows)
                parts = View(pool, left), View(pool, right)
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


@remembered(16, where=lambda words, device: words <= 64)  # noqa: ARG005
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
