"""Supports (a few weighted states of a variable), and the restriction of a graph to them."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph._core.arguments import require_fields
from rdpgraph._core.masked import present
from rdpgraph._core.types import broadcast_shapes, broadcasts
from rdpgraph.errors import EvidenceError, ModelError
from rdpgraph.logspace.logmatrix import soft_scatter
from rdpgraph.model.block import Block
from rdpgraph.model.domain import Domain, Entry, Named
from rdpgraph.model.evidence import observed_entries
from rdpgraph.model.potentials.table import Table
from rdpgraph.model.variable import States, Variable


@dataclass(frozen=True, eq=False)
class Support:
    """The states kept of a variable, or of every member of an array, and their log-weights.

    Attributes:
        states: (*batch, *shape, kept) int64; repeats are allowed and stay separate entries.
        log_weights: the same shape, floating, nats; zero for a state kept as it is.
    """

    states: Tensor
    log_weights: Tensor

    def __post_init__(self) -> None:
        require_fields(self)
        if self.states.shape != self.log_weights.shape or self.states.ndim < 1:
            raise ModelError(
                "A Support needs states and log-weights of one shape (..., kept); got "
                f"{tuple(self.states.shape)} and {tuple(self.log_weights.shape)}."
            )

    @property
    def kept(self) -> int:
        """Number of states that are kept."""
        return self.states.shape[-1]

    @staticmethod
    def plain(states: Tensor, like: Tensor) -> "Support":
        """States with log-weights of zero, in the type of a tensor."""
        return Support(states, torch.zeros_like(states, dtype=like.dtype))

    @staticmethod
    def joined(parts: Sequence["Support"], dim: int = -1) -> "Support":
        """Several supports side by side: their entries, or along another dim."""
        return Support(
            torch.cat([part.states for part in parts], dim),
            torch.cat([part.log_weights for part in parts], dim),
        )

    def map(self, change: Callable[[Tensor], Tensor]) -> "Support":
        """The support with a function applied to the states and to the log-weights."""
        return Support(change(self.states), change(self.log_weights))

    def over(self, states: int) -> "Support":
        """The support over all of so many states: others at -inf, repeats summed."""
        lead, rows = self.states.shape[:-1], self.states.flatten(0, -2)
        groups = rows + torch.arange(len(rows), device=rows.device).unsqueeze(1) * states
        logs = soft_scatter(self.log_weights.flatten(), groups.flatten(), len(rows) * states)
        every = torch.arange(states, device=rows.device).expand(*lead, states)
        return Support(every, logs.reshape(every.shape))

    def unweighted(self) -> "Support":
        """The support with log-weights zero where they are above -inf."""
        possible = self.log_weights > -math.inf
        return Support(self.states, torch.where(possible, 0.0, -math.inf).to(self.log_weights))


def expanded(owner: str, support: Support, shape: tuple[int, ...]) -> Support:
    """A support with all of the dims (replicates, *batch, *shape, kept)."""
    given = tuple(support.states.shape)
    if given[:-1] == shape:
        return support
    if not broadcasts(given[:-1], shape):
        raise ModelError(
            f"The support of {owner} has dims {given}, which do not broadcast to (replicates, "
            f"*batch, *shape, kept), here ({', '.join(map(str, shape))}, {support.kept})."
        )
    return support.map(lambda part: part.expand(*shape, support.kept))


def gathered(
    owner: str, unary: Tensor, states: Tensor, log_weights: Tensor, *, sites: int
) -> Tensor:
    """(*replicates, *batch, *sites, kept) potentials of the kept states, weights included."""
    check_support(owner, unary, states, log_weights)
    lead, ends = states.shape[: states.ndim - sites - 1], unary.shape[unary.ndim - sites - 1 :]
    return unary.expand(*lead, *ends).gather(-1, states) + log_weights


def check_support(owner: str, unary: Tensor, states: Tensor, log_weights: Tensor) -> None:
    """Check states and weights (*replicates, *batch, *sites, kept) of sites against ``unary``."""
    shape = tuple(unary.shape)
    for name, given in (("states", states), ("log_weights", log_weights)):
        present(f"{owner}.restrict's {name}", given)
    if not (isinstance(states, Tensor) and isinstance(log_weights, Tensor)):
        raise ModelError(
            f"{owner}.restrict needs states and log_weights as tensors; got {states!r:.40} and "
            f"{log_weights!r:.40}."
        )
    if states.dtype != torch.long:
        raise ModelError(f"{owner}.restrict needs states as int64; got {states.dtype}.")
    fits = states.shape == log_weights.shape and states.ndim >= len(shape)
    if not fits or tuple(states.shape[-len(shape) : -1]) != shape[:-1]:
        raise ModelError(
            f"{owner}.restrict needs states and log_weights (*replicates, *{shape[:-1]}, kept); "
            f"got {tuple(states.shape)} and {tuple(log_weights.shape)}."
        )
    if states.numel() and (int(states.min()) < 0 or int(states.max()) >= shape[-1]):
        raise ModelError(f"{owner}.restrict of {shape[-1]} states got one out of range.")


def distinct_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
    """The distinct rows (n, columns) of ints >= 0 in lexicographic order, and each row's index.

    As `torch.unique` of dim 0, in linear time where the columns have few values between them.
    """
    codes, bound = torch.zeros(len(rows), dtype=torch.long, device="cpu"), 1
    for column in rows.unbind(1):
        limit = int(column.max()) + 1 if len(rows) else 1
        if bound * limit > 2**62:
            codes, bound = _ranked(codes, bound)
        codes, bound = codes.mul_(limit).add_(column), bound * limit
    which, count = _ranked(codes, bound)
    first = torch.empty(count, dtype=torch.long, device="cpu")
    # Rows of one code are equal, so any of them will do.
    first[which] = torch.arange(len(rows), device="cpu")
    return rows[first], which


def grouped_rows(rows: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The distinct rows (n, columns) of ints >= 0, in order, and the numbers of those equal."""
    if 0 < len(rows) <= tuning.GROUPED_FACTORS:
        alike: dict[tuple[int, ...], list[int]] = {}
        for number, row in enumerate(rows.tolist()):
            alike.setdefault(tuple(row), []).append(number)
        kinds = sorted(alike)
        groups = [torch.tensor(alike[kind], device="cpu") for kind in kinds]
        return torch.tensor(kinds, dtype=torch.long, device="cpu"), groups
    if len(rows) and (not rows.shape[1] or bool((rows == rows[0]).all())):
        return rows[:1], [torch.arange(len(rows), device="cpu")]
    distinct, which = distinct_rows(rows)
    if len(distinct) <= 16:  # to look for each of a few is faster than to sort
        return distinct, [(which == kind).nonzero().flatten() for kind in range(len(distinct))]
    counts = which.bincount(minlength=len(distinct)).tolist()
    return distinct, list(which.argsort(stable=True).split(counts))


def _ranked(codes: Tensor, bound: int) -> tuple[Tensor, int]:
    """Ranks of codes below ``bound`` among those that occur, and how many do."""
    if bound > 4 * len(codes) + 1024:
        distinct, ranks = torch.unique(codes, return_inverse=True)
        return ranks, len(distinct)
    occurs = torch.zeros(bound, dtype=torch.long, device="cpu")
    occurs[codes] = 1
    return (occurs.cumsum(0) - 1)[codes], int(occurs.sum())


def restrict_blocks(
    domain: Domain,
    blocks: Sequence[Block],
    observed: Tensor | None,
    supports: Mapping[Named, Support],
    *,
    like: Tensor,
    batch: tuple[int, ...] = (),
) -> tuple[Domain, list[Block]]:
    """The variables and factors of a graph on the kept states of each variable.

    Semantics and errors as for `FactorGraph.restrict`; ``like`` has the graph's type and device.
    """
    device = like.device
    given = _by_entry(domain, observed, supports, like, batch)
    entries: list[Entry] = []
    rows = torch.zeros(domain.count, dtype=torch.long, device="cpu")
    sizes = torch.zeros(domain.count, dtype=torch.long, device="cpu")
    groups: dict[int, list[Support]] = {}
    counts: dict[int, int] = {}
    weighted: list[tuple[Tensor, Support]] = []
    for place, entry in enumerate(domain.entries):
        numbers = domain.numbers(entry).reshape(-1)
        support = given.get(place)
        if support is None:
            everything = torch.arange(entry.size, device=device).expand(len(numbers), -1)
            flat = Support(everything, torch.zeros(1, device=device).expand_as(everything))
            entries.append(entry)
        else:
            lead = support.states.shape[: support.states.ndim - len(entry.shape) - 1]
            shape = (*lead, len(numbers), support.kept)
            flat = support.map(lambda part, shape=shape: part.reshape(shape))
            weighted.append((numbers, flat))
            entries.append(_shrunk(entry, support))
        kept = flat.kept
        sizes[numbers] = kept
        rows[numbers] = counts.get(kept, 0) + torch.arange(len(numbers), device="cpu")
        counts[kept] = counts.get(kept, 0) + len(numbers)
        groups.setdefault(kept, []).append(flat)
    selected: dict[int, Tensor] = {}
    for kept, group in groups.items():
        lead = broadcast_shapes(*(flat.states.shape[:-2] for flat in group))
        states = [flat.states.expand(*lead, *flat.states.shape[-2:]) for flat in group]
        selected[kept] = torch.cat(states, dim=-2)
    complete = sizes == domain.sizes
    for numbers, _ in weighted:
        complete[numbers] = False
    parts: list[Block] = []
    for block in blocks:
        # Without restriction the potential stays: its table may be large.
        whole = bool(complete[block.scopes].all())
        parts += [block] if whole else _restricted(block, sizes, rows, selected)
    declared = sum(block.count for block in blocks)
    for numbers, flat in weighted:
        weights = flat.log_weights.to(like)
        places = torch.arange(declared, declared + len(numbers), device="cpu")
        declared += len(numbers)
        parts.append(
            Block(numbers.reshape(-1, 1), Table.from_logs(weights), (len(numbers),), None, places)
        )
    return Domain(tuple(entries)), parts


def _by_entry(
    domain: Domain,
    observed: Tensor | None,
    supports: Mapping[Named, Support],
    like: Tensor,
    batch: tuple[int, ...],
) -> dict[int, Support]:
    # One support for each entry of the domain, its batch dims in front; all of them broadcast to
    # one batch.
    given: dict[int, Support] = {}
    lead = batch
    for item, support in supports.items():
        place = domain.place(item)
        entry = domain.entries[place]
        if tuple(domain.numbers(item).shape) != entry.shape:
            raise ModelError(
                f"A support is given for all of array {entry.name!r}, not for a part: name the "
                "array, and give a row of states for each of its members."
            )
        if not isinstance(cast(object, support), Support):
            raise ModelError(
                f"The support of {entry.name!r} must be a Support; got {support!r:.80}."
            )
        dims = support.states.shape[:-1]
        if (split := len(dims) - len(entry.shape)) < 0 or tuple(dims[split:]) != entry.shape:
            raise ModelError(
                f"The support of {entry.name!r} needs shape (*batch, *{entry.shape}, kept); "
                f"got {tuple(support.states.shape)}."
            )
        try:
            lead = broadcast_shapes(lead, dims[:split])
        except RuntimeError:
            raise ModelError(
                f"The support of {entry.name!r} has dims {tuple(support.states.shape)}, of which "
                f"those in front do not broadcast with the batch dims {lead} of the graph and of "
                "other supports."
            ) from None
        # States are indices into the declared states.
        states = support.states
        low, high = (int(bound) for bound in states.aminmax()) if states.numel() else (0, 0)
        if low < 0 or high >= entry.size:
            raise ModelError(
                f"The support of {entry.name!r} names state {low if low < 0 else high}; "
                f"it has states 0 to {entry.size - 1}."
            )
        given[place] = support
    # Observed variables have one state.
    return given | observed_supports(domain, observed, like)


def observed_supports(domain: Domain, observed: Tensor | None, like: Tensor) -> dict[int, Support]:
    """The observed state of each entry by its place, (*batch, *shape, 1); refuses partial ones."""
    supports: dict[int, Support] = {}
    if observed is None:
        return supports
    some, every = observed_entries(domain, observed)
    parts = observed.split(torch.tensor(domain.starts, device="cpu").diff().tolist(), -1)
    for place, (entry, part) in enumerate(zip(domain.entries, parts, strict=True)):
        if every[place]:
            states = part.reshape(*observed.shape[:-1], *entry.shape, 1)
            supports[place] = Support.plain(states, like)
        elif some[place]:
            raise EvidenceError(
                f"Variable {entry.name!r} is observed in part; restrict the graph, then condition."
            )
    return supports


def _shrunk(entry: Entry, support: Support) -> Entry:
    states: States = support.kept
    named = entry.states
    if isinstance(entry, Variable) and isinstance(named, tuple) and support.states.ndim == 1:
        names = [named[int(i)] for i in support.states]
        states = tuple(names) if len(set(names)) == len(names) else states
    if isinstance(entry, Variable):
        return Variable(entry.name, states)
    return type(entry)(entry.name, entry.shape, states)


def _restricted(
    block: Block, sizes: Tensor, rows: Tensor, selected: dict[int, Tensor]
) -> list[Block]:
    """Blocks on the kept states, one for each combination of numbers kept."""
    result: list[Block] = []
    distinct, groups = grouped_rows(sizes[block.scopes])
    for kept, members in zip(distinct.tolist(), groups, strict=True):
        scopes = block.scopes[members]
        slots = [selected[k][..., rows[scopes[:, slot]], :] for slot, k in enumerate(kept)]
        values = block.select(None if len(groups) == 1 else members).evaluate(slots)
        if values.ndim == block.arity:
            values = values.unsqueeze(0)
        shape = (values.shape[block.slot_axis],)
        table = Table.from_logs(values)
        result.append(Block(scopes, table, shape, None, block.declared[members]))
    return result
