"""The k best derivations: by the machine's lists of what is asked for, or lists of all entries."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rdpgraph.structures.draws import largest
from rdpgraph.structures.recursion import machine
from rdpgraph.structures.recursion.descend import Drawn, Nodes, Pool, followed, picked
from rdpgraph.structures.recursion.reader import Reader
from rdpgraph.structures.recursion.replay import whole
from rdpgraph.structures.recursion.steps import Leaf
from rdpgraph.structures.recursion.tape import Tape
from rdpgraph.structures.recursion.up import last_read, leaves, up

_LARGE = 2**14  # terms of a step that would leave a gap in memory
_ROOM = 2**17  # numbers that stay, side by side


@torch.no_grad()
def best(tape: Tape, k: int) -> tuple[Drawn, Tensor]:
    """The k best derivations, k * B in turn, and (k, *lead) whether there are so many.

    Args:
        tape: laid out with ``ranks=False``.
        k: how many.
    """
    done = machine.values_of(tape, best=True)
    if done is not None:
        used, there = done.k_best(k)
        return Drawn(*used), there.reshape(k, *tape.lead)
    tape = whole(tape)
    if k == 1:
        reader = up(tape, 0.0)
        there = (reader.values[-1] > -math.inf).flatten().expand(tape.batch)
        drawn = picked(tape, reader, there.nonzero().squeeze(1), largest)
    else:
        drawn, there = _together(tape, k)
    return drawn, there.reshape(k, *tape.lead)


def _together(tape: Tape, k: int) -> tuple[Drawn, Tensor]:
    """The same from the lists of all entries, each from those of its alternatives' parts."""
    given, ended, reader = leaves(tape), last_read(tape), Reader(most=k)
    lists, room = reader.values, _Room()
    # Of each step, by rank and entry: one of its alternatives with one of the ranks of its parts.
    chosen, many, ranks = list[Tensor](), list[int](), list[list[Tensor | None]]()
    for number, step in enumerate(tape.steps):
        ranks.append([])
        if isinstance(step, Leaf):
            lists.append(next(given).unsqueeze(0))
            chosen.append(lists[-1])
            many.append(1)
            continue
        terms = step.terms(reader)
        # Alternatives and ranks last: (B, P, K, A C).
        order = (1, 3, 4, 2, 0) if step.dim == -3 else (1, 2, 4, 3, 0)
        flat = terms.permute(order).flatten(-2)
        values, which = flat.topk(min(k, flat.shape[-1]))
        if terms.numel() > _LARGE:
            values, which = room.kept(values), room.kept(which)
        lists.append(values.movedim(-1, 0))
        chosen.append(which)
        for way in step.products:
            ranks[number] += reader.ranks(way)
        many.append(terms.shape[0])
        for own in ended[number]:
            lists[own] = lists[number]

    def below(number: int, nodes: Nodes) -> Iterator[tuple[Pool, Nodes]]:
        step, (tree, place, label, rank), own = tape.steps[number], nodes, chosen[number]
        item, at = tree % tape.batch, None
        indices = item, place, label, rank
        for index, size, stride in zip(indices, own.shape, own.stride(), strict=True):
            if size > 1:
                at = index * stride if at is None else at.add(index, alpha=stride)
        way = pair = own.view(-1).index_select(0, place * 0 if at is None else at)
        if many[number] > 1:
            way, pair = way // many[number], way % many[number]
        parts = step.children(way, item, place, label)
        for (pool, rows, places, labels), theirs in zip(parts, ranks[number], strict=True):
            some = (tree, pair) if rows is None else (tree[rows], pair[rows])
            # Of a list of one any rank is the first.
            rank = some[1] if theirs is None else theirs.index_select(0, some[1])
            yield pool, (some[0], places, labels, rank)

    goals = lists[-1].new_full((k, tape.batch), -math.inf)
    goals[: len(lists[-1])] = lists[-1].flatten(1)
    there = goals > -math.inf
    trees = there.flatten().nonzero().squeeze(1)
    return followed(tape, (trees, trees * 0, trees * 0, trees // tape.batch), below), there


@dataclass(eq=False)
class _Room:
    """Small tensors that stay, side by side: between larger ones that go they would cut up memory.

    Attributes:
        blocks: by type the one that is being filled, and how much of it is.
    """

    blocks: dict[torch.dtype, tuple[Tensor, int]] = field(
        default_factory=dict[torch.dtype, tuple[Tensor, int]]
    )

    def kept(self, numbers: Tensor) -> Tensor:
        """The same numbers; those of a large tensor where they are."""
        count = numbers.numel()
        if count > _ROOM // 8:
            return numbers
        block, used = self.blocks.get(numbers.dtype, (numbers, 0))
        if used + count > block.shape[0] or not used:
            block, used = numbers.new_empty(_ROOM), 0
        self.blocks[numbers.dtype] = block, used + count
        return block[used : used + count].view(numbers.shape).copy_(numbers)
