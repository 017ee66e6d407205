"""Bitexts within masks of the pairs of words in one leaf."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from rdpgraph._core.cache import cached_property
from rdpgraph.structures.compact.bispans import Bispans
from rdpgraph.structures.compact.inside import LOWEST, Binary, Forest, joined_forest
from rdpgraph.structures.compact.masked import ForestMasked, LinkMasks
from rdpgraph.structures.recursion.rules import Rules


@dataclass(frozen=True, eq=False)
class BitextMasks(LinkMasks):
    """Questions whether one leaf has a source and a target word.

    A yes leaves the bispans that have both words or neither; a no leaves the leaves that lack one.
    """

    straight: Rules
    inverted: Rules
    leaves: int
    root: Tensor | None
    allowed: Tensor | None

    def gains(self) -> Tensor:
        """The score of the best leaf of both words less those of the best leaves of one alone."""
        leaves = self.model.unary[..., -self.leaves :].detach().amax(-1).double()
        pairs = leaves.diagonal(1, -4, -3).diagonal(1, -3, -2)
        source = leaves.diagonal(1, -4, -3).diagonal(0, -3, -2).amax(-1)
        target = leaves.diagonal(0, -4, -3).diagonal(1, -3, -2).amax(-2)
        return pairs - (source.unsqueeze(-1) + target.unsqueeze(-2)).clamp(min=LOWEST)

    @cached_property
    def rules(self) -> Binary:
        """The rules of both orders."""
        states, device = self.sites[-1], self.model.unary.device
        tables: list[Tensor] = []
        for rules in (self.straight, self.inverted):
            table = rules.flat(self.batch_shape).table(states, states).to(device)
            tables.append(table.detach().reshape(-1, states, states, states))
        return Binary.of(tables)

    def masked(self, required: Tensor, forbidden: Tensor) -> "MaskedBitext":
        lead = tuple(required.shape[:-2])
        batch, chains = self.items, self.chains(lead)
        p, q = self.questions
        lengths = self.lengths[0].repeat(chains), self.lengths[1].repeat(chains)
        links = required.reshape(len(lengths[0]), p, q).nonzero()
        allowed = None if self.allowed is None else self.allowed.to(links.device).unsqueeze(0)
        kept = Bispans.of(lengths, links, allowed)
        i, k, j, m = kept.ends
        logs = self.potentials[kept.item % max(batch, 1), i, k, j, m].double()
        leaf = torch.arange(logs.shape[1], device=logs.device) >= logs.shape[1] - self.leaves
        no = pad(forbidden.reshape(len(lengths[0]), p, q).long(), (1, 0, 1, 0)).cumsum(1).cumsum(2)
        at = kept.item
        barred = no[at, k, m] - no[at, i, m] - no[at, k, j] + no[at, i, j] > 0
        ends = logs.masked_fill(~leaf | barred.unsqueeze(1), -math.inf)
        zero, every = torch.zeros_like(lengths[0]), torch.arange(len(lengths[0]), device=at.device)
        empty = (lengths[0] == 0) & (lengths[1] == 0)
        tops = kept.numbers(every, torch.stack([zero, lengths[0], zero, lengths[1]]))
        root = logs.new_zeros(1, logs.shape[1])
        if self.root is not None:
            root = self.root.detach().double().expand(*self.batch_shape, -1)
            root = root.reshape(batch, -1).repeat(chains, 1)
        rules = self.rules
        if len(rules.table) > 1:
            rules = Binary(rules.table.repeat(chains, 1, 1), rules.kinds, rules.left, rules.right)
        forest = Forest(
            at, ends, logs.masked_fill(leaf, -math.inf), kept.rows,
            *joined_forest(len(at), kept.joins()), rules, tops, root,
        )  # fmt: skip
        site = ((i * (p + 1) + k) * (q + 1) + j) * (q + 1) + m
        sites = (p + 1) ** 2 * (q + 1) ** 2
        return MaskedBitext(forest, lead, site, sites, empty, kept.ends, (p, q))


@dataclass(frozen=True, eq=False)
class MaskedBitext(ForestMasked):
    """A bitext within a mask."""

    ends: Tensor  # (4, P) of the bispans
    words: tuple[int, int]  # p and q

    @cached_property
    def both(self) -> Tensor:
        """(P,) whether a bispan has words on both sides."""
        i, k, j, m = self.ends
        return (k > i) & (m > j)

    def answering(self, place: Tensor, used: Tensor, ended: Tensor) -> Tensor:
        """Count leaves with words on both sides."""
        return torch.where(self.both[place], ended, 0.0)

    def answers(self, item: Tensor, weights: Tensor, place: Tensor) -> Tensor:
        some = (weights > 0).nonzero().squeeze(1)
        item, weights, place = item[some], weights[some], place[some]
        i, k, j, m = self.ends[:, place]
        p, q = self.words
        linked = weights.new_zeros(len(self.empty), p + 1, q + 1)
        large = bool(((k - i > 1) | (m - j > 1)).any())
        linked.index_put_((item, i, j), weights, accumulate=True)
        if large:
            for row, column, sign in ((k, j, -1), (i, m, -1), (k, m, 1)):
                linked.index_put_((item, row, column), sign * weights, accumulate=True)
            linked = linked.cumsum(1).cumsum(2).clamp_(0.0, 1.0)
        return linked[:, :p, :q].reshape(*self.lead, p, q)

    def counts(self, rules: Tensor) -> dict[str, Tensor]:
        """``"orders"``: the numbers of straight and of inverted constituents."""
        return {"orders": rules.sum((1, 3, 4))}
