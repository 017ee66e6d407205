"""Hypertrees on a few states of each span, weighted: the randomized inside algorithm.

Rules are evaluated on the states kept, span by span, in log-space; rules of low rank by rows of
their factors. Blocks of terms are computed again for the gradient.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, NoReturn

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from rdpgraph.errors import ImpossibleEvidenceError, UnsupportedError
from rdpgraph.model.semiring import soft_sum
from rdpgraph.model.structure import Structure
from rdpgraph.structures.hypertree.best import outside
from rdpgraph.structures.hypertree.descent import Pick, drawn, largest
from rdpgraph.structures.hypertree.ranks import Ranks, kernel_form
from rdpgraph.structures.hypertree.rules import LowRankRules, NoRules, Rules

if TYPE_CHECKING:
    from rdpgraph.structures.hypertree.model import Hypertree

_BLOCK = 2**22


@dataclass(frozen=True, eq=False)
class RestrictedHypertree(Structure):
    """A hypertree whose spans have K kept states each, numbered 0..K-1.

    log Z costs O(T^2 K r + T^3 r) with `LowRankRules` and `NoRules`, O(T^3 K^3) with others, whose
    rules are looked up for every split of every span. Made by `Hypertree.restrict`.

    Args:
        unary: (*lead, T, T, K) log-potentials (nats) of the kept states, weights included.
        states: (*lead, T, T, K) which states of the original they are; repeats are separate.
        original: the hypertree; its batch dims are the last ones of lead.
        lengths: (*lead,); default: all T.
    """

    states: Tensor
    original: "Hypertree"
    lengths: Tensor | None = field(default=None, kw_only=True)

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Replicates and batch dims."""
        return tuple(self.unary.shape[:-3])

    def log_partition(self) -> Tensor:
        """(*lead,) log Z in nats."""
        return self._total(self._rows(1.0))

    def entropy(self) -> Tensor:
        """(*lead,) log Z less the expected score, weights included; 0 where nothing is possible."""
        tracked = torch.is_grad_enabled() and any(
            part.requires_grad for part in (self.unary, *self._rules.parts)
        )
        with torch.enable_grad():
            unary = self.unary.view_as(self.unary)
            unary = unary if unary.requires_grad else unary.detach().requires_grad_()
            power = torch.ones(self._count, dtype=unary.dtype, device=unary.device)
            power.requires_grad_()
            root = self._root.detach().requires_grad_()
            other = replace(self, unary=unary)
            log_z = other._total(other._rows(1.0, power), root)
            possible = log_z.detach() > -math.inf
            wanted = (unary, power, root)
            found = torch.autograd.grad(
                log_z, wanted, possible.to(log_z), create_graph=tracked, allow_unused=True,
                materialize_grads=True,
            )  # fmt: skip
            own = torch.where(unary > -math.inf, unary, 0.0)
            whole = torch.where(self._root > -math.inf, self._root, 0.0)
            expected = (own * found[0]).flatten(len(self.batch_shape)).sum(-1)
            expected = expected + (found[1] + (whole * found[2]).sum(1)).reshape(self.batch_shape)
            result = torch.where(possible, torch.where(possible, log_z, 0.0) - expected, 0.0)
        return result if tracked else result.detach()

    def mode(self) -> Tensor:
        """(*lead, T, T) numbers of kept states of the best tree, -1 for what is no constituent.

        Raises:
            ImpossibleEvidenceError: an item has no possible tree.
        """
        with torch.no_grad():
            return self._descended(self._rows(0.0), 1, largest, 0.0)[0]

    def sample(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """(count, *lead, T, T) exact draws, as `mode` gives its tree.

        Raises:
            ImpossibleEvidenceError: an item has no possible tree.
        """
        with torch.no_grad():
            return self._descended(self._rows(1.0), count, drawn(generator), 1.0)

    def max_marginals(self) -> Tensor:
        """(*lead, T, T, K) the score of the best tree with each constituent; -inf if there is none.

        O(T^3 K^3). Not differentiable.
        """
        _, _, lengths = self._flat
        if not self._count or not self.unary.shape[-2]:
            return self.unary.detach()
        many = self.unary.shape[-1]

        def block(
            above: Tensor, left: Tensor, right: Tensor, parent: Tensor, *parts: Tensor
        ) -> Tensor:
            rule = self._rule(parent, *parts).to(left) + above[:, :, None, :, None, None]
            to_left = (rule + right[:, :, :, None, None, :]).amax((3, 5))
            to_right = (rule + left[:, :, :, None, :, None]).amax((3, 4))
            return torch.stack([to_left, to_right], 4)

        def down(width: int, through: Tensor, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
            states = [self._cells(place)[1] for place in range(width)]
            phi, kept = self._cells(width)
            sides = _sides(states, states, width, self.unary.shape[-2])
            size = max(1, _BLOCK // max(1, self._count * width * many**3))
            rows = (through + phi, left, right, kept, *sides)
            to_left, to_right = _blocks(block, size, rows).unbind(4)
            return to_left, to_right

        with torch.no_grad():
            found = outside(self._rows(0.0), self._root, lengths, down)
        return found.reshape(self.unary.shape)

    def factor_graph(self) -> NoReturn:
        """There is none.

        Raises:
            UnsupportedError: always.
        """
        raise UnsupportedError("A RestrictedHypertree is no factor graph; ask it directly.")

    @cached_property
    def _count(self) -> int:
        return math.prod(self.batch_shape)

    @cached_property
    def _flat(self) -> tuple[Tensor, Tensor, Tensor]:
        """Unary, states (B, T, T, K) and lengths (B,)."""
        shape = (self._count, *self.unary.shape[-3:])
        lengths = self.lengths
        if lengths is None:
            lengths = torch.full((self._count,), shape[1], device=self.unary.device)
        return self.unary.reshape(shape), self.states.reshape(shape), lengths.reshape(-1)

    @cached_property
    def _rules(self) -> Rules:
        return self.original.rules.flat(self.batch_shape)

    @cached_property
    def _root(self) -> Tensor:
        """(B, K) of the span that covers the length."""
        whole = self.original._root()  # pyright: ignore[reportPrivateUsage]
        whole = whole.repeat(max(1, self._count // len(whole)), 1) if len(whole) > 1 else whole
        _, states, lengths = self._flat
        item = torch.arange(self._count, device=states.device)
        if not states.shape[1]:
            return whole.new_zeros(self._count, states.shape[3])
        kept = states[item, 0, (lengths - 1).clamp(min=0)]
        return whole.expand(self._count, -1).gather(1, kept)

    def _total(
        self, rows: list[Tensor], root: Tensor | None = None, temperature: float = 1.0
    ) -> Tensor:
        _, _, lengths = self._flat
        if not rows:
            return self.unary.sum((-3, -2, -1))
        firsts = torch.stack([row[:, 0] for row in rows], 1)
        item = torch.arange(self._count, device=lengths.device)
        top = firsts[item, (lengths - 1).clamp(min=0)]
        total = soft_sum(top + (self._root if root is None else root), 1, temperature)
        return torch.where(lengths > 0, total, 0.0).reshape(self.batch_shape)

    def _cells(self, width: int) -> tuple[Tensor, Tensor]:
        """(B, T - width, K) log-potentials and states of the spans of a width."""
        unary, states, lengths = self._flat
        ends = torch.arange(width, unary.shape[1], device=unary.device)
        inside = (ends < lengths.unsqueeze(1)).unsqueeze(2)
        phi = unary.diagonal(offset=width, dim1=1, dim2=2).mT
        kept = states.diagonal(offset=width, dim1=1, dim2=2).mT
        return torch.where(inside, phi, -math.inf), kept

    @cached_property
    def _ranks(self) -> Ranks | None:
        if not isinstance(self._rules, LowRankRules | NoRules):
            return None
        children = self.original.unary.shape[-1]
        spans = self.unary.new_zeros(1, 1, 1, children - self.original.preterminals)
        form, _ = kernel_form(self._rules, spans, children)
        return form if isinstance(form, Ranks) else None

    def _rows(self, temperature: float, power: Tensor | None = None) -> list[Tensor]:
        """By width (B, T - width, K) log inside values; rules to a power, (B,), if one is given."""
        # Sums over ranks are neither maxima over rules nor powers of them.
        plain = temperature == 1.0 and power is None
        if self._ranks is not None and (plain or isinstance(self._rules, NoRules)):
            return self._by_rank(self._ranks, temperature)
        return self._by_table(temperature, power)

    def _by_rank(self, ranks: Ranks, temperature: float) -> list[Tensor]:
        assert ranks.parent is not None
        lefts, rights, rows = list[Tensor](), list[Tensor](), list[Tensor]()
        last = ranks.parent.shape[1] - 1

        def project(value: Tensor, kept: Tensor, factor: Tensor) -> Tensor:
            item = _items(factor)
            return soft_sum(value.unsqueeze(3) + factor[item, kept], 2, temperature)

        def lift(sums: Tensor, kept: Tensor, factor: Tensor) -> Tensor:
            item = _items(factor)
            return soft_sum(sums.unsqueeze(2) + factor[item, kept.clamp(max=last)], 3, temperature)

        total, rank = self.unary.shape[-2], ranks.left.shape[2]
        size = max(1, _BLOCK // max(1, self._count * self.unary.shape[-1] * rank))
        for width in range(total):
            phi, kept = self._cells(width)
            if width:
                left, right = _sides(lefts, rights, width, total)
                sums = soft_sum(left + right, 2, temperature)
                phi = phi + _blocks(lift, size, (sums, kept), ranks.parent)
            rows.append(phi)
            lefts.append(_blocks(project, size, (phi, kept), ranks.left))
            rights.append(_blocks(project, size, (phi, kept), ranks.right))
        return rows

    def _by_table(self, temperature: float, power: Tensor | None) -> list[Tensor]:
        rows, states = list[Tensor](), list[Tensor]()
        total, many = self.unary.shape[-2:]

        def join(
            left: Tensor, right: Tensor, parent: Tensor, by_left: Tensor, by_right: Tensor
        ) -> Tensor:
            rule = self._rule(parent, by_left, by_right).to(left)
            if power is not None:
                forbidden = rule == -math.inf
                safe = torch.where(forbidden, 0.0, rule) * power.reshape(-1, 1, 1, 1, 1, 1)
                rule = torch.where(forbidden, -math.inf, safe)
            pairs = left.unsqueeze(4) + right.unsqueeze(3)
            return soft_sum(rule + pairs.unsqueeze(3), (2, 4, 5), temperature)

        for width in range(total):
            phi, kept = self._cells(width)
            states.append(kept)
            if width:
                left, right = _sides(rows, rows, width, total)
                by_left, by_right = _sides(states, states, width, total)
                size = max(1, _BLOCK // max(1, self._count * width * many**3))
                phi = phi + _blocks(join, size, (left, right, kept, by_left, by_right))
            rows.append(phi)
        return rows

    def _rule(self, parent: Tensor, left: Tensor, right: Tensor) -> Tensor:
        """(B, S, w, K, K, K) of parents (B, S, K) and parts (B, S, w, K)."""
        last = self.original.unary.shape[-1] - self.original.preterminals - 1
        above = parent.clamp(max=last).unsqueeze(2).expand_as(left)
        return self._rules.evaluate(above, left, right)

    def _descended(self, rows: list[Tensor], count: int, pick: Pick, temperature: float) -> Tensor:
        _, states, lengths = self._flat
        total, many = states.shape[2:]
        shape = (count, *self.unary.shape[:-1])
        found = torch.full((count * self._count, total, total), -1, device=states.device)
        if not total:
            return found.reshape(shape)
        chart = states.new_full(states.shape, 0).to(self.unary)
        for width, row in enumerate(rows):
            chart[:, : total - width, width] = row
        item = torch.arange(self._count, device=states.device).repeat(count)
        last = lengths[item] - 1
        top = chart[item, 0, last.clamp(min=0)] + self._root[item]
        if bool(((top.amax(1) == -math.inf) & (last >= 0)).any()):
            raise ImpossibleEvidenceError("At least one item has no possible tree of kept states.")
        tree = (last >= 0).nonzero().squeeze(1)
        found[tree, 0, last[tree]] = pick(top)[tree]
        for width in range(total - 1, 0, -1):
            place = torch.arange(total - width, device=states.device)
            tree, first = (found[:, place, place + width] >= 0).nonzero().unbind(1)
            for trees, starts in zip(*(p.split(max(1, _BLOCK // (width * many**2)))
                                       for p in (tree, first)), strict=True):  # fmt: skip
                if not len(trees):
                    continue
                own = item[trees]
                split = torch.arange(width, device=states.device)
                at, begin = own.unsqueeze(1), starts.unsqueeze(1)
                left = chart[at, begin, split]
                right = chart[at, begin + split + 1, width - 1 - split]
                above = states[own, starts, starts + width, found[trees, starts, starts + width]]
                by_left = states[at, begin, begin + split]
                by_right = states[at, begin + split + 1, begin + width]
                rule = self._rules.item(own).evaluate(
                    above.reshape(-1, 1, 1).expand(-1, width, 1), by_left, by_right
                )
                logs = rule.squeeze(2) + left.unsqueeze(3) + right.unsqueeze(2)
                row = torch.arange(len(trees), device=states.device)
                middle = pick(soft_sum(logs, (2, 3), temperature))
                logs = logs[row, middle]
                a = pick(soft_sum(logs, 2, temperature))
                found[trees, starts, starts + middle] = a
                found[trees, starts + middle + 1, starts + width] = pick(logs[row, a])
        return found.reshape(shape)


def _items(factor: Tensor) -> Tensor:
    return torch.arange(len(factor), device=factor.device).reshape(-1, 1, 1)


def _sides(
    lefts: list[Tensor], rights: list[Tensor], width: int, total: int
) -> tuple[Tensor, Tensor]:
    """(B, S, w, ...) the left and right parts of all splits of the spans of a width."""
    count = total - width
    left = torch.stack([lefts[place][:, :count] for place in range(width)], 2)
    right = [rights[width - 1 - place][:, place + 1 :][:, :count] for place in range(width)]
    return left, torch.stack(right, 2)


def _blocks(
    block: Callable[..., Tensor], size: int, rows: tuple[Tensor, ...], *whole: Tensor
) -> Tensor:
    found: list[Tensor] = []
    for piece in zip(*(part.split(size, 1) for part in rows), strict=True):
        if torch.is_grad_enabled():
            found.append(
                checkpoint(  # pyright: ignore
                    block, *piece, *whole, use_reentrant=False, preserve_rng_state=False
                )
            )
        else:
            found.append(block(*piece, *whole))
    return torch.cat(found, 1)
