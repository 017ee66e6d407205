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
from rdpgraph.model.domain import Entry
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.potentials.potential import Potential
from rdpgraph.model.restriction import Support

_CONFIGURATIONS = 32  # followed at most, two for each replicate
_ARITY, _COLOURS = 16, 64  # factors of more variables, or graphs of more colours, have no bound


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

    It takes at most ``5 * 32`` evaluations of each factor for each state of its variables.

    Args:
        graph: each entry is observed as a whole or not at all.
        supports: (replicates, *batch, *shape, kept) for each entry; None where all states are kept,
            and where it is observed.

    Returns:
        None if a factor holds too many variables, or the graph has too many colours.
    """
    moves = _Moves(graph, supports)
    if not moves.applies:
        return None
    states = moves.followed()
    bound = torch.full((math.prod(graph.batch_shape),), -math.inf, dtype=graph.dtype)
    bound = bound.to(graph.device)
    # Configurations may become alike where they improve, so that they are summed up before, too.
    for improves in (False, True):
        for colour in range(moves.num_colours):
            bound = torch.maximum(bound, moves.mass(states, colour, improves=improves))
    return bound


@dataclass(frozen=True, eq=False)
class _Moves:
    """Moves of configurations, (configurations, *batch, V) states, of a graph."""

    graph: FactorGraph
    supports: Supports

    @property
    def applies(self) -> bool:
        """Return whether the graph has free variables, no large factors, and few colours."""
        arity = max((block.arity for block in self.graph.blocks), default=0)
        return 0 < self.num_colours <= _COLOURS and arity <= _ARITY

    @cached_property
    def free(self) -> list[bool]:
        """Whether each variable is not observed."""
        return free_variables(self.graph).tolist()

    @cached_property
    def neighbours(self) -> list[set[int]]:
        """Free variables that share a factor with each variable."""
        found: list[set[int]] = [set() for _ in self.free]
        for block in self.graph.blocks:
            for scope in block.scopes.tolist() if block.arity <= _ARITY else []:
                for one, other in combinations((v for v in scope if self.free[v]), 2):
                    found[one].add(other)
                    found[other].add(one)
        return found

    @cached_property
    def depths(self) -> list[int]:
        """Distance of each variable from the first of its component; -1: observed."""
        depths = [-1] * len(self.free)
        for root, free in enumerate(self.free):
            if not free or depths[root] >= 0:
                continue
            depths[root], level = 0, [root]
            while level:
                further: list[int] = []
                for number in level:
                    for other in self.neighbours[number]:
                        if depths[other] < 0:
                            depths[other] = depths[number] + 1
                            further.append(other)
                level = further
        return depths

    @cached_property
    def colours(self) -> list[int]:
        """Colour of each free variable, the least that no neighbour has; -1: observed."""
        colours = [-1] * len(self.free)
        order = sorted(range(len(self.free)), key=self.depths.__getitem__)
        for number in order:
            if self.free[number]:
                taken = {colours[other] for other in self.neighbours[number]}
                colours[number] = next(c for c in range(len(taken) + 1) if c not in taken)
        return colours

    @property
    def num_colours(self) -> int:
        """Number of colours."""
        return max(self.colours, default=-1) + 1

    def followed(self) -> Tensor:
        """Configurations that begin with kept states of the first variable of each component."""
        graph = self.graph
        depths, colours = (torch.tensor(part, device="cpu") for part in (self.depths, self.colours))
        number = min(2 * self._replicates, _CONFIGURATIONS)
        shape = (number, *graph.batch_shape, graph.num_variables)
        states = torch.zeros(shape, dtype=torch.long, device=graph.device)
        if graph.observed is not None:
            states[:] = graph.observed.clamp(min=0)
        starts = pairwise(graph.domain.starts)
        for entry, support, (start, end) in zip(
            graph.variables, self.supports, starts, strict=True
        ):
            roots = (depths[start:end] == 0).nonzero().flatten()
            if len(roots):
                states[..., start + roots] = self._distinct(entry, support, roots, number)
        # Variables of one depth may be neighbours; those of one colour are not.
        place = torch.where(depths > 0, depths * self.num_colours + colours, depths)
        for step in place[place > 0].unique().tolist():
            for numbers in self._of_one_size((place == step).nonzero().flatten()):
                logs = self._log_values(states, numbers, known=place)
                states[..., numbers] = logs.argmax(-1)
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

    def mass(self, states: Tensor, colour: int, *, improves: bool) -> Tensor:
        """(B,) log of the sum over all states of a colour's variables, given those of the others.

        Where it ``improves``, these variables are given their best states, in place.
        """
        of_colour = torch.tensor([each == colour for each in self.colours], device="cpu")
        improved = states if improves else states.clone()
        gain = torch.zeros(states.shape[:-1], dtype=self.graph.dtype, device=states.device)
        for numbers in self._of_one_size(of_colour.nonzero().flatten()):
            logs = self._log_values(states, numbers)
            best, chosen = logs.max(-1)
            improved[..., numbers] = chosen
            # The sum over the states of each variable is relative to its best one.
            more = logs.logsumexp(-1) - best
            gain += torch.where(best > -math.inf, more, 0.0).sum(-1)
        mass = (self.graph.score_states(improved) + gain).reshape(len(states), -1)
        # Those with the same states of all other variables are counted once.
        others = states[..., ~of_colour].reshape(len(states), mass.shape[1], -1)
        alike = (others.unsqueeze(1) == others.unsqueeze(0)).all(-1)
        earlier = torch.ones(len(states), len(states), dtype=torch.bool, device=states.device)
        counted = ~(alike & earlier.tril(-1).unsqueeze(-1)).any(1)
        return torch.where(counted, mass, -math.inf).logsumexp(0)

    def _of_one_size(self, numbers: Tensor) -> Iterator[Tensor]:
        sizes = self.graph.domain.sizes[numbers]
        for size in sizes.unique().tolist():
            yield numbers[sizes == size]

    def _log_values(self, states: Tensor, numbers: Tensor, known: Tensor | None = None) -> Tensor:
        """Sum the factors around variables of one size, at all of their states.

        Args:
            states: (configurations, *batch, V) of the other variables.
            numbers: (n,) no two of them in one factor.
            known: (V,) when each variable is given a state; only factors are read whose others come
                before. None: all.

        Returns:
            (configurations, *batch, n, size).
        """
        graph = self.graph
        place = torch.full((graph.num_variables,), -1, device="cpu")
        place[numbers] = torch.arange(len(numbers), device="cpu")
        size = int(graph.domain.sizes[numbers[0]])
        shape = (*states.shape[:-1], len(numbers), size)
        total = torch.zeros(shape, dtype=graph.dtype, device=states.device)
        every = torch.arange(size, device=states.device)
        for block in graph.blocks:
            for slot in range(block.arity):
                held = place[block.scopes[:, slot]]
                reads = held >= 0
                if known is not None:
                    before = known[block.scopes] < known[block.scopes[:, slot]].unsqueeze(1)
                    before[:, slot] = True
                    reads &= before.all(1)
                rows = reads.nonzero().flatten()
                at_once = tuning.per_block(math.prod(states.shape[:-1]) * size, tuning.BLOCK)
                for some in rows.split(at_once) if len(rows) else ():
                    values = _values(block.select(some), block.scopes[some], slot, states, every)
                    total.index_add_(-2, held[some].to(total.device), values.to(total))
        return total


def _values(
    potential: Potential, scopes: Tensor, slot: int, states: Tensor, every: Tensor
) -> Tensor:
    """(configurations, *batch, F, size) values of factors at all states of one slot."""
    given = [
        every if other == slot else states[..., scopes[:, other]].unsqueeze(-1)
        for other in range(scopes.shape[1])
    ]
    values = potential.evaluate(given)
    values = values.reshape(*values.shape[: values.ndim - scopes.shape[1]], len(every))
    if values.ndim < 2:
        values = values.unsqueeze(0)
    return values.expand(*states.shape[:-1], len(scopes), len(every))
