"""What a hypertree is made of: its potentials, checked."""

from dataclasses import dataclass, field

from torch import Tensor

from rdpgraph.model.arrays import settle
from rdpgraph.model.structure import Structure
from rdpgraph.structures.hypertree.checks import (
    checked_lengths,
    checked_root,
    checked_rules,
    checked_unary,
)
from rdpgraph.structures.hypertree.rules import NoRules, Rules


@dataclass(frozen=True, eq=False)
class HypertreeFields(Structure):
    """The fields of a `Hypertree`, described there: what the files behind its questions read."""

    rules: Rules = field(default_factory=NoRules)
    root: Tensor | None = field(default=None, kw_only=True, metadata={"dims": 1})
    preterminals: int = field(default=0, kw_only=True)
    lengths: Tensor | None = field(default=None, kw_only=True, metadata={"dims": 0})

    def __post_init__(self) -> None:
        settle(self, "unary", "root", whole=("lengths",))
        checked_unary(self.unary)
        checked_rules(self.rules, self.unary, self.preterminals)
        checked_root(self.root, self.unary, self.preterminals)
        if self.lengths is not None:
            total = self.unary.shape[-2]
            lengths = checked_lengths("Hypertree", self.lengths, self.batch_shape, total)
            object.__setattr__(self, "lengths", lengths.to(self.unary.device))

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """The dims in front."""
        return tuple(self.unary.shape[:-3])
