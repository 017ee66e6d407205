"""Views of a reduced network: one item's factors in NumPy, and results in the graph's numbering."""

import math
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rdpgraph._core.cache import cached_property
from rdpgraph.engines.reduction.network import Network
from rdpgraph.errors import UnsupportedError
from rdpgraph.model.restriction import distinct_rows
from rdpgraph.plan.orders import PrimalGraph, graph_of_scopes

SURE = 40.0
"""Nats by which a violated factor outweighs all else together."""


Integers: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Stack:
    """Factors of one shape."""

    scopes: Integers  # (F, arity) variables, in increasing order
    # (F, *sizes) log-values. A hard zero is -inf, or so low a number that a configuration which
    # violates fewer factors has the higher score, whatever the finite values are.
    values: Floats

    def at(self, rows: Integers, states: Integers, free: int = -1) -> Floats:
        """(n,) values of factors ``rows`` at states (V,); (n, size) if one slot is ``free``."""
        index = [
            slice(None) if slot == free else states[self.scopes[rows, slot]]
            for slot in range(self.scopes.shape[1])
        ]
        return self.values[(rows, *index)]


@dataclass(frozen=True, eq=False)
class Tables:
    """Factors with different scopes over active variables."""

    sizes: tuple[int, ...]  # number of states of each variable
    stacks: tuple[Stack, ...]  # the factors by shape
    span: float  # bound on the absolute value of every sum of finite log-values

    @cached_property
    def graph(self) -> PrimalGraph:
        """Primal graph: variables that share a factor."""
        scopes = [stack.scopes for stack in self.stacks]
        lengths = np.repeat([each.shape[1] for each in scopes], [len(each) for each in scopes])
        flat = np.concatenate([each.ravel() for each in scopes] or [[]])
        return graph_of_scopes(flat.astype(np.int64), lengths.astype(np.int64), self.sizes)

    @cached_property
    def starts(self) -> Integers:
        """(V + 1,) first position of each variable's states in a flat list."""
        return np.concatenate([[0], np.cumsum(self.sizes)]).astype(np.int64)

    def finite(self) -> "Tables":
        """Tables with hard zeros replaced by such low numbers."""
        low = -2 * self.span - SURE
        stacks = (Stack(stack.scopes, np.maximum(stack.values, low)) for stack in self.stacks)
        return Tables(self.sizes, tuple(stacks), self.span)

    def without(self, variables: Set[int]) -> "Tables":
        """Tables that hold none of these variables."""
        gone = np.zeros(len(self.sizes), np.bool_)
        gone[list(variables)] = True
        rows = [~gone[stack.scopes].any(1) for stack in self.stacks]
        pairs = zip(self.stacks, rows, strict=True)
        stacks = (Stack(stack.scopes[row], stack.values[row]) for stack, row in pairs if row.any())
        return Tables(self.sizes, tuple(stacks), self.span)

    def between(self, one: Integers, other: Integers) -> "Tables":
        """Tables over two states of each variable: those of two configurations."""
        pairs = np.stack([one, other], 1)
        stacks: list[Stack] = []
        for scopes, values in ((stack.scopes, stack.values) for stack in self.stacks):
            arity = scopes.shape[1]
            index = [
                pairs[scopes[:, slot]].reshape(-1, *(2 if d == slot else 1 for d in range(arity)))
                for slot in range(arity)
            ]
            rows = np.arange(len(scopes)).reshape(-1, *[1] * arity)
            stacks.append(Stack(scopes, values[(rows, *index)]))
        result = Tables((2,) * len(self.sizes), tuple(stacks), self.span)
        graph = self.graph  # the same neighbours
        vars(result)["graph"] = PrimalGraph(graph.starts, graph.near, result.sizes)
        return result

    def is_possible(self, score: float) -> bool:
        """Return whether a configuration with this score violates no factor."""
        return score >= -self.span - 0.5 * SURE

    def violated(self, states: Integers) -> list[int]:
        """Variables of all factors that a configuration violates."""
        members = np.zeros(len(self.sizes), np.bool_)
        for stack in self.stacks:
            values = stack.at(np.arange(len(stack.scopes)), states)
            members[stack.scopes[values < -self.span - 0.5 * SURE]] = True
        return members.nonzero()[0].tolist()

    def score(self, states: Integers) -> float:
        """Score of a configuration of all variables, hard zeros included."""
        every = [np.arange(len(stack.scopes)) for stack in self.stacks]
        pairs = zip(self.stacks, every, strict=True)
        return float(sum(stack.at(rows, states).sum() for stack, rows in pairs))


def tables_of(
    network: Network, item: int, summed: Set[int] = frozenset(), *, zeros: bool = False
) -> Tables:
    """Factors of one batch item of a network; those with the same scope are added up.

    The span counts the states of variables that will be ``summed``. With ``zeros`` hard zeros stay
    -inf.
    """
    by_shape: dict[tuple[int, ...], list[tuple[Integers, Integers, Floats]]] = {}
    count = 0
    for group in network.groups:
        batched = group.log_tables.detach()
        tables = batched[item if len(batched) > 1 else 0].double().cpu().numpy()
        scopes = group.scopes.numpy()
        rows = np.arange(len(scopes)) if group.rows is None else group.rows.numpy()
        rows = rows if len(tables) > 1 else np.zeros_like(rows)
        # Dims of each table in the order of the numbers of its variables.
        for dims, members in _alike(scopes.argsort(1, kind="stable")):
            values = tables.transpose(0, *(dims + 1))[rows[members]]
            part = count + members, scopes[members[:, None], dims], values
            by_shape.setdefault(values.shape[1:], []).append(part)
        count += len(scopes)
    # Tables of one shape are a stack, in the order of the first factor of each.
    ordered = sorted(by_shape.values(), key=lambda parts: min(int(part[0][0]) for part in parts))
    stacks = [_merged(*map(np.concatenate, zip(*parts, strict=True))) for parts in ordered]
    # A bound, which the rounding of the sum does not take below what it bounds.
    span = (1.0 + 1e-9) * float(sum(_ranges(stack.values).sum() for stack in stacks))
    span += sum(math.log(network.sizes[v]) for v in summed)
    tables = Tables(network.sizes, tuple(stacks), span)
    return tables if zeros else tables.finite()


def _alike(rows: Integers) -> list[tuple[Integers, Integers]]:
    """Distinct rows, each with the numbers of its copies."""
    if len(rows) == 0 or bool((rows == rows[0]).all()):
        return [(row, np.arange(len(rows))) for row in rows[:1]]
    each, which = (part.numpy() for part in distinct_rows(torch.from_numpy(rows)))
    order = np.argsort(which, kind="stable")
    cuts = np.cumsum(np.bincount(which))[:-1]
    return list(zip(each, np.split(order, cuts), strict=True))


def _merged(numbers: Integers, scopes: Integers, values: Floats) -> Stack:
    """Factors of one shape, ordered by number; those with the same scope are added up."""
    if (numbers[1:] < numbers[:-1]).any():
        order = np.argsort(numbers)
        scopes, values = scopes[order], values[order]
    order = np.lexsort(scopes.T)  # stable
    ranked = scopes[order]
    new = np.ones(len(order), np.bool_)
    new[1:] = (ranked[1:] != ranked[:-1]).any(1)
    if new.all():
        return Stack(scopes, values)
    first = np.empty(len(order), np.int64)
    first[order] = order[new][np.cumsum(new) - 1]
    again = np.flatnonzero(first != np.arange(len(order)))
    np.add.at(values, first[again], values[again])
    return Stack(np.delete(scopes, again, 0), np.delete(values, again, 0))


def _ranges(values: Floats) -> Floats:
    """Range of each factor's finite values plus the absolute value of their maximum."""
    flat = values.reshape(len(values), -1)
    most, least = flat.max(1), flat.min(1)
    if (least == -math.inf).any():
        flat, most = flat[most > -math.inf], most[most > -math.inf]
        least = np.where(flat > -math.inf, flat, most[:, None]).min(1)
    return most - least + abs(most)


def variable_table(
    network: Network,
    parts: Iterable[tuple[Tensor, Tensor]],
    empty: float,
    settled: Tensor | float,
) -> Tensor:
    """Values of the remaining states as a flat (B, S) table over all states.

    Args:
        network: the reduced model.
        parts: active variables (n,) in increasing order with equally many remaining states k, and
            their values (batch or 1, n, k); auxiliary variables are skipped.
        empty: value of a state that was dropped.
        settled: value of a settled variable's state: one number, or (B,).
    """
    parts = list(parts)
    if len(parts) == 1 and network.is_whole and len(parts[0][0]) == len(network.active):
        # All variables keep all of their states, and are in order.
        flat = parts[0][1].reshape(len(parts[0][1]), -1).to(network.constant)
        return flat.expand(network.batch, -1)
    device, starts = network.constant.device, network.graph.domain.state_starts
    flat = torch.full(
        (network.batch, int(starts[-1])), empty, dtype=network.constant.dtype, device=device
    )
    rows = torch.arange(network.batch, device="cpu").unsqueeze(1)
    fixed = (network.settled[0] >= 0).nonzero().flatten()
    if len(fixed) and not network.impossible:
        places = (starts[fixed] + network.settled[:, fixed]).expand(network.batch, -1)
        value = settled.unsqueeze(1) if isinstance(settled, Tensor) else flat.new_tensor(settled)
        flat = flat.index_put((rows.to(device), places.to(device)), value.to(flat))
    targets: list[Tensor] = []
    values: list[Tensor] = []
    auxiliary = len(network.numbers) < len(network.counts)
    for variables, part in parts:
        if auxiliary:
            declared = variables < len(network.numbers)
            variables, part = variables[declared], part[:, declared.to(device)]
        numbers = network.numbers[variables]
        left = network.states_left(numbers, part.shape[2])
        targets.append((starts[numbers].unsqueeze(1) + left).reshape(-1))
        values.append(part.reshape(len(part), -1).expand(network.batch, -1).to(flat))
    if not targets:
        return flat
    return flat.index_copy(1, torch.cat(targets).to(device), torch.cat(values, 1))


def state_table(
    network: Network, values: Tensor | None, empty: float, settled: Tensor | float
) -> Tensor:
    """`variable_table` of values (batch or 1, n) of all remaining states, or None without any."""
    if values is None:
        return variable_table(network, (), empty, settled)
    sizes = network.counts
    starts = sizes.cumsum(0) - sizes
    parts: list[tuple[Tensor, Tensor]] = []
    for size in torch.unique(sizes).tolist():
        members = (sizes == size).nonzero().flatten()
        places = starts[members].unsqueeze(1) + torch.arange(size, device="cpu")
        parts.append((members, values[:, places.to(values.device)]))
    return variable_table(network, parts, empty, settled)


def factor_tables(
    network: Network,
    block: int,
    beliefs: Callable[[int, Tensor], Tensor],
    rows: Tensor | None = None,
) -> Tensor:
    """(B, n, *sizes) probabilities of a block's factors, settled slots included.

    Args:
        network: the reduced model.
        block: the number of the block.
        beliefs: gives a group's probabilities (batch or 1, n, *sizes left) of some of its factors.
        rows: (n,) of the block's factors; None: all of them.
    """
    declared = network.graph.blocks[block]
    sizes = declared.sizes
    if not network.origins[block] and declared.count and not network.impossible:
        raise UnsupportedError(
            f"Factor marginals of {type(declared.potential).__name__} over {len(sizes)} variables "
            "are not available; ask for fewer variables that another factor holds together."
        )
    rows = torch.arange(declared.count, device="cpu") if rows is None else rows.cpu()
    shape = (network.batch, len(rows), math.prod(sizes))
    flat = torch.zeros(shape, dtype=network.constant.dtype, device=network.constant.device)
    batch = torch.arange(network.batch, device="cpu").reshape(-1, 1, 1)
    place_in_group = torch.empty(declared.count, dtype=torch.long, device="cpu")
    for members, group, slots in network.origins[block]:
        # The rows asked for that are among these members, and their places in the group.
        place_in_group.fill_(-1)
        place_in_group[members] = torch.arange(len(members), device="cpu")
        asked = (place_in_group[rows] >= 0).nonzero().flatten()
        if not len(asked):
            continue
        scopes = declared.scopes[rows[asked]]
        # The place of each remaining configuration in the declared table.
        places = torch.zeros(1, len(asked), 1, dtype=torch.long, device="cpu")
        for slot, size in enumerate(sizes):
            if slot in slots:
                kept = network.groups[group].log_tables.shape[2 + slots.index(slot)]
                states = network.states_left(scopes[:, slot], kept).unsqueeze(0)
            else:
                states = network.settled[:, scopes[:, slot]].unsqueeze(-1)
            places = (places.unsqueeze(-1) * size + states.unsqueeze(-2)).flatten(2)
        if group < 0:
            values = flat.new_ones(1, 1, 1)
        else:
            values = beliefs(group, place_in_group[rows[asked]]).flatten(2)
        index = (batch, asked.reshape(1, -1, 1), places)
        values = values.to(flat.dtype).expand(network.batch, len(asked), -1)
        flat = flat.index_put(tuple(i.to(flat.device) for i in index), values)
    return flat.reshape([*shape[:2], *sizes])


def full_states(network: Network, active: Tensor) -> Tensor:
    """(n, B, V) states of all variables from (n, B, active) ones, numbered as remaining."""
    device = active.device
    settled = network.settled.to(device).expand(network.batch, -1)
    full = settled.expand(len(active), *settled.shape).clone()
    numbers = network.numbers
    states = active[:, :, : len(numbers)]
    if network.possible is not None:
        left, starts = network.possible.left(), network.possible.starts[numbers]
        places = torch.searchsorted(left, starts).to(device) + states
        states = left.to(device)[places] - starts.to(device)
    full[:, :, numbers.to(device)] = states
    return full


def active_states(network: Network, states: Tensor | None) -> Tensor:
    """(B, active) states of the active variables, numbered as remaining, from (B, V) of all.

    A state that does not remain becomes the first that does; so do all if there are none, and
    those of auxiliary variables.
    """
    active = torch.zeros(network.batch, len(network.counts), dtype=torch.long, device="cpu")
    if states is None:
        return active
    numbers = states.cpu()[:, network.numbers]
    if network.possible is not None:
        left, starts = network.possible.left(), network.possible.starts[network.numbers]
        places = torch.searchsorted(left, starts + numbers)
        remains = left[places.clamp(max=len(left) - 1)] == starts + numbers
        numbers = torch.where(remains, places - torch.searchsorted(left, starts), 0)
    active[:, : len(network.numbers)] = numbers
    return active
