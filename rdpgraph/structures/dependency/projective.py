"""Dependency trees without crossing arcs, by a recursion over spans (Eisner 1996)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from rdpgraph.structures.dependency.model import Dependencies
from rdpgraph.structures.grammar.spans import kept_layout
from rdpgraph.structures.recursion.descend import best
from rdpgraph.structures.recursion.recursion import Recursion
from rdpgraph.structures.recursion.tape import Tape
from rdpgraph.structures.recursion.values import Value, View


@dataclass(frozen=True, eq=False, init=False)
class ProjectiveDependencies(  # pyright: ignore[reportIncompatibleMethodOverride]
    Dependencies, Recursion
):
    """Dependency trees without crossing arcs: every subtree is a span. Eisner 1996.

    O(n^3) time, over all spans of a width at once; O(n^3) numbers are kept for the gradient. With
    ``multiroot`` False, the default, one word has the root as its head.

    Positions are the root, 0, and the words, 1..n. A complete span has its head at one end and all
    descendants on that side; an open one has an arc between its ends. Each row of spans has those
    headed by their first position, then those headed by their last.

    Example:
        >>> trees = ProjectiveDependencies(torch.zeros(3, 4), multiroot=True)
        >>> trees.log_partition().exp().round()
        tensor(12.)
    """

    def recursion(self, tape: Tape) -> Value:
        words, device = tape.site_shape[0], tape.device
        if not words:
            return tape.one
        count = words + 1
        arcs = tape.states_as_places(tape.sites[:], count)
        complete, opened = [tape.leaf(tape.unary.new_zeros(1, 2 * count, 1))], list[Value]()
        for before, after, twice, arc, part, rest in _rows(words, device):
            sides = (View(tuple(complete), places) for places in (before, after))
            inner = View((tape.total(tuple(sides)),), twice)
            opened.append(tape.total((inner, View((arcs,), arc))))
            parts = View(tuple(opened), part), View(tuple(complete), rest)
            complete.append(tape.total(parts))
        lengths = tape.lengths(self.lengths, words).reshape(-1, 1, 1)
        first, top = lengths * 0, torch.arange(1, count, device=device).unsqueeze(1)
        if self.multiroot:
            return tape.total(tape.view(complete, _headed_first(first, lengths, count)))
        above = tape.view(arcs, (top - 1) * count)
        before = tape.view(complete, _headed_last(torch.ones_like(top), top, count))
        after = _headed_first(top, lengths.clamp(min=top), count)
        after = tape.view(complete, torch.where(top <= lengths, after, -1))
        return tape.total(tape.allowed(lengths.reshape(-1, 1) == 0), (above, before, after))

    @torch.no_grad()
    def _k_best(self, unary: Tensor, lengths: Tensor, k: int) -> Tensor:
        tape = self._best_tape
        return best(tape, k)[0].states(tape, k).reshape(k, *unary.shape[:2])

    def _is_tree(self, heads: Tensor, inside: Tensor) -> Tensor:
        word = torch.arange(1, heads.shape[2] + 1, device=heads.device)
        low, high = torch.minimum(heads, word), torch.maximum(heads, word)
        first, second = (low.unsqueeze(3), high.unsqueeze(3)), (low.unsqueeze(2), high.unsqueeze(2))
        crossing = (first[0] < second[0]) & (second[0] < first[1]) & (first[1] < second[1])
        both = inside.unsqueeze(2) & inside.unsqueeze(1)
        return super()._is_tree(heads, inside) & ~(crossing & both).flatten(2).any(2)


def _start(width: Tensor, count: int) -> Tensor:
    """The index of the first complete span of a width among those of all widths."""
    return width * (2 * count + 1 - width)


def _headed_first(first: Tensor, last: Tensor, count: int) -> Tensor:
    """The places of complete spans headed by their first position."""
    return _start(last - first, count) + first


def _headed_last(first: Tensor, last: Tensor, count: int) -> Tensor:
    """The places of complete spans headed by their last position."""
    return _start(last - first, count) + count - (last - first) + first


@kept_layout
def _rows(words: int, device: torch.device) -> list[tuple[Tensor, ...]]:
    """Places of the parts of the spans of each width from 1, (splits, spans) each.

    Both parts of open spans, each of these twice with its arcs, and both parts of complete spans.
    """
    count, rows = words + 1, list[tuple[Tensor, ...]]()
    for width in range(1, count):
        first = torch.arange(count - width, device=device)
        last, split = first + width, first + torch.arange(width, device=device).unsqueeze(1)
        first, last = first.expand_as(split), last.expand_as(split)
        to_last = (last[:1] - 1) * count + first[:1]
        # No arc leads to the root.
        to_first = torch.where(first[:1] > 0, (first[:1] - 1) * count + last[:1], words * count)
        opened = _headed_first(first, split + 1, count), _headed_last(split, last, count)
        rest = _headed_first(split + 1, last, count), _headed_last(first, split, count)
        rows.append((
            _headed_first(first, split, count),
            _headed_last(split + 1, last, count),
            (first[:1] - first[0, 0]).repeat(1, 2),
            torch.cat([to_last, to_first], 1),
            torch.cat(opened, 1) - 2 * count,  # open spans have no row of width 0
            torch.cat(rest, 1),
        ))  # fmt: skip
    return rows
