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
from rdpgraph.structures.grammar.rules import FactorisedRules, LowRankRules, NoRules
from rdpgraph.structures.grammar.written import write_kept_rules
from rdpgraph.structures.recurrence import RestrictedRecurrence


@dataclass(frozen=True, eq=False)
class RestrictedHypertree(RestrictedRecurrence):
    """A hypertree on some states of each span, numbered 0..K-1, made by `Hypertree.restrict`.

    Rules of low rank are read by rank, those of other kinds one by one: every way to split a span
    has a table of the rules from the states kept of both parts to those of the whole. All are made
    of the original's rules by torch, so that nothing has an entry for each rule.
    """

    original: Any  # a `Hypertree`

    def written(self) -> tuple[Declared, str]:
        return self.written_for()

    def written_for(self, *, ranks: bool = False, kept: bool = True) -> tuple[Declared, str]:
        return write_kept_rules(self._kind(ranks=ranks))

    def _kind(self, *, ranks: bool) -> Literal["joint", "ranked", "free"]:
        rules = self.original.rules
        if isinstance(rules, NoRules) or self.states.shape[-2] < 2:  # nothing is joined
            return "free"
        return "ranked" if ranks and isinstance(rules, LowRankRules | FactorisedRules) else "joint"

    def inputs(self) -> Mapping[str, Any]:
        return {"unary": self.unary, "lengths": self.original.lengths, "roots": self._roots()}

    def _bind(
        self, other: Mapping[str, Tensor] | None = None, *, ranks: bool = False, **how: Any
    ) -> Bound:
        rules = {"free": dict, "ranked": self._by_rank, "joint": self._joint}
        own = rules[self._kind(ranks=ranks)]()
        return super()._bind({**own, **(other or {})}, ranks=ranks, **how)

    def _roots(self) -> Tensor:
        """(*lead, K) the root's log-potentials of the states kept of the whole."""
        states, total = self.original.unary.shape[-1], self.states.shape[-2]
        tree = self.original
        if not total or (tree.root is None and not tree.preterminals):
            return self.unary.new_zeros(self.unary.shape[-1])
        lengths = total if tree.lengths is None else tree.lengths
        last = (torch.as_tensor(lengths, device=self.states.device) - 1).clamp(min=0)
        lead = self.states.shape[:-3]
        at = last.expand(lead)[..., None, None].expand(*lead, 1, self.states.shape[-1])
        whole = self.states[..., 0, :, :].gather(-2, at).squeeze(-2)
        root = self.unary.new_zeros(states - tree.preterminals) if tree.root is None else tree.root
        root = pad(root, (0, tree.preterminals), value=-math.inf)
        return root.expand(*lead, states).gather(-1, whole)

    def _by_rank(self) -> dict[str, Tensor]:
        """The factors of the states kept of each span, (*lead, T, T, K, r)."""
        rules = self.original.rules
        assert isinstance(rules, LowRankRules | FactorisedRules)
        factors = rules.ranks()
        names = ("parent", "left", "right")
        return {name: self._taken(one) for name, one in zip(names, factors, strict=True)}

    def _taken(self, factor: Tensor) -> Tensor:
        """(*lead, T, T, K, r) the rows of a factor (*batch, C, r) of the states kept."""
        lead, rank = self.states.shape[:-3], factor.shape[-1]
        if math.prod(factor.shape[:-2]) == 1:
            return factor.reshape(-1, rank)[self.states]
        rows = factor.expand(*lead, *factor.shape[-2:])
        at = self.states.flatten(-3).unsqueeze(-1).expand(*self.states.shape[:-3], -1, rank)
        return rows.gather(-2, at).reshape(*self.states.shape, rank)

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
