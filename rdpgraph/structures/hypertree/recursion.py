"""Binary trees as a recursion over spans: what estimators restrict."""

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import pad

from rdpgraph.structures.hypertree.fields import HypertreeFields
from rdpgraph.structures.hypertree.rules import Rules
from rdpgraph.structures.tape.recursion import Recursion
from rdpgraph.structures.tape.tape import Tape
from rdpgraph.structures.tape.values import Value


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
        rows, starts = list[Value](), torch.zeros(1, dtype=torch.long, device=device)
        for width in range(words):
            first = torch.arange(words - width, device=device)
            row = tape.sites[first, first + width]
            if width:
                split = torch.arange(width, device=device).unsqueeze(1)
                left = tape.view(rows, starts[:-1].unsqueeze(1) + first)
                right = tape.view(rows, starts[:-1].flip(0).unsqueeze(1) + first + split + 1)
                row = tape.total((row, tape.join(left, right, self.rules, to=row)))
            rows.append(row)
            starts = torch.cat([starts, starts[-1:] + words - width])
        empty = tape.allowed(lengths == 0)
        if not rows:
            return empty
        last = starts[(lengths - 1).clamp(min=0)].unsqueeze(2)
        whole = tape.total(tape.view(rows, torch.where(lengths.unsqueeze(2) > 0, last, -1)))
        if self.root is not None or self.preterminals:
            root = self.unary.new_zeros(self.unary.shape[-1] - self.preterminals)
            root = root if self.root is None else self.root
            root = pad(root, (0, self.preterminals), value=-torch.inf)
            whole = tape.total((whole, tape.lookup(root, whole)))
        return tape.total(tape.sum(whole), empty)
