"""Derivations by torch: the best one, the k best, draws, and the best score with each entry.

A node is a cell of the table of an item. Its alternatives are the rules of the table, each with all
values of the variables that it sums over, and an alternative is worth the sum of the entries that
it reads. All nodes of a table are answered together, in blocks, so a chain of T steps takes T
rounds of a handful of calls, whatever its batch and the number of draws.

These are the answers of `executor` where that does not serve, and reads have the form of its own.
All is computed in float64, so that long recurrences keep the digits of float32.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph.recurrences.affine import Affine, evaluate_form
from rdpgraph.recurrences.evaluation import fill
from rdpgraph.recurrences.interpreter import STEP, Run
from rdpgraph.recurrences.program import CellTable, Lookup, Program, Read, Row, Rule, inside
from rdpgraph.recurrences.semirings import LogSum, Max

Pick = Callable[[Tensor], Tensor]
"""Chooses an alternative of each node: (Q, A) logs as (Q,)."""


@torch.no_grad()
def run_up(
    program: Program, inputs: Sequence[Tensor], lengths: Mapping[str, Tensor | int],
    sizes: Mapping[str, int], *, best: bool,
) -> "Derived":  # fmt: skip
    """Log-sums, or maxima, of all tables; as `executor.run_up`, on any device."""
    given = {
        array.name: x if array.whole else x.double()
        for array, x in zip(program.inputs, inputs, strict=True)
    }
    run = Run(program, given, lengths, sizes, Max() if best else LogSum())
    fill(run)
    dtype = next((x.dtype for x in inputs if x.is_floating_point()), torch.float64)
    return Derived(tuple(inputs), run.goal().to(dtype).expand(run.items), _Cells(run))


@dataclass(frozen=True, eq=False)
class Derived:
    """A finished pass upwards by torch, from which derivations are read.

    Attributes:
        inputs: (items or 1, *dims) in the order of the program, as they were given.
        value: (items,) the goal.
        cells: the values of all tables.
    """

    inputs: tuple[Tensor, ...]
    value: Tensor
    cells: "_Cells"

    @property
    def possible(self) -> Tensor:
        """(items,) whether there is a derivation."""
        return self.value > -math.inf

    def derivations(self, count: int | None, generator: torch.Generator | None) -> Tensor:
        """What derivations read, as `executor.derivations`."""
        pick: Pick = _largest if count is None else partial(_drawn, generator=generator)
        draws, device = 1 if count is None else count, self.value.device
        found = [torch.zeros(0, 4, dtype=torch.int64, device=device)]
        for nodes in self._goals():
            draw = torch.arange(draws, device=device).repeat_interleave(len(nodes.item))
            axes = {axis: x.repeat(draws) for axis, x in nodes.axes.items()}
            many = _Nodes(nodes.table, nodes.item.repeat(draws), axes, draw)
            found += self._followed([many], lambda nodes: self.cells.chosen(nodes, pick))
        return torch.cat(found)

    def best_derivations(self, count: int) -> tuple[Tensor, Tensor]:
        """What the k best read and how many there are, as `executor.best_derivations`.

        Every cell has the list of its own best, from the leaves up, and says of each from which
        alternative it is, and from which places in the lists that this reads.
        """
        lists = _Lists(self.cells, count)
        for table, step in self.cells.steps():
            for nodes in self.cells.nodes_at(table, step):
                lists.fill(nodes)
        chosen, found = lists.of_goals(self._goals(), self.possible)
        reads = [torch.zeros(0, 4, dtype=torch.int64, device=self.value.device)]
        for nodes in chosen:
            reads += self._followed([nodes], lists.chosen)
        return torch.cat(reads), found

    def best_with(self) -> list[Tensor | None]:
        """The best score with each entry of each input of logs, as `executor.best_with`.

        From the goal down: what a derivation through an entry loses, at least, against the best.
        """
        cells, items = self.cells, len(self.value)
        lost = {name: torch.full_like(values, -math.inf) for name, values in cells.values.items()}
        for array, x in zip(cells.program.inputs, self.inputs, strict=True):
            if not array.whole:
                entries = (items, *x.shape[1:])
                lost[array.name] = cells.like.new_full((math.prod(entries),), -math.inf)
        for nodes in self._goals():
            lost[nodes.table.name][cells.places(nodes)] = 0.0
        for table, step in cells.steps(downwards=True):
            for nodes in cells.nodes_at(table, step, lost[table.name]):
                here = cells.places(nodes)
                above = (lost[table.name][here] - cells.values[table.name][here]).unsqueeze(1)
                for rule in cells.program.rules_of(table.name):
                    terms = cells.terms(rule, nodes)
                    through = (above + terms.logs).reshape(-1)
                    for read, place in zip(rule.factors, terms.places, strict=True):
                        # An input that items share has losses of each item, all the same.
                        if cells.program.table(read.array) is None:
                            place = cells.own_places(read.array, place, nodes)
                        place = place.expand_as(terms.logs).reshape(-1)
                        if lost[read.array].numel():  # nothing is read of what has no entries
                            lost[read.array].scatter_reduce_(0, place, through, "amax")
        best = torch.where(self.possible, self.value.double(), 0.0)
        made: list[Tensor | None] = []
        for array, x in zip(cells.program.inputs, self.inputs, strict=True):
            if array.whole:
                made.append(None)
                continue
            total = lost[array.name].view(items, -1) + best.unsqueeze(1)
            made.append(total.view(items, *x.shape[1:]).to(x))
        return made

    def _goals(self) -> list["_Nodes"]:
        """The cells of each goal, of the items that have a derivation which is not empty there."""
        found: list[_Nodes] = []
        for goal, (axes, is_inside, before) in zip(
            self.cells.program.goals, self.cells.run.goal_cells(), strict=True
        ):
            (item,) = (self.possible & is_inside & ~before).nonzero(as_tuple=True)
            table = self.cells.program.table(goal.array)
            assert table is not None
            found.append(_Nodes(table, item, {axis: x[item] for axis, x in axes.items()}, item * 0))
        return found

    def _followed(
        self, nodes: list["_Nodes"], choose: Callable[["_Nodes"], "_Chosen"]
    ) -> Iterator[Tensor]:
        """What the derivations of some nodes read, by one choice for each node."""
        numbers = {array.name: k + 1 for k, array in enumerate(self.cells.program.inputs)}
        # Level by level: nodes read entries of inputs, and tables in which the next nodes are.
        while nodes:
            below: dict[str, list[_Nodes]] = {}
            for some in nodes:
                if not len(some.item):
                    continue
                chosen = choose(some)
                for k, rule in enumerate(self.cells.program.rules_of(some.table.name)):
                    (which,) = (chosen.rule == k).nonzero(as_tuple=True)
                    if not len(which):
                        continue
                    at = self.cells.point(rule, some.of(which), chosen.alternative[which])
                    ranks = iter(chosen.ranks[which].unbind(1))
                    for read in rule.factors:
                        table = self.cells.program.table(read.array)
                        if table is not None:
                            child = self.cells.child(table, read, at, next(ranks))
                            below.setdefault(table.name, []).append(child)
                            continue
                        place = self.cells.input_place(read, at.item, at.axes).expand_as(at.item)
                        number = torch.full_like(place, numbers[read.array])
                        yield torch.stack([at.draw, at.item, number, place], 1)
            nodes = [_Nodes.together(each) for each in below.values()]


@dataclass(frozen=True, eq=False)
class _Nodes:
    """Cells of one table, (Q,) of everything.

    Attributes:
        axes: the coordinates of each, by axis.
        draw: to which derivation of its item each belongs.
        rank: the place in the list of the cell's best derivations.
    """

    table: CellTable
    item: Tensor
    axes: Mapping[str, Tensor]
    draw: Tensor
    rank: Tensor | None = None

    def of(self, which: Tensor | slice) -> "_Nodes":
        """Some of the nodes."""
        axes = {axis: x[which] for axis, x in self.axes.items()}
        rank = None if self.rank is None else self.rank[which]
        return _Nodes(self.table, self.item[which], axes, self.draw[which], rank)

    @classmethod
    def together(cls, parts: Sequence["_Nodes"]) -> "_Nodes":
        """Nodes of one table in one."""
        if len(parts) == 1:
            return parts[0]
        axes = {axis: torch.cat([part.axes[axis] for part in parts]) for axis in parts[0].axes}
        item, draw = (torch.cat([getattr(p, name) for p in parts]) for name in ("item", "draw"))
        ranks = [part.rank for part in parts if part.rank is not None]
        return cls(parts[0].table, item, axes, draw, torch.cat(ranks) if ranks else None)


@dataclass(frozen=True, eq=False)
class _Terms:
    """The alternatives of nodes by one rule.

    Attributes:
        logs: (Q, A) their values; -inf where the rule does not hold.
        places: of each factor, (Q or 1, A or 1) the numbers of the entries that are read.
    """

    logs: Tensor
    places: list[Tensor]


@dataclass(frozen=True, eq=False)
class _Chosen:
    """One alternative of each node.

    Attributes:
        rule: (Q,) the number of the rule among those of the table.
        alternative: (Q,) its number among the values of the variables that the rule sums over.
        ranks: (Q, tables) which derivation of each table that is read.
    """

    rule: Tensor
    alternative: Tensor
    ranks: Tensor


class _Cells:
    """The values of all tables as flat tensors [item][step][place][label], and their nodes."""

    def __init__(self, run: Run) -> None:
        self.run, self.program, self.sizes = run, run.program, run.sizes
        self.shapes, self.ranges = run.layout.shapes, run.layout.ranges
        self.like = run.like
        self.values = {name: self._flat(name) for name in self.shapes}
        self.tables = 1 + max(
            sum(self.program.table(f.array) is not None for f in rule.factors)
            for rule in self.program.rules
        )

    def _flat(self, name: str) -> Tensor:
        """The values of a table; steps that no goal needs are absent."""
        shape, done = self.shapes[name], self.run.done[name]
        none = self.like.new_full((self.run.items, *shape.sizes), self.run.semiring.zero)
        steps = [done.get(step, none).unsqueeze(1).flatten(1) for step in range(shape.steps)]
        return torch.cat(steps or [none.unsqueeze(1).flatten(1)[:, :0]], 1).reshape(-1)

    # ---- where things are ----

    def places(self, nodes: _Nodes) -> Tensor:
        """(Q,) the numbers of nodes."""
        return self._place(nodes.table, nodes.item, nodes.axes)

    def _place(self, table: CellTable, item: Tensor, axes: Mapping[str, Any]) -> Tensor:
        """The numbers of cells of a table."""
        shape = self.shapes[table.name]
        row = item * shape.steps + evaluate_form(table.order, {**self.sizes, **axes})
        for axis, size in (*shape.places.items(), *shape.labels.items()):
            row = row * size + axes[axis]
        return row

    def input_place(self, read: Read, item: Tensor, axes: Mapping[str, Any]) -> Tensor:
        """The numbers of entries of an input in its item."""
        place: Any = torch.zeros((), dtype=torch.int64, device=item.device)
        dims = self.run.inputs[read.array].shape[1:]
        for at, size in zip(read.index, dims, strict=True):
            place = place * size + self._index(at, item, axes)
        return place

    def _index(self, at: Affine | Lookup, item: Tensor, axes: Mapping[str, Any]) -> Any:
        """The value of an index; of one that is data, that of the entry next to it in its array."""
        values = {**self.sizes, **axes}
        if isinstance(at, Affine):
            return evaluate_form(at, values)
        data = self.run.whole[at.array]
        where = [
            torch.as_tensor(evaluate_form(one, values), device=data.device).clamp(0, size - 1)
            for one, size in zip(at.index, data.shape[1:], strict=True)
        ]
        return data[(item if len(data) > 1 else torch.zeros_like(item), *where)]

    def own_places(self, name: str, place: Tensor, nodes: _Nodes) -> Tensor:
        """The numbers of entries of an input, each item with entries of its own."""
        values = self.run.inputs[name]
        if len(values) > 1:
            return place
        return place + nodes.item.unsqueeze(1) * values.shape[1:].numel()

    # ---- nodes and alternatives ----

    def steps(self, *, downwards: bool = False) -> Iterator[tuple[CellTable, int]]:
        """All tables and steps in the order of computation, or the other way round."""
        found = [
            (table, step)
            for step in range(self.run.layout.steps)
            for table in self.program.tables
            if step in self.run.done[table.name]
        ]
        return reversed(found) if downwards else iter(found)

    def nodes_at(
        self, table: CellTable, step: int, wanted: Tensor | None = None
    ) -> Iterator[_Nodes]:
        """The cells of a table in a step that are possible, and not -inf in ``wanted``."""
        shape, values = self.shapes[table.name], self.values[table.name]
        dims = {**shape.places, **shape.labels}
        own = values.view(self.run.items, shape.steps, -1)[:, step] > -math.inf
        if wanted is not None:
            own &= wanted.view(self.run.items, shape.steps, -1)[:, step] > -math.inf
        item, *index = own.view(self.run.items, *dims.values()).nonzero(as_tuple=True)
        axes = dict(zip(dims, index, strict=True))
        if shape.solved:
            form = shape.coordinates()[shape.solved]
            known = {**self.sizes, **axes, STEP: step}
            axes[shape.solved] = evaluate_form(form, known) + torch.zeros_like(item)
        nodes = _Nodes(table, item, axes, torch.zeros_like(item))
        block = self.block(table)
        for start in range(0, len(item), block):
            yield nodes.of(slice(start, start + block))

    def block(self, table: CellTable, times: int = 1) -> int:
        """How many nodes of a table have about as many alternatives as a block of memory."""
        counts = [
            math.prod(self._count(rule, name) for name in rule.over)
            for rule in self.program.rules_of(table.name)
        ]
        return max(1, tuning.CACHE_BLOCK // max(1, times * sum(counts)))

    def terms(self, rule: Rule, nodes: _Nodes) -> _Terms:
        """All alternatives of nodes by one rule."""
        over = [self._count(rule, name) for name in rule.over]
        ones = [1] * len(over)
        # Everything is in dims of its own: nodes, and one dim for each variable of a sum.
        axes: dict[str, Any] = {a: x.view(-1, *ones) for a, x in nodes.axes.items()}
        for k, name in enumerate(rule.over):
            values = torch.arange(over[k], device=self.like.device)
            axes[name] = values.view(*ones[:k], -1, *ones[k + 1 :])
        item, full = nodes.item.view(-1, *ones), (len(nodes.item), *over)
        for row in rule.rows:
            axes[row.variable] = axes[row.variable] + self._begin(row, item, axes)
        holds = self._holds(rule, item, axes)
        logs, places = self.like.new_zeros([1] * len(full)), list[Tensor]()
        for read in rule.factors:
            table = self.program.table(read.array)
            if table is None:
                values = self.run.inputs[read.array].reshape(-1)
                place = self.input_place(read, item, axes)
                if len(self.run.inputs[read.array]) > 1:
                    place = place + item * (values.numel() // self.run.items)
            else:
                values = self.values[read.array]
                place = self._place(table, item, self._read_axes(table, read, item, axes))
            # Places outside of an array are those where the rule does not hold.
            place = place if holds is None else torch.where(holds, place, 0)
            logs = logs + values[place] if values.numel() else logs - math.inf
            places.append(_as_rows(place, full))
        if holds is not None:
            logs = torch.where(holds, logs, -math.inf)
        return _Terms(logs.expand(full).reshape(len(nodes.item), -1), places)

    def _count(self, rule: Rule, name: str) -> int:
        """How many values a variable of a sum has: of a row, as many as the longest."""
        row = next((row for row in rule.rows if row.variable == name), None)
        if row is None:
            return self.ranges[name]
        return int(self.run.whole[row.array].diff(dim=1).max())

    def _begin(self, row: Row, item: Tensor, axes: Mapping[str, Any], more: int = 0) -> Tensor:
        """Where rows of a list begin, or the next ones."""
        return self._index(Lookup(row.array, (row.at + more,)), item, axes)

    def _holds(self, rule: Rule, item: Tensor, axes: Mapping[str, Any]) -> Tensor | None:
        """Where a rule adds anything; None: everywhere."""
        values: dict[str, Any] = {**self.sizes, **axes}
        forms = [*rule.guards, *rule.equal, *(-form for form in rule.equal)]
        for factor in rule.factors:
            forms += inside(factor, self.program.by_name[factor.array])
            for at in factor.index:
                if isinstance(at, Lookup):
                    forms += inside(Read(at.array, at.index), self.program.by_name[at.array])
        for row in rule.rows:
            for k in (0, 1):
                forms += inside(Read(row.array, (row.at + k,)), self.program.by_name[row.array])
        holds: Tensor | None = None
        for form in dict.fromkeys(forms):
            if not form.names & self.program.labels and (form.terms or form.constant < 0):
                own = torch.as_tensor(evaluate_form(form, values), device=item.device) >= 0
                holds = own if holds is None else holds & own
        for row in rule.rows:
            own = axes[row.variable] < self._begin(row, item, axes, 1)
            holds = own if holds is None else holds & own
        return holds

    def _read_axes(
        self, table: CellTable, read: Read, item: Tensor, axes: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The coordinates of the cells of a table that are read."""
        pairs = zip(table.axes, read.index, strict=True)
        return {axis: self._index(at, item, axes) for axis, at in pairs}

    def point(self, rule: Rule, nodes: _Nodes, alternative: Tensor) -> _Nodes:
        """Nodes with the values of a rule's variables in one alternative of each."""
        axes = dict(nodes.axes)
        for name in reversed(rule.over):
            count = self._count(rule, name)
            axes[name] = alternative % count
            alternative = alternative // count
        for row in rule.rows:
            axes[row.variable] = axes[row.variable] + self._begin(row, nodes.item, axes)
        return _Nodes(nodes.table, nodes.item, axes, nodes.draw)

    def child(self, table: CellTable, read: Read, at: _Nodes, rank: Tensor) -> _Nodes:
        """The nodes that are read at some points."""
        axes = self._read_axes(table, read, at.item, at.axes)
        axes = {axis: x + torch.zeros_like(at.item) for axis, x in axes.items()}
        return _Nodes(table, at.item, axes, at.draw, rank)

    def chosen(self, nodes: _Nodes, pick: Pick) -> _Chosen:
        """An alternative of each node."""
        rules = self.program.rules_of(nodes.table.name)
        found: list[tuple[Tensor, Tensor]] = []
        block = self.block(nodes.table)
        for start in range(0, len(nodes.item), block):
            some = nodes.of(slice(start, start + block))
            terms = [self.terms(rule, some).logs for rule in rules]
            found.append(_divided(pick(torch.cat(terms, 1)), [x.shape[1] for x in terms]))
        rule, alternative = (torch.cat(parts) for parts in zip(*found, strict=True))
        return _Chosen(rule, alternative, rule.new_zeros(len(rule), self.tables))


def _as_rows(place: Tensor, full: Sequence[int]) -> Tensor:
    """(Q, A) from a tensor that broadcasts to nodes and variables."""
    return place.expand(*full).reshape(full[0], -1)


def _divided(index: Tensor, sizes: Sequence[int]) -> tuple[Tensor, Tensor]:
    """The part that each index into parts side by side belongs to, and its place in that."""
    starts = torch.tensor([0, *sizes[:-1]], device=index.device).cumsum(0)
    part = torch.searchsorted(starts, index, right=True) - 1
    return part, index - starts[part]


def _largest(logs: Tensor) -> Tensor:
    """The first maximum of each row."""
    return logs.argmax(1)


def _drawn(logs: Tensor, generator: torch.Generator | None) -> Tensor:
    """An alternative of each row in proportion to the exponentials, none of which is -inf."""
    sums = (logs - logs.amax(1, keepdim=True)).exp().cumsum(1)
    source = logs.device if generator is None else generator.device
    noise = torch.rand(len(logs), 1, generator=generator, dtype=logs.dtype, device=source)
    chosen = (sums <= noise.to(logs.device) * sums[:, -1:]).sum(1)
    # Rounding may put the target at the whole sum: the last that is possible is taken.
    return chosen.minimum(logs.shape[1] - 1 - (logs > -math.inf).flip(1).int().argmax(1))


# ---- the k best ----


@dataclass(eq=False)
class _Lists:
    """The best derivations of every cell, best first.

    Attributes:
        scores: of each table, (cells, k); -inf where there are fewer.
        choices: of each table, (cells, k, 2 + tables): the rule, the alternative and the ranks.
    """

    cells: _Cells
    count: int
    scores: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    choices: dict[str, Tensor] = field(default_factory=dict[str, Tensor])

    def __post_init__(self) -> None:
        for name, values in self.cells.values.items():
            self.scores[name] = values.new_full((len(values), self.count), -math.inf)
            shape = len(values), self.count, 2 + self.cells.tables
            self.choices[name] = torch.zeros(shape, dtype=torch.int32, device=values.device)

    def fill(self, nodes: _Nodes) -> None:
        """Find the lists of nodes, those of all that they read being there."""
        block = self.cells.block(nodes.table, self.count * self.count.bit_length())
        for start in range(0, len(nodes.item), block):
            self._fill(nodes.of(slice(start, start + block)))

    def _fill(self, nodes: _Nodes) -> None:
        scores, rules, alternatives, ranks = (list[Tensor]() for _ in range(4))
        for number, rule in enumerate(self.cells.program.rules_of(nodes.table.name)):
            terms = self.cells.terms(rule, nodes)
            tables = [
                (self.scores[read.array], place)
                for read, place in zip(rule.factors, terms.places, strict=True)
                if self.cells.program.table(read.array) is not None
            ]
            # Of each list read, what its k-th best loses; the sum with the k-th for each of them.
            losses = [found[place] - found[place][..., :1] for found, place in tables]
            for each in _needed_ranks(len(tables), self.count):
                parts = [lost[..., rank] for lost, rank in zip(losses, each, strict=True)]
                total = sum(parts, terms.logs).nan_to_num(nan=-math.inf, neginf=-math.inf)
                own = torch.arange(total.shape[1], device=total.device)
                scores.append(total)
                rules.append(torch.full_like(own, number))
                alternatives.append(own)
                padded = [*each, *[0] * (self.cells.tables - len(each))]
                ranks.append(torch.tensor([padded], device=own.device).expand(len(own), -1))
        every = torch.cat(scores, 1)
        best, index = every.topk(min(self.count, every.shape[1]), 1)
        made = torch.cat([
            torch.stack([torch.cat(rules), torch.cat(alternatives)], 1), torch.cat(ranks)
        ], 1)  # fmt: skip
        here = self.cells.places(nodes)
        self.scores[nodes.table.name][here, : best.shape[1]] = best
        self.choices[nodes.table.name][here, : best.shape[1]] = made[index].int()

    def chosen(self, nodes: _Nodes) -> _Chosen:
        """The alternatives that nodes are, by their ranks."""
        assert nodes.rank is not None
        found = self.choices[nodes.table.name][self.cells.places(nodes), nodes.rank].long()
        return _Chosen(found[:, 0], found[:, 1], found[:, 2:])

    def of_goals(self, goals: list[_Nodes], possible: Tensor) -> tuple[list[_Nodes], Tensor]:
        """The goals' cells by derivation and rank, and (items,) how many derivations there are."""
        # A goal that is no cell of an item is the empty derivation, of which there is one.
        lists: list[Tensor] = []
        for nodes in goals:
            own = self.cells.like.new_full((len(possible), self.count), -math.inf)
            own[:, 0] = 0.0
            own[nodes.item] = self.scores[nodes.table.name][self.cells.places(nodes)]
            lists.append(own)
        every = _needed_ranks(len(goals), self.count)
        totals = [
            torch.stack([own[:, rank] for own, rank in zip(lists, each, strict=True)]).sum(0)
            for each in every
        ]
        scores, index = torch.stack(totals, 1).topk(min(self.count, len(every)), 1)
        found = (scores > -math.inf).sum(1) * possible
        ranks = torch.tensor(every, device=index.device)[index]  # (items, k, goals)
        chosen: list[_Nodes] = []
        for k, nodes in enumerate(goals):
            draw = torch.arange(scores.shape[1], device=index.device)
            own, draw = (draw < found[nodes.item].unsqueeze(1)).nonzero(as_tuple=True)
            rank = ranks[nodes.item[own], draw, k]
            part = nodes.of(own)
            chosen.append(_Nodes(nodes.table, part.item, part.axes, draw, rank))
        return chosen, found


def _needed_ranks(lists: int, count: int) -> list[tuple[int, ...]]:
    """The ranks in some lists whose products may be among the best.

    A product with ranks r has prod(r + 1) - 1 before it.
    """
    found: list[tuple[tuple[int, ...], int]] = [((), 1)]
    for _ in range(lists):
        found = [
            ((*ranks, rank), size * (rank + 1))
            for ranks, size in found
            for rank in range(count // size)
        ]
    return [ranks for ranks, _ in found]
