"""Rules of low rank as the kernels take them."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from rdpgraph.structures.hypertree.rules import (
    DenseRules,
    FactorisedRules,
    LowRankRules,
    NoRules,
    Rules,
    some_items,
)


@dataclass(frozen=True, eq=False)
class Ranks:
    """weight(k, a, b) = sum_r exp(parent_kr + left_ar + right_br).

    Without parents' factors each parent has a run of ranks of its own, which are summed.

    Attributes:
        left: (R, C, r) log-factors, R = 1 or B.
        right: (R, C, r).
        parent: (R, N, r), or None.
    """

    left: Tensor
    right: Tensor
    parent: Tensor | None = None

    @property
    def parts(self) -> tuple[Tensor, ...]:
        """The tensors of the factors: left, right, and parent."""
        sides = self.left, self.right
        return sides if self.parent is None else (*sides, self.parent)

    def with_parts(self, parts: Sequence[Tensor]) -> "Ranks":
        """The same of other tensors."""
        return Ranks(*parts)

    def item(self, rows: Tensor) -> "Ranks":
        """Those of some items."""
        return Ranks(*some_items(self.parts, rows))


def kernel_form(rules: Rules, spans: Tensor, children: int) -> tuple[DenseRules | Ranks, Tensor]:
    """Flat rules as the kernels take them, and the spans (B, T, T, N) that go with them."""
    if isinstance(rules, DenseRules):
        return rules, spans
    if isinstance(rules, NoRules):
        zeros = spans.new_zeros(1, children, 1)
        return Ranks(zeros, zeros, zeros[:, : spans.shape[3]]), spans
    if isinstance(rules, LowRankRules):
        return Ranks(rules.left, rules.right, rules.parent), spans
    if isinstance(rules, FactorisedRules):
        left, right = (part.transpose(1, 2).flatten(2) for part in rules.parts)
        return Ranks(left, right), spans - rules.log_normaliser[:, None, None]
    return DenseRules(rules.table(spans.shape[3], children)), spans
