"""Hypertrees on a few states of each span."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from rdpgraph._core.cache import remembered
from rdpgraph.recurrences.bound import Bound
from rdpgraph.recurrences.declaration import Declared
from rdpgraph.recurrences.restriction import STATES, restrict_rules
from rdpgraph.structures.grammar.rules import DenseRules, FactorisedRules, LowRankRules, NoRules
from rdpgraph.structures.grammar.written import write_joint_rules, write_rules
from rdpgraph.structures.recurrence import RestrictedRecurrence


@dataclass(frozen=True, eq=False)
class RestrictedHypertree(RestrictedRecurrence):
    """A hypertree on some states of each span, numbered 0..K-1, made by `Hypertree.restrict`.

    A table of rules, and rules by rank, are looked up at the states kept. Of other kinds every way
    to split a span has a table of the rules from the states kept of both parts to those of the
    whole, made by torch, so that nothing has an entry for each rule.
    """

    original: Any  # a `Hypertree`

    def written_for(self, *, ranks: bool = False, kept: bool = True) -> tuple[Declared, str]:
        kind = self._kind(ranks=ranks)
        if kind == "joint":
            return write_joint_rules()
        return restrict_rules(self.name, *write_rules(kind, 0, rooted=False))

    def _kind(self, *, ranks: bool) -> Literal["dense", "ranked", "free", "joint"]:
        rules = self.original.rules
        if isinstance(rules, NoRules) or self.states.shape[-2] < 2:  # nothing is joined
            return "free"
        if isinstance(rules, DenseRules):
            return "dense"
        return "ranked" if ranks and isinstance(rules, LowRankRules | FactorisedRules) else "joint"

    def inputs(self) -> Mapping[str, Any]:
        rules = self.original.rules
        given = {"unary": self.unary, STATES: self.states, "lengths": self.original.lengths}
        if isinstance(rules, DenseRules):
            # Preterminals, which have any place among the states kept, are no parents.
            more = (0, 0, 0, 0, 0, self.original.preterminals)
            given["ruled"] = pad(rules.log_rule, more, value=-math.inf)
        elif isinstance(rules, LowRankRules | FactorisedRules):
            given |= dict(zip(("parent", "left", "right"), rules.ranks(), strict=True))
        return given

    def _bind(
        self, other: Mapping[str, Tensor] | None = None, *, ranks: bool = False, **how: Any
    ) -> Bound:
        own = self._joint() if self._kind(ranks=ranks) == "joint" else {}
        return super()._bind({**own, **(other or {})}, ranks=ranks, **how)

    def _joint(self) -> dict[str, Tensor]:
        """The rules of every way to split a span, (*lead, M, K, K, K), and the numbers of ways."""
        tree, total = self.original, self.states.shape[-2]
        (first, middle, last), split = _ways(total, self.states.device)
        batch = tree.batch_shape
        lead, kept = self.states.shape[:-3], self.states.shape[-1]
        counts = math.prod(lead[: len(lead) - len(batch)]), math.prod(batch)
        flat = self.states.reshape(*counts, total, total, kept).transpose(0, 1)
        # States that are no parents are forbidden by their potentials, and have any rule.
        parents = tree.unary.shape[-1] - tree.preterminals
        whole = flat[:, :, first, last].clamp(max=parents - 1)
        rules = tree.rules.flat(batch)
        joint = rules.evaluate(whole, flat[:, :, first, middle], flat[:, :, middle + 1, last])
        joint = joint.transpose(0, 1).reshape(*lead, len(first), kept, kept, kept)
        return {"joint": joint.to(self.unary), "split": split}


def _ways(total: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The result of `_made_ways`, kept where it is small: it grows as the cube of the words."""
    return (_kept_ways if total <= 64 else _made_ways)(total, device)


def _made_ways(total: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """(3, M) the first, middle and last word of every way to split a span; (T, T, T) its number."""
    place = torch.arange(total, device=device)
    first, middle, last = place[:, None, None], place[:, None], place
    there = (first <= middle) & (middle < last)
    split = torch.where(there, there.flatten().cumsum(0).reshape(there.shape) - 1, 0)
    return there.nonzero().T, split


_kept_ways = remembered(16)(_made_ways)
