"""Sums over the matchings of a component, by a sweep that decides on one vertex after another.

A step decides on the edges of a vertex v that no earlier step has decided on: it takes none of
them, or one. A vertex is open while some of its edges are decided on, and others are not. The table
after a step has a log-value for each set of open vertices that are matched, 2^open of them:

    T'(s') = log sum over (s, choice) that lead to s' of exp(T(s) + value(choice)),

where value(choice) is the summed log-potentials of v's edges in the states that the choice gives
them. A vertex that is required may only close once it is matched. So each matching is one path
through the tables, and the same steps give sums, maxima and draws.
"""

import functools
import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from rdpgraph._core import tuning
from rdpgraph._core.cache import cached_property
from rdpgraph.logspace.gradients import is_transformed, with_gradient
from rdpgraph.logspace.logmatrix import soft_sum
from rdpgraph.native import library
from rdpgraph.structures.draws import Pick
from rdpgraph.structures.matching.pairs import Alike, Flags, Pairs, components


@dataclass(frozen=True, eq=False)
class MatchingStep:
    """Where each entry of the table after a step comes from, and by which choice."""

    # (M, F) the entry of the table before it; that number of entries where there are fewer ways.
    source: Tensor
    choice: Tensor  # (M, F) 0: no edge; k: the edge numbered k - 1 among those decided on
    before: int  # entries of the table before it


@dataclass(frozen=True, eq=False)
class Decision:
    """A vertex whose edges are decided on, before the entries are written out."""

    edges: tuple[int, ...]
    # The bits of open vertices before the step, v's bit or -1, and whether v is required.
    bits: int
    own: int
    required: bool
    # The bit of each edge's other vertex: above `bits` if it opens, -1 if this is its only edge.
    targets: tuple[int, ...]
    kept: tuple[int, ...]  # the bits that stay open
    closed: tuple[int, ...]  # bits that must be set because a required vertex closes
    # Of each choice, none first, whether it takes all vertices that are required and have no edge
    # but one of these.
    takes: tuple[bool, ...]

    @property
    def entries(self) -> int:
        """The number of ways to make a choice, allowed or not."""
        return (len(self.edges) + 1) << self.bits

    def step(self) -> MatchingStep:
        """Its step; equal ones of few bits are shared."""
        write = _step if self.bits <= tuning.KEPT_MATCHING_BITS else _step.__wrapped__
        return write(
            self.bits, self.own, self.required, self.targets, self.kept, self.closed, self.takes
        )


@functools.lru_cache(maxsize=4096)
def _step(
    bits: int, own: int, required: bool, targets: tuple[int, ...], kept: tuple[int, ...],  # noqa: FBT001
    closed: tuple[int, ...], takes: tuple[bool, ...],
) -> MatchingStep:  # fmt: skip
    states = np.arange(1 << bits)
    # Whether v, and the vertex that each edge leads to, are not matched before.
    free = (states >> own & 1 == 0) if own >= 0 else np.ones(len(states), dtype=np.bool_)
    allowed = np.stack([
        ~free if required else np.ones_like(free),
        *(free & ((states >> max(bit, 0) & 1 == 0) | (bit < 0)) for bit in targets),
    ])  # fmt: skip
    allowed &= np.array(takes)[:, None]
    # The vertices that are matched after each choice, and the entry that they lead to.
    led = np.stack([states, *(states | (1 << bit if bit >= 0 else 0) for bit in targets)])
    for bit in closed:
        allowed &= led >> bit & 1 == 1
    to = np.zeros_like(led)
    for place, bit in enumerate(kept):
        to |= (led >> bit & 1) << place
    choice, source = allowed.nonzero()
    to = to[choice, source]
    order = np.argsort(to, kind="stable")
    counts = np.bincount(to, minlength=1 << len(kept))
    start = np.concatenate([[0], counts.cumsum()[:-1]])
    rank = np.arange(len(to)) - np.repeat(start, counts)
    shape = (1 << len(kept), max(1, int(counts.max(initial=0))))
    sources = np.full(shape, len(states))
    choices = np.zeros(shape, dtype=np.int64)
    sources[to[order], rank] = source[order]
    choices[to[order], rank] = choice[order]
    return MatchingStep(torch.from_numpy(sources), torch.from_numpy(choices), len(states))


_PLANS: WeakKeyDictionary[Pairs, OrderedDict[bytes, tuple[list["MatchingSweep"], Flags]]] = (
    WeakKeyDictionary()
)
_MOST_PLANS = 4  # plans that are kept of each `Pairs`, by the pattern of pairs that are possible


def sweeps(pairs: Pairs, possible: Flags) -> tuple[list["MatchingSweep"], Flags]:
    """The sweeps of all components of the possible pairs (items, P), those of one shape together.

    And (items,) whether a row or column that is required has no possible pair.
    """
    plans = _PLANS.setdefault(pairs, OrderedDict())
    key = np.packbits(possible).tobytes() + bytes(possible.shape[:1])
    if key not in plans:
        alike, lacking = components(pairs, possible)
        made = [
            MatchingSweep(each, _decisions(each.ends.tobytes(), each.required.tobytes()))
            for each in alike
        ]
        plans[key] = made, lacking
        while len(plans) > _MOST_PLANS:
            plans.popitem(last=False)
    return plans[key]


@functools.lru_cache(maxsize=4096)
def _decisions(ends: bytes, required: bytes) -> list[Decision] | None:
    """The decisions of a sweep in the best of three orders; None where it is too wide."""
    joined = np.frombuffer(ends, dtype=np.int64).reshape(-1, 2).tolist()
    needed = np.frombuffer(required, dtype=np.bool_).tolist()
    edges: list[list[tuple[int, int]]] = [[] for _ in needed]
    for edge, (one, other) in enumerate(joined):
        edges[one].append((edge, other))
        edges[other].append((edge, one))
    near = [list(dict.fromkeys(other for _, other in row)) for row in edges]
    start = min(range(len(edges)), key=lambda one: len(edges[one]))
    order, work = _order(near, start)
    if work > tuning.QUICK_MATCHING:
        # From the other end, and from a vertex of many edges.
        hub = max(range(len(edges)), key=lambda one: len(edges[one]))
        for other_start in (_farthest(near, start), hub):
            other, less = _order(near, other_start)
            if less < work:
                order, work = other, less
    if work == math.inf:
        return None
    found, done = list[Decision](), set[int]()
    left, opened = [len(row) for row in edges], list[int]()
    for vertex in order:
        own = [(edge, other) for edge, other in edges[vertex] if edge not in done]
        if not own:
            continue
        for edge, other in own:
            done.add(edge)
            left[vertex] -= 1
            left[other] -= 1
        # Vertices that open have bits above those that are open; some have no further edge.
        new = dict.fromkeys(other for _, other in own if other not in opened)
        bit = {one: place for place, one in enumerate([*opened, *(o for o in new if left[o])])}
        kept = [one for one in bit if left[one] and one != vertex]
        closing = [bit[one] for one in bit if not left[one] and one != vertex and needed[one]]
        lonely = {one for one in new if not left[one] and needed[one]}
        found.append(
            Decision(
                tuple(edge for edge, _ in own), len(opened), bit.get(vertex, -1),
                needed[vertex], tuple(bit.get(other, -1) for _, other in own),
                tuple(bit[one] for one in kept), tuple(closing),
                (not lonely, *(lonely <= {other} for _, other in own)),
            )
        )  # fmt: skip
        opened = kept
    return found


def _farthest(near: Sequence[Sequence[int]], start: int) -> int:
    """A vertex that is farthest from another one, breadth-first."""
    seen, line = {start}, [start]
    for one in line:
        for other in near[one]:
            if other not in seen:
                seen.add(other)
                line.append(other)
    return line[-1]


def _order(near: Sequence[Sequence[int]], start: int) -> tuple[list[int], float]:
    """Vertices in the order in which few stay open, greedily; and the entries of all steps.

    The next vertex leaves the fewest open, among equals the one that came near first. The entries
    are infinite where too many are open.
    """
    left = [len(others) for others in near]  # neighbours that are not decided on
    decided, opened = [False] * len(near), set[int]()
    pool, work, order = {start: 0}, 0.0, list[int]()
    while pool:
        # How many more are open after each: its new neighbours, less those that it closes.
        best, least = -1, math.inf
        for one in pool:
            gain = -1 if one in opened else 0
            for other in near[one]:
                if not decided[other]:
                    gain += (other not in opened) - (left[other] == 1)
            if gain < least:
                best, least = one, gain
        del pool[best]
        order.append(best)
        decided[best] = True
        work += float((left[best] + 1) << len(opened))
        opened.discard(best)
        for other in near[best]:
            if decided[other]:
                continue
            left[other] -= 1
            if not left[other]:
                opened.discard(other)
                pool.pop(other, None)
                decided[other] = True
            elif other not in opened:
                opened.add(other)
                if len(opened) > tuning.MOST_MATCHING_BITS:
                    return order, math.inf
                pool.setdefault(other, len(order))
                for further in near[other]:
                    if not decided[further]:
                        pool.setdefault(further, len(order))
    return order, work


@dataclass(frozen=True, eq=False)
class MatchingSweep:
    """The sweeps of components that are alike."""

    alike: Alike
    found: list[Decision] | None  # None: too many vertices would be open

    @property
    def decisions(self) -> list[Decision]:
        """The decisions of a sweep that is not too wide."""
        assert self.found is not None
        return self.found

    @cached_property
    def entries(self) -> float:
        """Log-values of all steps, for one component; infinite where it is too wide."""
        if self.found is None:
            return math.inf
        return float(sum(each.entries for each in self.found))

    @cached_property
    def open(self) -> int:
        """The most vertices that are open at once, or one more than the limit."""
        if self.found is None:
            return tuning.MOST_MATCHING_BITS + 1
        return max(max(each.bits, len(each.kept)) for each in self.found)

    @cached_property
    def steps(self) -> list[MatchingStep]:
        """The steps, their entries written out."""
        return [each.step() for each in self.decisions]

    @cached_property
    def _padded(self) -> tuple[Tensor, Tensor]:
        """(steps, most edges) the edges of each decision, and where there is one."""
        most = max(len(each.edges) for each in self.decisions)
        rows = [[*each.edges, *[0] * (most - len(each.edges))] for each in self.decisions]
        real = [[at < len(each.edges) for at in range(most)] for each in self.decisions]
        return torch.tensor(rows, device="cpu"), torch.tensor(real, device="cpu")

    def choices(self, entries: Tensor) -> Tensor:
        """(G, steps, most edges + 1) log-values of choices, from log-potentials (all, 2).

        Sums of the other edges are made without subtraction, as one of them may be -inf.
        """
        rows, real = self._padded
        used = entries[self.alike.entries[:, rows]]
        off = torch.where(real, used[..., 0], 0.0)
        before = off[..., :-1].cumsum(-1)
        after = off[..., 1:].flip(-1).cumsum(-1).flip(-1)
        zero = torch.zeros_like(off[..., :1])
        others = torch.cat([zero, before], -1) + torch.cat([after, zero], -1)
        return torch.cat([off.sum(-1, keepdim=True), used[..., 1] + others], -1)

    def tables(self, choices: Tensor, temperature: float) -> list[Tensor]:
        """(G, M) the table before each step, and that after the last."""
        tables = [choices.new_zeros(len(choices), 1)]
        for number, step in enumerate(self.steps):
            ways = self._ways(tables[-1], choices[:, number], step)
            tables.append(soft_sum(ways, -1, temperature))
        return tables

    @staticmethod
    def _ways(table: Tensor, choices: Tensor, step: MatchingStep) -> Tensor:
        """(G, M, F) the log-values of all ways to each entry."""
        padded = torch.nn.functional.pad(table, (0, 1), value=-math.inf)
        return padded[:, step.source] + choices[:, step.choice]

    def log_sums(self, entries: Tensor) -> Tensor:
        """(G,) log Z of each component, from the log-potentials (all, 2) of all pairs.

        In parts where their tables are large: each is computed again for its gradient.
        """

        def part(choices: Tensor) -> Tensor:
            return self.tables(choices, 1.0)[-1][:, 0]

        choices = self.choices(entries)
        if library.available(torch.float64, "matchings") and not is_transformed():
            return self._compiled(choices, part)
        count = max(1, int(tuning.MATCHING_PART // self.entries))
        if count >= len(choices):
            return part(choices)
        parts = choices.split(count)
        if not (choices.requires_grad and torch.is_grad_enabled()):
            return torch.cat([part(each) for each in parts])
        return torch.cat([checkpoint(part, each, use_reentrant=False) for each in parts])

    def _compiled(self, choices: Tensor, by_torch: Callable[[Tensor], Tensor]) -> Tensor:
        """`log_sums` by compiled code; torch takes their second derivatives."""
        known = choices.detach().contiguous()
        log_z = known.new_empty(len(known))
        _call("matching_sums", self, known, log_z)

        def gradient(above: Tensor) -> Tensor:
            result = torch.zeros_like(known)
            _call("matching_gradient", self, known, above.contiguous(), result)
            return result

        return with_gradient(log_z, choices, gradient, by_torch)

    @cached_property
    def program(self) -> Tensor:
        """The decisions as the compiled code reads them, one after another."""
        numbers: list[int] = []
        for each in self.decisions:
            closed = sum(1 << bit for bit in each.closed)
            numbers += [len(each.edges), each.bits, each.own, each.required, len(each.kept), closed]
            numbers += [*each.kept, *each.targets, *each.takes]
        return torch.tensor(numbers, device="cpu")

    def descend(self, entries: Tensor, count: int, pick: Pick, temperature: float) -> Tensor:
        """(count, G, E) bool: the edges of matchings, each step's choice by ``pick``."""
        choices = self.choices(entries)
        size, edges = len(choices), self.alike.entries.shape[1]
        taken = torch.zeros(count * size, edges + 1, dtype=torch.bool, device="cpu")
        item = torch.arange(size, device="cpu").repeat(count)
        every = torch.arange(len(item), device="cpu")
        entry = torch.zeros_like(item)
        tables = self.tables(choices, temperature)
        for number in range(len(self.steps) - 1, -1, -1):
            step = self.steps[number]
            source, choice = step.source[entry], step.choice[entry]
            padded = torch.nn.functional.pad(tables[number], (0, 1), value=-math.inf)
            ways = padded[item.unsqueeze(1), source] + choices[item.unsqueeze(1), number, choice]
            way = pick(ways).unsqueeze(1)
            entry, chosen = source.gather(1, way)[:, 0], choice.gather(1, way)[:, 0]
            entry = entry.clamp(max=step.before - 1)  # of an item without any matching
            numbers = torch.tensor([edges, *self.decisions[number].edges], device="cpu")
            taken[every, numbers[chosen]] = True
        return taken[:, :-1].reshape(count, size, edges)

    def max_marginals(self, entries: Tensor) -> Tensor:
        """(G, E, 2) the largest value of a component's matchings with each state of each edge."""
        choices = self.choices(entries)
        tables = self.tables(choices, 0.0)
        size = len(choices)
        best = choices.new_full((size, self.alike.entries.shape[1], 2), -math.inf)
        down = choices.new_zeros(size, 1)
        for number in range(len(self.steps) - 1, -1, -1):
            step = self.steps[number]
            onward = choices[:, number][:, step.choice] + down.unsqueeze(-1)
            through = self._ways(tables[number], choices[:, number], step) + down.unsqueeze(-1)
            edges = list(self.decisions[number].edges)
            each = _largest_by(through, step.choice, len(edges) + 1)
            best[:, edges, 1] = each[:, 1:]
            # Without an edge: by the largest of all other choices.
            value, place = each.topk(2, -1)
            is_first = torch.arange(1, len(edges) + 1, device="cpu") == place[:, :1]
            best[:, edges, 0] = torch.where(is_first, value[:, 1:], value[:, :1])
            down = _largest_by(onward, step.source, step.before + 1)[:, :-1]
        return best


def _largest_by(values: Tensor, groups: Tensor, count: int) -> Tensor:
    """(G, count) the largest of the values (G, M, F) of each group (M, F)."""
    flat = values.flatten(1)
    start = flat.new_full((len(flat), count), -math.inf)
    return start.scatter_reduce(1, groups.flatten().expand_as(flat), flat, "amax")


def _call(name: str, sweep: MatchingSweep, choices: Tensor, *others: Tensor) -> None:
    """Call a compiled function on all components of a shape."""
    parts = sweep.program, choices, *others
    threads = library.threads(len(choices) * sweep.entries * 16.0, len(choices))
    library.function(name)(*(part.data_ptr() for part in parts), *choices.shape, threads)
