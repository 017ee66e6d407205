"""A lower bound on log Z by configurations that are followed through a graph and improved."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, pairwise

import torch
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph._core.cache import cached_property
from rdpgraph.estimate.estimator import Supports
from rdpgraph.interface.sites import free_variables
from rdpgraph.model.block import Block
from rdpgraph.model.domain import Entry
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.potentials.table import Table, looked_up
from rdpgraph.model.restriction import Support

_CONFIGURATIONS = 16  # configurations followed at most, one for each replicate
_ARITY, _STEPS = 16, 64  # variables of a factor, and steps of a path, beyond which no bound is made


@torch.no_grad()
def local_lower_bound(graph: FactorGraph, supports: Supports) -> Tensor | None:
    """(B,) lower bound on log Z (nats) by the mass around a few configurations.

    Each configuration begins with a state that was kept of one variable, and gives every further
    variable the best of *all* its states, given those of its neighbours so far. So states come
    together that are possible or likely only together, even if no replicate kept all of them. Then
    colour after colour (no factor holds two variables of one colour) the variables take their best
    states given the others. The sum over all states of the variables of a colour, with the others
    fixed, is a product of sums over single variables; sums with different states of the others have
    no configuration in common, so they add up to a lower bound.

    For each state of its variables, a pair is evaluated four times on each configuration.

    Args:
        graph: each entry is observed as a whole or not at all.
        supports: (replicates, *batch, *shape, kept) for each entry; None where all states are kept,
            and where it is observed.

    Returns:
        None if a factor holds too many variables, or a path through the graph takes too many steps
        one after the other.
    """
    moves = _Moves(graph, supports)
    if not moves.applies:
        return None
    states = moves.followed()
    bound = torch.full((math.prod(graph.batch_shape),), -math.inf, dtype=graph.dtype)
    bound = bound.to(graph.device)
    # Configurations may become alike where they improve, so that they are summed up before, too.
    colours = range(len(moves.of_colours))
    for colour in colours[1:]:
        bound = torch.maximum(bound, moves.mass(states, colour, improves=False))
    for colour in colours:
        bound = torch.maximum(bound, moves.mass(states, colour, improves=True))
    return bound


@dataclass(frozen=True, eq=False)
class _Reads:
    """Factors of a block that hold variables of a group, no two of them in one factor."""

    block: Block
    rows: Tensor  # (F,) factors of the block
    slot: int  # the slot that holds the variable of the group
    held: Tensor  # (F,) the place of that variable in the group

    def values(self, states: Tensor, every: Tensor) -> Tensor:
        """(configurations, *batch, F, size) values at all states of the slot, given the others."""
        block, lead = self.block, states.shape[:-1]
        scopes = block.scopes[self.rows]
        given = [
            every if slot == self.slot else states[..., scopes[:, slot]].unsqueeze(-1)
            for slot in range(block.arity)
        ]
        tables = block.potential.log_values if isinstance(block.potential, Table) else None
        if tables is not None and not block.shared and tables.shape == block.shape + block.sizes:
            # Entries are read in place: a table may be far larger than what is read of it.
            rows = self.rows if block.rows is None else block.rows[self.rows]
            index = [rows.to(every.device).reshape(-1, *(1,) * block.arity)]
            for slot, chosen in enumerate(given):
                ones = (1,) * slot, (1,) * (block.arity - slot - 1)
                index.append(chosen.reshape(*chosen.shape[:-1], *ones[0], -1, *ones[1]))
            values = looked_up(tables.flatten(0, len(block.shape) - 1), index)
        else:
            values = block.select(self.rows).evaluate(given)
        values = values.reshape(*values.shape[: values.ndim - block.arity], len(every))
        return values.expand(*lead, len(self.rows), len(every))


@dataclass(frozen=True, eq=False)
class _Group:
    """Variables of one size, no two of them in one factor, and factors around them."""

    numbers: Tensor
    size: int
    reads: list[_Reads]

    def log_values(self, states: Tensor, like: Tensor) -> Tensor:
        """(configurations, *batch, n, size) sums of the factors at all states of each variable.

        Args:
            states: (configurations, *batch, V), of the other variables.
            like: a tensor of the model's floating type.
        """
        shape = (*states.shape[:-1], len(self.numbers), self.size)
        total = torch.zeros(shape, dtype=like.dtype, device=states.device)
        every = torch.arange(self.size, device=states.device)
        for read in self.reads:
            values = read.values(states, every).to(total)
            total.index_add_(-2, read.held.to(total.device), values)
        return total


@dataclass(frozen=True, eq=False)
class _Moves:
    """Moves of configurations, (configurations, *batch, V) states, of a graph."""

    graph: FactorGraph
    supports: Supports

    @property
    def applies(self) -> bool:
        """Return whether the graph has free variables, no large factors, and short paths."""
        arity = max((block.arity for block in self.graph.blocks), default=0)
        return any(self._free) and arity <= _ARITY and 1 + int(self._turns.max()) <= _STEPS

    @cached_property
    def _free(self) -> list[bool]:
        """Whether each variable is not observed."""
        return free_variables(self.graph).tolist()

    @cached_property
    def _neighbours(self) -> list[set[int]]:
        """Free variables that share a factor with each variable."""
        found: list[set[int]] = [set() for _ in self._free]
        for block in self.graph.blocks:
            for scope in block.scopes.tolist() if block.arity > 1 else ():
                for one, other in combinations((v for v in scope if self._free[v]), 2):
                    found[one].add(other)
                    found[other].add(one)
        return found

    @cached_property
    def _depths(self) -> list[int]:
        """Distance of each variable from the first of its component; -1: observed."""
        depths = [-1] * len(self._free)
        for root, free in enumerate(self._free):
            if not free or depths[root] >= 0:
                continue
            depths[root], level = 0, [root]
            while level:
                further: list[int] = []
                for number in level:
                    for other in self._neighbours[number]:
                        if depths[other] < 0:
                            depths[other] = depths[number] + 1
                            further.append(other)
                level = further
        return depths

    @cached_property
    def _colours(self) -> Tensor:
        """(V,) colour of each free variable, the least that no neighbour has; -1: observed."""
        colours = [-1] * len(self._free)
        for number in sorted(range(len(self._free)), key=self._depths.__getitem__):
            if self._free[number]:
                taken = {colours[other] for other in self._neighbours[number]}
                colours[number] = next(c for c in range(len(taken) + 1) if c not in taken)
        return torch.tensor(colours, device="cpu")

    @cached_property
    def _turns(self) -> Tensor:
        """(V,) when a path comes to each variable, 0 for the first ones; -1: observed.

        Variables of one turn have one size, and no two of them are in one factor.
        """
        depths, colours = torch.tensor(self._depths, device="cpu"), self._colours
        sizes = self.graph.domain.sizes
        key = (depths * (len(depths) + 1) + colours) * (int(sizes.max()) + 1) + sizes
        key = torch.where(depths > 0, key, depths.clamp(max=0))
        first = int((depths < 0).any()) if bool((depths <= 0).any()) else 0
        return key.unique(return_inverse=True)[1] - first

    def followed(self) -> Tensor:
        """Configurations that begin with kept states of the first variable of each component."""
        graph, turns = self.graph, self._turns
        number = min(self._replicates, _CONFIGURATIONS)
        shape = (number, *graph.batch_shape, graph.num_variables)
        states = torch.zeros(shape, dtype=torch.long, device=graph.device)
        if graph.observed is not None:
            states[:] = graph.observed.clamp(min=0)
        starts = pairwise(graph.domain.starts)
        for entry, support, (start, end) in zip(
            graph.variables, self.supports, starts, strict=True
        ):
            roots = (turns[start:end] == 0).nonzero().flatten()
            if len(roots):
                states[..., start + roots] = self._distinct(entry, support, roots, number)
        like = torch.zeros((), dtype=graph.dtype, device="cpu")
        for group in self._path():
            states[..., group.numbers] = group.log_values(states, like).argmax(-1)
        return states

    @property
    def _replicates(self) -> int:
        return max((len(given.states) for given in self.supports if given is not None), default=1)

    def _distinct(
        self, entry: Entry, support: Support | None, members: Tensor, number: int
    ) -> Tensor:
        """(number, *batch, n) states that replicates kept of an entry's members, distinct first.

        Selections keep the states of largest scores first, so that these are among them.
        """
        batch, device = self.graph.batch_shape, self.graph.device
        if support is None:
            every = torch.arange(number, device=device).remainder(entry.size)
            return every.reshape(-1, *(1,) * (len(batch) + 1)).expand(-1, *batch, len(members))
        # (kept * replicates, *batch, n): every replicate's first state, then its second, ...
        lead, size = support.states.shape[: 1 + len(batch)], math.prod(entry.shape)
        states, log_weights = (
            part.reshape(*lead, size, -1)[..., members.to(device), :].movedim(-1, 0).flatten(0, 1)
            for part in (support.states, support.log_weights)
        )
        # Those that were met before, or have no weight, come last.
        masked = log_weights == -math.inf
        key = torch.where(masked, entry.size, states)
        ordered, order = key.sort(dim=0, stable=True)
        repeated = torch.zeros_like(masked)
        repeated[1:] = ordered[1:] == ordered[:-1]
        last = (masked | repeated.scatter(0, order, repeated.clone())).long()
        states = states.gather(0, last.argsort(dim=0, stable=True)[:number])
        return states[torch.arange(number, device=device).remainder(len(states))]

    def _path(self) -> Iterator[_Group]:
        """Variables by their turns, with the factors whose other variables come before."""
        turns, sizes = self._turns, self.graph.domain.sizes
        groups = [
            _Group(numbers, int(sizes[numbers[0]]), [])
            for numbers in _split_by(turns, int(turns.max()) + 1)[1:]
        ]
        place = self._places(group.numbers for group in groups)
        for block in self.graph.blocks if groups else ():
            if not block.arity:
                continue
            of_slots = turns[block.scopes]
            last, slots = of_slots.max(1)
            for slot in range(block.arity):
                here = torch.where(slots == slot, last, 0)
                for group, rows in zip(groups, _split_by(here, len(groups) + 1)[1:], strict=True):
                    if len(rows):
                        held = place[block.scopes[rows, slot]]
                        group.reads.append(_Reads(block, rows, slot, held))
        return iter(groups)

    def _places(self, groups: Iterator[Tensor]) -> Tensor:
        """(V,) the place of each variable in its group."""
        place = torch.full((self.graph.num_variables,), -1, device="cpu")
        for numbers in groups:
            place[numbers] = torch.arange(len(numbers), device="cpu")
        return place

    @cached_property
    def of_colours(self) -> list[list[_Group]]:
        """Variables of each colour by size, with all factors around them.

        Large groups are divided, to bound the memory of their values.
        """
        found: list[list[_Group]] = []
        configurations = min(self._replicates, _CONFIGURATIONS)
        lead = configurations * math.prod(self.graph.batch_shape)
        for colour in range(int(self._colours.max()) + 1):
            numbers = (self._colours == colour).nonzero().flatten()
            sizes = self.graph.domain.sizes[numbers]
            groups = [
                _Group(part, size, [])
                for size in sizes.unique().tolist()
                for part in numbers[sizes == size].split(
                    tuning.per_block(lead * size, tuning.BLOCK)
                )
            ]
            for group in groups:
                self._read_all(group)
            found.append(groups)
        return found

    def _read_all(self, group: _Group) -> None:
        """Add the factors of each slot that hold one of the variables."""
        place = self._places(iter([group.numbers]))
        for block in self.graph.blocks:
            for slot in range(block.arity):
                held = place[block.scopes[:, slot]]
                rows = (held >= 0).nonzero().flatten()
                if len(rows):
                    group.reads.append(_Reads(block, rows, slot, held[rows]))

    def mass(self, states: Tensor, colour: int, *, improves: bool) -> Tensor:
        """(B,) log of the sum over all states of a colour's variables, given those of the others.

        Where it ``improves``, these variables are given their best states, in place.
        """
        like = torch.zeros((), dtype=self.graph.dtype, device="cpu")
        improved = states if improves else states.clone()
        gain = torch.zeros(states.shape[:-1], dtype=self.graph.dtype, device=states.device)
        for group in self.of_colours[colour]:
            logs = group.log_values(states, like)
            best, chosen = logs.max(-1)
            improved[..., group.numbers] = chosen
            # The sum over the states of each variable is relative to its best one.
            more = logs.logsumexp(-1) - best
            gain += torch.where(best > -math.inf, more, 0.0).sum(-1)
        mass = (self.graph.score_states(improved) + gain).reshape(len(states), -1)
        # Those with the same states of all other variables are counted once.
        others = states[..., self._colours != colour].reshape(len(states), mass.shape[1], -1)
        alike = (others.unsqueeze(1) == others.unsqueeze(0)).all(-1)
        earlier = torch.ones(len(states), len(states), dtype=torch.bool, device=states.device)
        counted = ~(alike & earlier.tril(-1).unsqueeze(-1)).any(1)
        return torch.where(counted, mass, -math.inf).logsumexp(0)


def _split_by(keys: Tensor, count: int) -> list[Tensor]:
    """Places of each key 0 .. ``count - 1`` in (n,) integers; smaller keys are left out."""
    order = keys.argsort(stable=True)
    number = keys.clamp(min=-1).add(1).bincount(minlength=count + 1).tolist()
    return list(order.split(number))[1:]
