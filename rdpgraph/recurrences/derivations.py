"""Derivations by torch: the best one, the k best, draws, and the best score with each entry.

A cell's alternatives are the rules of its table, each with all values of the variables that it sums
over, and an alternative is worth the product of the entries that it reads. These are the factors by
which the interpreter has computed the cell; where they come from is told by the same reads of
tables and inputs that hold the numbers of their entries in place of values. All cells of a block
are answered together: going down from the goals, what derivations read; going up, the lists of
their best; going down again, what they lose.

These are the answers of `executor` where that does not serve, and reads have the form of its own.
All is computed in float64, so that long recurrences keep the digits of float32.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph._core.cache import remembered
from rdpgraph.recurrences.affine import evaluate_form
from rdpgraph.recurrences.evaluation import run_of
from rdpgraph.recurrences.interpreter import CellBlock, Run
from rdpgraph.recurrences.named_tensors import NamedTensor
from rdpgraph.recurrences.program import Program
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
    run = run_of(program, given, lengths, sizes, Max() if best else LogSum())
    dtype = next((x.dtype for x in inputs if x.is_floating_point()), torch.float64)
    return Derived(tuple(inputs), run.goal().to(dtype).expand(run.items), _Alternatives(run))


@dataclass(frozen=True, eq=False)
class Derived:
    """A finished pass upwards by torch, from which derivations are read.

    Attributes:
        inputs: (items or 1, *dims) in the order of the program, as they were given.
        value: (items,) the goal.
        cells: the alternatives of all cells.
    """

    inputs: tuple[Tensor, ...]
    value: Tensor
    cells: "_Alternatives"

    @property
    def possible(self) -> Tensor:
        """(items,) whether there is a derivation."""
        return self.value > -math.inf

    def derivations(self, count: int | None, generator: torch.Generator | None) -> Tensor:
        """What derivations read, as `executor.derivations`."""
        pick: Pick = _largest if count is None else partial(_drawn, generator=generator)
        draws, goals = 1 if count is None else count, list[_Nodes]()
        for nodes in self.cells.goals(self.possible):
            rows = nodes.rows.repeat(1, draws)
            rows[2] = torch.arange(draws, device=rows.device).repeat_interleave(nodes.count)
            goals.append(_Nodes(nodes.table, rows))
        return self.cells.followed(goals, lambda at: self.cells.choose(at, pick))

    def best_derivations(self, count: int) -> tuple[Tensor, Tensor]:
        """What the k best read and how many there are, as `executor.best_derivations`.

        Every cell has the list of its own best, from the leaves up, and says of each from which
        alternative it is, and from which places in the lists that this reads.
        """
        lists = _Lists(self.cells, count)
        chosen, found = lists.of_goals(self.cells.goals(self.possible), self.possible)
        return self.cells.followed(chosen, lists.chosen), found

    def best_with(self) -> list[Tensor | None]:
        """The best score with each entry of each input of logs, as `executor.best_with`.

        From the goal down: what a derivation through an entry loses, at least, against the best.
        """
        cells, items = self.cells, len(self.value)
        every = {**cells.values.tables, **cells.values.inputs}
        # Of all entries, what is lost through them: nothing in the goals.
        lost = {
            name: cells.like.new_full((items, x.shape[1:].numel()), -math.inf)
            for name, x in every.items()
        }
        for nodes in cells.goals(self.possible):
            lost[nodes.table][nodes.item, nodes.rows[0]] = 0.0
        # From the last block to the first, each reading what those after it have lost through it.
        for block in reversed(cells.blocks):
            own = cells.of_block(lost[block.table], block)
            values = cells.of_block(cells.values.tables[block.table].flatten(1), block)
            above = torch.where(own > -math.inf, own - values, -math.inf)
            for term in block.terms:
                self._lose(block, term, NamedTensor(above, block.names), lost)
        best = torch.where(self.possible, self.value.double(), 0.0)
        made: list[Tensor | None] = []
        for array, x in zip(cells.program.inputs, self.inputs, strict=True):
            total = None if array.whole else lost[array.name] + best.unsqueeze(1)
            made.append(None if total is None else total.view(items, *x.shape[1:]).to(x))
        return made

    def _lose(
        self, block: CellBlock, term: Any, above: NamedTensor, lost: Mapping[str, Tensor]
    ) -> None:
        """Add to what entries lose what they lose by one rule in the cells of a block."""
        cells = self.cells
        for name, (start, end) in term.box.items():
            above = above.narrow(name, start, end - start) if name in above.names else above
        factors, numbers = cells.values.reads(block, term), cells.numbers.reads(block, term)
        others = [above, *cells.values.conditions(term)]
        rule = cells.program.rules[term.rule]
        for k, (read, own, number) in enumerate(zip(rule.factors, factors, numbers, strict=True)):
            # The best of all else that is read, for each entry, by products of maxima.
            rest = [*others, *(factor for j, factor in enumerate(factors) if j != k)]
            names = dict.fromkeys(name for factor in rest for name in factor.names)
            over = [name for name in names if name not in number.names]
            plan = cells.values.layout.plan((term.rule, k), rest, over)
            through = cells.values.products.contract(rest, plan)
            total = through.arranged(number.names) + own.arranged(number.names)
            total = total.expand(len(above.values), *total.shape[1:])
            place = number.values.expand(total.shape).reshape(len(total), -1)
            if lost[read.array].numel():  # nothing is read of what has no entries
                lost[read.array].scatter_reduce_(1, place, total.reshape(place.shape), "amax")


@dataclass(frozen=True, eq=False)
class _Nodes:
    """Cells of one table.

    Attributes:
        rows: (4, Q) the number of each cell in its item, the item, the derivation of the item that
            it belongs to, and its place in the list of the cell's best derivations.
    """

    table: str
    rows: Tensor

    @property
    def item(self) -> Tensor:
        """(Q,) the items."""
        return self.rows[1]

    @property
    def count(self) -> int:
        """How many there are, Q."""
        return self.rows.shape[1]


@dataclass(frozen=True, eq=False)
class _NodesOfBlock(_Nodes):
    """Nodes whose cells are of one block.

    Attributes:
        at: (Q,) the value of each dim of the block's values.
    """

    block: CellBlock
    at: Mapping[str, Tensor]

    def of(self, which: Tensor | slice) -> "_NodesOfBlock":
        """Some of the nodes."""
        at = {name: x[which] for name, x in self.at.items()}
        return _NodesOfBlock(self.table, self.rows[:, which], self.block, at)


@dataclass(frozen=True, eq=False)
class _Chosen:
    """One alternative of each node.

    Attributes:
        alternative: (Q,) its number among the values of the variables that the rule sums over.
        term: (Q,) the number of the rule among the terms of the block; None: there is one.
        ranks: (Q,) each, which derivation of each table that is read; none: of no list.
    """

    alternative: Tensor
    term: Tensor | None = None
    ranks: Sequence[Tensor] = ()


class _Alternatives:
    """The alternatives of the cells of a run.

    Attributes:
        values: the run, on all that it has computed.
        numbers: the same on the numbers of all entries, each in its item.
        blocks: what is computed together.
    """

    def __init__(self, run: Run) -> None:
        self.run, self.program, self.like = run, run.given, run.like
        # Cells of links that were made tables of their own are no cells of derivations.
        tables = run.finished()
        tables = {table.name: tables[table.name] for table in self.program.tables}
        self.values = run.reading(tables, run.inputs)
        self.numbers = run.reading(
            {name: _numbers(x) for name, x in self.values.tables.items()},
            {name: _numbers(x) for name, x in run.inputs.items()},
        )
        self.blocks = self.values.blocks()

    def of_block(self, values: Tensor, block: CellBlock) -> Tensor:
        """(items, *sizes) what a block has of (items, cells)."""
        width = math.prod(block.sizes) // max(1, len(block.rows))
        values = values.view(len(values), -1, max(1, width))
        if isinstance(block.rows, range):
            own = values.narrow(1, block.rows.start, len(block.rows))
        else:
            own = values.index_select(1, block.rows)
        return own.reshape(len(values), *block.sizes)

    # ---- going down ----

    def goals(self, possible: Tensor) -> list[_Nodes]:
        """The cells of each goal, of the items that have a derivation which is not empty there."""
        found: list[_Nodes] = []
        for goal, (axes, inside, before) in zip(
            self.program.goals, self.run.goal_cells(), strict=True
        ):
            (item,) = (possible & inside & ~before).nonzero(as_tuple=True)
            shape, own = self.run.layout.shapes[goal.array], {a: x[item] for a, x in axes.items()}
            cell = evaluate_form(shape.table.order, {**self.run.sizes, **own}) + item * 0
            for axis, size in (*shape.places.items(), *shape.labels.items()):
                cell = cell * size + own[axis]
            found.append(_Nodes(goal.array, torch.stack([cell, item, item * 0, item * 0])))
        return found

    def followed(
        self, goals: Sequence[_Nodes], choose: Callable[[_NodesOfBlock], _Chosen]
    ) -> Tensor:
        """(R, 4) what the derivations of some nodes read, by one choice for each node."""
        inputs = {array.name: k + 1 for k, array in enumerate(self.program.inputs)}
        found, waiting = list[tuple[int, Tensor]](), _Waiting(self)
        for nodes in goals:
            waiting.add(nodes)
        # From the last block to the first: nodes read entries of inputs, and cells of earlier ones.
        for block in reversed(self.blocks):
            nodes = waiting.take(block)
            chosen = None if nodes is None else choose(nodes)
            for k, term in enumerate(block.terms):
                if nodes is None or chosen is None:
                    break
                # The nodes that have chosen this rule, and the values of its variables.
                some, alternative, ranks = nodes, chosen.alternative, chosen.ranks
                if chosen.term is not None:
                    (which,) = (chosen.term == k).nonzero(as_tuple=True)
                    if not which.numel():
                        continue
                    some, alternative = nodes.of(which), alternative[which]
                    ranks = [each[which] for each in ranks]
                variables = _unravelled(alternative, self.values.sizes_over(term))
                at, rank = {**self._within(some, term), **variables}, iter(ranks)
                factors = self.program.rules[term.rule].factors
                # The entries that they read there.
                for read, entries in zip(factors, self.numbers.reads(block, term), strict=True):
                    rows = some.rows.clone()
                    rows[0] = _entries(entries, some.item, at)
                    if read.array in inputs:
                        found.append((inputs[read.array], rows))
                    else:
                        if ranks:
                            rows[3] = next(rank)
                        waiting.add(_Nodes(read.array, rows))
        return _as_reads(found, self.like.device)

    def choose(self, nodes: _NodesOfBlock, pick: Pick) -> _Chosen:
        """An alternative of each node."""
        # In parts that have about as many alternatives as a block of memory.
        terms, parts = nodes.block.terms, list[tuple[Tensor, Tensor | None]]()
        each = sum(math.prod(self.values.sizes_over(term).values()) for term in terms)
        count, many = nodes.count, max(1, tuning.CACHE_BLOCK // max(1, each))
        for start in range(0, count, many):
            some = nodes if many >= count else nodes.of(slice(start, start + many))
            logs = [self._logs(some, term) for term in terms]
            index = pick(torch.cat(logs, 1) if len(logs) > 1 else logs[0])
            term = None
            if len(logs) > 1:  # the rule that the index is of, and its place there
                ends = torch.tensor([0, *(x.shape[1] for x in logs)], device=index.device).cumsum(0)
                term = torch.searchsorted(ends[1:], index, right=True)
                index = index - ends[term]
            parts.append((index, term))
        if len(parts) == 1:
            return _Chosen(*parts[0])
        return _Chosen(
            torch.cat([index for index, _ in parts]),
            torch.cat([x for _, x in parts if x is not None]) if len(terms) > 1 else None,
        )

    def _logs(self, nodes: _NodesOfBlock, term: Any) -> Tensor:
        """(Q, A) the values of all alternatives of nodes by one rule."""
        at, over = self._within(nodes, term), self.values.sizes_over(term)
        parts = [_entries(x, nodes.item, at, [*over]) for x in self.factors(nodes.block, term)]
        # The small ones first, so that few sums are of all alternatives.
        total = functools.reduce(torch.add, sorted(parts, key=torch.numel))
        total = total.expand(nodes.count, *over.values())
        total = total.reshape(nodes.count, math.prod(over.values()))
        # Cells outside of the box of the rule have no alternatives by it.
        for name, size in zip(nodes.block.names, nodes.block.sizes, strict=True):
            start, end = term.box.get(name, (0, size))
            if end - start < size:
                outside = (nodes.at[name] < start) | (nodes.at[name] >= end)
                total = total.masked_fill(outside.unsqueeze(1), -math.inf)
        return total

    def factors(self, block: CellBlock, term: Any) -> list[NamedTensor]:
        """What a rule multiplies for the cells of a block; 1 where that is nothing."""
        found = [*self.values.reads(block, term), *self.values.conditions(term)]
        return found or [NamedTensor(self.like.new_zeros(1), ())]

    def _within(self, nodes: _NodesOfBlock, term: Any) -> dict[str, Tensor]:
        """The dims of nodes in the box of a rule; any there for those outside."""
        at = dict(nodes.at)
        for name, size in zip(nodes.block.names, nodes.block.sizes, strict=True):
            start, end = term.box.get(name, (0, size))
            if end - start < size:
                at[name] = (at[name] - start).clamp_(0, end - start - 1)
        return at


def _unravelled(number: Tensor, sizes: Mapping[str, int]) -> dict[str, Tensor]:
    """The value of each of some dims, of numbers that count through all of them."""
    found, left = dict[str, Tensor](), len(sizes)
    for name, size in reversed([*sizes.items()]):
        left -= 1
        found[name] = number % size if left else number
        number = number // size if left else number
    return found


def _as_reads(found: Sequence[tuple[int, Tensor]], device: torch.device) -> Tensor:
    """(R, 4) the draw, the item, the input's number and the place, of entries of inputs."""
    if not found:
        return torch.zeros(0, 4, dtype=torch.int64, device=device)
    counts = torch.tensor([rows.shape[1] for _, rows in found])
    number = torch.tensor([number for number, _ in found]).repeat_interleave(counts).to(device)
    cell, item, draw, _ = torch.cat([rows for _, rows in found], 1)
    return torch.stack([draw, item, number, cell], 1)


def _numbers(x: Tensor) -> Tensor:
    """(1, *dims) the numbers of the entries of an item."""
    return torch.arange(x.shape[1:].numel(), device=x.device).view(1, *x.shape[1:])


def _entries(
    x: NamedTensor, item: Tensor, at: Mapping[str, Tensor], over: Sequence[str] = ()
) -> Tensor:
    """(Q or 1, *over) the entries of a tensor for nodes.

    Args:
        x: of which there are entries.
        item: (Q,) of each node.
        at: (Q,) the value of each name that is not summed over.
        over: the names that are.
    """
    own = [name for name in x.names if name not in over]
    values = x.arranged((*own, *over))
    index = tuple(at[name] for name in own)
    if len(values) > 1:
        return values[(item, *index)]
    return values[0][index] if own else values


class _Waiting:
    """Nodes that are waiting for their blocks: of each table (6, Q).

    These are the rows of nodes below the key of the block, and the place in it. With them is
    the largest of the keys.
    """

    def __init__(self, cells: _Alternatives) -> None:
        self.cells = cells
        self.parts: dict[str, list[Tensor]] = {name: [] for name in cells.values.tables}
        self.last = dict.fromkeys(cells.values.tables, -1)

    def add(self, nodes: _Nodes) -> None:
        """Add nodes of any blocks of a table."""
        if nodes.count:
            width = self.cells.values.tables[nodes.table].shape[2:].numel()
            row = nodes.rows[0] // width if width > 1 else nodes.rows[0]
            key, place = self.cells.values.homes(nodes.table, row)
            self.parts[nodes.table].append(torch.cat([torch.stack([key, place]), nodes.rows]))
            self.last[nodes.table] = max(self.last[nodes.table], int(key.max()))

    def take(self, block: CellBlock) -> _NodesOfBlock | None:
        """All nodes of the last block that has any; None: it has none."""
        parts, table = self.parts[block.table], block.table
        if self.last[table] < block.key:
            return None
        every = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
        own = every[0] == block.key
        self.parts[table], self.last[table] = [], -1
        if not bool(own.all()):
            others = every[:, ~own]
            every, self.parts[table] = every[:, own], [others]
            self.last[table] = int(others[0].max())
        # The place in the block, and then the value of each of its dims.
        width = self.cells.values.tables[table].shape[2:].numel()
        number = every[2] % width if width > 1 else every[1]
        if len(block.rows) > 1 and width > 1:
            number = number + every[1] * width
        sizes = dict(zip(block.names, block.sizes, strict=True))
        return _NodesOfBlock(table, every[2:], block, _unravelled(number, sizes))


def _largest(logs: Tensor) -> Tensor:
    """The first maximum of each row."""
    return logs.argmax(1)


def _drawn(logs: Tensor, generator: torch.Generator | None) -> Tensor:
    """An alternative of each row in proportion to the exponentials, none of which is -inf."""
    sums = (logs - logs.amax(1, keepdim=True)).exp_().cumsum(1)
    source = logs.device if generator is None else generator.device
    noise = torch.rand(len(logs), 1, generator=generator, dtype=logs.dtype, device=source)
    # Rounding may put the target at the whole sum, where no alternative is above it.
    whole = sums[:, -1:]
    target = (noise.to(logs.device) * whole).minimum(whole.nextafter(torch.zeros_like(whole)))
    return torch.searchsorted(sums, target, right=True).squeeze(1)


# ---- the k best ----


class _Lists:
    """The best derivations of every cell, best first.

    Attributes:
        scores: of each table, (items, cells, k); -inf where there are fewer.
        choices: of each table, (items, cells, k, 2 + tables): the number of the rule among the
            terms of the block, the alternative, and the ranks in the lists of tables that it reads.
    """

    def __init__(self, cells: _Alternatives, count: int) -> None:
        self.cells, self.count = cells, count
        self.tables = max(
            sum(cells.program.table(f.array) is not None for f in rule.factors)
            for rule in cells.program.rules
        )
        self.scores, self.choices = dict[str, Tensor](), dict[str, Tensor]()
        for name, x in cells.values.tables.items():
            size = cells.run.items, x.shape[1:].numel(), count
            self.scores[name] = x.new_full(size, -math.inf)
            self.choices[name] = x.new_zeros((*size, 2 + self.tables), dtype=torch.int32)
        for block in cells.blocks:
            self._fill(block)

    def _fill(self, block: CellBlock) -> None:
        """Find the lists of the cells of a block, those of all that they read being there."""
        # The best by each rule, of all cells of the block.
        scores, choices = list[Tensor](), list[Tensor]()
        sizes, items = dict(zip(block.names, block.sizes, strict=True)), self.cells.run.items
        for number, term in enumerate(block.terms):
            rule = self.cells.program.rules[term.rule]
            numbers = [
                (read.array, x)
                for read, x in zip(rule.factors, self.cells.numbers.reads(block, term), strict=True)
                if read.array in self.scores
            ]
            ends = [term.box.get(name, (0, size)) for name, size in sizes.items()]
            within = {name: end - start for name, (start, end) in zip(sizes, ends, strict=True)}
            own, made = self._of_term(
                self.cells.factors(block, term), numbers, {"": items, **within},
                self.cells.values.sizes_over(term),
            )  # fmt: skip
            # Put where the box is among all cells; elsewhere there are none.
            if within != sizes:
                pads = [
                    pad
                    for (start, end), size in zip(ends[::-1], [*sizes.values()][::-1], strict=True)
                    for pad in (start, size - end)
                ]
                own = torch.nn.functional.pad(own, [0, 0, *pads], value=-math.inf)
                made = torch.nn.functional.pad(made, [0, 0, 0, 0, *pads])
            made[..., 0] = number
            scores.append(own.reshape(items, math.prod(block.sizes), self.count))
            choices.append(made.reshape(*scores[-1].shape, made.shape[-1]))
        # The best of these, if there are several rules, among the rows of the table.
        if len(scores) > 1:
            best, index = torch.cat(scores, 2).topk(self.count, 2)
            scores, choices = [best], [torch.cat(choices, 2).take_along_dim(index.unsqueeze(3), 2)]
        for best, chosen in zip(scores, choices, strict=True):
            width = math.prod(block.sizes) // len(block.rows)
            for every, own in ((self.scores, best), (self.choices, chosen)):
                whole = every[block.table].unflatten(1, (-1, width))
                rows: Any = block.rows
                if isinstance(rows, range):
                    rows = slice(rows.start, rows.stop)
                whole[:, rows] = own.view(items, len(block.rows), width, *own.shape[2:])

    def _of_term(
        self, factors: Sequence[NamedTensor], numbers: Sequence[tuple[str, NamedTensor]],
        sizes: Mapping[str, int], over: Mapping[str, int], first: int = 0,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """The best of cells by one rule: scores (*sizes, k) and choices (*sizes, k, 2 + tables).

        The items, whose name is empty, are those from ``first`` on.

        The best of each alternative, the k best alternatives, and of these all that may be among
        the k best: of the i-th one derivations of a product of ranks + 1 that is at most k - i.
        """
        alternatives, cells = math.prod(over.values()), math.prod(sizes.values())
        if cells * max(alternatives, self.count**2) > tuning.CACHE_BLOCK and cells > 1:
            # Half of the cells, and then the others.
            name = max(sizes, key=lambda name: sizes[name])
            dim, half, found = [*sizes].index(name), sizes[name] // 2, list[tuple[Tensor, Tensor]]()
            for start, length in ((0, half), (half, sizes[name] - half)):
                some = [x.narrow(name, start, length) for x in factors]
                each = [(table, x.narrow(name, start, length)) for table, x in numbers]
                begin = first if name else first + start
                found.append(self._of_term(some, each, {**sizes, name: length}, over, begin))
            scores, choices = (torch.cat(part, dim) for part in zip(*found, strict=True))
            return scores, choices
        names, full = [*(name for name in sizes if name), *over], (*sizes.values(), *over.values())
        parts = sorted((x.arranged(names) for x in factors), key=torch.numel)
        total = functools.reduce(torch.add, parts).expand(full).reshape(cells, alternatives)
        few, k = min(self.count, alternatives), self.count
        best, which = total.topk(few, 1)
        # The lists of the tables that are read at each of these; what is not of the lists is above.
        items = sizes[""]
        item = torch.arange(first, first + items, device=which.device).view(-1, 1, 1)
        lists, above = list[Tensor](), best
        for table, x in numbers:
            at = x.arranged(names).expand(full).reshape(cells, alternatives).gather(1, which)
            at = at.view(items, -1, few) + item * self.scores[table].shape[1]
            lists.append(
                self.scores[table].flatten(0, 1).index_select(0, at.flatten()).view(-1, few, k)
            )
            above = above - lists[-1][:, :, 0]
        above = torch.where(best > -math.inf, above, -math.inf)
        # Of each sum of an alternative and of places in the lists what is in it.
        place, *ranks = _needed_places(len(numbers), k, few, which.device)
        sums = above.index_select(1, place)
        for each, rank in zip(lists, ranks, strict=True):
            sums = sums + each.flatten(1).index_select(1, place * k + rank)
        scores, index = sums.topk(min(k, sums.shape[1]), 1)
        choices = which.new_zeros((cells, k, 2 + self.tables), dtype=torch.int32)
        choices[:, : index.shape[1], 1] = which.gather(1, place[index])
        for number, rank in enumerate(ranks, 2):
            choices[:, : index.shape[1], number] = rank[index]
        if scores.shape[1] < k:
            scores = torch.nn.functional.pad(scores, [0, k - scores.shape[1]], value=-math.inf)
        lead = tuple(sizes.values())
        return scores.view(*lead, k), choices.view(*lead, k, -1)

    def chosen(self, nodes: _NodesOfBlock) -> _Chosen:
        """The alternatives that nodes are, by their ranks."""
        cell, item, _, rank = nodes.rows
        term, alternative, *ranks = self.choices[nodes.table][item, cell, rank].long().unbind(1)
        return _Chosen(alternative, term if len(nodes.block.terms) > 1 else None, ranks)

    def of_goals(self, goals: Sequence[_Nodes], possible: Tensor) -> tuple[list[_Nodes], Tensor]:
        """The goals' cells by derivation and rank, and (items,) how many derivations there are."""
        # A goal that is no cell of an item is the empty derivation, of which there is one.
        lists: list[Tensor] = []
        for nodes in goals:
            own = self.cells.like.new_full((len(possible), self.count), -math.inf)
            own[:, 0] = 0.0
            own[nodes.item] = self.scores[nodes.table][nodes.item, nodes.rows[0]]
            lists.append(own)
        _, *ranks = _needed_places(len(goals), self.count, 1, possible.device)
        totals = torch.stack([own[:, each] for own, each in zip(lists, ranks, strict=True)]).sum(0)
        scores, index = totals.topk(min(self.count, totals.shape[1]), 1)
        found = (scores > -math.inf).sum(1) * possible
        chosen: list[_Nodes] = []
        for each, nodes in zip(ranks, goals, strict=True):
            draw = torch.arange(scores.shape[1], device=index.device)
            own, draw = (draw < found[nodes.item].unsqueeze(1)).nonzero(as_tuple=True)
            cell, item = nodes.rows[:2, own]
            chosen.append(
                _Nodes(nodes.table, torch.stack([cell, item, draw, each[index][item, draw]]))
            )
        return chosen, found


@remembered(64)
def _needed_places(lists: int, count: int, few: int, device: torch.device) -> list[Tensor]:
    """Alternatives, best first, and ranks in some lists that may be among the best; (C,) each.

    The i-th alternative with ranks r has i others before it, and prod(r + 1) - 1 of its own.
    """
    found = [
        (i, *ranks)
        for ranks, size in _needed_ranks(lists, count)
        for i in range(min(few, count - size + 1))
    ]
    return [*torch.tensor(found, device=device).view(len(found), 1 + lists).unbind(1)]


def _needed_ranks(lists: int, count: int) -> list[tuple[tuple[int, ...], int]]:
    """The ranks in some lists whose products may be among the best, and prod(ranks + 1)."""
    found: list[tuple[tuple[int, ...], int]] = [((), 1)]
    for _ in range(lists):
        found = [
            ((*ranks, rank), size * (rank + 1))
            for ranks, size in found
            for rank in range(count // size)
        ]
    return found
