"""The steps of a tape: leaves, sums of alternatives, links, pairs, and moves of labels."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from rdpgraph._core.cache import cached_property, differentiable_property
from rdpgraph.logspace.logmatrix import log_products, soft_scatter
from rdpgraph.structures.recursion.links import Link, Table
from rdpgraph.structures.recursion.step import (
    Child,
    Reader,
    Step,
    batches,
    child,
    entries,
    in_blocks,
    less_value,
    side_by_side,
    soft,
)
from rdpgraph.structures.recursion.values import Value, View


@dataclass(frozen=True, eq=False)
class Leaf(Step):
    """A step of given log-values."""

    logs: Tensor | None  # (B or 1, P or 1, K) nats; None: the potentials of sites
    sites: Tensor | None = None  # (P,) their numbers; the count of sites stands for none

    def own(self, chosen: Tensor, item: Tensor, place: Tensor, label: Tensor) -> Tensor | None:
        return None if self.logs is None else self.logs[item % len(self.logs), place, label]

    def children(
        self, chosen: Tensor, item: Tensor, place: Tensor, label: Tensor
    ) -> Iterator[Child]:
        yield from ()

    @property
    def products(self) -> Sequence[Sequence[View]]:
        return ()


@dataclass(frozen=True, eq=False)
class Total(Step):
    """The sum over ways, each a product of views with the same number of alternatives, or 1."""

    ways: Sequence[tuple[View, ...]]

    def terms(self, reader: Reader, *, scores: bool = True) -> Tensor:
        kept = reader.terms.get(self)
        if kept is not None:
            return kept
        totals = [_sum(reader.together(way)) for way in self.ways]
        terms = totals[0] if len(totals) == 1 else torch.cat(batches(totals), -3)
        if terms.numel() <= reader.small and terms.shape[1] > 1:
            reader.terms[self] = terms
        return terms

    def up(self, reader: Reader, temperature: float) -> Tensor:
        terms = self.terms(reader)
        return terms.squeeze(1) if terms.shape[1] == 1 else soft(terms, 1, temperature)

    def at(self, reader: Reader, item: Tensor, place: Tensor, label: Tensor) -> Tensor:
        kept = reader.terms.get(self)
        if kept is not None:
            return entries(kept, item, place, label)
        totals = [_sum([reader.at(view, item, place, label) for view in way]) for way in self.ways]
        return totals[0] if len(totals) == 1 else torch.cat(totals, 1)

    def children(
        self, chosen: Tensor, item: Tensor, place: Tensor, label: Tensor
    ) -> Iterator[Child]:
        start = 0
        for way in self.ways:
            count = _ways(way)
            here = None
            inside, parts = chosen, (item, place, label)
            if len(self.ways) > 1:
                here = ((chosen >= start) & (chosen < start + count)).nonzero().squeeze(1)
                inside = chosen[here] - start
                parts = (item[here], place[here], label[here])
            for view in way:
                yield child(view, here, inside, *parts)
            start += count

    def passed_terms(self, terms: Tensor) -> Iterator[tuple[View, Tensor]]:
        counts = [_ways(way) for way in self.ways]
        parts = terms.split(counts, 1) if len(counts) > 1 else (terms,)
        for way, part in zip(self.ways, parts, strict=True):
            for view in way:
                yield view, part

    @property
    def products(self) -> Sequence[Sequence[View]]:
        return self.ways

    @property
    def alternatives(self) -> int:
        return sum([_ways(way) for way in self.ways])

    @property
    def work(self) -> float:
        places = max(view.places for way in self.ways for view in way)
        width = max(view.width for way in self.ways for view in way)
        return float(self.alternatives * places * width)


@dataclass(frozen=True, eq=False)
class Concatenated(Step):
    """The labels of several views, which have one number of places, concatenated: (B, P, M K)."""

    views: Sequence[View]

    def up(self, reader: Reader, temperature: float) -> Tensor:
        read = [reader.read(view).transpose(-3, -2).flatten(-2) for view in self.views]
        return side_by_side(read, -1)

    def children(
        self, chosen: Tensor, item: Tensor, place: Tensor, label: Tensor
    ) -> Iterator[Child]:
        start = 0
        for view in self.views:
            stop, here, inside, parts = start + view.ways * view.width, None, label, (item, place)
            if len(self.views) > 1:
                here = ((label >= start) & (label < stop)).nonzero().squeeze(1)
                inside, parts = label[here] - start, (item[here], place[here])
            ways, within = inside // view.width, inside % view.width
            yield child(view, here, ways, *parts, within)
            start = stop

    def passed_terms(self, terms: Tensor) -> Iterator[tuple[View, Tensor]]:
        widths = [view.ways * view.width for view in self.views]
        for view, part in zip(self.views, terms.squeeze(1).split(widths, 2), strict=True):
            yield view, part.unflatten(2, (view.ways, view.width)).transpose(1, 2)

    @property
    def products(self) -> Sequence[Sequence[View]]:
        return [(view,) for view in self.views]


@dataclass(frozen=True, eq=False)
class Pairs(Step):
    """The pairs of labels of two views, summed over their alternatives: (B, P, C * E)."""

    left: View  # (B, M, P, C)
    right: View  # (B, M, P, E)

    def terms(self, reader: Reader, *, scores: bool = True) -> Tensor:
        left, right = reader.together((self.left, self.right))
        return (left.unsqueeze(-1) + right.unsqueeze(-2)).flatten(-2)

    def up(self, reader: Reader, temperature: float) -> Tensor:
        if self.left.ways == 1:
            return self.terms(reader).squeeze(1)
        left, right = reader.read(self.left), reader.read(self.right)
        if temperature == 1.0:
            return log_products(left.movedim(1, -1), right.movedim(1, -1)).flatten(-2)
        return torch.cat([
            soft(one.unsqueeze(-1) + other.unsqueeze(-2), 1, temperature).flatten(-2)
            for one, other in in_blocks(left.numel() * self.right.width, (left, right), 2)
        ], 1)  # fmt: skip

    def rows(self, reader: Reader, item: Tensor, place: Tensor) -> Tensor:
        """Compute again the (Q, C * E) entries of some places of some items."""
        left, right = (reader.at(view, item, place).mT for view in (self.left, self.right))
        if reader.temperature == 1.0:
            return log_products(left, right).flatten(1)
        return torch.cat([
            soft(one.unsqueeze(2) + other.unsqueeze(1), 3, reader.temperature).flatten(1)
            for one, other in in_blocks(left.numel() * self.right.width, (left, right), 0)
        ])  # fmt: skip

    def at(self, reader: Reader, item: Tensor, place: Tensor, label: Tensor) -> Tensor:
        first, second = label // self.right.width, label % self.right.width
        left = reader.at(self.left, item, place, first)
        return left + reader.at(self.right, item, place, second)

    def children(
        self, chosen: Tensor, item: Tensor, place: Tensor, label: Tensor
    ) -> Iterator[Child]:
        first, second = label // self.right.width, label % self.right.width
        yield child(self.left, None, chosen, item, place, first)
        yield child(self.right, None, chosen, item, place, second)

    def passed_down(
        self, reader: Reader, value: Tensor, above: Tensor, *, scores: bool
    ) -> Iterator[tuple[View, Tensor]]:
        left, right = reader.read(self.left), reader.read(self.right)
        ahead = (
            less_value(value, above).unflatten(-1, (self.left.width, self.right.width)).unsqueeze(1)
        )
        parts = left, right, ahead.expand(-1, 1, left.shape[2], -1, -1)
        sides = list[tuple[Tensor, Tensor]]()
        for one, other, rest in in_blocks(ahead.numel() * self.left.ways, parts, 2):
            to_left = one + soft(other.unsqueeze(-2) + rest, -1, 0.0)
            sides.append((to_left, other + soft(one.unsqueeze(-1) + rest, -2, 0.0)))
        for view, blocks in zip((self.left, self.right), zip(*sides, strict=True), strict=True):
            yield view, torch.cat(blocks, 2)

    @property
    def products(self) -> Sequence[Sequence[View]]:
        return ((self.left, self.right),)

    @property
    def alternatives(self) -> int:
        return self.left.ways

    @property
    def work(self) -> float:
        return float(self.left.ways * self.left.places * self.left.width * self.right.width)


@dataclass(frozen=True, eq=False)
class Linked(Step):
    """The sum over the labels of a value, with a link between them and the new labels."""

    x: Value  # (B, P or 1, I)
    link: Link | None  # between I and J labels; None: J is 1, without scores
    places: int  # P
    more: int = 0  # further labels, at -inf

    dim = -2

    @cached_property
    def _view(self) -> View:
        return View((self.x,))

    @property
    def products(self) -> Sequence[Sequence[View]]:
        return ((self._view,),)

    def terms(self, reader: Reader, *, scores: bool = True) -> Tensor:
        x = reader.value(self.x.number).unsqueeze(-1)
        if self.link is None:
            return x
        if scores:
            return self._wider(x + self.link.logs())
        return self._wider(x.expand(*x.shape[:-3], self.places, -1, self.link.width))

    def _wider(self, values: Tensor) -> Tensor:
        return pad(values, (0, self.more), value=-math.inf) if self.more else values

    @differentiable_property
    def whole(self) -> Table:
        """The table of the link, with all labels of the step."""
        assert isinstance(self.link, Table)
        if not self.more:
            return self.link
        wider = self._wider(self.link.values)
        return Table(wider, wider, copies=self.link.copies)

    def up(self, reader: Reader, temperature: float) -> Tensor:
        x = reader.values[self.x.number]
        if self.link is None:
            return soft(x, 2, temperature).unsqueeze(2)
        return self._wider(self.link.sums(x, temperature))

    def at(self, reader: Reader, item: Tensor, place: Tensor, label: Tensor) -> Tensor:
        logs = reader.rows(self.x, item, place)
        if self.link is None:
            return logs.expand(item.shape[0], -1)
        return logs + self.link.into(item, place, label)

    def own(self, chosen: Tensor, item: Tensor, place: Tensor, label: Tensor) -> Tensor | None:
        if self.link is None:
            return None
        return self.link.into(item, place, label).gather(1, chosen.unsqueeze(1)).squeeze(1)

    def children(
        self, chosen: Tensor, item: Tensor, place: Tensor, label: Tensor
    ) -> Iterator[Child]:
        yield (self.x,), None, place if self.x.places > 1 else place * 0, chosen

    def passed_down(
        self, reader: Reader, value: Tensor, above: Tensor, *, scores: bool
    ) -> Iterator[tuple[View, Tensor]]:
        x, ahead = reader.value(self.x.number), less_value(value, above)
        if self.more:
            ahead = ahead[..., : -self.more]
        if self.link is not None and scores:
            logs = self.link.logs()
            logs = logs.expand(-1, ahead.shape[1], -1, -1)
            ahead = torch.cat([
                soft(rest.unsqueeze(2) + said, 3, 0.0)
                for rest, said in in_blocks(ahead.numel() * self.x.width, (ahead, logs), 1)
            ], 1)  # fmt: skip
        elif self.link is not None:
            ahead = soft(ahead, 2, 0.0).unsqueeze(2)
        yield self._view, (x + ahead).unsqueeze(1)

    @property
    def alternatives(self) -> int:
        return self.x.width

    @property
    def work(self) -> float:
        return float(self.places * self.x.width * (1 if self.link is None else self.link.width))


def _sum(parts: Sequence[Tensor]) -> Tensor:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def _ways(way: Sequence[View]) -> int:
    return max([view.ways for view in way])


@dataclass(frozen=True, eq=False)
class Relabelled(Step):
    """One of the labels of a value for each new label."""

    x: Value  # (B, P or 1, I)
    which: Tensor  # (J,) labels of x, or (B, P, J) where not all states are kept
    places: int  # P

    def up(self, reader: Reader, temperature: float) -> Tensor:
        x = reader.values[self.x.number]
        if self.which.ndim == 1:
            moved = x.index_select(-1, self.which)
            return moved.expand(*x.shape[:-2], self.places, -1)
        x = x.expand(*x.shape[:-3], len(self.which), self.places, -1)
        return x.gather(-1, self.which.expand(*x.shape[:-1], -1))

    def children(
        self, chosen: Tensor, item: Tensor, place: Tensor, label: Tensor
    ) -> Iterator[Child]:
        picked = self.which[label] if self.which.ndim == 1 else self.which[item, place, label]
        yield (self.x,), None, place if self.x.places > 1 else place * 0, picked

    def passed_down(
        self, reader: Reader, value: Tensor, above: Tensor, *, scores: bool
    ) -> Iterator[tuple[View, Tensor]]:
        if self.which.ndim == 1:
            parts = soft_scatter(above.movedim(2, 0), self.which, self.x.width, 0.0)
            yield View((self.x,)), parts.movedim(0, 2).unsqueeze(1)
            return
        which = self.which.expand(len(above), self.places, -1)
        columns = torch.arange(self.x.width, device=which.device)
        made = which.unsqueeze(-2) == columns.unsqueeze(-1)
        terms = torch.where(made, above.unsqueeze(-2), -math.inf)
        yield View((self.x,)), soft(terms, -1, 0.0).unsqueeze(1)

    @property
    def products(self) -> Sequence[Sequence[View]]:
        return ((View((self.x,)),),)


@dataclass(frozen=True, eq=False)
class LabelsAsPlaces(Step):
    """The labels of a value (B, P, K) as places of one label, grouped by place: (B, P K, 1)."""

    x: Value

    def up(self, reader: Reader, temperature: float) -> Tensor:
        return reader.values[self.x.number].flatten(-2).unsqueeze(-1)

    def children(
        self, chosen: Tensor, item: Tensor, place: Tensor, label: Tensor
    ) -> Iterator[Child]:
        yield (self.x,), None, place // self.x.width, place % self.x.width

    def passed_terms(self, terms: Tensor) -> Iterator[tuple[View, Tensor]]:
        yield View((self.x,)), terms.squeeze(-1).unflatten(2, (self.x.places, self.x.width))

    @property
    def products(self) -> Sequence[Sequence[View]]:
        return ((View((self.x,)),),)
