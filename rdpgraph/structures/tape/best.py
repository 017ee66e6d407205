"""The k best derivations: lists of all entries at once, or of those of large recursions in need."""

import heapq
import math
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rdpgraph.structures.draws import largest
from rdpgraph.structures.tape.descend import Drawn, Nodes, Pool, followed, picked
from rdpgraph.structures.tape.reader import Reader
from rdpgraph.structures.tape.step import Step
from rdpgraph.structures.tape.steps import Leaf
from rdpgraph.structures.tape.tape import Tape
from rdpgraph.structures.tape.up import last_read, leaves, up
from rdpgraph.structures.tape.values import Value

Node = tuple[int, int, int]
Ask = tuple[Node, int]
Choice = tuple[float, int, tuple[int, ...]]
"""A score; which alternative; the rank of each of its parts."""


@dataclass(frozen=True, eq=False)
class Lists:
    """The best derivations of every node of one item, found when they are asked for.

    Attributes:
        tape: laid out.
        reader: its values, maxima.
        item: which item.
    """

    tape: Tape
    reader: Reader
    item: Tensor
    done: dict[Node, list[Choice]] = field(default_factory=dict[Node, list[Choice]])
    heaps: dict[Node, list[Choice]] = field(default_factory=dict[Node, list[Choice]])
    parts: dict[tuple[Node, int], tuple[Node, ...]] = field(
        default_factory=dict[tuple[Node, int], tuple[Node, ...]]
    )

    def get(self, node: Node, rank: int) -> float | None:
        """The score of a node's derivation of that rank; None where there are fewer."""
        # As deep as the tape is long: on a list rather than on Python's stack.
        waiting = [self._found(node, rank)]
        answer: float | None = None
        while waiting:
            try:
                asked = waiting[-1].send(answer)
            except StopIteration as done:
                waiting.pop()
                answer = done.value
            else:
                waiting.append(self._found(*asked))
                answer = None
        return answer

    def _found(self, node: Node, rank: int) -> Generator[Ask, float | None, float | None]:
        step = self.tape.steps[node[0]]
        if isinstance(step, Leaf):
            return self._leaf(node) if rank == 0 else None
        if node not in self.heaps:
            self.done[node], self.heaps[node] = [], self._first(step, node)
        done, heap = self.done[node], self.heaps[node]
        while len(done) <= rank:
            if done:
                yield from self._push_next(node, done[-1])
            if not heap:
                return None
            score, way, ranks = heapq.heappop(heap)
            done.append((score, way, ranks or (0,) * len(self._parts(node, way))))
        return -done[rank][0]

    def _leaf(self, node: Node) -> float:
        logs = self.reader.values[node[0]]
        return float(logs[int(self.item) if len(logs) > 1 else 0, node[1], node[2]])

    def _first(self, step: Step, node: Node) -> list[Choice]:
        """The best derivation of each alternative; which are the ranks is seen later."""
        logs = step.at(self.reader, self.item, *self._tensors(node)).squeeze(0).tolist()
        heap: list[Choice] = [
            (-score, way, ()) for way, score in enumerate(logs) if score > -math.inf
        ]
        heapq.heapify(heap)
        return heap

    def _push_next(self, node: Node, last: Choice) -> Generator[Ask, float | None, None]:
        """The derivations that differ from the last in the next rank of one part.

        Only of a part at or after the last one raised, so that none is reached twice.
        """
        score, way, ranks = last
        parts = self._parts(node, way)
        raised = max((slot for slot, rank in enumerate(ranks) if rank), default=0)
        for slot in range(raised, len(parts)):
            better = yield parts[slot], ranks[slot]
            worse = yield parts[slot], ranks[slot] + 1
            if worse is not None and better is not None and worse > -math.inf:
                following = (*ranks[:slot], ranks[slot] + 1, *ranks[slot + 1 :])
                heapq.heappush(self.heaps[node], (score + better - worse, way, following))

    def _parts(self, node: Node, way: int) -> tuple[Node, ...]:
        key = node, way
        if key not in self.parts:
            step = self.tape.steps[node[0]]
            chosen = torch.tensor([way], device=self.tape.device)
            nodes: list[Node] = []
            for pool, rows, place, label in step.children(chosen, self.item, *self._tensors(node)):
                if rows is None or len(rows):
                    nodes += _node(pool, int(place), int(label))
            self.parts[key] = tuple(nodes)
        return self.parts[key]

    def _tensors(self, node: Node) -> tuple[Tensor, Tensor]:
        device = self.tape.device
        return torch.tensor([node[1]], device=device), torch.tensor([node[2]], device=device)

    def leaves(self, node: Node, rank: int) -> list[tuple[int, int]]:
        """The sites, and their states, of a derivation that was found."""
        waiting, used = [(node, rank)], list[tuple[int, int]]()
        while waiting:
            here, place = waiting.pop()
            step = self.tape.steps[here[0]]
            if isinstance(step, Leaf):
                if step.sites is not None:
                    used.append((int(step.sites[here[1]]), here[2]))
                continue
            self.get(here, place)
            _, way, ranks = self.done[here][place]
            waiting += zip(self._parts(here, way), ranks, strict=True)
        return used


def _node(pool: tuple[Value, ...], place: int, label: int) -> list[Node]:
    """The node at a place of a pool; that of no place has none."""
    for value in pool:
        if place < value.places:
            return [(value.number, place, label)]
        place -= value.places
    return []


@torch.no_grad()
def one_by_one(tape: Tape, k: int) -> tuple[Drawn, Tensor]:
    """The k best derivations, k * B in turn, and (k, B) whether there are so many.

    Args:
        tape: laid out.
        k: how many.
    """
    reader, goal = up(tape, 0.0), (len(tape.steps) - 1, 0, 0)
    used = list[tuple[int, int, int]]()
    there = torch.zeros(k, tape.batch, dtype=torch.bool, device="cpu")
    for item in range(tape.batch):
        lists = Lists(tape, reader, torch.tensor([item], device=tape.device))
        for rank in range(k):
            if lists.get(goal, rank) is None:
                break
            there[rank, item] = True
            tree = rank * tape.batch + item
            used += [(tree, site, state) for site, state in lists.leaves(goal, rank)]
    drawn = torch.tensor(used, dtype=torch.long, device=tape.device).reshape(-1, 3)
    return Drawn(*drawn.unbind(1)), there.to(tape.device)


_MEAN = 2**12  # terms of a step and item, above which lists of all entries are slower
_HELD = 2**26  # terms of a step with ranks that are held at once
_LARGE = 2**14  # terms of a step that would leave a gap in memory
_ROOM = 2**17  # numbers that stay, side by side


@torch.no_grad()
def best(tape: Tape, k: int) -> tuple[Drawn, Tensor]:
    """The k best derivations, k * B in turn, and (k, *lead) whether there are so many.

    Lists of all entries take about k times as long as the maxima; those of large recursions are
    made item by item, and only for the nodes that are asked about.

    Args:
        tape: laid out with ``ranks=False``.
        k: how many.
    """
    if k == 1:
        reader = up(tape, 0.0)
        there = (reader.values[-1] > -math.inf).flatten().expand(tape.batch)
        drawn = picked(tape, reader, there.nonzero().squeeze(1), largest)
        return drawn, there.reshape(1, *tape.lead)
    work = [step.work for step in tape.steps]
    few = max(work) * tape.batch * k <= _HELD and sum(work) <= _MEAN * len(work)
    drawn, there = together(tape, k) if few else one_by_one(tape, k)
    return drawn, there.reshape(k, *tape.lead)


def together(tape: Tape, k: int) -> tuple[Drawn, Tensor]:
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
