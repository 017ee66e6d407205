"""Rows of evidence, each by itself: the work of a row is over the variables that it lacks."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rdpgraph._core import tuning
from rdpgraph._core.cache import cached_property, differentiable_property
from rdpgraph.engines.exact.buckets import Factors
from rdpgraph.engines.portfolio import PASS_OF
from rdpgraph.engines.recognised import recognised_left
from rdpgraph.engines.reduction.network import Network, reduce_graph
from rdpgraph.engines.reduction.tables import factor_tables
from rdpgraph.engines.solution import (
    Delegate,
    Question,
    Solution,
    Status,
    Value,
)
from rdpgraph.logspace.gradients import is_transformed, possible_alone, with_gradient
from rdpgraph.model.block import Block
from rdpgraph.model.domain import Domain
from rdpgraph.model.evidence import MISSING
from rdpgraph.model.graph import FactorGraph
from rdpgraph.model.potentials.table import Table
from rdpgraph.model.variable import Variable
from rdpgraph.native.library import available, threads
from rdpgraph.plan.plan import PASSES, Budget, Plan
from rdpgraph.schedulers.rows_apart import RowsApart
from rdpgraph.schedulers.scheduler import Planned

_SUMS = {name for name, kind in PASS_OF.items() if kind in ("log_partition", "variable_marginals")}
"""Questions that compiled code answers row by row."""


@dataclass(frozen=True, eq=False)
class RowsSolution(Delegate):
    """Sums for rows of evidence on a graph of tables, by compiled code; others by `RowsApart`."""

    graph: FactorGraph  # the model, evidence included
    network: Network  # of the model without evidence
    whole: Callable[[FactorGraph], Planned]  # plans some rows, all of them at once
    memory: float  # bytes

    log_partitions, joint, rsample = Solution.log_partitions, Solution.joint, Solution.rsample
    possible, entropy = Solution.possible, Solution.entropy

    @cached_property
    def _general(self) -> RowsApart:
        return RowsApart(self.graph, self.whole, self.memory)

    def _ask(self, question: Question[Value]) -> Value:
        sums = question.subject in _SUMS
        return self._general.exactly(question) if sums and self._fit else question(self._general)

    def status(self) -> Status:
        """Status of log Z and marginals; exact where no row lacks too many variables."""
        return Status(route="rows") if self._fit else self._general.status()

    def status_of(self, answer: str) -> Status:
        """Status of sums, or of what rows give one by one."""
        exact = self._fit and answer in _SUMS
        return Status(route="rows") if exact else self._general.status_of(answer)

    def log_partition_errors(self) -> Tensor | None:
        return None if self._fit else self._general.log_partition_errors()

    def bounds(self) -> tuple[Tensor, Tensor]:
        return Solution.bounds(self) if self._fit else self._general.bounds()

    def interval(self, confidence: float) -> tuple[Tensor, Tensor]:
        return self.bounds() if self._fit else self._general.interval(confidence)

    @differentiable_property
    def _entries(self) -> Tensor:
        return torch.cat([group.log_tables.flatten() for group in self.network.groups]).double()

    @cached_property
    def factors(self) -> Factors:
        """Factors of the network, of the tables of which those of each group are a block."""
        return _factors_of(self.network)

    @cached_property
    def _reals(self) -> Tensor:
        reals = self.factors.reals(self._entries)
        assert reals is not None  # `planned_rows` takes no tables with inf or NaN
        return reals

    def run(
        self, observed: Tensor, *, weights: Tensor | None = None, marginals: Tensor | None = None,
        counts: Tensor | None = None, cells: Tensor | None = None, targets: Tensor | None = None,
        stride: int = 0,
    ) -> Tensor:  # fmt: skip
        """(rows,) log Z of rows (rows, V), without the constant; fills what is given besides."""
        work = len(observed) * self.graph.num_variables * tuning.ROW_VARIABLE
        return self.factors.eliminate(
            self._reals, observed.contiguous(), dtype=self.graph.dtype, marginals=marginals,
            weights=weights, counts=counts, targets=targets, stride=stride, cells=cells,
            beside=self.cells_beside, threads=threads(work),
        )  # fmt: skip

    @property
    def cells_beside(self) -> float:
        """Return the most cells that rows which a thread solves side by side may have.

        A cell takes 16 bytes.
        """
        return min(tuning.CACHE_BLOCK / 8, self.memory / (64 * torch.get_num_threads()))

    @cached_property
    def observed(self) -> Tensor:
        """(B, V) states, -1 where missing."""
        assert self.graph.observed is not None
        return self.graph.observed.reshape(-1, self.graph.num_variables)

    def _recorded(self) -> bool:
        return torch.is_grad_enabled() and self._entries.requires_grad

    def log_partition(self) -> Tensor:
        constant = self.network.constant
        log_z = self._log_z
        if not self._fit:
            return self._general.log_partition()
        if self._recorded():  # not cached: it refers to this object
            log_z = with_gradient(log_z, self._entries, self._counts, self.unrolled)
        return (log_z + constant.double()).to(constant.dtype)

    def _counts(self, weights: Tensor) -> Tensor:
        """(entries,) expected counts of entries, summed over the rows with weights."""
        counts = torch.zeros_like(self._entries)
        self.run(self.observed, weights=weights.contiguous(), counts=counts)
        return counts

    @cached_property
    def _log_z(self) -> Tensor:
        return self._solved[0] if "_solved" in self.__dict__ else self.run(self.observed)

    @cached_property
    def _fit(self) -> bool:
        """True if no row lacks too many variables to be solved by itself."""
        return not bool(self._log_z.isnan().any())

    def variable_marginals(self) -> Tensor:
        """(B, S) probabilities; with gradients they are those of `RowsApart`."""
        if self._recorded() or not self._fit:
            return self._ask(Question("variable_marginals"))
        return self._solved[1]

    @cached_property
    def _solved(self) -> tuple[Tensor, Tensor]:
        states = self.graph.domain.total_states
        flat = torch.zeros(len(self.observed), states, dtype=self.graph.dtype, device="cpu")
        return self.run(self.observed, marginals=flat), flat

    def _beliefs(self, number: int, observed: Tensor) -> Tensor:
        """(rows, F, *sizes) probabilities of the configurations of a group's factors."""
        groups = self.network.groups
        count, sizes = len(groups[number].scopes), groups[number].log_tables.shape[2:]
        before, cells = sum(len(group.scopes) for group in groups[:number]), math.prod(sizes)
        targets = torch.full((len(self.factors.offsets),), -1, device="cpu")
        targets[before : before + count] = torch.arange(count, device="cpu") * cells
        beliefs = torch.zeros(len(observed), count, *sizes, dtype=torch.float64, device="cpu")
        self.run(observed, counts=beliefs, targets=targets, stride=count * cells)
        return beliefs

    def factor_marginals(self, block: int) -> Tensor:
        if self._recorded() or not self._fit:
            return self._ask(Question("factor_marginals", (block,)))
        network = replace(self.network, graph=self.graph)

        def beliefs(group: int, rows: Tensor) -> Tensor:
            return self._beliefs(group, self.observed)[:, rows]

        return self._of_possible(factor_tables(network, block, beliefs))

    def expected_score(self) -> Tensor:
        if self._recorded() or not self._fit:
            return self._ask(Question("expected_score"))
        total = self.network.constant.double().repeat(len(self.observed))
        for number, group in enumerate(self.network.groups):
            logs = group.each()[0].double()
            each = len(group.scopes) * logs[0].numel()
            for rows in torch.arange(len(total), device="cpu").split(tuning.per_block(each)):
                beliefs = self._beliefs(number, self.observed[rows])
                total[rows] += (beliefs * torch.where(beliefs > 0, logs, 0.0)).flatten(1).sum(1)
        return self._of_possible(total).to(self.graph.dtype)

    def unrolled(self, entries: Tensor) -> Tensor:
        """(B,) log Z without the constant, as torch operations on the entries."""
        network, states = self.network, self.graph.domain.state_starts[:-1]
        blocks: list[Block] = []
        sizes = [group.log_tables.numel() for group in network.groups]
        for group, part in zip(network.groups, entries.split(sizes), strict=True):
            table = Table.from_logs(part.reshape(group.log_tables.shape[1:]))
            declared = torch.arange(len(group.scopes), device="cpu")
            blocks.append(Block(group.scopes, table, table.shape[:1], group.rows, declared))
        domain = Domain.of(Variable(str(v), size) for v, size in enumerate(network.sizes))
        given = self.observed != MISSING
        left = torch.from_numpy(self.factors.left)
        known = torch.where(given, left[states + self.observed * given], MISSING)
        dead = (given & (known == MISSING)).any(1)
        observed = torch.full((len(given), len(network.sizes)), MISSING, device="cpu")
        observed[:, : len(network.numbers)] = known[:, network.numbers]
        rows = RowsApart(FactorGraph.from_blocks(domain, blocks, observed), self.whole, self.memory)
        log_z = rows.exactly(Question[Tensor]("log_partition"))
        return possible_alone(torch.where(dead, -math.inf, log_z))


def _factors_of(network: Network) -> Factors:
    """The factors of a network without evidence, whose tables are entries group by group."""
    groups, starts = network.groups, network.graph.domain.state_starts
    offsets, tables, firsts = list[Tensor](), list[Tensor](), list[Tensor]()
    entries = number = 0
    for group in groups:
        count, each = group.log_tables.shape[1], group.log_tables[0, 0].numel()
        rows = torch.arange(len(group.scopes), device="cpu") % count
        rows = rows if group.rows is None else group.rows
        offsets.append(entries + rows * each)
        tables.append(number + rows)
        firsts.append(entries + torch.arange(count, device="cpu") * each)
        entries, number = entries + count * each, number + count
    # A declared state has the number that it has among those remaining of its variable.
    left = torch.full((int(starts[-1]),), -1, device="cpu")
    settled = (network.settled[0] >= 0).nonzero().flatten()
    left[starts[settled] + network.settled[0, settled]] = 0
    sizes = torch.tensor(network.sizes, device="cpu")
    declared = sizes[: len(network.numbers)]
    for size in declared.unique().tolist():
        numbers = network.numbers[declared == size]
        places = starts[numbers, None] + network.states_left(numbers, size)
        left[places] = torch.arange(size, device="cpu")
    return Factors(
        [group.scopes.numpy() for group in groups], torch.cat(offsets).numpy(),
        torch.cat(tables).numpy(), torch.cat(firsts).numpy(), entries, sizes.numpy(),
        starts.numpy(), network.active.numpy(), left.numpy(),
    )  # fmt: skip


def planned_rows(
    graph: FactorGraph, budget: Budget, whole: Callable[[FactorGraph], Planned],
    general: Callable[[FactorGraph], Callable[[], Solution]] | None = None,
) -> Planned | None:  # fmt: skip
    """Plan of rows of evidence on tables, each by itself; None where that is not the way.

    Args:
        graph: the model.
        budget: of the plan.
        whole: plans rows at once, for answers that are not sums.
        general: solves a graph as no structure; given where registered structures come first.
    """
    if graph.observed is None or not graph.batch_shape or graph.device.type != "cpu":
        return None
    # Compiled code takes finite tables on the CPU, the same ones for all rows.
    tables = all(type(b.potential) is Table and not b.batch_shape for b in graph.blocks)
    if not tables or is_transformed() or not available(graph.dtype, "graphs"):
        return None
    given = graph.observed.reshape(-1, graph.num_variables)
    # Where all rows observe the same and a structure is left, that answers.
    common = torch.where((given != MISSING).all(0), given[0], MISSING)
    common = FactorGraph.from_blocks(graph.domain, graph.blocks, common)
    if general and recognised_left(common, reduce_graph(common), general) is not None:
        return None
    network = reduce_graph(FactorGraph.from_blocks(graph.domain, graph.blocks))
    if network.impossible or not network.groups or bool(network.constant.isneginf()):
        return None
    if not all(g.extent[1] < math.inf for g in network.groups):
        return None
    solution = RowsSolution(graph, network, whole, budget.memory_bytes)
    observed, count = solution.observed, math.prod(graph.batch_shape)
    # The work is measured on the rows with most gaps, and on some of all.
    gaps = (observed == MISSING).sum(1)
    tried = torch.arange(0, count, -(-count // tuning.ROWS_TRIED), device="cpu")
    tried = torch.cat([gaps.topk(min(tuning.ROWS_TRIED, count)).indices, tried])
    cells = torch.zeros(len(tried), 2, dtype=torch.float64, device="cpu")
    solution.run(observed[tried], cells=cells)
    most, widest = cells.amax(0).tolist()
    mean = float(cells[min(tuning.ROWS_TRIED, count) :, 0].mean())
    if most > tuning.LARGE_BLOCK or mean > tuning.ROW_MEAN:
        return None
    # From these follow the time and the memory of all rows.
    work = count * (mean + tuning.ROW_VARIABLE * float(gaps.double().mean()))
    element = torch.finfo(graph.dtype).bits / 8
    rows = tuning.ROWS_BESIDE if tuning.ROWS_BESIDE * most <= solution.cells_beside else 1
    peak = 16.0 * rows * most * threads(work)
    plan = Plan(
        route="contraction",
        why=f"each of {count:,} rows by itself, over the variables that it lacks",
        num_variables=len(network.sizes),
        num_factors=len(solution.factors.offsets),
        dropped_states=network.dropped,
        width=math.log2(max(widest, 1.0)),
        flops=work / PASSES,
        peak_bytes=peak + element * count,
        stored_bytes=peak + element * count * graph.domain.total_states,
        seconds=work / tuning.ROW_CELLS_PER_SECOND,
        memory=budget.memory_bytes,
    )
    if plan.seconds > budget.seconds or plan.stored_bytes > budget.memory_bytes:
        return None
    return plan, lambda: solution
