"""A factor graph reduced to a network: evidence applied, impossible states dropped."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph._core.cache import cached_property
from rdpgraph._core.portable import tensors_in
from rdpgraph.engines.reduction.consistency import Possible, strike_impossible
from rdpgraph.model.block import Block
from rdpgraph.model.evidence import MISSING
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.potentials.automaton import Automaton
from rdpgraph.model.potentials.lowrank import LowRank
from rdpgraph.model.potentials.potential import Potential
from rdpgraph.model.potentials.table import Table
from rdpgraph.model.restriction import grouped_rows
from rdpgraph.plan.plan import require_room
from rdpgraph.plan.tree import Topology


@dataclass(frozen=True, eq=False)
class Group:
    """Factors of one shape over active variables."""

    scopes: Tensor  # (F, n) active variables; n >= 1
    log_tables: Tensor  # (batch or 1, U, *sizes)
    rows: Tensor | None  # (F,) table of each factor; None if U is 1 or F

    @cached_property
    def extent(self) -> tuple[float, float]:
        """Smallest and largest log-value, NaN if one is; computed once."""
        tables = self.log_tables.detach()
        if not tables.numel():
            return -math.inf, -math.inf
        low, high = tables.aminmax()
        return float(low), float(high)

    @cached_property
    def layout(self) -> tuple[int, tuple[int, ...] | None]:
        """Number of factors and, where tables are large, the table of each.

        Steps on different large tables run one by one, because running them as one would copy the
        tables into one tensor.
        """
        count = len(self.scopes)
        if math.prod(self.log_tables.shape[2:]) < tuning.CORE_BLOCK:
            return count, None
        if self.rows is not None:
            return count, tuple(self.rows.tolist())
        return count, (0,) * count if self.log_tables.shape[1] == 1 else tuple(range(count))

    def each(self) -> Tensor:
        """(batch or 1, F or 1, *sizes) table of every factor."""
        if self.rows is None:
            return self.log_tables
        return self.log_tables[:, self.rows.to(self.log_tables.device)]


@dataclass(frozen=True, eq=False)
class HighOrderBlock:
    """A block whose potential computes messages itself, without a table."""

    number: int  # of the block in the graph
    potential: Potential  # of all its factors, (*batch, F or 1) leading dims
    scopes: Tensor  # (F, n) variables of the graph


@dataclass(frozen=True, eq=False)
class Network:
    """A reduced factor graph, which the engines solve."""

    graph: FactorGraph  # the model
    counts: Tensor  # (V',) remaining states of each active variable, at least two each
    groups: tuple[Group, ...]  # the remaining factors
    constant: Tensor  # (batch or 1,) summed log-values of the factors that are constant now
    # (2, batch or 1) the same sum without gradients in float64, and that of absolute values, by
    # which its rounding is bounded: the constant in float32 is no bound of anything
    constant_sums: Tensor
    active: Tensor  # (V,) active number of each variable of the graph, -1 if it is settled
    settled: Tensor  # (batch or 1, V) state of settled variables, -1 for active ones
    possible: Possible | None  # the remaining states; None if there are no hard zeros
    dropped: int  # number of states that hard zeros made impossible
    impossible: bool  # no configuration is possible
    # per block of the graph the parts of its factors: (rows of the block, group or -1, slots that
    # stayed active)
    origins: tuple[tuple[tuple[Tensor, int, tuple[int, ...]], ...], ...]
    # blocks that are not among the groups, if they were asked for
    high_order: tuple[HighOrderBlock, ...] = ()

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The remaining states of each active variable, as Python numbers."""
        return tuple(self.counts.tolist())

    @cached_property
    def is_whole(self) -> bool:
        """True if the active variables are those of the graph, with all of their states."""
        alike = self.possible is None and len(self.counts) == len(self.active)
        return alike and bool((self.active >= 0).all())

    @cached_property
    def batch(self) -> int:
        """Number of batch items."""
        return math.prod(self.graph.batch_shape)

    @property
    def log_zero(self) -> Tensor:
        """(B,) -inf in the type of the model: log Z where no configuration is possible."""
        return torch.full_like(self.constant, -math.inf).expand(self.batch)

    @property
    def no_bounds(self) -> tuple[Tensor, Tensor]:
        """(B,) -inf and (B,) +inf, float64: bounds where nothing is known."""
        infinite = torch.full((self.batch,), math.inf, dtype=torch.float64, device="cpu")
        return -infinite, infinite

    @cached_property
    def exact_constant(self) -> Tensor:
        """(B,) float64 constant of each batch item, right to the last digits of float64."""
        return self.constant_sums[0].expand(self.batch)

    @cached_property
    def constant_error(self) -> Tensor:
        """(B,) float64 bound on the rounding of `exact_constant`, and of one more addition."""
        # Sums are taken in pairs, so that an error grows with the logarithm of their length.
        return (64.0 * torch.finfo(torch.float64).eps * self.constant_sums[1]).expand(self.batch)

    @cached_property
    def topology(self) -> Topology:
        """Scopes of the remaining factors and sizes of the active variables, for plans."""
        scopes = (tuple(scope) for group in self.groups for scope in group.scopes.tolist())
        return Topology(tuple(scopes), self.sizes)

    @cached_property
    def numbers(self) -> Tensor:
        """The number in the graph of each active variable; auxiliary ones are left out."""
        if self.is_whole:
            return self.active
        return (self.active >= 0).nonzero().flatten()

    @cached_property
    def tables_bytes(self) -> float:
        """Bytes that the tables take beside the model's own tensors.

        They are exponentiated once, and copied before where they are not tensors of the model. Of
        small ones, those that steps read together are copied once more.
        """
        given = {part.untyped_storage().data_ptr() for part in tensors_in(self.graph.blocks)}
        entries = 0.0
        for group in self.groups:
            tables, (count, large) = group.log_tables, group.layout
            entries += tables.numel() * (1 + (tables.untyped_storage().data_ptr() not in given))
            if large is None and tables.shape[1] > 1:
                entries += tuning.GATHERED * count * tables.numel() / tables.shape[1]
        return entries * torch.finfo(self.graph.dtype).bits / 8

    def states_left(self, numbers: Tensor, size: int) -> Tensor:
        """(n, size) remaining states of variables that have ``size`` of them."""
        return _states_left(self.possible, numbers, size)


@dataclass(frozen=True, eq=False)
class _Tables:
    """A block in dense form: scopes (F, n), tables (batch or 1, U, *sizes), rows."""

    scopes: Tensor
    tables: Tensor
    rows: Tensor | None
    block: int | None


def reduce_graph(
    graph: FactorGraph, *, possible: Possible | None = None, high_order: bool = False,
    within: Possible | None = None,
) -> Network:  # fmt: skip
    """Apply evidence, drop states that hard zeros make impossible, and squeeze settled slots.

    Exact. Linear in the tables' sizes per round of propagation. Gradients flow to the potentials.

    Args:
        graph: the model.
        possible: the remaining states, if known from a graph with less evidence.
        high_order: keep potentials that compute messages themselves, unless their tables are
            small; else they are decomposed.
        within: states of the graph's variables beyond which none is possible.
    """
    batch = math.prod(graph.batch_shape)
    blocks = _high_order_blocks(graph) if high_order else ()
    sizes, tables = _dense(graph, batch, {block.number for block in blocks})
    # What is observed is settled, for all rows alike where there is one row of evidence.
    if graph.observed is None:
        settled = torch.full((1, 1), MISSING, device="cpu").expand(1, len(sizes))
    else:
        flat = graph.observed.expand(*graph.batch_shape, -1).reshape(batch, graph.num_variables)
        flat = flat[:1] if batch > 1 and graph.observed.ndim == 1 else flat
        settled = torch.full((len(flat), len(sizes)), MISSING, device="cpu")
        settled[:, : graph.num_variables] = flat
        settled, indicators = _split_evidence(settled, sizes, graph)
        tables.extend(indicators)
    tables.extend(_uniform(tables, settled, sizes, graph))
    # Hard zeros rule states out, and variables of one state left are settled, too.
    if possible is None:
        possible = _possible_states(settled, sizes, tables, blocks, within)
        if possible is not None:
            _keep_tables_shared(possible, tables, settled[0] == MISSING)
    counts = sizes if possible is None else possible.counts()
    unseen = settled[0, : graph.num_variables] == MISSING
    dropped = int((sizes - counts)[: graph.num_variables][unseen].sum())
    settled = _settle(possible, counts, settled)
    network = _squeezed(graph, tables, counts, settled, possible, dropped)
    return replace(network, high_order=() if network.impossible else blocks)


def _high_order_blocks(graph: FactorGraph) -> tuple[HighOrderBlock, ...]:
    blocks: list[HighOrderBlock] = []
    for number, block in enumerate(graph.blocks):
        high_order = type(block.potential).messages is not Potential.messages
        if high_order and math.prod(block.sizes) > tuning.SMALL_TABLE:
            blocks.append(HighOrderBlock(number, block.select(), block.scopes))
    return tuple(blocks)


def _dense(
    graph: FactorGraph, batch: int, left_out: Collection[int] = ()
) -> tuple[Tensor, list[_Tables]]:
    """All blocks as dense tables; each factor of a decomposable one has auxiliary variables."""
    sizes, tables = [graph.domain.sizes], list[_Tables]()
    count = graph.num_variables
    for number, block in enumerate(graph.blocks):
        if number in left_out:
            continue
        # A potential that is not decomposed becomes its table.
        whole = type(block.potential).decompose is Potential.decompose
        split = None if whole else block.select().decompose()
        if split is None:
            _require_room(block, graph)
            values, rows = block.unique()
            flat = _flat_batch(values.to(graph.dtype), block.arity + 1, graph, batch)
            tables.append(_Tables(block.scopes, flat, rows, number))
            continue
        # Others become tables over their variables and new auxiliary ones, of each factor its own.
        shape = (block.count, len(split.auxiliary))
        auxiliary = count + torch.arange(math.prod(shape), device="cpu").reshape(shape)
        count += auxiliary.numel()
        sizes.append(
            torch.tensor(split.auxiliary, dtype=torch.long, device="cpu").repeat(block.count)
        )
        variables = torch.cat([block.scopes, auxiliary], 1)
        for part in split.parts:
            values = part.log_values.to(graph.dtype)
            values = values if values.ndim > len(part.variables) else values.unsqueeze(0)
            flat = _flat_batch(values, len(part.variables) + 1, graph, batch)
            tables.append(_Tables(variables[:, list(part.variables)], flat, None, None))
    return torch.cat(sizes), tables


def _require_room(block: Block, graph: FactorGraph) -> None:
    """Refuse tables of pairs without one that the machine's memory does not hold.

    Potentials of more variables say themselves which tables they do not write out.
    """
    shape = block.potential.shape
    remedy = "give infer an estimator that keeps a few states, such as Randomized.default(keep=100)"
    if isinstance(block.potential, LowRank):
        remedy += ", or LowRankFactors(), which needs no table for log Z, marginals and samples"
    if block.arity <= 2 and not isinstance(block.potential, Table):
        require_room(
            math.prod(shape) * torch.finfo(graph.dtype).bits / 8,
            f"The table of a {type(block.potential).__name__} of shape {tuple(shape)}",
            remedy=remedy,
        )


def _flat_batch(values: Tensor, trailing: int, graph: FactorGraph, batch: int) -> Tensor:
    """(*batch, ...) as (batch or 1, ...)."""
    ends = values.shape[values.ndim - trailing :]
    lead = values.shape[: values.ndim - trailing]
    if math.prod(lead) == 1:
        return values.reshape(1, *ends)
    return values.expand(*graph.batch_shape, *ends).reshape(batch, *ends)


def _split_evidence(
    settled: Tensor, sizes: Tensor, graph: FactorGraph
) -> tuple[Tensor, list[_Tables]]:
    """Tables of zeros and -inf instead of evidence on variables observed in some rows only."""
    seen = settled != MISSING
    partial = (seen.any(0) & ~seen.all(0)).nonzero().flatten()
    indicators: list[_Tables] = []
    for size in torch.unique(sizes[partial]).tolist():
        chosen = partial[sizes[partial] == size]
        states = settled[:, chosen].unsqueeze(-1)
        agrees = (states == MISSING) | (states == torch.arange(size, device="cpu"))
        values = torch.where(agrees, 0.0, -math.inf).to(dtype=graph.dtype, device=graph.device)
        indicators.append(_Tables(chosen.unsqueeze(1), values, None, None))
    settled = settled.clone()
    settled[:, partial] = MISSING
    return settled, indicators


def _uniform(
    tables: list[_Tables], settled: Tensor, sizes: Tensor, graph: FactorGraph
) -> list[_Tables]:
    """Zero tables for variables without a factor."""
    lonely = settled[0] == MISSING
    for part in tables:
        lonely[part.scopes.reshape(-1)] = False
    numbers = lonely.nonzero().flatten()
    result: list[_Tables] = []
    for size in torch.unique(sizes[numbers]).tolist():
        chosen = numbers[sizes[numbers] == size].unsqueeze(1)
        zeros = torch.zeros(1, 1, size, dtype=graph.dtype, device=graph.device)
        result.append(_Tables(chosen, zeros, None, None))
    return result


def _possible_states(
    settled: Tensor, sizes: Tensor, tables: list[_Tables], blocks: Sequence[HighOrderBlock],
    within: Possible | None,
) -> Possible | None:  # fmt: skip
    """States left by evidence and hard zeros; None if there are no hard zeros."""
    factors: list[tuple[Tensor, Tensor, Tensor | None]] = []
    for part in tables:
        if not part.scopes.shape[1] or not may_have_zeros(part.tables):
            continue
        # NaN is no hard zero: it is left for log Z to show.
        allowed = (part.tables.detach() != -math.inf).any(0).cpu()
        if not bool(allowed.all()):
            factors.append((part.scopes, allowed, part.rows))
    if not factors and not blocks and within is None:
        return None
    possible = Possible(sizes)
    if within is not None:
        possible.mask[: len(within.mask)] &= within.mask
    observed = settled[0] != MISSING
    if bool(observed.any()):
        numbers = observed.nonzero().flatten()
        possible.allow_these(numbers, settled[:, numbers])
    strike_impossible(possible, factors)
    while any(_strike_by_messages(possible, block) for block in blocks):
        strike_impossible(possible, factors)
    return possible


def _keep_tables_shared(possible: Possible, tables: list[_Tables], free: Tensor) -> None:
    """Let variables keep states of probability zero where to drop them would copy a large table.

    A table that factors share is cut for each of them apart if they have lost different states,
    which takes more memory than the states do that are dropped.
    """
    for part in tables:
        count, shape = part.tables.shape[1], part.tables.shape[2:]
        if math.prod(shape) < tuning.CORE_BLOCK or count >= len(part.scopes):
            continue
        left = possible.counts()[part.scopes]
        cut = (left < torch.tensor(shape, device="cpu")).any(1)
        if int(left[cut].prod(1).sum()) > count * math.prod(shape):
            numbers = part.scopes[cut]
            for slot, size in enumerate(shape):
                some = numbers[:, slot][(left[cut, slot] > 1) & free[numbers[:, slot]]]
                possible.mask[possible.places(some, size).reshape(-1)] = True


def may_have_zeros(tables: Tensor) -> bool:
    """Return whether some log-value is -inf or NaN, or there is none; one pass over the tables."""
    return not tables.numel() or not bool(tables.detach().amin() > -math.inf)


def _strike_by_messages(possible: Possible, block: HighOrderBlock) -> bool:
    """Strike out states that a block rules out, by sums (faster than maxima); whether any was."""
    sizes = block.potential.slots(block.scopes.shape[1])
    places = [possible.places(block.scopes[:, slot], size) for slot, size in enumerate(sizes)]
    # That an automaton rules nothing out is seen without messages of all factors.
    every = all(bool(possible.mask[place].all()) for place in places)
    if every and isinstance(block.potential, Automaton) and block.potential.allows_every_state():
        return False
    like = torch.zeros((), dtype=block.potential.dtype, device=block.potential.device)
    with torch.no_grad():
        incoming = [torch.where(possible.mask[place], 0.0, -math.inf).to(like) for place in places]
        answers = block.potential.messages(incoming, temperature=1.0)
    struck = False
    for place, answer in zip(places, answers, strict=True):
        supported = (answer != -math.inf).reshape(-1, *place.shape).any(0).cpu()
        lost = place[possible.mask[place] & ~supported]
        possible.mask[lost] = False
        struck = struck or bool(len(lost))
    return struck


def _settle(possible: Possible | None, counts: Tensor, settled: Tensor) -> Tensor:
    """Evidence with variables of one remaining state settled in it."""
    numbers = ((counts == 1) & (settled[0] == MISSING)).nonzero().flatten()
    if not len(numbers):
        return settled
    settled = settled.clone()
    settled[:, numbers] = _states_left(possible, numbers, 1).flatten()
    return settled


def _states_left(possible: Possible | None, numbers: Tensor, size: int) -> Tensor:
    if possible is None:
        return torch.arange(size, device="cpu").expand(len(numbers), size)
    left = possible.left()
    starts = possible.starts[numbers]
    first = torch.searchsorted(left, starts)
    return left[first.unsqueeze(1) + torch.arange(size, device="cpu")] - starts.unsqueeze(1)


def _squeezed(
    graph: FactorGraph, tables: list[_Tables], counts: Tensor, settled: Tensor,
    possible: Possible | None, dropped: int,
) -> Network:  # fmt: skip
    """Cut every table down to the remaining states, and regroup factors by shape."""
    # Variables that are free get new numbers in turn; settled ones have one state left.
    free = settled[0] == MISSING
    impossible = bool((counts == 0).any())
    everything = bool(free.all())  # scopes need no other numbers, and are not copied
    if everything:
        left, active = counts, torch.arange(len(free), device="cpu")
    else:
        left = torch.where(free, counts, 1)
        active = torch.where(free, free.long().cumsum(0) - 1, -1)
    constant = torch.zeros(1, dtype=graph.dtype, device=graph.device)
    sums = torch.zeros(2, 1, dtype=torch.float64, device="cpu")
    groups: list[Group] = []
    origins: list[list[tuple[Tensor, int, tuple[int, ...]]]] = [[] for _ in graph.blocks]
    # Factors of one table whose variables keep as many states become a group.
    rows = torch.arange(max((len(part.scopes) for part in tables), default=0), device="cpu")
    for part in [] if impossible else tables:
        for kept, members in _kinds(part, left, rows if everything and possible is None else None):
            values, rows = _cut(part, members, kept, settled, possible)
            slots = tuple(slot for slot, size in enumerate(kept) if size > 1)
            if part.block is not None:
                origins[part.block].append((members, len(groups) if slots else -1, slots))
            if slots:
                values = values.reshape(*values.shape[:2], *(kept[slot] for slot in slots))
                scopes = part.scopes if len(members) == len(part.scopes) else part.scopes[members]
                scopes = scopes if len(slots) == len(kept) else scopes[:, list(slots)]
                scopes = scopes if everything else active[scopes]
                groups.append(Group(scopes, values, rows))
            else:  # all variables are settled: a constant, which is summed in float64 too
                values = values.flatten(1)
                values = values if rows is None else values[:, rows.to(values.device)]
                constant = constant + values.expand(-1, len(members)).sum(1)
                each = values.detach().double().cpu().expand(-1, len(members))
                sizes = torch.where(each.isfinite(), each.abs(), 0.0)
                sums = sums + torch.stack([each.sum(1), sizes.sum(1)])
    return Network(
        graph=graph,
        counts=left if everything and not impossible else left[free].clamp(min=1),
        groups=tuple(groups),
        constant=constant,
        constant_sums=sums,
        active=active[: graph.num_variables],
        settled=settled[:, : graph.num_variables],
        possible=possible,
        dropped=dropped,
        impossible=impossible,
        origins=tuple(tuple(origin) for origin in origins),
    )


def _kinds(
    part: _Tables, left: Tensor, rows: Tensor | None
) -> list[tuple[tuple[int, ...], Tensor]]:
    """Return the numbers of states that factors keep at their slots, and the factors of each kind.

    Args:
        part: the factors.
        left: (V,) remaining states of each variable.
        rows: the numbers of factors, at least as many as there are, if every variable keeps all of
            its states; else None.
    """
    if rows is not None and len(part.scopes):
        return [(tuple(part.tables.shape[2:]), rows[: len(part.scopes)])]
    kinds, every = grouped_rows(left[part.scopes])
    return list(zip(map(tuple, kinds.tolist()), every, strict=True))


def _cut(
    part: _Tables, members: Tensor, kept: tuple[int, ...], settled: Tensor,
    possible: Possible | None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Tables of some factors on the remaining states: (batch or 1, U, *kept) and rows."""
    tables, sizes = part.tables, part.tables.shape[2:]
    shared = tables.shape[1] == 1
    if kept == tuple(sizes):
        whole = shared or (part.rows is None and len(members) == tables.shape[1])
        places = members if part.rows is None else part.rows[members]
        return tables, None if whole else places
    # An index of the batch, one of the factor, and for each slot one of the states that are left.
    dims = len(kept)
    scopes = part.scopes[members]
    rows = torch.zeros(1, dtype=torch.long, device="cpu") if shared else members
    rows = rows if part.rows is None else part.rows[members]
    index = [torch.arange(tables.shape[0], device="cpu").reshape(-1, *(1,) * (dims + 1))]
    index.append(rows.reshape(1, -1, *(1,) * dims))
    for slot, (size, full) in enumerate(zip(kept, sizes, strict=True)):
        if size == full:
            states = torch.arange(size, device="cpu").reshape(1, 1, size)
        elif size == 1:
            states = settled[:, scopes[:, slot]].unsqueeze(-1)
        else:
            states = _states_left(possible, scopes[:, slot], size).unsqueeze(0)
        index.append(
            states.reshape(*states.shape[:2], *(1,) * slot, size, *(1,) * (dims - slot - 1))
        )
    return tables[tuple(place.to(tables.device) for place in index)], None
